//! What each rank says to all others.

use cuda_mem_ipc::symmetric::{Error, Exchange, Why};

use crate::common::pair::{self, test_name};
use crate::rank::{Crew, LONG, Rank, SOON, Seat};

/// What a rank says, different each time.
fn said(rank: usize, round: usize) -> Vec<u8> {
    vec![(16 * rank + round) as u8; 1 + 1000 * (round % 3)]
}

#[test]
fn each_rank_hears_what_all_say_in_their_order() {
    fn body(rank: Rank) {
        // One that is too long goes to nobody.
        let error = rank.group.all_gather(&vec![0; 20_000], LONG).unwrap_err();
        assert!(matches!(error, Error::Transport { .. }), "{error}");
        for round in 0..50 {
            let heard = rank.group.all_gather(&said(rank.number(), round), LONG).unwrap();
            let expected = (0..rank.ranks()).map(|rank| said(rank, round)).collect::<Vec<_>>();
            assert_eq!(heard, expected, "round {round}");
        }
        rank.finish();
    }
    on_ranks!(3, |seat| body(seat.join()));
}

/// Who heard everybody must not go on alone.
#[test]
fn a_rank_that_says_nothing_breaks_the_group_for_all() {
    pair::play(
        test_name!(),
        &[("rank", |first| {
            let rank = Seat::of(first).join();
            first.receive();
            let error = rank.group.all_gather(b"late", LONG).unwrap_err();
            assert!(matches!(error, Error::Broken { rank: 1, why: Why::TimedOut, .. }), "{error}");
        })],
        |cast| {
            let crew = Crew::start(cast, 2);
            let rank = crew.seat.join();
            let error = rank.group.all_gather(b"early", SOON).unwrap_err();
            assert!(matches!(error, Error::Broken { rank: 1, why: Why::TimedOut, .. }), "{error}");
            crew.others[0].send(b"now", &[]);
            crew.finish();
        },
    );
}

#[test]
fn a_rank_that_is_killed_or_leaves_is_named_at_once() {
    pair::play(
        test_name!(),
        &[("rank", |first| {
            let rank = Seat::of(first).join();
            if rank.number() == 1 {
                drop(rank);
            }
            first.send(b"ready", &[]);
            loop {
                std::thread::park();
            }
        })],
        |cast| {
            let mut crew = Crew::start(cast, 3);
            let rank = crew.seat.join();
            crew.others.iter().for_each(|other| drop(other.receive()));
            let error = rank.group.all_gather(b"hello", LONG).unwrap_err();
            assert!(matches!(error, Error::Left { rank: 1 }), "{error}");
            crew.others[1].kill();
            let error = rank.group.all_gather(b"hello", LONG).unwrap_err();
            assert!(
                matches!(error, Error::Broken { rank: 2, why: Why::Died, .. } | Error::Left { rank: 1 }),
                "{error}"
            );
            crew.others.clear();
            crew.finish();
        },
    );
}
