//! A device with streams that knows every use of every byte, and refuses what a real one would not survive.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use crate::engine::paged::Backend;

/// How far each stream had come, by heap.
type Clock = Vec<u64>;

/// A point behind the work of a stream.
#[derive(Debug, Clone)]
pub(super) struct Point {
    stream: u32,
    count: u64,
    clock: Clock,
}

/// A stream's work is counted; what other streams' work has to be done before it is in `waits`.
#[derive(Debug, Default)]
struct Queue {
    given: u64,
    done: u64,
    clock: Clock,
    waits: VecDeque<(u64, Clock)>,
}

#[derive(Debug)]
struct Mapping {
    bytes: usize,
    memory: u64,
    /// The last use here, by stream.
    uses: BTreeMap<u32, u64>,
}

#[derive(Debug, Clone, Copy)]
struct Use {
    bytes: u64,
    stream: u32,
    count: u64,
}

#[derive(Debug, Default)]
pub(super) struct Device {
    pub(super) capacity: usize,
    pub(super) held: usize,
    /// One call of so many is refused; 0 for none.
    pub(super) refuses: u64,
    calls: u64,
    next: u64,
    memory: HashMap<u64, usize>,
    ranges: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, Mapping>,
    queues: Vec<Queue>,
    /// What the host was told is done: all that it gives from then on comes after it.
    host: Clock,
    pub(super) capturing: HashSet<u32>,
    /// The last use of each byte of memory, by handle and offset.
    used: BTreeMap<(u64, u64), Use>,
}

impl Device {
    pub(super) fn new(streams: u32, capacity: usize) -> Self {
        let queue = || Queue { clock: vec![0; streams as usize], ..Queue::default() };
        let queues = (0..streams).map(|_| queue()).collect();
        Self { capacity, next: 1, queues, host: vec![0; streams as usize], ..Self::default() }
    }

    /// Gives a stream work that writes a range.
    pub(super) fn work(&mut self, stream: u32, address: u64, bytes: usize) {
        let queue = &mut self.queues[stream as usize];
        queue.given += 1;
        let count = queue.given;
        join(&mut queue.clock, &self.host);
        queue.clock[stream as usize] = count;
        for (memory, offset, bytes) in self.pieces(address, bytes) {
            self.use_bytes(Use { bytes, stream, count }, memory, offset);
        }
        let end = address + bytes as u64;
        let first = *self.mapped.range(..=address).next_back().expect("nothing is mapped").0;
        for (_, mapping) in self.mapped.range_mut(first..end) {
            mapping.uses.insert(stream, count);
        }
    }

    /// Lets a stream do its next piece of work, if what that waits for is done.
    pub(super) fn advance(&mut self, stream: u32) -> bool {
        let next = self.queues[stream as usize].done + 1;
        if next > self.queues[stream as usize].given {
            return false;
        }
        if let Some((at, clock)) = self.queues[stream as usize].waits.front()
            && *at == next
        {
            if self.queues.iter().zip(clock).any(|(queue, count)| queue.done < *count) {
                return false;
            }
            self.queues[stream as usize].waits.pop_front();
        }
        self.queues[stream as usize].done = next;
        true
    }

    /// Lets all streams do all of their work.
    pub(super) fn finish(&mut self) {
        let streams = self.queues.len() as u32;
        // Each of them, also after one has come further.
        while (0..streams).filter(|stream| self.advance(*stream)).count() > 0 {}
        assert!(self.queues.iter().all(|queue| queue.done == queue.given), "streams wait for each other");
    }

    /// Handle, offset and length of what is behind a range.
    pub(super) fn pieces(&self, address: u64, bytes: usize) -> Vec<(u64, u64, u64)> {
        let end = address + bytes as u64;
        let (mut at, mut pieces) = (address, Vec::new());
        while at < end {
            let (start, mapping) = self.mapped.range(..=at).next_back().expect("nothing is mapped");
            let mapped_to = start + mapping.bytes as u64;
            assert!(at < mapped_to, "{at:#x} is not mapped");
            pieces.push((mapping.memory, at - start, mapped_to.min(end) - at));
            at = mapped_to;
        }
        pieces
    }

    pub(super) fn is_empty(&self) -> bool {
        self.mapped.is_empty() && self.memory.is_empty() && self.held == 0
    }

    /// Enters a use, which comes after all others of the same bytes.
    fn use_bytes(&mut self, new: Use, memory: u64, offset: u64) {
        let (from, to) = (offset, offset + new.bytes);
        let before = self.used.range(..(memory, from)).next_back();
        let first = before.map(|(at, _)| *at).filter(|at| at.0 == memory).unwrap_or((memory, from));
        let old: Vec<_> = self.used.range(first..(memory, to)).map(|(at, use_)| (*at, *use_)).collect();
        for ((_, start), old) in old {
            let end = start + old.bytes;
            if end <= from {
                continue;
            }
            let known = self.queues[new.stream as usize].clock[old.stream as usize];
            assert!(old.count <= known, "stream {} uses what {} may still use", new.stream, old.stream);
            self.used.remove(&(memory, start));
            if start < from {
                self.used.insert((memory, start), Use { bytes: from - start, ..old });
            }
            if end > to {
                self.used.insert((memory, to), Use { bytes: end - to, ..old });
            }
        }
        self.used.insert((memory, from), new);
    }

    fn map_one(&mut self, address: u64, bytes: usize, memory: u64) -> Result<(), &'static str> {
        self.call()?;
        assert_eq!(self.memory.get(&memory), Some(&bytes));
        assert!(address.is_multiple_of(2 << 20));
        let (start, range) = self.ranges.range(..=address).next_back().expect("addresses that are reserved");
        assert!(address + bytes as u64 <= start + range, "beyond what is reserved");
        let before = self.mapped.range(..address + bytes as u64).next_back();
        assert!(before.is_none_or(|(start, it)| start + it.bytes as u64 <= address), "mapped twice");
        self.mapped.insert(address, Mapping { bytes, memory, uses: BTreeMap::new() });
        Ok(())
    }

    fn call(&mut self) -> Result<(), &'static str> {
        self.calls += 1;
        if self.refuses > 0 && self.calls.is_multiple_of(self.refuses) { Err("refused") } else { Ok(()) }
    }
}

fn join(mine: &mut Clock, theirs: &Clock) {
    for (mine, theirs) in mine.iter_mut().zip(theirs) {
        *mine = (*mine).max(*theirs);
    }
}

impl Backend for Device {
    type Error = &'static str;
    type Point = Point;

    fn reserve(&mut self, bytes: u64) -> Result<Option<u64>, &'static str> {
        self.call()?;
        let last = self.ranges.last_key_value().map(|(start, bytes)| start + bytes);
        // Side by side with the last one, if there is one.
        let address = last.unwrap_or(1 << 44);
        self.ranges.insert(address, bytes);
        Ok(Some(address))
    }

    fn create(&mut self, bytes: usize) -> Result<Option<u64>, &'static str> {
        self.call()?;
        assert!(bytes > 0 && bytes.is_multiple_of(2 << 20));
        if self.held + bytes > self.capacity {
            return Ok(None);
        }
        self.held += bytes;
        self.next += 1;
        self.memory.insert(self.next, bytes);
        Ok(Some(self.next))
    }

    fn map(&mut self, address: u64, bytes: usize, row: &[u64]) -> (usize, Result<(), &'static str>) {
        for (done, memory) in row.iter().enumerate() {
            if let Err(refused) = self.map_one(address + (done * bytes) as u64, bytes, *memory) {
                return (done, Err(refused));
            }
        }
        (row.len(), Ok(()))
    }

    fn unmap(&mut self, address: u64, bytes: usize) -> Result<(), &'static str> {
        self.call()?;
        let end = address + bytes as u64;
        let mut next = address;
        while next < end {
            let mapping = self.mapped.remove(&next).expect("a mapping");
            next += mapping.bytes as u64;
            let busy =
                mapping.uses.iter().find(|(stream, count)| self.queues[**stream as usize].done < **count);
            assert_eq!(busy, None, "unmapped while work uses it");
        }
        assert_eq!(next, end, "half a mapping");
        Ok(())
    }

    fn release(&mut self, memory: u64, bytes: usize) -> Result<(), &'static str> {
        self.call()?;
        assert_eq!(self.memory.remove(&memory), Some(bytes));
        assert!(self.mapped.values().all(|mapping| mapping.memory != memory), "it is still mapped");
        self.held -= bytes;
        self.used.retain(|(of, _), _| *of != memory);
        Ok(())
    }

    fn point(&mut self, heap: u32) -> Result<Option<Point>, &'static str> {
        self.call()?;
        if self.capturing.contains(&heap) {
            return Ok(None);
        }
        let queue = &mut self.queues[heap as usize];
        join(&mut queue.clock, &self.host);
        Ok(Some(Point { stream: heap, count: queue.given, clock: queue.clock.clone() }))
    }

    fn is_done(&mut self, point: &Point) -> Result<bool, &'static str> {
        self.call()?;
        let done = point.count <= self.queues[point.stream as usize].done;
        if done {
            join(&mut self.host, &point.clock);
        }
        Ok(done)
    }

    fn wait(&mut self, waiter: u32, of: u32, point: &Point) -> Result<bool, &'static str> {
        self.call()?;
        assert_eq!(of, point.stream);
        if self.capturing.contains(&waiter) {
            return Ok(false);
        }
        let queue = &mut self.queues[waiter as usize];
        queue.given += 1;
        queue.waits.push_back((queue.given, point.clock.clone()));
        join(&mut queue.clock, &point.clock);
        queue.clock[waiter as usize] = queue.given;
        Ok(true)
    }
}
