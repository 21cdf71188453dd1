//! The process at the other end: this test program again, in the same test.

use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_ipc::transport::{Connection, Peer, PeerPolicy, Pending, Poller, pair};
use rustix::process::{Pid, Signal};

/// How long anything may take that has to happen. Far longer than it needs.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// How long is waited for what must not happen.
pub(crate) const SHORT: Duration = Duration::from_millis(50);

const MARK: &str = "CUDA_MEM_TEST_OTHER";

/// In the other process: its end, from which the test goes on there.
pub(crate) fn inherited() -> Option<Pending> {
    std::env::var_os(MARK)?;
    let end = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    Some(Pending::inherited(end).unwrap())
}

/// As `inherited`, connected.
pub(crate) fn connected() -> Option<Connection> {
    Some(inherited()?.complete(&PeerPolicy::default(), LIMIT).unwrap())
}

/// A connection with both ends in this process.
pub(crate) fn both_ends() -> (Connection, Connection) {
    let (here, there) = pair().unwrap();
    let other = thread::spawn(|| Pending::inherited(there).unwrap().complete(&PeerPolicy::default(), LIMIT));
    (here.complete(&PeerPolicy::default(), LIMIT).unwrap(), other.join().unwrap().unwrap())
}

/// Returns once a peer has ended.
pub(crate) fn wait_for_exit(peer: &Peer) {
    let mut poller = Poller::new();
    poller.readable((), peer);
    assert_eq!(poller.wait(LIMIT).unwrap(), [()]);
}

/// The other process, killed when it is dropped.
pub(crate) struct Other(Child);

impl Other {
    /// Starts the test `name` again, and leaves the connection to be made.
    pub(crate) fn pending(name: &str) -> (Self, Pending) {
        let (here, there) = pair().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--nocapture", "--quiet", "--test-threads=1"]).env(MARK, "1");
        let child = command.stdin(Stdio::from(there)).stdout(Stdio::null()).spawn().unwrap();
        (Self(child), here)
    }

    pub(crate) fn start(name: &str) -> (Self, Connection) {
        let (other, pending) = Self::pending(name);
        let id = other.0.id();
        let policy = PeerPolicy::default().with_predicate(move |peer| peer.pid() == id);
        let connection = pending.complete(&policy, LIMIT).unwrap();
        (other, connection)
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    /// It has to end well.
    pub(crate) fn finish(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Waits until something is so. Fails only when it has not been for far longer than it needs.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// How many descriptors this process has open.
pub(crate) fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// What peers sent is closed in the background. Too many may be open to look at them.
pub(crate) fn expect_open(count: usize) {
    let found = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let start = Instant::now();
    while found() != count && start.elapsed() < LIMIT {
        thread::yield_now();
    }
    assert_eq!(found(), count);
}
