//! The ranks as processes: how they are started, asked and heard.

use std::error::Error;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cuda_mem_ipc::transport::{Connection, FIRST_KIND, PeerPolicy, Pending, pair};

use crate::board::{self, Board};
use crate::cases;
use crate::rank::Rank;

pub(crate) const RANKS: usize = 2;

/// How long anybody waits for another. Far longer than any needs.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// How long a rank waits to be asked: other programs have their turn.
const IDLE: Duration = Duration::from_secs(24 * 3600);

/// What a rank is sent, and what it answers: numbers, or why it failed.
const BEGIN: u16 = FIRST_KIND;
const ASK: u16 = FIRST_KIND + 1;
const ANSWER: u16 = FIRST_KIND + 100;
const FAILURE: u16 = FIRST_KIND + 101;

#[derive(Debug)]
pub(crate) struct Crew {
    ranks: Vec<Process>,
    directory: PathBuf,
}

#[derive(Debug)]
struct Process {
    connection: Connection,
    child: Child,
}

impl Crew {
    /// Ranks that have their contexts, and have not come together.
    pub(crate) fn start() -> Result<Self, Box<dyn Error>> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (pid, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(format!("cuda-mem-rendezvous-{pid}-{number}"));
        let board = Board::create()?;
        let mut crew = Self { ranks: Vec::new(), directory };
        for rank in 0..RANKS {
            let process = Process::start(rank, &crew.directory)?;
            process.connection.send(BEGIN, &[], &[board.descriptor()], LIMIT)?;
            crew.ranks.push(process);
        }
        crew.hear()?;
        Ok(crew)
    }

    /// Has all ranks play a case; what the first has found.
    pub(crate) fn ask(&self, case: &str, numbers: &[f64]) -> Result<Vec<f64>, Box<dyn Error>> {
        let asked = numbers.iter().fold(case.to_owned(), |line, number| format!("{line} {number}"));
        for process in &self.ranks {
            process.connection.send(ASK, asked.as_bytes(), &[], LIMIT)?;
        }
        self.hear()
    }

    fn hear(&self) -> Result<Vec<f64>, Box<dyn Error>> {
        // One may be waiting for another itself.
        let heard = self.ranks.iter().map(|process| process.connection.recv(2 * LIMIT));
        let heard = heard.collect::<Result<Vec<_>, _>>()?;
        let failures = heard.iter().filter(|answer| answer.kind != ANSWER);
        let failures = failures.map(|answer| String::from_utf8_lossy(&answer.payload).into_owned());
        // Who waits for a rank that failed fails too, and does not know why.
        if let Some(why) = failures.min_by_key(|why| why == board::OTHER_FAILED) {
            return Err(why.into());
        }
        let first = heard.first().map_or(&[][..], |answer| &answer.payload);
        Ok(first.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect())
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        // Idle between two cases, and nothing of them is needed any more.
        for process in &mut self.ranks {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Process {
    fn start(rank: usize, directory: &Path) -> Result<Self, Box<dyn Error>> {
        let (here, there) = pair()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(crate::RANK).arg(rank.to_string()).arg(directory);
        // The other end is its standard input.
        let child = command.env_remove("CUDA_MEM_RECORD").stdin(there).stdout(Stdio::null()).spawn()?;
        // With it goes the parent's copy of the end.
        drop(command);
        let connection = here.complete(&PeerPolicy::default(), LIMIT)?;
        Ok(Self { connection, child })
    }
}

/// A rank's life, to its end.
pub(crate) fn be_rank(number: usize, directory: &Path) -> Result<(), Box<dyn Error>> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let asker = Pending::inherited(socket)?.complete(&PeerPolicy::default(), LIMIT)?;
    let [descriptor] =
        <[OwnedFd; 1]>::try_from(asker.recv(LIMIT)?.descriptors.into_vec()).map_err(|_| "no board came")?;
    let board = Board::open(descriptor, number)?;
    let refuse = |error: &dyn Error| {
        board.fail()?;
        Ok::<_, Box<dyn Error>>(asker.send(FAILURE, error.to_string().as_bytes(), &[], LIMIT)?)
    };
    let mut rank = match Rank::new(number, directory) {
        Ok(rank) => rank,
        Err(error) => return refuse(&*error),
    };
    asker.send(ANSWER, &[], &[], LIMIT)?;
    loop {
        let message = match asker.recv(IDLE) {
            Err(error) if error.is_gone() => return Ok(()),
            message => message?,
        };
        match cases::play(&mut rank, &board, str::from_utf8(&message.payload)?) {
            Ok(found) => {
                let bytes = found.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
                asker.send(ANSWER, &bytes, &[], LIMIT)?;
            }
            Err(error) => refuse(&*error)?,
        }
    }
}
