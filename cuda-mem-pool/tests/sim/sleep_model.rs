//! Tags against a model that knows which bytes each block has, and which blocks sleep: nested scopes, frees asleep, parts that are kept,
//! partial wakes, limits, and calls of the driver that fail.

use cuda_mem_core::copy::{memcpy_async, memset_async};
use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, Driver, Stream};
use cuda_mem_pool::Error;
use cuda_mem_pool::caching::{
    Advice, Backup, CachingAllocator, CachingOptions, Keep, OutOfMemoryReport, Restore, SleepError, Tag,
};
use cuda_mem_pool::statistics::Stat;
use cuda_mem_sim::Sim;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::blocks::free;
use crate::common::is_filled;
use crate::rig::expect_clean;

const MIB: usize = 1 << 20;
const PAGE: u64 = 2 << 20;

#[derive(Debug, Clone)]
enum Step {
    /// In the scopes of these tags, the last innermost.
    Allocate {
        scopes: Vec<usize>,
        bytes: usize,
    },
    Write {
        block: Index,
        value: u8,
    },
    Free(Index),
    Keep(Index),
    EndKeep(Index),
    Sleep {
        tags: usize,
        pinned: bool,
        fault: Option<(&'static str, u64)>,
    },
    Wake {
        tags: usize,
        restore: Option<u8>,
        nothing: bool,
        fault: Option<(&'static str, u64)>,
    },
    Limit(usize),
    EmptyCache,
    /// Host memory for the next sleep, or none.
    Prepare(usize, bool),
    ResetFigures,
}

#[derive(Debug, Clone)]
struct Block {
    address: u64,
    bytes: usize,
    tag: Option<usize>,
    /// What each byte is; unknown where nobody promises it.
    value: Option<u8>,
}

struct World<'s> {
    sim: &'s Sim,
    context: Context,
    stream: Stream,
    allocator: CachingAllocator,
    tags: [Tag; 2],
    blocks: Vec<Block>,
    keeps: Vec<Keep>,
    /// Whether the driver may have refused to take memory back that was unmapped: it is held, and in no segment.
    may_hold_unmapped: bool,
}

fn fault() -> impl Strategy<Value = Option<(&'static str, u64)>> {
    let calls = vec![
        "cuMemUnmap",
        "cuMemRelease",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemHostRegister",
        "cuMemcpyAsync",
        "cuStreamSynchronize",
        "cuCtxSynchronize",
        "cuStreamCreateWithPriority",
    ];
    prop_oneof![2 => Just(None), 1 => (select(calls), 1..6u64).prop_map(Some)]
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = select(vec![1, 1000, MIB, MIB + 1, 5 * MIB, 17 * MIB, 30 * MIB]);
    let index = any::<Index>;
    prop_oneof![
        6 => (vec(0..2usize, 0..3), bytes).prop_map(|(scopes, bytes)| Step::Allocate { scopes, bytes }),
        4 => (index(), 1..250u8).prop_map(|(block, value)| Step::Write { block, value }),
        3 => index().prop_map(Step::Free),
        2 => index().prop_map(Step::Keep),
        1 => index().prop_map(Step::EndKeep),
        5 => (1..4usize, any::<bool>(), fault())
            .prop_map(|(tags, pinned, fault)| Step::Sleep { tags, pinned, fault }),
        5 => (1..4usize, prop::option::weighted(0.2, 1..250u8), prop::bool::weighted(0.2), fault())
            .prop_map(|(tags, restore, nothing, fault)| Step::Wake { tags, restore, nothing, fault }),
        1 => select(vec![60 * MIB, 120 * MIB, usize::MAX]).prop_map(Step::Limit),
        1 => Just(Step::EmptyCache),
        1 => (0..2usize, any::<bool>()).prop_map(|(tag, makes)| Step::Prepare(tag, makes)),
        1 => Just(Step::ResetFigures),
    ]
}

impl World<'_> {
    fn chosen(&self, mask: usize) -> Vec<Tag> {
        (0..2).filter(|tag| mask >> tag & 1 == 1).map(|tag| self.tags[tag].clone()).collect()
    }

    /// How many pages of a block sleep, of how many.
    fn asleep(&self, block: &Block) -> (usize, usize) {
        let Some(tag) = block.tag else { return (0, 1) };
        let last = block.address + block.bytes as u64 - 1;
        let pages = (block.address..last).step_by(PAGE as usize).chain([last]);
        let (all, asleep): (Vec<_>, Vec<_>) = pages.map(|at| (at, self.tags[tag].is_asleep_at(at))).unzip();
        (asleep.iter().filter(|asleep| **asleep).count(), all.len())
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Allocate { scopes, bytes } => self.allocate(scopes, *bytes),
            Step::Write { block, value } => {
                if let Some(at) = self.pick(block)
                    && self.asleep(&self.blocks[at]).0 == 0
                {
                    let block = &mut self.blocks[at];
                    // SAFETY: the block's own memory, which is awake.
                    unsafe { memset_async(&self.stream, block.address, *value, block.bytes) }.unwrap();
                    block.value = Some(*value);
                }
            }
            Step::Free(block) => {
                if let Some(at) = self.pick(block) {
                    free(&self.allocator, self.blocks.swap_remove(at).address);
                }
            }
            Step::Keep(block) => {
                let Some(at) = self.pick(block) else { return };
                let block = &self.blocks[at];
                let Some(tag) = block.tag else { return };
                let bytes = block.bytes.min(1000);
                let first_sleeps = self.tags[tag].is_asleep_at(block.address)
                    || self.tags[tag].is_asleep_at(block.address + bytes as u64 - 1);
                match self.tags[tag].keep(block.address, bytes, "the model") {
                    Ok(keep) => self.keeps.push(keep),
                    Err(Error::Sleep(SleepError::Asleep { .. })) => assert!(first_sleeps),
                    Err(error) => panic!("{error}"),
                }
            }
            Step::EndKeep(keep) => {
                if !self.keeps.is_empty() {
                    drop(self.keeps.swap_remove(keep.index(self.keeps.len())));
                }
            }
            Step::Sleep { tags, pinned, fault } => self.sleep(*tags, *pinned, *fault),
            Step::Wake { tags, restore, nothing, fault } => self.wake(*tags, *restore, *nothing, *fault),
            Step::Limit(bytes) => drop(self.allocator.set_limit(*bytes).unwrap()),
            Step::EmptyCache => drop(self.allocator.empty_cache().unwrap()),
            Step::Prepare(tag, makes) => {
                let (tag, state) = (&self.tags[*tag], self.tags[*tag].state());
                let made = if *makes { tag.prepare() } else { tag.release_backup() };
                match made {
                    Ok(bytes) if *makes => assert_eq!(tag.state().backup_bytes, bytes),
                    Ok(bytes) => assert_eq!((bytes, tag.state().backup_bytes), (state.backup_bytes, 0)),
                    Err(error) => assert!(state.is_asleep, "{error}"),
                }
            }
            Step::ResetFigures => {
                self.allocator.reset_peak_statistics();
                self.allocator.reset_accumulated_statistics();
                let statistics = self.allocator.statistics();
                let (split, active) = (statistics.inactive_split_bytes, statistics.active_bytes);
                // Of large blocks it is what was held for any, cut up since or not.
                let reserved = [statistics.reserved_bytes.all, statistics.reserved_bytes.small_pool];
                for stat in
                    [split.all, split.small_pool, active.all, active.large_pool].iter().chain(&reserved)
                {
                    assert_eq!(*stat, Stat { peak: stat.current, current: stat.current, ..Stat::default() });
                }
            }
        }
    }

    /// The report's figures are those of the allocator, which has nothing under way.
    fn check_report(&self, report: &OutOfMemoryReport) {
        assert_eq!(report.reserved, self.allocator.reserved_bytes());
        assert_eq!(report.free, Some(self.context.memory_info().unwrap().free));
        assert!(report.cached_bytes() + report.live + report.pending <= report.reserved, "{report}");
        let is_own = |advice: &Advice| matches!(advice, Advice::ReleasePools { .. });
        assert!(!report.advice.iter().any(is_own), "the only pools are tags' own: {report}");
    }

    fn pick(&self, index: &Index) -> Option<usize> {
        (!self.blocks.is_empty()).then(|| index.index(self.blocks.len()))
    }

    fn allocate(&mut self, scopes: &[usize], bytes: usize) {
        let entered: Vec<_> = scopes.iter().map(|tag| self.tags[*tag].enter().unwrap()).collect();
        // Of routes that are there already the last begun decides, which may be the outer one's.
        let tag = scopes.last().copied();
        match self.allocator.allocate_by_address(bytes, &self.stream) {
            Ok(address) => {
                assert_eq!(self.tags.iter().position(|tag| tag.has(address)), tag);
                assert!(tag.is_none_or(|tag| !self.tags[tag].state().is_asleep));
                self.blocks.push(Block { address, bytes, tag, value: None });
            }
            Err(Error::Sleep(SleepError::Asleep { tag: name })) => {
                let tag = &self.tags[tag.unwrap()];
                assert!(tag.state().is_asleep && tag.name() == name);
            }
            Err(Error::DeviceOutOfMemory(report)) => self.check_report(&report),
            Err(error) => panic!("{error}"),
        }
        drop(entered);
    }

    fn arm(&mut self, fault: Option<(&str, u64)>) {
        if let Some((function, nth)) = fault {
            self.may_hold_unmapped |= function == "cuMemRelease";
            self.sim.fail_call(function, nth, CUresult::CUDA_ERROR_UNKNOWN);
        }
    }

    fn sleep(&mut self, mask: usize, pinned: bool, fault: Option<(&'static str, u64)>) {
        let before: Vec<_> = self.blocks.iter().map(|block| self.asleep(block)).collect();
        let states = self.tags.each_ref().map(Tag::state);
        self.stream.synchronize().unwrap();
        self.arm(fault);
        let tags = self.chosen(mask);
        let backup = if pinned { Backup::Pinned } else { Backup::Discard };
        // SAFETY: the model uses nothing that sleeps.
        let outcome = unsafe { Tag::sleep(&tags.iter().collect::<Vec<_>>(), backup) };
        self.sim.clear_faults();
        let after: Vec<_> = self.blocks.iter().map(|block| self.asleep(block)).collect();
        match outcome {
            Err(error) => {
                assert!(fault.is_some(), "{error}");
                assert_eq!(before, after, "{error}");
                let now = self.tags.each_ref().map(Tag::state);
                for (state, now) in states.iter().zip(&now) {
                    assert_eq!((state.is_asleep, state.awake_bytes), (now.is_asleep, now.awake_bytes));
                }
            }
            Ok(slept) => {
                assert!(tags.iter().all(|tag| tag.state().is_asleep));
                assert!(fault.is_some() || slept.refused.is_empty());
                for (block, (before, after)) in self.blocks.iter_mut().zip(before.iter().zip(&after)) {
                    if after.0 > before.0 && !pinned {
                        block.value = None;
                    }
                }
            }
        }
    }

    fn wake(&mut self, mask: usize, filled: Option<u8>, nothing: bool, fault: Option<(&'static str, u64)>) {
        let before: Vec<_> = self.blocks.iter().map(|block| self.asleep(block)).collect();
        let restore = match filled {
            _ if nothing => Restore::Nothing,
            Some(byte) => Restore::Filled(byte),
            None => Restore::Backup,
        };
        let tags = self.chosen(mask);
        let slept: Vec<_> = tags.iter().map(|tag| tag.state().is_asleep).collect();
        self.arm(fault);
        let outcome = Tag::wake(&tags.iter().collect::<Vec<_>>(), restore);
        self.sim.clear_faults();
        if let Err(error) = outcome {
            let is_explained = fault.is_some() || matches!(error, Error::Sleep(SleepError::NoMemory { .. }));
            assert!(is_explained, "{error}");
            let after: Vec<_> = self.blocks.iter().map(|block| self.asleep(block)).collect();
            assert_eq!(before, after, "{error}");
            assert_eq!(slept, tags.iter().map(|tag| tag.state().is_asleep).collect::<Vec<_>>());
            return;
        }
        for tag in &tags {
            assert_eq!((tag.state().is_asleep, tag.state().asleep_bytes), (false, 0));
        }
        for (block, (asleep, pages)) in self.blocks.iter_mut().zip(before) {
            let is_chosen = block.tag.is_some_and(|tag| mask >> tag & 1 == 1);
            if !is_chosen || asleep == 0 || restore == Restore::Backup {
                continue;
            }
            block.value = match restore {
                Restore::Filled(byte) if asleep == pages => Some(byte),
                _ => None,
            };
        }
    }

    fn check(&self) {
        let statistics = self.allocator.statistics();
        let states = self.tags.each_ref().map(Tag::state);
        let asleep = states.iter().map(|state| state.asleep_bytes as u64).sum::<u64>();
        assert_eq!(statistics.asleep_bytes, asleep);
        let reserved = statistics.reserved_bytes;
        for stat in [statistics.inactive_split, statistics.inactive_split_bytes, statistics.allocated_bytes] {
            assert_eq!(stat.small_pool.current + stat.large_pool.current, stat.all.current);
        }
        let largest = self.allocator.largest_free_block().unwrap() as u64;
        assert!(
            largest
                <= reserved
                    .all
                    .current
                    .saturating_sub(statistics.active_bytes.all.current.saturating_sub(asleep))
        );
        assert_eq!(self.allocator.reserved_bytes() as u64, reserved.all.current);
        assert_eq!(reserved.small_pool.current + reserved.large_pool.current, reserved.all.current);
        let snapshot: u64 = self.allocator.snapshot().segments.iter().map(|segment| segment.total_size).sum();
        let held = reserved.all.current + asleep;
        assert!(snapshot == held || self.may_hold_unmapped && snapshot < held, "{snapshot} of {held}");
        let memory = self.context.memory_info().unwrap();
        assert_eq!((memory.total - memory.free) as u64, reserved.all.current);
        assert!(states.iter().all(|state| state.is_asleep || state.asleep_bytes == 0));
        for block in &self.blocks {
            let Some(value) = block.value else { continue };
            let (sleeping, pages) = self.asleep(block);
            if sleeping == pages {
                let mut read = vec![!value; block.bytes];
                assert_eq!(
                    self.tags[block.tag.unwrap()].read_backup(block.address, &mut read).unwrap(),
                    block.bytes
                );
                assert!(is_filled(&read, value), "the backup of {block:?}");
            }
            if sleeping == 0 {
                let last = block.address + block.bytes as u64 - 1;
                for at in (block.address..last).step_by(PAGE as usize).chain([last]) {
                    assert_eq!(self.byte(at), value, "of {block:?} at {at:#x}");
                }
            }
        }
    }

    fn byte(&self, address: u64) -> u8 {
        let host = [0u8; 1];
        // SAFETY: a byte on the host, which lives until the wait is over.
        unsafe { memcpy_async(&self.stream, host.as_ptr().expose_provenance() as u64, address, 1) }.unwrap();
        self.stream.synchronize().unwrap();
        // SAFETY: a live byte, which the device wrote.
        unsafe { host.as_ptr().read_volatile() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tags_are_their_model(steps in vec(step(), 1..60)) {
        let sim = Sim::builder().memory(256 << 20).workers(2).build();
        let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
        let allocator = CachingAllocator::new(&context, &CachingOptions::default()).unwrap();
        let stream = Stream::new(&context).unwrap();
        let tags = ["one", "two"].map(|name| allocator.tag(name).unwrap());
        let (blocks, keeps) = (Vec::new(), Vec::new());
        let may_hold_unmapped = false;
        let mut world = World { sim: &sim, context, stream, allocator, tags, blocks, keeps, may_hold_unmapped };
        for step in &steps {
            world.step(step);
            world.check();
        }
        world.allocator.set_limit(usize::MAX).unwrap();
        world.keeps.clear();
        // What is not in tags makes room.
        let untagged = |block: &Block| block.tag.is_none();
        for block in world.blocks.extract_if(.., |block| untagged(block)) {
            free(&world.allocator, block.address);
        }
        world.context.synchronize().unwrap();
        world.step(&Step::Wake { tags: 3, restore: None, nothing: false, fault: None });
        world.check();
        for block in std::mem::take(&mut world.blocks) {
            free(&world.allocator, block.address);
        }
        drop(world);
        expect_clean(&sim);
    }
}
