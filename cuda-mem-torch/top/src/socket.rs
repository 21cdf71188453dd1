//! How processes of ours are found and asked: each listens at a name that has its number in it.
//!
//! The names are abstract, so they go with their processes. A thread answers, which sleeps in the kernel until somebody asks; what the
//! program does costs nothing for it. Both sides look at who is there: it must be the same user, and the process that the name says.

use std::fs;
use std::thread;
use std::time::Duration;

use cuda_mem_ipc::Error as IpcError;
use cuda_mem_ipc::transport::{
    Address, Connection, Deadline, FIRST_KIND, Listener, MAX_PAYLOAD, PeerPolicy, Pending,
};

use crate::error::Error;
use crate::figures::{MOST_BYTES, ProcessFigures};

const NAME: &str = "cuda-mem-top-";

/// Has a part of the figures; more come.
const MORE: u16 = FIRST_KIND;
/// Has the last part of them.
const LAST: u16 = FIRST_KIND + 1;

/// How long a process may take to answer.
const ANSWER: Duration = Duration::from_millis(500);
/// How often the listener looks whether its process was forked.
const REST: Duration = Duration::from_secs(3600);
/// How long it waits when there were no descriptors left.
const BUSY: Duration = Duration::from_millis(100);
/// It runs what gathers the figures, and nothing of the program's.
const STACK_BYTES: usize = 256 << 10;

/// Answers whoever of the same user asks this process for its figures, for as long as it lives.
///
/// ```
/// use cuda_mem_top::{ProcessFigures, ask, processes, publish};
///
/// publish(|| ProcessFigures::default())?;
/// let own = std::process::id();
/// assert!(processes().contains(&own));
/// assert_eq!(ask(own)?, ProcessFigures::default());
/// # Ok::<(), cuda_mem_top::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::Ask`] if the name is taken, as it is when this was called before; [`Error::Terminal`] if there is no thread to be had.
pub fn publish(gather: impl Fn() -> ProcessFigures + Send + 'static) -> Result<(), Error> {
    let listener = Listener::bind(&address(std::process::id())?, ANSWER)?;
    let serve = move || serve(&listener, &gather);
    thread::Builder::new().name("cuda-mem-top".into()).stack_size(STACK_BYTES).spawn(serve)?;
    Ok(())
}

fn address(pid: u32) -> Result<Address, IpcError> {
    Address::abstract_name(&format!("{NAME}{pid}"))
}

fn serve(listener: &Listener, gather: &dyn Fn() -> ProcessFigures) {
    loop {
        match listener.accept(REST) {
            // Who asks and does not listen is not waited for any longer than others can wait.
            Ok(pending) => drop(answer(pending, gather)),
            Err(IpcError::Timeout { .. }) => {}
            Err(IpcError::Forked { .. }) => return,
            Err(_) => thread::sleep(BUSY),
        }
    }
}

fn answer(pending: Pending, gather: &dyn Fn() -> ProcessFigures) -> Result<(), IpcError> {
    let deadline = Deadline::after(ANSWER);
    let connection = pending.complete(&PeerPolicy::same_user(), deadline)?;
    let text = gather().write();
    let mut parts = text.as_bytes().chunks(MAX_PAYLOAD).peekable();
    while let Some(part) = parts.next() {
        let kind = if parts.peek().is_some() { MORE } else { LAST };
        connection.send(kind, part, &[], deadline)?;
    }
    Ok(())
}

/// The processes of ours, of whatever user, by their numbers. [`publish`] has an example.
#[must_use]
pub fn processes() -> Vec<u32> {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let mut found: Vec<u32> = sockets.lines().filter_map(listener_of).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The process whose listening socket a line of the kernel's list is of.
fn listener_of(line: &str) -> Option<u32> {
    // Num RefCount Protocol Flags Type St Inode Path
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (flags, path) = (fields.get(3)?, fields.get(7)?);
    // `__SO_ACCEPTCON`: connections that were accepted have the listener's name too.
    let listens = u32::from_str_radix(flags, 16).ok()? & 0x1_0000 != 0;
    path.strip_prefix('@')?.strip_prefix(NAME)?.parse().ok().filter(|_| listens)
}

/// The figures of a process of ours. [`publish`] has an example.
///
/// # Errors
///
/// [`Error::Ask`] for a process that is not there, is of another user, or does not answer within half a second; [`Error::Figures`].
pub fn ask(pid: u32) -> Result<ProcessFigures, Error> {
    listen(&address(pid)?, &PeerPolicy::same_user().with_predicate(move |peer| peer.pid() == pid))
}

fn listen(address: &Address, policy: &PeerPolicy) -> Result<ProcessFigures, Error> {
    let deadline = Deadline::after(ANSWER);
    let connection = Connection::connect(address, policy, deadline)?;
    let mut bytes = Vec::new();
    loop {
        let message = connection.recv(deadline)?;
        bytes.extend(message.payload);
        if bytes.len() > MOST_BYTES {
            return Err(Error::Figures { line: 0, what: "there are too many of them" });
        }
        match message.kind {
            MORE => {}
            LAST => break,
            _ => return Err(Error::Figures { line: 0, what: "they come in messages of another kind" }),
        }
    }
    ProcessFigures::parse(&String::from_utf8_lossy(&bytes))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::figures::{DeviceFigures, Part};

    #[test]
    fn a_process_answers_with_more_than_one_message() {
        let device =
            DeviceFigures { parts: vec![Part { stream: 7, ..Part::default() }; 4000], ..Default::default() };
        let figures = ProcessFigures { devices: vec![device] };
        assert!(figures.write().len() > 2 * MAX_PAYLOAD);
        let told = figures.clone();
        publish(move || told.clone()).unwrap();
        let own = std::process::id();
        assert!(processes().contains(&own));
        assert_eq!(ask(own).unwrap(), figures);
        assert_eq!(ask(own).unwrap(), figures, "and again");
        assert!(publish(ProcessFigures::default).is_err(), "it is published");
    }

    #[test]
    fn who_goes_on_saying_nothing_is_an_error() {
        // A name of a process that cannot be, and a policy that does not look at it.
        let there = address(u32::MAX - 1).unwrap();
        let listener = Listener::bind(&there, REST).unwrap();
        let talker = thread::spawn(move || {
            let connection = listener.accept(REST).unwrap().complete(&PeerPolicy::same_user(), REST).unwrap();
            while connection.send(MORE, b"", &[], REST).is_ok() {
                thread::sleep(ANSWER / 5);
            }
        });
        let refused = listen(&there, &PeerPolicy::same_user()).unwrap_err();
        assert!(matches!(refused, Error::Ask(IpcError::Timeout { .. })), "{refused}");
        talker.join().unwrap();
    }

    #[test]
    fn who_is_not_there_is_an_error() {
        assert!(matches!(ask(u32::MAX), Err(Error::Ask(IpcError::NotListening { .. }))));
    }

    #[test]
    fn only_listening_sockets_of_ours_are_found() {
        let line = |flags, path| format!("0000000000000000: 00000002 00000000 {flags} 0005 01 12345 {path}");
        assert_eq!(listener_of(&line("00010000", "@cuda-mem-top-71")), Some(71));
        assert_eq!(listener_of(&line("00000000", "@cuda-mem-top-71")), None, "a connection");
        assert_eq!(listener_of(&line("00010000", "@cuda-mem-top-x")), None);
        assert_eq!(listener_of(&line("00010000", "/run/cuda-mem-top-71")), None);
        assert_eq!(listener_of("Num       RefCount Protocol Flags    Type St Inode Path"), None);
    }
}
