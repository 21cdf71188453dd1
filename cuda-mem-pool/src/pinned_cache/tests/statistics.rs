//! What resets leave of the figures.

use std::time::Duration;

use crate::pinned_cache::statistics::Figures;

/// As PyTorch's: peaks are the longest and the shortest, sums the others.
#[test]
fn times_are_reset_in_two_parts() {
    let figures = Figures::new();
    assert!(figures.claim(30, None));
    let read = || {
        let found = figures.read();
        [found.host_alloc_time, found.host_free_time].map(|time| (time.total, time.max, time.min, time.count))
    };
    let (short, long) = (Duration::from_micros(2), Duration::from_micros(7));
    for took in [short, long] {
        figures.pinned(10, took);
        figures.unpinned(10, took);
    }
    assert_eq!(read(), [(9, 7, 2, 2); 2]);
    figures.reset_accumulated();
    assert_eq!(read(), [(0, 7, 2, 0); 2]);
    figures.pinned(10, long);
    assert_eq!(read()[0], (7, 7, 2, 1), "the shortest is one from before");
    figures.reset_peak();
    assert_eq!(read()[0], (7, 0, 0, 1));
    figures.unpinned(10, long);
    assert_eq!(read()[1], (7, 7, 7, 1), "they start anew");
}
