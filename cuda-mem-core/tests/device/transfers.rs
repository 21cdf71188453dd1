//! Transfers: copies that own their host memory.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use cuda_mem_core::host::{HostMemory, PinnedFlags, RegisterFlags, Registered};
use cuda_mem_core::{DeviceBuffer, Error, PinnedBuffer, Refused, Transfer};

use crate::common::gate::Gate;
use crate::common::outcome::record;
use crate::common::{World, pattern};

const LEN: usize = 100_003;

fn pinned(world: &World) -> PinnedBuffer<u8> {
    PinnedBuffer::zeroed(&world.context, LEN, PinnedFlags::default()).unwrap()
}

#[test]
fn a_transfer_gives_its_memory_back_when_the_copy_is_done() {
    let world = World::new();
    let device = DeviceBuffer::<u8>::zeroed(&world.stream, LEN).unwrap();
    let source = pattern(LEN, 1);
    let address = source.as_ptr();
    let source = Transfer::upload(&world.stream, source, &device.whole()).unwrap().wait().unwrap();
    assert_eq!(source.as_ptr(), address);
    let target = Transfer::download(&world.stream, &device.whole(), pinned(&world)).unwrap().wait().unwrap();
    record!("bytes", target.as_slice().unwrap());
    assert!(target.as_slice().unwrap() == source);
    let boxed = vec![0u8; LEN].into_boxed_slice();
    let boxed = Transfer::download(&world.stream, &device.whole(), boxed).unwrap().wait().unwrap();
    assert!(*boxed == *source);
}

#[test]
fn a_transfer_from_pinned_memory_does_not_wait_for_the_stream() {
    let world = World::new();
    let stream = world.new_stream();
    let device = DeviceBuffer::<u8>::zeroed(&stream, LEN).unwrap();
    let gate = Gate::before(&stream);
    let transfer = Transfer::upload(&stream, pinned(&world), &device.whole()).unwrap();
    assert!(!transfer.is_done().unwrap());
    gate.open();
    stream.synchronize().unwrap();
    assert!(transfer.is_done().unwrap());
    transfer.wait().unwrap();
}

#[test]
fn a_dropped_transfer_has_waited() {
    let world = World::new();
    let stream = world.new_stream();
    let device = DeviceBuffer::<u8>::zeroed(&stream, LEN).unwrap();
    let mut source = pinned(&world);
    source.as_mut_slice().unwrap().fill(5);
    let gate = Gate::before(&stream);
    let transfer = Transfer::upload(&stream, source, &device.whole()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(std::time::Duration::from_millis(20));
            gate.open();
        });
        drop(transfer);
        assert!(stream.is_idle().unwrap());
    });
    assert!(device.to_vec(&stream).unwrap() == [5; LEN]);
}

#[test]
fn a_forgotten_transfer_leaks_its_memory_and_hurts_nobody() {
    let world = World::new();
    let device = DeviceBuffer::<u8>::zeroed(&world.stream, LEN).unwrap();
    // Its bytes must stay where they are, for ever: nobody knows when they are not needed any more.
    #[allow(clippy::mem_forget, reason = "it is what is tested")]
    std::mem::forget(Transfer::upload(&world.stream, pattern(LEN, 2), &device.whole()).unwrap());
    let other = world.new_stream();
    assert!(device.to_vec(&other).unwrap() == pattern(LEN, 2));
}

#[test]
fn what_is_refused_comes_back() {
    let world = World::new();
    let device = DeviceBuffer::<u8>::zeroed(&world.stream, LEN).unwrap();
    let refused = Transfer::upload(&world.stream, pattern(LEN - 1, 3), &device.whole()).unwrap_err();
    record!("short upload", &refused.error);
    assert!(matches!(refused.error, Error::LengthMismatch { .. }));
    assert_eq!(refused.owner, Some(pattern(LEN - 1, 3)));
    let refused = Transfer::download(&world.stream, &device.whole(), vec![9u8; LEN + 1]).unwrap_err();
    assert_eq!(refused.owner, Some(vec![9; LEN + 1]));
    assert_eq!(refused.to_string(), refused.error.to_string());
}

#[test]
fn shared_and_registered_memory_can_be_a_source() {
    let world = World::new();
    let device = DeviceBuffer::<u8>::zeroed(&world.stream, LEN).unwrap();
    let shared = Arc::new(pattern(LEN, 4));
    assert!(!shared.is_writable());
    let transfer = Transfer::upload(&world.stream, Arc::clone(&shared), &device.whole()).unwrap();
    assert_eq!(*shared, pattern(LEN, 4));
    transfer.wait().unwrap();
    assert_eq!(device.to_vec(&world.stream).unwrap(), *shared);
    let registered = Registered::new(&world.context, pattern(LEN, 5), RegisterFlags::default()).unwrap();
    let registered = Transfer::upload(&world.stream, registered, &device.whole()).unwrap().wait().unwrap();
    assert_eq!(device.to_vec(&world.stream).unwrap(), registered.as_slice().unwrap());
}

#[test]
fn later_uses_of_the_device_side_are_ordered_behind_the_copy() {
    let world = World::new();
    let (stream, other) = (world.new_stream(), world.new_stream());
    let device = DeviceBuffer::<u8>::zeroed(&stream, LEN).unwrap();
    let mut source = pinned(&world);
    source.as_mut_slice().unwrap().fill(6);
    let gate = Gate::before(&stream);
    let upload = Transfer::upload(&stream, source, &device.whole()).unwrap();
    let download = Transfer::download(&other, &device.whole(), pinned(&world)).unwrap();
    assert!(!download.is_done().unwrap());
    gate.open();
    assert!(download.wait().unwrap().as_slice().unwrap() == [6; LEN]);
    drop((device, upload));
}

#[test]
fn of_no_bytes() {
    let world = World::new();
    let device = DeviceBuffer::<u8>::uninit(&world.stream, 0).unwrap();
    let empty = Transfer::upload(&world.stream, Vec::<u8>::new(), &device.whole()).unwrap();
    assert!(empty.wait().unwrap().is_empty());
}

/// Runs a future on this thread, which sleeps until it is woken.
fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn a_transfer_is_a_future_that_ends_with_the_copy() {
    let world = World::new();
    let device = DeviceBuffer::<u8>::zeroed(&world.stream, LEN).unwrap();
    let gate = Gate::before(&world.stream);
    let mut source = pinned(&world);
    source.as_mut_slice().unwrap().copy_from_slice(&pattern(LEN, 1));
    let mut held = Transfer::upload(&world.stream, source, &device.whole()).unwrap();
    let poll = |transfer: &mut Transfer<_>| {
        Pin::new(transfer).poll(&mut Context::from_waker(Waker::noop())).map(|done| done.is_ok())
    };
    assert_eq!(poll(&mut held), Poll::Pending);
    gate.open();
    let source = block_on(held).unwrap();
    assert!(source.as_slice().unwrap() == pattern(LEN, 1));
    let mut ended = Transfer::download(&world.stream, &device.whole(), pinned(&world)).unwrap();
    let found = block_on(&mut ended).unwrap();
    assert!(found.as_slice().unwrap() == pattern(LEN, 1));
    assert_eq!(poll(&mut ended), Poll::Ready(false), "whoever polls it again does not wait for ever");
    let refused = ended.wait().unwrap_err();
    assert!(matches!(refused, Refused { error: Error::GivenBack, owner: None, .. }), "{refused}");
}

#[test]
fn a_transfer_that_is_dropped_after_a_poll_has_waited() {
    let world = World::new();
    let device = DeviceBuffer::<u8>::zeroed(&world.stream, LEN).unwrap();
    let memory = Arc::new(pattern(LEN, 2));
    let mut transfer = Transfer::upload(&world.stream, Arc::clone(&memory), &device.whole()).unwrap();
    let _ = Pin::new(&mut transfer).poll(&mut Context::from_waker(Waker::noop()));
    drop(transfer);
    assert_eq!(Arc::strong_count(&memory), 1);
    assert!(device.to_vec(&world.stream).unwrap() == *memory);
}
