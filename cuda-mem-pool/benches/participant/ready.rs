//! One large block: from nothing to memory that the device can use, every page of it there.

use std::cell::Cell;
use std::error::Error;
use std::ffi::c_void;
use std::ptr;
use std::time::Instant;

use cuda_mem_pool::cuda_mem_core::Context;
use cuda_mem_pool::cuda_mem_core::host::{
    HostMapping, HostMemory, MappingOptions, Pages, Progress, RegisterOptions, Registered,
};
use cuda_mem_pool::cuda_mem_core::sys::{CU_MEMHOSTALLOC_PORTABLE, CUresult};

use crate::machine::Machine;
use crate::memory::Reading;
use crate::protocol::{Answer, Outcome, Request};

pub(crate) fn measure(machine: &Machine, request: &Request) -> Outcome {
    let bytes = request.number("bytes")?;
    let context = &machine.context;
    match request.participant.as_str() {
        "ours" => {
            // From when on only the driver works.
            let registering = Cell::new(Instant::now());
            let tell = |progress| {
                if progress == Progress::Registering {
                    registering.set(Instant::now());
                }
            };
            let register = Cell::new(0.0);
            let make = || {
                let memory = HostMapping::new(bytes, &MappingOptions::new().pages(Pages::Transparent))?;
                let options = RegisterOptions::new().progress(&tell);
                let block = Registered::with_options(context, memory, &options)?;
                register.set(registering.get().elapsed().as_secs_f64());
                Ok(block)
            };
            block(machine, bytes, make, |block| {
                let pages = block.memory()?.residency()?;
                if pages.resident < pages.mapped {
                    return Err(format!("of {} bytes only {} are there", pages.mapped, pages.resident).into());
                }
                let huge = pages.huge as f64 / bytes as f64;
                Ok((block.as_ptr().cast_mut(), vec![("huge", huge), ("register", register.get())]))
            })
        }
        "cuMemHostAlloc" => {
            block(machine, bytes, || Allocated::new(context, bytes), |block| Ok((block.0.cast(), vec![])))
        }
        other => Err(format!("{other} makes nothing ready").into()),
    }
}

/// Where a block is, and what else there is to tell of it.
type Look = (*mut u8, Vec<(&'static str, f64)>);

/// Makes a block, looks at it and gives it back.
fn block<B>(
    machine: &Machine,
    bytes: usize,
    make: impl FnOnce() -> Result<B, Box<dyn Error>>,
    look: impl FnOnce(&B) -> Result<Look, Box<dyn Error>>,
) -> Outcome {
    let before = Reading::now()?;
    let started = Instant::now();
    let block = make()?;
    let ready = started.elapsed();
    let mut figures = Reading::now()?.since(before, bytes as u64);
    let (address, more) = look(&block)?;
    figures.extend(more);
    // SAFETY: the block holds `bytes` bytes of its own, and lives until after this call.
    unsafe { machine.check(address, bytes)? };
    let started = Instant::now();
    drop(block);
    figures.extend([("ready", ready.as_secs_f64()), ("release", started.elapsed().as_secs_f64())]);
    Ok(Answer::Figures(figures))
}

/// The driver's own call and nothing around it: `PinnedBuffer` would write zeros, which takes as long as the touching.
struct Allocated<'c>(*mut c_void, &'c Context);

impl<'c> Allocated<'c> {
    fn new(context: &'c Context, bytes: usize) -> Result<Self, Box<dyn Error>> {
        let mut address = ptr::null_mut();
        let allocate = context.driver().table().cuMemHostAlloc()?;
        // SAFETY: one address to write; the context is current.
        let code =
            context.with_current(|| unsafe { allocate(&mut address, bytes, CU_MEMHOSTALLOC_PORTABLE) })?;
        match code {
            CUresult::CUDA_SUCCESS => Ok(Self(address, context)),
            code => Err(format!("cuMemHostAlloc of {bytes} bytes: {code:?}").into()),
        }
    }
}

impl Drop for Allocated<'_> {
    fn drop(&mut self) {
        let Ok(free) = self.1.driver().table().cuMemFreeHost() else { return };
        // SAFETY: allocated above, freed once; the stream that copied it was waited for.
        let _ = self.1.with_current(|| unsafe { free(self.0) });
    }
}
