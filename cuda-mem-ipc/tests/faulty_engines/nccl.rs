//! NCCL.

use cuda_mem_core::sys::nccl::{MissingFunction, Version};
use cuda_mem_ipc::symmetric::{Error, SymmetricBackend};

use crate::common::child;
use crate::common::pair::{self, test_name};
use crate::fake;
use crate::rank::{Crew, Library, Rank, Seat};

const OLD: Library = Library::Nccl { code: 22_809 };
const NEW: Library = Library::Nccl { code: 22_907 };

/// A library that does not tell addresses allocates, and says what a rendezvous takes.
#[test]
fn a_rendezvous_takes_a_library_that_tells_addresses() {
    fn body(mut rank: Rank) {
        let _turn = rank.take_turn();
        let address = rank.alloc(100).unwrap();
        let error = rank.backend.rendezvous(address, None).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("needs NCCL 2.29.0, this is 2.28.9"), "{text}");
        let Error::NotAvailable { backend: "NCCL", source } = error else { panic!("{text}") };
        let missing = source.downcast_ref::<MissingFunction>().unwrap();
        assert_eq!((missing.needed, missing.found), (Version::new(2, 29, 0), Version::new(2, 28, 9)));
        rank.free(address).unwrap();
        fake::calls();
        rank.finish();
        // It was never registered.
        assert_eq!(fake::calls(), ["free", "finalize", "destroy"]);
    }
    on_two_ranks!(body, OLD);
}

#[test]
fn ranks_with_other_versions_are_told_apart() {
    fn body(seat: &Seat, library: Library, ours: &str, theirs: &str) {
        let joined = seat.join();
        fake::calls();
        let error = joined.start(library).unwrap_err();
        let Error::Disagrees { ours: told, theirs: told_theirs, .. } = &error else { panic!("{error}") };
        assert_eq!((told.as_str(), told_theirs.as_str()), (ours, theirs));
        assert!(!fake::calls().contains(&"init"));
    }
    let other: pair::Body = |first| body(&Seat::of(first), NEW, "NCCL 2.29.7", "NCCL 2.28.9");
    pair::play(test_name!(), &[("rank", other)], |cast| {
        let crew = Crew::start(cast, 2);
        body(&crew.seat, OLD, "NCCL 2.28.9", "NCCL 2.29.7");
        crew.finish();
    });
}

/// What is given back goes in the library's order, and a backend that is dropped without its end makes no collective call.
#[test]
fn windows_end_before_their_memory_and_nothing_is_collective_in_a_drop() {
    fn body(mut rank: Rank) {
        let _turn = rank.take_turn();
        fake::calls();
        drop(rank.memory(100));
        let memory = rank.memory(200);
        rank.meet(&*memory);
        let once = ["allocate", "register"];
        assert_eq!(fake::calls(), [&once[..], &["deregister", "free"], &once].concat());
        // The other rank is not asked.
        drop(rank);
        assert!(fake::calls().is_empty(), "the memory is in use");
        drop(memory);
        assert_eq!(fake::calls(), ["abort"]);
    }
    on_two_ranks!(body, NEW);
}

/// Rank 1 has the library's error, and rank 0 hears of it.
fn expect_fault(error: &Error, rank: usize, call: &str) {
    let told = match error {
        Error::Engine { call: failed, .. } => rank == 1 && *failed == call,
        Error::FailedElsewhere { rank: 1, .. } => rank == 0,
        _ => false,
    };
    assert!(told, "{error}");
}

#[test]
fn a_communicator_that_fails_on_one_rank_is_ended_on_all() {
    fn body(seat: &Seat) {
        let joined = seat.join();
        if seat.rank == 1 {
            fake::fail_alone("init");
        }
        fake::calls();
        expect_fault(&joined.start(NEW).unwrap_err(), seat.rank, "ncclCommInitRank");
        let expected = ["unique id", "init", "abort"];
        assert_eq!(fake::calls(), if seat.rank == 0 { &expected[..] } else { &expected[1..2] });
        let backend = joined.start(NEW).unwrap();
        let rank = Rank::new(joined, backend);
        rank.meet(&*rank.memory(100));
        rank.finish();
    }
    on_two_ranks!(body);
}

#[test]
fn a_rendezvous_that_fails_on_one_rank_is_undone_on_all() {
    fn body(seat: &Seat) {
        let rank = Rank::of(seat, NEW);
        let address = rank.alloc(100).unwrap();
        if seat.rank == 1 {
            fake::fail_alone("there");
        }
        fake::calls();
        let error = rank.backend.rendezvous(address, None).unwrap_err();
        expect_fault(&error, seat.rank, "ncclGetPeerDevicePointer");
        assert_eq!(fake::calls(), ["register", "deregister"]);
        let memory = rank.backend.rendezvous(address, None).unwrap();
        rank.meet(&*memory);
        drop(memory);
        rank.free(address).unwrap();
        rank.finish();
    }
    on_two_ranks!(body);
}

/// The memory is each rank's own: those that have it give it back.
#[test]
fn memory_that_one_rank_does_not_get_is_given_back_by_the_others() {
    fn body(seat: &Seat) {
        let rank = Rank::of(seat, NEW);
        if seat.rank == 1 {
            fake::fail_alone("allocate");
        }
        fake::calls();
        expect_fault(&rank.alloc(100).unwrap_err(), seat.rank, "ncclMemAlloc");
        rank.meet(&*rank.memory(100));
        let expected = ["allocate", "free", "allocate", "register"];
        let expected = expected.into_iter().filter(|call| seat.rank == 0 || *call != "free");
        assert_eq!(fake::calls(), expected.collect::<Vec<_>>());
        rank.finish();
    }
    on_two_ranks!(body);
}

/// Not all can deregister it, and nobody makes a call alone.
#[test]
fn a_window_that_one_rank_does_not_get_ends_the_backend() {
    fn body(seat: &Seat) {
        let mut rank = Rank::of(seat, NEW);
        let _turn = rank.take_turn();
        let address = rank.alloc(100).unwrap();
        if seat.rank == 1 {
            fake::fail_alone("register");
        }
        fake::calls();
        let error = rank.backend.rendezvous(address, None).unwrap_err();
        let is_own = matches!(error, Error::Engine { call: "ncclCommWindowRegister", .. });
        assert!(is_own == (seat.rank == 1), "{error}");
        rank.free(address).unwrap();
        for refused in [rank.alloc(100).map(drop), rank.backend.close()] {
            let error = refused.unwrap_err();
            assert!(matches!(error, Error::Uneven { rank: 1, call: "rendezvous", .. }), "{error}");
        }
        assert!(rank.backend.has_ended());
        drop(rank);
        assert_eq!(fake::calls(), ["register", "abort"]);
    }
    on_two_ranks!(body);
}

/// A sum of the others waits for that one, until its communicator is ended.
fn a_connection_that_one_rank_does_not_get_ends_the_backend(
    seat: &Seat,
    fault: &'static str,
    function: &str,
) {
    let rank = Rank::of(seat, NEW);
    let address = rank.alloc(100).unwrap();
    if seat.rank == 1 {
        fake::fail_alone(fault);
    }
    let error = rank.backend.rendezvous(address, None).unwrap_err();
    let is_own = matches!(&error, Error::Engine { call, .. } if *call == function);
    assert!(is_own == (seat.rank == 1), "{error}");
    for refused in [rank.alloc(100).map(drop), rank.backend.close()] {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::Uneven { rank: 1, call: "connect", .. }), "{error}");
    }
    assert!(rank.backend.has_ended());
}

#[test]
fn a_first_sum_that_fails_on_one_rank_ends_the_backend() {
    fn body(seat: &Seat) {
        a_connection_that_one_rank_does_not_get_ends_the_backend(seat, "sum", "ncclAllReduce");
    }
    on_two_ranks!(body);
}

#[test]
fn a_first_signal_that_fails_on_one_rank_ends_the_backend() {
    fn body(seat: &Seat) {
        a_connection_that_one_rank_does_not_get_ends_the_backend(seat, "signal", "ncclSignal");
    }
    on_two_ranks!(body);
}

/// Behind the library's call, on this rank alone. A call that undoes the rendezvous would be one that the others do not make.
#[test]
fn a_connection_that_a_stream_does_not_come_to_ends_the_backend() {
    pair::play(test_name!(), &[], |cast| {
        let crew = Crew::start(cast, 1);
        let mut rank = Rank::of(&crew.seat, NEW);
        let _turn = rank.take_turn();
        let address = rank.alloc(100).unwrap();
        fake::fail_alone("stream");
        fake::calls();
        for _ in 0..2 {
            let error = rank.backend.rendezvous(address, None).unwrap_err();
            assert!(matches!(error, Error::Core(_)), "{error}");
        }
        assert!(rank.backend.has_ended());
        rank.free(address).unwrap();
        drop(rank);
        assert_eq!(fake::calls(), ["register", "abort"]);
        crew.finish();
    });
}

#[test]
fn the_drivers_refusal_comes_before_the_start() {
    pair::play(test_name!(), &[], |cast| {
        let crew = Crew::start(cast, 1);
        crate::the_drivers_refusal_comes_before_the_start(&crew.seat, NEW);
        crew.finish();
    });
}

/// A process without the library is told where it was looked for.
#[test]
fn without_the_library_it_is_not_available() {
    let test = "nccl::without_the_library_it_is_not_available";
    if let Some(output) = child::again(test, &[("CUDA_MEM_NCCL", "/nowhere/libnccl.so.2")]) {
        return child::expect_silent_success(&output);
    }
    let error = cuda_mem_core::sys::nccl::Table::system().unwrap_err();
    assert!(error.to_string().contains("/nowhere/libnccl.so.2"), "{error}");
}

#[test]
fn a_backend_that_was_closed_gives_its_place_to_the_next() {
    fn body(seat: &Seat) {
        crate::a_backend_that_was_closed_gives_its_place_to_the_next(seat, OLD);
    }
    on_two_ranks!(body);
}
