//! Where clients come in.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{SocketFlags, accept_with, bind, listen};

use super::address::{Address, new_socket};
use super::channel::Socket;
use super::deadline::{Deadline, wait};
use super::directory::{Directory, SocketFile};
use super::pending::Pending;
use crate::error::{Error, Result};

/// How many clients may wait to be accepted; more wait in [`Connection::connect`](super::Connection::connect).
const QUEUE: i32 = 128;

/// A socket that clients connect to, until it is dropped, which also removes its file.
///
/// The directory is made with mode 0700 if it is not there (its parent must be). One that is there must be a directory of this
/// user with exactly that mode, and no symbolic link. The file that a listener left when it was killed is replaced; one
/// that has a listener, belongs to another user or is no socket is an error.
///
/// ```
/// use std::thread;
/// use std::time::Duration;
///
/// use cuda_mem_ipc::transport::{Address, Connection, Listener, PeerPolicy};
///
/// const LIMIT: Duration = Duration::from_secs(10);
/// let directory = std::env::temp_dir().join(format!("example-{}", std::process::id()));
/// let address = Address::in_directory(&directory, "server")?;
/// let listener = Listener::bind(&address, LIMIT)?;
/// // Another process of the same user; here a thread.
/// let client = thread::spawn(move || Connection::connect(&address, &PeerPolicy::default(), LIMIT));
///
/// let connection = listener.accept(LIMIT)?.complete(&PeerPolicy::default(), LIMIT)?;
/// println!("process {} is there", connection.peer().pid());
/// # client.join().map_err(|_| "panicked")??;
/// # drop(listener);
/// # std::fs::remove_dir(directory)?; // it is empty again
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Listener {
    // Removed before the socket is closed: while it is there, somebody answers.
    _file: Option<SocketFile>,
    socket: Socket,
    address: Address,
}

impl Listener {
    /// Listens at the address. The deadline is for another process that does the same in the same directory at this moment.
    ///
    /// # Errors
    ///
    /// [`Error::NotADirectory`], [`Error::WrongOwner`], [`Error::WrongMode`], [`Error::Directory`] for a directory that cannot be used;
    /// [`Error::InUse`], [`Error::NotASocket`], [`Error::WrongOwner`] for a name that cannot be had. The C functions are
    /// [`bind`](https://man7.org/linux/man-pages/man2/bind.2.html) and [`listen`](https://man7.org/linux/man-pages/man2/listen.2.html).
    pub fn bind(address: &Address, deadline: impl Into<Deadline>) -> Result<Self> {
        let socket = new_socket()?;
        ioctl_fionbio(&socket, true).map_err(Error::system("ioctl(FIONBIO)"))?;
        // Who connects has it from there.
        let socket = Socket::guarded(socket);
        let start = |directory: Option<BorrowedFd<'_>>| {
            bind(&socket, &address.of_system(directory)?).map_err(|errno| match errno {
                Errno::ADDRINUSE => Error::InUse { address: address.to_string() },
                errno => Error::system("bind")(errno),
            })?;
            listen(&socket, QUEUE).map_err(Error::system("listen"))
        };
        let file = match address.directory() {
            None => start(None).map(|()| None)?,
            Some(path) => {
                let directory = Directory::open(path)?;
                directory.locked(deadline.into(), || {
                    directory.clear(address)?;
                    start(Some(directory.as_fd()))
                })?;
                Some(SocketFile::new(directory, address.name())?)
            }
        };
        Ok(Self { _file: file, socket, address: address.clone() })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Waits for a client, of which nothing is known yet.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] when none comes, [`Error::System`] when too many descriptors are open, [`Error::Forked`] in a forked
    /// child. The C function is [`accept4`](https://man7.org/linux/man-pages/man2/accept.2.html).
    pub fn accept(&self, deadline: impl Into<Deadline>) -> Result<Pending> {
        self.socket.check_process()?;
        let deadline = deadline.into();
        loop {
            match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => return Ok(Pending::connected(Socket::new(socket), self.address.is_public())),
                Err(Errno::AGAIN) => {}
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => return Err(Error::system("accept")(errno)),
            }
            if !wait(&mut [PollFd::new(&self.socket, PollFlags::IN)], deadline)? {
                return Err(Error::Timeout { what: "a client came" });
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
