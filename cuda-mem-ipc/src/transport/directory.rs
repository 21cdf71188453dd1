//! The directory of socket files: only its owner enters it, and one process at a time changes it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, mkdirat, openat, statat,
    unlinkat,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::geteuid;

use super::address::Address;
use super::deadline::{Deadline, until};
use crate::error::{Error, Result, shared};

#[derive(Debug)]
pub(super) struct Directory {
    descriptor: OwnedFd,
    path: PathBuf,
}

impl Directory {
    /// Makes it if it is not there, and checks what was opened, not what the path may lead to later.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let refused = |errno| Error::Directory { path: path.to_owned(), source: shared(errno) };
        match mkdirat(CWD, path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(refused(errno)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = openat(CWD, path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOTDIR | Errno::LOOP => Error::NotADirectory { path: path.to_owned() },
            errno => refused(errno),
        })?;
        let found = fstat(&descriptor).map_err(refused)?;
        owned(&found, path)?;
        let mode = found.st_mode & 0o7777;
        if mode != Mode::RWXU.as_raw_mode() {
            return Err(Error::WrongMode { path: path.to_owned(), mode });
        }
        Ok(Self { descriptor, path: path.to_owned() })
    }

    /// Keeps other processes from changing it meanwhile.
    pub(super) fn locked(&self, deadline: Deadline, change: impl FnOnce() -> Result<()>) -> Result<()> {
        // The system has no deadline for it.
        let what = "another process was done with the directory";
        until(deadline, what, || match flock(&self.descriptor, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::INTR | Errno::AGAIN) => Ok(false),
            Err(errno) => Err(Error::system("flock")(errno)),
        })?;
        let changed = change();
        // Fails only for what is no lock.
        let _ = retry_on_intr(|| flock(&self.descriptor, FlockOperation::Unlock));
        changed
    }

    /// Removes a socket file that nobody listens at any more; anything else under the name is an error.
    pub(super) fn clear(&self, address: &Address) -> Result<()> {
        let Self { descriptor, path } = self;
        let file = path.join(address.name());
        let found = match statat(descriptor, address.name(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(Error::system("fstatat")(errno)),
        };
        owned(&found, &file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
            return Err(Error::NotASocket { path: file });
        }
        if address.answers(descriptor.as_fd())? {
            return Err(Error::InUse { address: address.to_string() });
        }
        match unlinkat(descriptor, address.name(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Error::system("unlinkat")(errno)),
        }
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A socket's file, removed with it.
#[derive(Debug)]
pub(super) struct SocketFile {
    directory: Directory,
    name: String,
    identity: (u64, u64),
    made_in: u32,
}

impl SocketFile {
    /// Of the socket that was bound just now, which nobody replaces while it listens.
    pub(super) fn new(directory: Directory, name: &str) -> Result<Self> {
        let found = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(Error::system("fstatat"))?;
        let identity = (found.st_dev, found.st_ino);
        Ok(Self { directory, name: name.to_owned(), identity, made_in: std::process::id() })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A forked child's copy is not the one that ends the listener.
        if std::process::id() != self.made_in {
            return;
        }
        let found = statat(&self.directory, &*self.name, AtFlags::SYMLINK_NOFOLLOW);
        if found.is_ok_and(|found| (found.st_dev, found.st_ino) == self.identity) {
            // Whoever removed it first did what is wanted.
            let _ = unlinkat(&self.directory, &*self.name, AtFlags::empty());
        }
    }
}

fn owned(found: &Stat, path: &Path) -> Result<()> {
    let (owner, accepted) = (found.st_uid, geteuid().as_raw());
    if owner == accepted { Ok(()) } else { Err(Error::WrongOwner { path: path.to_owned(), owner, accepted }) }
}
