/*
 * Calls of Linux that qemu's user emulation does not have, or answers for itself. `cargo xtask nightly` links them into tests for
 * another processor, in front of the C library's.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
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
    int process, end = 0;
    va_list rest;
    va_start(rest, flags);
    mode_t mode = __OPEN_NEEDS_MODE(flags) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (sscanf(path, "/proc/%d/stat%n", &process, &end) == 1 && end > 0 && !path[end]) {
        snprintf(thread, sizeof thread, "/proc/%d/task/%d/stat", process, process);
        path = thread;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
