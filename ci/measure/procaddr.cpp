// Topic 2: what cuGetProcAddress answers for versions above the driver's, below the symbol's birth, for unknown names, and
// with the per-thread flag. The loader of the bindings stands on these answers.
#include <dlfcn.h>

#include "measure.h"
using namespace m;

using V2 = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
using V1 = CUresult (*)(const char*, void**, int, cuuint64_t);
static void* so;
static V2 v2;
// Which exported symbol is it?
static std::string who(const std::string& n, void* p) {
  if (!p) return "null";
  for (const char* s : {"", "_v2", "_v3", "_v4", "_ptsz", "_v2_ptsz", "_v3_ptsz", "_ptds", "_v2_ptds", "_v3_ptds"})
    if (dlsym(so, (n + s).c_str()) == p) return n + s;
  return "an address that dlsym does not give";
}
static void ask(const char* n, int ver, cuuint64_t fl) {
  void* p = (void*)0x5a5a;
  CUdriverProcAddressQueryResult q = (CUdriverProcAddressQueryResult)77;
  int r = v2(n, &p, ver, fl, &q);
  std::string w = p == (void*)0x5a5a ? "pointer left alone" : who(n ? n : "", p);
  code("procaddr", "cuGetProcAddress_v2",
       fmt("%s, version %d, flags %llu", n ? (*n ? n : "(empty name)") : "(null name)", ver, (unsigned long long)fl), r,
       fmt("status %d; %s", (int)q, w.c_str()));
}
int main() {
  so = dlopen("libcuda.so.1", RTLD_NOW);
  if (!so) {
    say("no libcuda: %s", dlerror());
    return 1;
  }
  v2 = (V2)dlsym(so, "cuGetProcAddress_v2");
  V1 v1 = (V1)dlsym(so, "cuGetProcAddress");
  int dv = 0, rv = cuDriverGetVersion(&dv);
  code("procaddr", "cuDriverGetVersion", "before cuInit", rv, fmt("%d", dv));
  {
    void* p = (void*)0x5a5a;
    CUdriverProcAddressQueryResult q = (CUdriverProcAddressQueryResult)77;
    int r = v2("cuMemAlloc", &p, 13000, 0, &q);
    code("procaddr", "cuGetProcAddress_v2", "before cuInit: cuMemAlloc, version 13000", r,
         fmt("status %d; %s", (int)q, who("cuMemAlloc", p).c_str()));
  }
  CK(cuInit(0));
  for (int ver : {13000, 13010, 13020, 14000, 99999, 2147483647})
    for (const char* n : {"cuMemAlloc", "cuStreamGetId", "cuCtxRecordEvent", "cuMemcpyBatchAsync", "cuStreamWaitEvent"}) ask(n, ver, 0);
  // Birth: cuStreamGetId 12.0, cuCtxRecordEvent 12.5, cuMemcpyBatchAsync 12.8 (v2 13.0), cuMemGetDefaultMemPool 13.0, cuMemAlloc 2.0
  // (v2 3.2).
  for (int ver : {12080, 12090, 12050, 12040, 12000, 11080})
    for (const char* n : {"cuStreamGetId", "cuCtxRecordEvent", "cuMemcpyBatchAsync", "cuMemGetDefaultMemPool"}) ask(n, ver, 0);
  for (int ver : {-1, 0, 1, 1000, 2000, 3010, 3020, 4000}) ask("cuMemAlloc", ver, 0);
  for (int ver : {12000, 12020, 13000})
    for (const char* n : {"cuGetProcAddress", "cuCtxCreate", "cuStreamGetCaptureInfo", "cuEventElapsedTime", "cuMemAdvise",
                          "cuMemPrefetchAsync", "cuDeviceGetUuid"})
      ask(n, ver, 0);
  for (cuuint64_t f : {0ull, 1ull, 2ull, 3ull, 4ull, 64ull, 1ull << 40})
    for (const char* n : {"cuMemcpyHtoDAsync", "cuMemcpyHtoD", "cuStreamWaitEvent", "cuMemAlloc", "cuStreamGetId", "cuEventRecord"}) {
      if (f > 2 && strcmp(n, "cuMemAlloc") && strcmp(n, "cuMemcpyHtoDAsync")) continue;
      ask(n, 13000, f);
    }
  for (const char* n : {"cuNoSuchThing", "", "cuMemAlloc_v2", "cuMemAlloc_v9", "cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyHtoDAsync_ptsz",
                        "cumemalloc", "cudaMalloc", "cuMemAlloc "}) {
    ask(n, 13000, 0);
  }
  ask("cuMemAlloc_v2", 2000, 0);
  ask("cuMemcpyHtoDAsync_v2", 13000, 2);
  ask("cuNoSuchThing", 99999, 0);
  run_isolated("procaddr", [] {},
               {{"cuGetProcAddress_v2", "null name",
                 [](std::string&) -> int {
                   void* p;
                   CUdriverProcAddressQueryResult q;
                   return v2(nullptr, &p, 13000, 0, &q);
                 }},
                {"cuGetProcAddress_v2", "null pfn", [](std::string&) -> int {
                   CUdriverProcAddressQueryResult q;
                   return v2("cuMemAlloc", nullptr, 13000, 0, &q);
                 }}});
  {
    void* p = (void*)0x5a5a;
    int r = v2("cuMemAlloc", &p, 13000, 0, nullptr);
    code("procaddr", "cuGetProcAddress_v2", "cuMemAlloc, null status", r, who("cuMemAlloc", p));
    p = (void*)0x5a5a;
    r = v2("cuNoSuchThing", &p, 13000, 0, nullptr);
    code("procaddr", "cuGetProcAddress_v2", "unknown name, null status", r, p ? "pointer left alone" : "null");
  }
  if (v1)
    for (auto [n, ver] :
         {std::pair<const char*, int>{"cuMemAlloc", 13000}, {"cuNoSuchThing", 13000}, {"cuCtxRecordEvent", 12000}, {"cuMemAlloc", 99999}}) {
      void* p = (void*)0x5a5a;
      int r = v1(n, &p, ver, 0);
      code("procaddr", "cuGetProcAddress (v1)", fmt("%s, version %d", n, ver), r, p == (void*)0x5a5a ? "pointer left alone" : who(n, p));
    }
  // Does the address of one function depend on the version asked for?
  for (const char* n : {"cuStreamGetId", "cuMemcpyBatchAsync", "cuEventElapsedTime"}) {
    void *a = 0, *b = 0;
    CUdriverProcAddressQueryResult q;
    v2(n, &a, 12080, 0, &q);
    v2(n, &b, 13000, 0, &q);
    text("procaddr", fmt("%s at 12080 and at 13000", n), a == b ? "same address" : "different addresses");
  }
  put("procaddr", "cuGetProcAddress_v2, known name",
      per_call_ns(200, 50,
                  [] {
                    void* p;
                    CUdriverProcAddressQueryResult q;
                    v2("cuStreamWaitEvent", &p, 13000, 0, &q);
                  }),
      "ns");
  put("procaddr", "cuGetProcAddress_v2, unknown name",
      per_call_ns(200, 50,
                  [] {
                    void* p;
                    CUdriverProcAddressQueryResult q;
                    v2("cuNoSuchThing", &p, 13000, 0, &q);
                  }),
      "ns");
}
