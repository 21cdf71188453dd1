// Topic 1: can file mappings be registered (cuMemHostRegister), at what cost, and what happens when the file changes
// underneath? A loader that registers a model file in place saves one copy of the whole file, if it is allowed to.
//
//   register matrix DIR...   result codes: kind of mapping x flags, on each file system
//   register rates DIR...    time to register 1 GiB and the copy rate from it
//   register livelock DIR... registrations that never return, and what avoids them
//   register hazards DIR...  truncation, mappings beyond the end of the file, writes into read-only registrations
// DIR may also be "memfd" or "hugetlb".
#include <errno.h>
#include <setjmp.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "measure.h"
using namespace m;
using Steps = std::vector<Step>;

static std::string label(const std::string& d) {
  if (d == "memfd" || d == "hugetlb") return d;
  struct statfs s;
  if (statfs(d.c_str(), &s)) return d;
  switch ((unsigned)s.f_type) {
    case 0xEF53: return "ext4";
    case 0x01021994: return "tmpfs";
    case 0x794c7630: return "overlay";
    case 0x58465342: return "xfs";
    case 0x9123683E: return "btrfs";
    case 0x01021997: return "9p";
    case 0x65735546: return "fuse";
    default: return fmt("fs-%x", (unsigned)s.f_type);
  }
}
struct File {
  int rw = -1, ro = -1;
  std::string path;
};
static void fill(char* b, size_t n, uint64_t seed) {
  auto* w = (uint64_t*)b;
  for (size_t i = 0; i < n / 8; i++) w[i] = (i + seed) * 0x9E3779B97F4A7C15ull;
}
// A file whose pages are in the page cache and known, but which nothing has mapped yet.
static File make(const std::string& d, size_t n, uint64_t seed = 1) {
  File f;
  static int serial = 0;
  if (d == "memfd") f.rw = memfd_create("m", MFD_CLOEXEC);
  else if (d == "hugetlb") f.rw = memfd_create("h", MFD_CLOEXEC | 4 /* MFD_HUGETLB */);
  else {
    f.path = d + "/measure-" + std::to_string(getpid()) + "-" + std::to_string(serial++);
    f.rw = open(f.path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  }
  if (f.rw < 0) return f;
  if (d == "hugetlb") {
    if (ftruncate(f.rw, n)) {
      close(f.rw);
      f.rw = -1;
      return f;
    }
    void* p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED, f.rw, 0);
    if (p == MAP_FAILED) {
      close(f.rw);
      f.rw = -1;
      return f;
    }
    fill((char*)p, n, seed);
    munmap(p, n);
  } else {
    const size_t C = 4 << 20;
    static std::vector<char> b(C);
    for (size_t o = 0; o < n; o += C) {
      size_t k = std::min(C, n - o);
      fill(b.data(), k, seed + o / 8);
      if (write(f.rw, b.data(), k) != (ssize_t)k) {
        say("short write in %s: %s", d.c_str(), strerror(errno));
        break;
      }
    }
    if (!f.path.empty()) fsync(f.rw);
  }  // no writeback beside the timing
  f.ro = f.path.empty() ? open(fmt("/proc/self/fd/%d", f.rw).c_str(), O_RDONLY | O_CLOEXEC) : open(f.path.c_str(), O_RDONLY | O_CLOEXEC);
  return f;
}
static void drop(File& f) {
  close(f.rw);
  close(f.ro);
  if (!f.path.empty()) unlink(f.path.c_str());
}

struct Kind {
  const char* name;
  int prot, flags;
  bool ro_fd;
  int touch;
};  // touch: 1 = written through the mapping before registration
static const Kind kinds[] = {
    {"shared R (fd O_RDONLY)", PROT_READ, MAP_SHARED, true, 0},
    {"shared R (fd O_RDWR)", PROT_READ, MAP_SHARED, false, 0},
    {"shared RW", PROT_READ | PROT_WRITE, MAP_SHARED, false, 0},
    {"private R", PROT_READ, MAP_PRIVATE, true, 0},
    {"private RW", PROT_READ | PROT_WRITE, MAP_PRIVATE, true, 0},
    {"private RW, written before", PROT_READ | PROT_WRITE, MAP_PRIVATE, true, 1},
};
static const struct {
  unsigned v;
  const char* n;
} flags[] = {{0, "0"}, {1, "PORTABLE"}, {2, "DEVICEMAP"}, {8, "READ_ONLY"}, {9, "READ_ONLY|PORTABLE"}};

static sigjmp_buf jb;
static void on_bus(int) { siglongjmp(jb, 1); }
static std::string cpu_read(const char* p, uint64_t want) {
  signal(SIGBUS, on_bus);
  signal(SIGSEGV, on_bus);
  if (sigsetjmp(jb, 1)) return "fault";
  uint64_t v = *(volatile const uint64_t*)p;
  signal(SIGBUS, SIG_DFL);
  signal(SIGSEGV, SIG_DFL);
  return v == want ? "old bytes" : v == 0 ? "zeros" : "other bytes";
}
static std::string judge(const std::vector<uint64_t>& b, const std::vector<uint64_t>& was) {
  if (b == was) return "old bytes";
  bool z = true;
  for (auto x : b) z &= x == 0;
  if (z) return "zeros";
  z = true;
  for (auto x : b) z &= x == 0x5555555555555555ull;
  return z ? "nothing copied" : "other bytes";
}
// Device copy of [p, p+n) read back to pageable memory: the code of the copy and what arrived.
static int fetch(CUdeviceptr d, const char* p, size_t n, std::vector<uint64_t>& out, bool async) {
  CK(cuMemsetD8(d, 0x55, n));
  CK(cuCtxSynchronize());  // the fill is asynchronous, and the copy below is not ordered behind it
  static CUstream s = stream();
  int r;
  if (async) {
    r = cuMemcpyHtoDAsync(d, p, n, s);
    if (!r) r = cuStreamSynchronize(s);
  } else r = cuMemcpyHtoD(d, p, n);
  out.resize(n / 8);
  int q = cuMemcpyDtoH(out.data(), d, n);
  return r ? r : q;
}

static void attrs() {
  init();
  put("register", "attribute HOST_REGISTER_SUPPORTED", attr(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED), "bool");
  put("register", "attribute READ_ONLY_HOST_REGISTER_SUPPORTED", attr(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED), "bool");
  put("register", "attribute CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM", attr(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM),
      "bool");
  put("register", "attribute PAGEABLE_MEMORY_ACCESS", attr(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS), "bool");
  put("register", "attribute PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES",
      attr(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES), "bool");
  put("register", "attribute UNIFIED_ADDRESSING", attr(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING), "bool");
  put("register", "attribute HOST_ALLOC_DMA_BUF_SUPPORTED", attr(CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED), "bool");
  put("register", "attribute ASYNC_ENGINE_COUNT", attr(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT), "count");
  put("register", "attribute CONCURRENT_MANAGED_ACCESS", attr(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS), "bool");
}

static CUdeviceptr MD;
static void matrix(const std::vector<std::string>& dirs) {
  const size_t N = 4 << 20;
  step_limit = 3;
  std::vector<pid_t> kids;
  for (auto& dir : dirs) {
    std::string fs = label(dir);
    {
      File f = make(dir, N);
      if (f.rw < 0) {
        text("register", fs + ": skipped", strerror(errno));
        continue;
      }
      drop(f);
    }
    pid_t kid = fork();
    if (kid) {
      kids.push_back(kid);
      continue;
    }
    Steps st;
    for (auto& k : kinds)
      for (auto& fl : flags)
        st.push_back(
            {"cuMemHostRegister", fs + ": " + k.name + ", flags " + fl.n, [=](std::string& note) -> int {
               File f = make(dir, N);
               char* p = (char*)mmap(0, N, k.prot, k.flags, k.ro_fd ? f.ro : f.rw, 0);
               if (!f.path.empty()) unlink(f.path.c_str());  // a hang must not leave files behind
               if (p == MAP_FAILED) {
                 note = "mmap refused";
                 drop(f);
                 return -1;
               }
               std::vector<uint64_t> was(N / 8);
               fill((char*)was.data(), N, 1);
               if (k.touch) memcpy(p, was.data(), N);
               int rc = cuMemHostRegister(p, N, fl.v);
               if (!rc) {
                 std::vector<uint64_t> got;
                 int c = fetch(MD, p, N, got, true);
                 note = fmt("H2D %d %s", c, judge(got, was).c_str());
                 CUdeviceptr dp = 0;
                 unsigned gf = 0;
                 int gp = cuMemHostGetDevicePointer(&dp, p, 0), gg = cuMemHostGetFlags(&gf, p);
                 note += fmt("; device pointer %d%s; flags %d=0x%x", gp, gp ? "" : dp == (CUdeviceptr)p ? " same" : " other", gg, gf);
                 // Who sees a later write to the file: the mapping, and the registration?
                 std::vector<uint64_t> nw(512, 0x1111111111111111ull);
                 if (dir == "hugetlb") {
                   char* q = (char*)mmap(0, N, PROT_READ | PROT_WRITE, MAP_SHARED, f.rw, 0);
                   if (q != MAP_FAILED) {
                     memcpy(q, nw.data(), 4096);
                     munmap(q, N);
                   }
                 } else if (pwrite(f.rw, nw.data(), 4096, 0) != 4096) note += "; pwrite failed";
                 std::vector<uint64_t> g2;
                 fetch(MD, p, 65536 * 4, g2, true);
                 std::string c2 = cpu_read(p, nw[0]);
                 note += fmt("; after a file write: CPU %s, device %s", c2 == "old bytes" ? "new" : "old", g2[0] == nw[0] ? "new" : "old");
                 int u = cuMemHostUnregister(p);
                 if (u) note += fmt("; unregister %d", u);
               }
               munmap(p, N);
               drop(f);
               return rc;
             }});
    run_steps(
        "hostreg",
        [] {
          init();
          CK(cuMemAlloc(&MD, 4 << 20));
        },
        st);
    _exit(0);
  }
  for (auto k : kids) {
    int st;
    waitpid(k, &st, 0);
  }
  Steps st;
  for (int pr : {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE})
    for (auto& fl : flags)
      st.push_back({"cuMemHostRegister",
                    fmt("anonymous private %s, flags %s",
                        pr == 0   ? "NONE"
                        : pr == 1 ? "R"
                                  : "RW",
                        fl.n),
                    [=](std::string&) -> int {
                      char* p = (char*)mmap(0, N, pr, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                      int rc = cuMemHostRegister(p, N, fl.v);
                      if (!rc) cuMemHostUnregister(p);
                      munmap(p, N);
                      return rc;
                    }});
  run_steps("hostreg", init, st);
}

static double h2d(CUdeviceptr d, const void* p, size_t n) {
  static CUstream s = stream();
  static CUevent a = event(0), b = event(0);
  std::vector<double> v;
  for (int i = 0; i < 4; i++) {
    CK(cuEventRecord(a, s));
    CK(cuMemcpyHtoDAsync(d, p, n, s));
    CK(cuEventRecord(b, s));
    CK(cuEventSynchronize(b));
    float ms;
    CK(cuEventElapsedTime(&ms, a, b));
    if (i) v.push_back(n / (ms * 1e6));
  }
  return med(v);
}
static void rates(const std::vector<std::string>& dirs) {
  const size_t N = 1ull << 30;
  step_limit = 4;
  static CUdeviceptr d;
  auto setup = [] {
    init();
    CK(cuMemAlloc(&d, 1ull << 30));
  };
  Steps base;
  base.push_back({"pinned", "", [=](std::string&) -> int {
                    void* p;
                    auto a = clk::now();
                    CK(cuMemHostAlloc(&p, N, 0));
                    auto b = clk::now();
                    memset(p, 1, N);
                    put("register", "cuMemHostAlloc 1 GiB", ns_between(a, b) / 1e6, "ms");
                    put("register", "cuMemHostAlloc memory: H2D", h2d(d, p, N), "GB/s");
                    a = clk::now();
                    CK(cuMemFreeHost(p));
                    b = clk::now();
                    put("register", "cuMemFreeHost 1 GiB", ns_between(a, b) / 1e6, "ms");
                    return SKIP;
                  }});
  for (int huge = 0; huge < 2; huge++)
    base.push_back({"anonymous", "", [=](std::string&) -> int {
                      char* p = (char*)mmap(0, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                      if (huge) madvise(p, N, MADV_HUGEPAGE);
                      memset(p, 1, N);
                      const char* k = huge ? "anonymous memory in huge pages, touched" : "anonymous memory, touched";
                      auto a = clk::now();
                      CK(cuMemHostRegister(p, N, 0));
                      auto b = clk::now();
                      put("register", fmt("%s: register", k), ns_between(a, b) / 1e6, "ms");
                      put("register", fmt("%s: H2D", k), h2d(d, p, N), "GB/s");
                      a = clk::now();
                      CK(cuMemHostUnregister(p));
                      b = clk::now();
                      put("register", fmt("%s: unregister", k), ns_between(a, b) / 1e6, "ms");
                      munmap(p, N);
                      return SKIP;
                    }});
  run_steps("rates", setup, base);
  for (auto& dir : dirs) {
    std::string fs = label(dir);
    auto t0 = clk::now();
    static File f;
    f = make(dir, N);
    if (f.rw < 0) {
      text("register", fs + ": skipped", strerror(errno));
      continue;
    }
    put("register", fs + ": writing the 1 GiB file (set-up)", ns_between(t0, clk::now()) / 1e6, "ms");
    Steps st;
    for (auto& k : kinds)
      for (unsigned fl : {0u, 8u})
        for (int populate = 0; populate < 2; populate++) {
          if (k.touch || (populate && k.flags == MAP_PRIVATE) || (k.name == kinds[1].name) || (fl == 0 && k.prot == PROT_READ))
            continue;  // what the code table already decides
          std::string n = fmt("%s: %s, flags %u, %s", fs.c_str(), k.name, fl, populate ? "MAP_POPULATE" : "untouched");
          st.push_back({"cuMemHostRegister 1 GiB", n, [=](std::string&) -> int {
                          auto a = clk::now();
                          char* p = (char*)mmap(0, N, k.prot, k.flags | (populate ? MAP_POPULATE : 0), k.ro_fd ? f.ro : f.rw, 0);
                          auto b = clk::now();
                          if (p == MAP_FAILED) return SKIP;
                          int rc = cuMemHostRegister(p, N, fl);
                          auto c = clk::now();
                          if (!rc) {
                            if (populate) put("register", n + ": mmap", ns_between(a, b) / 1e6, "ms");
                            put("register", n + ": register", ns_between(b, c) / 1e6, "ms");
                            put("register", n + ": H2D", h2d(d, p, N), "GB/s");
                            a = clk::now();
                            CK(cuMemHostUnregister(p));
                            put("register", n + ": unregister", ns_between(a, clk::now()) / 1e6, "ms");
                          }
                          munmap(p, N);
                          return rc;
                        }});
        }
    st.push_back({"pageable", "", [=](std::string&) -> int {
                    char* p = (char*)mmap(0, N, PROT_READ, MAP_SHARED | MAP_POPULATE, f.ro, 0);
                    if (p != MAP_FAILED) {
                      put("register", fs + ": H2D from the mapping, not registered", h2d(d, p, N), "GB/s");
                      munmap(p, N);
                    }
                    return SKIP;
                  }});
    run_steps("rates", setup, st);
    drop(f);
  }
}

// Registering a private mapping of a file with READ_ONLY did not return on ext4: what decides, and what avoids it?
static void livelock(const std::vector<std::string>& dirs) {
  step_limit = 3;
  for (auto& dir : dirs) {
    std::string fs = label(dir);
    Steps st;
    static const size_t F = 8 << 20;
    auto add = [&](const char* what, size_t n, size_t off, int prot, int adv, size_t chunk, unsigned fl) {
      st.push_back({"cuMemHostRegister", fs + ": " + what, [=](std::string& note) -> int {
                      File f = make(dir, chunk ? 4096 : F);
                      if (chunk) {
                        std::vector<char> b(chunk);
                        for (size_t o = 0; o < F; o += chunk)
                          if (pwrite(f.rw, b.data(), chunk, o) < 0) return SKIP;
                        fsync(f.rw);
                      }
                      if (!f.path.empty()) unlink(f.path.c_str());
                      char* p = (char*)mmap(0, n, prot, MAP_PRIVATE, f.ro, off);
                      if (p == MAP_FAILED) return SKIP;
                      if (adv && madvise(p, n, adv)) note = fmt("madvise failed: %s", strerror(errno));
                      auto a = clk::now();
                      int r = cuMemHostRegister(p, n, fl);
                      note += fmt(" %.2f ms", ns_between(a, clk::now()) / 1e6);
                      return r;
                    }});
    };
    for (size_t n : {(size_t)4096, (size_t)65536, (size_t)1 << 20, (size_t)2 << 20, (size_t)4 << 20})
      add(fmt("private R, READ_ONLY, %zu KiB", n >> 10).c_str(), n, 0, PROT_READ, 0, 0, 8);
    add("private R, READ_ONLY, 4 MiB, MADV_NOHUGEPAGE", 4 << 20, 0, PROT_READ, MADV_NOHUGEPAGE, 0, 8);
    add("private R, READ_ONLY, 4 MiB at file offset 4096", 4 << 20, 4096, PROT_READ, 0, 0, 8);
    add("private R, READ_ONLY, 4 MiB, file written 4 KiB at a time", 4 << 20, 0, PROT_READ, 0, 4096, 8);
    add("private R, READ_ONLY, 4 MiB, MADV_POPULATE_READ first", 4 << 20, 0, PROT_READ, 22, 0, 8);
    add("private RW, READ_ONLY, 4 MiB, MADV_POPULATE_WRITE first", 4 << 20, 0, PROT_READ | PROT_WRITE, 23, 0, 8);
    add("private RW, flags 0, 4 MiB", 4 << 20, 0, PROT_READ | PROT_WRITE, 0, 0, 0);
    add("private RW, READ_ONLY, 4 MiB", 4 << 20, 0, PROT_READ | PROT_WRITE, 0, 0, 8);
    run_isolated("hostreg", init, st, 13);
  }
}

static void hazards(const std::vector<std::string>& dirs) {
  const size_t N = 8 << 20;
  step_limit = 4;
  for (auto& dir : dirs) {
    std::string fs = label(dir);
    std::vector<Step> st;
    for (int ki : {0, 2, 3, 4})
      for (size_t small : {(size_t)4096, (size_t)0}) {
        const Kind k = kinds[ki];
        st.push_back({"cuMemcpyHtoD",
                      fs + ": " + k.name + (small ? ", 4 KiB copy" : ", 8 MiB copy") + ", file truncated to 0 after registration",
                      [=](std::string& n) {
                        CUdeviceptr d;
                        CK(cuMemAlloc(&d, N));
                        File f = make(dir, N);
                        char* p = (char*)mmap(0, N, k.prot, k.flags, k.ro_fd ? f.ro : f.rw, 0);
                        if (p == MAP_FAILED) return SKIP;
                        unsigned fl = (k.prot & PROT_WRITE) ? 0 : 8;
                        int rc = cuMemHostRegister(p, N, fl);
                        if (rc) {
                          fl = 8;
                          rc = cuMemHostRegister(p, N, fl);
                        }
                        if (rc) {
                          drop(f);
                          return SKIP;
                        }
                        size_t sz = small ? small : N;
                        std::vector<uint64_t> was(sz / 8), got;
                        fill((char*)was.data(), sz, 1);
                        if (ftruncate(f.rw, 0)) n = "ftruncate failed; ";
                        int a = fetch(d, p, sz, got, true);
                        n += fmt("flags %u; async %d %s", fl, a, judge(got, was).c_str());
                        int b = fetch(d, p, sz, got, false);
                        n += fmt("; sync %d %s; CPU read: %s", b, judge(got, was).c_str(), cpu_read(p, was[0]).c_str());
                        if (!ftruncate(f.rw, N)) {
                          int c = fetch(d, p, sz, got, true);
                          n += fmt("; grown again: async %d %s", c, judge(got, was).c_str());
                          n += "; CPU " + cpu_read(p, was[0]);
                        }
                        n += fmt("; unregister %d", cuMemHostUnregister(p));
                        drop(f);
                        return a;
                      }});
      }
    for (int async = 0; async < 2; async++)
      for (size_t sz : {(size_t)8, (size_t)4096, (size_t)16384, (size_t)32768, (size_t)65536, (size_t)131072, (size_t)1 << 20})
        st.push_back({async ? "cuMemcpyHtoDAsync" : "cuMemcpyHtoD",
                      fs + fmt(": shared R, READ_ONLY, file truncated to 0 after registration, %zu bytes", sz), [=](std::string& n) -> int {
                        CUdeviceptr d;
                        CK(cuMemAlloc(&d, N));
                        File f = make(dir, N);
                        if (!f.path.empty()) unlink(f.path.c_str());
                        char* p = (char*)mmap(0, N, PROT_READ, MAP_SHARED, f.ro, 0);
                        if (cuMemHostRegister(p, N, 8)) return SKIP;
                        std::vector<uint64_t> was(sz / 8), got;
                        fill((char*)was.data(), sz, 1);
                        if (ftruncate(f.rw, 0)) return SKIP;
                        int r = fetch(d, p, sz, got, async);
                        n = judge(got, was);
                        return r;
                      }});
    Steps beyond;
    for (int ki : {0, 2, 3, 4})
      for (size_t fsz : {(size_t)(4 << 20), (size_t)(4 << 20) + 100}) {
        const Kind k = kinds[ki];
        beyond.push_back(
            {"cuMemHostRegister", fs + ": " + k.name + fmt(", 8 MiB over a file of 4 MiB + %zu", fsz - (4 << 20)), [=](std::string& n) {
               File f = make(dir, (4 << 20));
               if (fsz > (4 << 20)) {
                 if (dir == "hugetlb" || ftruncate(f.rw, fsz)) return SKIP;
               }
               char* p = (char*)mmap(0, N, k.prot, k.flags, k.ro_fd ? f.ro : f.rw, 0);
               if (p == MAP_FAILED) return SKIP;
               int r8 = cuMemHostRegister(p, N, 8);
               n = fmt("READ_ONLY %d", r8);
               if (!r8) cuMemHostUnregister(p);
               int r = cuMemHostRegister(p, N, 0);
               if (!r) cuMemHostUnregister(p);
               size_t exact = fsz;
               unsigned fl = (k.prot & PROT_WRITE) ? 0 : 8;
               int e = cuMemHostRegister(p, exact, fl);
               n += fmt("; exactly the file's bytes, flags %u: %d", fl, e);
               if (!e) cuMemHostUnregister(p);
               drop(f);
               return r;
             }});
      }
    for (int ki : {0, 3, 4}) {
      const Kind k = kinds[ki];
      st.push_back({"cuMemcpyDtoH", fs + ": into " + k.name + " registered READ_ONLY, 1 MiB", [=](std::string& n) {
                      CUdeviceptr d;
                      CK(cuMemAlloc(&d, N));
                      CK(cuMemsetD8(d, 0x77, N));
                      File f = make(dir, N);
                      char* p = (char*)mmap(0, N, k.prot, k.flags, k.ro_fd ? f.ro : f.rw, 0);
                      if (p == MAP_FAILED || cuMemHostRegister(p, N, 8)) return SKIP;
                      int r = cuMemcpyDtoH(p, d, 1 << 20);
                      int s = cuCtxSynchronize();
                      CUdeviceptr q;
                      int a = cuMemAlloc(&q, 4096);
                      char b[8];
                      std::vector<uint64_t> was(1);
                      fill((char*)was.data(), 8, 1);
                      n = fmt("then cuCtxSynchronize %d, cuMemAlloc %d; CPU sees %s", s, a, cpu_read(p, was[0]).c_str());
                      if (pread(f.rw, b, 8, 0) == 8) n += memcmp(b, was.data(), 8) ? "; file changed" : "; file unchanged";
                      drop(f);
                      return r;
                    }});
      st.push_back({"cuMemcpyDtoHAsync", fs + ": into " + k.name + " registered READ_ONLY, 1 MiB", [=](std::string& n) {
                      CUdeviceptr d;
                      CK(cuMemAlloc(&d, N));
                      CK(cuMemsetD8(d, 0x77, N));
                      File f = make(dir, N);
                      char* p = (char*)mmap(0, N, k.prot, k.flags, k.ro_fd ? f.ro : f.rw, 0);
                      if (p == MAP_FAILED || cuMemHostRegister(p, N, 8)) return SKIP;
                      int r = cuMemcpyDtoHAsync(p, d, 1 << 20, stream());
                      int s = cuCtxSynchronize();
                      CUdeviceptr q;
                      int a = cuMemAlloc(&q, 4096);
                      std::vector<uint64_t> was(1);
                      fill((char*)was.data(), 8, 1);
                      n = fmt("then cuCtxSynchronize %d, cuMemAlloc %d; CPU sees %s", s, a, cpu_read(p, was[0]).c_str());
                      drop(f);
                      return r;
                    }});
      st.push_back({"kernel store", fs + ": into " + k.name + " registered READ_ONLY", [=](std::string& n) {
                      File f = make(dir, N);
                      char* p = (char*)mmap(0, N, k.prot, k.flags, k.ro_fd ? f.ro : f.rw, 0);
                      if (p == MAP_FAILED || cuMemHostRegister(p, N, 8)) return SKIP;
                      int r = launch(k_poke, stream(), {(uint64_t)p, 7});
                      if (!r) r = cuCtxSynchronize();
                      CUdeviceptr q;
                      n = seq({{"then cuMemAlloc", cuMemAlloc(&q, 4096)}, {"cuMemHostUnregister", cuMemHostUnregister(p)}});
                      drop(f);
                      return r;
                    }});
      st.push_back({"kernel load", fs + ": from " + k.name + " registered READ_ONLY", [=](std::string& n) {
                      File f = make(dir, N);
                      char* p = (char*)mmap(0, N, k.prot, k.flags, k.ro_fd ? f.ro : f.rw, 0);
                      if (p == MAP_FAILED || cuMemHostRegister(p, N, 8)) return SKIP;
                      auto w = pinned_words();
                      std::vector<uint64_t> was(2);
                      fill((char*)was.data(), 16, 1);
                      int r = launch(k_peek, stream(), {(uint64_t)w, (uint64_t)(p + 8)});
                      if (!r) r = cuCtxSynchronize();
                      n = (uint32_t)w[0] == (uint32_t)was[1] ? "right bytes" : "wrong bytes";
                      drop(f);
                      return r;
                    }});
    }
    run_steps("hostreg", init, beyond);
    run_isolated("hostreg", init, st, 8);
  }
  // Mappings that change after registration, and ranges over two mappings: no file system of its own.
  std::vector<Step> st;
  st.push_back({"cuMemHostUnregister", "after munmap of the range", [=](std::string& n) {
                  char* p = (char*)mmap(0, N, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                  CK(cuMemHostRegister(p, N, 0));
                  munmap(p, N);
                  return (int)cuMemHostUnregister(p);
                }});
  st.push_back({"cuMemcpyHtoDAsync", "8 MiB from a registered range after munmap", [=](std::string& n) {
                  CUdeviceptr d;
                  CK(cuMemAlloc(&d, N));
                  char* p = (char*)mmap(0, N, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                  memset(p, 9, N);
                  CK(cuMemHostRegister(p, N, 0));
                  munmap(p, N);
                  std::vector<uint64_t> got, was(N / 8, 0x0909090909090909ull);
                  int r = fetch(d, p, N, got, true);
                  n = judge(got, was);
                  return r;
                }});
  st.push_back({"cuMemHostRegister", "new mapping at an address whose old mapping was registered and unmapped", [=](std::string& n) {
                  char* p = (char*)mmap(0, N, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                  CK(cuMemHostRegister(p, N, 0));
                  munmap(p, N);
                  char* q = (char*)mmap(p, N, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
                  int r = cuMemHostRegister(q, N, 0);
                  n = seq({{"unregister then", cuMemHostUnregister(q)}, {"register again", cuMemHostRegister(q, N, 0)}});
                  return r;
                }});
  st.push_back({"cuMemHostRegister", "range over two adjacent mappings of one protection", [=](std::string& n) {
                  char* p = (char*)mmap(0, N, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                  int fd = memfd_create("x", 0);
                  if (ftruncate(fd, N / 2)) return SKIP;
                  mmap(p + N / 2, N / 2, 3, MAP_SHARED | MAP_FIXED, fd, 0);
                  return (int)cuMemHostRegister(p, N, 0);
                }});
  st.push_back({"cuMemHostRegister", "range over a writable and a read-only mapping, flags 0", [=](std::string& n) {
                  char* p = (char*)mmap(0, N, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                  mprotect(p + N / 2, N / 2, PROT_READ);
                  int r = cuMemHostRegister(p, N, 0);
                  n = fmt("READ_ONLY then %d", (int)cuMemHostRegister(p, N, 8));
                  return r;
                }});
  st.push_back({"cuMemHostRegister", "range with a hole in the middle", [=](std::string& n) {
                  char* p = (char*)mmap(0, N, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                  munmap(p + N / 2, 4096);
                  return (int)cuMemHostRegister(p, N, 0);
                }});
  st.push_back({"cuMemcpyDtoH", "into a registered range after mprotect(PROT_READ), flags 0", [=](std::string& n) {
                  CUdeviceptr d;
                  CK(cuMemAlloc(&d, N));
                  CK(cuMemsetD8(d, 0x77, N));
                  char* p = (char*)mmap(0, N, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                  CK(cuMemHostRegister(p, N, 0));
                  mprotect(p, N, PROT_READ);
                  int r = cuMemcpyDtoH(p, d, N);
                  n = p[0] == 0x77 ? "written all the same" : "not written";
                  return r;
                }});
  st.push_back({"cuMemHostRegister", "MADV_DONTNEED after registration, then H2D", [=](std::string& n) {
                  CUdeviceptr d;
                  CK(cuMemAlloc(&d, N));
                  char* p = (char*)mmap(0, N, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                  memset(p, 9, N);
                  int r = cuMemHostRegister(p, N, 0);
                  madvise(p, N, MADV_DONTNEED);
                  std::vector<uint64_t> got, was(N / 8, 0x0909090909090909ull);
                  int c = fetch(d, p, N, got, true);
                  n = fmt("H2D %d: device sees %s, CPU sees %s", c, judge(got, was).c_str(), cpu_read(p, was[0]).c_str());
                  return r;
                }});
  st.push_back({"cuMemHostRegister", "then fork; the parent writes while the child lives; then H2D", [=](std::string& n) {
                  CUdeviceptr d;
                  CK(cuMemAlloc(&d, N));
                  char* p = (char*)mmap(0, N, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                  memset(p, 9, N);
                  int r = cuMemHostRegister(p, N, 0);
                  pid_t c = fork();
                  if (!c) {
                    sleep_ms(200);
                    _exit(0);
                  }
                  memset(p, 8, N);
                  std::vector<uint64_t> got, was(N / 8, 0x0808080808080808ull);
                  int h = fetch(d, p, N, got, true);
                  n = fmt("H2D %d, device sees %s", h,
                          judge(got, was) == "old bytes" ? "the new bytes" : "stale bytes");
                  return r;
                }});
  run_isolated("hostreg", init, st, 8);
}
int main(int c, char** v) {
  std::string w = c > 1 ? v[1] : "";
  std::vector<std::string> d(v + std::min(c, 2), v + c);
  if (w == "matrix") {
    matrix(d);
    attrs(); /* last: what forks must not have used the driver */
  } else if (w == "rates") rates(d);
  else if (w == "hazards") hazards(d);
  else if (w == "livelock") livelock(d);
  else return 2;
}
