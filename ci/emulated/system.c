/*
 * Calls of Linux that qemu's user emulation does not have, or answers for itself. `ci/emulated/run` links them into tests for
 * another processor, in front of the C library's. Cargo does not look for changes here: it links again what else has changed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* By way of a file: its reads and writes check addresses too. */
static ssize_t move(const struct iovec *from, const struct iovec *to) {
    int file = memfd_create("move", MFD_CLOEXEC);
    ssize_t moved = pwritev(file, from, 1, 0);
    if (moved >= 0) moved = preadv(file, to, 1, 0);
    int error = errno;
    if (file >= 0) close(file);
    errno = error;
    return moved;
}

/* Both are not there (ENOSYS). The simulator asks for one range of its own process. */
ssize_t process_vm_readv(pid_t process, const struct iovec *near, unsigned long nears, const struct iovec *far,
                         unsigned long fars, unsigned long flags) {
    (void)process, (void)nears, (void)fars, (void)flags;
    return move(far, near);
}

ssize_t process_vm_writev(pid_t process, const struct iovec *near, unsigned long nears, const struct iovec *far,
                          unsigned long fars, unsigned long flags) {
    (void)process, (void)nears, (void)fars, (void)flags;
    return move(near, far);
}

/* Advice that brings pages in is answered with 0 and does nothing. It is refused, as before Linux 5.14. */
int madvise(void *start, size_t bytes, int advice) {
    enum { POPULATE_READ = 22, POPULATE_WRITE = 23 };
    if (advice == POPULATE_READ || advice == POPULATE_WRITE) {
        errno = EINVAL;
        return -1;
    }
    return (int)syscall(SYS_madvise, start, bytes, advice);
}

/* A process's own /proc/PID/stat is made up, with a start that no other process sees. That of its first thread is the system's. */
int open64(const char *path, int flags, ...) {
    char thread[64];
    int process = 0, end = 0;
    va_list rest;
    va_start(rest, flags);
    mode_t mode = __OPEN_NEEDS_MODE(flags) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (strcmp(path, "/proc/self/stat") == 0) {
        process = getpid();
    } else if (sscanf(path, "/proc/%d/stat%n", &process, &end) != 1 || end == 0 || path[end]) {
        process = 0;
    }
    if (process) {
        snprintf(thread, sizeof thread, "/proc/%d/task/%d/stat", process, process);
        path = thread;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

enum { WORDS = 64 };

/* A program is started by the machine, which has another processor. The tests' own is given to the emulator: it and its words. */
static const char *emulated(const char *program, char *const **words, char *room[WORDS]) {
    char own[4096] = "";
    if (readlink("/proc/self/exe", own, sizeof own - 1) < 0 || strcmp(program, own) != 0) return program;
    char *first[] = {"qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", (char *)program};
    size_t count = 0;
    for (; count < 4; ++count) room[count] = first[count];
    for (char *const *word = *words + 1; *word && count < WORDS - 1; ++word) room[count++] = *word;
    room[count] = NULL;
    *words = room;
    return room[0];
}

int posix_spawnp(pid_t *process, const char *program, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *attributes, char *const words[], char *const environment[]) {
    __typeof__(posix_spawnp) *real = dlsym(RTLD_NEXT, "posix_spawnp");
    char *room[WORDS];
    program = emulated(program, &words, room);
    return real(process, program, actions, attributes, words, environment);
}

int execvp(const char *program, char *const words[]) {
    char *room[WORDS];
    program = emulated(program, &words, room);
    return execvpe(program, words, environ);
}
