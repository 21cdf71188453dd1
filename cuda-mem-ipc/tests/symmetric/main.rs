//! Symmetric memory, on any driver: the same tests run on the simulator and on a GPU.
//!
//! Ranks are processes: each test starts its own program again as the others. Rank `r` has device `r`, or again those before if there
//! are fewer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../../../cuda-mem-core/tests/common/mod.rs"]
mod common;

/// The test around it, of so many ranks, each a process, that do the same.
macro_rules! on_ranks {
    ($ranks:literal, |$seat:ident| $body:expr) => {{
        use $crate::common::pair;

        let other: pair::Body = |first| {
            let $seat = &$crate::rank::Seat::of(first);
            $body
        };
        pair::play(pair::test_name!(), &[("rank", other)], |cast| {
            let crew = $crate::rank::Crew::start(cast, $ranks);
            {
                let $seat = &crew.seat;
                $body
            }
            crew.finish();
        });
    }};
}

mod asleep;
mod buffers;
mod calls;
mod crew;
mod death;
mod exchange;
mod joining;
mod leaving;
mod order;
#[path = "../sim/own_sim.rs"]
mod own_sim;
mod rank;
mod signals;
mod under_way;
