//! The current context is the caller's: every call leaves it as it was.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use cuda_mem_core::sys::{CUcontext, CUresult, Table};
use cuda_mem_core::{Context, DeviceBuffer, Stream, scope};

use crate::common::capture::{GLOBAL, THREAD_LOCAL, exchange_mode, thread_mode};
use crate::common::outcome::record;
use crate::common::{World, scenarios};

fn current(table: &Table) -> CUcontext {
    let mut current = ptr::null_mut();
    // SAFETY: one handle to write.
    assert_eq!(unsafe { table.cuCtxGetCurrent().unwrap()(&mut current) }, CUresult::CUDA_SUCCESS);
    current
}

fn set_current(table: &Table, context: CUcontext) {
    // SAFETY: none, or a context that lives.
    assert_eq!(unsafe { table.cuCtxSetCurrent().unwrap()(context) }, CUresult::CUDA_SUCCESS);
}

/// A context besides the primary one.
struct Other {
    table: &'static Table,
    raw: CUcontext,
}

impl Other {
    fn new(of: &Context) -> Self {
        let table = of.driver().table();
        let mut raw = ptr::null_mut();
        // SAFETY: one handle to write, a valid device.
        let result = unsafe { table.cuCtxCreate().unwrap()(&mut raw, 0, of.device().as_raw()) };
        assert_eq!(result, CUresult::CUDA_SUCCESS);
        Self { table, raw }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // SAFETY: made above, destroyed once.
        let _ = unsafe { self.table.cuCtxDestroy().unwrap()(self.raw) };
    }
}

/// Runs `body` with no context current, with another one and with the world's own, and checks that each stays.
fn with_each_current(world: &World, body: impl Fn(&str)) {
    let table = world.driver.table();
    let other = Other::new(&world.context);
    for (name, context) in
        [("none", ptr::null_mut()), ("another", other.raw), ("the same", world.context.as_raw().cast())]
    {
        set_current(table, context);
        body(name);
        assert_eq!(current(table), context, "{name} was current");
    }
    set_current(table, ptr::null_mut());
}

#[test]
fn every_call_restores_the_current_context() {
    let world = World::new();
    for (scenario, run) in scenarios::ALL.iter().chain(scenarios::WAITING) {
        with_each_current(&world, |name| {
            let result = run(&world.context);
            record!(&format!("{scenario}, {name} current"), &result);
            result.unwrap_or_else(|error| panic!("{scenario} with {name} current: {error}"));
        });
    }
}

#[test]
fn every_call_restores_the_capture_mode() {
    let world = World::new();
    let table = world.driver.table();
    for (scenario, run) in scenarios::ALL.iter().chain(scenarios::WAITING) {
        for mode in [GLOBAL, THREAD_LOCAL] {
            let before = exchange_mode(table, mode);
            run(&world.context).unwrap();
            assert_eq!(thread_mode(table), mode, "{scenario}");
            exchange_mode(table, before);
        }
    }
}

#[test]
fn with_current_makes_it_current_for_its_time_and_not_longer() {
    let world = World::new();
    let table = world.driver.table();
    with_each_current(&world, |_| {
        let inside = world.context.with_current(|| current(table)).unwrap();
        assert_eq!(inside, world.context.as_raw().cast());
    });
}

#[test]
fn with_current_restores_after_a_panic() {
    let world = World::new();
    with_each_current(&world, |_| {
        let panicking = AssertUnwindSafe(|| world.context.with_current(|| panic!("on purpose")));
        assert!(catch_unwind(panicking).is_err());
    });
}

#[test]
fn a_panic_inside_a_scope_restores_the_current_context() {
    let world = World::new();
    let stream = Stream::new(&world.context).unwrap();
    let bytes = vec![1u8; 100];
    with_each_current(&world, |_| {
        let device = DeviceBuffer::<u8>::uninit(&stream, 100).unwrap();
        let panicking = AssertUnwindSafe(|| {
            scope(&world.context, |scope| {
                scope.upload(&stream, &bytes, &device.whole())?;
                if true {
                    panic!("on purpose");
                }
                Ok(())
            })
        });
        assert!(catch_unwind(panicking).is_err());
    });
}

#[test]
fn a_borrowed_context_is_the_same_context() {
    let world = World::new();
    // SAFETY: the primary context, which the world keeps for longer.
    let borrowed = unsafe { Context::borrow_raw(world.context.device(), world.context.as_raw()) };
    assert_eq!(borrowed, world.context);
    let stream = Stream::new(&borrowed).unwrap();
    let buffer = DeviceBuffer::from_slice(&stream, &[1u8, 2, 3]).unwrap();
    drop(borrowed);
    assert_eq!(buffer.to_vec(&stream).unwrap(), [1, 2, 3]);
}

#[test]
fn synchronize_waits_for_every_stream() {
    let world = World::new();
    let (one, two) = (world.new_stream(), world.new_stream());
    let buffer = DeviceBuffer::<u8>::zeroed(&one, 1 << 20).unwrap();
    buffer.whole().fill_bytes(&two, 1).unwrap();
    world.context.synchronize().unwrap();
    assert!(one.is_idle().unwrap() && two.is_idle().unwrap());
}
