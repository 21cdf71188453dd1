//! Blocks that wait.

use crate::pinned_cache::pending::Waiters;

/// One that says nothing is asked again by the next look, and holds up none that was added behind it.
#[test]
fn who_is_done_comes_out_in_order_and_the_others_stay_in_order() {
    let waiters = Waiters::default();
    (0..6).for_each(|value| waiters.push(value));
    assert_eq!(waiters.take(|value| *value % 2 == 1), [1, 3, 5]);
    waiters.push(7);
    assert!(waiters.take(|_| false).is_empty());
    assert_eq!(waiters.take(|value| *value > 2), [4, 7]);
    assert_eq!(waiters.take_all(), [0, 2]);
    assert!(waiters.take(|_| panic!("there is none")).is_empty());
}

#[test]
fn what_comes_while_one_looks_is_behind_what_was_there() {
    let waiters = Waiters::default();
    waiters.push(1);
    let looked = waiters.take(|_| {
        waiters.push(2);
        assert!(waiters.take(|_| true).is_empty(), "one looks at a time");
        false
    });
    assert!(looked.is_empty());
    assert_eq!(waiters.take_all(), [1, 2]);
}
