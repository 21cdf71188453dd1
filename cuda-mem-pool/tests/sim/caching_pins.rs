//! Pinned memory while all around it has to move.

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex};

use cuda_mem_core::host::PinnedFlags;
use cuda_mem_core::sys::CUmemAllocationHandleType;
use cuda_mem_core::vmm::{Access, AddressRange, PhysicalMemory};
use cuda_mem_core::{Context, PinnedBuffer, Stream, copy};
use cuda_mem_pool::caching::{Advice, CachingAllocator, CachingOptions, Pin, Segment};
use cuda_mem_pool::{Error, MemoryResource};
use cuda_mem_sim::Sim;

use crate::common::pattern;
use crate::rig::on;

const MIB: usize = 1 << 20;
const PINS: [Pin; 4] = [Pin::Exported, Pin::Registered, Pin::Graph, Pin::DlPack];

fn write(stream: &Stream, address: u64, bytes: &[u8]) {
    let mut source = PinnedBuffer::<u8>::zeroed(stream.context(), bytes.len(), PinnedFlags::empty()).unwrap();
    source.as_mut_slice().unwrap().copy_from_slice(bytes);
    let from = source.on(stream).unwrap();
    // SAFETY: a block of the allocator, or pinned memory of one, with that many bytes.
    unsafe { copy::memcpy_async(stream, address, from.address(), bytes.len()) }.unwrap();
}

/// Through host memory: the device has no room.
fn read(stream: &Stream, address: u64, len: usize) -> Vec<u8> {
    let target = PinnedBuffer::<u8>::zeroed(stream.context(), len, PinnedFlags::empty()).unwrap();
    {
        let to = target.on(stream).unwrap();
        // SAFETY: as in `write`.
        unsafe { copy::memcpy_async(stream, to.address(), address, len) }.unwrap();
    }
    target.as_slice().unwrap().to_vec()
}

/// Every second block of a device of 64 MiB is free: five of 8 MiB, with as many between them.
pub(crate) struct Holes {
    pub(crate) allocator: CachingAllocator,
    pub(crate) stream: Stream,
    pub(crate) kept: Vec<u64>,
    pub(crate) holes: Vec<u64>,
    changes: Arc<Mutex<Vec<Segment>>>,
}

const BLOCK: usize = 8 * MIB;

impl Holes {
    pub(crate) fn new(context: &Context) -> Self {
        let stream = Stream::new(context).unwrap();
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let blocks: Vec<u64> =
            (0..6).map(|_| allocator.allocate_by_address(BLOCK, &stream).unwrap()).collect();
        let changes = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&changes);
        allocator.attach_backing_watcher(move |change| seen.lock().unwrap().push(*change));
        let (kept, holes) = (vec![blocks[1], blocks[3], blocks[5]], vec![blocks[0], blocks[2], blocks[4]]);
        for (seed, block) in (0..).zip(&blocks) {
            write(&stream, *block, &pattern(BLOCK, seed));
        }
        Self { allocator, stream, kept, holes, changes }
    }

    pub(crate) fn free(&self, blocks: &[u64]) {
        for block in blocks {
            // SAFETY: allocated here; what uses it is in its stream.
            unsafe { self.allocator.free_by_address(*block) }.unwrap();
        }
    }

    /// Whether memory has left this hole.
    fn has_left(&self, hole: u64) -> bool {
        let within = |change: &Segment| {
            change.address < hole + BLOCK as u64 && hole < change.address + change.bytes as u64
        };
        self.changes.lock().unwrap().iter().any(within)
    }
}

#[test]
fn unpinned_memory_moves() {
    on(Sim::builder().memory(64 << 20), |_, context| {
        let all = Holes::new(context);
        let before = all.allocator.generation(all.holes[1], BLOCK).unwrap();
        all.free(&all.holes);
        // There is room for a block of this size only where all holes are put together.
        let block = all.allocator.allocate_by_address(36 * MIB, &all.stream).unwrap();
        assert!(all.has_left(all.holes[1]));
        match all.allocator.generation(all.holes[1], BLOCK) {
            Ok(after) => assert!(after > before),
            Err(error) => assert!(matches!(error, Error::UnknownAddress { .. })),
        }
        all.free(&[block]);
        all.free(&all.kept);
    });
}

#[test]
fn every_kind_of_pin_holds_while_pages_must_move() {
    for pin in PINS {
        on(Sim::builder().memory(64 << 20), |_, context| {
            let all = Holes::new(context);
            let hole = all.holes[1];
            let pinned = all.allocator.pin(hole, BLOCK, pin).unwrap();
            let (segments, generation) =
                (pinned.segments().unwrap(), all.allocator.generation(hole, BLOCK).unwrap());
            all.free(&all.holes);
            // The pinned hole is missing from a block of all of them.
            let refused = all.allocator.allocate_by_address(36 * MIB, &all.stream);
            let Err(Error::DeviceOutOfMemory(report)) = refused else { panic!("{refused:?}") };
            assert!(report.pinned >= BLOCK, "{report}");
            // The others suffice for this one, and have to move for it.
            let block = all.allocator.allocate_by_address(28 * MIB, &all.stream).unwrap();
            assert!(all.has_left(all.holes[0]) && all.has_left(all.holes[2]));
            assert!(!all.has_left(hole), "{pin:?}");
            assert_eq!(pinned.segments().unwrap(), segments);
            assert_eq!(all.allocator.generation(hole, BLOCK).unwrap(), generation);
            assert_eq!(read(&all.stream, hole, BLOCK), pattern(BLOCK, 2), "{pin:?}");
            for (seed, kept) in [1, 3, 5].into_iter().zip(&all.kept) {
                assert_eq!(read(&all.stream, *kept, BLOCK), pattern(BLOCK, seed));
            }
            // Also not when everything else goes back.
            all.free(&[block]);
            all.stream.synchronize().unwrap();
            all.allocator.empty_cache().unwrap();
            assert_eq!(read(&all.stream, hole, BLOCK), pattern(BLOCK, 2), "{pin:?}");
            drop(pinned);
            let block = all.allocator.allocate_by_address(36 * MIB, &all.stream).unwrap();
            all.free(&[block]);
            all.free(&all.kept);
        });
    }
}

#[test]
fn pins_are_what_the_report_says_is_in_the_way() {
    on(Sim::builder().memory(64 << 20).no_data(), |_, context| {
        let stream = Stream::new(context).unwrap();
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let blocks: Vec<u64> =
            (0..7).map(|_| allocator.allocate_by_address(BLOCK, &stream).unwrap()).collect();
        let pins: Vec<_> =
            blocks.iter().map(|block| allocator.pin(*block, BLOCK, Pin::Graph).unwrap()).collect();
        for block in blocks.iter().step_by(2) {
            // SAFETY: allocated above and not used.
            unsafe { allocator.free_by_address(*block) }.unwrap();
        }
        let refused = allocator.allocate_by_address(30 * MIB, &stream);
        let Err(Error::DeviceOutOfMemory(report)) = refused else { panic!("{refused:?}") };
        assert_eq!(report.advice.first(), Some(&Advice::Unpin { bytes: report.pinned }), "{report}");
        drop(pins);
        let block = allocator.allocate_by_address(30 * MIB, &stream).unwrap();
        for block in blocks.iter().skip(1).step_by(2).chain([&block]) {
            // SAFETY: as above.
            unsafe { allocator.free_by_address(*block) }.unwrap();
        }
    });
}

#[test]
fn a_free_part_of_pinned_memory_serves_where_it_is() {
    on(Sim::builder().memory(64 << 20).no_data(), |_, context| {
        let stream = Stream::new(context).unwrap();
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let block = allocator.allocate(40 * MIB, &stream).unwrap();
        let address = block.address();
        let pinned = allocator.pin(address, block.len(), Pin::Registered).unwrap();
        drop(block);
        let again = allocator.allocate(30 * MIB, &stream).unwrap();
        assert_eq!(again.address(), address);
        drop((again, pinned));
    });
}

/// Maps what a descriptor has, as another process would.
fn import(context: &Context, descriptor: &OwnedFd, bytes: usize) -> (AddressRange, PhysicalMemory) {
    let driver = context.driver();
    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let number = ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
    let mut raw = 0;
    // SAFETY: one handle to write, an open descriptor.
    let result = unsafe { driver.table().cuMemImportFromShareableHandle().unwrap()(&mut raw, number, kind) };
    assert_eq!(result.0, 0);
    // SAFETY: the handle that was just made.
    let memory = unsafe { PhysicalMemory::from_raw(driver, raw, bytes) };
    let range = AddressRange::reserve(context.device(), bytes, 0).unwrap();
    range.map(0, &memory).unwrap();
    range.set_access(0, bytes, &[context.device()], Access::ReadWrite).unwrap();
    (range, memory)
}

#[test]
fn what_is_exported_is_the_pinned_memory() {
    on(Sim::builder().memory(64 << 20), |_, context| {
        let stream = Stream::new(context).unwrap();
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let block = allocator.allocate(10 * MIB, &stream).unwrap();
        let bytes = pattern(10 * MIB, 9);
        write(&stream, block.address(), &bytes);
        let pinned = allocator.pin(block.address(), block.len(), Pin::Exported).unwrap();
        let exports = pinned.export_posix_fds().unwrap();
        assert!(exports.len() > 1, "one handle shows little");
        for (segment, descriptor) in exports {
            let (range, memory) = import(context, &descriptor, segment.bytes);
            let from = block.address().max(segment.address);
            let to = (block.address() + block.len() as u64).min(segment.address + segment.bytes as u64);
            let there = read(&stream, range.address() + (from - segment.address), (to - from) as usize);
            let part = (from - block.address()) as usize..(to - block.address()) as usize;
            assert_eq!(there, bytes[part]);
            // SAFETY: the reads were waited for.
            unsafe { range.unmap(0, segment.bytes) }.unwrap();
            drop((range, memory));
        }
        drop((pinned, block));
    });
}
