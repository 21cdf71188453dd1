//! The setters: what each replaces, and what is there without it.

use std::sync::{Arc, Mutex};

use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::MempoolId;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::segments::Filter;
use cuda_mem_torch::{CudaAllocator, Error};

use crate::common::World;
use crate::common::capture::{RELAXED, thread_mode};
use crate::common::gate::Gate;
use crate::program::{Call, MIB, Program, free};

/// What hooks were told.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn all(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

#[test]
fn init_is_told_the_number_of_devices() {
    let world = World::new();
    let (allocator, heard) = (Program::new().allocator(&world), Heard::default());
    allocator.init(1).unwrap();
    let noted = heard.clone();
    allocator.set_init_fn(move |devices| noted.note(devices.to_string()));
    let count = world.driver.device_count().unwrap();
    allocator.init(count).unwrap();
    assert_eq!(heard.all(), [count.to_string()]);
    let refused = allocator.init(count + 1).unwrap_err();
    assert!(matches!(refused, Error::Core(cuda_mem_core::Error::NoSuchDevice { .. })), "{refused}");
    assert_eq!(heard.all(), [""; 0], "what failed is not told");
}

#[test]
fn reset_is_called_where_the_program_should_give_back() {
    let world = World::new();
    let (program, device, heard) = (Program::new(), world.context.device(), Heard::default());
    let allocator = program.allocator(&world);
    allocator.empty_cache(MempoolId::NONE).unwrap();
    let noted = heard.clone();
    allocator.set_reset_fn(move || noted.note("reset"));
    allocator.empty_cache(MempoolId::NONE).unwrap();
    assert_eq!(heard.all(), ["reset"]);
    allocator.empty_cache(MempoolId::for_user()).unwrap();
    assert_eq!(heard.all(), [""; 0], "a pool's memory is known here");
    // Behind what is cached here: the program may cache that, too.
    let id = MempoolId::for_user();
    allocator.begin_allocate_to_pool(device, id, Filter::this_thread()).unwrap();
    free(&*allocator, allocator.malloc(3 * MIB, device, &world.stream).unwrap());
    allocator.end_allocate_to_pool(device, id).unwrap();
    allocator.release_pool(device, id).unwrap();
    world.stream.synchronize().unwrap();
    let (noted, out) = (heard.clone(), Arc::clone(&program));
    allocator.set_reset_fn(move || noted.note(format!("reset beside {}", out.out())));
    assert_eq!(program.out(), 1);
    assert_eq!(allocator.empty_cache(MempoolId::NONE).unwrap(), 20 * MIB);
    assert_eq!(heard.all(), ["reset beside 0"]);
    // Before a request is out of memory.
    program.limit(Some(0));
    assert!(allocator.malloc(100, device, &world.stream).unwrap_err().is_out_of_memory());
    assert_eq!(heard.all(), ["reset beside 0"]);
}

#[test]
fn a_pools_request_has_what_the_program_gives_back() {
    let world = World::new();
    let (program, device, id) = (Program::new(), world.context.device(), MempoolId::for_user());
    let (allocator, heard, side) = (program.allocator(&world), Heard::default(), world.new_stream());
    program.limit(Some(20 * MIB));
    // What was freed while a stream used it.
    let used = allocator.malloc(20 * MIB, device, &world.stream).unwrap();
    let gate = Gate::before(&side);
    allocator.record_stream(used, &side).unwrap();
    free(&*allocator, used);
    gate.open();
    allocator.begin_allocate_to_pool(device, id, Filter::this_thread()).unwrap();
    let first = allocator.malloc(3 * MIB, device, &world.stream).unwrap();
    let out = program.calls();
    assert!(out.contains(&Call::Free(used, 20 * MIB, device, world.stream.id().as_raw())), "{out:?}");
    // What the program caches.
    let (noted, grows, table) = (heard.clone(), Arc::clone(&program), world.driver.table());
    allocator.set_reset_fn(move || {
        noted.note("reset");
        grows.limit(None);
        assert_eq!(thread_mode(table), RELAXED, "beside captures, as a pool calls the other functions");
    });
    let second = allocator.malloc(30 * MIB, device, &world.stream).unwrap();
    assert_eq!(heard.all(), ["reset"]);
    // Once for each request, also if nothing helps.
    allocator.set_reset_fn({
        let noted = heard.clone();
        move || noted.note("reset")
    });
    program.limit(Some(0));
    assert!(allocator.malloc(40 * MIB, device, &world.stream).unwrap_err().is_out_of_memory());
    assert_eq!(heard.all(), ["reset"]);
    allocator.end_allocate_to_pool(device, id).unwrap();
    [first, second].into_iter().for_each(|block| free(&*allocator, block));
    allocator.release_pool(device, id).unwrap();
}

#[test]
fn the_fraction_is_the_programs_once_it_says_so() {
    let world = World::new();
    let (program, device, heard) = (Program::new(), world.context.device(), Heard::default());
    let allocator = program.allocator(&world);
    allocator.set_memory_fraction(0.0, device).unwrap();
    assert!(allocator.malloc(100, device, &world.stream).unwrap_err().is_out_of_memory());
    let noted = heard.clone();
    allocator.set_memory_fraction_fn(move |fraction, device| noted.note(format!("{fraction} of {device:?}")));
    allocator.set_memory_fraction(0.25, device).unwrap();
    assert_eq!(heard.all(), [format!("0.25 of {device:?}")]);
    assert_eq!(allocator.memory_fraction(device).unwrap(), 0.25);
    allocator.set_memory_fraction(0.0, device).unwrap();
    let block = allocator.malloc(100, device, &world.stream).unwrap();
    free(&*allocator, block);
}

#[test]
fn a_fraction_of_before_limits_no_pool() {
    let world = World::new();
    let (program, device, id) = (Program::new(), world.context.device(), MempoolId::for_user());
    let allocator = program.allocator(&world);
    allocator.set_memory_fraction(0.0, device).unwrap();
    allocator.begin_allocate_to_pool(device, id, Filter::this_thread()).unwrap();
    assert!(allocator.malloc(MIB, device, &world.stream).unwrap_err().is_out_of_memory());
    allocator.set_memory_fraction_fn(|_, _| ());
    let block = allocator.malloc(MIB, device, &world.stream).unwrap();
    allocator.end_allocate_to_pool(device, id).unwrap();
    free(&*allocator, block);
    allocator.release_pool(device, id).unwrap();
    assert_eq!(allocator.memory_fraction(device).unwrap(), 0.0);
}

#[test]
fn the_base_is_what_the_program_says() {
    let world = World::new();
    let allocator = Program::new().allocator(&world);
    allocator.set_base_alloc_fn(|address, bytes| {
        *bytes = 77;
        address - 16
    });
    assert_eq!(allocator.base_allocation(4096).unwrap(), (4080, 77));
}

#[test]
fn streams_are_the_programs_to_remember_once_it_says_so() {
    let world = World::new();
    let (program, device, heard) = (Program::new(), world.context.device(), Heard::default());
    let allocator = program.allocator(&world);
    let noted = heard.clone();
    allocator.set_record_stream_fn(move |address, stream| {
        noted.note(format!("{address} on {}", stream.id().as_raw()));
    });
    let block = allocator.malloc(MIB, device, &world.stream).unwrap();
    let side = world.new_stream();
    allocator.record_stream(block, &side).unwrap();
    assert_eq!(heard.all(), [format!("{block} on {}", side.id().as_raw())]);
    program.calls();
    // It is the program's to answer for: kept here, it would wait for the next request.
    free(&*allocator, block);
    assert_eq!(program.calls().len(), 1);
}

/// Such a block serves again without the program's functions.
#[test]
fn a_pools_block_waits_for_streams_though_the_program_hears_of_them() {
    let world = World::new();
    let (program, device, heard) = (Program::new(), world.context.device(), Heard::default());
    let (allocator, id) = (program.allocator(&world), MempoolId::for_user());
    let (noted, side) = (heard.clone(), world.new_stream());
    allocator.set_record_stream_fn(move |address, stream| {
        noted.note(format!("{address} on {}", stream.id().as_raw()));
    });
    allocator.begin_allocate_to_pool(device, id, Filter::this_thread()).unwrap();
    let block = allocator.malloc(3 * MIB, device, &world.stream).unwrap();
    let gate = Gate::before(&side);
    allocator.record_stream(block, &side).unwrap();
    assert_eq!(heard.all(), [format!("{block} on {}", side.id().as_raw())]);
    free(&*allocator, block);
    let next = allocator.malloc(3 * MIB, device, &world.stream).unwrap();
    assert_ne!(next, block, "the side stream still uses it");
    let unknown = allocator.record_stream(block + 1, &side).unwrap_err();
    assert!(matches!(unknown, Error::UnknownPointer { .. }), "{unknown}");
    assert_eq!(heard.all(), [""; 0], "what failed here is not told");
    gate.open();
    allocator.end_allocate_to_pool(device, id).unwrap();
    free(&*allocator, next);
    allocator.release_pool(device, id).unwrap();
}

#[test]
fn pools_are_the_programs_once_it_says_so() {
    let world = World::new();
    let (program, device, heard) = (Program::new(), world.context.device(), Heard::default());
    let (allocator, id) = (program.allocator(&world), MempoolId::for_graph());
    let noted = heard.clone();
    allocator.set_begin_allocate_to_pool(move |_, id, filter| {
        noted.note(format!("begin {id} {}", filter.accepts(3)));
    });
    allocator.begin_allocate_to_pool(device, id, Filter::stream(3)).unwrap();
    assert_eq!(heard.all(), [format!("begin {id} true")]);
    // What is not set is an error that names the setter.
    let missing = allocator.end_allocate_to_pool(device, id).unwrap_err();
    assert!(missing.to_string().contains("set_end_allocate_to_pool_fn"), "{missing}");
    let missing = allocator.release_pool(device, id).unwrap_err();
    assert!(matches!(missing, Error::NoPoolFunction { setter: "set_release_pool", .. }), "{missing}");
    let (ended, released) = (heard.clone(), heard.clone());
    allocator.set_end_allocate_to_pool_fn(move |_, id| ended.note(format!("end {id}")));
    allocator.set_release_pool(move |_, id| released.note(format!("release {id}")));
    // Each allocation is the program's, with its own size.
    let block = allocator.malloc(3 * MIB, device, &world.stream).unwrap();
    assert!(matches!(program.calls()[..], [Call::Alloc(size, ..)] if size == 3 * MIB));
    assert_eq!(allocator.pool_use_count(device, id).unwrap(), 0, "it is not known here");
    allocator.end_allocate_to_pool(device, id).unwrap();
    allocator.release_pool(device, id).unwrap();
    assert_eq!(heard.all(), [format!("end {id}"), format!("release {id}")]);
    free(&*allocator, block);
}

#[test]
fn what_began_here_ends_here_though_pools_are_the_programs_by_then() {
    let world = World::new();
    let (program, device, heard) = (Program::new(), world.context.device(), Heard::default());
    let (allocator, id) = (program.allocator(&world), MempoolId::for_graph());
    allocator.begin_allocate_to_pool(device, id, Filter::this_thread()).unwrap();
    let (ended, released) = (heard.clone(), heard.clone());
    allocator.set_begin_allocate_to_pool(|_, _, _| ());
    allocator.set_end_allocate_to_pool_fn(move |_, id| ended.note(format!("end {id}")));
    allocator.set_release_pool(move |_, id| released.note(format!("release {id}")));
    allocator.end_allocate_to_pool(device, id).unwrap();
    let block = allocator.malloc(3 * MIB, device, &world.stream).unwrap();
    assert!(matches!(program.calls()[..], [Call::Alloc(size, ..)] if size == 3 * MIB), "it is of no pool");
    free(&*allocator, block);
    allocator.release_pool(device, id).unwrap();
    assert_eq!(allocator.pool_use_count(device, id).unwrap(), 0);
    assert_eq!(heard.all(), [format!("end {id}"), format!("release {id}")]);
}

#[test]
fn ends_of_pools_that_are_kept_here_are_told() {
    let world = World::new();
    let (device, heard) = (world.context.device(), Heard::default());
    let (allocator, id) = (Program::new().allocator(&world), MempoolId::for_graph());
    let (ended, released) = (heard.clone(), heard.clone());
    allocator.set_end_allocate_to_pool_fn(move |_, id| ended.note(format!("end {id}")));
    allocator.set_release_pool(move |_, id| released.note(format!("release {id}")));
    allocator.begin_allocate_to_pool(device, id, Filter::this_thread()).unwrap();
    allocator.end_allocate_to_pool(device, id).unwrap();
    allocator.release_pool(device, id).unwrap();
    assert_eq!(heard.all(), [format!("end {id}"), format!("release {id}")]);
    assert_eq!(allocator.pool_use_count(device, id).unwrap(), 0);
    assert!(allocator.end_allocate_to_pool(device, id).is_err());
    assert_eq!(heard.all(), [""; 0], "what failed here is not told");
}

#[test]
fn a_clone_has_the_hooks_too() {
    let world = World::new();
    let (device, heard, id) = (world.context.device(), Heard::default(), MempoolId::for_user());
    let (program, side) = (Program::new(), world.new_stream());
    let allocator = program.allocator(&world);
    let note = |what: &'static str| {
        let heard = heard.clone();
        move || heard.note(what)
    };
    let [reset, fraction, base] = ["reset", "fraction", "base"].map(note);
    let [record, begin, end, release] = ["record", "begin", "end", "release"].map(note);
    let counts = heard.clone();
    allocator.set_init_fn(move |count| counts.note(format!("init {count}")));
    allocator.set_reset_fn(reset);
    allocator.set_memory_fraction_fn(move |_, _| fraction());
    allocator.set_base_alloc_fn(move |address, _| {
        base();
        address
    });
    allocator.set_record_stream_fn(move |_, _| record());
    allocator.set_begin_allocate_to_pool(move |_, _, _| begin());
    allocator.set_end_allocate_to_pool_fn(move |_, _| end());
    allocator.set_release_pool(move |_, _| release());
    let clone = (*allocator).clone();
    drop(allocator);
    clone.init(1).unwrap();
    clone.empty_cache(MempoolId::NONE).unwrap();
    clone.set_memory_fraction(0.5, device).unwrap();
    clone.begin_allocate_to_pool(device, id, Filter::this_thread()).unwrap();
    let block = clone.malloc(MIB, device, &world.stream).unwrap();
    assert_eq!(program.calls(), [Call::Alloc(MIB, device, world.stream.id().as_raw())]);
    clone.base_allocation(block).unwrap();
    clone.record_stream(block, &side).unwrap();
    clone.end_allocate_to_pool(device, id).unwrap();
    clone.release_pool(device, id).unwrap();
    let all = ["init 1", "reset", "fraction", "begin", "base", "record", "end", "release"];
    assert_eq!(heard.all(), all);
    free(&clone, block);
    assert_eq!(program.calls(), [Call::Free(block, MIB, device, world.stream.id().as_raw())]);
}

#[test]
fn functions_may_use_the_allocator() {
    let world = World::new();
    let (program, device) = (Program::new(), world.context.device());
    let allocator = program.allocator(&world);
    let weak = Arc::downgrade(&allocator);
    allocator.set_reset_fn(move || {
        let allocator = weak.upgrade().unwrap();
        assert_eq!(allocator.device_stats(device).unwrap().num_ooms, 0);
    });
    allocator.empty_cache(MempoolId::NONE).unwrap();
}
