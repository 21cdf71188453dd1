//! The fences between two processes: words in memory that both have, half of the lines written by either side.

mod own;
mod theirs;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cuda_mem_pool::cuda_mem_core::host::SharedMapping;
use cuda_mem_pool::cuda_mem_core::ipc::SharedWords;
use cuda_mem_pool::cuda_mem_core::sys::CUdevice_attribute;
use cuda_mem_pool::cuda_mem_core::{self as core, Context, FenceLine, Stream, Uses};

use super::releases::{self, bury};
use super::returned::may_run;
use super::{lock, ring, wire};
use crate::LARGEST_PAGE;
use crate::error::{Error, Result};
use own::{ALONE, Own, keep_poisoned};
pub(super) use theirs::ReleaseFence;

/// Bytes of a line's slot, as [`SharedWords`] documents.
const SLOT: usize = 64;

const LINES: usize = wire::LINES as usize;

/// The words of one connection.
#[derive(Debug)]
pub(super) struct Words {
    /// None once the peer is gone.
    page: Mutex<Option<Arc<Page>>>,
    side: Side,
    pid: u32,
    own: Mutex<Own>,
    /// The last generation of each line that this side writes.
    issued: [AtomicU64; LINES],
    /// How far the peer's lines had come when it was gone.
    reached: Mutex<[u64; LINES]>,
    /// How far the peer has said that its lines will come.
    expected: Mutex<[u64; LINES]>,
}

/// The memory, and both sides' lines of it.
#[derive(Debug)]
struct Page {
    words: SharedWords,
    lines: Vec<FenceLine>,
}

/// Whose lines are ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Exporter,
    Importer,
}

/// A fence by its place: a line of one side, and a generation of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) line: u32,
    pub(super) generation: u64,
}

impl From<Point> for wire::Fence {
    fn from(Point { line, generation }: Point) -> Self {
        Self::Word { line, generation }
    }
}

impl Words {
    /// Memory for both sides' lines.
    pub(super) fn memory(context: &Context) -> Result<SharedMapping> {
        let device = context.device();
        // Before anything is offered, and not when it is pinned.
        if !device.supports(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)? {
            let what = "stream memory operations on 64-bit words";
            return Err(core::Error::Unsupported { device: device.name()?, what }.into());
        }
        Ok(SharedMapping::create(wire::SLOTS * SLOT)?)
    }

    /// Such memory of this process, once the peer has mapped it.
    pub(super) fn of(context: &Context, memory: SharedMapping, pid: u32) -> Result<Self> {
        Self::over(pinned(context, memory)?, Side::Exporter, pid)
    }

    /// What a peer has made.
    pub(super) fn open(context: &Context, descriptor: OwnedFd, pid: u32) -> Result<Self> {
        let mapping = SharedMapping::open(descriptor)?;
        let needed = wire::SLOTS * SLOT;
        // Before it is pinned: a peer may send a file that is larger than this machine's memory.
        if !(needed..=needed.next_multiple_of(LARGEST_PAGE)).contains(&mapping.bytes()) {
            return Err(Error::Protocol { pid, what: "the memory for fences has another size" });
        }
        Self::over(pinned(context, mapping)?, Side::Importer, pid)
    }

    fn over(words: SharedWords, side: Side, pid: u32) -> Result<Self> {
        let line = |slot| {
            let number = slot % LINES;
            if number < ALONE as usize { words.line_of_one_stream(slot) } else { words.line(slot) }
        };
        let lines = (0..2 * LINES).map(line).collect::<core::Result<_>>()?;
        Ok(Self {
            page: Mutex::new(Some(Arc::new(Page { words, lines }))),
            side,
            pid,
            own: Mutex::default(),
            issued: [const { AtomicU64::new(0) }; LINES],
            reached: Mutex::new([0; LINES]),
            expected: Mutex::new([0; LINES]),
        })
    }

    /// Says that what the peer has handed over was handed on.
    pub(super) fn say_handed_on(&self) {
        // A peer that is gone need not know.
        if let Ok(page) = self.page()
            && let Ok(word) = page.words.mapping().word(wire::HANDED_ON * SLOT)
        {
            word.store(1, Ordering::SeqCst);
        }
    }

    /// Whether the peer has said so.
    pub(super) fn were_handed_on(&self) -> bool {
        self.page().is_ok_and(|page| word(&page.words, wire::HANDED_ON) > 0)
    }

    /// The rings behind the lines: of hand-overs, and of releases.
    pub(super) fn rings(&self) -> Result<[ring::Shared; 2]> {
        let page = self.page()?;
        let at = |first| ring::Shared::new(page.words.mapping(), first);
        Ok([at(wire::FIRST_OF_RING), at(wire::FIRST_OF_RELEASES)])
    }

    fn page(&self) -> Result<Arc<Page>> {
        lock(&self.page).clone().ok_or(Error::PeerDied { pid: self.pid })
    }

    fn slot(&self, side: Side, line: u32) -> usize {
        let first = if side == Side::Exporter { 0 } else { LINES };
        first + line as usize % LINES
    }

    fn peer(&self) -> Side {
        if self.side == Side::Exporter { Side::Importer } else { Side::Exporter }
    }

    /// A fence of this side behind what `stream` was given so far.
    pub(super) fn record(&self, stream: &Stream) -> Result<Point> {
        // The fences before it are good if this one fails: a peer that finds the line poisoned takes what it lent to be free.
        self.record_announced(stream, |_| false)
    }

    /// As [`record`](Self::record); `announce` is told of the fence right before the driver is asked for it, and says whether it told the
    /// peer. If it did and the driver refuses, the peer finds the line poisoned, and streams of this side get others.
    pub(super) fn record_announced(
        &self,
        stream: &Stream,
        announce: impl FnOnce(Point) -> bool,
    ) -> Result<Point> {
        let page = self.page()?;
        let number = lock(&self.own).of(stream).ok_or(Error::NoLinesLeft { lines: wire::LINES })?;
        let line = page.line(self.slot(self.side, number))?;
        let mut is_told = false;
        let recorded = line.reserve().and_then(|mut reserved| {
            if stream.is_capturing()? {
                return Err(core::Error::Capturing { call: "FenceLine::record" });
            }
            is_told = announce(Point { line: number, generation: reserved.announce() });
            if !is_told {
                reserved.withdraw();
            }
            reserved.record(stream)
        });
        if recorded.is_err() && is_told {
            self.give_up(number, &page);
        }
        let generation = recorded.map_err(|error| self.told(number, error))?.generation().unwrap_or_default();
        if let Some(issued) = self.issued.get(number as usize) {
            issued.fetch_max(generation, Ordering::SeqCst);
        }
        Ok(Point { line: number, generation })
    }

    /// Poisons a line of this side for good.
    fn give_up(&self, number: u32, page: &Arc<Page>) {
        lock(&self.own).give_up(number);
        let (line, page) = (self.slot(self.side, number), Arc::clone(page));
        releases::queue([move || keep_poisoned(line, &page)]);
    }

    /// Whether everything that this side recorded is done.
    pub(super) fn own_are_reached(&self) -> bool {
        self.have_come_to(self.side, self.issued())
    }

    fn issued(&self) -> [u64; LINES] {
        std::array::from_fn(|line| self.issued.get(line).map_or(0, |issued| issued.load(Ordering::SeqCst)))
    }

    fn have_come_to(&self, side: Side, generations: [u64; LINES]) -> bool {
        let Ok(page) = self.page() else { return true };
        self.are_at(&page, side, generations)
    }

    fn are_at(&self, page: &Page, side: Side, generations: [u64; LINES]) -> bool {
        let mut lines = (0..wire::LINES).zip(generations);
        lines.all(|(line, generation)| word(&page.words, self.slot(side, line)) >= generation)
    }

    /// Why a fence could not be recorded on one of this side's lines.
    fn told(&self, line: u32, error: core::Error) -> Error {
        match error {
            // Another stream of this process had that, right before this one asked.
            core::Error::Poisoned if lock(&self.own).is_given_up(line) => {
                Error::FenceRefused { pid: std::process::id() }
            }
            // The peer's doing, or that of whoever found it dead.
            core::Error::Poisoned => Error::PeerDied { pid: self.pid },
            error => error.into(),
        }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        let page = self.page.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // Its release waits for streams, and whoever drops the last share in a connection does not.
        page.into_iter().for_each(bury);
    }
}

/// What this side has recorded, which can be asked when the peer is gone, too.
#[derive(Debug)]
pub(super) struct Recorded {
    words: Arc<Words>,
    page: Arc<Page>,
    /// Those of the words, by streams here.
    uses: Uses,
}

impl Recorded {
    /// None if the peer is gone already.
    pub(super) fn of(words: &Arc<Words>) -> Option<Self> {
        let page = words.page().ok()?;
        Some(Self { words: Arc::clone(words), uses: page.words.uses(), page })
    }

    /// Whether all of it is done, or will never be: a lost context writes no word any more.
    pub(super) fn is_reached(&mut self) -> bool {
        self.words.are_at(&self.page, self.words.side, self.words.issued())
            || self.uses.have_passed().is_err_and(|error| !may_run(&error))
    }
}

impl Page {
    fn line(&self, slot: usize) -> Result<&FenceLine> {
        let out = || core::Error::OutOfRange { range: slot..slot.saturating_add(1), len: self.lines.len() };
        Ok(self.lines.get(slot).ok_or_else(out)?)
    }
}

/// Registers memory that both sides have mapped. From a page that is taken out of it behind that the device would go on with the old one, and
/// what the host writes would let nobody go.
fn pinned(context: &Context, memory: SharedMapping) -> Result<SharedWords> {
    memory.seal()?;
    Ok(SharedWords::of(context, memory)?)
}

/// The last generation of a line, as [`FenceLine`](core::FenceLine) documents.
const LAST: u64 = 1 << 62;

fn word(page: &SharedWords, slot: usize) -> u64 {
    page.mapping().word(slot * SLOT).map_or(0, |word| word.load(Ordering::SeqCst))
}

#[cfg(test)]
mod tests;
