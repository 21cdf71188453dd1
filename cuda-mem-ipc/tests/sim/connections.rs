//! Importers of memory of driver pools that come and go, in one process that lives on: nothing of them stays.

use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_core::{Driver, Stream};
use cuda_mem_ipc::shared::{Exporter, Importer, MemoryKind, SharedPool, SharedPoolOptions};
use cuda_mem_ipc::transport::{Address, Connection, Listener, PeerPolicy};
use cuda_mem_sim::Sim;
use rustix::process::Signal;

use crate::other::{LIMIT, Other, connected, eventually, open_descriptors};
use crate::own_sim::OwnSim;

fn address(name: &str) -> Address {
    Address::abstract_name(name).unwrap()
}

fn connect(name: &str) -> Connection {
    Connection::connect(&address(name), &PeerPolicy::same_user(), LIMIT).unwrap()
}

fn accept(listener: &Listener) -> Connection {
    listener.accept(LIMIT).unwrap().complete(&PeerPolicy::same_user(), LIMIT).unwrap()
}

fn pool_of(context: &cuda_mem_core::Context, kind: MemoryKind) -> SharedPool {
    SharedPool::new(context, &SharedPoolOptions { kind, segment_bytes: 2 << 20 }).unwrap()
}

/// Segments are announced while the importers close: what they have not read they cannot have.
#[test]
fn importers_that_close_leave_no_blocks_with_the_exporter() {
    const NAME: &str = "connections::importers_that_close_leave_no_blocks_with_the_exporter";
    const ROUNDS: u64 = 60;
    let sim = OwnSim::of(Sim::builder());
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    if let Some(connection) = connected() {
        let name = String::from_utf8(connection.recv(LIMIT).unwrap().payload).unwrap();
        for round in 0..ROUNDS {
            let importer = Importer::new(&context, connect(&name), LIMIT).unwrap();
            thread::sleep(Duration::from_micros(50 * round));
            drop(importer);
        }
        connection.send(20, b"done", &[], LIMIT).unwrap();
        // It lives until it is killed.
        _ = connection.recv(10 * LIMIT);
        return;
    }
    let (other, connection) = Other::start(NAME);
    let name = format!("cuda-mem-closing-{}", std::process::id());
    let listener = Listener::bind(&address(&name), LIMIT).unwrap();
    connection.send(20, name.as_bytes(), &[], LIMIT).unwrap();
    let (stream, mut announced) = (Stream::new(&context).unwrap(), 0);
    for _ in 0..ROUNDS {
        // One that has closed before it was answered is none.
        let Ok(exporter) = Exporter::new(&context, accept(&listener), LIMIT) else { continue };
        let (pool, start, mut buffers) =
            (pool_of(&context, MemoryKind::DevicePool), Instant::now(), Vec::new());
        while exporter.attach(&pool).is_ok() && start.elapsed() < Duration::from_millis(20) {
            if buffers.len() < 60 {
                buffers.push(pool.allocate(2 << 20, &stream).unwrap());
            }
        }
        announced += buffers.len();
        drop((buffers, exporter));
    }
    assert_eq!(connection.recv(LIMIT).unwrap().payload, b"done");
    assert!(announced > 0);
    stream.synchronize().unwrap();
    let left = || {
        sim.leaks().iter().filter(|leak| leak.to_string().contains("made by cuMemAllocFromPoolAsync")).count()
    };
    let start = Instant::now();
    while left() > 0 && start.elapsed() < LIMIT / 4 {
        thread::sleep(Duration::from_millis(1));
    }
    let kept = left();
    other.signal(Signal::KILL);
    assert_eq!(kept, 0, "of {announced}");
}

/// While one importer keeps a buffer, others of its process receive the same memory, give it back, and are dropped.
fn others_close(name: &str, kind: MemoryKind) {
    const OTHERS: usize = 10;
    let sim = OwnSim::of(Sim::builder());
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let stream = Stream::new(&context).unwrap();
    let named = |pid: u32| format!("cuda-mem-others-{kind:?}-{pid}");
    if let Some(connection) = connected() {
        let listener = Listener::bind(&address(&named(connection.peer().pid())), LIMIT).unwrap();
        connection.send(20, b"ready", &[], LIMIT).unwrap();
        let pool = pool_of(&context, kind);
        let buffer = pool.allocate(1000, &stream).unwrap();
        let serve = || {
            let exporter = Exporter::new(&context, accept(&listener), LIMIT).unwrap();
            exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
            exporter
        };
        let first = serve();
        let before = open_descriptors();
        (0..OTHERS).for_each(|_| serve().returned(LIMIT).unwrap());
        eventually("the exporter's ends are closed", || open_descriptors() <= before + 2);
        connection.send(20, b"closed", &[], LIMIT).unwrap();
        first.returned(LIMIT).unwrap();
        return;
    }
    let (other, connection) = Other::start(name);
    connection.recv(LIMIT).unwrap();
    let import = || {
        let importer = Importer::new(&context, connect(&named(std::process::id())), LIMIT).unwrap();
        (importer.recv(LIMIT).unwrap(), importer)
    };
    let first = import();
    let before = open_descriptors();
    (0..OTHERS).for_each(|_| drop(import()));
    eventually("the importers' ends are closed", || open_descriptors() <= before + 2);
    assert_eq!(connection.recv(LIMIT).unwrap().payload, b"closed");
    drop(first);
    other.finish();
}

#[test]
fn importers_of_mapped_memory_close_beside_another_one() {
    others_close("connections::importers_of_mapped_memory_close_beside_another_one", MemoryKind::Device);
}

#[test]
fn importers_of_a_pool_s_block_close_beside_another_one() {
    others_close("connections::importers_of_a_pool_s_block_close_beside_another_one", MemoryKind::DevicePool);
}
