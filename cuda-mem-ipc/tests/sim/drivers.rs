//! Two drivers in one process: what is of one is neither handed over nor allocated by the other.

use std::thread;

use cuda_mem_core::{Context, Driver, Error as CoreError, Stream};
use cuda_mem_ipc::Error;
use cuda_mem_ipc::shared::{Exportable, Exporter, Importer, SharedPool, SharedPoolOptions};
use cuda_mem_ipc::symmetric::{self, Group, GroupOptions, NativeBackend, SymmetricBackend};
use cuda_mem_pool::MemoryResource;
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_sim::Sim;

use crate::other::{LIMIT, SHORT, both_ends};
use crate::own_sim::OwnSim;

fn context_of(sim: &Sim) -> Context {
    Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap()
}

fn refused(what: &str, result: Result<impl std::fmt::Debug, Error>) {
    let is_refused =
        matches!(&result, Err(Error::Core(CoreError::ForeignContext { what: named })) if *named == what);
    assert!(is_refused, "{what}: {result:?}");
}

#[test]
fn an_exporter_tells_of_no_memory_of_another_driver() {
    let (one, two) = (OwnSim::of(Sim::builder()), OwnSim::of(Sim::builder()));
    let (here, there) = (context_of(&one), context_of(&two));
    let (stream, theirs) = (Stream::new(&here).unwrap(), Stream::new(&there).unwrap());
    let (exporter, importer) = thread::scope(|scope| {
        let (sending, receiving) = both_ends();
        let importer = scope.spawn(|| Importer::new(&here, receiving, LIMIT).unwrap());
        (Exporter::new(&here, sending, LIMIT).unwrap(), importer.join().unwrap())
    });
    let pool = SharedPool::new(&there, &SharedPoolOptions::default()).unwrap();
    let buffer = pool.allocate(1000, &theirs).unwrap();
    refused("the pool", exporter.attach(&pool));
    refused("the buffer", exporter.announce(&buffer));
    refused("the buffer", exporter.hand_over(&buffer, &stream, LIMIT));
    refused("the stream", exporter.hand_over(&buffer, &theirs, LIMIT));
    let allocator = CachingAllocator::new(&there, &CachingOptions::default()).unwrap();
    let block = Exportable::new(&allocator, allocator.allocate(1000, &theirs).unwrap()).unwrap();
    refused("the buffer", exporter.announce(&block));
    refused("the buffer", exporter.hand_over(&block, &stream, LIMIT));
    assert!(importer.recv(SHORT).unwrap_err().is_timeout());
    assert_eq!((exporter.leases(), importer.mapped_ahead()), (0, 0));
}

#[test]
fn a_group_allocates_on_no_device_of_another_driver() {
    let (one, two) = (OwnSim::of(Sim::builder()), OwnSim::of(Sim::builder()));
    let (here, there) = (context_of(&one), context_of(&two));
    let directory = std::env::temp_dir().join(format!("cuda-mem-drivers-{}", std::process::id()));
    let group = Group::join(&here, "alone", 0, 1, &directory, &GroupOptions::default()).unwrap();
    let native = NativeBackend::new();
    native.add_group(&group).unwrap();
    // Both are device 0.
    let error = native.alloc(1000, there.device(), Some("alone")).unwrap_err();
    assert!(
        matches!(error, symmetric::Error::Core(CoreError::ForeignContext { what: "the device" })),
        "{error}"
    );
    drop((native, group));
    std::fs::remove_dir(directory).unwrap();
}
