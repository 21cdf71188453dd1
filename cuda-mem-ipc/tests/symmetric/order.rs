//! Ranks that do not do the same.

use cuda_mem_ipc::symmetric::{Error, GroupOptions};

use crate::common::pair::{self, Channel, test_name};
use crate::rank::{Crew, Rank, SOON, Seat, options};

/// Three allocations, in an order that is each rank's own from the second on.
fn disagree(rank: &Rank) {
    let sizes = if rank.number() == 0 { [1000, 2000, 3000] } else { [1000, 3000, 2000] };
    let buffers = sizes.map(|size| rank.empty(size));
    let first = buffers[0].rendezvous(None).unwrap();
    for (sequence, buffer) in buffers.iter().enumerate().skip(1) {
        let error = buffer.rendezvous(None).unwrap_err();
        let Error::OrderDiffers { rank: named, sequence: said, ours, theirs } = error else {
            panic!("{error}");
        };
        // Whom it looks at first.
        assert_eq!((named, said), (usize::from(rank.number() == 0), sequence as u64));
        if rank.number() < 2 {
            assert_eq!((ours, theirs), (sizes[sequence] as u64, 5000 - sizes[sequence] as u64));
        }
    }
    // It is an error of the allocation, not of the group.
    rank.meet(&*first);
}

#[test]
fn ranks_that_allocate_in_different_order_all_get_an_error() {
    on_ranks!(3, |seat| disagree(&seat.join()));
}

#[test]
fn a_rank_that_does_not_allocate_is_named_and_may_come_later() {
    fn body(first: &Channel) {
        let rank = Seat::of(first).join();
        assert_eq!(first.receive().bytes, b"allocate");
        let memory = rank.memory(1000);
        rank.meet(&*memory);
    }
    pair::play_beside(test_name!(), &[("rank", body)], |cast| {
        let crew = Crew::start(cast, 2);
        let rank = crew.seat.join_with(&GroupOptions { timeout: 20 * SOON, ..options() });
        let buffer = rank.empty(1000);
        let missing = buffer.rendezvous(None).unwrap_err();
        assert!(matches!(&missing, Error::Missing { ranks, .. } if ranks == &[1]), "{missing}");
        crew.others[0].send(b"allocate", &[]);
        let memory = loop {
            match buffer.rendezvous(None) {
                Err(Error::Missing { .. }) => {}
                found => break found.unwrap(),
            }
        };
        rank.meet(&*memory);
        crew.finish();
    });
}
