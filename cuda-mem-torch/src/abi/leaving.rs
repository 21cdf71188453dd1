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
    /// Must not find memory by an address that is not allocated until then: another allocation may have it.
    let_go: Box<dyn FnOnce() + Send>,
}

static LEAVING: Mutex<Vec<Leaving>> = Mutex::new(Vec::new());

/// Calls `let_go` once the devices are done, as a later [`settle`] finds.
pub(super) fn push(devices: Vec<&'static Device>, let_go: impl FnOnce() + Send + 'static) {
    lock(&LEAVING).push(Leaving { devices, let_go: Box::new(let_go) });
}

/// Calls `let_go` once the devices are done: before this returns, or as a later [`settle`] finds if a wait fails. Returns that failure, unless
/// a capture or the end of the process is why.
pub(super) fn wait_and(
    devices: Vec<&'static Device>,
    let_go: impl FnOnce() + Send + 'static,
) -> Result<(), Failure> {
    // Nobody finds it in the list before, and waits for it in this call's stead.
    match devices.iter().try_for_each(|device| streams::quiesce(device)) {
        Ok(()) => {
            let_go();
            settle();
            Ok(())
        }
        Err(failure) => {
            push(devices, let_go);
            let is_silent = failure.code == CUDA_MEM_TORCH_CAPTURING || failure.driver == ENDED;
            if is_silent { Ok(()) } else { Err(failure) }
        }
    }
}

/// Lets go of what nothing uses any more.
pub(super) fn settle() {
    let leaving = std::mem::take(&mut *lock(&LEAVING));
    let mut waited = BTreeMap::new();
    let mut is_quiet =
        |device: &&Device| *waited.entry(device.ordinal).or_insert_with(|| streams::quiesce(device).is_ok());
    let (gone, kept): (Vec<_>, Vec<_>) =
        leaving.into_iter().partition(|leaving| leaving.devices.iter().all(&mut is_quiet));
    lock(&LEAVING).extend(kept);
    gone.into_iter().for_each(|leaving| (leaving.let_go)());
}
