//! The sequences of `cargo xtask bench alloc` are those that the peers go through in C++.

#[path = "../../benches/participant/device/engines.rs"]
mod engines;
#[path = "../../benches/participant/device/sequence.rs"]
mod sequence;
#[path = "../../benches/participant/device/sizes.rs"]
mod sizes;

use std::cell::Cell;

use cuda_mem_pool::Error;
use engines::{MinStd, Mt19937};

#[test]
fn engines_give_what_the_standard_says_of_their_ten_thousandth_number() {
    let mut twister = Mt19937::new(5489);
    let last = (0..10_000).map(|_| twister.next()).last();
    assert_eq!(last, Some(4_123_659_995));
    let mut minimal = MinStd::new();
    let last = (0..10_000).map(|_| minimal.next()).last();
    assert_eq!(last, Some(1_043_618_065));
}

#[test]
fn random_allocation_peaks_where_it_does_in_cpp() {
    // Allocations, MiB of the largest, and the most MiB and blocks that are live in RMM's own run with libstdc++.
    let known = [
        (1000, 1, 309, 638),
        (1000, 4, 1270, 642),
        (1000, 64, 16_000, 528),
        (1000, 256, 15_999, 150),
        (1000, 1024, 15_999, 44),
        (1000, 4096, 15_998, 15),
        (10_000, 1, 3104, 6204),
        (10_000, 4, 12_445, 6203),
        (10_000, 4096, 15_999, 16),
        (100_000, 1, 16_000, 36_071),
        (100_000, 4096, 16_000, 19),
    ];
    for (allocations, largest, mib, blocks) in known {
        let (mut next, mut freed) = (0, Vec::new());
        let allocate = |_| {
            next += 1;
            Ok(next)
        };
        let peak =
            sequence::run(allocations, largest << 20, allocate, |address| freed.push(address)).unwrap();
        let rounded = (peak.bytes + (1 << 19)) >> 20;
        assert_eq!((rounded, peak.blocks), (mib, blocks), "{allocations} of up to {largest} MiB");
        freed.sort_unstable();
        assert_eq!(freed, (1..=next).collect::<Vec<_>>(), "every block is freed, once");
    }
}

#[test]
fn what_cannot_be_had_is_a_free_instead() {
    let (live, refused) = (Cell::new(0), Cell::new(0));
    let allocate = |bytes: usize| {
        if live.get() == 10 {
            refused.set(refused.get() + 1);
            return Err(Error::OutOfMemory { requested: bytes, used: 0, limit: 0, source: None });
        }
        live.set(live.get() + 1);
        Ok(1)
    };
    let peak = sequence::run(1000, 1 << 20, allocate, |_| live.set(live.get() - 1)).unwrap();
    assert_eq!(peak.blocks, 10);
    assert!(refused.get() > 100, "{refused:?}");
    assert_eq!(live.get(), 0);
}

#[test]
fn sizes_are_spread_over_their_pattern() {
    assert!(sizes::of_thread(3, 0).iter().all(|bytes| *bytes == 512));
    for (pattern, largest) in [(1, 512 << 10), (2, 32 << 20)] {
        let sizes = sizes::of_thread(0, pattern);
        assert_eq!(sizes.len(), sizes::SIZES);
        assert!(sizes.iter().all(|bytes| (512..largest).contains(bytes)));
        let middle = sizes.iter().filter(|bytes| bytes.pow(2) < 512 * largest).count();
        assert!((450..574).contains(&middle), "half of them below the geometric mean: {middle}");
        assert_ne!(sizes, sizes::of_thread(1, pattern));
    }
    // The first sizes of the first thread, as g++ makes them.
    assert_eq!(sizes::of_thread(0, 2)[..3], [225_226, 367_023, 1_425_493]);
}
