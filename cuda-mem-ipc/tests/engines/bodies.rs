//! What each rank of two does, over either library.

use std::sync::Arc;
use std::time::Duration;

use cuda_mem_core::{Error as CoreError, Stream};
use cuda_mem_ipc::symmetric::{Allocated, Error, SymmetricBackend, SymmetricBuffer};

use crate::common::capture::{Capture, RELAXED};
use crate::common::gate::Gate;
use crate::common::pattern;
use crate::rank::Rank;

const BYTES: usize = 100_000;

fn seed(rank: usize, round: usize) -> u8 {
    (3 + 7 * rank + round) as u8
}

/// Each rank reads what the other has written at home, and finds what the other has written here.
pub(crate) fn ranks_read_and_write_each_others_memory(rank: Rank) {
    let (own, other) = (rank.number(), rank.other());
    for (round, size) in [BYTES, 1, 3 << 20].into_iter().enumerate() {
        let address = rank.alloc(size).unwrap();
        let memory = rank.backend.rendezvous(address, None).unwrap();
        assert_eq!((memory.rank(), memory.world_size()), (own, 2));
        assert_eq!((memory.buffer_size(), memory.offset()), (size, 0));
        assert_eq!(memory.buffer_ptrs()[own], address);
        let (mine, theirs) = (pattern(size, seed(own, round)), pattern(size, seed(other, round)));
        rank.upload(&memory.get_buffer(own, 0..size).unwrap(), &mine);
        rank.meet(&*memory);
        assert!(rank.download(&memory.get_buffer(other, 0..size).unwrap()) == theirs);
        rank.meet(&*memory);
        rank.upload(&memory.get_buffer(other, 0..size).unwrap(), &mine);
        rank.meet(&*memory);
        assert!(rank.download(&memory.get_buffer(own, 0..size).unwrap()) == theirs);
        // The second time nobody is asked.
        let inside = rank.backend.rendezvous(address + size as u64 / 2, Some("engines")).unwrap();
        assert_eq!(inside.offset(), size / 2);
        let part = rank.download(&inside.get_buffer(own, 0..size - size / 2).unwrap());
        assert!(part == theirs[size / 2..]);
        rank.free(address).unwrap();
    }
    rank.finish();
}

/// Data, then its signal, a number of times and back, without a wait on the host.
pub(crate) fn signals_order_the_ranks_streams(rank: Rank) {
    let (own, other) = (rank.number(), rank.other());
    let memory = rank.memory(BYTES);
    let there = memory.get_buffer(other, 0..BYTES).unwrap();
    let here = memory.get_buffer(own, 0..BYTES).unwrap();
    for round in 0..20 {
        // Each in turn: one writes and signals, the other waits and reads.
        let is_writer = round % 2 == own;
        if is_writer {
            rank.upload(&there, &pattern(BYTES, seed(own, round)));
            memory.put_signal(&rank.stream, other, 0).unwrap();
        } else {
            memory.wait_signal(&rank.stream, other, 0, None).unwrap();
            assert!(rank.download(&here) == pattern(BYTES, seed(other, round)), "round {round}");
        }
    }
    // Signals are counted: two that came before are two.
    for _ in 0..2 {
        memory.put_signal(&rank.stream, other, 0).unwrap();
    }
    for _ in 0..2 {
        memory.wait_signal(&rank.stream, other, 0, None).unwrap();
    }
    rank.meet(&*memory);
    drop((memory, there, here));
    rank.finish();
}

/// More memory than there is, one piece after the other: each is given back when both ranks have freed it, in whatever order.
pub(crate) fn what_all_have_freed_is_given_back(rank: Rank) {
    let size = 64 << 20;
    for round in 0..24 {
        let pair = [rank.memory(size), rank.memory(size)];
        let pads = pair.each_ref().map(|memory| {
            let pad = memory.get_signal_pad(rank.number()).unwrap();
            assert_eq!(pad.bytes(), memory.signal_pad_size());
            assert!(rank.download(&pad).iter().all(|byte| *byte == 0), "round {round}");
            pad
        });
        // What the next allocation there must not find.
        pads.iter().for_each(|pad| rank.upload(pad, &vec![0xaa; pad.bytes()]));
        rank.meet(&*pair[0]);
        let [one, two] = pair;
        let [one, two] = if rank.number() == 0 { [one, two] } else { [two, one] };
        drop((pads, one));
        drop(two);
    }
    rank.finish();
}

/// Memory that a stream still uses stays where it is, and nobody waits for the stream but the end.
pub(crate) fn freeing_waits_for_the_streams_work(rank: Rank) {
    let (own, other) = (rank.number(), rank.other());
    let memory = rank.memory(BYTES);
    rank.upload(&memory.get_buffer(own, 0..BYTES).unwrap(), &pattern(BYTES, seed(own, 0)));
    rank.meet(&*memory);
    let busy = Stream::new(&rank.joined.context).unwrap();
    let source = memory.get_buffer(other, 0..BYTES).unwrap();
    let target = cuda_mem_core::DeviceBuffer::<u8>::zeroed(&busy, BYTES).unwrap();
    let gate = Gate::before(&busy);
    {
        let (from, to) = (source.on(&busy).unwrap(), target.on(&busy).unwrap());
        // SAFETY: as many bytes on both sides, which know of the stream.
        unsafe { cuda_mem_core::copy::memcpy_async(&busy, to.address(), from.address(), BYTES) }.unwrap();
    }
    drop((memory, source));
    // The next calls of all leave it alone.
    drop(rank.memory(BYTES));
    std::thread::scope(|scope| {
        let end = scope.spawn(|| rank.backend.close());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!end.is_finished());
        gate.open();
        end.join().unwrap().unwrap();
    });
    assert!(target.to_vec(&busy).unwrap() == pattern(BYTES, seed(other, 0)));
    drop(target);
    assert_eq!(rank.joined.context.driver().release_failures(), 0);
}

/// One rank's stream waits, with memory that it has freed, for a signal that the other sends after the next call of both.
pub(crate) fn a_call_of_all_does_not_wait_for_a_signal_that_comes_after_it(rank: Rank) {
    let kept = rank.memory(BYTES);
    let freed = rank.memory(BYTES);
    let there = freed.get_buffer(rank.other(), 0..BYTES).unwrap();
    if rank.number() == 0 {
        kept.wait_signal(&rank.stream, 1, 0, None).unwrap();
        drop(there.on(&rank.stream).unwrap());
    }
    drop((freed, there));
    let next = rank.memory(BYTES);
    if rank.number() == 1 {
        kept.put_signal(&rank.stream, 0, 0).unwrap();
    }
    rank.meet(&*next);
    drop((kept, next));
    rank.finish();
}

/// As a memory pool has it: no group at the allocation, and all together afterwards.
pub(crate) fn memory_without_an_owner_is_its_callers(rank: Rank) {
    let (own, other) = (rank.number(), rank.other());
    let device = rank.joined.context.device();
    let refused = rank.backend.alloc(BYTES, device, Some("engines"));
    assert!(matches!(&refused, Err(Error::GroupRefused { group, .. }) if group == "engines"), "{refused:?}");
    let address = rank.alloc(BYTES).unwrap();
    let memory = rank.backend.rendezvous(address, None).unwrap();
    rank.upload(&memory.get_buffer(own, 0..BYTES).unwrap(), &pattern(BYTES, seed(own, 0)));
    rank.meet(&*memory);
    let read = rank.download(&memory.get_buffer(other, 0..BYTES).unwrap());
    assert!(read == pattern(BYTES, seed(other, 0)));
    rank.free(address).unwrap();
    // It lives while this does.
    assert_eq!(rank.download(&memory.get_buffer(own, 0..1).unwrap()).len(), 1);
    let again = rank.free(address);
    assert!(matches!(again, Err(Error::UnknownAddress { .. })), "{again:?}");
    drop(memory);
    rank.finish();
}

/// Nothing is called, both ranks are told, and both go on.
pub(crate) fn ranks_that_differ_are_all_told(rank: Rank) {
    let size = BYTES + rank.number();
    let error = rank.alloc(size).unwrap_err();
    let (ours, theirs) = (size as u64, (BYTES + rank.other()) as u64);
    let expected = (rank.other(), 0, ours, theirs);
    let Error::OrderDiffers { rank: culprit, sequence, ours, theirs } = error else { panic!("{error}") };
    assert_eq!((culprit, sequence, ours, theirs), expected);

    let [one, two] = [(); 2].map(|()| rank.alloc(BYTES).unwrap());
    let (mine, both) = (if rank.number() == 0 { one } else { two }, [one, two]);
    let error = rank.backend.rendezvous(mine, None).unwrap_err();
    assert!(matches!(&error, Error::Disagrees { rank: other, .. } if *other == rank.other()), "{error}");
    // One is about to allocate, the other to end.
    let error = if rank.number() == 0 { rank.alloc(1).map(drop) } else { rank.backend.close() }.unwrap_err();
    assert!(matches!(error, Error::Disagrees { .. }), "{error}");

    both.iter().for_each(|address| drop(rank.backend.rendezvous(*address, None).unwrap()));
    both.iter().for_each(|address| rank.free(*address).unwrap());
    rank.finish();
}

/// It ends when nothing is in use, on any rank, and once.
pub(crate) fn it_ends_when_nothing_is_in_use(rank: Rank) {
    let address = rank.alloc(BYTES).unwrap();
    let memory = rank.backend.rendezvous(address, None).unwrap();
    rank.free(address).unwrap();
    // Rank 1 has something.
    let kept = (rank.number() == 1).then_some(memory);
    let error = rank.backend.close().unwrap_err();
    assert!(matches!(error, Error::StillUsed { rank: 1, allocations: 1 }), "{error}");
    drop(kept);
    rank.backend.close().unwrap();
    for refused in [rank.backend.close(), rank.alloc(1).map(drop)] {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::EngineClosed { .. }), "{error}");
    }
}

/// Arguments are checked before anybody is asked: the other rank notices nothing.
pub(crate) fn arguments_are_checked_here(rank: Rank) {
    let address = rank.alloc(BYTES).unwrap();
    let memory = rank.backend.rendezvous(address, None).unwrap();
    let (stream, context) = (&rank.stream, &rank.joined.context);
    if rank.number() == 0 {
        for outside in [address - 1, address + BYTES as u64] {
            let error = rank.backend.rendezvous(outside, None).unwrap_err();
            assert!(matches!(error, Error::UnknownAddress { .. }), "{error}");
        }
        let other = Allocated { address, serial: u64::MAX };
        // SAFETY: it is refused.
        let error = unsafe { rank.backend.free(other) }.unwrap_err();
        assert!(matches!(error, Error::UnknownAddress { .. }), "{error}");
        let error = rank.backend.rendezvous(address, Some("others")).unwrap_err();
        assert!(matches!(&error, Error::WrongGroup { asked, .. } if asked == "others"), "{error}");
        if let Some(device) = context.driver().devices().unwrap().into_iter().find(|d| *d != context.device())
        {
            let error = rank.backend.alloc(1, device, None).unwrap_err();
            assert!(matches!(error, Error::WrongDevice { .. }), "{error}");
        }
        let error = rank.alloc(usize::MAX).unwrap_err();
        assert!(matches!(error, Error::Core(CoreError::TooLarge { .. })), "{error}");
        for refused in [
            memory.get_buffer(2, 0..1).map(drop),
            memory.get_signal_pad(2).map(drop),
            memory.put_signal(stream, 2, 0),
            memory.wait_signal(stream, 2, 0, None),
            memory.barrier(stream, 8, None),
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error, Error::NotAccepted { .. }), "{error}");
        }
        let error = memory.get_buffer(1, 1..BYTES + 1).unwrap_err();
        assert!(matches!(error, Error::BeyondBuffer { rank: 1, .. }), "{error}");
        let timeout = Some(Duration::from_secs(1));
        for refused in [memory.barrier(stream, 0, timeout), memory.wait_signal(stream, 1, 0, timeout)] {
            let error = refused.unwrap_err();
            assert!(matches!(error, Error::NotSupported { .. }), "{error}");
        }
        let capturing = Stream::new(context).unwrap();
        let capture = Capture::begin(&capturing, RELAXED);
        for refused in [
            memory.barrier(&capturing, 0, None),
            memory.put_signal(&capturing, 1, 0),
            memory.wait_signal(&capturing, 1, 0, None),
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error, Error::Core(CoreError::Capturing { .. })), "{error}");
        }
        assert_eq!(capture.end().map(|graph| graph.len()).unwrap(), 0);
    }
    rank.meet(&*memory);
    drop(memory);
    rank.free(address).unwrap();
    rank.finish();
}

/// An owner asks it as any other backend.
pub(crate) fn an_owner_has_its_memory(rank: Rank) {
    let backend: Arc<dyn SymmetricBackend> = rank.backend.clone();
    let buffer = SymmetricBuffer::new(&backend, BYTES, rank.joined.context.device(), None).unwrap();
    let memory = buffer.rendezvous(None).unwrap();
    rank.meet(&*memory);
    drop((buffer, memory, backend));
    rank.finish();
}
