//! Tags that sleep and wake: bytes and addresses, what stays, what is refused, and what is told.

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use cuda_mem_core::copy::{memcpy_async, memset_async};
use cuda_mem_core::{Error as CoreError, Stream};
use cuda_mem_pool::caching::{
    Asleep, Backup, CachingAllocator, CachingOptions, Restore, SleepError, Slept, Tag,
};
use cuda_mem_pool::{Error, MemoryResource, MempoolId};

use crate::common::capture::{Capture, RELAXED};
use crate::common::gate::Gate;
use crate::common::kernels::Kernels;
use crate::common::{Backend, World, backend};
use crate::support::{allocator, free};

const MIB: usize = 1 << 20;

fn allocate_in(tag: &Tag, allocator: &CachingAllocator, bytes: usize, stream: &Stream) -> u64 {
    let _scope = tag.enter().unwrap();
    allocator.allocate_by_address(bytes, stream).unwrap()
}

fn fill(stream: &Stream, address: u64, bytes: usize, value: u8) {
    // SAFETY: memory of the test, which nothing else uses.
    unsafe { memset_async(stream, address, value, bytes) }.unwrap();
    stream.synchronize().unwrap();
}

/// The bytes of memory, each once.
fn values(stream: &Stream, address: u64, bytes: usize) -> BTreeSet<u8> {
    let mut host = vec![0u8; bytes];
    // SAFETY: as many bytes on the host, which live until the wait is over.
    unsafe { memcpy_async(stream, host.as_ptr().expose_provenance() as u64, address, bytes) }.unwrap();
    stream.synchronize().unwrap();
    // Most have one value, which one comparison of memory shows; to look at each byte takes long, unoptimised.
    if host[1..] == host[..bytes - 1] {
        host.truncate(1);
    }
    host.into_iter().collect()
}

fn sleep(tags: &[&Tag], backup: Backup) -> Slept {
    // SAFETY: tests queue nothing that uses what sleeps.
    unsafe { Tag::sleep(tags, backup) }.unwrap()
}

fn refused(tags: &[&Tag], backup: Backup) -> Error {
    // SAFETY: as above.
    unsafe { Tag::sleep(tags, backup) }.unwrap_err()
}

/// Its default stream cannot be asked whether it captures by any thread but that one.
#[test]
fn tags_sleep_beside_a_thread_that_has_memory_of_its_own_default_stream() {
    let world = World::new();
    let (allocator, stream) = (allocator(&world), &world.stream);
    let tag = allocator.tag("weights").unwrap();
    let block = allocate_in(&tag, &allocator, 3 * MIB, stream);
    fill(stream, block, 3 * MIB, 5);
    let (ready, go_on) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        let (context, allocator, ready, go_on) = (&world.context, &allocator, &ready, &go_on);
        scope.spawn(move || {
            let own = Stream::per_thread(context).unwrap();
            let mine = allocator.allocate_by_address(MIB, &own).unwrap();
            ready.wait();
            go_on.wait();
            free(allocator, mine);
        });
        ready.wait();
        // SAFETY: nothing is queued that uses what sleeps.
        let slept = unsafe { Tag::sleep(&[&tag], Backup::Pinned) };
        go_on.wait();
        assert!(slept.unwrap().freed > 0);
    });
    Tag::wake(&[&tag], Restore::Backup).unwrap();
    assert_eq!(values(stream, block, 3 * MIB), BTreeSet::from([5]));
    free(&allocator, block);
}

#[test]
fn a_cycle_keeps_every_byte_at_its_address_and_gives_all_memory_back_meanwhile() {
    let world = World::new();
    let (allocator, stream) = (allocator(&world), &world.stream);
    let tag = allocator.tag("weights").unwrap();
    let sizes = [1000, 3 * MIB, 20 * MIB, 512, 700 * 1024, 12 * MIB + 512];
    let blocks: Vec<_> = sizes.iter().map(|&bytes| allocate_in(&tag, &allocator, bytes, stream)).collect();
    let untagged = allocator.allocate_by_address(5 * MIB, stream).unwrap();
    fill(stream, untagged, 5 * MIB, 77);
    for round in 0..2u8 {
        for ((block, bytes), value) in blocks.iter().zip(sizes).zip(round..) {
            fill(stream, *block, bytes, value);
        }
        let before = world.context.memory_info().unwrap().free;
        let (awake, active) = (tag.state().awake_bytes, allocator.statistics().active_bytes.all.current);
        let slept = sleep(&[&tag], Backup::Pinned);
        assert_eq!((slept.freed, slept.missing), (awake, 0));
        assert!(
            slept.saved >= sizes.iter().sum::<usize>() && slept.refused.is_empty() && slept.kept.is_empty()
        );
        let statistics = allocator.statistics();
        assert_eq!((statistics.active_bytes.all.current, statistics.asleep_bytes), (active, awake as u64));
        if backend() == Backend::Simulator {
            // Tests beside this one use the same GPU.
            assert!(world.context.memory_info().unwrap().free >= before + awake);
        }
        assert_eq!((tag.state().awake_bytes, tag.state().asleep_bytes), (0, awake));
        let mut read = vec![0; sizes[1]];
        assert_eq!(tag.read_backup(blocks[1], &mut read).unwrap(), read.len());
        assert!(read == vec![round + 1; sizes[1]]);
        Tag::wake(&[&tag], Restore::Backup).unwrap();
        for ((block, bytes), value) in blocks.iter().zip(sizes).zip(round..) {
            assert_eq!(values(stream, *block, bytes), BTreeSet::from([value]));
        }
        assert_eq!(values(stream, untagged, 5 * MIB), BTreeSet::from([77]));
        assert_eq!(tag.state().asleep_bytes, 0);
    }
    assert!(tag.release_backup().unwrap() > 0);
    assert_eq!(tag.state().backup_bytes, 0);
    blocks.into_iter().chain([untagged]).for_each(|block| free(&allocator, block));
}

#[test]
fn what_wakes_without_a_backup_is_filled_as_asked() {
    let world = World::new();
    let (allocator, stream) = (allocator(&world), &world.stream);
    let tag = allocator.tag("cache").unwrap();
    let block = allocate_in(&tag, &allocator, 40 * MIB, stream);
    fill(stream, block, 40 * MIB, 5);
    assert_eq!(sleep(&[&tag], Backup::Discard).saved, 0);
    Tag::wake(&[&tag], Restore::Filled(9)).unwrap();
    assert_eq!(values(stream, block, 40 * MIB), BTreeSet::from([9]));
    // A backup of before is none of what is discarded now.
    sleep(&[&tag], Backup::Pinned);
    Tag::wake(&[&tag], Restore::Backup).unwrap();
    fill(stream, block, 40 * MIB, 3);
    sleep(&[&tag], Backup::Discard);
    let mut read = [0; 16];
    assert_eq!(tag.read_backup(block, &mut read).unwrap(), 0);
    Tag::wake(&[&tag], Restore::Nothing).unwrap();
    free(&allocator, block);
}

#[test]
fn a_range_that_is_kept_stays_and_is_named() {
    let world = World::new();
    let (allocator, stream) = (allocator(&world), &world.stream);
    let tag = allocator.tag("weights").unwrap();
    let blocks: Vec<_> = (0..4).map(|_| allocate_in(&tag, &allocator, 20 * MIB, stream)).collect();
    for (block, value) in blocks.iter().zip(1..) {
        fill(stream, *block, 20 * MIB, value);
    }
    let keep = tag.keep(blocks[1] + 100, 1000, "registered").unwrap();
    let slept = sleep(&[&tag], Backup::Pinned);
    let kept = &slept.kept[0];
    assert_eq!((slept.kept.len(), kept.reason.as_str()), (1, "registered"));
    assert_eq!(kept.range, blocks[1] + 100..blocks[1] + 1100);
    assert_eq!(slept.freed + kept.bytes, 80 * MIB);
    // It is awake: what it has can be used.
    assert_eq!(values(stream, blocks[1], kept.bytes.min(20 * MIB)), BTreeSet::from([2]));
    // Nobody needs it any more: a second sleep goes on.
    drop(keep);
    let again = sleep(&[&tag], Backup::Pinned);
    assert_eq!((again.freed, again.kept.len()), (kept.bytes, 0));
    Tag::wake(&[&tag], Restore::Backup).unwrap();
    for (block, value) in blocks.iter().zip(1..) {
        assert_eq!(values(stream, *block, 20 * MIB), BTreeSet::from([value]));
    }
    let outside = tag.keep(0x1000, 1, "nobody's").unwrap_err();
    assert!(matches!(outside, Error::Sleep(SleepError::NotOfTag { address: 0x1000, .. })), "{outside}");
    blocks.into_iter().for_each(|block| free(&allocator, block));
}

#[test]
fn asleep_a_tag_refuses_allocations_and_takes_frees() {
    let world = World::new();
    let (allocator, stream) = (allocator(&world), &world.stream);
    let tag = allocator.tag("kv").unwrap();
    let blocks: Vec<_> = (0..3).map(|_| allocate_in(&tag, &allocator, 3 * MIB, stream)).collect();
    for (block, value) in blocks.iter().zip(1..) {
        fill(stream, *block, 3 * MIB, value);
    }
    sleep(&[&tag], Backup::Pinned);
    let scope = tag.enter().unwrap();
    let asleep = allocator.allocate_by_address(100, stream).unwrap_err();
    assert!(matches!(&asleep, Error::Sleep(SleepError::Asleep { tag }) if tag == "kv"), "{asleep}");
    drop(scope);
    // Others go on.
    let other = allocator.allocate_by_address(100, stream).unwrap();
    free(&allocator, blocks[1]);
    assert_eq!(allocator.empty_cache().ok(), Some(0));
    let keep = tag.keep(blocks[0], 1, "late").unwrap_err();
    assert!(matches!(keep, Error::Sleep(SleepError::Asleep { .. })), "{keep}");
    Tag::wake(&[&tag], Restore::Backup).unwrap();
    for (block, value) in [(blocks[0], 1), (blocks[2], 3)] {
        assert_eq!(values(stream, block, 3 * MIB), BTreeSet::from([value]));
    }
    assert_eq!(allocate_in(&tag, &allocator, 3 * MIB, stream), blocks[1], "free since it slept");
    let awake = tag.read_backup(blocks[0], &mut [0]).unwrap_err();
    assert!(matches!(awake, Error::Sleep(SleepError::Awake { .. })), "{awake}");
    blocks.into_iter().chain([other]).for_each(|block| free(&allocator, block));
}

#[test]
fn without_room_nothing_wakes_and_nothing_is_lost() {
    let world = World::new();
    let stream = &world.stream;
    let total = world.context.device().total_memory().unwrap();
    let limit = 200 * MIB;
    let options = CachingOptions::default().with_memory_fraction(limit as f64 / total as f64);
    let allocator = CachingAllocator::new(&world.context, &options).unwrap();
    let (one, two) = (allocator.tag("one").unwrap(), allocator.tag("two").unwrap());
    let blocks = [&one, &two].map(|tag| allocate_in(tag, &allocator, 60 * MIB, stream));
    for (block, value) in blocks.iter().zip(1..) {
        fill(stream, *block, 60 * MIB, value);
    }
    sleep(&[&one, &two], Backup::Pinned);
    let other = allocator.allocate_by_address(110 * MIB, stream).unwrap();
    let calls = allocator.reserved_bytes();
    let refused = Tag::wake(&[&one, &two], Restore::Backup).unwrap_err();
    let Error::Sleep(SleepError::NoMemory { needed, missing, held }) = refused else { panic!("{refused}") };
    assert_eq!((needed, held), (120 * MIB, calls));
    assert!(missing > 0 && missing <= needed, "{missing}");
    assert_eq!((one.state().awake_bytes, two.state().awake_bytes), (0, 0));
    assert!(one.state().is_asleep && two.state().is_asleep);
    // One of them has room.
    Tag::wake(&[&one], Restore::Backup).unwrap();
    assert_eq!(values(stream, blocks[0], 60 * MIB), BTreeSet::from([1]));
    free(&allocator, other);
    stream.synchronize().unwrap();
    allocator.empty_cache().unwrap();
    Tag::wake(&[&one, &two], Restore::Backup).unwrap();
    assert_eq!(values(stream, blocks[1], 60 * MIB), BTreeSet::from([2]));
    blocks.into_iter().for_each(|block| free(&allocator, block));
}

#[test]
fn the_innermost_scope_of_the_thread_decides() {
    let world = World::new();
    let (allocator, stream) = (allocator(&world), &world.stream);
    let (outer, inner) = (allocator.tag("outer").unwrap(), allocator.tag("inner").unwrap());
    let is_of = |tag: &Tag, block| tag.keep(block, 1, "asked").is_ok();
    let of_outer = outer.enter().unwrap();
    let first = allocator.allocate_by_address(MIB, stream).unwrap();
    let of_inner = inner.enter().unwrap();
    let second = allocator.allocate_by_address(MIB, stream).unwrap();
    let again = outer.enter().unwrap();
    let third = allocator.allocate_by_address(MIB, stream).unwrap();
    drop(of_outer);
    let fourth = allocator.allocate_by_address(MIB, stream).unwrap();
    // The stream of the test may be this thread's alone.
    let other = world.new_stream();
    let allocate = || allocator.allocate_by_address(MIB, &other).unwrap();
    let elsewhere = thread::scope(|scope| scope.spawn(allocate).join().unwrap());
    drop((again, of_inner));
    let last = allocator.allocate_by_address(MIB, stream).unwrap();
    let blocks = [first, second, third, fourth, elsewhere, last];
    let of = blocks.map(|block| (is_of(&outer, block), is_of(&inner, block)));
    assert_eq!(of[..3], [(true, false), (false, true), (true, false)]);
    // A scope ends with its own handle: the one that was entered last goes on.
    assert_eq!(of[3], (true, false));
    assert_eq!(of[4..], [(false, false), (false, false)]);
    blocks.into_iter().for_each(|block| free(&allocator, block));
}

#[test]
fn a_stream_that_captures_keeps_everything_awake() {
    let world = World::new();
    let (allocator, stream) = (allocator(&world), world.new_stream());
    let tag = allocator.tag("weights").unwrap();
    let block = allocate_in(&tag, &allocator, 3 * MIB, &stream);
    let capture = Capture::begin(&stream, RELAXED);
    let refused = refused(&[&tag], Backup::Discard);
    assert!(matches!(refused, Error::Core(CoreError::Capturing { .. })), "{refused}");
    assert!(refused.to_string().starts_with("putting a tag to sleep is not possible while"), "{refused}");
    assert_eq!(tag.state().asleep_bytes, 0);
    capture.end().unwrap();
    assert_eq!(sleep(&[&tag], Backup::Discard).freed, 20 * MIB);
    Tag::wake(&[&tag], Restore::Nothing).unwrap();
    free(&allocator, block);
}

#[test]
fn a_graph_of_before_runs_over_its_memory_after() {
    let world = World::new();
    let kernels = Kernels::load(&world.context);
    let (allocator, stream) = (allocator(&world), world.new_stream());
    let (tag, id) = (allocator.tag("graphs").unwrap(), MempoolId::for_graph());
    tag.add_pool(id).unwrap();
    let count = 1000;
    let route = cuda_mem_pool::segments::Filter::stream(stream.id().as_raw());
    allocator.begin_allocate_to_pool(id, route).unwrap();
    let capture = Capture::begin(&stream, RELAXED);
    let first = allocator.allocate_by_address(4 * count, &stream).unwrap();
    // SAFETY: the memory is the graph's for as long as its pool lives.
    unsafe { kernels.fill_u32(&stream, first, count as u64, 41) };
    free(&allocator, first);
    // The graph uses it though it is free here.
    let second = allocator.allocate_by_address(4 * count, &stream).unwrap();
    assert_eq!(first, second);
    // SAFETY: as above.
    unsafe { kernels.add_one_u32(&stream, second, count as u64) };
    let graph = capture.end().unwrap();
    allocator.end_allocate_to_pool(id).unwrap();
    let launchable = graph.instantiate(&world.context);
    // SAFETY: its memory is there.
    unsafe { launchable.launch(&stream) };
    let slept = sleep(&[&tag], Backup::Pinned);
    assert_eq!((slept.freed, slept.saved), (2 * MIB, 2 * MIB), "captured memory is saved whole");
    Tag::wake(&[&tag], Restore::Backup).unwrap();
    assert_eq!(values(&stream, second, 4), BTreeSet::from([42, 0]));
    fill(&stream, second, 4 * count, 0);
    // SAFETY: its memory is there again.
    unsafe { launchable.launch(&stream) };
    assert_eq!(values(&stream, second, 4 * count), BTreeSet::from([42, 0]));
    let taken = allocator.tag("others").unwrap().add_pool(id).unwrap_err();
    assert!(matches!(taken, Error::Pool(_)), "{taken}");
    free(&allocator, second);
}

#[test]
fn peers_reach_what_woke_and_are_waited_for() {
    let world = World::new();
    let (allocator, stream) = (allocator(&world), &world.stream);
    let early = allocator.tag("early").unwrap();
    let block = allocate_in(&early, &allocator, 20 * MIB, stream);
    for peer in world.driver.devices().unwrap().into_iter().skip(1) {
        if !peer.can_access_peer(world.context.device()).unwrap() {
            continue;
        }
        // Half of them while a tag sleeps.
        sleep(&[&early], Backup::Discard);
        allocator.enable_peer_access(peer).unwrap();
        let late = allocator.tag("late").unwrap();
        let other = allocate_in(&late, &allocator, 20 * MIB, stream);
        let context = peer.primary_context().unwrap();
        let (kernels, remote) = (Kernels::load(&context), Stream::new(&context).unwrap());
        sleep(&[&late], Backup::Discard);
        Tag::wake(&[&early, &late], Restore::Filled(0)).unwrap();
        for address in [block, other] {
            // SAFETY: memory of the test, which nothing else uses.
            unsafe { kernels.fill_u32(&remote, address, 1024, 0x0505_0505) };
        }
        // What the peer runs is over when it sleeps.
        sleep(&[&early, &late], Backup::Pinned);
        Tag::wake(&[&early, &late], Restore::Backup).unwrap();
        for address in [block, other] {
            assert_eq!(values(stream, address, 4096), BTreeSet::from([5]));
            // SAFETY: as above.
            unsafe { kernels.add_one_u32(&remote, address, 1024) };
            remote.synchronize().unwrap();
            assert_eq!(values(stream, address, 4096), BTreeSet::from([5, 6]));
        }
        free(&allocator, other);
    }
    free(&allocator, block);
}

#[test]
fn owned_allocations_sleep_without_a_promise_if_they_are_all_that_their_tag_has() {
    let world = World::new();
    let (allocator, stream) = (allocator(&world), &world.stream);
    let tag = allocator.tag("activations").unwrap();
    let scope = tag.enter().unwrap();
    let mut buffers = vec![allocator.allocate(3 * MIB, stream).unwrap()];
    let other = allocator.allocate(1000, stream).unwrap();
    drop(scope);
    buffers[0].as_device_range().fill_bytes(stream, 8).unwrap();
    let (refused, mut buffers) = Asleep::new(&allocator, buffers, Backup::Pinned).unwrap_err();
    let address = other.address();
    assert!(matches!(refused, Error::Sleep(SleepError::NotOwned { address: of }) if of == address));
    buffers.push(other);
    let asleep = Asleep::new(&allocator, buffers, Backup::Pinned).unwrap();
    assert_eq!((asleep.slept().freed, tag.state().awake_bytes), (22 * MIB, 0));
    let buffers = asleep.wake(Restore::Backup).unwrap();
    assert_eq!(values(stream, buffers[0].address(), 3 * MIB), BTreeSet::from([8]));
    // A graph may use what is free in its pool.
    let id = MempoolId::for_graph();
    tag.add_pool(id).unwrap();
    let (graphs, count) = (world.new_stream(), 1000);
    let route = cuda_mem_pool::segments::Filter::stream(graphs.id().as_raw());
    allocator.begin_allocate_to_pool(id, route).unwrap();
    let capture = Capture::begin(&graphs, RELAXED);
    let captured = allocator.allocate_by_address(count, &graphs).unwrap();
    free(&allocator, captured);
    drop(capture.end().unwrap());
    allocator.end_allocate_to_pool(id).unwrap();
    let (refused, buffers) = Asleep::new(&allocator, buffers, Backup::Discard).unwrap_err();
    assert!(
        matches!(refused, Error::Sleep(SleepError::NotOwned { address }) if address == captured),
        "{refused}"
    );
    allocator.release_pool(id).unwrap();
    drop(Asleep::new(&allocator, buffers, Backup::Discard).unwrap().wake(Restore::Nothing).unwrap());
    let untagged = vec![allocator.allocate(100, stream).unwrap()];
    let (refused, _) = Asleep::new(&allocator, untagged, Backup::Discard).unwrap_err();
    assert!(matches!(refused, Error::Sleep(SleepError::NotOfTag { tag: None, .. })));
}

#[test]
fn owned_allocations_are_waited_for_whoever_uses_them() {
    let world = World::new();
    let allocator = allocator(&world);
    let tag = allocator.tag("activations").unwrap();
    let mut contexts = vec![world.context.clone()];
    // None of them is a peer of the allocator.
    let others = world.driver.devices().unwrap().into_iter().skip(1);
    contexts.extend(others.map(|device| device.primary_context().unwrap()));
    for context in contexts {
        let elsewhere = Stream::new(&context).unwrap();
        let scope = tag.enter().unwrap();
        let [used, freed] = [0, 1].map(|_| allocator.allocate(3 * MIB, &world.stream).unwrap());
        drop(scope);
        world.stream.synchronize().unwrap();
        let gate = Gate::before(&elsewhere);
        [&used, &freed].into_iter().for_each(|block| drop(block.on(&elsewhere).unwrap()));
        let (asked, address) = (allocator.clone(), used.address());
        thread::scope(|scope| {
            let sleeping = scope.spawn(move || Asleep::new(&asked, vec![used], Backup::Discard));
            thread::sleep(Duration::from_millis(50));
            assert!(!sleeping.is_finished() && tag.state().asleep_bytes == 0);
            drop(freed);
            gate.open();
            // The other one may be on its way back yet.
            let buffers = match sleeping.join().unwrap() {
                Ok(asleep) => asleep.wake(Restore::Nothing).unwrap(),
                Err((_, buffers)) => buffers,
            };
            assert_eq!(buffers[0].address(), address);
        });
    }
}

#[test]
fn registrants_hear_in_order_and_whatever_they_do_stops_nothing() {
    let world = World::new();
    let (allocator, stream) = (allocator(&world), &world.stream);
    let tag = allocator.tag("weights").unwrap();
    let block = allocate_in(&tag, &allocator, 3 * MIB, stream);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listen = |name: &'static str| {
        let (heard, allocator) = (Arc::clone(&heard), allocator.clone());
        move |event: &cuda_mem_pool::caching::BackingEvent<'_>| {
            let bytes: u64 = event.ranges.iter().map(|range| range.end - range.start).sum();
            heard.lock().unwrap().push((name, event.is_leaving, bytes));
            // It has no lock of the allocator.
            allocator.empty_cache().unwrap();
            match name {
                "fails" => Err("no".to_owned()),
                "panics" => panic!("in a registrant"),
                _ => Ok(()),
            }
        }
    };
    let ids = ["first", "fails", "panics", "last"].map(|name| allocator.on_backing_change(listen(name)));
    let slept = sleep(&[&tag], Backup::Discard);
    let errors: Vec<_> = slept.notices.iter().map(|told| (told.id, told.error.as_deref())).collect();
    let expected = [None, Some("no"), Some("it panicked"), None];
    assert_eq!(errors, ids.into_iter().zip(expected).collect::<Vec<_>>());
    Tag::wake(&[&tag], Restore::Nothing).unwrap();
    let names = ["first", "fails", "panics", "last"];
    let all = [true, false].into_iter().flat_map(|leaving| names.map(|name| (name, leaving, 20 << 20)));
    assert_eq!(*heard.lock().unwrap(), all.collect::<Vec<_>>());
    ids.into_iter().for_each(|id| assert!(allocator.detach(id)));
    sleep(&[&tag], Backup::Discard);
    assert_eq!(heard.lock().unwrap().len(), 8);
    free(&allocator, block);
}

#[test]
fn a_tag_of_another_allocator_and_one_that_is_busy_are_refused() {
    let world = World::new();
    let (one, two) = (allocator(&world), allocator(&world));
    let (own, other) = (one.tag("own").unwrap(), two.tag("other").unwrap());
    let refused = refused(&[&own, &other], Backup::Discard);
    assert!(
        matches!(&refused, Error::Sleep(SleepError::OtherAllocator { tag }) if tag == "other"),
        "{refused}"
    );
    let block = allocate_in(&own, &one, MIB, &world.stream);
    let tag = own.clone();
    let seen = Arc::new(Mutex::new(None));
    let set = Arc::clone(&seen);
    let registrant = one.on_backing_change(move |_| {
        *set.lock().unwrap() = Some(Tag::wake(&[&tag], Restore::Nothing).unwrap_err());
        Ok(())
    });
    sleep(&[&own], Backup::Discard);
    let busy = seen.lock().unwrap().take().unwrap();
    assert!(matches!(busy, Error::Sleep(SleepError::Busy { .. })), "{busy}");
    // The same tag twice is one.
    assert_eq!(Tag::wake(&[&own, &own], Restore::Nothing).unwrap().len(), 1);
    assert!(!own.state().is_asleep);
    free(&one, block);
    // It has the tag, and with it the allocator that has it.
    assert!(one.detach(registrant));
}
