use std::sync::mpsc;

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

/// Says so when it is dropped, and then waits until it may end.
struct HeldUp {
    began: mpsc::Sender<()>,
    may_end: mpsc::Receiver<()>,
}

impl Drop for HeldUp {
    fn drop(&mut self) {
        self.began.send(()).unwrap();
        let _ = self.may_end.recv_timeout(2 * LIMIT);
    }
}

struct Passed(mpsc::Sender<()>);

impl Resting for Passed {
    fn has_passed(&mut self) -> bool {
        self.0.send(()).is_ok()
    }
}

struct Dropped(mpsc::Sender<()>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.send(()).unwrap();
    }
}

/// As long as no peer is looked after, nobody comes back later.
#[test]
fn what_comes_behind_something_that_waits_is_done() {
    for rests in [true, false] {
        let ((began, begins), (end, may_end)) = (mpsc::channel(), mpsc::channel());
        bury_in_turn(HeldUp { began, may_end });
        begins.recv_timeout(LIMIT).unwrap();
        let (done, is_done) = mpsc::channel();
        if rests {
            rest(Passed(done));
        } else {
            bury_in_turn(Dropped(done));
        }
        is_done.recv_timeout(LIMIT).unwrap();
        end.send(()).unwrap();
    }
}

/// Both have come before the first began.
#[test]
fn what_was_there_when_something_began_to_wait_is_done() {
    let ((began, begins), (done, is_done)) = (mpsc::channel(), mpsc::channel());
    let mut ends = Vec::new();
    for _ in 0..3 {
        let (end, may_end) = mpsc::channel();
        bury_in_turn(HeldUp { began: began.clone(), may_end });
        ends.push(end);
    }
    bury_in_turn(Dropped(done));
    is_done.recv_timeout(LIMIT).unwrap();
    ends.iter().for_each(|_| begins.recv_timeout(LIMIT).unwrap());
    ends.iter().for_each(|end| end.send(()).unwrap());
}
