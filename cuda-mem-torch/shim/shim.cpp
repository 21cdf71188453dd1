// All of the allocator's side, compiled at once: to read PyTorch's headers takes longer than all that is here.
#include "checkpoints.cpp"
#include "install.cpp"
#include "memory.cpp"
#include "pinned.cpp"
#include "pools.cpp"
#include "seeing.cpp"
#include "sharing.cpp"
