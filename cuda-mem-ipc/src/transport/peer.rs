//! The process at the other end.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::deadline::{Deadline, wait};
use super::system::{self, Credentials};
use crate::error::{Error, Result};

/// The process at the other end of a connection, as the system names it: what it says itself is only compared.
///
/// It stays valid when the process has ended, and never means another process that got the same number: it holds a pidfd. [`AsFd`] gives that,
/// readable once the process has ended, for a [`Poller`](super::Poller). [`Connection`](super::Connection) has an example.
#[derive(Debug)]
pub struct Peer {
    uid: u32,
    gid: u32,
    pid: u32,
    start_time: u64,
    pidfd: OwnedFd,
}

impl Peer {
    /// Who connected to the socket, or listens, or made the pair.
    pub(super) fn of_socket(socket: BorrowedFd<'_>) -> Result<Self> {
        let credentials =
            system::peer_credentials(socket).map_err(Error::system("getsockopt(SO_PEERCRED)"))?;
        let process = visible(credentials)?;
        match system::peer_pidfd(socket) {
            Ok(pidfd) => Self::new(credentials, process, pidfd),
            Err(Errno::NOPROTOOPT) => Self::of_credentials(credentials),
            // Says so of a process that has ended and was waited for.
            Err(Errno::SRCH | Errno::INVAL) => Err(Error::PeerExited { pid: number(process) }),
            Err(errno) => Err(Error::system("getsockopt(SO_PEERPIDFD)")(errno)),
        }
    }

    /// Who has the number now. That it is who had it when the credentials were taken is for the hello to confirm.
    pub(super) fn of_credentials(credentials: Credentials) -> Result<Self> {
        let process = visible(credentials)?;
        let before = start_time(number(process))?;
        let pidfd = pidfd_open(process, PidfdFlags::empty()).map_err(|errno| match errno {
            Errno::SRCH => Error::PeerExited { pid: number(process) },
            errno => Error::system("pidfd_open")(errno),
        })?;
        let peer = Self::new(credentials, process, pidfd)?;
        if peer.start_time == before { Ok(peer) } else { Err(Error::PeerExited { pid: peer.pid }) }
    }

    fn new(credentials: Credentials, process: Pid, pidfd: OwnedFd) -> Result<Self> {
        let Credentials { uid, gid, .. } = credentials;
        let start_time = start_time(number(process))?;
        let peer = Self { uid, gid, pid: number(process), start_time, pidfd };
        // While it lives nobody else has its number, so the start was its own.
        if peer.is_alive()? { Ok(peer) } else { Err(Error::PeerExited { pid: peer.pid }) }
    }

    /// The effective user that it had when it connected or began to listen; of a child by [`pair`](super::pair), its real user.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The effective group that it had when it connected or began to listen; of a child by [`pair`](super::pair), its real group.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// Its number, in the PID namespace of this process. Another process may have it when this one has ended.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// When it was started, in clock ticks after the system's start: with [`pid`](Self::pid) it names the process for ever.
    #[must_use]
    pub fn start_time(&self) -> u64 {
        self.start_time
    }

    /// Whether it runs, also if it is stopped. A process that has ended and was not waited for by its parent is not alive. The C function is
    /// [`poll`](https://man7.org/linux/man-pages/man2/poll.2.html).
    pub fn is_alive(&self) -> Result<bool> {
        let now = Deadline::after(std::time::Duration::ZERO);
        Ok(!wait(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], now)?)
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

fn visible(credentials: Credentials) -> Result<Pid> {
    Pid::from_raw(credentials.pid).ok_or(Error::PeerUnknown)
}

fn number(process: Pid) -> u32 {
    process.as_raw_nonzero().get().cast_unsigned()
}

/// As [`Peer::start_time`], of whichever process has a number now: field 22 of `/proc/PID/stat`. `start_time(std::process::id())` is one's own.
/// Errors: [`Error::PeerExited`] if none has it, [`Error::System`] of the file.
pub fn start_time(pid: u32) -> Result<u64> {
    let text = fs::read(format!("/proc/{pid}/stat")).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NOENT | Errno::SRCH) => Error::PeerExited { pid },
        _ => Error::System { call: "reading /proc/PID/stat", source: error.into() },
    })?;
    field_22(&text).ok_or_else(|| Error::System {
        call: "reading /proc/PID/stat",
        source: std::io::Error::from(std::io::ErrorKind::InvalidData).into(),
    })
}

/// The name, which is field 2, may have any bytes in it: counted is from its closing parenthesis, the last of all.
fn field_22(text: &[u8]) -> Option<u64> {
    let behind = text.get(text.iter().rposition(|&byte| byte == b')')? + 1..)?;
    str::from_utf8(behind).ok()?.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_found_behind_any_name() {
        let numbers = (3..=52).map(|field| format!(" {field}")).collect::<String>();
        for name in ["cat", "a b", ") 1 2 (", "\u{fffd}"] {
            let text = format!("17 ({name}){numbers}\n");
            assert_eq!(field_22(text.as_bytes()), Some(22), "{text}");
        }
        assert_eq!(field_22(b"17 (\xff\xfe) S 1"), None);
        assert_eq!(field_22(b""), None);
    }

    #[test]
    fn a_peer_that_the_system_does_not_name_is_refused() {
        let unseen = Credentials { pid: 0, uid: 0, gid: 0 };
        assert!(matches!(Peer::of_credentials(unseen), Err(Error::PeerUnknown)));
    }

    #[test]
    fn a_number_that_nobody_has_is_a_peer_that_has_exited() {
        let nobody = Credentials { pid: i32::MAX, uid: 0, gid: 0 };
        assert!(matches!(Peer::of_credentials(nobody), Err(Error::PeerExited { pid: 0x7fff_ffff })));
    }

    #[test]
    fn this_process_is_found_by_its_number() {
        let pid = std::process::id().cast_signed();
        let peer = Peer::of_credentials(Credentials { pid, uid: 1, gid: 2 }).unwrap();
        assert_eq!((peer.uid(), peer.gid(), peer.pid()), (1, 2, std::process::id()));
        assert_eq!(peer.start_time(), start_time(std::process::id()).unwrap());
        assert!(peer.is_alive().unwrap());
    }
}
