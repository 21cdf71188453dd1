// Topic 4, between processes: what it costs to wake another process, and how soon it sees a word that the GPU wrote.
// The second process never touches the driver: it stands for a peer that only maps shared memory.
#include <linux/futex.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "measure.h"
using namespace m;
static const char* T = "wake";
struct Sh {
  volatile uint32_t fa, fb;
  char pad0[56];
  volatile uint64_t a;
  char pad1[56];
  volatile uint64_t b;
  char pad2[56];
  volatile uint64_t seen[4096];
};
static Sh* sh;
static void pin(int cpu) {
  cpu_set_t c;
  CPU_ZERO(&c);
  CPU_SET(cpu, &c);
  sched_setaffinity(0, sizeof c, &c);
}
static void fwait(volatile uint32_t* p, uint32_t v) { syscall(SYS_futex, p, FUTEX_WAIT, v, nullptr, nullptr, 0); }
static void fwake(volatile uint32_t* p) { syscall(SYS_futex, p, FUTEX_WAKE, 1, nullptr, nullptr, 0); }
// Ping-pong; half the round trip is one wake-up.
static void pingpong(const char* n, std::function<void(int)> me, std::function<void(int)> peer, int rounds = 4000) {
  pid_t p = fork();
  if (!p) {
    alarm(10);
    pin(3);
    for (int i = 0; i < rounds; i++) peer(i);
    _exit(0);
  }
  pin(1);
  std::vector<double> v;
  for (int i = 0; i < rounds; i++) {
    auto a = clk::now();
    me(i);
    v.push_back(ns_between(a, clk::now()) / 2);
  }
  int st;
  waitpid(p, &st, 0);
  put(T, std::string(n) + ", one way", med(v), "ns");
  put(T, std::string(n) + ", one way, p99", pct(v, 0.99), "ns");
}
int main() {
  int fd = memfd_create("wake", MFD_CLOEXEC);
  if (ftruncate(fd, 1 << 20)) return 1;
  sh = (Sh*)mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  memset((void*)sh, 0, 1 << 20);
  alarm(40);
  uint64_t x;
  char c = 1;
  pingpong(
      "futex in shared memory",
      [](int i) {
        sh->fa = i + 1;
        fwake(&sh->fa);
        while (sh->fb != (uint32_t)i + 1) fwait(&sh->fb, i);
      },
      [](int i) {
        while (sh->fa != (uint32_t)i + 1) fwait(&sh->fa, i);
        sh->fb = i + 1;
        fwake(&sh->fb);
      });
  int ea = eventfd(0, 0), eb = eventfd(0, 0);
  uint64_t one = 1;
  pingpong(
      "eventfd",
      [&](int) {
        if (write(ea, &one, 8) < 0 || read(eb, &x, 8) < 0) {}
      },
      [&](int) {
        if (read(ea, &x, 8) < 0 || write(eb, &one, 8) < 0) {}
      });
  int sv[2];
  if (socketpair(AF_UNIX, SOCK_DGRAM, 0, sv)) return 1;
  pingpong(
      "unix datagram socket, 1 byte",
      [&](int) {
        if (write(sv[0], &c, 1) < 0 || read(sv[0], &c, 1) < 0) {}
      },
      [&](int) {
        if (read(sv[1], &c, 1) < 0 || write(sv[1], &c, 1) < 0) {}
      });
  int sq[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sq)) return 1;
  char big[256] = {};
  pingpong(
      "unix seqpacket socket, 256 bytes",
      [&](int) {
        if (write(sq[0], big, 256) < 0 || read(sq[0], big, 256) < 0) {}
      },
      [&](int) {
        if (read(sq[1], big, 256) < 0 || write(sq[1], big, 256) < 0) {}
      });
  pingpong(
      "shared word, both poll",
      [](int i) {
        sh->a = i + 1;
        while (sh->b != (uint64_t)i + 1) {}
      },
      [](int i) {
        while (sh->a != (uint64_t)i + 1) {}
        sh->b = i + 1;
      });
  {
    std::vector<double> v;
    sh->fa = 0;
    for (int i = 0; i < 3000; i++) {
      auto a = clk::now();
      fwake(&sh->fa);
      v.push_back(ns_between(a, clk::now()));
    }
    put(T, "futex wake with nobody waiting (system call)", med(v), "ns");
  }
  {
    std::vector<double> v;
    for (int i = 0; i < 3000; i++) {
      auto a = clk::now();
      if (write(ea, &one, 8) < 0) {}
      v.push_back(ns_between(a, clk::now()));
    }
    put(T, "eventfd write with nobody waiting", med(v), "ns");
  }

  // GPU words. The peer polls sh->a and answers in sh->b, noting when it saw each value.
  const int N = 1000;
  sh->a = sh->b = 0;
  pid_t p = fork();
  if (!p) {
    alarm(20);
    pin(3);
    for (int i = 1; i <= N; i++) {
      while (sh->a < (uint64_t)i) {}
      sh->seen[i] = now_ns();
      sh->b = i;
    }
    _exit(0);
  }
  init();
  pin(1);
  CUstream s = stream(), s2 = stream();
  int r = cuMemHostRegister((void*)sh, 1 << 20, CU_MEMHOSTREGISTER_DEVICEMAP);
  code("waitvalue", "cuMemHostRegister", "memfd shared with another process, DEVICEMAP", r);
  if (r) {
    kill(p, 9);
    return 0;
  }
  CUdeviceptr d;
  CK(cuMemHostGetDevicePointer(&d, (void*)sh, 0));
  CUdeviceptr pa = d + ((char*)&sh->a - (char*)sh), pb = d + ((char*)&sh->b - (char*)sh);
  std::vector<double> host_cost, see, trip, dtrip;
  auto w = pinned_words();
  for (int i = 1; i <= N / 2; i++) {
    uint64_t a = now_ns();
    int rc = cuStreamWriteValue64(s, pa, i, 0);
    uint64_t b = now_ns();
    if (rc) {
      code("waitvalue", "cuStreamWriteValue64", "registered shared memory", rc);
      kill(p, 9);
      return 0;
    }
    while (sh->b != (uint64_t)i) {}
    uint64_t c2 = now_ns();
    host_cost.push_back(b - a);
    see.push_back(sh->seen[i] - a);
    trip.push_back(c2 - a);
  }
  put(T, "cuStreamWriteValue64 to shared memory: until the other process sees it", med(see), "ns");
  put(T, "the same, p99", pct(see, 0.99), "ns");
  put(T, "and until its answer is seen here", med(trip), "ns");
  // The other process's word wakes a stream of this one: A word -> peer -> word -> waiting stream -> word.
  for (int i = N / 2 + 1; i <= N; i++) {
    cuStreamWaitValue64(s2, pb, i, CU_STREAM_WAIT_VALUE_GEQ);
    cuStreamWriteValue64(s2, (CUdeviceptr)w, i, 0);
    usleep(30);
    uint64_t a = now_ns();
    sh->a = i;
    while (w[0] != (uint64_t)i) {}
    dtrip.push_back(now_ns() - a);
  }
  put(T, "host word -> other process answers -> stream waiting for that word wakes -> host sees", med(dtrip), "ns");
  int st;
  waitpid(p, &st, 0);
  _exit(0);
}
