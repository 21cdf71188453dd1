// What a thread may ask of the driver at its end, and what becomes of its default stream. docs/measurements.md has the answers.
//
// g++ -o threadend threadend.cpp -lcuda -lpthread
#include <cuda.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>

static const CUstream own = (CUstream)2;  // CU_STREAM_PER_THREAD

enum class Work { none, done, held };

struct Thread {
  Work work;
  bool asks_in_destructor, asks_in_key, records;
  CUevent event;
  volatile unsigned* word;
  unsigned long long id;
  volatile bool may_end;
};

static CUcontext context;
static pthread_key_t key;

static double now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void ask(Thread* t, const char* where) {
  CUstreamCaptureStatus status;
  unsigned long long id = 0;
  double begin = now_ms();
  int capturing = cuStreamIsCapturing(own, &status), named = cuStreamGetId(own, &id);
  int query = cuStreamQuery(own);
  double asked = now_ms();
  int record = t->records ? cuEventRecord(t->event, own) : -1;
  printf("  %s: capturing %d, id %d %s, query %d in %.2f ms; record %d in %.2f ms\n", where, capturing, named,
         id == t->id ? "the same" : "another", query, asked - begin, record, now_ms() - asked);
}

struct AtEnd {
  Thread* thread = nullptr;
  ~AtEnd() {
    if (thread) ask(thread, "destructor of a thread-local");
  }
};

static void at_key(void* thread) { ask((Thread*)thread, "destructor of a key"); }

static void* run(void* data) {
  Thread* t = (Thread*)data;
  cuCtxSetCurrent(context);
  cuStreamGetId(own, &t->id);
  static thread_local AtEnd at_end;  // after the driver's first call here, so that it goes before what is the driver's
  if (t->work == Work::held) cuStreamWaitValue32(own, (CUdeviceptr)t->word, 1, CU_STREAM_WAIT_VALUE_GEQ);
  if (t->work == Work::done) {
    CUevent event;
    cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    cuEventRecord(event, own);
  }
  if (t->asks_in_destructor) at_end.thread = t;
  if (t->asks_in_key) pthread_setspecific(key, t);
  while (!t->may_end) usleep(1000);
  return nullptr;
}

static void join(pthread_t thread, volatile unsigned* lets_go) {
  timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += 400000000;
  if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
  double begin = now_ms();
  int late = pthread_timedjoin_np(thread, nullptr, &until);
  printf("  joined: %s after %.1f ms\n", late ? "not yet" : "yes", now_ms() - begin);
  if (lets_go) *lets_go = 1;
  if (late) pthread_join(thread, nullptr);
}

static CUdeviceptr freed;
static void* free_it(void*) {
  cuCtxSetCurrent(context);
  double begin = now_ms();
  int result = cuMemFree(freed);
  printf("  the free: %d after %.0f ms\n", result, now_ms() - begin);
  return nullptr;
}

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  CUdevice device;
  cuInit(0);
  cuDeviceGet(&device, 0);
  cuDevicePrimaryCtxRetain(&context, device);
  cuCtxSetCurrent(context);
  pthread_key_create(&key, at_key);
  unsigned* words;
  cuMemHostAlloc((void**)&words, 4096, 0);
  for (int way = 0; way < 4; way++) {
    printf("a thread ends whose stream is held up, asks in destructor %d, key %d\n", way & 1, way >> 1);
    words[0] = 0;
    Thread t{Work::held, (way & 1) != 0, (way & 2) != 0, true, nullptr, words, 0, true};
    cuEventCreate(&t.event, CU_EVENT_DISABLE_TIMING);
    pthread_t thread;
    pthread_create(&thread, nullptr, run, &t);
    join(thread, nullptr);
    CUevent legacy;
    cuEventCreate(&legacy, CU_EVENT_DISABLE_TIMING);
    cuEventRecord(legacy, 0);
    usleep(50000);
    printf("  held: its event %d, one of the legacy stream %d\n", cuEventQuery(t.event), cuEventQuery(legacy));
    ((volatile unsigned*)words)[0] = 1;
    int own_event = cuEventSynchronize(t.event), legacy_event = cuEventSynchronize(legacy);
    printf("  let go: its event %d, one of the legacy stream %d, the context %d\n", own_event, legacy_event, cuCtxSynchronize());
  }
  for (int way = 0; way < 4; way++) {
    printf("a thread ends beside a free that waits, asks in destructor %d, records %d\n", way > 0, way == 2);
    words[16] = 0;
    CUstream held;
    cuStreamCreate(&held, CU_STREAM_NON_BLOCKING);
    cuMemAlloc(&freed, 1 << 20);
    Thread t{way == 3 ? Work::none : Work::done, way > 0, false, way == 2, nullptr, words, 0, false};
    cuEventCreate(&t.event, CU_EVENT_DISABLE_TIMING);
    pthread_t thread, frees;
    pthread_create(&thread, nullptr, run, &t);
    usleep(100000);
    cuStreamWaitValue32(held, (CUdeviceptr)(words + 16), 1, CU_STREAM_WAIT_VALUE_GEQ);
    pthread_create(&frees, nullptr, free_it, nullptr);
    usleep(100000);
    t.may_end = true;
    join(thread, words + 16);
    pthread_join(frees, nullptr);
    cuStreamSynchronize(held);
  }
}
