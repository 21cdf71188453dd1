//! Legacy memory handles.

use cuda_mem_core::ipc::{DeviceAllocation, MemoryHandle, OpenedMemory};
use cuda_mem_core::{Context, Error};

use crate::common::outcome::record;
use crate::common::pair::{self, Channel, Message, checksum, test_name};
use crate::common::{World, pattern};
use crate::{download, upload};

/// Neither at the start of the allocation nor at that of a page.
const PART: std::ops::Range<usize> = 1_000_001..1_300_004;

pub(crate) fn encode(handle: &MemoryHandle) -> Vec<u8> {
    let numbers = [handle.offset(), handle.len()].into_iter().flat_map(u64::to_le_bytes);
    handle.base().iter().copied().chain(numbers).collect()
}

pub(crate) fn decode(message: &Message) -> MemoryHandle {
    let words = message.words();
    MemoryHandle::from_parts(message.bytes[..64].try_into().unwrap(), words[8], words[9])
}

fn reader(first: &Channel) {
    let world = World::new();
    let handle = decode(&first.receive());
    let opened = OpenedMemory::open(&world.context, &handle).unwrap();
    assert_eq!(opened.bytes(), PART.len());
    let again = OpenedMemory::open(&world.context, &handle).unwrap();
    assert_eq!(again.as_raw(), opened.as_raw());
    again.close().unwrap();
    let address = opened.on(&world.stream).unwrap().address();
    first.send_words(&[checksum(&download(&world.stream, address, opened.bytes()))]);
    upload(&world.stream, address, &pattern(PART.len(), 2));
    first.send(b"written", &[]);
    // What the handle does not cover is refused, and nothing stays open.
    for (offset, len) in [(handle.offset(), u64::MAX), (u64::MAX, 1), (0, 64 << 20)] {
        let beyond = MemoryHandle::from_parts(*handle.base(), offset, len);
        let refused = OpenedMemory::open(&world.context, &beyond);
        assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{refused:?}");
    }
    opened.close().unwrap();
    assert_eq!(world.driver.release_failures(), 0);
}

#[test]
fn a_part_of_an_allocation_is_the_same_bytes_in_another_process() {
    pair::play(test_name!(), &[("reader", reader)], |cast| {
        let world = World::new();
        let memory = DeviceAllocation::new(&world.context, 4 << 20).unwrap();
        let mut bytes = pattern(memory.bytes(), 1);
        upload(&world.stream, memory.as_raw(), &bytes);
        let reader = cast.start("reader");
        // SAFETY: the memory stays until the peer has closed what it opened.
        reader.send(&encode(&unsafe { memory.handle(PART) }.unwrap()), &[]);
        assert_eq!(reader.receive().words(), [checksum(&bytes[PART])]);
        assert_eq!(reader.receive().bytes, b"written");
        bytes[PART].copy_from_slice(&pattern(PART.len(), 2));
        let now = download(&world.stream, memory.as_raw(), memory.bytes());
        record!("after the other's writes", &now);
        assert!(now == bytes, "the part was written, and nothing beside it");
        reader.finish();
        memory.close().unwrap();
    });
}

fn expect_code<T: std::fmt::Debug>(result: Result<T, Error>, code: u32) {
    let error = result.unwrap_err();
    assert_eq!(error.code().map(|code| code.0), Some(code), "{error}");
}

#[test]
fn handles_that_mean_nothing_are_refused() {
    let world = World::new();
    let open = |handle: &MemoryHandle| OpenedMemory::open(&world.context, handle);
    let memory = DeviceAllocation::new(&world.context, 1).unwrap();
    // SAFETY: the memory stays until the peer has closed what it opened.
    let own = open(&unsafe { memory.handle(0..1) }.unwrap());
    record!("of this process", &own);
    expect_code(own, 201);
    let zeros = open(&MemoryHandle::from_parts([0; 64], 0, 1));
    record!("zeros", &zeros);
    expect_code(zeros, 1);
    #[expect(clippy::reversed_empty_ranges, reason = "is what is refused")]
    for range in [0..memory.bytes() + 1, 2..1] {
        // SAFETY: the memory stays until the peer has closed what it opened.
        assert!(matches!(unsafe { memory.handle(range) }, Err(Error::OutOfRange { .. })));
    }
    // A handle of no bytes is of this memory too, wherever they are.
    // SAFETY: nobody is given these handles.
    let [first, none] =
        [0..1, memory.bytes()..memory.bytes()].map(|range| unsafe { memory.handle(range) }.unwrap());
    assert_eq!((none.base(), none.offset(), none.len()), (first.base(), memory.bytes() as u64, 0));
    // SAFETY: as above.
    let of = |context: &Context, address| unsafe { MemoryHandle::of_address(context, address, 1) };
    let stream = world.new_stream();
    let pooled = cuda_mem_core::DeviceBuffer::<u8>::uninit(&stream, 100).unwrap();
    let refused = of(&world.context, pooled.as_raw());
    record!("memory of a pool", &refused);
    expect_code(refused, 1);
    assert_eq!(of(&world.context, memory.as_raw() + 77).unwrap().offset(), 77);
}

fn late_reader(first: &Channel) {
    let world = World::new();
    let handle = decode(&first.receive());
    assert_eq!(first.receive().bytes, b"freed");
    expect_code(OpenedMemory::open(&world.context, &handle), 1);
}

#[test]
fn what_was_freed_cannot_be_opened() {
    pair::play(test_name!(), &[("reader", late_reader)], |cast| {
        let world = World::new();
        let memory = DeviceAllocation::new(&world.context, 1).unwrap();
        let reader = cast.start("reader");
        // SAFETY: the memory stays until the peer has closed what it opened.
        reader.send(&encode(&unsafe { memory.handle(0..100) }.unwrap()), &[]);
        memory.close().unwrap();
        reader.send(b"freed", &[]);
        reader.finish();
    });
}
