use std::thread;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::Stream;
use rustix::io::Errno;

use super::*;
use crate::shared::ends::{LIMIT, ends, eventually};
use crate::shared::{SharedPool, SharedPoolOptions};

/// How long is waited for what must not happen.
const SHORT: Duration = Duration::from_millis(100);

/// It is read as soon as it can be. Until then a buffer that needs it goes back.
#[test]
fn an_announcement_that_the_system_refuses_to_give_is_heard_later() {
    let (exporter, importer) = ends();
    let link = &importer.link;
    let stream = Stream::new(link.context()).unwrap();
    let pool = SharedPool::new(link.context(), &SharedPoolOptions::default()).unwrap();
    let buffer = pool.allocate_isolated(1000, &stream).unwrap();
    link.branch.refuse(Some(Errno::NOMEM));
    assert!(exporter.announce(&buffer).unwrap());
    thread::sleep(SHORT);
    exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
    let refused = importer.recv(LIMIT);
    assert!(matches!(refused, Err(Error::System { call: "recvmsg", .. })), "{refused:?}");
    eventually("the buffer goes back", || exporter.leases() == 0);
    assert_eq!(importer.buffers(), 0);
    link.branch.refuse(None);
    eventually("it is mapped", || importer.mapped_ahead() == 1);
    exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
    drop(importer.recv(LIMIT).unwrap());
    assert!(!link.connection.is_broken());
}

/// Its end comes by the other socket, and is not forgotten before it is known.
#[test]
fn a_segment_that_could_not_be_heard_of_ends_all_the_same() {
    let (exporter, importer) = ends();
    let link = &importer.link;
    let stream = Stream::new(link.context()).unwrap();
    let pool = SharedPool::new(link.context(), &SharedPoolOptions::default()).unwrap();
    let buffer = pool.allocate_isolated(1000, &stream).unwrap();
    link.branch.refuse(Some(Errno::NOMEM));
    assert!(exporter.announce(&buffer).unwrap());
    exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
    drop(buffer);
    let is_refused = |refused| matches!(refused, Err(Error::System { call: "recvmsg", .. }));
    assert!(is_refused(importer.recv(LIMIT)), "the buffer");
    eventually("the buffer goes back", || exporter.leases() == 0);
    assert!(is_refused(importer.recv(LIMIT)), "the end of the segment");
    assert!(is_refused(importer.recv(LIMIT)), "it is not forgotten");
    link.branch.refuse(None);
    assert!(importer.recv(SHORT).unwrap_err().is_timeout());
    assert!(lock(&link.segments).is_empty());
    assert!(!link.connection.is_broken());
}
