//! A forked child has its parent's objects and may only drop them.

use std::os::fd::AsFd;

use cuda_mem_ipc::Error;
use cuda_mem_ipc::transport::{Address, Connection, FIRST_KIND, Listener, PeerPolicy, Pending, pair};

use crate::child;
use crate::other::{LIMIT, both_ends, open_descriptors};

#[test]
fn a_forked_child_gets_an_error_and_harms_nobody() {
    if let Some(output) = child::again("fork::a_forked_child_gets_an_error_and_harms_nobody", &[]) {
        return child::expect_silent_success(&output);
    }
    let directory = std::env::temp_dir().join(format!("cuda-mem-fork-{}", std::process::id()));
    let address = Address::in_directory(&directory, "name").unwrap();
    let listener = Listener::bind(&address, LIMIT).unwrap();
    let (here, there) = both_ends();
    let (pending, _end) = pair().unwrap();
    here.send(FIRST_KIND, b"for the parent", &[], LIMIT).unwrap();

    let (mut owned, mut unfinished) = (Some((here, there, listener)), Some(pending));
    child::forked(|| {
        let (here, there, listener) = owned.take().unwrap();
        let refusals = [
            there.recv(LIMIT).map(drop),
            here.send(FIRST_KIND, b"", &[], LIMIT),
            listener.accept(LIMIT).map(drop),
            unfinished.take().unwrap().complete(&PeerPolicy::default(), LIMIT).map(drop),
        ];
        for refusal in refusals {
            match refusal {
                Err(Error::Forked { made_in, here }) if made_in != here && here == std::process::id() => {}
                other => return Err(format!("{other:?}")),
            }
        }
        drop((here, there, listener));
        Ok(())
    });

    let (here, there, listener) = owned.unwrap();
    assert_eq!(there.recv(LIMIT).unwrap().payload, b"for the parent");
    there.send(FIRST_KIND, b"still here", &[], LIMIT).unwrap();
    assert_eq!(here.recv(LIMIT).unwrap().payload, b"still here");
    assert!(directory.join("name").exists());
    drop(listener);
    std::fs::remove_dir(directory).unwrap();
}

/// Data loaders are forked and live on, with copies of everything.
#[test]
fn what_is_dropped_has_ended_though_a_forked_child_has_it() {
    if let Some(output) = child::again("fork::what_is_dropped_has_ended_though_a_forked_child_has_it", &[]) {
        return child::expect_silent_success(&output);
    }
    let address = Address::abstract_name(&format!("cuda-mem-forked-{}", std::process::id())).unwrap();
    let listener = Listener::bind(&address, LIMIT).unwrap();
    let (here, there) = both_ends();
    let (pending, raw) = pair().unwrap();
    // SAFETY: the child does nothing but wait for its end, in its only thread.
    let loader = unsafe { libc::fork() };
    if loader == 0 {
        loop {
            // SAFETY: has no arguments.
            unsafe { libc::pause() };
        }
    }
    here.send(FIRST_KIND, b"last", &[], LIMIT).unwrap();
    drop((here, pending, listener));
    assert_eq!(there.recv(LIMIT).unwrap().payload, b"last");
    assert!(matches!(there.recv(LIMIT), Err(Error::Closed { .. })));
    assert!(matches!(there.send(FIRST_KIND, b"", &[], LIMIT), Err(Error::Closed { .. })));
    let waiting = Pending::inherited(raw).unwrap().complete(&PeerPolicy::default(), LIMIT);
    assert!(matches!(waiting, Err(Error::Closed { .. })), "{waiting:?}");
    let connecting = Connection::connect(&address, &PeerPolicy::same_user(), LIMIT);
    assert!(matches!(connecting, Err(Error::NotListening { .. })), "{connecting:?}");
    // SAFETY: the child, which nobody has waited for yet.
    unsafe { libc::kill(loader, libc::SIGKILL) };
    let mut status = 0;
    // SAFETY: one status to write.
    assert_eq!(unsafe { libc::waitpid(loader, &raw mut status, 0) }, loader);
}

/// There is no driver here that would tell of the fork, and the threads that close are the parent's.
#[test]
fn what_a_peer_has_sent_is_closed_in_a_forked_child_too() {
    if let Some(output) = child::again("fork::what_a_peer_has_sent_is_closed_in_a_forked_child_too", &[]) {
        return child::expect_silent_success(&output);
    }
    let (here, there) = both_ends();
    let file = std::fs::File::open("/dev/null").unwrap();
    let [first, mut second] = [(); 2].map(|()| {
        here.send(FIRST_KIND, b"", &[file.as_fd()], LIMIT).unwrap();
        Some(there.recv(LIMIT).unwrap().descriptors)
    });
    // By a thread, which then waits for more.
    drop(first);
    child::forked(|| {
        let before = open_descriptors();
        drop(second.take());
        let closed = before - open_descriptors();
        if closed == 1 { Ok(()) } else { Err(format!("{closed} descriptors were closed")) }
    });
}
