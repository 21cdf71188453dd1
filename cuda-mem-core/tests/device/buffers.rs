//! Device memory: sizes, ranges, types, and what is refused.

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{DeviceBuffer, DeviceCopy, Error, ManagedBuffer, PinnedBuffer, host::PinnedFlags};

use crate::common::gate::Gate;
use crate::common::outcome::record;
use crate::common::{World, pattern};

#[test]
fn elements_come_back_as_they_went() {
    fn round_trip<T: DeviceCopy + PartialEq + std::fmt::Debug>(world: &World, elements: &[T]) {
        let buffer = DeviceBuffer::from_slice(&world.stream, elements).unwrap();
        assert_eq!((buffer.len(), buffer.size_bytes()), (elements.len(), size_of_val(elements)));
        assert_eq!(buffer.to_vec(&world.stream).unwrap(), elements);
    }
    let world = World::new();
    round_trip(&world, &pattern(100_001, 0));
    round_trip(&world, &[1.5f64, -0.0, f64::INFINITY]);
    round_trip(&world, &[[1u16, 2, 3], [4, 5, 6]]);
    round_trip(&world, &[i128::MIN, -1, i128::MAX]);
    round_trip(&world, &[usize::MAX]);
}

#[test]
fn zeroed_memory_is_zero_where_older_memory_was_not() {
    let world = World::new();
    for _ in 0..4 {
        drop(DeviceBuffer::from_slice(&world.stream, &[0xffu8; 5000]).unwrap());
        let zeroed = DeviceBuffer::<u64>::zeroed(&world.stream, 600).unwrap();
        assert_eq!(zeroed.to_vec(&world.stream).unwrap(), [0; 600]);
    }
}

#[test]
fn fill_bytes_sets_each_byte_of_its_range_and_no_other() {
    let world = World::new();
    let buffer = DeviceBuffer::<u32>::zeroed(&world.stream, 8).unwrap();
    buffer.range(2..5).unwrap().fill_bytes(&world.stream, 0xab).unwrap();
    let words = buffer.to_vec(&world.stream).unwrap();
    record!("words", &words);
    let set = 0xabab_abab;
    assert_eq!(words, [0, 0, set, set, set, 0, 0, 0]);
}

#[test]
fn ranges_are_what_slices_take() {
    let world = World::new();
    let buffer = DeviceBuffer::from_slice(&world.stream, &[0u16, 1, 2, 3, 4, 5, 6, 7]).unwrap();
    let mut two = [0; 2];
    buffer.range(6..).unwrap().copy_to_slice(&world.stream, &mut two).unwrap();
    assert_eq!(two, [6, 7]);
    buffer.range(..2).unwrap().copy_to_slice(&world.stream, &mut two).unwrap();
    assert_eq!(two, [0, 1]);
    buffer.range(3..=4).unwrap().copy_to_slice(&world.stream, &mut two).unwrap();
    assert_eq!(two, [3, 4]);
    let part = buffer.range(3..5).unwrap();
    assert_eq!((part.len(), part.size_bytes(), part.as_raw()), (2, 4, buffer.as_raw() + 6));
    assert_eq!(buffer.whole().len(), 8);
    assert!(buffer.range(8..).unwrap().is_empty());
}

#[test]
fn ranges_beyond_the_end_are_errors_with_both_numbers() {
    let world = World::new();
    let buffer = DeviceBuffer::<u8>::zeroed(&world.stream, 8).unwrap();
    #[allow(clippy::reversed_empty_ranges, reason = "it is the bad input")]
    let bad = [0..9, 9..9, 5..4, 0..usize::MAX, usize::MAX..usize::MAX];
    for range in bad {
        let error = buffer.range(range.clone()).unwrap_err();
        assert!(matches!(error, Error::OutOfRange { range: asked, len: 8 } if asked == range));
    }
    assert!(buffer.range(0..=usize::MAX).is_err());
    assert!(buffer.range((std::ops::Bound::Excluded(usize::MAX), std::ops::Bound::Unbounded)).is_err());
}

#[test]
fn lengths_that_differ_are_errors_with_both_numbers() {
    let world = World::new();
    let buffer = DeviceBuffer::<u32>::zeroed(&world.stream, 8).unwrap();
    let part = buffer.range(1..).unwrap();
    let results = [
        ("short source", buffer.copy_from_slice(&world.stream, &[1; 7]), (28, 32)),
        ("long source", buffer.copy_from_slice(&world.stream, &[1; 9]), (36, 32)),
        ("short target", buffer.copy_to_slice(&world.stream, &mut [1; 7]), (32, 28)),
        ("short range", buffer.whole().copy_from(&world.stream, &part), (28, 32)),
    ];
    for (name, result, lengths) in results {
        record!(name, &result);
        let Err(Error::LengthMismatch { source_len, target_len }) = result else {
            panic!("{name}: {result:?}")
        };
        assert_eq!((source_len, target_len), lengths, "{name}");
    }
    assert_eq!(buffer.to_vec(&world.stream).unwrap(), [0; 8]);
}

#[test]
fn a_copy_onto_itself_is_an_error() {
    let world = World::new();
    let buffer = DeviceBuffer::<u8>::zeroed(&world.stream, 8).unwrap();
    for (from, to) in [(0..8, 0..8), (0..5, 1..6), (3..6, 1..4)] {
        let (from, to) = (buffer.range(from).unwrap(), buffer.range(to).unwrap());
        let result = to.copy_from(&world.stream, &from);
        record!("overlapping", &result);
        assert!(matches!(result, Err(Error::Overlapping)), "{result:?}");
    }
    buffer.range(4..).unwrap().copy_from(&world.stream, &buffer.range(..4).unwrap()).unwrap();
}

#[test]
fn memory_of_no_bytes_takes_no_memory() {
    let world = World::new();
    let empty = DeviceBuffer::<u32>::uninit(&world.stream, 0).unwrap();
    assert!(empty.is_empty() && empty.as_raw() == 0);
    assert_eq!(empty.to_vec(&world.stream).unwrap(), []);
    empty.copy_from_slice(&world.stream, &[]).unwrap();
    empty.whole().fill_bytes(&world.stream, 1).unwrap();
    empty.whole().copy_from(&world.stream, &empty.whole()).unwrap();
    assert_eq!(empty.on(&world.stream).unwrap().address(), 0);
    empty.close().unwrap();
}

#[test]
fn sizes_that_do_not_fit_the_address_space_are_errors() {
    let world = World::new();
    for count in [1 << 62, 1 << 61, usize::MAX] {
        let results = [
            ("uninit", DeviceBuffer::<u32>::uninit(&world.stream, count).map(drop)),
            ("zeroed", DeviceBuffer::<u32>::zeroed(&world.stream, count).map(drop)),
            ("pinned", PinnedBuffer::<u32>::zeroed(&world.context, count, PinnedFlags::default()).map(drop)),
            ("managed", ManagedBuffer::<u32>::zeroed(&world.context, count).map(drop)),
        ];
        for (name, result) in results {
            record!(name, &result);
            assert!(
                matches!(result, Err(Error::TooLarge { count: asked, size: 4 }) if asked == count),
                "{name}"
            );
        }
    }
}

#[test]
fn more_than_the_device_has_is_out_of_memory() {
    let world = World::new();
    let bytes = world.context.device().total_memory().unwrap() + (1 << 30);
    let result = DeviceBuffer::<u8>::uninit(&world.stream, bytes);
    record!("out of memory", &result);
    let error = result.unwrap_err();
    assert_eq!(error.code(), Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
    let text = error.to_string();
    assert!(text.contains("cuMemAllocAsync") && text.contains(&bytes.to_string()), "{text}");
    assert!(text.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{text}");
    // It is no error of later calls.
    assert_eq!(DeviceBuffer::from_slice(&world.stream, &[1u8]).unwrap().to_vec(&world.stream).unwrap(), [1]);
}

#[test]
fn close_frees_in_stream_order() {
    let world = World::new();
    let other = world.new_stream();
    let buffer = DeviceBuffer::<u8>::zeroed(&world.stream, 1 << 20).unwrap();
    let gate = Gate::before(&other);
    buffer.whole().fill_bytes(&other, 1).unwrap();
    // Does not wait for the held stream on the host.
    buffer.close().unwrap();
    gate.open();
    other.synchronize().unwrap();
    world.stream.synchronize().unwrap();
}

#[test]
fn freed_memory_comes_back_on_its_own_stream() {
    let world = World::new();
    let size = world.context.device().total_memory().unwrap() / 4;
    for _ in 0..16 {
        // Sixteen quarters fit only one after the other.
        drop(DeviceBuffer::<u8>::uninit(&world.stream, size).unwrap());
    }
}

#[test]
fn readers_on_several_streams_run_beside_each_other_and_before_the_next_writer() {
    let world = World::new();
    let (one, two, writer) = (world.new_stream(), world.new_stream(), world.new_stream());
    let buffer = DeviceBuffer::<u8>::zeroed(&world.stream, 100).unwrap();
    world.stream.synchronize().unwrap();
    let gate = Gate::before(&one);
    drop(buffer.on_read(&one).unwrap());
    drop(buffer.on_read(&two).unwrap());
    two.synchronize().unwrap();
    drop(buffer.on(&writer).unwrap());
    assert!(!writer.is_idle().unwrap());
    gate.open();
    writer.synchronize().unwrap();
}
