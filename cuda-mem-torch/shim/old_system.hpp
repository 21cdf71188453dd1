// What the headers of newer compilers ask of glibc that 2.28, on which PyTorch runs, does not have. One file of each library includes it.
#pragma once

/// Whether the process never had a second thread, of glibc 2.32: counters are not atomic then. Here they always are.
extern "C" {
extern char __libc_single_threaded __attribute__((visibility("hidden")));
char __libc_single_threaded = 0;
}
