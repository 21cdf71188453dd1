//! Memory that was given back and may still be in use: it goes once its devices have done all work that they had by then. Which streams use it
//! is not known here. While a stream captures that was seen here, in whichever thread, it is left to a later call.

use std::collections::BTreeMap;
use std::sync::Mutex;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUresult;

use super::devices::Device;
use super::error::{CUDA_MEM_TORCH_CAPTURING, Failure};
use crate::lock::lock;

/// The driver's code as the process ends: it gave everything back before, so there is nothing to report.
const ENDED: i32 = CUresult::CUDA_ERROR_DEINITIALIZED.0.cast_signed();

struct Leaving {
    devices: Vec<&'static Device>,
    /// Must not find its memory by address: by then another allocation may have that address.
    let_go: Box<dyn FnOnce() + Send>,
}

static LEAVING: Mutex<Vec<Leaving>> = Mutex::new(Vec::new());

/// Calls `let_go` once the devices are done, as a later [`settle`] finds.
pub(super) fn push(devices: Vec<&'static Device>, let_go: impl FnOnce() + Send + 'static) {
    lock(&LEAVING).push(Leaving { devices, let_go: Box::new(let_go) });
}

/// Lets go of what nothing uses any more.
pub(super) fn settle() {
    let _ = settle_with(None);
}

/// Calls `let_go` once the devices are done: before this returns, or later if a wait fails. Returns the first failed wait for one of these
/// devices, unless a capture or the end of the process is why.
pub(super) fn wait_and(
    devices: Vec<&'static Device>,
    let_go: impl FnOnce() + Send + 'static,
) -> Result<(), Failure> {
    settle_with(Some(Leaving { devices, let_go: Box::new(let_go) }))
}

fn settle_with(own: Option<Leaving>) -> Result<(), Failure> {
    let mut leaving = std::mem::take(&mut *lock(&LEAVING));
    let awaited: Vec<_> =
        own.iter().flat_map(|own| own.devices.iter().map(|device| device.ordinal)).collect();
    // It was never in the list, so no other call waits for it instead of this one.
    leaving.extend(own);
    let (mut waited, mut failures) = (BTreeMap::new(), Vec::new());
    let mut is_quiet = |device: &&Device| {
        *waited.entry(device.ordinal).or_insert_with(|| {
            let waited = device.context.wait_beside_captures().map_err(Failure::from);
            waited.map_err(|failure| failures.push((device.ordinal, failure))).is_ok()
        })
    };
    let (gone, kept): (Vec<_>, Vec<_>) =
        leaving.into_iter().partition(|leaving| leaving.devices.iter().all(&mut is_quiet));
    lock(&LEAVING).extend(kept);
    gone.into_iter().for_each(|leaving| (leaving.let_go)());
    let matters = |failure: &Failure| failure.code != CUDA_MEM_TORCH_CAPTURING && failure.driver != ENDED;
    let mut failures = failures.into_iter().filter(|(ordinal, _)| awaited.contains(ordinal));
    failures.find_map(|(_, failure)| matters(&failure).then_some(failure)).map_or(Ok(()), Err)
}
