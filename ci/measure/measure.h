// What every measuring program shares: output, statistics, a context, test kernels, and a runner that survives crashes.
//
// Output goes to two places: an aligned line on stdout for people, and one JSON object per line, appended to the file
// that MEASURE_JSON names, for scripts. Each line is one write(2) on an O_APPEND descriptor, so processes may share it.
#pragma once
#include <cuda.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <regex>
#include <string>
#include <thread>
#include <vector>

namespace m {

using clk = std::chrono::steady_clock;
inline double ns_between(clk::time_point a, clk::time_point b) { return std::chrono::duration<double, std::nano>(b - a).count(); }
inline uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
inline void sleep_ms(int ms) { usleep(ms * 1000); }

// ---------------------------------------------------------------- output
inline int json_fd() {
  static int fd = [] {
    const char* p = getenv("MEASURE_JSON");
    return open(p ? p : "results.jsonl", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  }();
  return fd;
}
inline std::string esc(const std::string& s) {
  std::string o;
  for (char c : s) {
    if (c == '"' || c == '\\') o += '\\';
    o += (c == '\n') ? ' ' : c;
  }
  return o;
}
inline void line(int fd, const std::string& s) {
  if (write(fd, s.data(), s.size()) < 0) {}
}
inline void say(const char* f, ...) {
  char b[1024];
  va_list a;
  va_start(a, f);
  int n = vsnprintf(b, sizeof b - 1, f, a);
  va_end(a);
  if (n > (int)sizeof b - 2) n = sizeof b - 2;
  b[n] = '\n';
  line(1, std::string(b, n + 1));
}
inline void put(const std::string& topic, const std::string& name, double v, const std::string& unit) {
  char b[64];
  snprintf(b, sizeof b, "%.6g", v);
  say("%-10s %-78s %14s %s", topic.c_str(), name.c_str(), b, unit.c_str());
  line(json_fd(), "{\"topic\":\"" + topic + "\",\"name\":\"" + esc(name) + "\",\"value\":" + b + ",\"unit\":\"" + unit + "\"}\n");
}
inline void text(const std::string& topic, const std::string& name, const std::string& v) {
  say("%-10s %-78s %s", topic.c_str(), name.c_str(), v.c_str());
  line(json_fd(), "{\"topic\":\"" + topic + "\",\"name\":\"" + esc(name) + "\",\"value\":\"" + esc(v) + "\",\"unit\":\"text\"}\n");
}
inline std::string fmt(const char* f, ...) {
  char b[512];
  va_list a;
  va_start(a, f);
  vsnprintf(b, sizeof b, f, a);
  va_end(a);
  return b;
}
// Codes of calls made in the order written (arguments of a function have no order; members of a braced list have).
inline std::string seq(std::initializer_list<std::pair<const char*, int>> l) {
  std::string o;
  for (auto& x : l) {
    if (!o.empty()) o += ", ";
    o += std::string(x.first) + " " + std::to_string(x.second);
  }
  return o;
}
// One row of the result-code table.
inline void code(const std::string& group, const std::string& call, const std::string& situation, int rc, const std::string& note = "") {
  say("code %-10s %-30s %-58s %4d  %s", group.c_str(), call.c_str(), situation.c_str(), rc, note.c_str());
  line(json_fd(), "{\"topic\":\"codes\",\"group\":\"" + group + "\",\"call\":\"" + esc(call) + "\",\"situation\":\"" + esc(situation) +
                      "\",\"name\":\"" + esc(call + " | " + situation) + "\",\"value\":" + std::to_string(rc) +
                      ",\"unit\":\"code\",\"note\":\"" + esc(note) + "\"}\n");
}

// ---------------------------------------------------------------- statistics
inline double pct(std::vector<double> v, double p) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  size_t i = (size_t)(p * (v.size() - 1) + 0.5);
  return v[i];
}
inline double med(const std::vector<double>& v) { return pct(v, 0.5); }
// Median over `rounds` of the mean of `inner` calls; `after` (drain the stream, say) runs outside the timing.
inline double per_call_ns(int rounds, int inner, const std::function<void()>& f, const std::function<void()>& after = nullptr) {
  std::vector<double> v;
  for (int r = 0; r < rounds + 5; r++) {
    auto a = clk::now();
    for (int i = 0; i < inner; i++) f();
    auto b = clk::now();
    if (after) after();
    if (r >= 5) v.push_back(ns_between(a, b) / inner);
  }
  return med(v);
}

// ---------------------------------------------------------------- context and kernels
#define CK(x)                                                            \
  do {                                                                   \
    CUresult r_ = (x);                                                   \
    if (r_) m::say("!! %s:%d %s = %d", __FILE__, __LINE__, #x, (int)r_); \
  } while (0)

inline CUdevice dev = 0;
inline CUcontext ctx = nullptr;
inline CUfunction k_empty, k_spin, k_copy, k_bad, k_poke, k_peek;

// PTX text instead of a .cu file: a host compiler is then enough to build everything.
inline const char* ptx = R"PTX(
.version 7.8
.target sm_70
.address_size 64
.visible .entry k_empty() { ret; }
// waits until *flag != 0 (flag may be null) or until limit nanoseconds have passed: nothing here can run for ever
.visible .entry k_spin(.param .u64 flag, .param .u64 limit)
{
  .reg .pred %p<3>; .reg .u64 %rd<6>; .reg .u32 %r<2>;
  ld.param.u64 %rd1, [flag]; ld.param.u64 %rd2, [limit];
  mov.u64 %rd3, %globaltimer;
L: mov.u64 %rd4, %globaltimer; sub.u64 %rd5, %rd4, %rd3; setp.ge.u64 %p1, %rd5, %rd2; @%p1 bra E;
  setp.eq.u64 %p2, %rd1, 0; @%p2 bra L;
  ld.volatile.u32 %r1, [%rd1]; setp.eq.u32 %p1, %r1, 0; @%p1 bra L;
E: ret;
}
// dst[0..n) = src[0..n) in 16-byte units, four independent loads in flight per thread
.visible .entry k_copy(.param .u64 dst, .param .u64 src, .param .u64 n)
{
  .reg .pred %p<3>; .reg .u64 %rd<24>; .reg .u32 %r<24>;
  ld.param.u64 %rd1, [dst]; ld.param.u64 %rd2, [src]; ld.param.u64 %rd3, [n];
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mov.u32 %r4, %nctaid.x;
  mul.wide.u32 %rd4, %r1, %r2; cvt.u64.u32 %rd5, %r3; add.u64 %rd4, %rd4, %rd5;
  mul.wide.u32 %rd6, %r4, %r2; shl.b64 %rd7, %rd6, 4; mul.lo.u64 %rd8, %rd6, 4; mul.lo.u64 %rd9, %rd6, 3;
L: add.u64 %rd10, %rd4, %rd9; setp.ge.u64 %p1, %rd10, %rd3; @%p1 bra T;
  shl.b64 %rd11, %rd4, 4; add.u64 %rd12, %rd2, %rd11; add.u64 %rd13, %rd1, %rd11;
  add.u64 %rd14, %rd12, %rd7; add.u64 %rd15, %rd14, %rd7; add.u64 %rd16, %rd15, %rd7;
  ld.global.v4.u32 {%r5,%r6,%r7,%r8}, [%rd12]; ld.global.v4.u32 {%r9,%r10,%r11,%r12}, [%rd14];
  ld.global.v4.u32 {%r13,%r14,%r15,%r16}, [%rd15]; ld.global.v4.u32 {%r17,%r18,%r19,%r20}, [%rd16];
  add.u64 %rd14, %rd13, %rd7; add.u64 %rd15, %rd14, %rd7; add.u64 %rd16, %rd15, %rd7;
  st.global.v4.u32 [%rd13], {%r5,%r6,%r7,%r8}; st.global.v4.u32 [%rd14], {%r9,%r10,%r11,%r12};
  st.global.v4.u32 [%rd15], {%r13,%r14,%r15,%r16}; st.global.v4.u32 [%rd16], {%r17,%r18,%r19,%r20};
  add.u64 %rd4, %rd4, %rd8; bra L;
T: setp.ge.u64 %p2, %rd4, %rd3; @%p2 bra E;
  shl.b64 %rd11, %rd4, 4; add.u64 %rd12, %rd2, %rd11; add.u64 %rd13, %rd1, %rd11;
  ld.global.v4.u32 {%r5,%r6,%r7,%r8}, [%rd12]; st.global.v4.u32 [%rd13], {%r5,%r6,%r7,%r8};
  add.u64 %rd4, %rd4, %rd6; bra T;
E: ret;
}
.visible .entry k_bad() { .reg .u64 %rd<2>; .reg .u32 %r<2>; mov.u64 %rd1, 256; mov.u32 %r1, 1; st.global.u32 [%rd1], %r1; ret; }
.visible .entry k_poke(.param .u64 dst, .param .u32 v) { .reg .u64 %rd<2>; .reg .u32 %r<2>; ld.param.u64 %rd1, [dst]; ld.param.u32 %r1, [v]; st.volatile.u32 [%rd1], %r1; ret; }
.visible .entry k_peek(.param .u64 dst, .param .u64 src) { .reg .u64 %rd<3>; .reg .u32 %r<2>; ld.param.u64 %rd1, [dst]; ld.param.u64 %rd2, [src]; ld.volatile.u32 %r1, [%rd2]; st.volatile.u32 [%rd1], %r1; ret; }
)PTX";

inline int launch(CUfunction f, CUstream s, std::vector<uint64_t> args = {}, unsigned grid = 1, unsigned block = 1) {
  void* p[8];
  for (size_t i = 0; i < args.size(); i++) p[i] = &args[i];
  return cuLaunchKernel(f, grid, 1, 1, block, 1, 1, 0, s, p, nullptr);
}
// Spins on stream s until *flag is set, five seconds at most unless told.
inline int spin(CUstream s, const void* flag, uint64_t limit_ns = 3000000000ull) { return launch(k_spin, s, {(uint64_t)flag, limit_ns}); }

inline void load_kernels() {
  CUmodule mod;
  CK(cuModuleLoadData(&mod, ptx));
  CK(cuModuleGetFunction(&k_empty, mod, "k_empty"));
  CK(cuModuleGetFunction(&k_spin, mod, "k_spin"));
  CK(cuModuleGetFunction(&k_copy, mod, "k_copy"));
  CK(cuModuleGetFunction(&k_bad, mod, "k_bad"));
  CK(cuModuleGetFunction(&k_poke, mod, "k_poke"));
  CK(cuModuleGetFunction(&k_peek, mod, "k_peek"));
  // The first launch of a kernel loads it, which may synchronise: have that behind us.
  CUdeviceptr d;
  CK(cuMemAlloc(&d, 4096));
  launch(k_empty, 0);
  launch(k_spin, 0, {0, 1});
  launch(k_copy, 0, {d, d + 2048, 1});
  launch(k_poke, 0, {d, 0});
  launch(k_peek, 0, {d, d + 64});
  CK(cuCtxSynchronize());
  CK(cuMemFree(d));
}
inline void init() {
  CK(cuInit(0));
  CK(cuDeviceGet(&dev, 0));
  CK(cuDevicePrimaryCtxRetain(&ctx, dev));
  CK(cuCtxSetCurrent(ctx));
  load_kernels();
}
inline int attr(CUdevice_attribute a) {
  int v = -1;
  cuDeviceGetAttribute(&v, a, dev);
  return v;
}
inline CUstream stream(unsigned f = CU_STREAM_NON_BLOCKING) {
  CUstream s = 0;
  CK(cuStreamCreate(&s, f));
  return s;
}
inline CUevent event(unsigned f = CU_EVENT_DISABLE_TIMING) {
  CUevent e = 0;
  CK(cuEventCreate(&e, f));
  return e;
}
// A pinned, mapped word that kernels and streams can wait for.
inline volatile uint64_t* pinned_words(size_t n = 64) {
  void* p;
  CK(cuMemHostAlloc(&p, n * 64, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
  memset(p, 0, n * 64);
  return (volatile uint64_t*)p;
}
// Polls until f() is not 600 or the time is up; returns the last code.
inline int until_ready(const std::function<int()>& f, int ms) {
  auto t = clk::now();
  int r;
  while ((r = f()) == 600 && ns_between(t, clk::now()) < ms * 1e6) usleep(50);
  return r;
}

// ---------------------------------------------------------------- runner
// A step makes one call and returns its code (or reports rows itself and returns SKIP).
constexpr int SKIP = -999;
struct Step {
  std::string call, situation;
  std::function<int(std::string& note)> f;
};
struct Shared {
  volatile int at;
};
inline int step_limit = 8;  // seconds that one step may take
// MEASURE_ONLY, a regular expression over "call | situation", repeats a part of a run.
inline std::vector<Step> chosen(const std::vector<Step>& all) {
  const char* f = getenv("MEASURE_ONLY");
  if (!f || !*f) return all;
  std::regex re(f);
  std::vector<Step> v;
  for (auto& s : all)
    if (std::regex_search(s.call + " | " + s.situation, re)) v.push_back(s);
  return v;
}
inline std::string cpu(const rusage& u) {
  return fmt(" (CPU time: user %.1f s, system %.1f s)", u.ru_utime.tv_sec + u.ru_utime.tv_usec / 1e6,
             u.ru_stime.tv_sec + u.ru_stime.tv_usec / 1e6);
}
inline std::string death(int st) {
  return WIFSIGNALED(st) ? (WTERMSIG(st) == SIGALRM ? "hang: no answer in time" : std::string("process died: ") + strsignal(WTERMSIG(st)))
                         : fmt("exit %d", WEXITSTATUS(st));
}
inline void one(const std::string& g, Step& s) {
  std::string n;
  alarm(step_limit);
  int r = s.f(n);
  alarm(0);
  if (r != SKIP) code(g, s.call, s.situation, r, n);
}

// All steps in one child, in order. If a step kills or hangs the child, that is its row, and a new child (new setup) goes on with the next.
inline void run_steps(const std::string& g, const std::function<void()>& setup, std::vector<Step> all, bool check_poison = true) {
  auto steps = chosen(all);
  auto* sh = (Shared*)mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int from = 0, n = steps.size();
  while (from < n) {
    sh->at = from;
    pid_t p = fork();
    if (!p) {
      alarm(20);
      setup();
      for (int i = from; i < n; i++) {
        sh->at = i;
        one(g, steps[i]);
        // A step that poisoned the context must not colour the next ones.
        if (int q = ctx && check_poison ? (int)cuCtxSynchronize() : 0; q >= 700 && q < 720 && i + 1 < n) {
          code(g, steps[i].call, steps[i].situation + ": the context afterwards", q);
          _exit(3);
        }
      }
      _exit(0);
    }
    int st;
    rusage ru{};
    wait4(p, &st, 0, &ru);
    if (WIFEXITED(st) && WEXITSTATUS(st) == 0) break;
    if (WIFEXITED(st) && WEXITSTATUS(st) == 3) {
      from = sh->at + 1;
      continue;
    }
    code(g, steps[sh->at].call, steps[sh->at].situation, -1, death(st) + (WTERMSIG(st) == SIGALRM ? cpu(ru) : ""));
    from = sh->at + 1;
  }
  munmap(sh, 4096);
}
// Each step in a child of its own, so that none sees what another left behind. `width` children run at a time.
inline void run_isolated(const std::string& g, const std::function<void()>& setup, std::vector<Step> all, int width = 6) {
  auto steps = chosen(all);
  std::vector<std::pair<pid_t, size_t>> live;
  size_t next = 0;
  while (next < steps.size() || !live.empty()) {
    while (next < steps.size() && (int)live.size() < width) {
      pid_t p = fork();
      if (!p) {
        alarm(25);
        setup();
        one(g, steps[next]);
        _exit(0);
      }
      live.push_back({p, next++});
    }
    int st;
    rusage ru{};
    pid_t p = wait4(-1, &st, 0, &ru);
    for (size_t i = 0; i < live.size(); i++)
      if (live[i].first == p) {
        if (!(WIFEXITED(st) && WEXITSTATUS(st) == 0))
          code(g, steps[live[i].second].call, steps[live[i].second].situation, -1, death(st) + (WTERMSIG(st) == SIGALRM ? cpu(ru) : ""));
        live.erase(live.begin() + i);
        break;
      }
  }
}
}  // namespace m
