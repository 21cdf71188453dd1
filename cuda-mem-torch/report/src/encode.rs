//! A history as the page's script reads it: numbers in as few bytes as they need, as text, and few enough for one page.

use std::collections::HashMap;

use anyhow::Result;
use serde_json::{Value, json};

use super::history::{Block, History, NEVER, Segment, Series};

/// Points of a curve: more events than this share one, which shows the highest of them.
const MAX_POINTS: u64 = 150_000;

/// Letters of everything that grows with the recording: with the rest of the page below 5 MB.
const LETTERS: usize = 4_600_000;

/// Failed allocations that are marked one by one.
const MAX_MARKS: usize = 1000;

/// Bytes of stacks that are shown.
const STACK_BYTES: usize = 400_000;

/// What the script gets.
pub(super) fn encode(history: &History, series: &Series) -> Result<Value> {
    let events = u64::from(history.events);
    let step = usize::try_from(events.div_ceil(MAX_POINTS).max(1))?;
    let (stacks, kept) = stacks(history);
    let streams = Places::of(
        history.blocks.iter().map(|b| b.stream).chain(history.segments.iter().map(|s| s.owner.stream)),
    );
    let live = curve(&series.live, step);
    let pending = curve(&series.pending, step);
    let reserved = series.reserved.as_deref().map(|values| curve(values, step));
    let times = (!history.times.is_empty()).then(|| curve(&history.times, step));
    let curves = [Some(&live), Some(&pending), reserved.as_ref(), times.as_ref()];
    let curves = curves.into_iter().flatten().map(String::len).sum::<usize>();
    let left = LETTERS.saturating_sub(curves + STACK_BYTES);
    let lifetime = |s: &Segment| u64::from(s.to.min(history.events).saturating_sub(s.from));
    let (segments, omitted_segments) =
        fitting(&history.segments, left / 3, lifetime, |segments| pack_segments(segments, &streams));
    let left = left - segments.len();
    let (blocks, omitted_blocks) =
        fitting(&history.blocks, left, |b| b.size, |blocks| pack_blocks(blocks, &streams, &kept));
    let out_of_memory = history.out_of_memory.iter().take(MAX_MARKS);
    let out_of_memory = out_of_memory.map(|event| json!([event.moment, event.requested, event.free]));
    let references = history.references.iter().map(|reference| json!([reference.name, reference.bytes]));
    Ok(json!({
        "what": history.what,
        "events": history.events,
        "step": step,
        "live": live,
        "pending": pending,
        "reserved": reserved,
        "times": times,
        "streams": streams.list,
        "addresses": history.blocks.iter().any(|block| block.address.is_some()) || !history.segments.is_empty(),
        "blocks": blocks,
        "omittedBlocks": omitted_blocks,
        "segments": segments,
        "omittedSegments": omitted_segments,
        "outOfMemory": out_of_memory.collect::<Vec<_>>(),
        "omittedMarks": history.out_of_memory.len().saturating_sub(MAX_MARKS),
        "references": references.collect::<Vec<_>>(),
        "stacks": stacks,
    }))
}

/// Values as differences; of `step` values the highest.
fn curve(values: &[u64], step: usize) -> String {
    let (first, rest) = values.split_at(values.len().min(1));
    let highest = rest.chunks(step).map(|chunk| chunk.iter().copied().max().unwrap_or(0));
    let mut packed = Packed::default();
    let mut last = 0;
    for value in first.iter().copied().chain(highest) {
        packed.difference(value, last);
        last = value;
    }
    packed.text()
}

/// As many entries as have room in so many letters, the ones with the most weight; how many were left out.
fn fitting<T: Clone>(
    all: &[T],
    most: usize,
    weight: impl Fn(&T) -> u64,
    pack: impl Fn(&[T]) -> Packed,
) -> (String, usize) {
    let mut kept = all.to_vec();
    let mut packed = pack(&kept);
    // Four letters are three bytes.
    let most = most / 4 * 3;
    while packed.0.len() > most {
        // A little fewer than the share, because those that stay are those with longer numbers.
        let keep = (kept.len().saturating_mul(most) / packed.0.len()).saturating_mul(15) / 16;
        let mut order = (0..kept.len()).collect::<Vec<_>>();
        order.sort_by_key(|place| std::cmp::Reverse(kept.get(*place).map_or(0, &weight)));
        order.truncate(keep);
        order.sort_unstable();
        kept = order.into_iter().filter_map(|place| kept.get(place).cloned()).collect();
        packed = pack(&kept);
    }
    (packed.text(), all.len() - kept.len())
}

/// Seven or eight numbers a block, in the order in which they came.
fn pack_blocks(blocks: &[Block], streams: &Places, stacks: &HashMap<u32, u64>) -> Packed {
    let mut packed = Packed::default();
    let (mut last, mut place) = (0, 0);
    for block in blocks {
        packed.difference(block.allocated.into(), last);
        packed.until(block.allocated, block.freed);
        if block.freed != NEVER {
            packed.until(block.freed, block.done);
        }
        packed.number(block.size);
        packed.difference(block.requested, block.size);
        packed.number(streams.place(block.stream));
        packed.number(block.stack.and_then(|stack| stacks.get(&stack)).map_or(0, |place| place + 1));
        let address = block.address.unwrap_or(0);
        packed.difference(address, place);
        (last, place) = (block.allocated.into(), address);
    }
    packed
}

/// Five numbers a segment.
fn pack_segments(segments: &[Segment], streams: &Places) -> Packed {
    let mut packed = Packed::default();
    let (mut last, mut place) = (0, 0);
    for segment in segments {
        packed.difference(segment.from.into(), last);
        packed.until(segment.from, segment.to);
        packed.number(segment.size);
        packed.number(streams.place(segment.owner.stream) * 2 + u64::from(segment.owner.grows));
        packed.difference(segment.address, place);
        (last, place) = (segment.from.into(), segment.address);
    }
    packed
}

/// The stacks of the largest blocks, as many as have room, and where each of them went.
fn stacks(history: &History) -> (Vec<&[String]>, HashMap<u32, u64>) {
    let mut blocks =
        history.blocks.iter().filter_map(|b| b.stack.map(|stack| (b.size, stack))).collect::<Vec<_>>();
    blocks.sort_unstable_by(|one, other| other.cmp(one));
    let (mut list, mut places, mut left) = (Vec::new(), HashMap::new(), STACK_BYTES);
    for (_, stack) in blocks {
        let Some(frames) = history.stacks.get(stack as usize) else { continue };
        let length = frames.iter().map(|frame| frame.len() + 4).sum::<usize>();
        if places.contains_key(&stack) || length > left {
            continue;
        }
        left -= length;
        places.insert(stack, list.len() as u64);
        list.push(frames.as_slice());
    }
    (list, places)
}

/// Values by the order in which they are first met.
struct Places {
    list: Vec<i64>,
    places: HashMap<i64, u64>,
}

impl Places {
    fn of(values: impl Iterator<Item = i64>) -> Self {
        let mut all = Self { list: Vec::new(), places: HashMap::new() };
        for value in values {
            let next = all.list.len() as u64;
            if let std::collections::hash_map::Entry::Vacant(place) = all.places.entry(value) {
                place.insert(next);
                all.list.push(value);
            }
        }
        all
    }

    fn place(&self, value: i64) -> u64 {
        self.places.get(&value).copied().unwrap_or(0)
    }
}

/// Numbers, seven bits a byte, the lowest first; the eighth says that more follow.
#[derive(Debug, Default)]
struct Packed(Vec<u8>);

impl Packed {
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }

    /// The way from one number to another: twice its length, less one where it goes down.
    fn difference(&mut self, value: u64, from: u64) {
        if value >= from {
            self.number((value - from) * 2);
        } else {
            self.number((from - value) * 2 - 1);
        }
    }

    /// A later moment; 0 if it never comes.
    fn until(&mut self, from: u32, to: u32) {
        self.number(if to == NEVER { 0 } else { u64::from(to.saturating_sub(from)) + 1 });
    }

    /// In base 64.
    fn text(&self) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::with_capacity(self.0.len().div_ceil(3) * 4);
        for chunk in self.0.chunks(3) {
            let bits =
                chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
            for place in 0..4 {
                let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
                text.push(if place <= chunk.len() { char::from(digit) } else { '=' });
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::tests::block;
    use super::super::history::{Owner, Reserved};
    use super::*;

    #[test]
    fn numbers_become_the_text_that_browsers_read() {
        let text = |numbers: &[u64]| {
            let mut packed = Packed::default();
            numbers.iter().for_each(|number| packed.number(*number));
            packed.text()
        };
        // As Python's base64 writes b"\x01", b"\x01\x7f", b"\x80\x01\x00".
        assert_eq!([text(&[1]), text(&[1, 127]), text(&[128, 0])], ["AQ==", "AX8=", "gAEA"]);
    }

    #[test]
    fn differences_go_up_and_down() {
        let mut packed = Packed::default();
        packed.difference(5, 3);
        packed.difference(3, 5);
        packed.difference(3, 3);
        assert_eq!(packed.0, [4, 3, 0]);
    }

    #[test]
    fn steps_show_their_highest() {
        // 0, then 9 of (3, 9), then 4 of (4).
        assert_eq!(curve(&[0, 3, 9, 4], 2), Packed(vec![0, 18, 9]).text());
    }

    #[test]
    fn the_smallest_blocks_go_first_where_room_is_short() {
        let blocks = (1..=1000).map(|size| block(size * 512, 1, NEVER, NEVER)).collect::<Vec<_>>();
        let streams = Places::of([0].into_iter());
        let pack = |blocks: &[Block]| pack_blocks(blocks, &streams, &HashMap::new());
        let (text, omitted) = fitting(&blocks, 6000, |block| block.size, pack);
        assert!((5000..=6000).contains(&text.len()), "{}", text.len());
        assert_eq!(text, pack(&blocks[omitted..]).text());
    }

    #[test]
    fn long_recordings_stay_small() {
        let mut history = History::empty("events", 2_000_000);
        history.blocks = (0..900_000)
            .map(|n| block(512 + u64::from(n) * 7 % 99_991 * 512, 2 * n, 2 * n + 1, 2 * n + 3))
            .collect();
        let owner = Owner { stream: 0, grows: true };
        let segment =
            |n: u32| Segment { address: u64::from(n) << 21, size: 2 << 20, owner, from: n, to: n + 90_000 };
        history.segments = (0..900_000).map(segment).collect();
        history.reserved = Reserved::Segments;
        history.times = (0..=2_000_000).map(|n| n * 1009).collect();
        let series = history.series().unwrap();
        let text = encode(&history, &series).unwrap().to_string();
        assert!((4_000_000..4_700_000).contains(&text.len()), "{}", text.len());
    }
}
