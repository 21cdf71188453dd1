//! Where a listener is found.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt};

use super::channel::Socket;
use super::deadline::Deadline;
use super::peer::Peer;
use crate::error::{Error, Result, shared};

/// The longest name of a socket, in bytes.
pub const MAX_NAME: usize = 64;

/// The address of a [`Listener`](super::Listener): a name in a directory, or an abstract name.
///
/// ```
/// use cuda_mem_ipc::transport::Address;
///
/// let address = Address::in_directory("/run/user/1000/training", "rank-0")?;
/// assert_eq!(address.to_string(), "/run/user/1000/training/rank-0");
/// assert_eq!(Address::abstract_name("training-7f3a")?.to_string(), "@training-7f3a");
/// assert!(Address::in_directory("/run", "../etc").is_err());
/// # Ok::<(), cuda_mem_ipc::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    directory: Option<PathBuf>,
    name: String,
}

impl Address {
    /// A socket file of this name in a directory that only its owner enters. The path may have any length; a name may be
    /// [invalid](Error::InvalidName), here and below.
    pub fn in_directory(directory: impl AsRef<Path>, name: &str) -> Result<Self> {
        // Without a slash at its end, which would lead through a symbolic link.
        let directory = directory.as_ref().components().collect();
        Ok(Self { directory: Some(directory), name: valid(name)? })
    }

    /// A socket file of this name in a directory of the effective user's own: `/run/user/UID/cuda-mem`, or `/tmp/cuda-mem-UID` where the system
    /// has no such place. No environment variable is asked.
    pub fn of_user(name: &str) -> Result<Self> {
        let user = rustix::process::geteuid().as_raw();
        let place = Path::new("/run/user").join(user.to_string());
        let directory =
            if place.is_dir() { place.join("cuda-mem") } else { format!("/tmp/cuda-mem-{user}").into() };
        Self::in_directory(directory, name)
    }

    /// A name without a file. Every process of the network namespace may connect to it, and may have taken it first: the policies of both
    /// sides alone keep others out, and the default policy is refused there ([`Error::ImplicitPolicy`]).
    pub fn abstract_name(name: &str) -> Result<Self> {
        Ok(Self { directory: None, name: valid(name)? })
    }

    /// The directory; `None` for an abstract name.
    #[must_use]
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether every process of the network namespace may connect to it.
    pub(super) fn is_public(&self) -> bool {
        self.directory.is_none()
    }

    /// For the system, which takes about a hundred bytes of path: through the open directory, which also cannot be exchanged.
    pub(super) fn of_system(&self, directory: Option<BorrowedFd<'_>>) -> Result<SocketAddrUnix> {
        match directory {
            Some(directory) => {
                SocketAddrUnix::new(format!("/proc/self/fd/{}/{}", directory.as_raw_fd(), self.name))
            }
            None => SocketAddrUnix::new_abstract_name(self.name.as_bytes()),
        }
        .map_err(Error::system("naming a socket"))
    }

    /// A connected socket. Who is there is checked behind it, so the directory is not.
    pub(super) fn connect(&self, deadline: Deadline) -> Result<Socket> {
        let not_listening = |errno| Error::NotListening { address: self.to_string(), source: shared(errno) };
        let open = |path: &PathBuf| {
            openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        };
        let directory = self.directory.as_ref().map(open).transpose().map_err(not_listening)?;
        let address = self.of_system(directory.as_ref().map(AsFd::as_fd))?;
        let socket = Socket::guarded(new_socket()?);
        loop {
            // The system's own clock, for a listener whose queue is full: there is nothing to poll for then.
            let left = deadline.remaining().max(std::time::Duration::from_micros(1));
            sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(left))
                .map_err(Error::system("setsockopt(SO_SNDTIMEO)"))?;
            match connect(&socket, &address) {
                Ok(()) => return Ok(socket),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if deadline.has_passed() => {
                    return Err(Error::Timeout { what: "the listener had taken the connection" });
                }
                Err(Errno::AGAIN) => {}
                Err(errno @ (Errno::NOENT | Errno::CONNREFUSED | Errno::PROTOTYPE)) => {
                    return Err(not_listening(errno));
                }
                Err(errno) => return Err(Error::system("connect")(errno)),
            }
        }
    }

    /// Whether somebody listens in the directory under the name, or has it for something else.
    pub(super) fn answers(&self, directory: BorrowedFd<'_>) -> Result<bool> {
        let (address, socket) = (self.of_system(Some(directory))?, new_socket()?);
        rustix::io::ioctl_fionbio(&socket, true).map_err(Error::system("ioctl(FIONBIO)"))?;
        match retry_on_intr(|| connect(&socket, &address)) {
            // A process that has ended may have forked others, which have its socket and do not accept.
            Ok(()) => Ok(!matches!(Peer::of_socket(socket.as_fd()), Err(Error::PeerExited { .. }))),
            // Of another type, or with a full queue, it is somebody's.
            Err(Errno::AGAIN | Errno::PROTOTYPE) => Ok(true),
            Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
            Err(errno) => Err(Error::system("connect")(errno)),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.directory {
            Some(directory) => write!(f, "{}", directory.join(&self.name).display()),
            None => write!(f, "@{}", self.name),
        }
    }
}

pub(super) fn new_socket() -> Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(Error::system("socket"))
}

fn valid(name: &str) -> Result<String> {
    let is_valid =
        (1..=MAX_NAME).contains(&name.len()) && !name.contains(['/', '\0']) && !matches!(name, "." | "..");
    if is_valid {
        Ok(name.to_owned())
    } else {
        Err(Error::InvalidName { name: name.to_owned(), most: MAX_NAME })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_names_and_no_paths() {
        for name in ["", ".", "..", "a/b", "/", "a\0b", &"n".repeat(MAX_NAME + 1)] {
            let refused = Address::in_directory("/run", name);
            assert!(
                matches!(&refused, Err(Error::InvalidName { name: said, .. }) if said == name),
                "{refused:?}"
            );
            assert!(Address::abstract_name(name).is_err());
        }
        for name in ["a", "...", "ä b", &"n".repeat(MAX_NAME)] {
            assert_eq!(Address::in_directory("/run/", name).unwrap().to_string(), format!("/run/{name}"));
            assert_eq!(Address::abstract_name(name).unwrap().to_string(), format!("@{name}"));
        }
    }

    #[test]
    fn a_slash_at_the_end_is_no_way_through_a_link() {
        let address = Address::in_directory("/run/link/./", "name").unwrap();
        assert_eq!(address.directory().map(Path::as_os_str), Some("/run/link".as_ref()));
    }
}
