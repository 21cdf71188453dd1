//! Recordings as the page's script reads them: numbers in as few bytes as they need, as text, and few enough for one page.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::history::{Block, NEVER, Segment};
use super::keep::Rest;
use super::space::{Label, Space};
use super::stacks::Stacks;

/// Letters of blocks and segments, of all spaces: with the rest of the page below 30 MB.
const LETTERS: usize = 20_000_000;

/// Letters of stacks, and of what was said with blocks.
const STACK_LETTERS: usize = 3_000_000;
const MAX_LABELS: usize = 20_000;

/// Call sites of a comparison.
const MAX_HOLDINGS: usize = 5000;

/// What one stack holds: bytes and blocks.
pub(super) type Holdings = HashMap<Option<u32>, (u64, u64)>;

/// What the script gets. `before` are the spaces to compare with, and what that recording is called.
pub(super) fn encode(spaces: &[Space], before: Option<(&str, &[Space])>, stacks: &Stacks) -> Value {
    let used = Used::of(spaces, before.map_or(&[], |(_, spaces)| spaces), stacks);
    let all: usize = spaces.iter().map(|space| space.blocks.len() + space.segments.len()).sum();
    let encoded = spaces.iter().map(|space| {
        let share = (space.blocks.len() + space.segments.len()) as u128 * LETTERS as u128;
        let share = usize::try_from(share / all.max(1) as u128).unwrap_or(LETTERS);
        encode_space(space, share, &used)
    });
    let encoded: Vec<_> = encoded.collect();
    let before = before.map(|(name, spaces)| {
        let parts = spaces.iter().map(|space| {
            let held = |moment| holdings_json(&space.held(moment), &used);
            json!({
                "device": space.device,
                "peak": held(space.curves.peak_active.1),
                "end": held(space.curves.events),
            })
        });
        json!({ "name": name, "spaces": parts.collect::<Vec<_>>() })
    });
    json!({ "spaces": encoded, "before": before, "frames": used.frames, "stacks": used.stacks })
}

fn holdings_json(holdings: &Holdings, used: &Used) -> Vec<[Value; 3]> {
    let mut list: Vec<_> = holdings.iter().collect();
    list.sort_unstable_by_key(|(stack, (bytes, _))| (std::cmp::Reverse(*bytes), **stack));
    let sites = list.into_iter().take(MAX_HOLDINGS);
    sites.map(|(stack, (bytes, count))| [used.json(*stack), json!(bytes), json!(count)]).collect()
}

fn encode_space(space: &Space, share: usize, used: &Used) -> Value {
    let curves = &space.curves;
    let streams = Places::of(
        space.blocks.iter().map(|b| b.stream).chain(space.segments.iter().map(|s| s.owner.stream)),
    );
    let lifetime = |s: &Segment| u64::from(s.to.min(curves.events).saturating_sub(s.from));
    let (segments, omitted_segments) =
        fitting(&space.segments, share / 4, lifetime, |segments| pack_segments(segments, &streams));
    let (blocks, omitted_blocks) = fitting(
        &space.blocks,
        share - segments.len(),
        |b| b.size,
        |blocks| pack_blocks(blocks, &streams, used),
    );
    let failed = space.out_of_memory.iter();
    let failed = failed.map(|event| {
        json!([event.moment, event.requested, event.free, used.json(event.stack), event.stream])
    });
    let known = |curve: &[u64]| (!curve.is_empty()).then(|| pack_curve(curve));
    json!({
        "name": space.name,
        "what": space.what,
        "device": space.device,
        "events": curves.events,
        "step": curves.step,
        "live": pack_curve(&curves.live),
        "pending": pack_curve(&curves.pending),
        "reserved": known(&curves.reserved),
        "times": known(&curves.times),
        "peak": curves.peak_live.1,
        "streams": streams.list,
        "labels": space.labels.iter().take(MAX_LABELS).map(label_json).collect::<Vec<_>>(),
        "addresses": space.blocks.iter().any(|block| block.address.is_some()) || !space.segments.is_empty(),
        "blocks": blocks,
        "omittedBlocks": omitted_blocks,
        "segments": segments,
        "omittedSegments": omitted_segments,
        "windows": space.windows,
        "restStep": space.rest.step,
        "restBlocks": space.rest.blocks,
        "rest": pack_rest(&space.rest, used),
        "outOfMemory": failed.collect::<Vec<_>>(),
        "omittedMarks": space.failed.saturating_sub(space.out_of_memory.len() as u64),
        "references": space.references.iter().map(|r| json!([r.name, r.bytes])).collect::<Vec<_>>(),
        "annotations": space.annotations,
        "settings": space.settings,
    })
}

fn label_json(label: &Label) -> Value {
    let pool = label.pool.map(|(first, second)| [first, second]);
    json!([label.said, label.compiled, pool, label.tag])
}

/// Values as differences.
fn pack_curve(values: &[u64]) -> String {
    let mut packed = Packed::default();
    let mut last = 0;
    for value in values {
        packed.difference(*value, last);
        last = *value;
    }
    packed.text()
}

/// A stack, how many columns change it, and each change: columns since the last one, bytes, blocks.
fn pack_rest(rest: &Rest, used: &Used) -> String {
    let mut by_stack: HashMap<u64, Vec<(u32, i64, i64)>> = HashMap::new();
    for ((stack, column), (bytes, blocks)) in &rest.changes {
        if (*bytes, *blocks) != (0, 0) {
            by_stack.entry(used.place(*stack)).or_default().push((*column, *bytes, *blocks));
        }
    }
    let mut packed = Packed::default();
    let mut list: Vec<_> = by_stack.into_iter().collect();
    list.sort_unstable();
    for (stack, mut changes) in list {
        changes.sort_unstable();
        packed.number(stack);
        packed.number(changes.len() as u64);
        let mut last = 0;
        for (column, bytes, blocks) in changes {
            packed.number(u64::from(column - last));
            packed.signed(bytes);
            packed.signed(blocks);
            last = column;
        }
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

/// Eight or nine numbers a block, in the order in which they came.
fn pack_blocks(blocks: &[Block], streams: &Places, used: &Used) -> Packed {
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
        packed.number(used.place(block.stack));
        packed.number(if (block.tag as usize) < MAX_LABELS { block.tag.into() } else { 0 });
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

/// The stacks that have room, those with most bytes first, and their frames.
struct Used {
    places: HashMap<u32, u64>,
    stacks: Vec<Vec<usize>>,
    frames: Vec<Value>,
}

impl Used {
    fn of(spaces: &[Space], before: &[Space], stacks: &Stacks) -> Self {
        let mut bytes: HashMap<u32, u64> = HashMap::new();
        for space in spaces.iter().chain(before) {
            let listed = space.blocks.iter().map(|block| (block.stack, block.size));
            let rest = space.rest.changes.iter().map(|((stack, _), (size, _))| (*stack, size.unsigned_abs()));
            let failed = space.out_of_memory.iter().map(|event| (event.stack, u64::MAX / 2));
            for (stack, size) in listed.chain(rest).chain(failed) {
                if let Some(stack) = stack {
                    let sum = bytes.entry(stack).or_default();
                    *sum = sum.saturating_add(size);
                }
            }
        }
        let mut order: Vec<_> = bytes.into_iter().collect();
        order.sort_unstable_by_key(|(stack, bytes)| (std::cmp::Reverse(*bytes), *stack));
        let mut used = Self { places: HashMap::new(), stacks: Vec::new(), frames: Vec::new() };
        let (mut frames, mut left) = (HashMap::new(), STACK_LETTERS);
        for (stack, _) in order {
            let mut list = Vec::new();
            for place in stacks.frames_of(stack) {
                let Some(frame) = stacks.frame(*place) else { continue };
                let next = used.frames.len();
                let place = *frames.entry(*place).or_insert_with(|| {
                    used.frames.push(json!([frame.name, frame.file, frame.line]));
                    left = left.saturating_sub(frame.name.len() + frame.file.len() + 20);
                    next
                });
                list.push(place);
            }
            left = left.saturating_sub(5 * list.len() + 3);
            used.places.insert(stack, used.stacks.len() as u64 + 1);
            used.stacks.push(list);
            if left == 0 {
                break;
            }
        }
        used
    }

    /// One more than the place of a stack; 0: it is not known, or had no room.
    fn place(&self, stack: Option<u32>) -> u64 {
        stack.and_then(|stack| self.places.get(&stack)).copied().unwrap_or(0)
    }

    fn json(&self, stack: Option<u32>) -> Value {
        json!(self.place(stack))
    }
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

    /// Twice the number, less one where it is below 0.
    fn signed(&mut self, value: i64) {
        let twice = value.unsigned_abs().saturating_mul(2);
        self.number(if value < 0 { twice - 1 } else { twice });
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
    use super::super::history::{History, Owner};
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
        packed.signed(2);
        packed.signed(-2);
        assert_eq!(packed.0, [4, 3, 0, 4, 3]);
    }

    #[test]
    fn the_smallest_blocks_go_first_where_room_is_short() {
        let blocks = (1..=1000).map(|size| block(size * 512, 1, NEVER, NEVER)).collect::<Vec<_>>();
        let streams = Places::of([0].into_iter());
        let used = Used::of(&[], &[], &Stacks::default());
        let pack = |blocks: &[Block]| pack_blocks(blocks, &streams, &used);
        let (text, omitted) = fitting(&blocks, 6000, |block| block.size, pack);
        assert!((5000..=6000).contains(&text.len()), "{}", text.len());
        assert_eq!(text, pack(&blocks[omitted..]).text());
    }

    #[test]
    fn long_recordings_stay_small() {
        let mut history = History::empty("events", 4_000_000);
        history.blocks = (0..1_900_000)
            .map(|n| block(512 + u64::from(n) * 7 % 99_991 * 512, 2 * n, 2 * n + 1, 2 * n + 90_001))
            .collect();
        let owner = Owner { stream: 0, grows: true };
        let segment =
            |n: u32| Segment { address: u64::from(n) << 21, size: 2 << 20, owner, from: n, to: n + 90_000 };
        history.segments = (0..900_000).map(segment).collect();
        history.reserved = Some(vec![(0, 1 << 40)]);
        history.times = (0..=4_000_000).map(|n| n * 1009).collect();
        let space = Space::of_history(history, "long").unwrap();
        let text = encode(&[space], None, &Stacks::default()).to_string();
        assert!((15_000_000..28_000_000).contains(&text.len()), "{}", text.len());
    }
}
