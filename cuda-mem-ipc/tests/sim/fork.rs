//! A forked child has its parent's objects and may only drop them.

use std::thread;

use cuda_mem_ipc::Error;
use cuda_mem_ipc::transport::{Address, FIRST_KIND, Listener, PeerPolicy, Pending, pair};

use crate::child;
use crate::other::LIMIT;

#[test]
fn a_forked_child_gets_an_error_and_harms_nobody() {
    if let Some(output) = child::again("fork::a_forked_child_gets_an_error_and_harms_nobody", &[]) {
        return child::expect_silent_success(&output);
    }
    let directory = std::env::temp_dir().join(format!("cuda-mem-fork-{}", std::process::id()));
    let address = Address::in_directory(&directory, "name").unwrap();
    let listener = Listener::bind(&address, LIMIT).unwrap();
    let (here, there) = pair().unwrap();
    let other = thread::spawn(|| Pending::inherited(there).unwrap().complete(&PeerPolicy::default(), LIMIT));
    let here = here.complete(&PeerPolicy::default(), LIMIT).unwrap();
    let there = other.join().unwrap().unwrap();
    let (pending, _end) = pair().unwrap();
    here.send(FIRST_KIND, b"for the parent", &[], LIMIT).unwrap();

    let (mut owned, mut unfinished) = (Some((here, there, listener)), Some(pending));
    child::forked(|| {
        let (here, there, listener) = owned.take().unwrap();
        let refusals = [
            there.recv(LIMIT).map(drop),
            here.send(FIRST_KIND, b"", &[], LIMIT),
            here.send_by_number(FIRST_KIND, b"", &[], LIMIT),
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
