//! The fences between two processes: words in memory that both have, half of the lines written by either side.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_mem_pool::cuda_mem_core::host::SharedMapping;
use cuda_mem_pool::cuda_mem_core::ipc::SharedWords;
use cuda_mem_pool::cuda_mem_core::{self as core, Context, Fence, FenceLine, Stream, StreamId, stream_mem};

use super::ring;
use super::wire::{self, LAST_GENERATION, Point};
use crate::LARGEST_PAGE;
use crate::background::drop_in_background;
use crate::error::{Error, Result};
use crate::memory_file;
use crate::primitive::lock;
use crate::transport::Descriptors;

/// Bytes of a line's slot, as [`SharedWords`] documents.
const SLOT: usize = 64;

const LINES: usize = wire::LINES as usize;

/// How many streams of this process may wait for fences of one peer that are not reached: eight waits for words hold up other streams too
/// (seen on hardware), and a peer need never reach its fences.
pub(super) const MOST_WAITS: usize = 8;

#[derive(Debug)]
pub(super) struct Words {
    /// None once the peer is gone.
    page: Mutex<Option<Arc<SharedWords>>>,
    /// Where this side's lines begin, and the peer's.
    own_lines: usize,
    peers_lines: usize,
    pid: u32,
    /// The line of each stream that has one of its own. All others share the last line.
    own: Mutex<BTreeMap<StreamId, u32>>,
    /// The last generation of each line that this side writes.
    issued: Mutex<[u64; LINES]>,
    /// How far the peer's lines had come when it was gone.
    reached: Mutex<[u64; LINES]>,
    /// How far the peer has said that its lines will come.
    expected: Mutex<[u64; LINES]>,
    /// Which streams here were made to wait for which of the peer's fences.
    waits: Mutex<Vec<(StreamId, Point)>>,
}

impl Words {
    pub(super) fn memory(context: &Context) -> Result<SharedMapping> {
        // Before anything is offered, and not when it is pinned.
        stream_mem::expect_supported(context.device())?;
        Ok(SharedMapping::create(wire::SLOTS * SLOT)?)
    }

    /// Such memory of this process, once the peer has mapped it.
    pub(super) fn of(context: &Context, memory: SharedMapping, pid: u32) -> Result<Self> {
        Ok(Self::over(pinned(context, memory)?, [0, LINES], pid))
    }

    pub(super) fn open(context: &Context, descriptor: Descriptors, pid: u32) -> Result<Self> {
        let mapping = memory_file::open(descriptor)?;
        let needed = wire::SLOTS * SLOT;
        // Before it is pinned: a peer may send a file that is larger than this machine's memory.
        if !(needed..=needed.next_multiple_of(LARGEST_PAGE)).contains(&mapping.bytes()) {
            return Err(Error::Protocol { pid, what: "the memory for fences has another size" });
        }
        Ok(Self::over(pinned(context, mapping)?, [LINES, 0], pid))
    }

    fn over(words: SharedWords, [own_lines, peers_lines]: [usize; 2], pid: u32) -> Self {
        Self {
            page: Mutex::new(Some(Arc::new(words))),
            own_lines,
            peers_lines,
            pid,
            own: Mutex::default(),
            issued: Mutex::new([0; LINES]),
            reached: Mutex::new([0; LINES]),
            expected: Mutex::new([0; LINES]),
            waits: Mutex::default(),
        }
    }

    /// The rings behind the lines: of hand-overs, and of releases.
    pub(super) fn rings(&self) -> Result<[ring::Shared; 2]> {
        let page = self.page()?;
        let at = |first| ring::Shared::new(page.mapping(), first);
        Ok([at(wire::FIRST_OF_RING), at(wire::FIRST_OF_RELEASES)])
    }

    fn page(&self) -> Result<Arc<SharedWords>> {
        lock(&self.page).clone().ok_or(Error::PeerDied { pid: self.pid })
    }

    /// A fence of this side behind what `stream` was given so far.
    pub(super) fn record(&self, stream: &Stream) -> Result<Point> {
        // The fences before it are good if this one fails: a peer that finds the line poisoned takes what it lent to be free.
        self.record_announced(stream, |_| false)
    }

    /// As [`record`](Self::record); `announce` is told of the fence right before the driver is asked for it, and says whether it told the
    /// peer. If it did and the driver refuses, the line is poisoned, and the connection has to end.
    pub(super) fn record_announced(
        &self,
        stream: &Stream,
        announce: impl FnOnce(Point) -> bool,
    ) -> Result<Point> {
        let page = self.page()?;
        let number = self.line_of(stream);
        let line = line(&page, self.own_lines, number)?;
        let recorded = line.reserve().and_then(|mut reserved| {
            if stream.is_capturing()? {
                return Err(core::Error::Capturing { call: "FenceLine::record" });
            }
            let point = Point { line: number, generation: reserved.generation() };
            if announce(point) {
                reserved.announce();
            }
            reserved.record(stream).map(|_| point)
        });
        let point = recorded.map_err(|error| match error {
            // By the peer, or by the thread that found it dead.
            core::Error::Poisoned => Error::PeerDied { pid: self.pid },
            error => error.into(),
        })?;
        note(&self.issued, point);
        Ok(point)
    }

    /// Fences of one line are reached in order, so each stream has a line of its own as long as there are enough.
    fn line_of(&self, stream: &Stream) -> u32 {
        let mut own = lock(&self.own);
        let (next, shared) = (u32::try_from(own.len()).unwrap_or(u32::MAX), wire::LINES - 1);
        match own.get(&stream.id()) {
            Some(line) => *line,
            None if next < shared => *own.entry(stream.id()).or_insert(next),
            None => shared,
        }
    }

    pub(super) fn own_are_reached(&self) -> bool {
        self.have_come_to(self.own_lines, &self.issued)
    }

    fn have_come_to(&self, first: usize, generations: &Mutex<[u64; LINES]>) -> bool {
        let Ok(page) = self.page() else { return true };
        let generations = *lock(generations);
        (first..).zip(generations).all(|(slot, generation)| words(&page, slot)[0] >= generation)
    }

    /// Has `stream` wait for a fence of the peer. Without a call of the driver if it was reached.
    pub(super) fn make_wait(&self, point: Point, stream: &Stream) -> Result<()> {
        let waits = self.fence(point).and_then(|fence| {
            if fence.is_complete()? {
                return Ok(());
            }
            let earlier = self.note_wait(point, stream)?;
            // One that was refused does not count.
            let take_back = |(other, known): &mut (StreamId, Point)| {
                let is_it = *other == stream.id() && *known == point;
                known.generation = if is_it { earlier } else { known.generation };
                known.generation > 0
            };
            Ok(fence.make_wait(stream).inspect_err(|_| lock(&self.waits).retain_mut(take_back))?)
        });
        match waits {
            Err(error) if is_poison(&error) => self.was_reached(point).map(drop),
            result => result,
        }
    }

    /// Counts a wait, unless as many streams wait as may; and for what on its line the stream waited before, 0 for nothing.
    fn note_wait(&self, point: Point, stream: &Stream) -> Result<u64> {
        let id = stream.id();
        let waits = self.waits_with_room(id);
        let mut waits = waits.ok_or(Error::TooManyWaits { pid: self.pid, most: MOST_WAITS })?;
        // What comes before it on its line is reached before.
        if let Some((_, known)) =
            waits.iter_mut().find(|(other, known)| *other == id && known.line == point.line)
        {
            let later = known.generation.max(point.generation);
            return Ok(std::mem::replace(&mut known.generation, later));
        }
        waits.push((id, point));
        Ok(0)
    }

    /// The waits that are not over, if a stream may wait for one more fence that is not reached.
    fn waits_with_room(&self, id: StreamId) -> Option<MutexGuard<'_, Vec<(StreamId, Point)>>> {
        let mut waits = lock(&self.waits);
        waits.retain(|(_, point)| matches!(self.is_reached(*point), Ok(false)));
        let mut streams = waits.iter().map(|(other, _)| *other).collect::<Vec<_>>();
        streams.sort_unstable();
        streams.dedup();
        (streams.contains(&id) || streams.len() < MOST_WAITS).then_some(waits)
    }

    pub(super) fn is_reached(&self, point: Point) -> Result<bool> {
        match self.fence(point).and_then(|fence| Ok(fence.is_complete()?)) {
            Err(error) if is_poison(&error) => self.was_reached(point),
            result => result,
        }
    }

    fn fence(&self, point: Point) -> Result<Fence> {
        Ok(line(&*self.page()?, self.peers_lines, point.line)?.fence(point.generation)?)
    }

    /// Whether a fence whose line is poisoned was reached before. The peer may have poisoned its own line, and be about to end.
    fn was_reached(&self, point: Point) -> Result<bool> {
        let reached = lock(&self.reached).get(point.line as usize).copied().unwrap_or_default();
        if reached >= point.generation { Ok(true) } else { Err(Error::PeerDied { pid: self.pid }) }
    }

    /// Notes a fence that the peer says it has recorded.
    pub(super) fn expect(&self, point: Point) {
        note(&self.expected, point);
    }

    /// Whether everything that the peer said it has recorded is done.
    pub(super) fn expected_are_reached(&self) -> bool {
        self.have_come_to(self.peers_lines, &self.expected)
    }

    /// Says that this side gives up though it lives: no fence of its lines counts any more, whether it was reached or not.
    pub(super) fn give_up(&self) {
        if let Ok(page) = self.page() {
            poison(&page, self.own_lines);
        }
    }

    /// Ends waits for the peer, and remembers what it had reached: it has ended.
    pub(super) fn end(&self) {
        let Ok(page) = self.page() else { return };
        let reached = |line: usize| {
            let [seen, flag] = words(&page, self.peers_lines + line);
            // Above the last generation it is poison. Streams of a peer that has given up may move a word back, and leave the flag.
            if flag == 0 && seen <= LAST_GENERATION { seen } else { 0 }
        };
        *lock(&self.reached) = std::array::from_fn(reached);
        *lock(&self.page) = None;
        poison(&page, self.peers_lines);
        // Its release waits for streams, which may wait for another peer, and poisons again what a peer that lives moves back.
        drop_in_background(page);
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // Its release waits for streams, and the thread that drops the last share in a connection does not. Without the lock, which another
        // thread of the parent may have in a forked child.
        if let Some(page) = self.page.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            drop_in_background(page);
        }
    }
}

/// A line of the side whose lines begin there.
fn line(page: &SharedWords, first: usize, line: u32) -> core::Result<FenceLine> {
    let slot = first + line as usize % LINES;
    if line == wire::LINES - 1 { page.line(slot) } else { page.line_of_one_stream(slot) }
}

/// Poisons all lines of the side whose lines begin there.
fn poison(page: &SharedWords, first: usize) {
    (0..wire::LINES).filter_map(|number| line(page, first, number).ok()).for_each(|line| line.poison());
}

fn note(generations: &Mutex<[u64; LINES]>, point: Point) {
    if let Some(known) = lock(generations).get_mut(point.line as usize) {
        *known = point.generation.max(*known);
    }
}

/// A receiver's last use of memory that was handed to it: what its owner waits for.
#[derive(Debug, Clone)]
pub(super) struct ReleaseFence {
    pub(super) words: Arc<Words>,
    pub(super) point: Point,
}

impl ReleaseFence {
    /// Whether both are generations of one line, of which the later one stands for both.
    pub(super) fn is_of_the_line_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.words, &other.words) && self.point.line == other.point.line
    }

    /// Has `stream` wait for it. A receiver that is gone uses nothing any more.
    pub(super) fn order(&self, stream: &Stream) -> Result<()> {
        match self.words.make_wait(self.point, stream) {
            Err(Error::PeerDied { .. }) => Ok(()),
            result => result,
        }
    }

    /// Whether it need not be waited for.
    pub(super) fn is_over(&self) -> bool {
        !matches!(self.words.is_reached(self.point), Ok(false))
    }

    /// Whether `stream` may be made to wait for it.
    pub(super) fn may_order(&self, stream: &Stream) -> bool {
        self.is_over() || self.words.waits_with_room(stream.id()).is_some()
    }
}

fn is_poison(error: &Error) -> bool {
    matches!(error, Error::Core(core::Error::Poisoned) | Error::PeerDied { .. })
}

/// Registers memory that both sides have mapped. From a page that is taken out of it behind that the device would go on with the old one, and
/// what the host writes would let nobody go.
fn pinned(context: &Context, memory: SharedMapping) -> Result<SharedWords> {
    memory.seal()?;
    Ok(SharedWords::of(context, memory)?)
}

/// The generation of a line, and its flag.
fn words(page: &SharedWords, slot: usize) -> [u64; 2] {
    let words = page.mapping().words::<2>(slot * SLOT);
    words.map_or([0; 2], |words| words.map(|word| word.load(Ordering::SeqCst)))
}

#[cfg(test)]
mod tests;
