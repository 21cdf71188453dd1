//! NVSHMEM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cuda_mem_ipc::symmetric::{Error, Exchange, Group, Result, SymmetricBackend, Why};

use crate::common::child;
use crate::common::pair::{self, test_name};
use crate::fake::{self, nvshmem as stand_in};
use crate::rank::{Crew, Joined, LONG, Library, Rank, Seat};

/// Long enough to be no accident, short enough to wait for.
const SOON: Duration = Duration::from_millis(200);
const OLD: Library = Library::Nvshmem { minor: 4 };
const NEW: Library = Library::Nvshmem { minor: 8 };

/// Each library has its layout of the attributes, which the stand-in looks at.
#[test]
fn attributes_have_the_layout_of_the_librarys_version() {
    fn body(seat: &Seat) {
        let joined = seat.join();
        fake::calls();
        let backend = joined.start(NEW).unwrap();
        let rank = Rank::new(joined, backend);
        drop(rank.memory(100));
        rank.backend.close().unwrap();
        let expected = ["unique id", "init", "malloc", "free", "finalize"];
        assert_eq!(fake::calls(), expected[rank.number()..]);
        assert!(!stand_in::is_initialised());
    }
    on_two_ranks!(body);
}

/// What somebody else has initialised is used and left alone.
#[test]
fn an_instance_that_is_there_is_used_and_not_finalised() {
    fn body(seat: &Seat) {
        let joined = seat.join();
        // What no other run of this test on the machine has.
        let told = joined.group.all_gather(&std::process::id().to_le_bytes(), LONG).unwrap();
        let id = std::array::from_fn(|index| told[0].get(index).copied().unwrap_or(7));
        stand_in::initialise(id, seat.rank, seat.ranks);
        fake::calls();
        let backend = joined.start(OLD).unwrap();
        let rank = Rank::new(joined, backend);
        let memory = rank.memory(100);
        rank.meet(&*memory);
        drop(memory);
        rank.backend.close().unwrap();
        assert_eq!(fake::calls(), ["malloc", "free"]);
        // By whoever has initialised it.
        stand_in::leave();
    }
    on_two_ranks!(body);
}

/// With other ranks, it is refused.
#[test]
fn an_instance_with_other_ranks_is_refused() {
    pair::play(test_name!(), &[], |cast| {
        let crew = Crew::start(cast, 1);
        let joined = crew.seat.join();
        stand_in::pretend(1, 4);
        let error = joined.start(OLD).unwrap_err();
        let found =
            matches!(error, Error::OtherInstance { found: 1, found_size: 4, rank: 0, world_size: 1, .. });
        assert!(found, "{error}");
        stand_in::reset();
        // The claim was given back with the failure.
        let backend = joined.start(OLD).unwrap();
        let error = joined.start(OLD).unwrap_err();
        assert!(matches!(error, Error::EngineInUse { backend: "NVSHMEM" }), "{error}");
        backend.close().unwrap();
        joined.start(OLD).unwrap().close().unwrap();
        crew.finish();
    });
}

/// A group that does not wait for long, once it is told so.
#[derive(Debug)]
struct Hasty {
    group: Arc<Group>,
    is_hasty: AtomicBool,
}

// SAFETY: as the group that it wraps, but that one rank is early, which the stand-in library notices.
unsafe impl Exchange for Hasty {
    fn name(&self) -> &str {
        self.group.name()
    }

    fn rank(&self) -> usize {
        self.group.rank()
    }

    fn world_size(&self) -> usize {
        self.group.world_size()
    }

    fn all_gather(&self, bytes: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        let is_hasty = self.is_hasty.load(Ordering::SeqCst);
        self.group.all_gather(bytes, if is_hasty { SOON } else { timeout })
    }

    fn check(&self) -> Result<()> {
        self.group.check()
    }
}

fn start(seat: &Seat, library: Library) -> (Result<()>, Joined) {
    let joined = seat.join();
    fake::calls();
    (joined.start(library).map(drop), joined)
}

fn disagrees(started: Result<()>, ours: &str, theirs: &str) {
    let error = started.unwrap_err();
    let Error::Disagrees { ours: told, theirs: told_theirs, .. } = &error else { panic!("{error}") };
    assert_eq!((told.as_str(), told_theirs.as_str()), (ours, theirs));
    assert!(!fake::calls().contains(&"init"));
}

/// Nobody initialises anything then.
#[test]
fn ranks_with_other_versions_or_states_are_told_apart() {
    const TOLD: [&str; 3] =
        ["NVSHMEM 3.4.5, not initialised", "NVSHMEM 3.8.5, not initialised", "NVSHMEM 3.4.5, initialised"];
    fn other(seat: &Seat) {
        let (started, joined) = start(seat, NEW);
        disagrees(started, TOLD[1], TOLD[0]);
        stand_in::pretend(1, 2);
        disagrees(joined.start(OLD).map(drop), TOLD[2], TOLD[0]);
    }
    pair::play(test_name!(), &[("rank", |first| other(&Seat::of(first)))], |cast| {
        let crew = Crew::start(cast, 2);
        let (started, joined) = start(&crew.seat, OLD);
        disagrees(started, TOLD[0], TOLD[1]);
        disagrees(joined.start(OLD).map(drop), TOLD[0], TOLD[2]);
        crew.finish();
    });
}

/// The library is not entered alone, which would never return.
#[test]
fn a_rank_that_does_not_come_is_named_and_nothing_is_called() {
    pair::play(
        test_name!(),
        &[("rank", |first| {
            let rank = Rank::of(&Seat::of(first), OLD);
            first.send(b"started", &[]);
            // Until the other has given up.
            while rank.joined.group.check().is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
            fake::calls();
            let error = rank.alloc(100).unwrap_err();
            assert!(matches!(error, Error::Broken { rank: 1, why: Why::TimedOut, .. }), "{error}");
            assert!(fake::calls().is_empty());
        })],
        |cast| {
            let crew = Crew::start(cast, 2);
            let joined = crew.seat.join();
            let hasty = Arc::new(Hasty { group: joined.group.clone(), is_hasty: AtomicBool::new(false) });
            let backend = OLD.start(&joined.context, hasty.clone(), joined.timeout).unwrap();
            assert_eq!(crew.others[0].receive().bytes, b"started");
            hasty.is_hasty.store(true, Ordering::SeqCst);
            let rank = Rank::new(joined, backend);
            fake::calls();
            for _ in 0..2 {
                let error = rank.alloc(100).unwrap_err();
                assert!(matches!(error, Error::Broken { rank: 1, why: Why::TimedOut, .. }), "{error}");
            }
            assert!(fake::calls().is_empty());
            stand_in::reset();
            crew.finish();
        },
    );
}

#[test]
fn a_rank_that_is_killed_is_named_and_nothing_is_called() {
    pair::play(
        test_name!(),
        &[("rank", |first| {
            let rank = Rank::of(&Seat::of(first), OLD);
            let _memory = rank.memory(100);
            first.send(b"ready", &[]);
            loop {
                std::thread::park();
            }
        })],
        |cast| {
            let mut crew = Crew::start(cast, 2);
            let rank = Rank::of(&crew.seat, OLD);
            let memory = rank.memory(100);
            assert_eq!(crew.others[0].receive().bytes, b"ready");
            crew.others[0].kill();
            fake::calls();
            let died = |error: Error| {
                assert!(matches!(error, Error::Broken { rank: 1, why: Why::Died, .. }), "{error}");
            };
            died(rank.alloc(100).unwrap_err());
            died(memory.check().unwrap_err());
            died(memory.barrier(&rank.stream, 0, None).unwrap_err());
            drop(memory);
            died(rank.backend.close().unwrap_err());
            assert!(fake::calls().is_empty());
            stand_in::reset();
            drop(rank);
            crew.others.clear();
            crew.finish();
        },
    );
}

/// All ranks are told, and the numbers of the next allocations fit.
#[test]
fn a_full_heap_is_an_error_and_the_next_allocation_works() {
    fn body(rank: Rank) {
        drop(rank.memory(100));
        stand_in::fill();
        let error = rank.alloc(1 << 20).unwrap_err();
        let told = error.to_string();
        assert!(matches!(error, Error::Engine { call: "nvshmem_malloc", .. }), "{told}");
        assert!(told.contains("NVSHMEM_SYMMETRIC_SIZE"), "{told}");
        let memory = rank.memory(100);
        rank.meet(&*memory);
        drop(memory);
        rank.finish();
    }
    on_two_ranks!(body, OLD);
}

/// Its end takes all ranks, which not all are.
#[test]
fn memory_that_one_rank_does_not_get_ends_the_backend() {
    fn body(seat: &Seat) {
        let rank = Rank::of(seat, OLD);
        if seat.rank == 1 {
            fake::fail_alone("malloc");
        }
        fake::calls();
        let error = rank.alloc(100).unwrap_err();
        let is_own = matches!(error, Error::Engine { call: "nvshmem_malloc", .. });
        assert!(is_own == (seat.rank == 1), "{error}");
        for refused in [rank.alloc(100).map(drop), rank.backend.close()] {
            let error = refused.unwrap_err();
            assert!(matches!(error, Error::Uneven { rank: 1, call: "alloc", .. }), "{error}");
        }
        assert!(rank.backend.has_ended());
        assert_eq!(fake::calls(), ["malloc"]);
        stand_in::reset();
    }
    on_two_ranks!(body);
}

/// An instance that all have is finalised by all, and one that only some have by nobody.
#[test]
fn an_initialisation_that_fails_on_one_rank_fails_on_all() {
    fn body(seat: &Seat) {
        let joined = seat.join();
        let expected = ["unique id", "init", "finalize"];
        for (fault, expected) in [("my_pe", &expected[..]), ("init", &expected[..2])] {
            if seat.rank == 1 {
                fake::fail_alone(fault);
            }
            fake::calls();
            let error = joined.start(OLD).unwrap_err();
            let told = match error {
                Error::OtherInstance { .. } => seat.rank == 1 && fault == "my_pe",
                Error::Engine { .. } => seat.rank == 1 && fault == "init",
                Error::FailedElsewhere { rank: 1, .. } => seat.rank == 0 && fault == "my_pe",
                Error::Uneven { rank: 1, .. } => seat.rank == 0 && fault == "init",
                _ => false,
            };
            assert!(told, "{error}");
            assert_eq!(fake::calls(), expected[seat.rank..]);
        }
        stand_in::reset();
    }
    on_two_ranks!(body);
}

#[test]
fn the_drivers_refusal_comes_before_the_start() {
    pair::play(test_name!(), &[], |cast| {
        let crew = Crew::start(cast, 1);
        crate::the_drivers_refusal_comes_before_the_start(&crew.seat, OLD);
        crew.finish();
    });
}

/// A process without the library is told where it was looked for.
#[test]
fn without_the_library_it_is_not_available() {
    let test = "nvshmem::without_the_library_it_is_not_available";
    if let Some(output) = child::again(test, &[("CUDA_MEM_NVSHMEM", "/nowhere/libnvshmem_host.so.3")]) {
        return child::expect_silent_success(&output);
    }
    let error = cuda_mem_core::sys::nvshmem::Table::system().unwrap_err();
    assert!(error.to_string().contains("/nowhere/libnvshmem_host.so.3"), "{error}");
}

#[test]
fn a_backend_that_was_closed_gives_its_place_to_the_next() {
    fn body(seat: &Seat) {
        crate::a_backend_that_was_closed_gives_its_place_to_the_next(seat, OLD);
    }
    on_two_ranks!(body);
}
