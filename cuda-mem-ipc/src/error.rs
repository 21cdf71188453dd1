//! Errors: what was asked for, what is accepted, and what to do instead.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use cuda_mem_pool::Uuid;
use cuda_mem_pool::cuda_mem_core as core;
use rustix::io::Errno;

use crate::shared::wire::WireError;
use crate::transport::{Address, FrameError};

/// The result of whatever can fail here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
///
/// ```
/// use cuda_mem_ipc::Error;
/// use cuda_mem_ipc::transport::{Address, Connection, PeerPolicy};
/// use std::time::Duration;
///
/// let address = Address::abstract_name("nobody listens here")?;
/// let refused = Connection::connect(&address, &PeerPolicy::default(), Duration::from_secs(1));
/// assert!(matches!(refused, Err(Error::NotListening { .. })));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused a call, for a reason that no other variant stands for.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// The system's reason.
        source: Arc<io::Error>,
    },
    /// The deadline passed first.
    #[error("the deadline passed before {what}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
    },
    /// The peer has closed its end.
    #[error("the peer has closed the connection: {doing} is not possible")]
    Closed {
        /// What was tried.
        doing: &'static str,
    },
    /// The peer's process has ended, closed or not.
    #[error("process {pid} has exited")]
    PeerExited {
        /// The peer.
        pid: u32,
    },
    /// An earlier message broke the protocol, after which nothing is believed any more.
    #[error("the connection is broken by an earlier message that was not of the protocol; make a new one")]
    Broken,
    /// The object belongs to the parent of this process.
    #[error("made in process {made_in}, used in {here}: a forked child makes connections of its own")]
    Forked {
        /// The process that made it.
        made_in: u32,
        /// The calling process.
        here: u32,
    },
    /// The peer ended, or ended the connection, before the work was done that was waited for.
    #[error(
        "process {pid} is gone, and its work before this point was not finished: the bytes are not what it meant them to be"
    )]
    PeerDied {
        /// The peer.
        pid: u32,
    },
    /// The driver of the process that was to record a fence refused it: nobody learns when the work before it is done. The process
    /// lives, and the connection goes on.
    #[error(
        "the driver of process {pid} refused a fence, so that nothing says when its work before this point is done: the bytes may not be \
         what it meant them to be"
    )]
    FenceRefused {
        /// The process whose driver it was.
        pid: u32,
    },
    /// The driver has refused a fence on each line of the connection that the stream can have, of those that this process writes.
    #[error(
        "the driver has refused fences on all of the connection's {lines} lines that the stream can have: make a new one"
    )]
    NoLinesLeft {
        /// How many there are.
        lines: u32,
    },
    /// The driver layer refused.
    #[error(transparent)]
    Core(#[from] core::Error),
    /// What came is no message of a shared pool. The connection is broken.
    #[error("process {pid} sent what is no message of a shared pool: {source}")]
    Wire {
        /// The peer.
        pid: u32,
        /// What is wrong.
        source: WireError,
    },
    /// A message of a shared pool that does not fit what came before. The connection is broken.
    #[error("process {pid} does not follow the protocol: {what}")]
    Protocol {
        /// The peer.
        pid: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// Host memory of another size than its sender says.
    #[error("the memory was said to have {said} bytes and has {found}")]
    WrongSize {
        /// As its sender says.
        said: u64,
        /// What there is.
        found: usize,
    },
    /// Memory of a device that this process does not have.
    #[error("the memory lies on the device {uuid}, which is not visible here (CUDA_VISIBLE_DEVICES)")]
    NoSuchDevice {
        /// The device.
        uuid: Uuid,
    },
    /// The pool layer refused.
    #[error(transparent)]
    Pool(cuda_mem_pool::Error),
    /// A block that lies in more handles than a peer is given for one buffer.
    #[error(
        "the block lies in {handles} handles, at most {most} are shared for one buffer: take a smaller one, or one of a SharedPool, \
         whose segments have one handle each"
    )]
    TooManyHandles {
        /// How many there are.
        handles: usize,
        /// The most.
        most: usize,
    },
    /// Bytes of a device are not touched by the host.
    #[error("the buffer lies on a device; the host reads and writes buffers of host memory alone")]
    NotOnHost,
    /// An import that another one of the same segment was in the way of.
    #[error("another import or release of the same segment did not end in time")]
    ImportBusy,
    /// A block of a driver pool that this process has already, for another device or by way of another process. The driver
    /// counts one import of it: a second one's end would take the memory from the first.
    #[error(
        "this block of a driver pool is imported already, for another device or from another process; drop the buffers of that \
             import first"
    )]
    BlockImported,
    /// A segment was announced beyond the [`AheadLimit`](crate::shared::AheadLimit), and too many descriptors of such segments are kept. Its
    /// buffers go back.
    #[error(
        "the segment was announced ahead when {descriptors} descriptors of others were kept that nobody has mapped yet, at most {most} \
         are; receive sooner, or raise the AheadLimit"
    )]
    TooManyAnnounced {
        /// How many are kept.
        descriptors: usize,
        /// How many may be.
        most: usize,
    },
    /// So much host memory of one exporter is pinned here that no more of it is accepted. Its buffers go back. What the exporter has retired
    /// is pinned until no stream of this process is busy for a moment.
    #[error(
        "{most} segments of host memory of the exporter are pinned here, those too that it has retired while streams were busy: at most {most} \
         are; share larger segments, or let the streams come to an end"
    )]
    TooManyPinned {
        /// How many may be.
        most: usize,
    },
    /// What came is no frame of the protocol. The connection is broken.
    #[error("not a frame: {0}")]
    Frame(#[from] FrameError),
    /// A message was repeated, left out or came too early. The connection is broken.
    #[error("message {found} came where {expected} is next")]
    OutOfOrder {
        /// The number of the message that came.
        found: u64,
        /// The number that it must have.
        expected: u64,
    },
    /// A message came with more or fewer descriptors than it says. All were closed, the connection is broken.
    #[error("a message declares {declared} descriptors and {received} came with it")]
    DescriptorCount {
        /// As the frame says.
        declared: usize,
        /// As the system delivered, by `SCM_RIGHTS`.
        received: usize,
    },
    /// The system could not deliver all descriptors of a message. All that came were closed, the connection is broken.
    #[error(
        "only {received} descriptors of a message could be received: this process may have too many open (RLIMIT_NOFILE)"
    )]
    ControlTruncated {
        /// How many came, and were closed.
        received: usize,
    },
    /// More descriptors than a message carries.
    #[error("{asked} descriptors are too many for one message; at most {most}")]
    TooManyDescriptors {
        /// What was passed.
        asked: usize,
        /// The most.
        most: usize,
    },
    /// More descriptors of this user are under way, sent and not received, than the system allows. Nothing was sent.
    #[error(
        "too many descriptors of this user are sent and not received yet (ETOOMANYREFS); send again when the peer has received some"
    )]
    TooManyInFlight,
    /// A payload that no frame carries.
    #[error("a payload of {bytes} bytes is too long for one message; at most {most}")]
    PayloadTooLong {
        /// What was passed, in bytes.
        bytes: usize,
        /// The most, in bytes.
        most: usize,
    },
    /// The kind belongs to the transport. When it is received, the connection is broken.
    #[error("kind {kind} is the transport's own; kinds of users are from {first} on")]
    ReservedKind {
        /// The kind.
        kind: u16,
        /// The first that is free.
        first: u16,
    },
    /// A descriptor that the peer named could not be taken from it. The message is lost, the connection goes on.
    #[error(
        "descriptor {number} of process {pid} cannot be taken: {source}; pidfd_getfd needs the right to trace the process, let \
         the peer send descriptors by SCM_RIGHTS"
    )]
    DescriptorNotTaken {
        /// The peer.
        pid: u32,
        /// The descriptor's number there.
        number: i32,
        /// The system's reason.
        source: Arc<io::Error>,
    },
    /// The policy does not admit the peer.
    #[error("process {pid} of user {uid} and group {gid} is not admitted; accepted: {accepted}")]
    PeerRefused {
        /// The peer's user.
        uid: u32,
        /// The peer's group.
        gid: u32,
        /// The peer.
        pid: u32,
        /// What the policy accepts.
        accepted: String,
    },
    /// The system does not tell who the peer is: it is in a PID namespace that this process cannot see.
    #[error("the peer is in another PID namespace; both processes must be in one")]
    PeerUnknown,
    /// The peer says that it is another process than the system says.
    #[error(
        "the peer is process {pid} started at {start_time}, and says that it is process {told_pid} started at {told_start_time}: a \
         connection cannot be handed to another process, and both must be in the same PID and time namespace"
    )]
    PeerMismatch {
        /// The peer, by the system.
        pid: u32,
        /// Its start, in clock ticks after the system's.
        start_time: u64,
        /// The peer, by its own words.
        told_pid: u32,
        /// Its start, by its own words.
        told_start_time: u64,
    },
    /// The first message is no hello.
    #[error(
        "the first message must be a hello without descriptors; one of kind {kind} with {bytes} bytes came"
    )]
    NoHello {
        /// The kind of the message that came.
        kind: u16,
        /// The length of its payload.
        bytes: usize,
    },
    /// The two sides speak no common version of the protocol.
    #[error("the peer speaks versions {theirs:?} of the protocol, this side {ours:?}")]
    NoCommonVersion {
        /// The peer's least and highest.
        theirs: (u16, u16),
        /// Our least and highest.
        ours: (u16, u16),
    },
    /// A name that no socket can have.
    #[error("{name:?} is no name of a socket: 1 to {most} bytes without '/' and NUL, and not '.' or '..'")]
    InvalidName {
        /// What was passed.
        name: String,
        /// The longest, in bytes.
        most: usize,
    },
    /// The directory of a socket is none.
    #[error("{path:?} must be a directory, and no symbolic link to one")]
    NotADirectory {
        /// What was passed.
        path: PathBuf,
    },
    /// The directory of a socket cannot be made or opened.
    #[error("the directory {path:?} cannot be used: {source}")]
    Directory {
        /// What was passed.
        path: PathBuf,
        /// The system's reason.
        source: Arc<io::Error>,
    },
    /// The directory, or a file where the socket would be, is somebody else's.
    #[error("{path:?} belongs to user {owner}; it must belong to user {accepted}")]
    WrongOwner {
        /// The directory or file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        accepted: u32,
    },
    /// Others may enter the directory, or its owner may not.
    #[error("the directory {path:?} has mode {mode:04o}; it must have 0700")]
    WrongMode {
        /// The directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// There is a file, which is no socket, where the socket would be.
    #[error("{path:?} is there and is no socket; it is left as it is")]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// Somebody listens there already.
    #[error("{address} is in use: somebody listens there")]
    InUse {
        /// Where.
        address: Address,
    },
    /// Nobody listens there.
    #[error("nobody listens at {address}: {source}")]
    NotListening {
        /// Where.
        address: Address,
        /// The system's reason.
        source: Arc<io::Error>,
    },
    /// The descriptor is no end of a pair.
    #[error("the descriptor is not a connected Unix socket of type SOCK_SEQPACKET")]
    NotAnEnd,
    /// A socket's buffer does not hold one frame.
    #[error("the socket's send buffer has {bytes} bytes, a message needs {needed}: raise net.core.wmem_max")]
    SendBuffer {
        /// What the system gives.
        bytes: usize,
        /// What is needed.
        needed: usize,
    },
}

impl Error {
    /// The system's answer to a call.
    pub(crate) fn system(call: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::System { call, source: shared(errno) }
    }

    /// Whether the system refused this process something, which says nothing of the peer and may be over the next time.
    pub(crate) fn is_the_system_s(&self) -> bool {
        matches!(self, Self::System { .. })
    }

    /// Whether what could not be sent may be sent later.
    pub(crate) fn is_for_now(&self) -> bool {
        self.is_timeout() || self.is_the_system_s()
    }

    /// Whether the deadline passed.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. })
    }

    /// Whether the peer is gone: its process has ended, with or without its work, or it has closed its end.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::PeerExited { .. } | Self::PeerDied { .. } | Self::Closed { .. })
    }
}

pub(crate) fn shared(errno: Errno) -> Arc<io::Error> {
    Arc::new(errno.into())
}
