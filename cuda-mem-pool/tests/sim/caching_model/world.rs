//! A machine, the allocator on it, and its blocks with what must be in them.

use std::alloc::Layout;
use std::thread;

use cuda_mem_core::{Context, Driver, Stream};
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::segments::Options;
use cuda_mem_pool::{Error, MemoryResource};
use cuda_mem_sim::Sim;
use proptest::sample::Index;

use super::Step;
use super::memory::{Live, Memory, Sample};
use crate::common::capture::{Capture, GLOBAL};
use crate::common::gate::Gate;

const STREAMS: usize = 3;
/// Up to here a block counts as small.
const SMALL: u64 = 1 << 20;

pub(super) struct World {
    /// First, so that after a panic it opens before anything waits.
    gate: Option<Gate>,
    capture: Option<(Capture, Stream)>,
    context: Context,
    allocator: CachingAllocator,
    moves: bool,
    segments: Options,
    most: u64,
    streams: Vec<Stream>,
    live: Vec<Live>,
    samples: Vec<Sample>,
    /// Gates that are open. Giving one back waits for all work, so they are kept until something else does.
    opened: Vec<Gate>,
    allocated: u64,
    ooms: u64,
    peak: u64,
    value: u8,
}

impl World {
    pub(super) fn new(sim: &Sim, options: &CachingOptions) -> Self {
        let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
        let allocator = CachingAllocator::new(&context, options).unwrap();
        Self {
            streams: (0..STREAMS).map(|_| Stream::new(&context).unwrap()).collect(),
            most: (context.device().total_memory().unwrap() as f64 * options.memory_fraction) as u64,
            context,
            allocator,
            moves: options.moves,
            segments: options.segments,
            live: Vec::new(),
            samples: Vec::new(),
            gate: None,
            opened: Vec::new(),
            capture: None,
            allocated: 0,
            ooms: 0,
            peak: 0,
            value: 0,
        }
    }

    pub(super) fn step(&mut self, step: &Step) {
        match *step {
            Step::Allocate { stream, bytes, by_address } => self.allocate(stream, bytes, by_address),
            Step::Use { block, stream } => {
                let Some(at) = self.which(block) else { return };
                let stream = stream.get(&self.streams).clone();
                self.use_block(at, &stream);
            }
            Step::Free { block, elsewhere } => {
                if let Some(at) = self.which(block) {
                    self.free(at, elsewhere);
                }
            }
            Step::FreeOn { block, stream } => self.free_on(block, stream),
            Step::EmptyCache => {
                let before = self.allocator.reserved_bytes();
                let bytes = self.allocator.empty_cache().unwrap();
                assert_eq!(self.allocator.reserved_bytes(), before - bytes);
            }
            Step::DropStream(stream) => {
                let at = stream.index(self.streams.len());
                self.streams[at] = Stream::new(&self.context).unwrap();
            }
            Step::Hold(stream) => {
                let stream = stream.get(&self.streams).clone();
                if self.gate.is_none() && !self.captures(&stream) {
                    self.gate = Some(Gate::before(&stream));
                }
            }
            Step::LetGo => self.let_go(),
            Step::Synchronise => self.synchronise(),
            Step::Capture(stream) => match self.capture.take() {
                Some((capture, _)) => assert_eq!(capture.end().expect("the capture is lost").len(), 0),
                None => {
                    let stream = stream.get(&self.streams).clone();
                    self.capture = Some((Capture::begin(&stream, GLOBAL), stream));
                }
            },
        }
    }

    /// What must be true at any time.
    pub(super) fn check(&mut self) {
        let mut spans: Vec<_> =
            self.live.iter().map(|live| (live.address, live.address + live.size)).collect();
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "two have the same addresses");
        let memory = self.context.memory_info().unwrap();
        assert_eq!(
            self.allocator.reserved_bytes(),
            memory.total - memory.free,
            "the device counts differently"
        );
        assert!(self.allocator.reserved_bytes() as u64 <= self.most);
        let statistics = self.allocator.statistics();
        for (small, blocks, bytes) in [
            (true, statistics.allocation.small_pool, statistics.allocated_bytes.small_pool),
            (false, statistics.allocation.large_pool, statistics.allocated_bytes.large_pool),
        ] {
            let live = self.live.iter().filter(|live| (live.size <= SMALL) == small);
            let (count, size) = live.fold((0, 0), |(count, size), live| (count + 1, size + live.size));
            assert_eq!((blocks.current, bytes.current), (count, size));
        }
        let live: u64 = self.live.iter().map(|live| live.size).sum();
        self.peak = self.peak.max(live);
        let all = statistics.allocated_bytes.all;
        assert_eq!(all.peak, self.peak, "{all:?}");
        let blocks = statistics.allocation.all;
        assert_eq!(
            (blocks.allocated, blocks.freed),
            (self.allocated, self.allocated - self.live.len() as u64)
        );
        assert!(statistics.active.all.current >= blocks.current);
        assert!(statistics.active_bytes.all.current <= self.allocator.reserved_bytes() as u64);
        assert_eq!(statistics.num_ooms, self.ooms);
    }

    /// Gives everything back.
    pub(super) fn end(mut self) {
        if let Some((capture, _)) = self.capture.take() {
            assert_eq!(capture.end().expect("the capture is lost").len(), 0);
        }
        self.streams.clear();
        while !self.live.is_empty() {
            self.free(0, self.live.len().is_multiple_of(3));
        }
        self.synchronise();
        assert_eq!(self.allocator.reserved_bytes(), 0, "nothing is in use and the cache is empty");
        self.check();
    }

    fn allocate(&mut self, stream: Index, bytes: usize, by_address: bool) {
        let stream = stream.get(&self.streams).clone();
        let size = self.segments.block_size(bytes as u64).unwrap();
        if self.allocator.reserved_bytes() as u64 + size + (64 << 20) > self.most {
            // Without more memory the host may have to wait.
            self.let_go();
        }
        let allocated = if by_address {
            self.allocator.allocate_by_address(bytes, &stream).map(|address| (Memory::Raw(address), address))
        } else {
            self.allocator.allocate(bytes, &stream).map(|block| {
                let address = block.address();
                (Memory::Owned(block), address)
            })
        };
        let (memory, address) = match allocated {
            Ok(allocated) => allocated,
            Err(Error::DeviceOutOfMemory(report)) => {
                assert_eq!(report.requested, bytes);
                self.ooms += 1;
                // Without moves a stream's memory stays its own until somebody empties the cache.
                let all_free =
                    self.moves && self.live.is_empty() && self.capture.is_none() && self.samples.is_empty();
                assert!(!all_free || size + (4 << 20) > self.most, "there is nothing but free memory");
                return;
            }
            Err(error) => panic!("{error:?}"),
        };
        assert_eq!(address % 512, 0);
        self.allocated += 1;
        let last = stream.clone();
        self.live.push(Live { memory, address, bytes, size, home: stream.clone(), last, value: None });
        self.use_block(self.live.len() - 1, &stream);
    }

    fn captures(&self, stream: &Stream) -> bool {
        self.capture.as_ref().is_some_and(|(_, captures)| captures == stream)
    }

    fn which(&self, block: Index) -> Option<usize> {
        (!self.live.is_empty()).then(|| block.index(self.live.len()))
    }

    /// Writes a block on a stream, behind its last use, unless one of the two captures.
    fn use_block(&mut self, at: usize, stream: &Stream) {
        let live = &self.live[at];
        if self.captures(stream) || self.captures(&live.last) || self.captures(&live.home) {
            return;
        }
        if let Memory::Raw(address) = live.memory {
            stream.wait_stream(&live.last).unwrap();
            self.allocator.record_stream(address, stream).unwrap();
        }
        self.value = self.value.wrapping_add(1);
        let value = self.value;
        self.live[at].fill(stream, value);
    }

    /// Has a block read, and frees it right behind that.
    fn free(&mut self, at: usize, elsewhere: bool) {
        let live = &self.live[at];
        let held_up = self.captures(&live.home) || self.captures(&live.last);
        if held_up && matches!(live.memory, Memory::Owned(_)) {
            // Its owner keeps it until the capture has ended.
            return;
        }
        let live = self.live.swap_remove(at);
        if !self.captures(&live.last) {
            self.samples.extend(live.sample());
        }
        let allocator = &self.allocator;
        let free = move || match live.memory {
            Memory::Owned(block) => drop(block),
            // SAFETY: what used it was recorded, or is ordered on its own stream.
            Memory::Raw(address) => unsafe { allocator.free_by_address(address) }.unwrap(),
        };
        if elsewhere {
            thread::scope(|scope| scope.spawn(free).join().unwrap());
        } else {
            free();
        }
    }

    fn free_on(&mut self, block: Index, stream: Index) {
        let Some(at) = self.which(block) else { return };
        let (live, stream) = (&self.live[at], stream.get(&self.streams).clone());
        let Memory::Raw(address) = live.memory else { return };
        if self.captures(&live.last) || self.captures(&live.home) || self.captures(&stream) {
            return;
        }
        let live = self.live.swap_remove(at);
        self.samples.extend(live.sample());
        stream.wait_stream(&live.last).unwrap();
        let layout = Layout::from_size_align(live.bytes, 256).unwrap();
        // SAFETY: a block that is out; the stream is behind all that used it.
        unsafe { self.allocator.raw().deallocate(address, layout, &stream) }.unwrap();
    }

    fn let_go(&mut self) {
        if let Some(gate) = self.gate.take() {
            gate.open();
            self.opened.push(gate);
        }
    }

    /// Waits for everything. Then what was read is what was written, and nothing that was freed is held up.
    fn synchronise(&mut self) {
        self.let_go();
        if self.capture.is_some() {
            return;
        }
        self.context.synchronize().unwrap();
        self.opened.clear();
        self.samples.drain(..).for_each(|sample| sample.check());
        self.allocator.empty_cache().unwrap();
        let statistics = self.allocator.statistics();
        let (active, live) = (statistics.active_bytes.all.current, statistics.allocated_bytes.all.current);
        assert_eq!(active, live, "freed blocks are held back");
        assert_eq!(statistics.active.all.current, statistics.allocation.all.current);
        let asked: usize = self.live.iter().map(|live| live.bytes).sum();
        assert_eq!(statistics.requested_bytes.all.current, asked as u64);
    }
}
