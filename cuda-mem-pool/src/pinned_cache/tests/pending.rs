//! Queues of points.

use std::cell::RefCell;

use crate::pinned_cache::pending::{Look, StreamQueue};

/// Points are numbers: 0 says nothing, 1 is reached, 2 is not.
fn poll(queue: &StreamQueue<u32, &'static str>, replacement: u32) -> Vec<&'static str> {
    let out = RefCell::new(Vec::new());
    let look = |point: &u32| match point {
        0 => Look::Replaced(replacement),
        1 => Look::Reached,
        _ => Look::NotYet,
    };
    queue.poll(look, |value| out.borrow_mut().push(value));
    out.into_inner()
}

/// A capture that ended may have had the head's point, which says nothing then, however often it is asked. All behind it waited for ever.
#[test]
fn a_point_that_says_nothing_holds_nobody_up() {
    let queue = StreamQueue::new();
    [(0, "lost"), (1, "done"), (0, "lost too")]
        .into_iter()
        .for_each(|(point, value)| queue.push(point, value));
    assert_eq!(poll(&queue, 2), ["done"]);
    assert!(poll(&queue, 1).is_empty(), "their own new points are not reached");
    assert_eq!(queue.take_all().len(), 2);
    queue.push(0, "lost");
    assert_eq!(poll(&queue, 1), ["lost"]);
}

/// A driver that refuses everything is not asked for ever.
#[test]
fn each_point_is_replaced_once_a_poll() {
    let queue = StreamQueue::new();
    queue.push(0, "lost");
    queue.push(0, "lost too");
    assert!(poll(&queue, 0).is_empty());
    assert_eq!(queue.take_all().len(), 2);
}
