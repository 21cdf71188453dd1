//! A second socket between two processes that have a connection: frames that go one way, for whom nobody there waits.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::channel::{Channel, Packet};
use super::connection::{Connection, Message, refused};
use super::frame::{Frame, FrameError};
use super::pending::expect_end;
use super::socket::Socket;
use crate::error::{Error, Result};

/// One end. What comes by it is believed as what comes by the connection is: whoever has the other end was sent it there.
#[derive(Debug)]
pub(crate) struct Branch {
    channel: Channel,
    version: u16,
}

impl Branch {
    /// An end to receive by, and a descriptor that the peer of a connection sends by.
    pub(crate) fn beside(connection: &Connection) -> Result<(Self, OwnedFd)> {
        let (here, there) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(Error::system("socketpair"))?;
        Ok((Self::over(connection, here)?, there))
    }

    /// What the peer of a connection has sent to send by.
    pub(crate) fn sent(connection: &Connection, descriptor: OwnedFd) -> Result<Self> {
        expect_end(&descriptor)?;
        Self::over(connection, descriptor)
    }

    fn over(connection: &Connection, descriptor: OwnedFd) -> Result<Self> {
        Ok(Self { channel: Channel::new(Socket::new(descriptor))?, version: connection.version() })
    }

    /// Sends a message if there is room for it now, as [`Connection::send`] does.
    pub(crate) fn send(&self, kind: u16, payload: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        let frame = Frame::new(kind, 0, payload).map_err(refused)?.with_version(self.version);
        let frame = frame.with_descriptors(descriptors.len()).map_err(refused)?;
        self.channel.send(frame, descriptors, None, Duration::ZERO.into()).map(drop)
    }

    /// Has the system refuse to receive, as [`Channel::refuse`] does.
    #[cfg(test)]
    pub(crate) fn refuse(&self, reason: Option<rustix::io::Errno>) {
        self.channel.refuse(reason);
    }

    /// Ends it for both sides, because of what came.
    pub(crate) fn breaks(&self, error: Error) -> Error {
        self.channel.breaks(error)
    }

    /// The next message, if it is there, as [`Connection::recv`] does. Its descriptors travel with it.
    pub(crate) fn recv(&self) -> Result<Message> {
        let packet = self.channel.receive(None, Duration::ZERO.into())?;
        let Packet { number, version, kind, payload, descriptors, numbers, sender: _ } = packet;
        if version != self.version {
            return Err(FrameError::Version { found: version }.into());
        }
        if !numbers.is_empty() {
            return Err(Error::DescriptorCount { declared: numbers.len(), received: descriptors.len() });
        }
        Ok(Message { kind, payload, descriptors, number })
    }
}

impl AsFd for Branch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
