//! Windows of their own for the blocks of heaps that hold little.
//!
//! Where little is held, a tenth more than is needed is a few handles, and blocks come and go by the thousand. So each size has
//! windows of its own there, whole pages long, and is found again in one whose pages are all free: they are mapped there still,
//! whatever else they served meanwhile. Where some of them are in use elsewhere only those are replaced, by any that are free: a
//! program that does the same again and again finds everything in its place after a few rounds. Always replacing them by those
//! that were free for longest would go round in circles, because those are the next to be wanted.

use super::assemble::Build;
use super::backend::Backend;
use super::heap::StreamHeap;
use super::sizes::PAGE;
use super::source::{GrowError, Heaps, Load, PageSource};
use super::stock::Stock;
use super::window::whole_pages;

/// How many windows a size has at most.
const MOST: usize = 256;

/// What a piece of a window's addresses is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// A free handle that is offered here.
    Here { bytes: u64 },
    /// A free handle that is offered elsewhere.
    Away { chunk: u32, bytes: u64, of: u32 },
    /// Addresses with nothing, or with mappings of no use that may go.
    Lacks { bytes: u64 },
}

impl<B: Backend> PageSource<B> {
    /// Makes `size` free bytes in a window of their own; where they begin.
    pub(super) fn open(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        others: &mut impl Heaps,
        size: usize,
        load: Load,
    ) -> Result<Option<u64>, GrowError<B::Error>> {
        if size < PAGE
            && let Some(rest) = mine.large.free_from(size).next().filter(|free| free.size < PAGE)
        {
            return Ok(Some(rest.address));
        }
        let key = self.key(heap, size);
        let known = self.windows.by_size.get(&key).cloned().unwrap_or_default();
        let are_many = known.len() >= MOST;
        let mut best: Option<(u64, u64, Vec<Part>)> = None;
        for address in known {
            let Some((lacks, parts)) = self.parts(heap, mine, others, address, size)? else { continue };
            if best.as_ref().is_none_or(|(fewest, ..)| lacks < *fewest) {
                best = Some((lacks, address, parts));
            }
            if lacks == 0 {
                break;
            }
        }
        let (lacks, address, parts) = match best {
            Some(best) => best,
            None if are_many => return Ok(None),
            None => {
                let bytes = whole_pages(size as u64);
                (bytes, self.new_window(bytes)?, vec![Part::Lacks { bytes }])
            }
        };
        let mut build = Build::new(heap, size, load, Stock::default());
        if lacks > 0 {
            build.stock = self.mixed(heap, mine, address, &parts);
        }
        if !self.gather(heap, mine, others, address, &parts)? {
            return Ok(None);
        }
        let mut at = address;
        for part in parts {
            if let Part::Lacks { bytes } = part {
                self.fill_gap(&mut build, mine, others, at, bytes, bytes)?;
            }
            at += part.bytes();
        }
        if lacks > 0
            && let Some(map) = self.ground.at(address).copied()
            && let Some(chunk) = self.ground.chunk_mut(map.chunk)
        {
            chunk.paged = size == PAGE;
        }
        let windows = self.windows.by_size.entry(key).or_default();
        windows.retain(|other| *other != address);
        windows.insert(0, address);
        if lacks > 0 {
            let now = mine.now();
            self.marks_of(heap);
            if let Some(marks) = self.marks.get_mut(&heap) {
                marks.make(heap, now, &mut self.backend)?;
            }
        }
        Ok(Some(address))
    }

    /// The free handles of a heap that a window does not have, in no order, those that pages were in last.
    fn mixed(&self, heap: u32, mine: &StreamHeap, window: u64, parts: &[Part]) -> Stock {
        let paged = |chunk| self.ground.chunk(chunk).is_some_and(|chunk| chunk.paged);
        let mut stock = Stock::shuffled(&self.wholly_free(heap, &mine.free_ranges()), self.round, paged);
        let mut at = window;
        for part in parts {
            if let Some(map) = self.ground.at(at).filter(|_| !matches!(part, Part::Lacks { .. })) {
                stock.remove(map.chunk);
            }
            at += part.bytes();
        }
        stock
    }

    /// Brings the handles of a window home that are offered elsewhere. False if those of another heap cannot be had.
    fn gather(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        others: &mut impl Heaps,
        from: u64,
        parts: &[Part],
    ) -> Result<bool, GrowError<B::Error>> {
        let mut givers: Vec<(u32, Vec<(u32, u64)>)> = Vec::new();
        let mut at = from;
        for part in parts {
            if let Part::Away { chunk, of, .. } = *part {
                match givers.iter_mut().find(|(giver, _)| *giver == of) {
                    Some((_, handles)) => handles.push((chunk, at)),
                    None => givers.push((of, vec![(chunk, at)])),
                }
            }
            at += part.bytes();
        }
        for (of, handles) in givers {
            let chunks: Vec<u32> = handles.iter().map(|(chunk, _)| *chunk).collect();
            if of != heap && !self.take_over(heap, others, of, &chunks)? {
                return Ok(false);
            }
            for (chunk, at) in handles {
                self.bring_home(heap, mine, chunk, at)?;
            }
        }
        Ok(true)
    }

    /// What a window is made of, and how much of it has to be replaced. None if something is in use there, or may be.
    fn parts(
        &mut self,
        heap: u32,
        mine: &StreamHeap,
        others: &mut impl Heaps,
        from: u64,
        size: usize,
    ) -> Result<Option<(u64, Vec<Part>)>, B::Error> {
        let end = from + whole_pages(size as u64);
        let (mut parts, mut lacks) = (Vec::new(), 0);
        let mut at = from;
        while at < end {
            let Some((start, map)) = self.ground.covering(at).map(|(start, map)| (start, *map)) else {
                let next = self.ground.next_after(at).unwrap_or(end).min(end);
                lacks += next - at;
                push_lack(&mut parts, next - at);
                at = next;
                continue;
            };
            let bytes = map.bytes as u64;
            if start != at || at + bytes > end {
                return Ok(None);
            }
            at += bytes;
            if !map.is_stale() {
                // All of it: what is in use of a handle elsewhere is as much in use here.
                if map.from > 0 || map.to < map.bytes || mine.large.free_at(start, map.bytes).is_none() {
                    return Ok(None);
                }
                parts.push(Part::Here { bytes });
            } else if !parts
                .iter()
                .any(|part| matches!(part, Part::Away { chunk, .. } if *chunk == map.chunk))
                && let Some(of) = self.free_in(heap, mine, others, map.chunk)
            {
                parts.push(Part::Away { chunk: map.chunk, bytes, of });
            } else if self.is_done(map.heap, map.left_at)? {
                lacks += bytes;
                push_lack(&mut parts, bytes);
            } else {
                return Ok(None);
            }
        }
        Ok(Some((lacks, parts)))
    }

    /// The heap that has a handle, if nothing is in it and it may be moved.
    fn free_in(&self, heap: u32, mine: &StreamHeap, others: &mut impl Heaps, chunk: u32) -> Option<u32> {
        let of = self.ground.chunk(chunk).filter(|chunk| chunk.pins == 0)?.heap;
        let is_free = if of == heap {
            self.is_wholly_free(mine, chunk)
        } else {
            others.try_with(of, |theirs| self.is_wholly_free(theirs, chunk))?
        };
        is_free.then_some(of)
    }

    /// Whether nothing is in a handle of a heap.
    pub(super) fn is_wholly_free(&self, mine: &StreamHeap, chunk: u32) -> bool {
        let Some(record) = self.ground.chunk(chunk) else { return false };
        let mut free = 0;
        for (address, map) in self.ground.offered(chunk) {
            if mine.large.free_at(address + map.from as u64, map.to - map.from).is_none() {
                return false;
            }
            free += map.to - map.from;
        }
        free == record.bytes
    }

    /// Addresses for a new window.
    fn new_window(&mut self, bytes: u64) -> Result<u64, GrowError<B::Error>> {
        let taken = bytes + PAGE as u64;
        if self.windows.end - self.windows.next < taken {
            let range = self.range.max(taken);
            self.windows.next = self.backend.reserve(range)?;
            self.windows.end = self.windows.next + range;
        }
        self.windows.next += taken;
        Ok(self.windows.next - taken)
    }
}

impl Part {
    const fn bytes(self) -> u64 {
        match self {
            Self::Here { bytes } | Self::Away { bytes, .. } | Self::Lacks { bytes } => bytes,
        }
    }
}

fn push_lack(parts: &mut Vec<Part>, bytes: u64) {
    if let Some(Part::Lacks { bytes: known }) = parts.last_mut() {
        *known += bytes;
    } else {
        parts.push(Part::Lacks { bytes });
    }
}
