//! Who is named for a message that was not sent.

use super::*;
use crate::symmetric::native::directory::GONE;

/// It has left because the group is broken.
#[test]
fn a_rank_that_has_left_a_broken_group_is_not_named_for_it() {
    let pair = Pair::new();
    let state = &pair.good.inner.state;
    assert!(matches!(state.left(1), Error::Left { rank: 1 }));
    state.directory.break_by(0, Why::Failed);
    state.directory.leaving(1).unwrap().store(GONE, Ordering::SeqCst);
    let refused = state.unsent(1, &crate::Error::Closed { doing: "sending" });
    assert!(matches!(refused, Error::Broken { rank: 0, why: Why::Failed, .. }), "{refused}");
    let refused = state.left(1);
    assert!(matches!(refused, Error::Broken { rank: 0, why: Why::Failed, .. }), "{refused}");
}
