//! The line of a heap's addresses, as windows are looked for in it.

use super::backend::Backend;
use super::extents::Free;
use super::ground::Map;
use super::marks::is_done;
use super::source::{GrowError, PageSource};
use super::stock::Whole;
use super::window::{Fillings, Kind, Search, Slot, Supply, Window};
use crate::engine::slab::NONE;

/// So many mappings are passed by before the next one of use is looked up.
const NEAR: usize = 16;

/// What a window may cost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    /// In microseconds.
    pub(super) price: i64,
    /// The bytes that may be made for it before more is held than should be.
    pub(super) spare: usize,
}

/// A line of slots, and a window in it.
type Found = (Vec<Slot>, Window);

impl<B: Backend> PageSource<B> {
    /// The line of the heap's slots, and the cheapest window in it.
    pub(super) fn window(
        &mut self,
        heap: u32,
        free: &[Free],
        whole: &[Whole],
        size: usize,
        supply: &Supply,
        limit: Limit,
    ) -> Result<Option<Found>, GrowError<B::Error>> {
        let slots = self.slots(heap, free, whole)?;
        let waste = self.policy.waste(self.ground.bytes());
        let largest = self.policy.largest(self.holding()) as u64;
        let (spare, price_of_more) = (limit.spare as u64, self.policy.price_of_more);
        let size = size as u64;
        let fillings = Fillings::of(size);
        let search = Search { slots: &slots, size, supply, waste, largest, spare, price_of_more, fillings };
        let window = search.cheapest(limit.price);
        Ok(window.map(|window| (slots, window)))
    }

    /// What has a use for a window, in order: where nothing is listed none goes on.
    fn slots(&mut self, heap: u32, mut free: &[Free], whole: &[Whole]) -> Result<Vec<Slot>, B::Error> {
        let mut is_whole = vec![false; self.ground.numbers()];
        for whole in whole {
            if let Some(entry) = is_whole.get_mut(whole.chunk as usize) {
                *entry = true;
            }
        }
        let is_patient = self.is_patient();
        let Self { ground, marks, backend, round, .. } = self;
        let mut slots: Vec<Slot> = Vec::with_capacity(whole.len() + free.len());
        let mut twins = vec![NONE; ground.numbers()];
        // Up to where a heap is known to be done: stale mappings of one lie side by side.
        let mut known = (NONE, 0);
        for (from, to) in ground.ranges() {
            let mut end = from;
            for (address, map) in ground.touching(from, to) {
                if end < address {
                    push_gap(&mut slots, end, address, 0);
                }
                end = address + map.bytes() as u64;
                let chunk = map.chunk;
                let (mut head, mut tail) = (0, 0);
                if is_whole.get(chunk as usize) == Some(&true) {
                    (head, tail) = (end - address, end - address);
                } else if map.is_stale() {
                    let was_done = map.heap == known.0 && map.left_at <= known.1;
                    let stays = is_patient && map.is_place();
                    if !stays && (was_done || is_done(marks, map.heap, map.left_at, *round, backend)?) {
                        push_gap(&mut slots, address, end, 1);
                        if !was_done {
                            known = (map.heap, map.left_at);
                        }
                    }
                } else if map.heap == heap {
                    free = behind(free, address);
                    let first = free.first().filter(|first| first.address < end);
                    // Most are in use.
                    let Some(first) = first else { continue };
                    if map.from() == 0 && first.address <= address {
                        head = first.end().min(end) - address;
                    }
                    free = behind(free, end - 1);
                    if map.to() == map.bytes()
                        && let Some(last) = free.first().filter(|last| last.address < end)
                    {
                        tail = end - last.address.max(address);
                    }
                }
                if head > 0 || tail > 0 {
                    let twin = std::mem::replace(&mut twins[chunk as usize], slots.len() as u32);
                    let kind = Kind::Mapped { chunk, head, tail, twin };
                    slots.push(Slot { address, bytes: end - address, kind });
                }
            }
            if end < to {
                push_gap(&mut slots, end, to, 0);
            }
        }
        Ok(slots)
    }

    /// The heap's handles that nothing is in and that may be moved, in no order.
    pub(super) fn wholly_free(&self, heap: u32, free: &[Free]) -> Vec<Whole> {
        let mut whole = Vec::with_capacity(free.len());
        // What is free of others, over all their mappings.
        let mut pieces: Vec<(u32, usize, u64)> = Vec::new();
        // Both in the order of their addresses, so neither is searched.
        let (from, to) = (free.first().map_or(0, |free| free.address), free.last().map_or(0, Free::end));
        let mut maps = self.ground.touching(from, to).peekable();
        for free in free {
            let is_before = |(start, map): &(u64, &Map)| start + map.bytes() as u64 <= free.address;
            // Unless very many lie between, of other heaps.
            if (0..NEAR).all(|_| maps.next_if(is_before).is_some()) {
                maps = self.ground.touching(free.address, to).peekable();
            }
            while let Some((start, map)) = maps.peek().copied().filter(|(start, _)| *start < free.end()) {
                let from = free.address.max(start + map.from() as u64);
                let to = free.end().min(start + map.to() as u64);
                if from < to {
                    let bytes = (to - from) as usize;
                    if bytes == map.bytes() {
                        whole.push(Whole { chunk: map.chunk, bytes, freed_at: free.freed_at });
                    } else {
                        pieces.push((map.chunk, bytes, free.freed_at));
                    }
                }
                // The next free range may begin in it.
                if start + map.bytes() as u64 > free.end() {
                    break;
                }
                maps.next();
            }
        }
        // Other heaps may have thousands of handles where this one has a few.
        pieces.sort_unstable_by_key(|(chunk, ..)| *chunk);
        let of_one = |pieces: &[(u32, usize, u64)]| {
            let (chunk, ..) = *pieces.first()?;
            let (bytes, freed_at) = pieces
                .iter()
                .fold((0, 0), |(bytes, freed_at), (_, more, at)| (bytes + more, freed_at.max(*at)));
            Some(Whole { chunk, bytes, freed_at })
        };
        whole.extend(pieces.chunk_by(|(one, ..), (other, ..)| one == other).filter_map(of_one));
        whole.retain(|whole| {
            let record = self.ground.chunk(whole.chunk);
            record
                .is_some_and(|record| record.heap == heap && record.pins == 0 && whole.bytes == record.bytes)
        });
        whole
    }
}

/// Those of some free ranges that end behind an address.
fn behind(mut free: &[Free], address: u64) -> &[Free] {
    while let Some((first, rest)) = free.split_first()
        && first.end() <= address
    {
        free = rest;
    }
    free
}

/// Adds addresses without a mapping of use to the line; neighbouring ones become one gap.
fn push_gap(slots: &mut Vec<Slot>, from: u64, to: u64, stale: u32) {
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
