//! Ours: the pages' engine over the model, the allocator itself over a device.

mod modelled;
mod on_device;
mod pages;
mod watcher;

use std::sync::Arc;

use anyhow::Result;

use super::candidate::Candidate;
use super::driver::Device;
use super::model::Model;
use super::setting::Backend;

/// What it runs on.
pub(super) const BACKENDS: &[Backend] = &[Backend::Gpu, Backend::Sim, Backend::Model];

/// Over the model; without moving pages if they are to stay.
pub(super) fn over_model(model: Arc<Model>, moves: bool) -> Box<dyn Candidate> {
    Box::new(modelled::Modelled::new(model, moves))
}

/// Over a device of a driver, of which it may have so many bytes.
pub(super) fn over_device(
    device: Arc<Device>,
    capacity: Option<u64>,
    moves: bool,
) -> Result<Box<dyn Candidate>> {
    Ok(Box::new(on_device::OnDevice::new(device, capacity, moves)?))
}
