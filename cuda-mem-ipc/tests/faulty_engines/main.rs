//! What goes wrong with NVSHMEM and NCCL, made so by stand-ins: on the simulator alone.
#![cfg(any(feature = "nccl", feature = "nvshmem"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../../../cuda-mem-core/tests/common/mod.rs"]
mod common;

use std::sync::Arc;

use cuda_mem_core::Device;
use cuda_mem_ipc::symmetric::{EngineBackend, Error, Result, SymmetricBackend, SymmetricBuffer};

/// The test around it, of two ranks, each a process, that do the same: a body that takes its seat, or the rank that it becomes with a
/// library.
macro_rules! on_two_ranks {
    ($body:ident, $library:expr) => {{
        let seated = |seat: &$crate::rank::Seat| $body($crate::rank::Rank::of(seat, $library));
        on_two_ranks!(@ |first| $body($crate::rank::Rank::of(&$crate::rank::Seat::of(first), $library)), seated);
    }};
    ($body:ident) => {
        on_two_ranks!(@ |first| $body(&$crate::rank::Seat::of(first)), $body);
    };
    (@ $other:expr, $seated:expr) => {{
        use $crate::common::pair;

        let other: pair::Body = $other;
        pair::play(pair::test_name!(), &[("rank", other)], |cast| {
            let crew = $crate::rank::Crew::start(cast, 2);
            $seated(&crew.seat);
            crew.finish();
        });
    }};
}

#[path = "../symmetric/crew.rs"]
mod crew;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../engines/fake/mod.rs"]
mod fake;
#[cfg(feature = "nccl")]
mod nccl;
#[cfg(feature = "nvshmem")]
mod nvshmem;
#[allow(dead_code, reason = "as above")]
#[path = "../engines/rank.rs"]
mod rank;

/// A program that starts its ranks anew makes the next backend once the one before says that it has ended.
fn a_backend_that_was_closed_gives_its_place_to_the_next(seat: &rank::Seat, library: rank::Library) {
    let rank = rank::Rank::of(seat, library);
    let device = rank.joined.context.device();
    drop(buffer(&rank.backend, device).unwrap());
    assert!(!rank.backend.has_ended());
    rank.backend.close().unwrap();
    assert!(rank.backend.has_ended());
    let closed = buffer(&rank.backend, device);
    assert!(matches!(closed, Err(Error::EngineClosed { .. })), "{closed:?}");
    let next = Arc::new(rank.joined.start(library).unwrap());
    drop(buffer(&next, device).unwrap());
    next.close().unwrap();
}

fn buffer(backend: &Arc<EngineBackend>, device: Device) -> Result<SymmetricBuffer> {
    let backend: Arc<dyn SymmetricBackend> = backend.clone();
    SymmetricBuffer::new(&backend, 100, device, None)
}

/// What the driver refuses is noticed before the library starts, which would be left as it is.
fn the_drivers_refusal_comes_before_the_start(seat: &rank::Seat, library: rank::Library) {
    let joined = seat.join();
    let sim = cuda_mem_sim::Sim::builder().build();
    let context = cuda_mem_core::Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context();
    let context = context.unwrap();
    fake::calls();
    sim.fail_call("cuStreamCreateWithPriority", 1, cuda_mem_sim::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let error = library.start(&context, joined.group.clone(), joined.timeout).unwrap_err();
    assert!(matches!(error, Error::Core(_)), "{error}");
    assert_eq!(sim.struck().len(), 1);
    assert!(!fake::calls().contains(&"init"));
}
