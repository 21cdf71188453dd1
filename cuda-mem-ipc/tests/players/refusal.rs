//! Sockets of which the system is to give no packet.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Mutex;

use rustix::io::Errno;

use crate::primitive::lock;

static REFUSED: Mutex<Vec<(RawFd, Errno)>> = Mutex::new(Vec::new());

/// Has the system give no packet of a socket, for this reason, or whatever comes again.
pub(crate) fn refuse(socket: impl AsFd, reason: Option<Errno>) {
    let socket = socket.as_fd().as_raw_fd();
    let mut refused = lock(&REFUSED);
    refused.retain(|(known, _)| *known != socket);
    refused.extend(reason.map(|reason| (socket, reason)));
}

pub(super) fn of(socket: impl AsFd) -> Result<(), Errno> {
    let socket = socket.as_fd().as_raw_fd();
    lock(&REFUSED).iter().find(|(known, _)| *known == socket).map_or(Ok(()), |(_, reason)| Err(*reason))
}
