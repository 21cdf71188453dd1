//! Tests that take several processes: the test program starts itself again, and both ends talk over a socket that carries
//! descriptors.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long either end waits for the other. Far longer than any needs: who takes it hangs.
const SECONDS: libc::time_t = 60;

/// The longest message.
const ROOM: usize = 64 << 10;

/// The most descriptors of a message.
const DESCRIPTORS: usize = 16;

const ROLE: &str = "CUDA_MEM_TEST_ROLE";

/// What a started process does.
pub(crate) type Body = fn(&Channel);

/// A test of several processes. In the process that runs the test, `first` is run. In the processes that it starts, by
/// [`Cast::start`], the body of their role.
///
/// ```ignore
/// #[test]
/// fn somebody_answers() {
///     pair::play(test_name!(), &[("echo", |first| first.send(&first.receive().bytes, &[]))], |cast| {
///         let echo = cast.start("echo");
///         echo.send(b"hello", &[]);
///         assert_eq!(echo.receive().bytes, b"hello");
///         echo.finish();
///     });
/// }
/// ```
pub(crate) fn play(test: &'static str, roles: &[(&str, Body)], first: impl FnOnce(Cast)) {
    let Ok(role) = std::env::var(ROLE) else { return first(Cast { test }) };
    let (_, body) = roles.iter().find(|(name, _)| *name == role).expect("a role of the test");
    // Every started process has the other end as its standard input.
    let channel = Channel { socket: io::stdin().as_fd().try_clone_to_owned().expect("a socket") };
    channel.send(role.as_bytes(), &[]);
    body(&channel);
}

/// As [`play`], with `first` in a process that runs nothing else, so that what it has open and mapped is its own.
#[allow(dead_code, reason = "not every test program counts what it holds")]
pub(crate) fn play_alone(test: &'static str, roles: &[(&str, Body)], first: impl FnOnce(Cast)) {
    const ALONE: &str = "alone";
    match std::env::var(ROLE).as_deref() {
        Ok(ALONE) => first(Cast { test }),
        Ok(_) => play(test, roles, first),
        Err(_) => {
            // One after the other, where the free memory is everybody's: each of them has several contexts all the time.
            static TURN: Mutex<()> = Mutex::new(());
            let shares_memory = std::env::var("CUDA_MEM_BACKEND").is_ok_and(|backend| backend == "gpu");
            let _turn = shares_memory.then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner));
            let mut command = again(test, ALONE);
            let status = command.stdin(Stdio::null()).status().expect("a new process");
            assert!(status.success(), "the process that is alone failed: {status}");
        }
    }
}

/// As [`play_alone`] where a process has a simulator of its own, so that tests wait beside each other; in this process on a GPU, which all
/// of them share.
#[allow(dead_code, reason = "not every test program plays so")]
pub(crate) fn play_beside(test: &'static str, roles: &[(&str, Body)], first: impl FnOnce(Cast)) {
    if std::env::var("CUDA_MEM_BACKEND").is_ok_and(|backend| backend == "gpu") {
        play(test, roles, first);
    } else {
        play_alone(test, roles, first);
    }
}

/// This program, to run one test in a role.
fn again(test: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the test program"));
    command.args(["--exact", test, "--nocapture", "--quiet", "--test-threads=1"]);
    // What it records would be recorded twice, and its summary be counted.
    command.env(ROLE, role).env_remove("CUDA_MEM_RECORD").stdout(Stdio::null());
    command
}

/// The test around it, by the name that the test program knows it by.
#[allow(unused_macros, reason = "not every test program plays")]
macro_rules! test_name {
    () => {{
        fn here() {}
        let path = std::any::type_name_of_val(&here).trim_end_matches("::here");
        path.split_once("::").map_or(path, |(_, test)| test)
    }};
}
#[allow(unused_imports, reason = "as above")]
pub(crate) use test_name;

/// What starts processes. Processes that were started may start more.
#[derive(Clone, Copy)]
pub(crate) struct Cast {
    test: &'static str,
}

impl Cast {
    /// For a process that was started itself.
    pub(crate) fn of(test: &'static str) -> Self {
        Self { test }
    }

    /// Starts a process in one of the test's roles.
    pub(crate) fn start(self, role: &str) -> Peer {
        let (ours, theirs) = Channel::both().expect("a pair of sockets");
        let mut command = again(self.test, role);
        if super::backend() == super::Backend::Simulator {
            // The same devices, as on a GPU: what one process has, the others have not.
            let settings = std::env::var("CUDA_MEM_SIM").unwrap_or_default();
            let account = cuda_mem_sim::account();
            command.env("CUDA_MEM_SIM", format!("{settings},account={}", account.display()));
        }
        let child = command.stdin(theirs.socket).spawn().expect("a new process");
        let peer = Peer { child, channel: ours };
        // Cargo's harness runs no test, successfully, if the name is wrong.
        assert_eq!(peer.receive().bytes, role.as_bytes(), "the role that was played");
        peer
    }
}

/// A process that was started, killed if it still runs when this is dropped.
pub(crate) struct Peer {
    child: Child,
    channel: Channel,
}

impl Peer {
    /// The number of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it, and returns when it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a process to kill");
        self.child.wait().expect("its end");
    }

    /// Waits until it has ended well.
    pub(crate) fn finish(self) {
        let status = self.end();
        assert!(status.success(), "the other process failed: {status}");
    }

    /// Waits until it has ended, and says how.
    pub(crate) fn end(mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("its end") {
                return status;
            }
            assert!(start.elapsed() < Duration::from_secs(SECONDS as u64), "the other process hangs");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl std::ops::Deref for Peer {
    type Target = Channel;

    fn deref(&self) -> &Channel {
        &self.channel
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Nothing is left to do if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What came in one piece.
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Message {
    /// Its bytes as numbers.
    pub(crate) fn words(&self) -> Vec<u64> {
        let words = self.bytes.chunks_exact(8);
        words.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect()
    }
}

/// One end of a socket that keeps messages apart.
pub(crate) struct Channel {
    socket: OwnedFd,
}

impl Channel {
    fn both() -> io::Result<(Self, Self)> {
        let mut ends = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: two numbers to write.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just opened and that nobody else knows.
        let [ours, theirs] = ends.map(|end| Self { socket: unsafe { OwnedFd::from_raw_fd(end) } });
        for end in [&ours, &theirs] {
            let limit = libc::timeval { tv_sec: SECONDS, tv_usec: 0 };
            let size = size_of::<libc::timeval>() as libc::socklen_t;
            let (number, limit) = (end.socket.as_raw_fd(), (&raw const limit).cast());
            // SAFETY: an open socket and a value of the size that is told.
            unsafe { libc::setsockopt(number, libc::SOL_SOCKET, libc::SO_RCVTIMEO, limit, size) };
        }
        Ok((ours, theirs))
    }

    /// Sends numbers.
    pub(crate) fn send_words(&self, words: &[u64]) {
        self.send(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>(), &[]);
    }

    /// Sends a message.
    pub(crate) fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        assert!(bytes.len() <= ROOM && descriptors.len() <= DESCRIPTORS);
        let numbers: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let mut piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut control = Control::default();
        let mut message = header(&mut piece, &mut control);
        message.msg_controllen = 0;
        if !numbers.is_empty() {
            let len = u32::try_from(size_of_val(numbers.as_slice())).expect("few descriptors");
            // SAFETY: arithmetic.
            message.msg_controllen = unsafe { libc::CMSG_SPACE(len) } as usize;
            // SAFETY: the control data above has room for a header.
            let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
            // SAFETY: as above.
            let first = unsafe { &mut *first };
            // SAFETY: arithmetic.
            first.cmsg_len = unsafe { libc::CMSG_LEN(len) } as usize;
            first.cmsg_level = libc::SOL_SOCKET;
            first.cmsg_type = libc::SCM_RIGHTS;
            // SAFETY: where the header's data begins.
            let data = unsafe { libc::CMSG_DATA(first) };
            // SAFETY: room for so many descriptors.
            unsafe { ptr::copy_nonoverlapping(numbers.as_ptr().cast::<u8>(), data, len as usize) };
        }
        // SAFETY: a message whose parts live until the call returns.
        let sent = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        assert_eq!(usize::try_from(sent).ok(), Some(bytes.len()), "{}", io::Error::last_os_error());
    }

    /// The next message. Fails if the other process ends without one.
    pub(crate) fn receive(&self) -> Message {
        let mut bytes = vec![0u8; ROOM];
        let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: ROOM };
        let mut control = Control::default();
        let mut message = header(&mut piece, &mut control);
        let flags = libc::MSG_CMSG_CLOEXEC;
        let (len, error) = loop {
            // SAFETY: a message whose parts live until the call returns.
            let len = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, flags) };
            let error = io::Error::last_os_error();
            // As it does in a process that was stopped and goes on.
            if len >= 0 || error.kind() != io::ErrorKind::Interrupted {
                break (len, error);
            }
        };
        let len = usize::try_from(len).unwrap_or_else(|_| panic!("no message came: {error}"));
        assert_eq!(message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC), 0, "a message was cut");
        bytes.truncate(len);
        let mut descriptors = Vec::new();
        // SAFETY: a message that was received.
        let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        if !first.is_null() {
            // SAFETY: a header that was received.
            let found = unsafe { *first };
            // SAFETY: arithmetic.
            let data_len = found.cmsg_len - unsafe { libc::CMSG_LEN(0) } as usize;
            // SAFETY: where the header's data begins.
            let data = unsafe { libc::CMSG_DATA(first) }.cast::<libc::c_int>();
            for index in 0..data_len / size_of::<libc::c_int>() {
                // SAFETY: one of so many descriptors.
                let place = unsafe { data.add(index) };
                // SAFETY: as above; the kernel aligns them as it likes.
                let number = unsafe { place.read_unaligned() };
                // SAFETY: a descriptor that came with this message and that nobody else knows.
                descriptors.push(unsafe { OwnedFd::from_raw_fd(number) });
            }
        }
        assert!(len > 0 || !descriptors.is_empty(), "the other process has ended");
        Message { bytes, descriptors }
    }
}

/// Room for descriptors, aligned as their header needs it.
#[repr(C, align(8))]
struct Control([u8; 256]);

impl Default for Control {
    fn default() -> Self {
        Self([0; 256])
    }
}

fn header(piece: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: all of its fields may be zero.
    let mut message = unsafe { std::mem::zeroed::<libc::msghdr>() };
    message.msg_iov = piece;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    message
}

/// Bytes that differ have sums that differ; those that are alike have the same in every process of a test.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    // Tests are not optimised, where the standard library's hash takes ten times as long.
    const ODD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    let (words, rest) = bytes.as_chunks::<16>();
    let mut last = [0; 16];
    last[..rest.len()].copy_from_slice(rest);
    let mut sum = bytes.len() as u128;
    for word in words.iter().chain([&last]) {
        sum = (sum ^ u128::from_le_bytes(*word)).wrapping_mul(ODD).rotate_left(53);
    }
    (sum ^ (sum >> 64)) as u64
}
