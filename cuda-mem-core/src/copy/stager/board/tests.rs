//! The hand-over as it is, and every interleaving of it.

use super::*;

/// One at a time, on real threads or none.
#[cfg(not(loom))]
mod plain {
    use super::*;

    #[test]
    fn slots_are_given_out_once_and_in_turn() {
        let board = Board::<()>::new(2);
        let mut turns = [Turn::new(&board), Turn::new(&board), Turn::new(&board)];
        let one = turns[0].take().unwrap();
        let two = turns[0].take().unwrap();
        assert_ne!(one.index(), two.index());
        assert!(turns[1].take().is_none());
        assert!(turns[0].take().is_none());
        drop(one);
        // The second has waited for longer than the first, and the third does not pass either.
        assert!(turns[0].take().is_none());
        assert!(turns[2].take().is_none());
        let three = turns[1].take().unwrap();
        drop(two);
        // Who gives up lets the others pass.
        assert!(turns[2].take().is_none());
        turns[0].leave();
        assert!(turns[2].take().is_some());
        assert_eq!(board.granted(), 4);
        drop(three);
    }

    #[test]
    fn a_load_is_cut_into_parts_that_cover_it() {
        let board = Board::<u8>::new(1);
        let load = Turn::new(&board).take().unwrap().post(7, 10, 4);
        let mut ranges = Vec::new();
        while let Some(part) = load.claim() {
            assert!(!load.is_finished());
            part.copy(|task, range| {
                assert_eq!(*task, 7);
                ranges.push(range);
                Ok(())
            });
        }
        assert_eq!(ranges, [0..4, 4..8, 8..10]);
        assert!(load.is_finished());
        let slot = load.into_slot().unwrap();
        assert!(Turn::new(&board).take().is_none());
        drop(slot);
        assert!(Turn::new(&board).take().is_some());
    }

    #[test]
    fn the_first_failure_ends_a_load_and_the_slot_is_free() {
        let board = Board::<()>::new(1);
        let load = Turn::new(&board).take().unwrap().post((), 10, 2);
        let (one, two) = (load.claim().unwrap(), load.claim().unwrap());
        let failing = |at| move |_: &(), _| Err(Failure { at, source: io::ErrorKind::Other.into() });
        two.copy(failing(3));
        assert!(load.claim().is_none());
        one.copy(failing(1));
        assert_eq!(load.into_slot().map(drop).unwrap_err().at, 1);
        assert!(Turn::new(&board).take().is_some());
    }

    #[test]
    fn threads_go_on_after_a_load_was_withdrawn_and_end_when_the_board_closes() {
        let board = Board::<()>::new(2);
        let thread = thread::spawn({
            let board = Arc::clone(&board);
            move || {
                let mut parts = 0;
                while let Some(part) = board.claim() {
                    part.copy(|(), _| Ok(()));
                    parts += 1;
                }
                parts
            }
        });
        let mut turn = Turn::new(&board);
        drop(turn.take().unwrap().post((), 50, 1));
        let load = turn.take().unwrap().post((), 3, 1);
        while !load.is_finished() {
            thread::yield_now();
        }
        load.into_slot().map(drop).unwrap();
        board.close();
        assert!((3..=53).contains(&thread.join().unwrap()));
    }
}

/// Run with `--cfg loom`.
#[cfg(loom)]
mod models {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::thread;

    /// What stands for the bytes: loom fails if two threads touch one at a time.
    struct Bytes([UnsafeCell<u8>; 2]);

    // SAFETY: loom checks the accesses, which is what it is for.
    #[allow(unsafe_code, reason = "see above")]
    unsafe impl Sync for Bytes {}
    // SAFETY: as above.
    #[allow(unsafe_code, reason = "see above")]
    unsafe impl Send for Bytes {}

    impl Bytes {
        fn new() -> Arc<Self> {
            Arc::new(Self([UnsafeCell::new(0), UnsafeCell::new(0)]))
        }

        #[allow(unsafe_code, reason = "loom checks it")]
        fn add(&self, range: Range<usize>) {
            for byte in &self.0[range] {
                // SAFETY: nobody else has it, or loom says so.
                byte.with_mut(|byte| unsafe { *byte += 1 });
            }
        }

        #[allow(unsafe_code, reason = "loom checks it")]
        fn sum(&self) -> u8 {
            // SAFETY: as in `add`.
            self.0.iter().map(|byte| byte.with(|byte| unsafe { *byte })).sum()
        }
    }

    type Task = Arc<Bytes>;

    fn copy(part: Part<'_, Task>) {
        part.copy(|bytes, range| {
            bytes.add(range);
            Ok(())
        });
    }

    fn worker(board: &Arc<Board<Task>>) -> thread::JoinHandle<()> {
        let board = Arc::clone(board);
        thread::spawn(move || {
            while let Some(part) = board.claim() {
                copy(part);
            }
        })
    }

    #[test]
    fn a_finished_load_is_copied_once_and_is_its_callers_again() {
        loom::model(|| {
            let (board, bytes) = (Board::new(1), Bytes::new());
            let worker = worker(&board);
            let load = Turn::new(&board).take().unwrap().post(Arc::clone(&bytes), 2, 1);
            while let Some(part) = load.claim() {
                copy(part);
            }
            load.wait();
            assert_eq!(bytes.sum(), 2);
            let slot = load.into_slot().unwrap();
            // The next load in the same slot, whose bytes the link has read meanwhile.
            bytes.add(0..2);
            let load = slot.post(Arc::clone(&bytes), 2, 2);
            load.claim().into_iter().for_each(copy);
            load.wait();
            assert_eq!(bytes.sum(), 6);
            drop(load);
            board.close();
            worker.join().unwrap();
        });
    }

    #[test]
    fn after_a_withdrawal_nobody_touches_the_bytes() {
        loom::model(|| {
            let (board, bytes) = (Board::new(1), Bytes::new());
            let worker = worker(&board);
            drop(Turn::new(&board).take().unwrap().post(Arc::clone(&bytes), 2, 1));
            let before = bytes.sum();
            bytes.add(0..2);
            assert_eq!(bytes.sum(), before + 2);
            board.close();
            worker.join().unwrap();
            assert_eq!(bytes.sum(), before + 2);
        });
    }

    #[test]
    fn two_callers_share_a_slot() {
        loom::model(|| {
            let (board, bytes) = (Board::new(1), Bytes::new());
            let caller = |board: Arc<Board<Task>>, bytes: Task| {
                let mut turn = Turn::new(&board);
                let slot = loop {
                    match turn.take() {
                        Some(slot) => break slot,
                        None => thread::yield_now(),
                    }
                };
                let load = slot.post(bytes, 2, 2);
                while let Some(part) = load.claim() {
                    copy(part);
                }
                load.into_slot().map(drop).unwrap();
            };
            let other = thread::spawn({
                let (board, bytes) = (Arc::clone(&board), Arc::clone(&bytes));
                move || caller(board, bytes)
            });
            caller(Arc::clone(&board), Arc::clone(&bytes));
            other.join().unwrap();
            assert_eq!(bytes.sum(), 4);
        });
    }
}
