//! A memory snapshot of PyTorch's schema: segments with their blocks as they are at the end, and what happened before.

use std::collections::{BTreeSet, HashMap};

use anyhow::{Context, Result, bail, ensure};

use super::history::{Owner, checked};
use super::pickle::{Id, Pickle, Value};

/// Blocks and events of one snapshot.
const MAX_ENTRIES: usize = 20_000_000;

/// Frames of one stack, and letters of one frame, that the page would show.
const MAX_FRAMES: usize = 48;
const MAX_LETTERS: usize = 300;

/// One device's part.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) device: i64,
    /// Others that have something in it.
    pub(super) others: Vec<i64>,
    pub(super) segments: Vec<SegmentNow>,
    pub(super) blocks: Vec<BlockNow>,
    /// The oldest first.
    pub(super) events: Vec<Event>,
    pub(super) stacks: Vec<Vec<String>>,
}

/// A segment at the end.
#[derive(Debug)]
pub(super) struct SegmentNow {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) owner: Owner,
}

/// A block in use at the end.
#[derive(Debug)]
pub(super) struct BlockNow {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) requested: u64,
    pub(super) stream: i64,
    /// Let go of, and still in use by a stream.
    pub(super) pending: bool,
    pub(super) stack: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Alloc,
    FreeRequested,
    FreeCompleted,
    /// `segment_alloc` and, where segments grow by pages, `segment_map`.
    Map,
    /// `segment_free` and `segment_unmap`.
    Unmap {
        grows: bool,
    },
    OutOfMemory,
    /// What moves no memory.
    Other,
}

/// Something that happened.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) action: Action,
    /// Of memory; the bytes left on the device where there was none.
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) stream: i64,
    /// Microseconds.
    pub(super) time: Option<u64>,
    pub(super) stack: Option<u32>,
}

/// Reads the part of one device: the one asked for, else the first that has something. A list is that of segments alone, as
/// `torch.cuda.memory_snapshot` gives it.
pub(super) fn read(bytes: &[u8], device: Option<i64>) -> Result<Snapshot> {
    let pickle = Pickle::read(bytes)?;
    let mut reader = Reader { pickle: &pickle, stacks: Stacks::default(), entries: 0 };
    let devices = reader.devices()?;
    let mut left = devices.clone();
    let device = match device {
        Some(device) if devices.contains(&device) || devices.is_empty() => device,
        Some(device) => bail!("the snapshot has nothing of device {device}, only of {devices:?}"),
        None => devices.first().copied().unwrap_or(0),
    };
    left.remove(&device);
    let mut snapshot = Snapshot { device, others: left.into_iter().collect(), ..Snapshot::default() };
    reader.segments(&mut snapshot)?;
    reader.events(&mut snapshot)?;
    snapshot.stacks = reader.stacks.list;
    Ok(snapshot)
}

struct Reader<'p> {
    pickle: &'p Pickle,
    stacks: Stacks,
    entries: usize,
}

impl<'p> Reader<'p> {
    /// Devices with segments or events.
    fn devices(&self) -> Result<BTreeSet<i64>> {
        let mut devices = BTreeSet::new();
        for (at, segment) in self.listed()?.iter().enumerate() {
            let device = self.pickle.integer(*segment, "device");
            devices.insert(device.with_context(|| format!("segments[{at}]"))?);
        }
        for (device, events) in (0..).zip(self.traces()?) {
            if matches!(self.pickle.get(*events), Value::List(list) if !list.is_empty()) {
                devices.insert(device);
            }
        }
        Ok(devices)
    }

    fn listed(&self) -> Result<&'p [Id]> {
        match self.pickle.get(self.pickle.root()) {
            Value::List(segments) => Ok(segments),
            _ => self.pickle.list(self.pickle.root(), "segments"),
        }
    }

    /// One list of events a device; none where no history was kept.
    fn traces(&self) -> Result<&'p [Id]> {
        if matches!(self.pickle.get(self.pickle.root()), Value::List(_)) {
            return Ok(&[]);
        }
        match self.pickle.find(self.pickle.root(), "device_traces")? {
            Some(_) => self.pickle.list(self.pickle.root(), "device_traces"),
            None => Ok(&[]),
        }
    }

    fn segments(&mut self, snapshot: &mut Snapshot) -> Result<()> {
        for (at, segment) in self.listed()?.iter().enumerate() {
            self.segment(*segment, snapshot).with_context(|| format!("segments[{at}]"))?;
        }
        Ok(())
    }

    fn segment(&mut self, segment: Id, snapshot: &mut Snapshot) -> Result<()> {
        let pickle = self.pickle;
        if pickle.integer::<i64>(segment, "device")? != snapshot.device {
            return Ok(());
        }
        let address = checked(pickle.integer(segment, "address")?, "address")?;
        let size = checked(pickle.integer(segment, "total_size")?, "total_size")?;
        let stream = pickle.integer(segment, "stream")?;
        let grows = match pickle.find(segment, "is_expandable")? {
            Some(id) => pickle.get(id) == &Value::Bool(true),
            None => false,
        };
        snapshot.segments.push(SegmentNow { address, size, owner: Owner { stream, grows } });
        let mut next = address;
        for (at, block) in pickle.list(segment, "blocks")?.iter().enumerate() {
            self.count()?;
            let read = self.block(*block, next, stream).with_context(|| format!("blocks[{at}]"));
            let (begins, end, block) = read?;
            ensure!(end <= address + size, "blocks[{at}] ends beyond its segment");
            ensure!(
                begins >= next,
                "blocks[{at}] begins before its segment, or before the end of another block"
            );
            snapshot.blocks.extend(block);
            next = end;
        }
        Ok(())
    }

    /// Where it begins and ends, and the block if it is in use. `next` is its address where none was written down.
    fn block(&mut self, block: Id, next: u64, stream: i64) -> Result<(u64, u64, Option<BlockNow>)> {
        let pickle = self.pickle;
        let size = checked(pickle.integer(block, "size")?, "size")?;
        let address = match pickle.find(block, "address")? {
            Some(_) => checked(pickle.integer(block, "address")?, "address")?,
            None => next,
        };
        let requested = match pickle.find(block, "requested_size")? {
            Some(_) => checked(pickle.integer(block, "requested_size")?, "requested_size")?,
            None => size,
        };
        let pending = match pickle.text(block, "state")? {
            "active_allocated" => false,
            // The second is what its documentation says.
            "active_pending_free" | "active_awaiting_free" => true,
            "inactive" => return Ok((address, address + size, None)),
            other => bail!(
                "the state {other:?} is not known; there are active_allocated, active_pending_free, active_awaiting_free and inactive"
            ),
        };
        let stack = self.stack(block)?;
        Ok((address, address + size, Some(BlockNow { address, size, requested, stream, pending, stack })))
    }

    fn events(&mut self, snapshot: &mut Snapshot) -> Result<()> {
        let traces = self.traces()?;
        let Some(events) = usize::try_from(snapshot.device).ok().and_then(|device| traces.get(device)) else {
            return Ok(());
        };
        let Value::List(events) = self.pickle.get(*events) else {
            bail!("device_traces holds what is no list")
        };
        for (at, event) in events.iter().enumerate() {
            self.count()?;
            let event = self.event(*event);
            snapshot.events.push(event.with_context(|| format!("device_traces[{}][{at}]", snapshot.device))?);
        }
        Ok(())
    }

    fn event(&mut self, event: Id) -> Result<Event> {
        let pickle = self.pickle;
        let action = match pickle.text(event, "action")? {
            "alloc" => Action::Alloc,
            "free_requested" => Action::FreeRequested,
            "free_completed" => Action::FreeCompleted,
            "segment_alloc" | "segment_map" => Action::Map,
            "segment_free" => Action::Unmap { grows: false },
            "segment_unmap" => Action::Unmap { grows: true },
            "oom" => Action::OutOfMemory,
            _ => Action::Other,
        };
        let key = if action == Action::OutOfMemory { "device_free" } else { "addr" };
        // What an event has that moves no memory is its own affair.
        let (address, size, stream) = match action {
            Action::Other => (0, 0, 0),
            _ => (
                checked(pickle.integer(event, key)?, key)?,
                checked(pickle.integer(event, "size")?, "size")?,
                pickle.integer(event, "stream")?,
            ),
        };
        let time = match pickle.find(event, "time_us")? {
            Some(_) => Some(pickle.integer(event, "time_us")?),
            None => None,
        };
        let stack = if action == Action::Alloc { self.stack(event)? } else { None };
        Ok(Event { action, address, size, stream, time, stack })
    }

    fn stack(&mut self, of: Id) -> Result<Option<u32>> {
        match self.pickle.find(of, "frames")? {
            Some(frames) => self.stacks.place(self.pickle, frames),
            None => Ok(None),
        }
    }

    fn count(&mut self) -> Result<()> {
        self.entries += 1;
        ensure!(self.entries <= MAX_ENTRIES, "there are more than {MAX_ENTRIES} blocks and events");
        Ok(())
    }
}

/// Each stack once: the same few hundred come with millions of events.
#[derive(Debug, Default)]
struct Stacks {
    list: Vec<Vec<String>>,
    by_id: HashMap<Id, Option<u32>>,
    by_text: HashMap<Vec<String>, u32>,
}

impl Stacks {
    fn place(&mut self, pickle: &Pickle, frames: Id) -> Result<Option<u32>> {
        if let Some(place) = self.by_id.get(&frames) {
            return Ok(*place);
        }
        let Value::List(items) = pickle.get(frames) else { return Ok(None) };
        let mut stack = Vec::new();
        for frame in items.iter().take(MAX_FRAMES) {
            let (name, file) = (pickle.text(*frame, "name")?, pickle.text(*frame, "filename")?);
            let line: i128 = pickle.integer(*frame, "line")?;
            // What is compiled without lines has no file worth naming.
            let text = if line > 0 { format!("{name} ({file}:{line})") } else { name.to_owned() };
            stack.push(text.chars().take(MAX_LETTERS).collect());
        }
        let place = if stack.is_empty() {
            None
        } else if let Some(place) = self.by_text.get(&stack) {
            Some(*place)
        } else {
            let place = u32::try_from(self.list.len())?;
            self.by_text.insert(stack.clone(), place);
            self.list.push(stack);
            Some(place)
        };
        self.by_id.insert(frames, place);
        Ok(place)
    }
}
