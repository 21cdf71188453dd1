//! What a tensor that is lent or borrowed waits for before it goes.

use std::thread;
use std::time::Duration;

use cuda_mem_core::host::PinnedFlags;
use cuda_mem_core::{DeviceBuffer, PinnedBuffer, Stream};
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::PinnedCachingAllocator;
use cuda_mem_torch::dlpack::{Borrowed, DLDataType, DlpackError, Lend, Tensor};

use crate::common::World;
use crate::common::gate::Gate;
use crate::dlpack::Foreign;

/// Opens the gate a while after `wait` has begun to wait.
fn meanwhile_open<R>(gate: &Gate, wait: impl FnOnce() -> R) -> R {
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            gate.open();
        });
        wait()
    })
}

/// A lender may use or free the memory as soon as it has it back, whatever stream it was named: PyTorch does.
#[test]
fn what_others_lend_is_given_back_once_no_stream_uses_it() {
    let world = World::new();
    let (named, other) = (world.new_stream(), world.new_stream());
    let buffer = DeviceBuffer::<f32>::zeroed(&world.stream, 16).unwrap();
    world.stream.synchronize().unwrap();
    let given_back = |lent_for: Option<&Stream>, used_on: &Stream| {
        let mut foreign = Foreign::new(buffer.as_raw(), &[16]);
        let borrowed = foreign.borrow(&world, lent_for).unwrap();
        let gate = Gate::before(used_on);
        drop(borrowed.on(used_on).unwrap());
        let is_idle = meanwhile_open(&gate, || {
            drop(borrowed);
            used_on.is_idle().unwrap()
        });
        assert_eq!(foreign.given_back(), 1);
        assert!(is_idle, "lent for {lent_for:?}, used on {used_on:?}");
    };
    given_back(Some(&named), &named);
    given_back(Some(&named), &other);
    given_back(None, &other);
}

/// A use of that stream ends for us when the tensor is lent: what the borrower puts into it later would not be waited for.
#[test]
fn nothing_is_lent_for_a_per_thread_stream() {
    let world = World::new();
    let per_thread = Stream::per_thread(&world.context).unwrap();
    let buffer = DeviceBuffer::<u8>::zeroed(&world.stream, 16).unwrap();
    let address = buffer.as_raw();
    let tensor = Tensor::new(buffer, DLDataType::U8, &[16]).unwrap();
    let refused = tensor.into_versioned(Some(&per_thread)).unwrap_err();
    assert!(matches!(refused.error, DlpackError::PerThread), "{refused}");
    let refused = refused.owner.into_legacy(Some(&per_thread)).unwrap_err();
    assert!(matches!(refused.error, DlpackError::PerThread), "{refused}");
    assert_eq!(refused.owner.into_owner().as_raw(), address);
}

/// The borrower may read host memory without any stream.
#[test]
fn memory_of_the_host_is_lent_once_no_stream_uses_it() {
    let world = World::new();
    let (producer, consumer) = (world.new_stream(), world.new_stream());
    let pinned = || PinnedBuffer::<u8>::zeroed(&world.context, 64, PinnedFlags::default()).unwrap();
    for lent_for in [None, Some(&consumer), Some(&producer)] {
        let buffer = pinned();
        let gate = Gate::before(&producer);
        drop(buffer.on(&producer).unwrap());
        is_lent_behind(&gate, &producer, buffer, lent_for);
        let block = PinnedCachingAllocator::new(&world.context).allocate(64).unwrap();
        let gate = Gate::before(&producer);
        drop(block.on(&producer).unwrap());
        is_lent_behind(&gate, &producer, block, lent_for);
    }
}

/// Lends what `producer`, held up by the gate, uses.
fn is_lent_behind<O: Lend>(gate: &Gate, producer: &Stream, owner: O, lent_for: Option<&Stream>) {
    let tensor = Tensor::new(owner, DLDataType::U8, &[64]).map_err(|refused| refused.error).unwrap();
    let (lent, is_idle) = meanwhile_open(gate, || {
        let lent = tensor.into_versioned(lent_for).map_err(|refused| refused.error).unwrap();
        (lent, producer.is_idle().unwrap())
    });
    assert!(is_idle, "lent for {lent_for:?}");
    // SAFETY: lent just now, and taken over once.
    drop(unsafe { Borrowed::from_versioned(producer.context(), lent, lent_for) }.unwrap());
}
