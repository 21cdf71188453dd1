// Topic 5: a stream waits for an interprocess event whose exporter was killed. Does it go on, fail, or hang for ever?
// Three processes a case: a director without CUDA, the exporter A, and the importer B, which may be killed when it hangs.
#include "measure.h"
using namespace m;

struct Sh {
  volatile int a_ready, b_ready, killed;
  volatile uint64_t t_kill, t_gone;
  CUipcEventHandle eh;
  CUipcMemHandle mh;
};
struct Case {
  const char* name;
  enum { KERNEL, WAITVALUE, FINISHED, NEVER } work;
  enum { BEFORE, AFTER, SYNC, OPEN_LATE } how;
  enum { KILL, EXIT, DESTROY } end;
};
static const Case cases[] = {
    {"kernel running, wait queued before the kill", Case::KERNEL, Case::BEFORE, Case::KILL},
    {"kernel running, wait queued after the kill", Case::KERNEL, Case::AFTER, Case::KILL},
    {"kernel running, cuEventSynchronize after the kill", Case::KERNEL, Case::SYNC, Case::KILL},
    {"stream in cuStreamWaitValue64, wait queued before the kill", Case::WAITVALUE, Case::BEFORE, Case::KILL},
    {"recorded and finished, wait queued before the kill", Case::FINISHED, Case::BEFORE, Case::KILL},
    {"recorded and finished, wait queued after the kill", Case::FINISHED, Case::AFTER, Case::KILL},
    {"never recorded, wait queued before the kill", Case::NEVER, Case::BEFORE, Case::KILL},
    {"never recorded, wait queued after the kill", Case::NEVER, Case::AFTER, Case::KILL},
    {"recorded and finished, handles opened after the kill", Case::FINISHED, Case::OPEN_LATE, Case::KILL},
    {"kernel running, exporter leaves by _exit, wait queued before", Case::KERNEL, Case::BEFORE, Case::EXIT},
    {"kernel running, exporter destroys its event, wait queued before", Case::KERNEL, Case::BEFORE, Case::DESTROY},
};
static void exporter(const Case& c, Sh* sh) {
  alarm(40);
  init();
  CUevent e = event(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
  CUstream s = stream();
  auto w = pinned_words();
  CUdeviceptr d;
  CK(cuMemAlloc(&d, 2 << 20));
  CK(cuMemsetD8(d, 0x42, 2 << 20));
  CK(cuCtxSynchronize());
  CK(cuIpcGetEventHandle(&sh->eh, e));
  CK(cuIpcGetMemHandle(&sh->mh, d));
  if (c.work == Case::KERNEL) spin(s, (void*)w, 12000000000ull);
  if (c.work == Case::WAITVALUE) CK(cuStreamWaitValue64(s, (CUdeviceptr)w, 1, CU_STREAM_WAIT_VALUE_GEQ));
  if (c.work == Case::FINISHED) launch(k_empty, s);
  if (c.work != Case::NEVER) CK(cuEventRecord(e, s));
  if (c.work == Case::FINISHED) CK(cuStreamSynchronize(s));
  sh->a_ready = 1;
  while (!sh->killed) usleep(200);
  if (c.end == Case::EXIT) _exit(0);
  if (c.end == Case::DESTROY) {
    int r = cuEventDestroy(e);
    say("exporter's cuEventDestroy of a pending event: %d", r);
    for (int i = 0; i < 3000; i++) usleep(1000);
    w[0] = 1;
    sleep_ms(2000);
    _exit(0);
  }
  for (;;) pause();
}
static void importer(const Case& c, Sh* sh) {
  alarm(40);
  init();
  CUstream s = stream(), s2 = stream();
  auto w = pinned_words();
  CUevent e = 0;
  CUdeviceptr d = 0;
  std::string n;
  std::vector<char> b(4096);
  while (!sh->a_ready) usleep(200);
  auto open = [&] {
    int a = cuIpcOpenEventHandle(&e, sh->eh), m = cuIpcOpenMemHandle(&d, sh->mh, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    n += fmt("open event %d, memory %d; ", a, m);
    return a;
  };
  int q0 = -2, wt = -2;
  if (c.how != Case::OPEN_LATE) {
    open();
    q0 = cuEventQuery(e);
    if (d) {
      int r = cuMemcpyDtoH(b.data(), d, 4096);
      n += fmt("memory read %d %s; ", r, b[7] == 0x42 ? "right" : "wrong");
    }
  }
  if (c.how == Case::BEFORE) {
    wt = cuStreamWaitEvent(s, e, 0);
    cuStreamWriteValue64(s, (CUdeviceptr)w, 1, 0);
    sleep_ms(20);
    n += fmt("query before %d, wait %d, stream before %d; ", q0, wt, (int)cuStreamQuery(s));
  } else n += fmt("query before %d; ", q0);
  sh->b_ready = 1;
  while (!sh->t_kill) usleep(100);
  if (c.how != Case::BEFORE) {
    while (!sh->t_gone) usleep(100);
    if (c.how == Case::OPEN_LATE && open()) {
      code("deadpeer", "cuIpcOpenEventHandle", c.name, 1, n);
      _exit(0);
    }
  }
  if (c.how == Case::SYNC) {
    n += fmt("query after %d; ", (int)cuEventQuery(e));
    code("deadpeer", "cuEventQuery", std::string(c.name) + " (query first)", cuEventQuery(e), n);
    alarm(6);
    int r = cuEventSynchronize(e);
    alarm(0);
    code("deadpeer", "cuEventSynchronize", c.name, r, n);
    _exit(0);
  }
  if (c.how != Case::BEFORE) {
    wt = cuStreamWaitEvent(s, e, 0);
    cuStreamWriteValue64(s, (CUdeviceptr)w, 1, 0);
    n += fmt("query after %d, wait %d; ", (int)cuEventQuery(e), wt);
  }
  int r = until_ready([&] { return cuStreamQuery(s); }, 5000);
  double ms = (now_ns() - sh->t_kill) / 1e6;
  double gone = sh->t_gone ? (sh->t_gone - sh->t_kill) / 1e6 : -1;
  n += fmt("%s %.1f ms after the kill (exporter gone after %.1f ms), word written: %s; query %d; ", r == 600 ? "still pending" : "ended",
           ms, gone, w[0] ? "yes" : "no", (int)cuEventQuery(e));
  launch(k_empty, s2);
  int o = until_ready([&] { return cuStreamQuery(s2); }, 1000);
  n += fmt("another stream %d; ", o);
  if (d && r != 600) {
    memset(b.data(), 0, 4096);
    int k = cuMemcpyDtoH(b.data(), d, 4096);
    n += fmt("memory read %d %s; close memory %d; ", k, b[7] == 0x42 ? "right" : "wrong", (int)cuIpcCloseMemHandle(d));
  }
  n += fmt("event destroy %d", (int)cuEventDestroy(e));
  code("deadpeer", "cuStreamWaitEvent", c.name, r, n);
  _exit(0);
}
static void direct(const Case& c) {
  auto* sh = (Sh*)mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pid_t a = fork();
  if (!a) {
    exporter(c, sh);
    _exit(0);
  }
  pid_t b = fork();
  if (!b) {
    importer(c, sh);
    _exit(0);
  }
  int st;
  for (int i = 0; i < 25000 && !sh->b_ready; i++) {
    usleep(1000);
    if (waitpid(b, &st, WNOHANG) == b) {
      code("deadpeer", "set-up", c.name, -1, death(st));
      kill(a, 9);
      _exit(0);
    }
  }
  sh->t_kill = now_ns();
  if (c.end == Case::KILL) kill(a, SIGKILL);
  else sh->killed = 1;
  if (c.end != Case::DESTROY) waitpid(a, &st, 0);
  sh->t_gone = now_ns();
  for (int i = 0; i < 15000; i++) {
    usleep(1000);
    if (waitpid(b, &st, WNOHANG) == b) {
      if (!(WIFEXITED(st) && !WEXITSTATUS(st))) code("deadpeer", "importer", c.name, -1, death(st));
      b = 0;
      break;
    }
  }
  if (b) {
    code("deadpeer", "importer", c.name, -1, "hung: killed by the director");
    kill(b, SIGKILL);
    waitpid(b, &st, 0);
  }
  kill(a, SIGKILL);
  _exit(0);
}
int main() {
  std::vector<pid_t> v;
  for (auto& c : cases) {
    pid_t p = fork();
    if (!p) direct(c);
    v.push_back(p);
  }
  for (auto p : v) {
    int st;
    waitpid(p, &st, 0);
  }
}
