//! `cuda-mem-torch` as a shared library: it exports the functions of `cuda_mem_torch::abi`.

// Nothing here names them, and what is not linked is not exported.
extern crate torch as _;
