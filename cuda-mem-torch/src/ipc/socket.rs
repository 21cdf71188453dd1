//! Hands descriptors to processes that may not take them.
//!
//! `pidfd_getfd` needs the right to trace the exporter. Where the system keeps that from a user's own processes, as with Yama's
//! `ptrace_scope` of 1, they ask the exporter for duplicates, over the socket that the handle names. Both sides check the
//! other first: it must be of the same user, and for the importer the process that the handle names.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use cuda_mem_ipc::Error;
use cuda_mem_ipc::cuda_mem_pool::Uuid;
use cuda_mem_ipc::transport::{
    Address, Connection, Deadline, Descriptors, FIRST_KIND, Listener, MAX_DESCRIPTORS, PeerPolicy, Pending,
    start_time,
};

use super::blob::Offer;
use super::descriptors;
use crate::lock::lock;

/// Asks for the descriptors of handles; the payload has their names.
const ASK: u16 = FIRST_KIND;
/// Has the descriptors.
const GIVE: u16 = FIRST_KIND + 1;
/// Says that there is no such handle any more.
const GONE: u16 = FIRST_KIND + 2;

/// How long the other side may take for all that it asks, or is asked.
const LIMIT: Duration = Duration::from_secs(10);
/// How often the listener looks whether this process was forked.
const REST: Duration = Duration::from_secs(3600);
/// How long the listener waits when it has run out of descriptors or threads.
const BUSY: Duration = Duration::from_millis(20);
/// How many clients are answered at a time. Others wait.
const MOST_CLIENTS: usize = 64;

/// The name of this process's socket, which is served from the first call on; none if it cannot have one.
pub(super) fn name() -> Option<u128> {
    static NAME: Mutex<Option<u128>> = Mutex::new(None);
    let mut known = lock(&NAME);
    if known.is_none() {
        // Its lower half tells this process from others that have its number later.
        let name = Uuid::new_v4().as_u128() << 64 | u128::from(start_time(std::process::id()).ok()?);
        let listener = Listener::bind(&address(name).ok()?, LIMIT).ok()?;
        thread::Builder::new().name("cuda-mem-share".into()).spawn(move || serve(&listener)).ok()?;
        *known = Some(name);
    }
    *known
}

/// Anybody may connect to an abstract name.
fn this_user() -> PeerPolicy {
    PeerPolicy::default().with_uids([rustix::process::geteuid().as_raw()])
}

fn address(name: u128) -> Result<Address, Error> {
    Address::abstract_name(&format!("cuda-mem-torch-{name:032x}"))
}

/// Lets no client wait for another, up to [`MOST_CLIENTS`]: each has a thread, and a share of `clients`.
fn serve(listener: &Listener) {
    let clients = Arc::new(());
    loop {
        match listener.accept(REST) {
            Ok(pending) => {
                while Arc::strong_count(&clients) > MOST_CLIENTS {
                    thread::sleep(BUSY);
                }
                let client = Arc::clone(&clients);
                // Refused a thread, the client finds its connection closed.
                let _ =
                    thread::Builder::new().name("cuda-mem-share".into()).spawn(|| answer(pending, client));
            }
            Err(Error::Timeout { .. }) => {}
            Err(Error::Forked { .. }) => return,
            Err(_) => thread::sleep(BUSY),
        }
    }
}

/// Answers a client until it goes, takes too long in all, or says what is not understood.
fn answer(pending: Pending, _client: Arc<()>) {
    let deadline = Deadline::after(LIMIT);
    let Ok(connection) = pending.complete(&this_user(), deadline) else { return };
    while let Ok(message) = connection.recv(deadline)
        && (message.kind, message.descriptors.len()) == (ASK, 0)
        && give(&connection, &message.payload, deadline).is_some()
    {}
}

fn give(connection: &Connection, payload: &[u8], deadline: Deadline) -> Option<()> {
    let (names, _) = payload.as_chunks::<8>();
    let names: Vec<u64> = names.iter().map(|name| u64::from_ne_bytes(*name)).collect();
    // Where the system refuses them, the client finds its connection closed: the memory is there.
    let found = if names.len() <= MAX_DESCRIPTORS { descriptors::duplicates(&names).ok()? } else { None };
    let Some(found) = found else { return connection.send(GONE, &[], &[], deadline).ok() };
    let found: Vec<_> = found.iter().map(AsFd::as_fd).collect();
    connection.send(GIVE, &[], &found, deadline).ok()
}

/// Asks a process for the descriptors of handles, in their order; says why it did not give them.
pub(super) fn ask(pid: i32, offer: &Offer) -> Result<Descriptors, String> {
    let failed = |error: Error| format!("its socket failed: {error}");
    let is_it = move |peer: &cuda_mem_ipc::transport::Peer| peer.pid().cast_signed() == pid;
    let policy = this_user().with_predicate(is_it);
    let deadline = Deadline::after(LIMIT);
    let connect = |address: Address| Connection::connect(&address, &policy, deadline);
    let connection = address(offer.socket).and_then(connect).map_err(failed)?;
    let mut descriptors = Vec::new();
    for names in offer.handles.chunks(MAX_DESCRIPTORS) {
        let payload: Vec<u8> = names.iter().flat_map(|name| name.to_ne_bytes()).collect();
        connection.send(ASK, &payload, &[], deadline).map_err(failed)?;
        let message = connection.recv(deadline).map_err(failed)?;
        if message.kind != GIVE || message.descriptors.len() != names.len() {
            return Err("its socket says that the memory has gone".into());
        }
        descriptors.push(message.descriptors);
    }
    Ok(descriptors.into_iter().flat_map(Descriptors::into_vec).collect::<Vec<_>>().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_clients_are_answered_at_a_time_and_others_wait() {
        let address = address(Uuid::new_v4().as_u128()).unwrap();
        let listener = Listener::bind(&address, LIMIT).unwrap();
        thread::spawn(move || serve(&listener));
        let connect = |limit| Connection::connect(&address, &this_user(), limit);
        let clients: Vec<_> = (0..MOST_CLIENTS).map(|_| connect(LIMIT).unwrap()).collect();
        let early = connect(Duration::from_millis(100)).unwrap_err();
        assert!(early.is_timeout(), "{early}");
        drop(clients);
        connect(LIMIT).unwrap();
    }

    /// They could be sent without end, and closing them may take long.
    #[test]
    fn who_sends_descriptors_is_not_answered() {
        let address = address(Uuid::new_v4().as_u128()).unwrap();
        let listener = Listener::bind(&address, LIMIT).unwrap();
        thread::spawn(move || serve(&listener));
        let client = Connection::connect(&address, &this_user(), LIMIT).unwrap();
        client.send(ASK, &[], &[], LIMIT).unwrap();
        assert_eq!(client.recv(LIMIT).unwrap().kind, GIVE);
        let file = std::fs::File::open("/dev/null").unwrap();
        client.send(ASK, &[], &[file.as_fd()], LIMIT).unwrap();
        let ended = client.recv(LIMIT).unwrap_err();
        assert!(ended.is_gone(), "{ended}");
    }
}
