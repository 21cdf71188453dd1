//! Holes around captures.

use cuda_mem_core::{DeviceBuffer, Error, Stream};

use crate::common::capture::{Capture, GLOBAL};
use crate::rig::{on_simulator, position, read_on, text};

#[test]
fn c7_no_memory_goes_into_a_graph_by_a_safe_call() {
    on_simulator(|_, context| {
        let stream = Stream::new(context).unwrap();
        let (buffer, other) = (
            DeviceBuffer::<u8>::zeroed(&stream, 100).unwrap(),
            DeviceBuffer::<u8>::zeroed(&stream, 100).unwrap(),
        );
        let capture = Capture::begin(&stream, GLOBAL);
        for result in [
            buffer.whole().fill_bytes(&stream, 1),
            buffer.whole().copy_from(&stream, &other.whole()),
            DeviceBuffer::<u8>::zeroed(&stream, 100).map(drop),
        ] {
            assert!(matches!(result, Err(Error::Capturing { .. })));
        }
        let graph = capture.end().unwrap();
        assert_eq!(graph.len(), 0);
        drop((buffer, other));
        // SAFETY: it is empty.
        unsafe { graph.run(&stream) };
    });
}

#[test]
fn c7_memory_dropped_during_a_capture_is_freed_after_it() {
    on_simulator(|sim, context| {
        let stream = Stream::new(context).unwrap();
        let buffer = DeviceBuffer::<u8>::zeroed(&stream, 100).unwrap();
        sim.log().clear();
        let capture = Capture::begin(&stream, GLOBAL);
        drop(buffer);
        capture.end().unwrap();
        assert_eq!(context.driver().reclaim(), 0);
        let records = sim.log().records();
        let (ended, freed) = (position(&records, "cuStreamEndCapture"), position(&records, "cuMemFreeAsync"));
        assert!(ended < freed, "{}", text(&records));
    });
}

#[test]
fn n2_a_drop_waits_for_nobody_and_harms_no_capture() {
    on_simulator(|sim, context| {
        let (home, user, capturing) =
            (Stream::new(context).unwrap(), Stream::new(context).unwrap(), Stream::new(context).unwrap());
        let (buffer, target) = (
            DeviceBuffer::<u8>::zeroed(&home, 100).unwrap(),
            DeviceBuffer::<u8>::zeroed(&home, 100).unwrap(),
        );
        let capture = Capture::begin(&capturing, GLOBAL);
        sim.log().clear();
        read_on(&buffer, &user, &target);
        drop((buffer, target));
        let waits = ["cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize"];
        let waited = sim.log().filter(|record| waits.contains(&record.function));
        assert!(waited.is_empty(), "{}", text(&waited));
        assert_eq!(capture.end().map(|graph| graph.len()), Ok(0));
    });
}
