//! What sockets do and the safe bindings lack: who is at the other end, and receiving descriptors.
//!
//! The bindings give a peer's process as a number that is never zero, and the system says zero for a process in a PID namespace
//! that the caller cannot see; of control data they drop what they do not know, descriptors included.
//!
//! # Safety
//!
//! Relies on `getsockopt`, `setsockopt` and `recvmsg` touching no more bytes than they are given, and on each number that comes
//! in control data as `SCM_RIGHTS` or `SCM_PIDFD` being a new descriptor that nobody else in this process knows.

#![allow(unsafe_code, reason = "calls getsockopt, setsockopt and recvmsg")]

use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;

use super::frame::MAX_DESCRIPTORS;

/// The word that control data is aligned to and that its lengths are written in.
const WORD: usize = size_of::<usize>();
/// A length, a level and a type.
const CONTROL_HEADER: usize = WORD + 8;
/// Room for the most descriptors of a message, its sender's credentials and pidfd, and some more.
const CONTROL: usize = CONTROL_HEADER + 4 * MAX_DESCRIPTORS + 256;
/// `SCM_PIDFD`, which comes when whoever made the socket asked for it.
const SCM_PIDFD: i32 = 4;

/// Of Linux 6.16: whether descriptors may be sent to a socket.
const SO_PASSRIGHTS: i32 = 83;

/// A process as the system names it; `pid` is 0 if this process cannot see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) pid: i32,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// One packet.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// How many bytes of the buffer it has; 0 if the other side has closed.
    pub(super) bytes: usize,
    /// Whether the packet had more bytes than the buffer.
    pub(super) is_cut: bool,
    /// Whether control data, maybe descriptors, could not be delivered.
    pub(super) is_control_cut: bool,
    pub(super) descriptors: Vec<OwnedFd>,
    /// The sender, if the socket asks for it.
    pub(super) sender: Option<Credentials>,
}

/// `SO_PEERCRED`: who connected or listened, or made the pair.
pub(super) fn peer_credentials(socket: BorrowedFd<'_>) -> Result<Credentials, Errno> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    option(socket, libc::SO_PEERCRED, &mut found)?;
    Ok(Credentials { pid: found.pid, uid: found.uid, gid: found.gid })
}

/// Which process that was, as far as the system says.
pub(crate) fn peer_pid(socket: BorrowedFd<'_>) -> Option<i32> {
    Some(peer_credentials(socket).ok()?.pid)
}

/// `SO_PEERPIDFD`, of Linux 6.5: the same process, by a descriptor. `Errno::NOPROTOOPT` from older ones.
pub(super) fn peer_pidfd(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut number: RawFd = -1;
    option(socket, libc::SO_PEERPIDFD, &mut number)?;
    // SAFETY: the call succeeded, so the number is a new descriptor (with close-on-exec) that nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Whether a peer may send descriptors to a socket: `SO_PASSRIGHTS`, of Linux 6.16. Older ones refuse to change it.
pub(super) fn set_passes_descriptors(socket: BorrowedFd<'_>, passes: bool) {
    let value = libc::c_int::from(passes);
    let length = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or_default();
    // SAFETY: the value is borrowed and `length` is its size; the system writes nothing.
    let _ = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            std::ptr::from_ref(&value).cast(),
            length,
        )
    };
}

/// Whether the system refuses descriptors that somebody sends to the socket. A listener's sockets have that from it.
pub(super) fn refuses_descriptors(socket: BorrowedFd<'_>) -> bool {
    let mut passes: RawFd = 1;
    option(socket, SO_PASSRIGHTS, &mut passes).is_ok() && passes == 0
}

/// Reads an option that is plain integers; `T` is `RawFd` or `ucred`, for which all bytes are values.
fn option<T: Copy>(socket: BorrowedFd<'_>, name: i32, value: &mut T) -> Result<(), Errno> {
    let mut length = libc::socklen_t::try_from(size_of::<T>()).map_err(|_| Errno::OVERFLOW)?;
    // SAFETY: the value is borrowed mutably and `length` is its size; the system writes no more than that.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            std::ptr::from_mut(value).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Receives one packet if there is one (`Errno::AGAIN` if not), with close-on-exec for what descriptors come with it.
pub(super) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Received, Errno> {
    let mut control = [0_usize; CONTROL / WORD];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: a C struct of integers and pointers, for which zeroes are values.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let bytes = loop {
        // SAFETY: the message names the buffer and the control words with their sizes; both outlive the call.
        let result = unsafe {
            libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT)
        };
        match usize::try_from(result) {
            Ok(bytes) => break bytes,
            Err(_) if last_error() == Errno::INTR => {}
            Err(_) => return Err(last_error()),
        }
    };
    // The type differs between C libraries.
    let length = message.msg_controllen as usize;
    let control = control.iter().flat_map(|word| word.to_ne_bytes()).take(length).collect::<Vec<_>>();
    let control = Control::parse(&control);
    // SAFETY: each number came from the system in control data of this very packet, so it is a new descriptor that nobody
    // else knows, and it is made into an owner here and once.
    let own = |&number: &RawFd| unsafe { OwnedFd::from_raw_fd(number) };
    control.others.iter().map(own).for_each(drop);
    Ok(Received {
        bytes,
        is_cut: message.msg_flags & libc::MSG_TRUNC != 0,
        is_control_cut: message.msg_flags & libc::MSG_CTRUNC != 0,
        descriptors: control.rights.iter().map(own).collect(),
        sender: control.sender,
    })
}

/// Control data, taken apart.
#[derive(Debug, Default, PartialEq, Eq)]
struct Control {
    rights: Vec<RawFd>,
    /// Descriptors that nobody here asked for.
    others: Vec<RawFd>,
    sender: Option<Credentials>,
}

impl Control {
    fn parse(mut data: &[u8]) -> Self {
        let mut parsed = Self::default();
        while let Some((header, _)) = data.split_first_chunk::<CONTROL_HEADER>() {
            let (length, rest) = header.split_at(WORD);
            let length = length.try_into().map_or(0, usize::from_ne_bytes);
            let (kind, _) = rest.as_chunks::<4>();
            let Some(content) = data.get(CONTROL_HEADER..length) else { break };
            let (numbers, _) = content.as_chunks::<4>();
            let mut numbers = numbers.iter().map(|&number| i32::from_ne_bytes(number));
            match kind.iter().map(|&part| i32::from_ne_bytes(part)).collect::<Vec<_>>()[..] {
                [libc::SOL_SOCKET, libc::SCM_RIGHTS] => parsed.rights.extend(numbers),
                // The system writes a negative error where it could not make one.
                [libc::SOL_SOCKET, SCM_PIDFD] => parsed.others.extend(numbers.filter(|&number| number >= 0)),
                [libc::SOL_SOCKET, libc::SCM_CREDENTIALS] => {
                    if let (Some(pid), Some(uid), Some(gid)) =
                        (numbers.next(), numbers.next(), numbers.next())
                    {
                        let (uid, gid) = (uid.cast_unsigned(), gid.cast_unsigned());
                        parsed.sender = Some(Credentials { pid, uid, gid });
                    }
                }
                _ => {}
            }
            data = data.get(length.next_multiple_of(WORD)..).unwrap_or_default();
        }
        parsed
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(kind: i32, content: &[i32]) -> Vec<u8> {
        let mut bytes = (CONTROL_HEADER + 4 * content.len()).to_ne_bytes().to_vec();
        bytes.extend([libc::SOL_SOCKET, kind].iter().chain(content).flat_map(|number| number.to_ne_bytes()));
        bytes.resize(bytes.len().next_multiple_of(WORD), 0);
        bytes
    }

    #[test]
    fn control_data_is_taken_apart() {
        let rights = part(libc::SCM_RIGHTS, &[5, 6, 7]);
        let whole =
            [rights.clone(), part(libc::SCM_CREDENTIALS, &[10, -2, 30]), part(SCM_PIDFD, &[9])].concat();
        let sender = Some(Credentials { pid: 10, uid: u32::MAX - 1, gid: 30 });
        assert_eq!(Control::parse(&whole), Control { rights: vec![5, 6, 7], others: vec![9], sender });
        // The padding behind the last part may be missing.
        assert_eq!(Control::parse(&rights[..CONTROL_HEADER + 12]).rights, [5, 6, 7]);
        assert_eq!(Control::parse(&part(SCM_PIDFD, &[-22])), Control::default());
    }

    proptest::proptest! {
        #[test]
        fn any_control_data_comes_to_an_end(bytes: Vec<u8>, length in 0_usize..64) {
            Control::parse(&bytes);
            let mut bytes = bytes;
            bytes.splice(0..bytes.len().min(WORD), length.to_ne_bytes());
            Control::parse(&bytes);
        }
    }
}
