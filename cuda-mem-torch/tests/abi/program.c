/* A C program on the library: blocks of two devices, a lack of memory, a snapshot. */

#include <cuda_mem_torch.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

static void expect(int condition, const char *what)
{
    if (!condition) {
        printf("%s: %s\n", what, cuda_mem_torch_last_error());
        exit(1);
    }
}

static void count_block(void *data, const cuda_mem_torch_block *block)
{
    if (block->allocated)
        *(size_t *)data += block->size;
}

int main(void)
{
    const cuda_mem_torch_pool_id none = {0, 0};
    void *blocks[2] = {NULL, NULL};
    void *block = NULL;
    size_t live = 0;
    cuda_mem_torch_device_stats stats;
    cuda_mem_torch_visitor visitor = {&live, NULL, count_block, NULL, NULL};

    expect(cuda_mem_torch_abi_version() == CUDA_MEM_TORCH_ABI_VERSION, "version");
    expect(cuda_mem_torch_init(2) == CUDA_MEM_TORCH_OK, "init");
    for (int device = 0; device < 2; device++) {
        expect(cuda_mem_torch_malloc(device, 3 * MIB, NULL, &blocks[device]) == CUDA_MEM_TORCH_OK, "malloc");
        expect(cuda_mem_torch_device_of(blocks[device]) == device, "device");
        expect(cuda_mem_torch_stats(device, &stats) == CUDA_MEM_TORCH_OK, "stats");
        expect(stats.allocated_bytes.all.current == (int64_t)(3 * MIB), "allocated bytes");
    }
    expect(cuda_mem_torch_malloc(0, MIB << 30, NULL, &block) == CUDA_MEM_TORCH_OUT_OF_MEMORY, "too much");
    expect(strstr(cuda_mem_torch_last_error(), "CUDA out of memory") != NULL, "message");
    expect(cuda_mem_torch_snapshot(CUDA_MEM_TORCH_ALL_DEVICES, none, true, &visitor) == CUDA_MEM_TORCH_OK, "snapshot");
    expect(live == 6 * MIB, "live blocks");
    for (int device = 1; device >= 0; device--)
        expect(cuda_mem_torch_delete(blocks[device]) == CUDA_MEM_TORCH_OK, "delete");
    expect(cuda_mem_torch_delete(&live) == CUDA_MEM_TORCH_NOT_OURS, "not ours");
    block = cuda_mem_torch_alloc(2 * MIB, 0, NULL);
    expect(block != NULL, "alloc");
    cuda_mem_torch_free(block, 2 * MIB, 0, NULL);
    puts("well");
    return 0;
}
