//! Every driver call of small programs fails once, each in a run of its own.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, Mutex};

use cuda_mem_core::host::PinnedFlags;
use cuda_mem_core::ipc::DeviceAllocation;
use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, DeviceBuffer, Driver, PinnedBuffer, Stream};
use cuda_mem_sim::Sim;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::segments::Filter;
use cuda_mem_torch::dlpack::{Borrowed, DLDataType, Tensor};
use cuda_mem_torch::{
    CudaAllocator, MemPool, NativeAllocator, PluggableAllocator, Result, create_custom_allocator,
};

const MIB: usize = 1 << 20;

type Program = fn(&Context, &Arc<dyn CudaAllocator>, &Stream) -> Result<()>;

/// Frees what it has allocated, whatever happens.
struct Owned<'a>(&'a Arc<dyn CudaAllocator>, u64);

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated by this allocator, and nothing uses it but what was recorded.
        if let Err(error) = unsafe { self.0.raw_delete(self.1) } {
            // Once more: one fault is injected.
            // SAFETY: as above; it is still allocated.
            unsafe { self.0.raw_delete(self.1) }.unwrap_or_else(|again| panic!("{error}, then {again}"));
        }
    }
}

fn malloc<'a>(
    context: &Context,
    allocator: &'a Arc<dyn CudaAllocator>,
    bytes: usize,
    stream: &Stream,
) -> Result<Owned<'a>> {
    Ok(Owned(allocator, allocator.malloc(bytes, context.device(), stream)?))
}

fn blocks(context: &Context, allocator: &Arc<dyn CudaAllocator>, stream: &Stream) -> Result<()> {
    let other = Stream::new(context)?;
    let block = malloc(context, allocator, 3 * MIB, stream)?;
    allocator.record_stream(block.1, &other)?;
    assert!(allocator.base_allocation(block.1)?.0 <= block.1);
    drop(block);
    let again = malloc(context, allocator, 3 * MIB, stream)?;
    drop(malloc(context, allocator, 1000, stream)?);
    allocator.device_stats(context.device())?;
    let mut largest = 0;
    allocator.cache_info(context.device(), &mut largest)?;
    drop(again);
    other.synchronize()?;
    allocator.empty_cache(Default::default()).map(drop)
}

fn off(context: &Context, allocator: &Arc<dyn CudaAllocator>, stream: &Stream) -> Result<()> {
    let other = Stream::new(context)?;
    allocator.enable(false);
    let block = malloc(context, allocator, 3 * MIB, stream)?;
    allocator.record_stream(block.1, &other)?;
    allocator.enable(true);
    drop(block);
    Ok(())
}

fn pools(context: &Context, allocator: &Arc<dyn CudaAllocator>, stream: &Stream) -> Result<()> {
    let upstream: Arc<dyn CudaAllocator> = Arc::new(NativeAllocator::new(context.driver()));
    upstream.init(1)?;
    for source in [None, Some(upstream)] {
        let pool = context.with_current(|| MemPool::of(allocator, source, true, true, false))??;
        allocator.begin_allocate_to_pool(context.device(), pool.id(), Filter::this_thread())?;
        let block = malloc(context, allocator, 3 * MIB, stream);
        allocator.end_allocate_to_pool(context.device(), pool.id())?;
        allocator.release_pool(context.device(), pool.id())?;
        let other = Stream::new(context)?;
        let block = block?;
        allocator.record_stream(block.1, &other)?;
        drop(block);
        drop(pool);
    }
    Ok(())
}

fn pointers(context: &Context, allocator: &Arc<dyn CudaAllocator>, _: &Stream) -> Result<()> {
    let block = context.with_current(|| allocator.allocate(5000))??;
    drop(block);
    Ok(())
}

fn tensors(context: &Context, _: &Arc<dyn CudaAllocator>, stream: &Stream) -> Result<()> {
    let device = DeviceBuffer::<f32>::zeroed(stream, 100)?;
    let pinned = PinnedBuffer::<f32>::zeroed(context, 100, PinnedFlags::default())?;
    let tensor = Tensor::new(device, DLDataType::F32, &[10, 10]).map_err(|refused| refused.error)?;
    let lent = tensor.into_versioned(Some(stream)).map_err(|refused| refused.error)?;
    // SAFETY: lent just now, for this stream.
    let borrowed = unsafe { Borrowed::from_versioned(context, lent, Some(stream)) }?;
    let other = Stream::new(context)?;
    drop(borrowed.on(&other)?);
    drop(borrowed);
    let tensor = Tensor::new(pinned, DLDataType::F32, &[10, 10]).map_err(|refused| refused.error)?;
    let lent = tensor.into_legacy(None).map_err(|refused| refused.error)?;
    // SAFETY: lent just now.
    let borrowed = unsafe { Borrowed::from_legacy(context, lent, None) }?;
    drop(borrowed.on(&other)?);
    Ok(())
}

const PROGRAMS: [(&str, Program); 5] =
    [("blocks", blocks), ("off", off), ("pools", pools), ("pointers", pointers), ("tensors", tensors)];

static LENT: Mutex<BTreeMap<u64, DeviceAllocation>> = Mutex::new(BTreeMap::new());

fn pluggable(context: &Context) -> Result<Arc<PluggableAllocator>> {
    let of = context.clone();
    let alloc = move |bytes, _, _: &Stream| {
        let memory = DeviceAllocation::new(&of, bytes)?;
        let address = memory.as_raw();
        LENT.lock().unwrap().insert(address, memory);
        Ok(address)
    };
    let free = |address, _, _, _: &Stream| {
        let memory = LENT.lock().unwrap().remove(&address).unwrap();
        let refused = match memory.close() {
            Ok(()) => return Ok(()),
            Err(refused) => refused.owner.close(),
        };
        refused.map_err(|refused| refused.error.into())
    };
    // SAFETY: memory of the driver, which gives it to one.
    unsafe { create_custom_allocator(context.driver(), alloc, free) }
}

fn current(sim: &Sim) -> usize {
    let mut context = ptr::null_mut();
    // SAFETY: one handle to write.
    assert_eq!(unsafe { sim.table().cuCtxGetCurrent().unwrap()(&mut context) }, CUresult::CUDA_SUCCESS);
    context.addr()
}

fn run(sim: &Sim, is_pluggable: bool, program: Program) -> Result<()> {
    let context = Driver::over(sim.table())?.device(0)?.primary_context()?;
    let allocator: Arc<dyn CudaAllocator> = if is_pluggable {
        pluggable(&context)?
    } else {
        let native = NativeAllocator::new(context.driver());
        native.init(1)?;
        Arc::new(native)
    };
    let stream = Stream::new(&context)?;
    let ran = catch_unwind(AssertUnwindSafe(|| program(&context, &allocator, &stream)));
    stream.synchronize().or_else(|_| stream.synchronize())?;
    context.synchronize().or_else(|_| context.synchronize())?;
    let _ = allocator.empty_cache(Default::default());
    let _ = allocator.empty_cache(Default::default());
    if let Ok(figures) = allocator.device_stats(context.device()) {
        let all = [figures.allocation, figures.active].map(|of| of.all.current);
        let bytes =
            [figures.allocated_bytes, figures.active_bytes, figures.requested_bytes].map(|of| of.all.current);
        assert_eq!((all, bytes, figures.reserved_bytes.all.current), ([0; 2], [0; 3], 0), "{ran:?}");
    }
    match ran {
        Ok(ran) => ran,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

#[test]
fn every_call_may_fail() {
    let mut failures = Vec::new();
    for (name, program) in PROGRAMS {
        for is_pluggable in [false, true] {
            for code in [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_UNKNOWN] {
                for nth in 1.. {
                    let sim = Sim::builder().memory(256 << 20).build();
                    sim.fail_nth_call_overall(nth, code);
                    let outcome = catch_unwind(AssertUnwindSafe(|| run(&sim, is_pluggable, program)));
                    let Some(struck) = sim.struck().first().copied() else {
                        outcome.unwrap().unwrap();
                        break;
                    };
                    let driver = Driver::over(sim.table()).unwrap();
                    let mut complaints = Vec::new();
                    match outcome {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => {
                            // The injected code, whoever tells of it.
                            let text = format!("{error:?}");
                            let is_told = ["UNKNOWN", "OUT_OF_MEMORY"].iter().any(|name| text.contains(name));
                            if !is_told && !error.is_out_of_memory() {
                                complaints.push(format!("an error of another kind: {error:?}"));
                            }
                        }
                        Err(panic) => {
                            complaints.push(format!("a panic: {:?}", panic.downcast_ref::<String>()))
                        }
                    }
                    if current(&sim) != 0 {
                        complaints.push("another context is current".to_owned());
                    }
                    // What a pool could not give back as it was dropped counts, and goes with the next emptying.
                    if driver.release_failures() > u64::from(name == "pools") {
                        complaints.push(format!("{} releases failed for good", driver.release_failures()));
                    }
                    complaints.extend(sim.misuse().iter().map(|misuse| format!("misused: {misuse}")));
                    complaints.extend(sim.leaks().iter().map(|leak| format!("leaked: {leak}")));
                    let place =
                        format!("{name} {is_pluggable}, call {nth}, {} with {}", struck.function, code.0);
                    failures.extend(complaints.iter().map(|what| format!("{place}: {what}")));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} complaints:\n{}", failures.len(), failures.join("\n"));
}
