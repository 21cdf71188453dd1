//! Both ends of a connection in one process, for tests of what is between them.

use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_pool::cuda_mem_core::Driver;

use super::{Exporter, Importer};
use crate::transport::{PeerPolicy, Pending, pair};

/// Long enough for whatever has to happen.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

pub(super) fn ends() -> (Exporter, Importer) {
    let context = Driver::over(cuda_mem_sim::table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let (here, there) = pair().unwrap();
    let theirs = context.clone();
    let importer = thread::spawn(move || {
        let connection = Pending::inherited(there).unwrap().complete(&PeerPolicy::default(), LIMIT).unwrap();
        Importer::new(&theirs, connection, LIMIT).unwrap()
    });
    let connection = here.complete(&PeerPolicy::default(), LIMIT).unwrap();
    (Exporter::new(&context, connection, LIMIT).unwrap(), importer.join().unwrap())
}
