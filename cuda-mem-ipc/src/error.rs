//! Errors: what was asked for, what is accepted, and what to do instead.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use cuda_mem_pool::Uuid;
use cuda_mem_pool::cuda_mem_core as core;
use rustix::io::Errno;

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
/// let refused = Connection::connect(&address, &PeerPolicy::same_user(), Duration::from_secs(1));
/// assert!(matches!(refused, Err(Error::NotListening { .. })));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of each variant names its fields")]
pub enum Error {
    /// The system refused a call, for a reason that no other variant stands for.
    #[error("{call}: {source}")]
    System { call: &'static str, source: Arc<io::Error> },
    /// The deadline passed first.
    #[error("the deadline passed before {what}")]
    Timeout { what: &'static str },
    /// The peer has closed its end.
    #[error("the peer has closed the connection: {doing} is not possible")]
    Closed { doing: &'static str },
    /// The peer's process has ended, closed or not.
    #[error("process {pid} has exited")]
    PeerExited { pid: u32 },
    /// An earlier message broke the protocol, after which nothing is believed any more.
    #[error("an earlier message of the peer broke the protocol: make a new connection")]
    Broken,
    /// The object belongs to the parent of this process.
    #[error("made in process {made_in}, used in {here}: a forked child makes connections of its own")]
    Forked { made_in: u32, here: u32 },
    /// The peer ended, or ended the connection, before the work was done that was waited for; or it lives on and takes back what it had handed over.
    #[error("process {pid} or its connection ended before its work was done: do not use the bytes")]
    PeerDied { pid: u32 },
    /// No more streams may wait for fences that the peer has not reached: streams that wait hold up others.
    #[error("{most} streams wait for process {pid}, no more may: synchronize with a deadline, or use fewer")]
    TooManyWaits { pid: u32, most: usize },
    /// The driver layer refused.
    #[error(transparent)]
    Core(core::Error),
    /// The peer sent bytes that are no message of a shared pool. The connection is broken.
    #[error("process {pid} sent bytes that are no message of a shared pool: {source}")]
    Wire { pid: u32, source: MessageError },
    /// A message of a shared pool that does not fit what came before. The connection is broken.
    #[error("process {pid} does not follow the protocol: {what}")]
    Protocol { pid: u32, what: &'static str },
    /// Host memory of another size than its sender says.
    #[error("the sender declared {said} bytes of host memory, and it has {found}")]
    WrongSize { said: u64, found: usize },
    /// Memory of a device that this process does not have.
    #[error("the memory lies on the device {uuid}, which is not visible here (CUDA_VISIBLE_DEVICES)")]
    NoSuchDevice { uuid: Uuid },
    /// The pool layer refused.
    #[error(transparent)]
    Pool(cuda_mem_pool::Error),
    /// A block that lies in more handles than a peer is given for one buffer.
    #[error(
        "the block lies in {handles} handles, at most {most} are shared for one buffer: take a smaller one, or one of a SharedPool, \
         whose segments have one handle each"
    )]
    TooManyHandles { handles: usize, most: usize },
    /// The host does not reach the memory of a device.
    #[error("the buffer lies on a device; the host reads and writes buffers of host memory alone")]
    NotOnHost,
    /// Another import or release of the same segment was under way, and did not end in time.
    #[error("another import or release of this segment did not end in time: have its exporter trim its pool")]
    ImportBusy,
    /// A block of a driver pool that this process has already, for another device or by way of another process. The driver
    /// counts one import of it: a second one's end would take the memory from the first.
    #[error("this block of a driver pool is imported already: drop the buffers of that import first")]
    BlockImported,
    /// The host memory of one exporter, or of all together, takes as much of this process as it may: a further segment is refused, and its
    /// buffers go back. Bytes that the exporter has retired are pinned until no stream of this process is busy for a moment.
    #[error(
        "the host memory of this exporter, or of all exporters, would take more than {most} {what} here: share fewer or larger segments, or \
         wait for this process's streams; a segment that was refused stays refused until the exporter trims its pool"
    )]
    OverBudget { what: &'static str, most: u64 },
    /// The peer sent bytes that are no frame of the protocol. The connection is broken.
    #[error("not a frame: {0}")]
    Frame(#[from] MessageError),
    /// A message came with more or fewer descriptors than it says. All were closed, the connection is broken.
    #[error("a message declares {declared} descriptors and {received} came with it")]
    DescriptorCount { declared: usize, received: usize },
    /// The system could not deliver all descriptors of a message. All that came were closed, the connection is broken.
    #[error("{received} descriptors of a message were received, not all: too many are open (RLIMIT_NOFILE)")]
    ControlTruncated { received: usize },
    /// More descriptors than a message carries.
    #[error("{asked} descriptors are too many for one message; at most {most}")]
    TooManyDescriptors { asked: usize, most: usize },
    /// More descriptors of this user are under way, sent and not received, than the system allows. Nothing was sent.
    #[error("too many descriptors of this user are sent and not received (ETOOMANYREFS): try again later")]
    TooManyInFlight,
    /// A payload that no frame carries.
    #[error("a payload of {bytes} bytes is too long for one message; at most {most}")]
    PayloadTooLong { bytes: usize, most: usize },
    /// The kind belongs to the transport. When it is received, the connection is broken.
    #[error("kind {kind} is the transport's own; kinds of users are from {first} on")]
    ReservedKind { kind: u16, first: u16 },
    /// The peer takes no descriptors: nothing that it expects has any. Nothing was sent.
    #[error("the peer takes no descriptors")]
    DescriptorsRefused,
    /// The default policy at an abstract name, which has no permissions.
    #[error("any process reaches an abstract name: say whom to admit, by PeerPolicy::same_user or with_uids")]
    ImplicitPolicy,
    /// The policy does not admit the peer.
    #[error("process {pid} of user {uid} and group {gid} is not admitted; accepted: {accepted}")]
    PeerRefused { uid: u32, gid: u32, pid: u32, accepted: String },
    /// The system does not name the peer's process: it is in a PID namespace that this process cannot see.
    #[error("the peer is in another PID namespace; both processes must be in one")]
    PeerUnknown,
    /// The peer says that it is another process than the system says.
    #[error(
        "the peer is process {pid} started at {start_time}, and says that it is process {told_pid} started at {told_start_time}: a \
         connection cannot be handed to another process, and both must be in the same PID and time namespace"
    )]
    PeerMismatch { pid: u32, start_time: u64, told_pid: u32, told_start_time: u64 },
    /// The first message is no hello.
    #[error("the first message must be a bare hello; one of kind {kind} with {bytes} bytes came")]
    NoHello { kind: u16, bytes: usize },
    /// The two sides speak no common version of the protocol.
    #[error("the peer speaks versions {theirs:?} of the protocol, this side {ours:?}")]
    NoCommonVersion { theirs: (u16, u16), ours: (u16, u16) },
    /// A name that no socket can have.
    #[error("{name:?} is no name of a socket: 1 to {most} bytes without '/' and NUL, and not '.' or '..'")]
    InvalidName { name: String, most: usize },
    /// The directory of a socket is none.
    #[error("{path:?} must be a directory, and no symbolic link to one")]
    NotADirectory { path: PathBuf },
    /// The directory of a socket cannot be made or opened.
    #[error("the directory {path:?} cannot be used: {source}")]
    Directory { path: PathBuf, source: Arc<io::Error> },
    /// The directory, or a file where the socket would be, belongs to another user.
    #[error("{path:?} belongs to user {owner}; it must belong to user {accepted}")]
    WrongOwner { path: PathBuf, owner: u32, accepted: u32 },
    /// Others may enter the directory, or its owner may not.
    #[error("the directory {path:?} has mode {mode:04o}; it must have 0700")]
    WrongMode { path: PathBuf, mode: u32 },
    /// There is a file, which is no socket, where the socket would be.
    #[error("{path:?} is there and is no socket; it is left as it is")]
    NotASocket { path: PathBuf },
    /// Another listener has the address.
    #[error("{address} is in use by another listener")]
    InUse { address: String },
    /// No listener has the address.
    #[error("there is no listener at {address}: {source}")]
    NotListening { address: String, source: Arc<io::Error> },
    /// The descriptor is no end of a pair.
    #[error("the descriptor is not a connected Unix socket of type SOCK_SEQPACKET")]
    NotAnEnd,
    /// A socket's buffer does not hold one frame.
    #[error("the socket's send buffer has {bytes} bytes, a message needs {needed}: raise net.core.wmem_max")]
    SendBuffer { bytes: usize, needed: usize },
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

    /// Whether a message was not sent because there is no room for it now.
    pub(crate) fn has_no_room(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::TooManyInFlight)
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

impl From<core::Error> for Error {
    /// What this layer has said through a copy of its memory is its own again.
    fn from(error: core::Error) -> Self {
        match error {
            core::Error::Owner(said) => {
                said.downcast_ref::<Self>().cloned().unwrap_or(Self::Core(core::Error::Owner(said)))
            }
            error => Self::Core(error),
        }
    }
}

impl From<cuda_mem_pool::Error> for Error {
    fn from(error: cuda_mem_pool::Error) -> Self {
        match error {
            cuda_mem_pool::Error::Core(error) => Self::Core(error),
            error => Self::Pool(error),
        }
    }
}

impl From<Error> for core::Error {
    /// For copies of this layer's memory, which are core's.
    fn from(error: Error) -> Self {
        match error {
            Error::Core(error) => error,
            error => Self::Owner(Arc::new(error)),
        }
    }
}

pub(crate) fn shared(errno: Errno) -> Arc<io::Error> {
    Arc::new(errno.into())
}

/// Why bytes are no message. [`Error::Frame`] and [`Error::Wire`] have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of each variant names its fields")]
pub enum MessageError {
    /// No such kind.
    #[error("there is no kind {0}")]
    Kind(u16),
    /// Another length than the message, or this part of it, has.
    #[error("{found} bytes, where a message has {expected}")]
    Length { found: usize, expected: usize },
    /// A number that its field does not take.
    #[error("the {field} is {value}")]
    Value { field: &'static str, value: u64 },
}

pub(crate) fn check(field: &'static str, value: u64, is_right: bool) -> Result<(), MessageError> {
    if is_right { Ok(()) } else { Err(MessageError::Value { field, value }) }
}
