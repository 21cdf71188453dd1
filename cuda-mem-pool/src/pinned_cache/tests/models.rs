//! Every order that threads can run in.

use loom::sync::Arc;
use loom::thread;

use crate::statistics::{CountedCell, PeakCounter};

/// A block that an owner keeps while another thread closes the cache is taken by the one or kept by the other, not lost: this is
/// how thread caches end.
#[test]
fn nothing_is_lost_between_its_owner_and_who_closes_it() {
    loom::model(|| {
        let cell = Arc::new(CountedCell::new(PeakCounter::default().shard(), (Vec::new(), false)));
        let owner = thread::spawn({
            let cell = Arc::clone(&cell);
            move || {
                let kept = cell.try_with(|(blocks, closed): &mut (Vec<u32>, bool), _| {
                    if !*closed {
                        blocks.push(7);
                    }
                    !*closed
                });
                u32::from(kept != Some(true))
            }
        });
        let taken = cell.with(|(blocks, closed), _| {
            *closed = true;
            std::mem::take(blocks)
        });
        assert_eq!(taken.len() as u32 + owner.join().unwrap(), 1);
    });
}
