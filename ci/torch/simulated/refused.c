/* What libc10_cuda.so names and the smoke test does not reach. */

#define REFUSED(name)                                                                                                      \
    int name(void);                                                                                                        \
    int name(void) { return 801; }

REFUSED(cudaDeviceGetDefaultMemPool)
REFUSED(cudaEventElapsedTime)
REFUSED(cudaFreeAsync)
REFUSED(cudaGraphNodeGetDependencies)
REFUSED(cudaIpcCloseMemHandle)
REFUSED(cudaIpcOpenMemHandle)
REFUSED(cudaMallocAsync)
REFUSED(cudaMemPoolGetAttribute)
REFUSED(cudaMemPoolSetAccess)
REFUSED(cudaMemPoolSetAttribute)
REFUSED(cudaMemPoolTrimTo)
