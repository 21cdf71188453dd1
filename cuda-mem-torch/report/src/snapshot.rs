//! A memory snapshot of PyTorch's schema, 2.6 to 2.15: segments with their blocks as they are at the end, and what happened before.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use anyhow::{Context, Result, bail, ensure};

use super::history::{Owner, checked};
use super::pickle::{self, Kind, Store, Value};
use super::records::{BlockNow, State, Taken};

/// Segments of one snapshot.
const MAX_SEGMENTS: usize = 1_000_000;

/// Blocks that are in use at the end, of one snapshot.
const MAX_BLOCKS: usize = 3_000_000;

/// A snapshot that was read.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) store: Store,
    pub(super) taken: Taken,
    /// Each device that has something in it, then pinned host memory.
    pub(super) parts: Vec<Part>,
    /// What the allocator was set to, as text.
    pub(super) settings: Vec<String>,
}

/// One device's part, or that of pinned host memory.
#[derive(Debug)]
pub(super) struct Part {
    /// None: pinned host memory.
    pub(super) device: Option<i64>,
    pub(super) segments: Vec<SegmentNow>,
    pub(super) blocks: Vec<Held>,
    /// Where its events are among those taken: a place and a count, the oldest first.
    pub(super) events: Vec<(u64, u64)>,
}

impl Part {
    /// With nothing in it.
    pub(super) fn of(device: Option<i64>) -> Self {
        Self { device, segments: Vec::new(), blocks: Vec::new(), events: Vec::new() }
    }
}

/// A segment at the end.
#[derive(Debug)]
pub(super) struct SegmentNow {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) owner: Owner,
    /// Its pool, where it is no default pool.
    pub(super) pool: Option<(i64, i64)>,
}

/// A block in use at the end.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) address: u64,
    pub(super) stream: i64,
    pub(super) block: BlockNow,
}

/// Reads a snapshot. `progress` is told how many bytes were read.
pub(super) fn read<'r>(reader: Box<dyn Read + 'r>, progress: &'r mut dyn FnMut(u64)) -> Result<Snapshot> {
    let mut taken = Taken::default();
    let (store, root) = pickle::read(reader, super::records::store()?, &mut taken, progress)?;
    let whole = Whole { store: &store, taken: &taken, root };
    let parts = whole.parts()?;
    let settings = whole.settings();
    Ok(Snapshot { store, taken, parts, settings })
}

struct Whole<'s> {
    store: &'s Store,
    taken: &'s Taken,
    root: Value,
}

impl Whole<'_> {
    fn parts(&self) -> Result<Vec<Part>> {
        let mut devices = BTreeMap::<i64, Part>::new();
        for (at, segment) in self.segments()?.iter().enumerate() {
            let why = || format!("segments[{at}]");
            let device =
                self.store.field(*segment, "device").and_then(|value| self.store.integer(value, "device"));
            let device = device.with_context(why)?;
            let part = devices.entry(device).or_insert_with(|| Part::of(Some(device)));
            self.segment(*segment, part).with_context(why)?;
        }
        for (device, events) in (0..).zip(self.under("device_traces")?) {
            let events = self.events(*events).context("device_traces")?;
            if !events.is_empty() {
                devices.entry(device).or_insert_with(|| Part::of(Some(device))).events = events;
            }
        }
        let mut host = Part::of(None);
        for (at, segment) in self.under("host_segments")?.iter().enumerate() {
            self.segment(*segment, &mut host).with_context(|| format!("host_segments[{at}]"))?;
        }
        if let Some(traces) = self.key("host_traces")? {
            // One list of events, or one a device.
            let Value::List(list) = traces else { bail!("host_traces holds what is no list") };
            for events in self.store.items(list) {
                let found = match events {
                    Value::List(_) => self.events(*events),
                    run => self.run(*run).map(|run| vec![run]),
                };
                host.events.extend(found.context("host_traces")?);
            }
        }
        let mut parts: Vec<_> = devices.into_values().collect();
        if !host.segments.is_empty() || !host.events.is_empty() {
            parts.push(host);
        }
        let blocks: usize = parts.iter().map(|part| part.blocks.len()).sum();
        ensure!(blocks <= MAX_BLOCKS, "it has more than {MAX_BLOCKS} blocks in use");
        Ok(parts)
    }

    fn key(&self, key: &str) -> Result<Option<Value>> {
        match self.root {
            Value::Dict(_) => Ok(self.store.find(self.root, key)?.filter(|value| *value != Value::None)),
            _ => Ok(None),
        }
    }

    /// The items under a key of the whole; none where it lacks the key.
    fn under(&self, key: &str) -> Result<&[Value]> {
        match self.key(key)? {
            Some(value) => self.store.list_of(value, key),
            None => Ok(&[]),
        }
    }

    fn segments(&self) -> Result<&[Value]> {
        match self.root {
            // What `torch.cuda.memory_snapshot` gives.
            Value::List(segments) => Ok(self.store.items(segments)),
            Value::Dict(_) => {
                let segments = self.store.field(self.root, "segments");
                let segments = segments.context("this pickle is no memory snapshot")?;
                self.store.list_of(segments, "segments")
            }
            other => bail!(
                "this pickle is no memory snapshot, but {}; torch.cuda.memory._dump_snapshot writes one",
                self.store.describe(other)
            ),
        }
    }

    fn events(&self, list: Value) -> Result<Vec<(u64, u64)>> {
        let Value::List(list) = list else { bail!("it holds what is no list") };
        self.store.items(list).iter().map(|run| self.run(*run)).collect()
    }

    fn run(&self, run: Value) -> Result<(u64, u64)> {
        match run {
            Value::Run { kind: Kind::Event, start, count } => Ok((start.into(), count.into())),
            other => bail!("expected events, found {}", self.store.describe(other)),
        }
    }

    fn number(&self, of: Value, key: &str) -> Result<Option<u64>> {
        let Some(value) = self.store.find(of, key)?.filter(|value| *value != Value::None) else {
            return Ok(None);
        };
        let number = u64::try_from(self.store.integer(value, key)?);
        Ok(Some(checked(number.with_context(|| format!("{key} is negative"))?, key)?))
    }

    fn segment(&self, segment: Value, part: &mut Part) -> Result<()> {
        ensure!(part.segments.len() < MAX_SEGMENTS, "there are more than {MAX_SEGMENTS} segments");
        let address = self.number(segment, "address")?.context("the key address is missing")?;
        let size = match self.number(segment, "total_size")? {
            Some(size) => size,
            None => self.number(segment, "size")?.context("the key total_size is missing")?,
        };
        let stream = match self.store.find(segment, "stream")? {
            None | Some(Value::None) if part.device.is_none() => 0,
            Some(value) => self.store.integer(value, "stream")?,
            None => bail!("the key stream is missing"),
        };
        let grows = self.store.find(segment, "is_expandable")? == Some(Value::Bool(true));
        let pool = match self.store.find(segment, "segment_pool_id")? {
            Some(Value::List(pair)) => pair_of(self.store.items(pair)),
            _ => None,
        };
        part.segments.push(SegmentNow { address, size, owner: Owner { stream, grows }, pool });
        let Some(blocks) = self.store.find(segment, "blocks")? else {
            ensure!(part.device.is_none(), "the key blocks is missing");
            // A pinned segment is one block.
            let used = self.number(segment, "allocated_size")?.unwrap_or(size);
            let stack = match self.store.find(segment, "frames")? {
                Some(Value::List(list)) => list + 1,
                _ => 0,
            };
            let state = if used > 0 { State::Live } else { State::Free };
            let block = BlockNow { address: None, size, requested: used, state, stack, tag: 0 };
            part.blocks.extend((used > 0).then_some(Held { address, stream, block }));
            return Ok(());
        };
        let (mut next, mut at) = (address, 0);
        for run in self.store.list_of(blocks, "blocks")? {
            let Value::Run { kind: Kind::Block, start, count } = run else {
                bail!("blocks[{at}]: expected a block, with its state, found {}", self.store.describe(*run))
            };
            for place in 0..u64::from(*count) {
                let block = BlockNow::of(&self.taken.blocks.get(u64::from(*start) + place)?);
                let begins = block.address.unwrap_or(next);
                ensure!(
                    begins >= next,
                    "blocks[{at}] begins before its segment, or before the end of another block"
                );
                ensure!(begins + block.size <= address + size, "blocks[{at}] ends beyond its segment");
                next = begins + block.size;
                if block.state != State::Free {
                    ensure!(part.blocks.len() < MAX_BLOCKS, "more than {MAX_BLOCKS} blocks are in use");
                    part.blocks.push(Held { address: begins, stream, block });
                }
                at += 1;
            }
        }
        Ok(())
    }

    fn settings(&self) -> Vec<String> {
        let pairs = self.key("allocator_settings").ok().flatten();
        let pairs = pairs.and_then(|value| self.store.pairs(value)).unwrap_or_default();
        let seen = pairs
            .iter()
            .map(|[key, value]| format!("{} = {}", said(self.store, *key), said(self.store, *value)));
        seen.collect::<BTreeSet<_>>().into_iter().take(40).collect()
    }
}

/// The numbers of a pool that is no default pool.
pub(super) fn pair_of(items: &[Value]) -> Option<(i64, i64)> {
    match items {
        [Value::Int(first), Value::Int(second)] if (*first, *second) != (0, 0) => Some((*first, *second)),
        _ => None,
    }
}

/// A value as people read it.
pub(super) fn said(store: &Store, value: Value) -> String {
    let mut text = String::new();
    say(store, value, 0, &mut text);
    text
}

fn say(store: &Store, value: Value, depth: usize, text: &mut String) {
    if text.len() > 400 || depth > 4 {
        text.push('…');
        return;
    }
    match value {
        Value::Text(place) => text.push_str(store.text_of(place)),
        Value::Int(number) => text.push_str(&number.to_string()),
        Value::Bool(value) => text.push_str(if value { "True" } else { "False" }),
        Value::Float(bits) => text.push_str(&f64::from_bits(bits).to_string()),
        Value::None => text.push_str("None"),
        Value::List(list) => {
            for (place, item) in store.items(list).iter().enumerate() {
                text.push_str(if place > 0 { ", " } else { "" });
                say(store, *item, depth + 1, text);
            }
        }
        Value::Dict(_) => {
            for (place, [key, value]) in store.pairs(value).unwrap_or_default().iter().enumerate() {
                text.push_str(if place > 0 { ", " } else { "" });
                say(store, *key, depth + 1, text);
                text.push('=');
                say(store, *value, depth + 1, text);
            }
        }
        other => text.push_str(store.describe(other)),
    }
}
