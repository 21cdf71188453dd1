//! The threads.

use std::io;
use std::mem::{self, ManuallyDrop};
use std::thread::{self, JoinHandle};

use super::board::Board;
use super::primitive::Arc;
use crate::driver::fork;

/// Threads that copy parts until the board is closed. They make no driver call.
pub(super) struct Pool<W: Clone + Send + 'static> {
    board: Arc<Board<W>>,
    threads: ManuallyDrop<Vec<JoinHandle<()>>>,
}

impl<W: Clone + Send + 'static> Pool<W> {
    /// Starts `count` threads, each of which calls `work` for every part.
    pub(super) fn start(board: &Arc<Board<W>>, count: usize, work: fn(&Board<W>)) -> io::Result<Self> {
        let mut pool = Self { board: Arc::clone(board), threads: ManuallyDrop::new(Vec::new()) };
        for _ in 0..count {
            let board = Arc::clone(board);
            let name = "cuda-mem-stager".to_owned();
            pool.threads.push(thread::Builder::new().name(name).spawn(move || work(&board))?);
        }
        Ok(pool)
    }

    pub(super) fn len(&self) -> usize {
        self.threads.len()
    }
}

impl<W: Clone + Send + 'static> Drop for Pool<W> {
    fn drop(&mut self) {
        if fork::forked() {
            // The threads stayed with the parent: there is nobody to join.
            return;
        }
        self.board.close();
        // With its memory, which nothing else drops.
        for thread in mem::take(&mut *self.threads) {
            // It ends without a panic: what it calls has none.
            let _ = thread.join();
        }
    }
}
