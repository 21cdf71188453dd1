use std::thread;

use cuda_mem_pool::cuda_mem_core::Stream;
use rustix::io::Errno;

use super::*;
use crate::shared::ends::{LIMIT, ends, eventually};
use crate::shared::{SharedPool, SharedPoolOptions};

/// Longer than a peer that has closed its end is given.
const OVERDUE: Duration = Duration::from_millis(800);

/// What the importer has is its own as long as it lives: the memory is not used again because this process is short of something.
#[test]
fn a_receive_that_the_system_refuses_is_not_the_importer_s_end() {
    for errno in [Errno::NOMEM, Errno::NOBUFS, Errno::MFILE, Errno::ACCESS] {
        let (exporter, importer) = ends();
        let context = exporter.link.context.clone();
        let stream = Stream::new(&context).unwrap();
        let pool = SharedPool::new(&context, &SharedPoolOptions::default()).unwrap();
        let hand_over = || {
            exporter.hand_over(&pool.allocate(1000, &stream).unwrap(), &stream, LIMIT).unwrap();
            importer.recv(LIMIT).unwrap()
        };
        let (kept, returned) = (hand_over(), hand_over());
        let connection = &exporter.link.connection;
        connection.refuse(Some(errno));
        // It wakes the thread by a message.
        drop(returned);
        eventually("what comes by memory is taken", || exporter.leases() == 1);
        thread::sleep(OVERDUE);
        assert_eq!(exporter.leases(), 1, "{errno}: the importer has it");
        drop(hand_over());
        connection.refuse(None);
        drop(kept);
        eventually("all goes back", || exporter.leases() == 0);
        drop(hand_over());
        eventually("and again", || exporter.leases() == 0);
        assert!(!connection.is_broken());
    }
}

/// What it had sent before cannot be had, and nobody waits for it for ever.
#[test]
fn an_importer_s_end_is_heard_while_the_system_refuses_to_receive() {
    let (exporter, importer) = ends();
    let context = exporter.link.context.clone();
    let (stream, link) = (Stream::new(&context).unwrap(), &exporter.link);
    let pool = SharedPool::new(&context, &SharedPoolOptions::default()).unwrap();
    link.connection.refuse(Some(Errno::NOMEM));
    exporter.hand_over(&pool.allocate(1000, &stream).unwrap(), &stream, LIMIT).unwrap();
    drop(importer.recv(LIMIT).unwrap());
    eventually("it goes back", || exporter.leases() == 0);
    drop(importer);
    eventually("the importer is gone", || lock(&link.leases).are_over);
    let refused = exporter.hand_over(&pool.allocate(1000, &stream).unwrap(), &stream, LIMIT);
    assert!(refused.as_ref().is_err_and(Error::is_gone), "{refused:?}");
    assert_eq!(exporter.leases(), 0);
}
