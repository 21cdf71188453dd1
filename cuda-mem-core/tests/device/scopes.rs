//! Scopes: asynchronous copies of borrowed memory, which always end before the borrow.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use cuda_mem_core::host::{RegisterFlags, Registered};
use cuda_mem_core::{DeviceBuffer, Error, Stream, scope};

use crate::common::gate::Gate;
use crate::common::outcome::record;
use crate::common::{World, pattern};

const LEN: usize = 100_003;

/// Opens a gate a little later, from another thread, while `body` runs.
fn opening<R>(gate: &Gate, body: impl FnOnce() -> R) -> R {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            gate.open();
        });
        body()
    })
}

#[test]
fn two_streams_copy_there_and_back() {
    let world = World::new();
    let (one, two) = (&world.stream, world.new_stream());
    let source = pattern(LEN, 1);
    let mut target = vec![0; LEN];
    let device = DeviceBuffer::<u8>::uninit(one, LEN).unwrap();
    let seven = scope(&world.context, |scope| {
        scope.upload(one, &source, &device.whole())?;
        scope.download(&two, &device.whole(), &mut target)?;
        Ok(7)
    });
    assert_eq!(seven.unwrap(), 7);
    record!("bytes", &target);
    assert_eq!(target, source);
}

/// Its point would be an event that stands for what somebody recorded before.
#[test]
fn a_copy_that_was_refused_is_not_waited_for() {
    let world = World::new();
    let (held, later) = (world.new_stream(), world.new_stream());
    let device = DeviceBuffer::<u8>::uninit(&world.stream, LEN).unwrap();
    let source = pattern(LEN, 1);
    let gate = &Gate::before(&held);
    later.wait_stream(&held).unwrap();
    let (done, told) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|threads| {
        threads.spawn(move || {
            // For who waits nevertheless.
            let _ = told.recv_timeout(Duration::from_secs(5));
            gate.open();
        });
        let refused =
            scope(&world.context, |scope| scope.upload(&world.stream, &source[1..], &device.whole()));
        let is_held = !held.is_idle().unwrap();
        drop(done);
        assert!(matches!(refused, Err(Error::LengthMismatch { .. })), "{refused:?}");
        assert!(is_held, "the scope waited for another stream");
    });
}

#[test]
fn registered_borrowed_memory_is_copied_without_waiting_until_the_end() {
    let world = World::new();
    let stream = world.new_stream();
    let source = pattern(LEN, 2);
    let mut target = vec![0u8; LEN];
    let device = DeviceBuffer::<u8>::uninit(&stream, LEN).unwrap();
    let gate = Gate::before(&stream);
    let was_idle = scope(&world.context, |scope| {
        scope.register(&source)?;
        let target = scope.register_mut(&mut target)?;
        scope.upload(&stream, &source, &device.whole())?;
        scope.download(&stream, &device.whole(), target)?;
        let was_idle = stream.is_idle();
        // Opened before anything can fail: the scope's end waits for the stream.
        gate.open();
        was_idle
    });
    assert!(!was_idle.unwrap(), "registered memory is copied by the device, in stream order");
    assert!(stream.is_idle().unwrap());
    assert_eq!(target, source);
    // With other flags: only memory that is not registered any more takes them.
    Registered::new(&world.context, source, RegisterFlags::PORTABLE | RegisterFlags::MAPPED).unwrap();
}

/// What a scope that ends early must have done all the same: waited for its copies and undone its registrations.
fn ends_early(world: &World, end: impl FnOnce(&Stream, &[u8], &mut [u8], &DeviceBuffer<u8>)) {
    let stream = world.new_stream();
    let source = pattern(LEN, 3);
    let mut target = vec![0u8; LEN];
    let device = DeviceBuffer::<u8>::uninit(&stream, LEN).unwrap();
    let gate = Gate::before(&stream);
    opening(&gate, || {
        end(&stream, &source, &mut target, &device);
        assert!(stream.is_idle().unwrap(), "the scope ended before its copies");
        assert!(target == source);
    });
    Registered::new(&world.context, source, RegisterFlags::PORTABLE | RegisterFlags::MAPPED).unwrap();
}

#[test]
fn a_panic_inside_waits_and_goes_on() {
    let world = World::new();
    ends_early(&world, |stream, source, target, device| {
        let panicking = AssertUnwindSafe(|| {
            scope(&world.context, |scope| -> cuda_mem_core::Result<()> {
                scope.register(source)?;
                let target = scope.register_mut(target)?;
                scope.upload(stream, source, &device.whole())?;
                scope.download(stream, &device.whole(), target)?;
                panic!("on purpose");
            })
        });
        let panic = catch_unwind(panicking).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    });
}

#[test]
fn an_error_inside_waits_and_is_returned() {
    let world = World::new();
    ends_early(&world, |stream, source, target, device| {
        let result = scope(&world.context, |scope| -> cuda_mem_core::Result<()> {
            scope.register(source)?;
            let target = scope.register_mut(target)?;
            scope.upload(stream, source, &device.whole())?;
            scope.download(stream, &device.whole(), target)?;
            Err(Error::Poisoned)
        });
        assert!(matches!(result, Err(Error::Poisoned)));
    });
}

#[test]
fn scopes_nest() {
    let world = World::new();
    let source = pattern(LEN, 4);
    let mut target = vec![0; LEN];
    let device = DeviceBuffer::<u8>::uninit(&world.stream, LEN).unwrap();
    scope(&world.context, |outer| {
        outer.upload(&world.stream, &source, &device.whole())?;
        scope(&world.context, |inner| inner.download(&world.stream, &device.whole(), &mut target))
    })
    .unwrap();
    assert_eq!(target, source);
}

#[test]
fn parts_of_any_host_memory() {
    let world = World::new();
    let source = pattern(1000, 5);
    let device = DeviceBuffer::<u8>::zeroed(&world.stream, 100).unwrap();
    scope(&world.context, |scope| {
        scope.upload_bytes(&world.stream, &source, 900..1000, &device.whole())?;
        let beyond = scope.upload_bytes(&world.stream, &source, 901..1001, &device.whole());
        record!("beyond the end", &beyond);
        assert!(matches!(beyond, Err(Error::OutOfRange { range, len: 1000 }) if range == (901..1001)));
        #[allow(clippy::reversed_empty_ranges, reason = "it is the bad input")]
        let reversed = scope.upload_bytes(&world.stream, &source, 2..1, &device.whole());
        assert!(matches!(reversed, Err(Error::OutOfRange { .. })));
        let other_length = scope.upload_bytes(&world.stream, &source, 0..99, &device.whole());
        assert!(matches!(other_length, Err(Error::LengthMismatch { .. })));
        Ok(())
    })
    .unwrap();
    assert_eq!(device.to_vec(&world.stream).unwrap(), source[900..]);
}

#[test]
fn memory_that_may_not_be_written_cannot_be_registered_as_if_it_could() {
    static CONSTANT: [u8; 8192] = [7; 8192];
    let world = World::new();
    let result = scope(&world.context, |scope| scope.register(&CONSTANT));
    record!("constant", &result);
    assert!(result.unwrap_err().code().is_some());
}
