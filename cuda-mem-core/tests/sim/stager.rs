//! Staged copies: which calls they make, that no slot is used again too early, and random batches.

use std::collections::BTreeMap;

use cuda_mem_core::copy::Stager;
use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, DeviceBuffer, Error, Stream};
use cuda_mem_sim::{Record, Sim};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::common::gate::Gate;
use crate::common::pattern;
use crate::rig::{argument, log_of, on_simulator, text};

const SLOT: usize = 32 << 10;
const SLOTS: usize = 2;

fn small(context: &Context) -> Stager {
    Stager::builder(context).threads(3).slots(SLOTS).slot_bytes(SLOT).build().unwrap()
}

fn count(records: &[Record], function: &str) -> usize {
    records.iter().filter(|record| record.function == function).count()
}

/// Before each copy that uses a slot again, the event that was recorded behind the copy before was seen to be reached.
fn expect_slots_were_free(records: &[Record], slot: &str) -> usize {
    // The event behind the last copy of each slot, until it was seen to be reached.
    let mut used = BTreeMap::<&str, Option<&str>>::new();
    let mut copies = 0;
    for (index, record) in records.iter().enumerate() {
        match record.function {
            "cuEventQuery" | "cuEventSynchronize" if record.result == CUresult::CUDA_SUCCESS => {
                let reached = Some(argument(record, "h_event"));
                used.values_mut().filter(|event| **event == reached).for_each(|event| *event = None);
            }
            "cuMemcpyAsync" => {
                copies += 1;
                let behind = records[index..].iter().find(|later| later.function == "cuEventRecord").unwrap();
                let before = used.insert(argument(record, slot), Some(argument(behind, "h_event"))).flatten();
                assert_eq!(before, None, "{record} came too early:\n{}", text(&records[..index]));
            }
            _ => {}
        }
    }
    assert_eq!(used.len(), SLOTS, "slots used");
    copies
}

/// The calls of a copy whose stream is held up until the copy has asked for its slots in vain.
fn held_up(sim: &Sim, stream: &Stream, copy: impl FnOnce() + Send) -> Vec<Record> {
    let gate = Gate::before(stream);
    sim.log().clear();
    let unready = |record: &Record| record.result == CUresult::CUDA_ERROR_NOT_READY;
    std::thread::scope(|scope| {
        let copying = scope.spawn(copy);
        while sim.log().filter(unready).len() < 5 {
            std::thread::yield_now();
        }
        let copies = sim.log().filter(|record| record.function.starts_with("cuMemcpy"));
        assert_eq!(copies.len(), SLOTS, "{}", text(&copies));
        gate.open();
        copying.join().unwrap();
    });
    sim.log().records()
}

#[test]
fn a_slot_is_used_again_after_its_event_and_the_ring_never_grows() {
    on_simulator(|sim, context| {
        let (stager, stream) = (small(context), Stream::new(context).unwrap());
        let len = 9 * SLOT;
        let (source, mut target) = (pattern(len, 1), vec![0; len]);
        let device = DeviceBuffer::<u8>::zeroed(&stream, len).unwrap();
        let whole = device.whole();
        let up = held_up(sim, &stream, || stager.upload(&stream, &source, &whole).unwrap());
        assert_eq!(expect_slots_were_free(&up, "src"), 9);
        stream.synchronize().unwrap();
        let down = held_up(sim, &stream, || stager.download(&stream, &whole, &mut target).unwrap());
        assert_eq!(expect_slots_were_free(&down, "dst"), 9);
        assert!(target == source);
        for records in [up, down] {
            assert_eq!(count(&records, "cuMemHostAlloc"), 0);
            assert_eq!(count(&records, "cuStreamSynchronize"), 0, "{}", text(&records));
            // Threads of the stager call no driver.
            assert!(records.iter().all(|record| record.thread == records[0].thread), "{}", text(&records));
        }
    });
}

#[test]
fn small_slices_make_the_calls_of_a_plain_copy() {
    on_simulator(|sim, context| {
        let (stager, stream) = (small(context), Stream::new(context).unwrap());
        let mut bytes = pattern(64 << 10, 2);
        let device = DeviceBuffer::<u8>::zeroed(&stream, bytes.len()).unwrap();
        let whole = device.whole();
        let calls = |work: &mut dyn FnMut()| -> Vec<_> {
            log_of(&sim.log(), work).iter().map(|record| record.function).collect()
        };
        let plain = [
            calls(&mut || whole.copy_from_slice(&stream, &bytes).unwrap()),
            calls(&mut || whole.copy_to_slice(&stream, &mut bytes.clone()).unwrap()),
        ];
        let staged = [
            calls(&mut || stager.upload(&stream, &bytes, &whole).unwrap()),
            calls(&mut || stager.download(&stream, &whole, &mut bytes).unwrap()),
        ];
        for (plain, staged) in plain.iter().zip(staged) {
            assert_eq!(staged, *plain);
        }
    });
}

#[test]
fn a_copy_that_fails_half_way_leaves_the_ring_whole() {
    on_simulator(|sim, context| {
        let (stager, stream) = (small(context), Stream::new(context).unwrap());
        let len = 9 * SLOT;
        let (source, mut target) = (pattern(len, 4), vec![0; len]);
        let device = DeviceBuffer::<u8>::zeroed(&stream, len).unwrap();
        for function in ["cuMemcpyAsync", "cuEventRecord", "cuEventQuery"] {
            for nth in (1..=5).chain(10..=14) {
                sim.fail_call(function, nth, CUresult::CUDA_ERROR_UNKNOWN);
                let copied = stager
                    .upload(&stream, &source, &device.whole())
                    .and_then(|()| stager.download(&stream, &device.whole(), &mut target));
                // A question that fails is followed by a wait, which succeeds.
                let fails = function != "cuEventQuery";
                assert_eq!(copied.is_err(), fails, "{function} {nth}: {copied:?}");
                sim.clear_faults();
                target.fill(0);
                stager.upload(&stream, &source, &device.whole()).unwrap();
                stager.download(&stream, &device.whole(), &mut target).unwrap();
                assert!(target == source, "{function} {nth}");
            }
        }
    });
}

#[test]
fn another_drivers_stream_is_refused() {
    on_simulator(|_, context| {
        let stager = small(context);
        let sim = Sim::builder().build();
        let driver = cuda_mem_core::Driver::over(sim.table()).unwrap();
        let stream = Stream::new(&driver.device(0).unwrap().primary_context().unwrap()).unwrap();
        let device = DeviceBuffer::<u8>::zeroed(&stream, 100_000).unwrap();
        for len in [100, 100_000] {
            let result = stager.upload(&stream, &vec![0; len], &device.range(..len).unwrap());
            assert!(matches!(result, Err(Error::ForeignContext { .. })), "{result:?}");
        }
    });
}

#[test]
fn a_stager_that_is_dropped_waits_for_its_copies() {
    on_simulator(|sim, context| {
        let stream = Stream::new(context).unwrap();
        let device = DeviceBuffer::<u8>::zeroed(&stream, 2 * SLOT).unwrap();
        let stager = small(context);
        let clone = stager.clone();
        sim.log().clear();
        stager.upload(&stream, &vec![1; 2 * SLOT], &device.whole()).unwrap();
        stager.upload_from(&stream, &mut &[2; 9][..], &device.range(..9).unwrap()).unwrap();
        drop(stager);
        assert_eq!(sim.log().count("cuMemFreeHost"), 0);
        drop(clone);
        let records = sim.log().records();
        let freed = records.iter().position(|record| record.function == "cuMemFreeHost").unwrap();
        let last = records.iter().rposition(|record| record.function == "cuEventRecord").unwrap();
        let event = argument(&records[last], "h_event");
        assert!(
            records[last..freed].iter().any(|record| record.function.starts_with("cuEvent")
                && record.function != "cuEventRecord"
                && record.result == CUresult::CUDA_SUCCESS
                && argument(record, "h_event") == event),
            "{}",
            text(&records)
        );
    });
}

/// Fills the ring with copies of a stream that is held up.
fn fill_ring(stager: &Stager, held: &Stream, device: &DeviceBuffer<u8>) {
    // From a reader, because as a slice it would go without the ring.
    let range = device.range(..SLOTS * SLOT).unwrap();
    stager.upload_from(held, &mut &pattern(SLOTS * SLOT, 9)[..], &range).unwrap();
}

#[test]
fn a_question_about_another_stream_that_fails_holds_up_nobody() {
    on_simulator(|sim, context| {
        let (stager, held, free) =
            (small(context), Stream::new(context).unwrap(), Stream::new(context).unwrap());
        let source = pattern(5 * SLOT, 7);
        let (one, two) = (
            DeviceBuffer::<u8>::zeroed(&held, source.len()).unwrap(),
            DeviceBuffer::<u8>::zeroed(&free, source.len()).unwrap(),
        );
        held.synchronize().unwrap();
        let gate = Gate::before(&held);
        fill_ring(&stager, &held, &one);
        sim.fail_call("cuEventQuery", 1, CUresult::CUDA_ERROR_UNKNOWN);
        // Nothing opens the gate before it returns.
        stager.upload(&free, &source, &two.whole()).unwrap();
        assert_eq!(sim.struck().len(), 1);
        gate.open();
        assert!(two.to_vec(&free).unwrap() == source);
        assert!(one.to_vec(&held).unwrap()[..SLOTS * SLOT] == pattern(SLOTS * SLOT, 9));
    });
}

#[test]
fn what_another_stream_failed_with_is_not_this_copys_error() {
    on_simulator(|sim, context| {
        let (stager, lost, free) =
            (small(context), Stream::new(context).unwrap(), Stream::new(context).unwrap());
        let source = pattern(5 * SLOT, 8);
        let (one, two) = (
            DeviceBuffer::<u8>::zeroed(&lost, source.len()).unwrap(),
            DeviceBuffer::<u8>::zeroed(&free, source.len()).unwrap(),
        );
        fill_ring(&stager, &lost, &one);
        for function in ["cuEventQuery", "cuEventSynchronize", "cuStreamSynchronize"] {
            sim.fail_call(function, 1, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        }
        stager.upload(&free, &source, &two.whole()).unwrap();
        assert_eq!(sim.struck().len(), 3, "{:?}", sim.struck());
        sim.clear_faults();
        assert!(two.to_vec(&free).unwrap() == source);
    });
}

#[test]
fn a_ring_that_was_found_stalled_is_not_waited_for_at_every_piece() {
    on_simulator(|sim, context| {
        let (stager, held, free) =
            (small(context), Stream::new(context).unwrap(), Stream::new(context).unwrap());
        let source = pattern(9 * SLOT, 6);
        let (one, two) = (
            DeviceBuffer::<u8>::zeroed(&held, source.len()).unwrap(),
            DeviceBuffer::<u8>::zeroed(&free, source.len()).unwrap(),
        );
        held.synchronize().unwrap();
        let gate = Gate::before(&held);
        fill_ring(&stager, &held, &one);
        let mut target = vec![0; source.len()];
        let logs = [
            log_of(&sim.log(), || stager.upload(&free, &source, &two.whole()).unwrap()),
            log_of(&sim.log(), || stager.upload_from(&free, &mut &source[..], &two.whole()).unwrap()),
            log_of(&sim.log(), || stager.download(&free, &two.whole(), &mut target).unwrap()),
        ];
        gate.open();
        assert!(target == source);
        for records in logs {
            let is_copy = |record: &Record| record.function.starts_with("cuMemcpy");
            let pieces = records.split(is_copy).collect::<Vec<_>>();
            assert!(pieces.len() > 5, "{}", text(&records));
            for between in &pieces[1..pieces.len() - 1] {
                // Two looks for a slot that is free by now.
                assert!(count(between, "cuEventQuery") <= 2, "{}", text(between));
            }
        }
    });
}

/// Copies: of each where its bytes come from, where they go, and how many they are.
fn copies() -> impl Strategy<Value = Vec<(usize, usize, usize)>> {
    let len = prop_oneof![4 => 0usize..200, 1 => SLOT - 2..SLOT + 3, 1 => 0..3 * SLOT];
    vec((0usize..SPACE, 0usize..SPACE, len), 0..24)
}

const SPACE: usize = 4 * SLOT;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn random_copies_move_the_bytes_that_a_model_says(
        up in copies(),
        down in copies(),
        threads in 1usize..4,
        slots in 1usize..4,
        pages in 1usize..9,
    ) {
        on_simulator(|_, context| {
            let stager =
                Stager::builder(context).threads(threads).slots(slots).slot_bytes(pages * 4096).build().unwrap();
            let (one, two) = (Stream::new(context).unwrap(), Stream::new(context).unwrap());
            let source = pattern(7 * SLOT, 5);
            let device = DeviceBuffer::<u8>::zeroed(&one, 7 * SLOT).unwrap();
            let mut model = vec![0; 7 * SLOT];
            for &(from, to, len) in &up {
                stager.upload(&one, &source[from..from + len], &device.range(to..to + len).unwrap()).unwrap();
                model[to..to + len].copy_from_slice(&source[from..from + len]);
            }
            for &(from, _, len) in &down {
                let mut target = vec![0; len];
                stager.download(&two, &device.range(from..from + len).unwrap(), &mut target).unwrap();
                assert!(target == model[from..from + len]);
            }
            assert!(device.to_vec(&one).unwrap() == model);
        });
    }
}
