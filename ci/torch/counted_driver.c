/* A driver that counts what it is asked and passes it on: CUDA_MEM_DRIVER names it in the step `one_question_a_growth` of neighbours.py.
   The library asks for every function through cuGetProcAddress. */

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

typedef unsigned long long word;

static atomic_ulong asked, made, mapped;

unsigned long counted_asked(void) { return atomic_load(&asked); }
unsigned long counted_made(void) { return atomic_load(&made); }
unsigned long counted_mapped(void) { return atomic_load(&mapped); }

static int (*get_info)(size_t *, size_t *);
static int (*create)(word *, size_t, const void *, word);
static int (*map)(word, size_t, size_t, word, word);

static int count_get_info(size_t *free, size_t *total)
{
    atomic_fetch_add(&asked, 1);
    return get_info(free, total);
}

static int count_create(word *handle, size_t bytes, const void *properties, word flags)
{
    atomic_fetch_add(&made, 1);
    return create(handle, bytes, properties, flags);
}

static int count_map(word address, size_t bytes, size_t offset, word handle, word flags)
{
    atomic_fetch_add(&mapped, 1);
    return map(address, bytes, offset, handle, flags);
}

static void *export_of(const char *name)
{
    static void *library;
    if (!library)
        library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return library ? dlsym(library, name) : NULL;
}

/* Known by its address: a library is one driver. */
int cuInit(unsigned flags)
{
    int (*init)(unsigned);
    *(void **)&init = export_of("cuInit");
    return init ? init(flags) : 3;
}

int cuGetProcAddress_v2(const char *name, void **address, int version, word flags, int *status)
{
    int (*look_up)(const char *, void **, int, word, int *);
    *(void **)&look_up = export_of("cuGetProcAddress_v2");
    if (!look_up)
        return 500;
    const int result = look_up(name, address, version, flags, status);
    if (result != 0 || !*address)
        return result;
    static const struct {
        const char *name;
        void **kept;
        void *counting;
    } counted[] = {
        {"cuMemGetInfo", (void **)&get_info, (void *)count_get_info},
        {"cuMemCreate", (void **)&create, (void *)count_create},
        {"cuMemMap", (void **)&map, (void *)count_map},
    };
    for (size_t at = 0; at < sizeof counted / sizeof *counted; at++) {
        if (strcmp(name, counted[at].name) == 0) {
            *counted[at].kept = *address;
            *address = counted[at].counting;
        }
    }
    return 0;
}
