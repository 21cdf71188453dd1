//! Puts a range together that is long enough.

use super::backend::Backend;
use super::extents::Free;
use super::heap::StreamHeap;
use super::sizes::PAGE;
use super::source::{GrowError, Heaps, Load, PageSource};
use super::window::{self, Kind, Search, Slot, Supply, Window, whole_pages};
use crate::engine::slab::NONE;

/// A line of slots, and a window in it.
type Found = (Vec<Slot>, Window);

/// A handle that nothing is in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whole {
    pub(super) chunk: u32,
    pub(super) bytes: usize,
    /// The latest free in it, on its heap's count.
    pub(super) freed_at: u64,
}

/// The handles to fill gaps with, by size, those that have been free for longest last.
#[derive(Debug, Default)]
struct Stock(Vec<(usize, Vec<Whole>)>);

impl<B: Backend> PageSource<B> {
    /// Makes `size` free bytes in a row in the heap; where they begin.
    pub(super) fn assemble(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        others: &mut impl Heaps,
        size: usize,
        load: Load,
        limit: i64,
    ) -> Result<Option<u64>, GrowError<B::Error>> {
        let free = mine.free_ranges();
        let whole = self.wholly_free(heap, &free);
        let stock = Stock::of(&whole, self.policy.moves);
        let (slots, window) = match self.window(heap, &free, &whole, size, &stock.supply(), limit)? {
            Some(found) => found,
            None if limit < i64::MAX => return Ok(None),
            None => {
                self.add_range(size)?;
                let found = self.window(heap, &free, &whole, size, &stock.supply(), limit)?;
                found.ok_or(GrowError::OutOfMemory)?
            }
        };
        let mut build = Build { heap, size, load, stock, got: 0, start: None };
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
                    let (address, bytes, exact) = if at == window.first && window.lead > 0 {
                        (slot.end() - window.lead, window.lead, true)
                    } else {
                        let need = whole_pages((build.size as u64).saturating_sub(build.got));
                        let exact = need >= slot.bytes || slot.bytes < need + window::ROOM;
                        (slot.address, need.min(slot.bytes), exact)
                    };
                    let alone = window.first == window.last;
                    self.fill_gap(build, mine, others, address, bytes, exact, alone)?;
                }
            }
        }
        Ok(())
    }

    /// Maps handles at a gap until `bytes` are there; with `exact` no more than that.
    #[allow(clippy::too_many_arguments, reason = "the parts of one step")]
    fn fill_gap(
        &mut self,
        build: &mut Build,
        mine: &mut StreamHeap,
        others: &mut impl Heaps,
        mut address: u64,
        bytes: u64,
        exact: bool,
        alone: bool,
    ) -> Result<(), GrowError<B::Error>> {
        let end = address + bytes;
        let allowed = self.allowed(build.size, build.load);
        let over = |source: &Self, left: u64| source.ground.bytes().saturating_add(left as usize) > allowed;
        if alone
            && self.policy.moves
            && over(self, bytes)
            && let Some((chunk, from, total)) = self.tail_for(build, mine, bytes)
        {
            self.lend(build.heap, mine, chunk, from, address)?;
            let given = (total - from) as u64;
            build.begin(address + from as u64);
            build.got += given;
            address += total as u64;
            let left = whole_pages((build.size as u64).saturating_sub(build.got));
            return self.fill_gap(build, mine, others, address, left, false, false);
        }
        while address < end {
            let left = end - address;
            let mut taken = None;
            if over(self, left) {
                taken = build.stock.take(left as usize, exact);
            }
            let chunk = match taken {
                Some(whole) => whole.chunk,
                None => self.other_memory(build, others, left as usize, exact, over(self, left))?,
            };
            let Some(bytes) = self.ground.chunk(chunk).map(|chunk| chunk.bytes) else {
                return Err(GrowError::NoNumbers);
            };
            self.move_to(build.heap, mine, chunk, address)?;
            build.begin(address);
            build.got += bytes as u64;
            address += bytes as u64;
        }
        Ok(())
    }

    /// A handle that is not in the heap's own stock: new, or another heap's.
    fn other_memory(
        &mut self,
        build: &mut Build,
        others: &mut impl Heaps,
        left: usize,
        exact: bool,
        over: bool,
    ) -> Result<u32, GrowError<B::Error>> {
        if over
            && self.policy.moves
            && let Some(chunk) = self.steal(build.heap, others, left)?
        {
            return Ok(chunk);
        }
        let mut bytes = self.policy.handle(build.size);
        while bytes > left {
            bytes /= 2;
        }
        let bytes = bytes.max(PAGE);
        if let Some(chunk) = self.create(build.heap, bytes)? {
            return Ok(chunk);
        }
        // There is no more: what was to be spared has to serve.
        if self.policy.moves {
            if let Some(whole) = build.stock.take(left, exact) {
                return Ok(whole.chunk);
            }
            if let Some(chunk) = self.steal(build.heap, others, left)? {
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

    /// The line of the heap's slots, and the cheapest window in it.
    fn window(
        &mut self,
        heap: u32,
        free: &[Free],
        whole: &[Whole],
        size: usize,
        supply: &Supply,
        limit: i64,
    ) -> Result<Option<Found>, GrowError<B::Error>> {
        let slots = self.slots(heap, free, whole)?;
        let waste = self.policy.waste(self.ground.bytes());
        let largest = self.policy.largest_handle as u64;
        let search = Search { slots: &slots, size: size as u64, supply, waste, largest };
        let window = search.cheapest(limit);
        Ok(window.map(|window| (slots, window)))
    }

    fn slots(&mut self, heap: u32, free: &[Free], whole: &[Whole]) -> Result<Vec<Slot>, B::Error> {
        let mut is_whole = vec![false; self.ground.numbers()];
        for whole in whole {
            if let Some(entry) = is_whole.get_mut(whole.chunk as usize) {
                *entry = true;
            }
        }
        let mut slots: Vec<Slot> = Vec::with_capacity(self.ground.mappings() * 2);
        let mut twins = vec![NONE; self.ground.numbers()];
        let mut free = free.iter().peekable();
        let ranges: Vec<(u64, u64)> = self.ranges();
        for (from, to) in ranges {
            let mut end = from;
            let maps: Vec<(u64, super::ground::Map)> =
                self.ground.touching(from, to).map(|(address, map)| (address, *map)).collect();
            for (address, map) in maps {
                push_gap(&mut slots, end, address, 0);
                end = address + map.bytes as u64;
                let bytes = map.bytes as u64;
                let chunk = map.chunk;
                let (own, pinned) = self
                    .ground
                    .chunk(chunk)
                    .map_or((false, true), |chunk| (chunk.heap == heap, chunk.pins > 0));
                let twin = std::mem::replace(&mut twins[chunk as usize], slots.len() as u32);
                if own && is_whole.get(chunk as usize) == Some(&true) && (!pinned || !map.is_stale()) {
                    let kind = Kind::Mapped { chunk, head: bytes, tail: bytes, twin };
                    slots.push(Slot { address, bytes, kind });
                } else if map.is_stale() {
                    if self.is_done(map.heap, map.left_at)? {
                        push_gap(&mut slots, address, end, 1);
                    } else {
                        let kind = Kind::Mapped { chunk, head: 0, tail: 0, twin };
                        slots.push(Slot { address, bytes, kind });
                    }
                } else {
                    let (mut head, mut tail) = (0, 0);
                    if own {
                        while free.peek().is_some_and(|free| free.end() <= address) {
                            free.next();
                        }
                        if map.from == 0
                            && let Some(first) = free.peek().filter(|free| free.address <= address)
                        {
                            head = first.end().min(end).saturating_sub(address);
                        }
                        while free.peek().is_some_and(|free| free.end() < end) {
                            free.next();
                        }
                        if map.to == map.bytes
                            && let Some(last) = free.peek().filter(|free| free.address < end)
                        {
                            tail = end - last.address.max(address);
                        }
                    }
                    slots.push(Slot { address, bytes, kind: Kind::Mapped { chunk, head, tail, twin } });
                }
            }
            push_gap(&mut slots, end, to, 0);
        }
        Ok(slots)
    }

    fn ranges(&self) -> Vec<(u64, u64)> {
        self.ground.ranges().collect()
    }

    /// The heap's handles that nothing is in and that may be moved.
    pub(super) fn wholly_free(&self, heap: u32, free: &[Free]) -> Vec<Whole> {
        let mut whole = Vec::new();
        // The free bytes of each handle, over all its mappings.
        let mut found = vec![(0usize, 0u64); self.ground.numbers()];
        for free in free {
            for (start, map) in self.ground.touching(free.address, free.end()) {
                let from = free.address.max(start + map.from as u64);
                let to = free.end().min(start + map.to as u64);
                if let Some(entry) = found.get_mut(map.chunk as usize) {
                    entry.0 += to.saturating_sub(from) as usize;
                    entry.1 = entry.1.max(free.freed_at);
                }
            }
        }
        for (chunk, record) in self.ground.chunks() {
            let Some((bytes, freed_at)) = found.get(chunk as usize).copied() else { continue };
            if record.heap == heap && record.pins == 0 && bytes == record.bytes {
                whole.push(Whole { chunk, bytes, freed_at });
            }
        }
        whole
    }

    /// Offers all of a handle, which is wholly free, at one of its mappings.
    fn bring_home(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        chunk: u32,
        address: u64,
    ) -> Result<(), GrowError<B::Error>> {
        let Some(map) = self.ground.at(address) else { return Ok(()) };
        let bytes = map.bytes;
        if map.from == 0 && map.to == bytes {
            return Ok(());
        }
        self.announce(chunk, 0);
        self.leave(heap, mine, chunk);
        if let Some(map) = self.ground.at_mut(address) {
            (map.from, map.to, map.heap) = (0, bytes, heap);
        }
        mine.offer(address, bytes).ok_or(GrowError::NoNumbers)
    }

    /// Maps a handle, which is wholly free or new, at an address and offers it there.
    fn move_to(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        chunk: u32,
        address: u64,
    ) -> Result<(), GrowError<B::Error>> {
        let Some((memory, bytes)) = self.ground.chunk(chunk).map(|chunk| (chunk.memory, chunk.bytes)) else {
            return Err(GrowError::NoNumbers);
        };
        self.announce(chunk, 0);
        let mapped =
            self.clear(address, bytes).and_then(|()| Ok(self.backend.map(address, bytes, memory)?));
        if let Err(error) = mapped {
            self.shelter(heap, mine, chunk);
            return Err(error);
        }
        self.leave(heap, mine, chunk);
        self.ground.map(address, chunk, 0, bytes);
        mine.offer(address, bytes).ok_or(GrowError::NoNumbers)
    }

    /// Maps a handle whose last bytes are free a second time, and offers those at the new address alone.
    fn lend(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        chunk: u32,
        from: usize,
        address: u64,
    ) -> Result<(), GrowError<B::Error>> {
        let Some((memory, bytes)) = self.ground.chunk(chunk).map(|chunk| (chunk.memory, chunk.bytes)) else {
            return Err(GrowError::NoNumbers);
        };
        self.announce(chunk, from);
        self.clear(address, bytes)?;
        self.backend.map(address, bytes, memory)?;
        let owner = self.ground.chunk(chunk).and_then(|chunk| {
            chunk.maps.iter().copied().find(|at| {
                self.ground.at(*at).is_some_and(|map| map.to == bytes && map.from <= from && !map.is_stale())
            })
        });
        if let Some(at) = owner {
            mine.large.withdraw(at + from as u64, bytes - from);
            let now = mine.tick();
            if let Some(map) = self.ground.at_mut(at) {
                (map.to, map.heap, map.left_at) = (from, heap, now);
            }
        }
        self.ground.map(address, chunk, from, bytes);
        let now = mine.tick();
        if mine.large.offer(address + from as u64, bytes - from, now) {
            Ok(())
        } else {
            Err(GrowError::NoNumbers)
        }
    }

    /// The handle with the largest free end that is not longer than `most`, where that begins, and the handle's size.
    fn tail_for(&self, build: &Build, mine: &StreamHeap, most: u64) -> Option<(u32, usize, usize)> {
        let mut best: Option<(u64, u32, usize, usize)> = None;
        for free in mine.free_ranges() {
            let Some((start, map)) = self.ground.covering(free.end() - 1) else { continue };
            let end = start + map.bytes as u64;
            let tail = end.saturating_sub(free.address.max(start));
            let partial = free.end() == end && tail < map.bytes as u64 && !build.stock.has(map.chunk);
            let fits = tail >= self.policy.smallest_tail as u64 && tail < most;
            let movable =
                self.ground.chunk(map.chunk).is_some_and(|chunk| chunk.heap == build.heap && chunk.pins == 0);
            if partial && fits && movable && best.is_none_or(|(known, ..)| tail > known) {
                best = Some((tail, map.chunk, map.bytes - tail as usize, map.bytes));
            }
        }
        best.map(|(_, chunk, from, bytes)| (chunk, from, bytes))
    }

    /// Takes what is free of a handle away from all its mappings, which become stale.
    pub(super) fn leave(&mut self, heap: u32, mine: &mut StreamHeap, chunk: u32) {
        let maps = self.ground.chunk(chunk).map(|chunk| chunk.maps.clone()).unwrap_or_default();
        let now = mine.tick();
        for address in maps {
            if let Some(map) = self.ground.at_mut(address).filter(|map| !map.is_stale()) {
                mine.large.withdraw(address + map.from as u64, map.to - map.from);
                (map.from, map.to, map.heap, map.left_at) = (0, 0, heap, now);
            }
        }
        self.marks_of(heap);
    }

    /// Takes stale mappings away that lie where something is to be mapped.
    fn clear(&mut self, address: u64, bytes: usize) -> Result<(), GrowError<B::Error>> {
        let stale: Vec<(u64, usize)> = self
            .ground
            .touching(address, address + bytes as u64)
            .map(|(start, map)| (start, map.bytes))
            .collect();
        for (start, bytes) in stale {
            self.backend.unmap(start, bytes)?;
            self.ground.unmap(start);
        }
        Ok(())
    }
}

/// A range that is being put together.
struct Build {
    heap: u32,
    size: usize,
    load: Load,
    stock: Stock,
    /// The bytes that it has, and where they begin.
    got: u64,
    start: Option<u64>,
}

impl Build {
    fn begin(&mut self, address: u64) {
        self.start.get_or_insert(address);
    }
}

impl Stock {
    fn of(whole: &[Whole], moves: bool) -> Self {
        let mut stock = Self::default();
        if !moves {
            return stock;
        }
        for one in whole {
            match stock.0.iter_mut().find(|(bytes, _)| *bytes == one.bytes) {
                Some((_, shelf)) => shelf.push(*one),
                None => stock.0.push((one.bytes, vec![*one])),
            }
        }
        stock.0.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        for (_, shelf) in &mut stock.0 {
            shelf.sort_unstable_by_key(|whole| std::cmp::Reverse((whole.freed_at, whole.chunk)));
        }
        stock
    }

    fn supply(&self) -> Supply {
        self.0.iter().map(|(bytes, shelf)| (*bytes, shelf.len() as u32)).collect()
    }

    fn has(&self, chunk: u32) -> bool {
        self.0.iter().any(|(_, shelf)| shelf.iter().any(|whole| whole.chunk == chunk))
    }

    /// Leaves what is in the window where it is.
    fn without(&mut self, window: &[Slot]) {
        for slot in window {
            if let Kind::Mapped { chunk, .. } = slot.kind {
                for (_, shelf) in &mut self.0 {
                    shelf.retain(|whole| whole.chunk != chunk);
                }
            }
        }
    }

    /// The largest handle of at most `left` bytes; if there is none and it may be longer, the smallest.
    fn take(&mut self, left: usize, exact: bool) -> Option<Whole> {
        let at = self.0.iter().position(|(bytes, shelf)| *bytes <= left && !shelf.is_empty());
        let at = at.or_else(|| {
            let longer = self.0.iter().rposition(|(_, shelf)| !shelf.is_empty());
            longer.filter(|_| !exact)
        })?;
        self.0.get_mut(at)?.1.pop()
    }
}

/// Adds addresses without a mapping of use to the line; neighbouring ones become one gap.
fn push_gap(slots: &mut Vec<Slot>, from: u64, to: u64, stale: u32) {
    if from >= to {
        return;
    }
    if let Some(last) = slots.last_mut()
        && last.end() == from
        && let Kind::Gap { stale: known } = &mut last.kind
    {
        *known += stale;
        last.bytes += to - from;
        return;
    }
    slots.push(Slot { address: from, bytes: to - from, kind: Kind::Gap { stale } });
}
