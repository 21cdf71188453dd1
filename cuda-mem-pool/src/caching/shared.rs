//! What all handles of an allocator, and all that it handed out, share.

use std::sync::Arc;

use cuda_mem_core::{Context, Error as CoreError, forked};

use super::callbacks::{CallWatch, Callbacks, is_watching};
use super::figures::Figures;
use super::options::{CachingOptions, Rounding};
use super::page_map::{Found, PageMap};
use super::pending::Pending;
use super::private::{Private, PrivatePools};
use super::record::Record;
use super::sleep::Tags;
use super::slot::{Slots, StreamSlot};
use super::source::SourceCell;
use super::streams::Streams;
use super::vmm::{Vmm, can_map};
use crate::engine::paged::{BlockIndex, BlockNumber, Heaps, Hold, PageSource, Policy, StreamHeap, Tier};
use crate::error::{Error, Result};
use crate::primitive::{Mutex, lock};

pub(super) struct DeviceCache {
    pub(super) context: Context,
    pub(super) total: usize,
    pub(super) map: PageMap,
    pub(super) streams: Streams,
    pub(super) slots: Arc<Slots>,
    pub(super) source: SourceCell,
    pub(super) pending: Pending,
    pub(super) private: Private,
    pub(super) tags: Tags,
    pub(super) rounding: Rounding,
    pub(super) figures: Arc<Figures>,
    pub(super) record: Arc<Record>,
    pub(super) observer: CallWatch,
    pub(super) callbacks: Callbacks,
    /// Whether the device maps memory.
    pub(super) maps: bool,
    /// As they were passed, but for the limits as they are now.
    options: Mutex<CachingOptions>,
}

impl DeviceCache {
    pub(super) fn new(context: &Context, options: &CachingOptions, observer: CallWatch) -> Result<Self> {
        let total = context.device().total_memory()?;
        if let Hold::Tight { over_peak } = options.hold
            && !(1.0..f64::INFINITY).contains(&over_peak)
        {
            return Err(Error::InvalidOverPeak { over_peak });
        }
        options.segments.check()?;
        let limit = options.limit(total)?;
        let reserve = options.reserve_bytes.unwrap_or((total / 100).clamp(256 << 20, 1 << 30));
        let (moves, hold) = (options.moves, options.hold);
        let policy = Policy { moves, hold, reserve_bytes: reserve, ..Policy::for_memory(total.min(limit)) };
        let (slots, figures, callbacks) =
            (Arc::new(Slots::default()), Arc::<Figures>::default(), Callbacks::default());
        let watchers = Arc::clone(&callbacks.watchers);
        let record = Arc::<Record>::default();
        let (of_vmm, told) = (Arc::clone(&figures), Arc::clone(&record));
        let vmm = Vmm::new(context, Arc::clone(&slots), of_vmm, told, observer.clone(), watchers)?;
        let private = Private::new(context, figures.counter.shard(), options.segments);
        let maps = can_map(context)?;
        private.serve_default(!maps);
        let mut source = PageSource::new(vmm, policy, total as u64);
        source.set_limit(limit);
        Ok(Self {
            context: context.clone(),
            total,
            map: PageMap::new(),
            streams: Streams::new(context, &figures.counter, Arc::clone(&slots)),
            source: SourceCell::new(source),
            slots,
            pending: Pending::default(),
            private,
            tags: Tags::default(),
            rounding: Rounding::new(&options.segments),
            figures,
            record,
            observer,
            callbacks,
            maps,
            options: Mutex::new(*options),
        })
    }

    pub(super) fn pools(&self) -> PrivatePools<'_> {
        PrivatePools { shared: self, private: &self.private }
    }

    #[inline]
    pub(super) fn index(&self, heap: u32) -> HeapIndex<'_> {
        HeapIndex { map: &self.map, heap }
    }

    pub(super) fn options(&self) -> CachingOptions {
        *lock(&self.options)
    }

    /// The most bytes that may be held, those of private pools included; `usize::MAX` for no limit.
    pub(super) fn limit(&self) -> usize {
        // None is set that is refused.
        self.options().limit(self.total).unwrap_or(usize::MAX)
    }

    /// Changes the fraction or the bytes that may be held.
    pub(super) fn set_limits(&self, change: impl FnOnce(&mut CachingOptions)) -> Result<()> {
        // Locked first: of two threads, one that changes the other limit sees what the first has set.
        let mut source = self.source.lock()?;
        let mut options = self.options();
        change(&mut options);
        source.set_limit(options.limit(self.total)?);
        *lock(&self.options) = options;
        Ok(())
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        let of_slot = |slot: &StreamSlot| {
            let heap = slot.heap.with(|heap, _| heap.metadata_bytes());
            // The heap counts itself.
            heap + slot.remote.metadata_bytes() + size_of::<StreamSlot>() - size_of::<StreamHeap>()
        };
        // The page source counts itself too. In a watcher, whose thread has it, it is left out.
        let of_source = if is_watching() { 0 } else { self.source.lock_unchecked().metadata_bytes() };
        size_of::<Self>() - size_of::<PageSource<Vmm>>()
            + size_of::<Slots>()
            + self.map.metadata_bytes()
            + of_source
            + self.slots.iter().map(of_slot).sum::<usize>()
    }

    /// Waits until nothing uses the memory, for the whole context, if need be. An error if that cannot be known, as beside a capture.
    fn wait(&self) -> cuda_mem_core::Result<()> {
        let of_slots = self.slots.iter().map(|slot| slot.owner.wait().or_else(|_| slot.owner.wait()));
        let mut is_over = true;
        for wait in of_slots.chain(self.pending.wait()).chain(self.private.pending.wait()) {
            match wait {
                Err(error @ CoreError::Capturing { .. }) => return Err(error),
                // Nothing of a lost context runs. What is refused otherwise may be a call before the wait.
                Err(CoreError::Driver(error)) if error.context_is_lost() => {}
                wait => is_over &= wait.is_ok(),
            }
        }
        if is_over {
            return Ok(());
        }
        // For default streams of other threads, and disowned streams, which this thread cannot name. Once more, because the driver reports
        // older errors of others in any call.
        let wait = || self.context.point().and_then(|point| point.synchronize());
        wait().or_else(|_| wait())
    }
}

impl Drop for DeviceCache {
    /// The last handle is dropped. Blocks that were allocated by address end here too.
    fn drop(&mut self) {
        // In a forked child all of it is the parent's. What work may use yet stays mapped.
        if forked() {
            return;
        }
        if let Err(error) = self.wait() {
            self.private.memory.leak();
            return self.context.driver().report_release_failure(&error);
        }
        self.private.memory.close();
        // What the driver refuses is counted there.
        let _ = self.source.lock_unchecked().close();
    }
}

/// The heaps of all streams, each had for a moment by the holder of the page source.
pub(super) struct AllHeaps<'s>(pub(super) &'s DeviceCache);

impl<'s> Heaps for AllHeaps<'s> {
    type Index = HeapIndex<'s>;

    fn others(&self, but: u32) -> Vec<u32> {
        self.0.slots.iter().map(|slot| slot.number).filter(|number| *number != but).collect()
    }

    fn with<R>(&mut self, heap: u32, body: impl FnOnce(&mut StreamHeap) -> R) -> Option<R> {
        let slot = self.0.slots.get(heap)?;
        Some(self.0.with_drained(slot, |heap, _| body(heap)))
    }

    fn index(&self, heap: u32) -> HeapIndex<'s> {
        self.0.index(heap)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct HeapIndex<'m> {
    pub(super) map: &'m PageMap,
    pub(super) heap: u32,
}

impl BlockIndex for HeapIndex<'_> {
    fn set_large(&self, address: u64, number: u32) -> bool {
        self.map.set_large(address, self.heap, number).is_some()
    }

    fn clear_large(&self, address: u64, _number: u32) {
        self.map.clear_large(address);
    }

    fn add_slab(&self, address: u64, tier: Tier) -> bool {
        self.map.add_page(address, self.heap, tier).is_some()
    }

    fn remove_slab(&self, address: u64) {
        self.map.remove_page(address);
    }

    #[inline]
    fn set_in_slab(&self, address: u64, number: u32) -> bool {
        self.map.set_in_page(address, number).is_some()
    }

    #[inline]
    fn clear_in_slab(&self, address: u64) {
        self.map.clear(address);
    }
}

#[inline]
pub(super) fn number_of(found: Found) -> BlockNumber {
    BlockNumber::new(found.tier, found.record)
}

crate::impl_debug!(DeviceCache, |it| device: it.context.device());
