//! What the program has dropped with an owner, inside a call, and calls back.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use cuda_mem_core::ipc::ImportedMapping;
use cuda_mem_core::vmm::{self, CreateOptions, ShareableMemory};
use cuda_mem_core::{Context, Driver, Stream};
use cuda_mem_ipc::shared::{AheadLimit, Exporter, Importer, SharedPool, SharedPoolOptions};
use cuda_mem_ipc::symmetric::{Group, GroupOptions};
use cuda_mem_sim::Sim;

use crate::capture::{Capture, RELAXED};
use crate::other::{LIMIT, both_ends};
use crate::own_sim::OwnSim;

const LEN: usize = 512;

/// Runs a test in a thread, which may not wait for ever.
fn within_limit(test: impl FnOnce(&Context) + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let thread = thread::spawn(move || {
        let sim = OwnSim::of(Sim::builder());
        let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
        test(&context);
        drop(context);
        drop(sim);
        done.send(()).unwrap();
    });
    assert_ne!(ended.recv_timeout(LIMIT), Err(mpsc::RecvTimeoutError::Timeout), "it waits for ever");
    thread.join().unwrap();
}

/// Calls a function when it is dropped.
struct Dropped<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for Dropped<F> {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|call| call());
    }
}

/// Has a function called by whichever call of the driver's next tries again what could not be released; the result is whether it has returned.
fn call_later(context: &Context, call: impl FnOnce() + Send + Sync + 'static) -> Arc<AtomicBool> {
    let (device, is_over) = (context.device(), Arc::new(AtomicBool::new(false)));
    let page = vmm::granularity(device).unwrap();
    let memory =
        ShareableMemory::create(device, page, &CreateOptions::supported_by(device).unwrap()).unwrap();
    let descriptor = memory.export_posix_fd().unwrap();
    let mut mapping = ImportedMapping::import_posix_fd(device, descriptor.as_fd(), page, &[device]).unwrap();
    let over = Arc::clone(&is_over);
    mapping.drop_after_unmap(Dropped(Some(move || {
        call();
        over.store(true, Ordering::SeqCst);
    })));
    let stream = Stream::new(context).unwrap();
    drop(mapping.on(&stream).unwrap());
    let capture = Capture::begin(&stream, RELAXED);
    drop(mapping);
    drop(capture.end().unwrap());
    is_over
}

fn alone(context: &Context, name: &str) -> Group {
    let directory = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    let options = GroupOptions { segment_bytes: 2 << 20, ..GroupOptions::default() };
    let group = Group::join(context, name, 0, 1, &directory, &options).unwrap();
    // It is found by who joins alone.
    std::fs::remove_dir_all(directory).unwrap();
    group
}

#[test]
fn what_is_dropped_inside_an_allocation_allocates_for_its_group() {
    within_limit(|context| {
        let group = alone(context, "allocates");
        let (allocating, kept) = (group.clone(), Arc::new(Mutex::new(None)));
        let keep = Arc::clone(&kept);
        let is_over = call_later(context, move || {
            *keep.lock().unwrap() = Some(allocating.alloc::<u8>(LEN).unwrap());
        });
        let buffer = group.alloc::<u8>(4 << 20).unwrap();
        context.driver().reclaim();
        assert!(is_over.load(Ordering::SeqCst));
        drop((buffer, kept.lock().unwrap().take()));
    });
}

#[test]
fn what_is_dropped_inside_a_barrier_comes_to_the_barrier() {
    within_limit(|context| {
        let (group, stream) = (alone(context, "meets"), Stream::new(context).unwrap());
        let meeting = (group.clone(), stream.clone());
        let is_over = call_later(context, move || meeting.0.barrier(&meeting.1).unwrap());
        group.barrier(&stream).unwrap();
        context.driver().reclaim();
        assert!(is_over.load(Ordering::SeqCst));
        stream.synchronize().unwrap();
    });
}

#[test]
fn what_is_dropped_inside_an_import_receives_of_the_same_segment() {
    within_limit(|context| {
        let (here, there) = both_ends();
        let (theirs, ahead) = (context.clone(), AheadLimit { segments: 0, bytes: 0 });
        let importer = thread::spawn(move || Importer::with_ahead(&theirs, there, ahead, LIMIT).unwrap());
        let exporter = Exporter::new(context, here, LIMIT).unwrap();
        let importer = Arc::new(importer.join().unwrap());
        let (pool, stream) =
            (SharedPool::new(context, &SharedPoolOptions::default()).unwrap(), Stream::new(context).unwrap());
        for _ in 0..2 {
            let buffer = pool.allocate(LEN, &stream).unwrap();
            exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
        }
        let receiving = Arc::clone(&importer);
        let is_over = call_later(context, move || drop(receiving.recv(LIMIT).unwrap()));
        drop(importer.recv(LIMIT).unwrap());
        context.driver().reclaim();
        assert!(is_over.load(Ordering::SeqCst));
        exporter.returned(LIMIT).unwrap();
    });
}
