//! Ours. Not there yet: this file is where it is plugged in.

use std::sync::Arc;

use anyhow::{Result, bail};

use super::candidate::Candidate;
use super::driver::Device;
use super::model::Model;
use super::setting::Backend;

/// What it runs on.
pub(super) const BACKENDS: &[Backend] = &[Backend::Gpu, Backend::Sim, Backend::Model];

const MISSING: &str = "the caching allocator is not there yet; there are native, expandable and driver-pool";

/// Over the model; without moving pages if they are to stay.
pub(super) fn over_model(_model: Arc<Model>, _moves: bool) -> Result<Box<dyn Candidate>> {
    bail!(MISSING)
}

/// Over a device of a driver, of which it may have so many bytes.
pub(super) fn over_device(
    _device: Arc<Device>,
    _capacity: Option<u64>,
    _moves: bool,
) -> Result<Box<dyn Candidate>> {
    bail!(MISSING)
}
