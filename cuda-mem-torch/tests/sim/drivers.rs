//! Two drivers in one process: what is of one is not taken for the other's.

use std::fmt::Debug;
use std::sync::Arc;

use cuda_mem_core::host::PinnedFlags;
use cuda_mem_core::{Context, DeviceBuffer, Driver, Error as CoreError, PinnedBuffer, Stream};
use cuda_mem_sim::Sim;
use cuda_mem_torch::cuda_mem_ipc::symmetric::{Error as SymmetricError, Group, GroupOptions, NativeBackend};
use cuda_mem_torch::dlpack::{Borrowed, DLDataType, DlpackError, Lend, Tensor};
use cuda_mem_torch::symm::{Backends, DeviceType};
use cuda_mem_torch::{CudaAllocator, Error, Result, create_custom_allocator};

fn context_of(sim: &Sim) -> Context {
    Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap()
}

#[test]
fn persistent_memory_is_not_that_of_another_drivers_device() {
    let (one, two) = (Sim::builder().build(), Sim::builder().build());
    let (here, there) = (context_of(&one), context_of(&two));
    let directory = std::env::temp_dir().join(format!("cuda-mem-persistent-{}", std::process::id()));
    let group = Group::join(&here, "alone", 0, 1, &directory, &GroupOptions::default()).unwrap();
    let (backends, native) = (Backends::new(), Arc::new(NativeBackend::new()));
    native.add_group(&group).unwrap();
    backends.register(DeviceType::CUDA, native).unwrap();
    let of = |context: &Context| backends.empty_persistent(1000, context.device(), Some("alone"), 7);
    let is_refused = |result: Result<_>| {
        let foreign = matches!(
            result,
            Err(Error::Core(CoreError::ForeignContext { .. })
                | Error::Symmetric(SymmetricError::Core(CoreError::ForeignContext { .. })))
        );
        assert!(foreign, "{:?}", result.map(|_: Arc<_>| "memory"));
    };
    // Both are device 0.
    is_refused(of(&there));
    let address = of(&here).unwrap().as_raw();
    is_refused(of(&there));
    assert_eq!(of(&here).unwrap().as_raw(), address);
    drop((backends, group));
    std::fs::remove_dir(directory).unwrap();
}

fn refused(result: Result<impl Debug, DlpackError>) {
    let is_foreign = matches!(result, Err(DlpackError::Core(CoreError::ForeignContext { .. })));
    assert!(is_foreign, "{result:?}");
}

fn lends_to_its_own_driver_alone<O: Lend + Debug>(owner: O, context: &Context, theirs: &Stream) {
    let tensor = Tensor::new(owner, DLDataType::F32, &[10]).unwrap();
    let back = tensor.into_versioned(Some(theirs)).unwrap_err();
    refused(Err::<(), _>(back.error));
    let lent = back.owner.into_versioned(None).unwrap();
    // SAFETY: a structure that was lent just now, and nobody else's.
    let borrowed = unsafe { Borrowed::from_versioned(context, lent, None) }.unwrap();
    refused(borrowed.on(theirs));
}

#[test]
fn a_tensor_is_not_used_on_a_stream_of_another_driver() {
    let (one, two) = (Sim::builder().build(), Sim::builder().build());
    let (here, theirs) = (context_of(&one), Stream::new(&context_of(&two)).unwrap());
    let stream = Stream::new(&here).unwrap();
    let pinned = PinnedBuffer::<f32>::zeroed(&here, 10, PinnedFlags::default()).unwrap();
    lends_to_its_own_driver_alone(pinned, &here, &theirs);
    lends_to_its_own_driver_alone(DeviceBuffer::<f32>::zeroed(&stream, 10).unwrap(), &here, &theirs);
}

#[test]
fn a_block_of_two_functions_has_no_user_of_another_driver() {
    let (one, two) = (Sim::builder().build(), Sim::builder().build());
    let (here, theirs) = (context_of(&one), Stream::new(&context_of(&two)).unwrap());
    let stream = Stream::new(&here).unwrap();
    // SAFETY: an address that nothing uses.
    let allocator =
        unsafe { create_custom_allocator(here.driver(), |_, _, _| Ok(0x1000), |_, _, _, _| Ok(())) };
    let allocator = allocator.unwrap();
    let block = allocator.malloc(1000, here.device(), &stream).unwrap();
    for told in [false, true] {
        let recorded = allocator.record_stream(block, &theirs);
        assert!(
            matches!(recorded, Err(Error::Core(CoreError::ForeignContext { .. }))),
            "{told}: {recorded:?}"
        );
        allocator.set_record_stream_fn(|_, stream| panic!("told of {stream:?}"));
    }
    // SAFETY: allocated above, and not used.
    unsafe { allocator.raw_delete(block) }.unwrap();
}
