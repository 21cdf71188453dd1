//! What was given back and may be in use yet: it goes once its devices have done all that they were given by then. Which streams use it is not
//! known here. While a stream captures that was seen here, whichever thread captures, it is left to a later call.

use std::collections::BTreeMap;
use std::sync::Mutex;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUresult;

use super::devices::Device;
use super::error::{CUDA_MEM_TORCH_CAPTURING, Failure};
use super::streams;
use crate::lock::lock;

/// The driver's code as the process ends: it gave everything back before, and nobody is left to be told.
const ENDED: i32 = CUresult::CUDA_ERROR_DEINITIALIZED.0.cast_signed();

struct Leaving {
    devices: Vec<&'static Device>,
    /// Never knows its address alone: by the time that this is called, that may be another's.
    let_go: Box<dyn FnOnce() + Send>,
}

static LEAVING: Mutex<Vec<Leaving>> = Mutex::new(Vec::new());

/// Calls `let_go` once the devices are done, as [`settle`] finds, now or later.
pub(super) fn push(devices: Vec<&'static Device>, let_go: impl FnOnce() + Send + 'static) {
    lock(&LEAVING).push(Leaving { devices, let_go: Box::new(let_go) });
}

/// Lets go of what nothing uses any more. The first error of a wait but for those that captures stand in the way of; what it is of stays.
pub(super) fn settle() -> Result<(), Failure> {
    let leaving = std::mem::take(&mut *lock(&LEAVING));
    let (mut waited, mut failures) = (BTreeMap::new(), Vec::new());
    let mut is_quiet = |device: &&Device| {
        *waited.entry(device.ordinal).or_insert_with(|| {
            let waited = streams::quiesce(device);
            waited.map_err(|failure| failures.push(failure)).is_ok()
        })
    };
    let (gone, kept): (Vec<_>, Vec<_>) =
        leaving.into_iter().partition(|leaving| leaving.devices.iter().all(&mut is_quiet));
    lock(&LEAVING).extend(kept);
    gone.into_iter().for_each(|leaving| (leaving.let_go)());
    let matters = |failure: &Failure| failure.code != CUDA_MEM_TORCH_CAPTURING && failure.driver != ENDED;
    failures.into_iter().find(matters).map_or(Ok(()), Err)
}
