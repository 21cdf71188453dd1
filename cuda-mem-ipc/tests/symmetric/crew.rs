//! The ranks of a test, each a process.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::pair::{Cast, Channel, Peer};

/// What a process needs to be a rank.
#[derive(Debug, Clone)]
pub(crate) struct Seat {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) directory: PathBuf,
}

impl Seat {
    /// In a process that was started.
    pub(crate) fn of(first: &Channel) -> Self {
        let text = String::from_utf8(first.receive().bytes).unwrap();
        let mut parts = text.splitn(3, ' ');
        let mut number = || parts.next().unwrap().parse().unwrap();
        let (rank, ranks) = (number(), number());
        Self { rank, ranks, directory: parts.next().unwrap().into() }
    }

    fn tell(&self, peer: &Peer) {
        peer.send(format!("{} {} {}", self.rank, self.ranks, self.directory.display()).as_bytes(), &[]);
    }
}

/// The processes of a test.
pub(crate) struct Crew {
    pub(crate) seat: Seat,
    pub(crate) others: Vec<Peer>,
}

impl Crew {
    /// Starts the ranks from 1 on, in the role "rank". The calling process is rank 0.
    pub(crate) fn start(cast: Cast, ranks: usize) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (pid, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(format!("cuda-mem-ranks-{pid}-{number}"));
        let seat = Seat { rank: 0, ranks, directory };
        let start = |rank| {
            let peer = cast.start("rank");
            Seat { rank, ..seat.clone() }.tell(&peer);
            peer
        };
        Self { others: (1..ranks).map(start).collect(), seat }
    }

    pub(crate) fn finish(mut self) {
        std::mem::take(&mut self.others).into_iter().for_each(Peer::finish);
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.others.clear();
        let _ = std::fs::remove_dir_all(&self.seat.directory);
    }
}
