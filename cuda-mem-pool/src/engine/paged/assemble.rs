//! Puts a range together that is long enough.

use super::backend::Backend;
use super::heap::StreamHeap;
use super::line::Limit;
use super::policy::{FEW, cost};
use super::sizes::PAGE;
use super::source::{GrowError, Heaps, Load, PageSource};
use super::stock::Stock;
use super::window::{self, Kind, Slot, Window, whole_pages};

impl<B: Backend> PageSource<B> {
    /// Makes `size` free bytes in a row in the heap; where they begin.
    pub(super) fn assemble(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        others: &mut impl Heaps,
        size: usize,
        load: Load,
        price: i64,
    ) -> Result<Option<u64>, GrowError<B::Error>> {
        if let Some(address) = self.adopt_idle(heap, mine, others, size, load)? {
            return Ok(Some(address));
        }
        if let Some(address) = self.present(heap, mine, size, load)? {
            return Ok(Some(address));
        }
        let free = mine.free_ranges();
        let whole = self.wholly_free(heap, &free);
        if !whole.is_empty() {
            self.charge(self.ground.mappings() as i64 / cost::LOOKED_AT);
        }
        let own = whole.iter().map(|whole| whole.bytes).sum();
        if let Some(address) = self.adopt_lacking(heap, mine, others, size, load, own)? {
            return Ok(Some(address));
        }
        let stock = Stock::of(&whole, self.policy.moves);
        let limit = Limit { price, spare: self.allowed(size, load).saturating_sub(self.ground.bytes()) };
        let (slots, window) = match self.window(heap, &free, &whole, size, &stock.supply(), limit)? {
            Some(found) => found,
            None if price < i64::MAX => return Ok(None),
            None => {
                self.add_range(size)?;
                let found = self.window(heap, &free, &whole, size, &stock.supply(), limit)?;
                found.ok_or(GrowError::OutOfMemory)?
            }
        };
        let mut build = Build::new(heap, size, load, stock);
        build.stock.without(&slots[window.first..=window.last]);
        self.fill(&mut build, mine, others, &slots, window)?;
        let now = mine.now();
        if let Some(marks) = self.marks.get_mut(&heap) {
            marks.make(heap, now, &mut self.backend)?;
        }
        build.start.map(Some).ok_or(GrowError::OutOfMemory)
    }

    /// Fills the gaps of a window, and brings what else it needs home.
    fn fill(
        &mut self,
        build: &mut Build,
        mine: &mut StreamHeap,
        others: &mut impl Heaps,
        slots: &[Slot],
        window: Window,
    ) -> Result<(), GrowError<B::Error>> {
        for (at, slot) in slots.iter().enumerate().take(window.last + 1).skip(window.first) {
            match slot.kind {
                Kind::Mapped { chunk, head, tail, .. } => {
                    let whole = head == slot.bytes;
                    if whole {
                        self.bring_home(build.heap, mine, chunk, slot.address)?;
                    }
                    let given = if at == window.first { tail } else { head };
                    if at == window.first {
                        build.begin(slot.end() - tail);
                    }
                    build.got += given;
                }
                Kind::Gap { .. } => {
                    let (address, bytes, room) = if at == window.first && window.lead > 0 {
                        (slot.end() - window.lead, window.lead, window.lead)
                    } else {
                        let need = whole_pages((build.size as u64).saturating_sub(build.got));
                        let exact = need >= slot.bytes || slot.bytes < need + window::ROOM;
                        let bytes = need.min(slot.bytes);
                        (slot.address, bytes, if exact { bytes } else { slot.bytes })
                    };
                    let alone = window.first == window.last;
                    let begun =
                        if alone { self.begin_with_tail(build, mine, address, bytes, room)? } else { None };
                    let (address, bytes, room) = begun.map_or((address, bytes, room), |(address, left)| {
                        (address, left, slot.end() - address)
                    });
                    self.fill_gap(build, mine, others, address, bytes, room)?;
                }
            }
        }
        Ok(())
    }

    /// Begins a window with the free end of a handle, if more would be held than should be; where it goes on, and the bytes that
    /// it lacks then.
    fn begin_with_tail(
        &mut self,
        build: &mut Build,
        mine: &mut StreamHeap,
        address: u64,
        bytes: u64,
        room: u64,
    ) -> Result<Option<(u64, u64)>, GrowError<B::Error>> {
        let held = self.ground.bytes().saturating_add(bytes as usize);
        if !self.policy.moves || held <= self.allowed(build.size, build.load) {
            return Ok(None);
        }
        let found = self.tail_for(build, mine, bytes);
        // All of the handle is mapped, and the rest of the block behind it.
        let Some((chunk, from, total)) = found.filter(|(.., total)| *total as u64 + bytes <= room) else {
            return Ok(None);
        };
        self.lend(build.heap, mine, chunk, from, address)?;
        build.begin(address + from as u64);
        build.got += (total - from) as u64;
        Ok(Some((address + total as u64, whole_pages((build.size as u64).saturating_sub(build.got)))))
    }

    /// Maps handles at a gap until `bytes` are there, and no more than there is `room` for.
    pub(super) fn fill_gap(
        &mut self,
        build: &mut Build,
        mine: &mut StreamHeap,
        others: &mut impl Heaps,
        address: u64,
        bytes: u64,
        room: u64,
    ) -> Result<(), GrowError<B::Error>> {
        let mut row = Vec::new();
        let gathered = self.gather(build, others, bytes as usize, room as usize, &mut row);
        // What there is stays in the heap, even if it was not enough.
        let bytes = self.move_all_to(build.heap, mine, &row, address)?;
        if bytes > 0 {
            build.begin(address);
            build.got += bytes;
        }
        gathered?;
        self.give(build.size, build.load);
        Ok(())
    }

    /// Handles of `bytes` together, and of no more than there is `room` for.
    fn gather(
        &mut self,
        build: &mut Build,
        others: &mut impl Heaps,
        bytes: usize,
        room: usize,
        row: &mut Vec<u32>,
    ) -> Result<(), GrowError<B::Error>> {
        let allowed = self.allowed(build.size, build.load);
        let mut got = 0;
        while got < bytes {
            let left = bytes - got;
            let is_over = self.ground.bytes().saturating_add(left) > allowed;
            let chunk = self.memory(build, others, left, room - got, is_over)?;
            got += self.ground.chunk(chunk).map(|chunk| chunk.bytes).ok_or(GrowError::NoNumbers)?;
            row.push(chunk);
        }
        Ok(())
    }

    /// A handle for a gap of `left` bytes, where there is `room` for so many: while more is held than should be, one that there is.
    fn memory(
        &mut self,
        build: &mut Build,
        others: &mut impl Heaps,
        left: usize,
        room: usize,
        over: bool,
    ) -> Result<u32, GrowError<B::Error>> {
        if over && self.policy.moves {
            if let Some(whole) = build.stock.take(left, room) {
                return Ok(whole.chunk);
            }
            if let Some(chunk) = self.steal(build.heap, others, left, false)? {
                return Ok(chunk);
            }
        }
        if self.haste.is_made(&self.policy)
            && let Some(chunk) = self.give_memory(build, left, room)?
        {
            return Ok(chunk);
        }
        let mut bytes = self.policy.handle(build.size, self.holding());
        while bytes > left {
            bytes /= 2;
        }
        // Many heaps may hold so much more that the next block may begin in this one's last handle, which saves that its own.
        let longer = self.policy.least(self.holding()).min(self.policy.largest(self.holding()));
        let fits = (left..=room).contains(&longer)
            && self.ground.bytes().saturating_add(longer) <= self.allowed(build.size, build.load);
        if fits
            && self.marks.len() > FEW
            && let Some(chunk) = self.create(build.heap, longer)?
        {
            return Ok(chunk);
        }
        let bytes = bytes.max(PAGE);
        if let Some(chunk) = self.create(build.heap, bytes)? {
            return Ok(chunk);
        }
        // There is no more: what was to be spared has to serve.
        if self.policy.moves {
            if let Some(whole) = build.stock.take(left, room) {
                return Ok(whole.chunk);
            }
            if let Some(chunk) = self.steal(build.heap, others, left, true)? {
                return Ok(chunk);
            }
        }
        if bytes > PAGE
            && let Some(chunk) = self.create(build.heap, PAGE)?
        {
            return Ok(chunk);
        }
        Err(GrowError::OutOfMemory)
    }

    /// A new handle that is as long as all of a gap, or longer, so that calls are few. None if there is no memory to give: then
    /// there is no haste either.
    fn give_memory(
        &mut self,
        build: &Build,
        left: usize,
        room: usize,
    ) -> Result<Option<u32>, GrowError<B::Error>> {
        let longer = left.next_power_of_two();
        let fits = self.ground.bytes().saturating_add(longer) <= self.allowed(build.size, build.load);
        let bytes = if fits && longer <= room { longer } else { 1 << left.ilog2() };
        let chunk = self.create(build.heap, bytes)?;
        if chunk.is_none() {
            self.haste.give_up();
        }
        Ok(chunk)
    }

    /// Gives a handle back that is longer than `left`, and that the device is done with, so that shorter ones can be made.
    pub(super) fn trade(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        stock: &mut Stock,
        left: usize,
    ) -> Result<(), GrowError<B::Error>> {
        let Some(whole) = stock.longest_free(left) else { return Ok(()) };
        self.mark_free(heap, mine)?;
        if !self.is_quiet(heap, whole.chunk, whole.freed_at)? {
            return Ok(());
        }
        stock.remove(whole.chunk);
        self.announce(whole.chunk, 0);
        self.leave(heap, mine, whole.chunk);
        if let Err(error) = self.release(whole.chunk) {
            self.shelter(heap, mine, whole.chunk);
            return Err(error);
        }
        Ok(())
    }
}

/// A range that is being put together.
pub(super) struct Build {
    pub(super) heap: u32,
    size: usize,
    load: Load,
    pub(super) stock: Stock,
    /// The bytes that it has, and where they begin.
    got: u64,
    start: Option<u64>,
}

impl Build {
    pub(super) const fn new(heap: u32, size: usize, load: Load, stock: Stock) -> Self {
        Self { heap, size, load, stock, got: 0, start: None }
    }

    fn begin(&mut self, address: u64) {
        self.start.get_or_insert(address);
    }
}
