//! NVSHMEM and NCCL as backends of symmetric memory.
//!
//! The bodies in `bodies` run on both, on two ranks, each a process: on a GPU over the machine's library, on the simulator over a stand-in
//! (`fake`) whose collective calls wait for all ranks as the real ones do.
#![cfg(any(feature = "nccl", feature = "nvshmem"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../../../cuda-mem-core/tests/common/mod.rs"]
mod common;

mod bodies;
#[path = "../symmetric/crew.rs"]
mod crew;
#[allow(dead_code, reason = "each test program uses its part")]
mod fake;
#[cfg(feature = "nccl")]
mod nccl;
#[cfg(feature = "nvshmem")]
mod nvshmem;
#[allow(dead_code, reason = "as above")]
mod rank;

/// The test around it, of two ranks, each a process, that do the same: a body of [`bodies`].
macro_rules! alike {
    ($library:expr, $body:ident) => {{
        use $crate::common::pair;
        use $crate::rank::{Crew, Rank, Seat};

        let other: pair::Body = |first| $crate::bodies::$body(Rank::of(&Seat::of(first), $library));
        pair::play(pair::test_name!(), &[("rank", other)], |cast| {
            let crew = Crew::start(cast, 2);
            $crate::bodies::$body(Rank::of(&crew.seat, $library));
            crew.finish();
        });
    }};
}
use alike;
