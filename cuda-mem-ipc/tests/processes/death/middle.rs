//! The middle of a chain A→B→C dies: A does not use the memory again before C is done with it.

use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{DeviceBuffer, Stream};
use cuda_mem_ipc::Error;
use cuda_mem_ipc::shared::{Exporter, Importer, MemoryKind, SharedPool, SharedPoolOptions};
use cuda_mem_ipc::transport::{PeerPolicy, pair as connected};

use super::stay;
use crate::common::gate::Gate;
use crate::common::pair::{self, Body, Cast, Channel, Peer, checksum, test_name};
use crate::common::{Backend, World, backend, pattern};
use crate::link::{
    LIMIT, SHORT, enqueue_download, enqueue_upload, eventually, export_to, import_from, invited, kinds,
    options,
};

const LEN: usize = 1 << 20;

/// Longer than it takes until what a dead peer had is used again.
const OVERDUE: Duration = Duration::from_secs(1);

/// Hands on what it gets, and keeps nothing of it itself.
fn middle(first: &Channel) {
    let world = World::new();
    hand_on(first, &world, &world.new_stream());
}

/// Hands on what it gets behind work that is never done.
fn unfinished_middle(first: &Channel) {
    let world = World::new();
    let stream = world.new_stream();
    let _never_opened = Gate::before(&stream);
    hand_on(first, &world, &stream);
}

fn hand_on(first: &Channel, world: &World, stream: &Stream) {
    let (importer, exporter) = both(first, world);
    exporter.hand_over(&importer.recv(LIMIT).unwrap(), stream, LIMIT).unwrap();
    stay(first);
}

fn both(first: &Channel, world: &World) -> (Importer, Exporter) {
    let importer = import_from(world, first);
    let (here, there) = connected().unwrap();
    first.send(b"for the last", &[there.as_fd()]);
    drop(there);
    let connection = here.complete(&PeerPolicy::default(), LIMIT).unwrap();
    (importer, Exporter::new(&world.context, connection, LIMIT).unwrap())
}

/// Reads what it gets when it is told to, and gives it back before that if it is told so first.
fn last(first: &Channel) {
    let world = World::new();
    let importer = Importer::new(&world.context, invited(first), LIMIT).unwrap();
    let buffer = importer.recv(LIMIT).unwrap();
    buffer.synchronize(LIMIT).unwrap();
    let stream = world.new_stream();
    let target = DeviceBuffer::zeroed(&stream, LEN).unwrap();
    let gate = Gate::before(&stream);
    enqueue_download(&stream, buffer.on(&stream).unwrap().address(), &target);
    let mut held = Some((buffer, importer));
    first.send(b"enqueued", &[]);
    while first.receive().bytes == b"drop" {
        held = None;
        first.send(b"dropped", &[]);
    }
    gate.open();
    first.send_words(&[checksum(&target.to_vec(&stream).unwrap())]);
    assert_eq!(first.receive().bytes, b"end");
    drop(held);
}

/// Has its stream wait for a middle that dies, and keeps the buffer.
fn waiting_last(first: &Channel) {
    let world = World::new();
    let importer = Importer::new(&world.context, invited(first), LIMIT).unwrap();
    let buffer = importer.recv(LIMIT).unwrap();
    let stream = world.new_stream();
    drop(buffer.on(&stream).unwrap());
    assert!(!stream.is_idle().unwrap());
    first.send(b"enqueued", &[]);
    assert_eq!(first.receive().bytes, b"killed");
    eventually("the stream goes on", || stream.is_idle().unwrap());
    assert!(matches!(buffer.is_ready(), Err(Error::PeerDied { .. })));
    first.send(b"went on", &[]);
    assert_eq!(first.receive().bytes, b"end");
}

/// Tells the last of what it gets, and hands nothing on.
fn announcing_middle(first: &Channel) {
    let world = World::new();
    let (importer, exporter) = both(first, &world);
    let buffer = importer.recv(LIMIT).unwrap();
    assert!(exporter.announce(&buffer).unwrap());
    stay(first);
}

/// And hands over something of its own, which the last does not receive.
fn announcing_middle_with_more(first: &Channel) {
    let world = World::new();
    let (importer, exporter) = both(first, &world);
    let buffer = importer.recv(LIMIT).unwrap();
    assert!(exporter.announce(&buffer).unwrap());
    let (stream, pool) = (world.new_stream(), SharedPool::new(&world.context, &SharedPoolOptions::default()));
    let own = pool.unwrap().allocate(LEN, &stream).unwrap();
    exporter.hand_over(&own, &stream, LIMIT).unwrap();
    first.send(b"handed over", &[]);
    stay(first);
}

/// Has it mapped, and calls nothing.
fn mapping_last(first: &Channel) {
    let world = World::new();
    let importer = Importer::new(&world.context, invited(first), LIMIT).unwrap();
    eventually("it is mapped", || importer.mapped_ahead() == 1);
    first.send(b"enqueued", &[]);
    assert_eq!(first.receive().bytes, b"drop");
    drop(importer);
    first.send(b"dropped", &[]);
    assert_eq!(first.receive().bytes, b"end");
    assert_eq!(world.driver.release_failures(), 0);
}

/// Whether the host functions of `busy_last` may end, and how many have begun.
static MAY_END: AtomicBool = AtomicBool::new(false);
static BEGUN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn until_it_may_end(_: *mut c_void) {
    BEGUN.fetch_add(1, Ordering::SeqCst);
    while !MAY_END.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Gives back what it gets while the driver comes to nothing: so many host functions are all that a simulated one runs at a time.
fn busy_last(first: &Channel) {
    let world = World::new();
    let importer = Importer::new(&world.context, invited(first), LIMIT).unwrap();
    let buffer = importer.recv(LIMIT).unwrap();
    buffer.synchronize(LIMIT).unwrap();
    first.send(b"enqueued", &[]);
    assert_eq!(first.receive().bytes, b"drop");
    let streams: Vec<_> = (0..8).map(|_| world.new_stream()).collect();
    let launch = world.driver.table().cuLaunchHostFunc().unwrap();
    for stream in &streams {
        // SAFETY: the stream lives, and the function touches nothing but a static and calls nothing of the driver's.
        let launched = unsafe { launch(stream.as_raw().cast(), Some(until_it_may_end), null_mut()) };
        assert_eq!(launched, CUresult::CUDA_SUCCESS);
    }
    if backend() == Backend::Simulator {
        // Before that there is somebody who comes to the free.
        eventually("all host functions run", || BEGUN.load(Ordering::SeqCst) == streams.len());
    }
    drop((buffer, importer));
    first.send(b"dropped", &[]);
    assert_eq!(first.receive().bytes, b"go on");
    MAY_END.store(true, Ordering::SeqCst);
    first.send(b"went on", &[]);
    assert_eq!(first.receive().bytes, b"end");
}

struct Chain {
    middle: Peer,
    last: Peer,
    exporter: Exporter,
    pool: SharedPool,
    bytes: Vec<u8>,
}

impl Chain {
    /// A segment of one buffer, which the last has and whose work waits.
    fn new(cast: Cast, world: &World, kind: MemoryKind) -> Self {
        let stream = world.new_stream();
        let pool = SharedPool::new(&world.context, &options(kind, LEN)).unwrap();
        let buffer = pool.allocate(LEN, &stream).unwrap();
        let bytes = pattern(LEN, 11);
        let source = DeviceBuffer::from_slice(&stream, &bytes).unwrap();
        let middle = cast.start("middle");
        let exporter = export_to(world, &middle);
        enqueue_upload(&stream, buffer.on(&stream).unwrap().address(), &source);
        exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
        let last = cast.start("last");
        let [there] = <[_; 1]>::try_from(middle.receive().descriptors).unwrap();
        last.send(b"connect", &[there.as_fd()]);
        drop(there);
        assert_eq!(last.receive().bytes, b"enqueued");
        Self { middle, last, exporter, pool, bytes }
    }

    fn drop_last_buffer(&self) {
        self.last.send(b"drop", &[]);
        assert_eq!(self.last.receive().bytes, b"dropped");
    }

    /// Writes over all memory that the pool would give out now, of which the lent buffer must be no part.
    fn write_over(&self, world: &World) -> Stream {
        let stream = world.new_stream();
        let other = self.pool.allocate(LEN, &stream).unwrap();
        let zeroes = DeviceBuffer::<u8>::zeroed(&stream, LEN).unwrap();
        enqueue_upload(&stream, other.on(&stream).unwrap().address(), &zeroes);
        stream
    }

    fn expect_what_was_written(&self) {
        self.last.send(b"go on", &[]);
        assert_eq!(self.last.receive().words(), [checksum(&self.bytes)]);
    }

    fn end(self) {
        self.last.send(b"end", &[]);
        self.last.finish();
        eventually("nobody has it", || self.exporter.leases() == 0);
        drop(self.middle);
    }
}

fn for_each_kind(test: &'static str, body: fn(&World, Chain)) {
    for_each_kind_with(test, middle, last, body);
}

fn for_each_kind_with(test: &'static str, middle: Body, last: Body, body: fn(&World, Chain)) {
    pair::play_beside(test, &[("middle", middle), ("last", last)], |cast| {
        let world = World::new();
        for kind in kinds(&world) {
            body(&world, Chain::new(cast, &world, kind));
        }
    });
}

#[test]
fn what_the_last_has_is_not_used_again() {
    for_each_kind(test_name!(), |world, mut chain| {
        chain.middle.kill();
        thread::sleep(OVERDUE);
        assert_eq!(chain.exporter.leases(), 1, "the last has it");
        chain.write_over(world).synchronize().unwrap();
        chain.expect_what_was_written();
        assert_eq!(chain.exporter.leases(), 1, "the last still has it");
        chain.end();
    });
}

#[test]
fn what_the_last_gave_back_to_the_dead_is_not_used_before_its_stream_is_done() {
    for_each_kind(test_name!(), |world, mut chain| {
        chain.middle.kill();
        thread::sleep(OVERDUE);
        chain.drop_last_buffer();
        thread::sleep(OVERDUE);
        assert_eq!(chain.exporter.leases(), 1, "its stream uses it");
        chain.write_over(world).synchronize().unwrap();
        chain.expect_what_was_written();
        eventually("it comes back", || chain.exporter.leases() == 0);
        chain.end();
    });
}

#[test]
fn what_the_last_gave_back_before_is_not_written_before_its_stream_is_done() {
    for_each_kind(test_name!(), |world, mut chain| {
        chain.drop_last_buffer();
        eventually("it comes back behind the last one's work", || chain.exporter.leases() == 0);
        chain.middle.kill();
        let stream = chain.write_over(world);
        thread::sleep(OVERDUE);
        chain.expect_what_was_written();
        stream.synchronize().unwrap();
        chain.end();
    });
}

#[test]
fn all_of_it_comes_back_when_the_last_dies_too() {
    for_each_kind(test_name!(), |_, mut chain| {
        chain.middle.kill();
        thread::sleep(OVERDUE);
        assert_eq!(chain.exporter.leases(), 1);
        chain.last.kill();
        eventually("it comes back", || chain.exporter.leases() == 0);
    });
}

/// It keeps the words of the dead, for whoever waits for its own uses: they do not go, and let nobody go with them.
#[test]
fn the_stream_of_the_last_does_not_wait_for_the_dead() {
    for_each_kind_with(test_name!(), unfinished_middle, waiting_last, |_, mut chain| {
        chain.middle.kill();
        chain.last.send(b"killed", &[]);
        assert_eq!(chain.last.receive().bytes, b"went on");
        chain.end();
    });
}

/// It has the memory mapped, and no buffer of it, and nobody receives what would be the last.
#[test]
fn what_the_last_has_mapped_ahead_goes_with_the_dead() {
    for_each_kind_with(test_name!(), announcing_middle, mapping_last, |_, mut chain| {
        chain.middle.kill();
        eventually("it comes back", || chain.exporter.leases() == 0);
        chain.drop_last_buffer();
        chain.end();
    });
}

/// The same, but that there is a buffer that may be received yet.
#[test]
fn what_the_last_has_mapped_ahead_is_not_used_again() {
    for_each_kind_with(test_name!(), announcing_middle_with_more, mapping_last, |_, mut chain| {
        // The last says that it has mapped what was announced before that.
        assert_eq!(chain.middle.receive().bytes, b"handed over");
        chain.middle.kill();
        thread::sleep(OVERDUE);
        assert_eq!(chain.exporter.leases(), 1, "the last has it mapped");
        chain.drop_last_buffer();
        eventually("it comes back", || chain.exporter.leases() == 0);
        chain.end();
    });
}

/// The driver frees it some time after it was told to, and its exporter's free must come behind that, whether the last has noticed that the
/// middle is dead when it lets go or does so later.
#[test]
fn a_block_of_a_pool_is_the_lasts_until_its_free_was_reached() {
    pair::play_beside(test_name!(), &[("middle", middle), ("last", busy_last)], |cast| {
        let world = World::new();
        for kind in kinds(&world).into_iter().filter(is_of_a_pool) {
            for noticed in [true, false] {
                let mut chain = Chain::new(cast, &world, kind);
                chain.middle.kill();
                if noticed {
                    thread::sleep(OVERDUE);
                }
                chain.drop_last_buffer();
                thread::sleep(2 * OVERDUE);
                // A device comes to the free, whatever its host functions do.
                if backend() == Backend::Simulator {
                    assert_eq!(chain.exporter.leases(), 1, "its free was not reached");
                }
                chain.last.send(b"go on", &[]);
                assert_eq!(chain.last.receive().bytes, b"went on");
                eventually("it comes back", || chain.exporter.leases() == 0);
                chain.end();
            }
        }
    });
}

/// Hands on what it gets, gives it back when the next one does, and goes on with its connections open.
fn lasting_middle(first: &Channel) {
    let world = World::new();
    let (importer, exporter) = both(first, &world);
    let buffer = importer.recv(LIMIT).unwrap();
    exporter.hand_over(&buffer, &world.new_stream(), LIMIT).unwrap();
    drop(buffer);
    first.send(b"handed on", &[]);
    assert_eq!(first.receive().bytes, b"end");
    assert_eq!((exporter.leases(), importer.buffers()), (0, 0));
}

/// Gives back what it gets when it is told to, keeps its connection, and receives again when it is told to.
fn lasting_last(first: &Channel) {
    let world = World::new();
    let importer = Importer::new(&world.context, invited(first), LIMIT).unwrap();
    let buffer = importer.recv(LIMIT).unwrap();
    first.send(b"enqueued", &[]);
    assert_eq!(first.receive().bytes, b"drop");
    drop(buffer);
    first.send(b"dropped", &[]);
    while first.receive().bytes == b"receive" {
        assert!(importer.recv(SHORT).unwrap_err().is_timeout());
        first.send(b"nothing came", &[]);
    }
}

/// A chain of more than three. All have handed on what they got, and the last has it.
struct Long {
    exporter: Exporter,
    /// Those between the first and the last.
    between: Vec<Peer>,
    last: Peer,
    _pool: SharedPool,
}

impl Long {
    fn new(cast: Cast, world: &World, kind: MemoryKind, between: usize) -> Self {
        let stream = world.new_stream();
        let pool = SharedPool::new(&world.context, &options(kind, LEN)).unwrap();
        let between = (0..between).map(|_| cast.start("middle")).collect::<Vec<_>>();
        let last = cast.start("last");
        let exporter = export_to(world, &between[0]);
        for (from, to) in between.iter().zip(between[1..].iter().chain([&last])) {
            let [there] = <[_; 1]>::try_from(from.receive().descriptors).unwrap();
            to.send(b"connect", &[there.as_fd()]);
        }
        exporter.hand_over(&pool.allocate(LEN, &stream).unwrap(), &stream, LIMIT).unwrap();
        for one in &between {
            assert_eq!(one.receive().bytes, b"handed on");
        }
        assert_eq!(last.receive().bytes, b"enqueued");
        Self { exporter, between, last, _pool: pool }
    }

    /// One of those between dies, which ends nothing that the last has.
    fn kill(&mut self, which: usize) {
        self.between[which].kill();
        thread::sleep(OVERDUE);
        assert_eq!(self.exporter.leases(), 1, "the last has it when {which} is dead");
    }

    fn drop_last_buffer(&self) {
        self.last.send(b"drop", &[]);
        assert_eq!(self.last.receive().bytes, b"dropped");
    }

    /// All comes back, though whoever lives has its connections still.
    fn expect_it_back(self, dead: &[usize]) {
        eventually("it comes back", || self.exporter.leases() == 0);
        self.last.send(b"end", &[]);
        self.last.finish();
        for (which, one) in self.between.into_iter().enumerate() {
            if !dead.contains(&which) {
                one.send(b"end", &[]);
                one.finish();
            }
        }
    }
}

/// Some of those between die, in this order, and the last gives back what it has.
fn die_in_a_long_chain(test: &'static str, between: usize, dying: &[usize]) {
    pair::play_beside(test, &[("middle", lasting_middle), ("last", lasting_last)], |cast| {
        let world = World::new();
        for kind in kinds(&world) {
            let mut chain = Long::new(cast, &world, kind, between);
            dying.iter().for_each(|which| chain.kill(*which));
            chain.drop_last_buffer();
            // Of a block of a pool whoever has an exporter that lives hears by receiving that it is to be let go of.
            if is_of_a_pool(&kind) && !dying.contains(&(between - 1)) {
                thread::sleep(OVERDUE);
                assert_eq!(chain.exporter.leases(), 1, "{kind:?}: the last has it mapped");
                eventually("it comes back when the last has received", || {
                    chain.last.send(b"receive", &[]);
                    assert_eq!(chain.last.receive().bytes, b"nothing came");
                    chain.exporter.leases() == 0
                });
            }
            chain.expect_it_back(dying);
        }
        assert_eq!(world.driver.release_failures(), 0);
    });
}

fn is_of_a_pool(kind: &MemoryKind) -> bool {
    matches!(kind, MemoryKind::DevicePool | MemoryKind::HostNumaPool(_))
}

/// Those behind it live on with their connections, by which they were told to keep the memory for the first.
#[test]
fn a_chain_of_four_gives_back_what_it_has_when_its_second_dies() {
    die_in_a_long_chain(test_name!(), 2, &[0]);
}

#[test]
fn a_chain_of_four_gives_back_what_it_has_when_its_third_dies() {
    die_in_a_long_chain(test_name!(), 2, &[1]);
}

#[test]
fn a_chain_of_four_gives_back_what_it_has_when_both_in_its_middle_die() {
    die_in_a_long_chain(test_name!(), 2, &[0, 1]);
}

#[test]
fn a_chain_of_four_gives_back_what_it_has_when_both_in_its_middle_die_from_the_end() {
    die_in_a_long_chain(test_name!(), 2, &[1, 0]);
}

/// Nobody there lets go of anything before whoever comes behind is done.
#[test]
fn what_the_fourth_gave_back_is_not_used_before_its_stream_is_done() {
    pair::play_beside(test_name!(), &[("middle", lasting_middle), ("last", last)], |cast| {
        let world = World::new();
        for kind in kinds(&world).into_iter().filter(|kind| !is_of_a_pool(kind)) {
            let mut chain = Long::new(cast, &world, kind, 2);
            chain.kill(0);
            chain.drop_last_buffer();
            thread::sleep(2 * OVERDUE);
            assert_eq!(chain.exporter.leases(), 1, "{kind:?}: its stream uses it");
            chain.last.send(b"go on", &[]);
            chain.last.receive();
            chain.expect_it_back(&[0]);
        }
    });
}

/// What the fourth need not keep any more, the fifth need not either.
#[test]
fn a_chain_of_five_gives_back_what_it_has_when_its_second_dies() {
    pair::play_beside(test_name!(), &[("middle", lasting_middle), ("last", lasting_last)], |cast| {
        let world = World::new();
        let mut chain = Long::new(cast, &world, MemoryKind::Device, 3);
        chain.kill(0);
        chain.drop_last_buffer();
        chain.expect_it_back(&[0]);
    });
}
