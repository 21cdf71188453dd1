//! Ours: the pages' engine over the model, the allocator itself over a device.

mod modelled;
mod on_device;
mod pages;
mod watcher;

pub(crate) use modelled::Modelled;
pub(crate) use on_device::OnDevice;
