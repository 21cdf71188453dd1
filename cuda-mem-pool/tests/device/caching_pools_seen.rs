//! Who made the segments of private pools of `CachingAllocator`, in snapshots and in the history.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_mem_core::Stream;
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::history::{HistoryOptions, RecordContext};
use cuda_mem_pool::segments::Filter;
use cuda_mem_pool::snapshot::{Action, Frame};
use cuda_mem_pool::statistics::PoolStat;
use cuda_mem_pool::{MemoryResource, MempoolId};

use crate::common::World;

const MIB: usize = 1 << 20;

/// A history whose stacks are of one frame, with the line that the test says.
struct Seen {
    allocator: CachingAllocator,
    stream: Stream,
    line: Arc<AtomicU32>,
}

impl Seen {
    fn new(world: &World) -> Self {
        let allocator = CachingAllocator::new(&world.context, &CachingOptions::default()).unwrap();
        Self { allocator, stream: world.stream.clone(), line: Arc::default() }
    }

    fn record(&self, context: RecordContext) {
        let line = Arc::clone(&self.line);
        let frames = move || {
            Arc::<[Frame]>::from([Frame {
                filename: "here".into(),
                line: line.load(Ordering::SeqCst),
                name: "f".into(),
            }])
        };
        self.allocator.history().start(&HistoryOptions::default().with_frames(context, frames));
    }

    fn at(&self, line: u32) {
        self.line.store(line, Ordering::SeqCst);
    }

    fn allocate(&self, id: MempoolId) -> u64 {
        self.allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
        let block = self.allocator.allocate_by_address(3 * MIB, &self.stream).unwrap();
        self.allocator.end_allocate_to_pool(id).unwrap();
        self.allocator.release_pool(id).unwrap();
        block
    }

    fn free(&self, address: u64) {
        // SAFETY: tests free what they allocated, once, and nothing uses it.
        unsafe { self.allocator.free_by_address(address) }.unwrap();
    }

    /// The lines of a pool's segments.
    fn segments(&self, id: MempoolId) -> Vec<Option<u32>> {
        let snapshot = self.allocator.snapshot();
        let segments = snapshot.segments.iter().filter(|segment| segment.segment_pool_id == id);
        segments.map(|segment| line_of(segment.frames.as_ref())).collect()
    }

    /// Gives all back; the lines of what the history says of that.
    fn empty(&self) -> Vec<Option<u32>> {
        self.stream.synchronize().unwrap();
        self.allocator.empty_cache().unwrap();
        let entries = self.allocator.history().entries();
        let frees = entries.iter().filter(|entry| entry.action == Action::SegmentFree);
        frees.map(|entry| line_of(entry.frames.as_ref())).collect()
    }
}

fn line_of(frames: Option<&Arc<[Frame]>>) -> Option<u32> {
    Some(frames?.first()?.line)
}

#[test]
fn a_segment_has_the_stack_of_the_request_that_made_it() {
    let world = World::new();
    let (seen, id) = (Seen::new(&world), MempoolId::for_user());
    seen.allocator.create_or_incref_pool(id, None).unwrap();
    seen.record(RecordContext::State);
    seen.at(1);
    let first = seen.allocate(id);
    seen.at(2);
    let second = seen.allocate(id);
    assert_eq!(seen.segments(id), [Some(1)]);
    [first, second].into_iter().for_each(|block| seen.free(block));
    seen.allocator.release_pool(id).unwrap();
    assert_eq!(seen.segments(id), [Some(1)], "the segment is there yet");
    seen.allocator.history().stop();
    assert_eq!(seen.segments(id), [Some(1)], "as stacks of blocks do, it stays");
    seen.empty();
    // Another one, perhaps at the same address.
    let other = MempoolId::for_user();
    let second = seen.allocate(other);
    assert_eq!(seen.segments(other), [None]);
    seen.free(second);
}

#[test]
fn a_segment_that_goes_back_has_its_own_stack_where_frees_have_none() {
    let world = World::new();
    for (context, line) in
        [(RecordContext::State, None), (RecordContext::Alloc, Some(1)), (RecordContext::All, Some(2))]
    {
        let (seen, id) = (Seen::new(&world), MempoolId::for_user());
        seen.record(context);
        seen.at(1);
        let block = seen.allocate(id);
        seen.free(block);
        seen.at(2);
        assert_eq!(seen.empty(), [line], "{context:?}");
    }
}

#[test]
fn statistics_have_what_each_private_pool_reserved() {
    let world = World::new();
    let seen = Seen::new(&world);
    let (one, other) = (MempoolId::for_user(), MempoolId::for_user());
    let of = |id| seen.allocator.reserved_bytes_by_private_pool().get(&id).copied();
    let outside = seen.allocator.allocate(40 * MIB, &seen.stream).unwrap();
    assert!(seen.allocator.reserved_bytes_by_private_pool().is_empty(), "the default pool is none of them");

    let (first, second) = (seen.allocate(one), seen.allocate(other));
    let segment = 20 * MIB as u64;
    let all = |stat: PoolStat| [stat.all.current, stat.all.peak, stat.all.allocated, stat.all.freed];
    assert_eq!(of(one).map(all), Some([segment, segment, segment, 0]));
    assert_eq!(of(one).unwrap().large_pool, of(one).unwrap().all);
    assert_eq!(of(other).map(all), Some([segment, segment, segment, 0]));
    seen.allocator.reset_accumulated_statistics();
    assert_eq!(of(one).map(all), Some([segment, segment, 0, 0]));

    seen.free(first);
    world.stream.synchronize().unwrap();
    seen.allocator.empty_cache().unwrap();
    // The pool is gone: its peak and its sums stay until they are reset.
    assert_eq!(of(one).map(all), Some([0, segment, 0, segment]));
    assert_eq!(of(other).map(all), Some([segment, segment, 0, 0]));
    seen.allocator.reset_peak_statistics();
    seen.allocator.reset_accumulated_statistics();
    assert_eq!(of(one).map(all), Some([0; 4]));
    seen.free(second);
    drop(outside);
}
