//! The functions of the driver's interface, by family, each under its own name.
//!
//! They check arguments, find out what handles mean, and leave the rest to `runtime` and `memory`. The manual of each is
//! NVIDIA's; what is said here is where the manual says little.

#![allow(non_snake_case, reason = "the functions' own names")]
#![allow(clippy::too_many_arguments, reason = "the driver's own signatures")]

pub(crate) mod capture;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod errors;
pub(crate) mod event;
pub(crate) mod exec;
pub(crate) mod graph;
pub(crate) mod init;
pub(crate) mod ipc;
pub(crate) mod memop;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod newer;
pub(crate) mod pointer;
pub(crate) mod pool;
pub(crate) mod stream;
pub(crate) mod vmm;
