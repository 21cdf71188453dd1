//! Device, host and managed memory.

mod device;
mod host;
mod managed;

pub(crate) use device::*;
pub(crate) use host::*;
pub(crate) use managed::*;
