use std::os::fd::AsFd;
use std::thread;

use cuda_mem_pool::cuda_mem_core::{Context, Driver};

use super::*;
use crate::shared::exporter::played::Giver;
use crate::shared::importer::Importer;
use crate::shared::options::AheadLimit;
use crate::transport::{Deadline, PeerPolicy, Pending, pair};

const LIMIT: Duration = Duration::from_secs(60);

/// Both ends of a connection. No thread looks after either of them: nothing that is given back is taken.
fn ends() -> (Giver, Importer) {
    let context: Context =
        Driver::over(cuda_mem_sim::table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let ((here, there), theirs) = (pair().unwrap(), context.clone());
    let importer = thread::spawn(move || {
        let connection = Pending::inherited(there).unwrap().complete(&PeerPolicy::default(), LIMIT).unwrap();
        Importer::unwatched(&theirs, connection, AheadLimit::NONE, Deadline::after(LIMIT)).unwrap()
    });
    let connection = here.complete(&PeerPolicy::default(), LIMIT).unwrap();
    (Giver::new(&context, connection, false, Deadline::after(LIMIT)).unwrap(), importer.join().unwrap())
}

#[test]
fn an_exporter_that_takes_no_releases_has_few_of_them_kept() {
    let (_exporter, importer) = ends();
    let returned = || Returned::refused(Release { sequence: 0, line: 0, generation: 0 });
    (0..MOST_UNHEARD).for_each(|_| importer.link.keep_unsent(returned()));
    assert!(!importer.link.connection.is_broken());
    importer.link.keep_unsent(returned());
    assert!(importer.link.connection.is_broken());
    importer.link.settle_unsent();
    assert!(lock(&importer.link.unsent).is_empty(), "nobody waits for them any more");
}

#[test]
fn an_exporter_that_does_not_hear_of_segments_has_few_of_their_ends_kept() {
    let (_exporter, importer) = ends();
    (0..MOST_UNHEARD as u64).for_each(|segment| importer.link.slab_is_gone(segment));
    assert!(!importer.link.connection.is_broken());
    importer.link.slab_is_gone(7);
    assert!(importer.link.connection.is_broken());
}

/// Of descriptors that are named alone a process can have none that its peer has closed: what named them is lost, and the peer hears so.
#[test]
fn an_importer_that_names_descriptors_has_its_connection_ended() {
    let (exporter, importer) = ends();
    let (connection, named) = (&importer.link.connection, std::fs::File::open("/dev/null").unwrap());
    let (kind, payload) = wire::Message::Ring.encode();
    connection.send_by_number(kind, &payload, &[named.as_fd()], LIMIT).unwrap();
    drop(named);
    assert!(exporter.serve().is_err());
    assert!(connection.recv(LIMIT).unwrap_err().is_gone());
}
