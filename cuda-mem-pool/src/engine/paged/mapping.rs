//! Puts handles where they are wanted.

use super::assemble::Build;
use super::backend::Backend;
use super::heap::StreamHeap;
use super::policy::cost;
use super::source::{GrowError, PageSource};

impl<B: Backend> PageSource<B> {
    /// Offers all of a handle, which is wholly free, at one of its mappings.
    pub(super) fn bring_home(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        chunk: u32,
        address: u64,
    ) -> Result<(), GrowError<B::Error>> {
        let Some(map) = self.ground.at(address) else { return Ok(()) };
        let bytes = map.bytes();
        if map.from() == 0 && map.to() == bytes {
            return Ok(());
        }
        self.announce(chunk, 0);
        self.leave(heap, mine, chunk);
        self.ground.settle(address, heap);
        self.settle_in(chunk, address);
        mine.offer(address, bytes).ok_or(GrowError::NoNumbers)
    }

    /// Maps a handle, which is wholly free or new, at an address and offers it there.
    pub(super) fn move_to(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        chunk: u32,
        address: u64,
    ) -> Result<(), GrowError<B::Error>> {
        self.move_all_to(heap, mine, &[chunk], address).map(|_| ())
    }

    /// As [`PageSource::move_to`], of several, one behind the other, with one call that lets the device in. The bytes of all.
    pub(super) fn move_all_to(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        row: &[u32],
        address: u64,
    ) -> Result<u64, GrowError<B::Error>> {
        let mut pieces = Vec::with_capacity(row.len());
        let mut total = 0;
        for chunk in row {
            let Some(record) = self.ground.chunk(*chunk) else { return Err(GrowError::NoNumbers) };
            pieces.push((record.bytes, record.memory));
            total += record.bytes;
            if !record.maps.is_empty() {
                self.charge(cost::MAP);
            }
            self.announce(*chunk, 0);
        }
        let (mapped, mut outcome) = match self.clear(address, total) {
            Ok(()) => {
                let (mapped, outcome) = self.backend.map_row(address, &pieces);
                (mapped, outcome.map_err(GrowError::from))
            }
            Err(error) => (0, Err(error)),
        };
        let mut at = address;
        for (chunk, (bytes, _)) in row.iter().zip(&pieces).take(mapped) {
            self.leave(heap, mine, *chunk);
            self.ground.map(at, *chunk, 0, *bytes);
            self.settle_in(*chunk, at);
            if mine.offer(at, *bytes).is_none() {
                outcome = Err(GrowError::NoNumbers);
            }
            at += *bytes as u64;
        }
        row.iter().skip(mapped).for_each(|chunk| self.shelter(heap, mine, *chunk));
        outcome.map(|()| total as u64)
    }

    /// Maps a handle whose last bytes are free a second time, and offers those at the new address alone.
    pub(super) fn lend(
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
                self.ground
                    .at(*at)
                    .is_some_and(|map| map.to() == bytes && map.from() <= from && !map.is_stale())
            })
        });
        if let Some(at) = owner {
            mine.large.withdraw(at + from as u64, bytes - from);
            let now = mine.tick();
            if let Some(map) = self.ground.at_mut(at) {
                map.leave_from(from, heap, now);
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
    pub(super) fn tail_for(
        &self,
        build: &Build,
        mine: &StreamHeap,
        most: u64,
    ) -> Option<(u32, usize, usize)> {
        let mut best: Option<(u64, u32, usize, usize)> = None;
        for free in mine.free_ranges() {
            let Some((start, map)) = self.ground.covering(free.end() - 1) else { continue };
            let end = start + map.bytes() as u64;
            let tail = end.saturating_sub(free.address.max(start));
            let partial = free.end() == end && tail < map.bytes() as u64 && !build.stock.has(map.chunk);
            let fits = tail >= self.policy.smallest_tail as u64 && tail < most;
            let movable =
                self.ground.chunk(map.chunk).is_some_and(|chunk| chunk.heap == build.heap && chunk.pins == 0);
            if partial && fits && movable && best.is_none_or(|(known, ..)| tail > known) {
                best = Some((tail, map.chunk, map.bytes() - tail as usize, map.bytes()));
            }
        }
        best.map(|(_, chunk, from, bytes)| (chunk, from, bytes))
    }

    /// Takes what is free of a handle away from all its mappings, which become stale.
    pub(super) fn leave(&mut self, heap: u32, mine: &mut StreamHeap, chunk: u32) {
        let now = mine.tick();
        self.leave_at(heap, mine, chunk, now);
    }

    /// As [`PageSource::leave`], of one that the heap has used up to a count: no later point has to be made to know that it has not since.
    pub(super) fn leave_at(&mut self, heap: u32, mine: &mut StreamHeap, chunk: u32, count: u64) {
        let offered: Vec<u64> = self.ground.offered(chunk).map(|(address, _)| address).collect();
        for address in offered {
            if let Some(map) = self.ground.at_mut(address) {
                mine.large.withdraw(address + map.from() as u64, map.to() - map.from());
                map.leave(heap, count);
            }
        }
        self.marks_of(heap);
    }

    /// Takes stale mappings away that lie where something is to be mapped.
    pub(super) fn clear(&mut self, address: u64, bytes: usize) -> Result<(), GrowError<B::Error>> {
        let found = self.ground.touching(address, address + bytes as u64);
        // What is offered somebody may use: never unmapped, whatever the books say elsewhere.
        let stale = found.map(|(start, map)| {
            if map.is_stale() { Ok((start, map.bytes())) } else { Err(GrowError::InUse { address: start }) }
        });
        let stale = stale.collect::<Result<Vec<_>, _>>()?;
        for row in stale.chunk_by(|(start, bytes), (next, _)| start + *bytes as u64 == *next) {
            let Some((first, _)) = row.first() else { continue };
            self.backend.unmap(*first, row.iter().map(|(_, bytes)| bytes).sum())?;
            for (start, _) in row {
                self.ground.unmap(*start);
                self.charge(cost::UNMAP);
            }
        }
        Ok(())
    }
}
