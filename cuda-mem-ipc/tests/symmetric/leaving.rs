//! Ranks that go in good order.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use cuda_mem_core::{DeviceBuffer, Error as CoreError, Stream};
use cuda_mem_ipc::symmetric::{Error, Group, GroupOptions, NativeBackend, SymmetricBackend};

use crate::common::World;
use crate::common::capture::{Capture, RELAXED};
use crate::common::child;
use crate::common::gate::Gate;
use crate::common::pair::{self, Channel, test_name};
use crate::rank::{Crew, LONG, Rank, SOON, Seat, culprit, options, until_broken, until_idle};

const LEFT: u64 = 2;

#[test]
fn what_a_rank_signalled_before_it_left_counts() {
    fn body(first: &Channel) {
        let rank = Seat::of(first).join();
        let memory = rank.memory(1000);
        rank.upload(&memory.get_buffer(0, 0..1000).unwrap(), &[5; 1000]);
        memory.put_signal(&rank.stream, 0, 0).unwrap();
        drop(memory);
        rank.finish();
    }
    pair::play(test_name!(), &[("rank", body)], |cast| {
        let mut crew = Crew::start(cast, 2);
        let rank = crew.seat.join();
        let memory = rank.memory(1000);
        crew.others.drain(..).for_each(pair::Peer::finish);
        memory.wait_signal(&rank.stream, 1, 0, None).unwrap();
        assert_eq!(rank.download(&memory.get_buffer(0, 0..1000).unwrap()), [5; 1000]);
        memory.check().unwrap();
        let left = [
            memory.wait_signal(&rank.stream, 1, 0, None),
            memory.put_signal(&rank.stream, 1, 0),
            memory.barrier(&rank.stream, 0, None),
            rank.empty(1000).rendezvous(None).map(drop),
        ];
        for left in left {
            let error = left.unwrap_err();
            assert!(matches!(error, Error::Left { rank: 1 }), "{error}");
        }
        memory.check().unwrap();
        drop(memory);
        rank.finish();
        crew.finish();
    });
}

/// Whatever it drops last, of a rank that leaves its streams' signals come first.
#[test]
fn what_a_rank_signals_yet_when_it_leaves_counts() {
    fn body(first: &Channel) {
        let rank = Seat::of(first).join();
        // Nobody asks for a buffer or a pad, which would be waited for as well.
        let memory = rank.memory(1000);
        let busy = Stream::new(&rank.context).unwrap();
        let gate = Gate::before(&busy);
        memory.put_signal(&busy, 0, 0).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(SOON);
                gate.open();
            });
            rank.finish();
            drop(memory);
        });
    }
    pair::play(test_name!(), &[("rank", body)], |cast| {
        let crew = Crew::start(cast, 2);
        let rank = crew.seat.join();
        let memory = rank.memory(1000);
        memory.wait_signal(&rank.stream, 1, 0, None).unwrap();
        until_idle(&rank.stream);
        memory.check().unwrap();
        drop(memory);
        rank.finish();
        crew.finish();
    });
}

#[test]
fn a_rank_that_leaves_while_others_wait_for_it_breaks_the_group() {
    fn body(first: &Channel) {
        let rank = Seat::of(first).join();
        let memory = rank.memory(1000);
        // It waits itself, which is given up.
        memory.wait_signal(&rank.stream, 0, 3, None).unwrap();
        assert_eq!(first.receive().bytes, b"leave");
        drop(memory);
        rank.finish();
    }
    pair::play(test_name!(), &[("rank", body)], |cast| {
        let crew = Crew::start(cast, 2);
        let rank = crew.seat.join();
        let memory = rank.memory(1000);
        memory.wait_signal(&rank.stream, 1, 0, None).unwrap();
        assert!(!rank.stream.is_idle().unwrap());
        crew.others[0].send(b"leave", &[]);
        assert_eq!(culprit(&until_broken(&*memory)), [1, LEFT]);
        until_idle(&rank.stream);
        drop(memory);
        rank.finish();
        crew.finish();
    });
}

/// Its streams are busy, and keep it until they are done.
#[test]
fn a_rank_that_is_about_to_leave_is_at_no_fault() {
    fn body(first: &Channel) {
        let rank = Seat::of(first).join();
        let memory = rank.memory(1000);
        let busy = Stream::new(&rank.context).unwrap();
        let gate = Gate::before(&busy);
        memory.put_signal(&busy, 0, 0).unwrap();
        // It waits itself, which is given up.
        memory.wait_signal(&rank.stream, 0, 3, None).unwrap();
        drop(memory);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(SOON);
                first.send(b"leaving", &[]);
                assert_eq!(first.receive().bytes, b"go on");
                gate.open();
            });
            rank.finish();
        });
    }
    pair::play(test_name!(), &[("rank", body)], |cast| {
        let crew = Crew::start(cast, 2);
        let rank = crew.seat.join();
        let memory = rank.memory(1000);
        assert_eq!(crew.others[0].receive().bytes, b"leaving");
        let start = Instant::now();
        let put = loop {
            match memory.put_signal(&rank.stream, 1, 3) {
                Ok(()) => assert!(start.elapsed() < LONG, "it does not leave"),
                refused => break refused,
            }
            std::thread::sleep(SOON);
        };
        for left in [put, memory.barrier(&rank.stream, 0, None)] {
            assert!(matches!(left, Err(Error::Left { rank: 1 })), "{left:?}");
        }
        memory.wait_signal(&rank.stream, 1, 0, None).unwrap();
        assert!(!rank.stream.is_idle().unwrap(), "it has left too early");
        crew.others[0].send(b"go on", &[]);
        until_idle(&rank.stream);
        memory.check().unwrap();
        drop(memory);
        rank.finish();
        crew.finish();
    });
}

#[test]
fn a_group_is_made_anew_and_forgets_what_it_had() {
    fn body(first: &Channel) {
        let seat = Seat::of(first);
        for _ in 0..2 {
            let rank = seat.join();
            rank.meet(&*rank.memory(1000));
            rank.finish();
        }
    }
    pair::play(test_name!(), &[("rank", body)], |cast| {
        let crew = Crew::start(cast, 2);
        for _ in 0..2 {
            let rank = crew.seat.join();
            let kept = rank.empty(1000);
            let memory = kept.rendezvous(None).unwrap();
            rank.meet(&*memory);
            let address = kept.as_raw();
            let again = rank.native.add_group(&rank.group);
            assert!(matches!(again, Err(Error::GroupExists { .. })), "{again:?}");
            // SAFETY: nobody uses what was allocated by its address.
            drop(unsafe { rank.native.remove_group("ranks") }.unwrap());
            let gone = rank.native.rendezvous(address, None);
            assert!(matches!(gone, Err(Error::UnknownAddress { .. })), "{gone:?}");
            // SAFETY: as above.
            let unknown = unsafe { rank.native.remove_group("ranks") };
            assert!(matches!(unknown, Err(Error::UnknownGroup { .. })), "{unknown:?}");
            drop((memory, kept));
            rank.finish();
        }
        crew.finish();
    });
}

#[test]
fn a_forked_child_has_nothing_and_its_parent_keeps_all() {
    fn body(first: &Channel) {
        let rank = Seat::of(first).join();
        rank.meet(&*rank.memory(1000));
        rank.meet(&*rank.memory(2000));
    }
    pair::play(test_name!(), &[("rank", body)], |cast| {
        let crew = Crew::start(cast, 2);
        let rank = crew.seat.join();
        let buffer = rank.empty(1000);
        let memory = buffer.rendezvous(None).unwrap();
        let Rank { native, group, stream, context, _turn } = rank;
        // Its child has all of it, to drop.
        let mut all = Some((native, group, buffer, memory));
        child::forked(|| {
            let (native, group, buffer, memory) = all.take().unwrap();
            let (device, options) = (memory.device(), GroupOptions { timeout: SOON, ..options() });
            let refused = [
                memory.check(),
                memory.barrier(&stream, 0, None),
                native.alloc(2000, device, Some("ranks")).map(drop),
                // SAFETY: it does nothing.
                unsafe { native.take(buffer.as_raw()) }.map(drop),
                native.rendezvous(buffer.as_raw(), None).map(drop),
                native.add_group(&group),
                // SAFETY: as above.
                unsafe { native.remove_group("ranks") }.map(drop),
                Group::join(&context, "forked", 0, 2, &crew.seat.directory, &options).map(drop),
            ];
            for (index, refused) in refused.into_iter().enumerate() {
                if !matches!(refused, Err(Error::Core(CoreError::Forked))) {
                    return Err(format!("{index}: {refused:?}\n"));
                }
            }
            Ok(())
        });
        let (native, group, _buffer, memory) = all.unwrap();
        let rank = Rank { native, group, stream, context, _turn };
        rank.meet(&*memory);
        rank.meet(&*rank.memory(2000));
        crew.finish();
    });
}

/// Another thread may have the lock of the groups when the process is forked.
#[test]
fn a_forked_child_shows_a_backend_without_its_lock() {
    let (native, over) = (NativeBackend::new(), AtomicBool::new(false));
    let world = World::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                assert!(native.alloc(1, world.context.device(), Some("none")).is_err());
            }
        });
        let ended = std::panic::catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..300 {
                child::forked(|| match format!("{native:?}").contains("groups: []") {
                    true => Ok(()),
                    false => Err("groups in a forked child\n".to_owned()),
                });
            }
        }));
        over.store(true, Ordering::Relaxed);
        ended.unwrap();
    });
}

/// What a stream was given before its capture began is waited for, also when the group goes with what it has allocated.
#[test]
fn a_group_that_ends_beside_a_capture_waits_for_the_work_before_it() {
    pair::play(test_name!(), &[], |cast| {
        let crew = Crew::start(cast, 1);
        let rank = crew.seat.join();
        let memory = rank.memory(1000);
        let buffer = memory.get_buffer(0, 0..1000).unwrap();
        rank.upload(&buffer, &[5; 1000]);
        let (stream, target) =
            (Stream::new(&rank.context).unwrap(), DeviceBuffer::<u8>::zeroed(&rank.stream, 1000).unwrap());
        rank.stream.synchronize().unwrap();
        let gate = Gate::before(&stream);
        target.whole().copy_from(&stream, &buffer.as_range().unwrap()).unwrap();
        let capture = Capture::begin(&stream, RELAXED);
        drop((buffer, memory));
        // The turn that is in it ends with the test, and sees whether the memory was there.
        let Rank { native, group, stream: own, context, _turn } = rank;
        drop((native, group, own));
        // Long enough for what must not be done.
        std::thread::sleep(SOON);
        capture.end().unwrap();
        gate.open();
        assert_eq!(target.to_vec(&stream).unwrap(), [5; 1000]);
        context.driver().reclaim();
        assert_eq!(context.driver().release_failures(), 0);
        crew.finish();
    });
}
