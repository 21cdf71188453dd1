//! An end without the transport behind it: it sends what it is told to.

use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cuda_mem_ipc::transport::{
    Connection, Frame, HEADER, PeerPolicy, Poller, pair, without_descriptor_guard,
};
use rustix::io::IoSlice;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};

/// Whatever is waited for is there already.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

pub(crate) struct Raw(pub(crate) OwnedFd);

impl Raw {
    /// An end that has said hello, and a connection that believes it.
    pub(crate) fn connected() -> (Self, Connection) {
        // What is sent comes, also what no honest peer sends.
        without_descriptor_guard();
        let (here, there) = pair().unwrap();
        let raw = Self(there);
        raw.send(&frame(0, &hello()), &[]);
        let connection = here.complete(&PeerPolicy::default(), LIMIT).unwrap();
        assert_eq!(raw.next_packet().len(), HEADER + 16, "a hello");
        (raw, connection)
    }

    pub(crate) fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors)));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, flags).unwrap();
        assert_eq!(sent, bytes.len());
    }

    /// What was sent to it; nothing when the connection is shut down.
    pub(crate) fn next_packet(&self) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 16];
        let (length, _) = recv(&self.0, &mut bytes[..], RecvFlags::DONTWAIT).unwrap();
        bytes.truncate(length);
        bytes
    }
}

pub(crate) fn frame(kind: u16, payload: &[u8]) -> Vec<u8> {
    frame_with(kind, payload, 0)
}

pub(crate) fn frame_with(kind: u16, payload: &[u8], descriptors: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let descriptors = u16::try_from(descriptors).unwrap();
    Frame { kind, payload, descriptors }.encode(&mut bytes);
    bytes
}

/// What this process says of itself.
pub(crate) fn hello() -> Vec<u8> {
    hello_with(1, 1, std::process::id())
}

pub(crate) fn hello_with(least: u16, highest: u16, pid: u32) -> Vec<u8> {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, behind_name) = text.rsplit_once(')').unwrap();
    let start = behind_name.split_whitespace().nth(19).unwrap().parse::<u64>().unwrap();
    [&least.to_le_bytes()[..], &highest.to_le_bytes(), &pid.to_le_bytes(), &start.to_le_bytes()].concat()
}

/// Tells whether all duplicates of a descriptor are closed: it is the writing end of a pipe.
pub(crate) struct Watched {
    reader: std::io::PipeReader,
    writer: Option<std::io::PipeWriter>,
}

impl Watched {
    pub(crate) fn new() -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        Self { reader, writer: Some(writer) }
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.writer.as_ref().unwrap().as_fd()
    }

    /// Closes this one; every other one must be closed already. A process that another test is starting has copies of all until
    /// its program begins.
    pub(crate) fn expect_closed(mut self) {
        self.writer = None;
        let mut poller = Poller::new();
        poller.readable((), &self.reader);
        assert_eq!(poller.wait(LIMIT).unwrap(), [()], "a descriptor is still open");
        assert_eq!(self.reader.read(&mut [0]).unwrap(), 0);
    }
}
