//! Events, blocks and annotations of a snapshot as records of one size, taken out of the pickle as it is read.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};

use super::history::{LIMIT, checked};
use super::pickle::{Fast, Kind, Store, Taker, Value};
use super::spill::Records;

/// No time was written down.
pub(super) const NO_TIME: u64 = u64::MAX;

/// Annotations that are kept.
const MAX_ANNOTATIONS: usize = 1_000_000;

/// Different things said with allocations.
const MAX_TAGS: usize = 1_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Alloc,
    FreeRequested,
    FreeCompleted,
    /// `segment_alloc` and, where segments grow by pages, `segment_map`.
    Map,
    /// `segment_free`
    Free,
    /// `segment_unmap`.
    Unmap,
    OutOfMemory,
    /// Says something about a block that is there.
    Annotate,
    /// What moves no memory.
    Other,
}

const ACTIONS: [(&str, Action); 11] = [
    ("alloc", Action::Alloc),
    ("free_requested", Action::FreeRequested),
    ("free_completed", Action::FreeCompleted),
    // Of both at once, as PyTorch's own viewer joins them.
    ("free", Action::FreeCompleted),
    ("segment_alloc", Action::Map),
    ("segment_map", Action::Map),
    ("segment_free", Action::Free),
    ("segment_unmap", Action::Unmap),
    ("oom", Action::OutOfMemory),
    ("annotate", Action::Annotate),
    ("snapshot", Action::Other),
];

/// As they are numbered.
const CODES: [Action; 9] = [
    Action::Alloc,
    Action::FreeRequested,
    Action::FreeCompleted,
    Action::Map,
    Action::Free,
    Action::Unmap,
    Action::OutOfMemory,
    Action::Annotate,
    Action::Other,
];

/// Something that happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) action: Action,
    /// Of memory; the bytes left on the device where there was none.
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) time: u64,
    /// The place of its stream in [`Taken::streams`].
    pub(super) stream: u32,
    /// One more than the list of its frames; 0: none.
    pub(super) stack: u32,
    /// One more than the place in [`Taken::tags`]; 0: nothing was said.
    pub(super) tag: u32,
}

/// A block at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockNow {
    /// None where it lies behind the one before.
    pub(super) address: Option<u64>,
    pub(super) size: u64,
    pub(super) requested: u64,
    pub(super) state: State,
    pub(super) stack: u32,
    pub(super) tag: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Live,
    Pending,
    Free,
}

/// Something that began or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Annotation {
    pub(super) name: u32,
    pub(super) begins: bool,
    pub(super) device: i64,
    pub(super) time: u64,
}

/// What was said with an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Tag {
    /// By the user: text or a dictionary.
    pub(super) metadata: Value,
    /// By PyTorch itself.
    pub(super) internal: Value,
    /// What was compiled.
    pub(super) compiled: Value,
    pub(super) pool: Value,
}

/// All records of a snapshot.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) events: Records<40>,
    pub(super) blocks: Records<40>,
    pub(super) annotations: Vec<Annotation>,
    pub(super) streams: Vec<i64>,
    pub(super) tags: Vec<Tag>,
    /// Names of the tags that can sleep, as texts of the store, by device and private pool.
    pub(super) sleepers: HashMap<(i64, (i64, i64)), u32>,
    stream_places: HashMap<i64, u32, Fast>,
    tag_places: HashMap<Tag, u32, Fast>,
}

/// Keys of records, whose numbers as texts are their places here: [`store`] makes sure of it.
const KEYS: [&str; 20] = [
    "action",
    "addr",
    "device_free",
    "size",
    "stream",
    "time_us",
    "frames",
    "user_metadata",
    "internal_metadata",
    "compile_context",
    "pool_id",
    "state",
    "requested_size",
    "address",
    "stage",
    "name",
    "device",
    "annotation",
    "N/A",
    "",
];

/// Places in [`KEYS`].
mod key {
    pub(super) const ACTION: usize = 0;
    pub(super) const ADDR: usize = 1;
    pub(super) const DEVICE_FREE: usize = 2;
    pub(super) const SIZE: usize = 3;
    pub(super) const STREAM: usize = 4;
    pub(super) const TIME_US: usize = 5;
    pub(super) const FRAMES: usize = 6;
    pub(super) const USER_METADATA: usize = 7;
    pub(super) const INTERNAL_METADATA: usize = 8;
    pub(super) const COMPILE_CONTEXT: usize = 9;
    pub(super) const POOL_ID: usize = 10;
    pub(super) const STATE: usize = 11;
    pub(super) const REQUESTED_SIZE: usize = 12;
    pub(super) const ADDRESS: usize = 13;
    pub(super) const STAGE: usize = 14;
    pub(super) const NAME: usize = 15;
    pub(super) const DEVICE: usize = 16;
    pub(super) const ANNOTATION: usize = 17;
}

/// What has one of these keys is a record.
const RECORDS: [usize; 3] = [key::ACTION, key::STATE, key::STAGE];

/// Values that say nothing; the texts are those of [`KEYS`].
const NOT_SAID: [Value; 3] = [Value::None, Value::Text(18), Value::Text(19)];

/// A store whose first texts are the keys of records, then the actions.
pub(super) fn store() -> Result<Store> {
    let mut store = Store::default();
    for text in KEYS.into_iter().chain(ACTIONS.map(|(name, _)| name)) {
        store.text(text)?;
    }
    Ok(store)
}

/// What a dictionary says; keys that records lack are left out.
struct Fields([Value; KEYS.len()]);

impl Fields {
    fn of(pairs: &[[Value; 2]]) -> Self {
        let mut fields = [Value::None; KEYS.len()];
        for [key, value] in pairs {
            if let Value::Text(key) = key
                && let Some(field) = fields.get_mut(*key as usize)
            {
                *field = *value;
            }
        }
        Self(fields)
    }

    fn get(&self, key: usize) -> Value {
        self.0.get(key).copied().unwrap_or(Value::None)
    }

    fn size(&self, store: &Store, key: usize) -> Result<u64> {
        let value = self.get(key);
        let key = KEYS.get(key).copied().unwrap_or_default();
        ensure!(value != Value::None, "the key {key} is missing");
        checked(u64::try_from(store.integer(value, key)?).with_context(|| format!("{key} is negative"))?, key)
    }

    /// One more than the list of frames.
    fn stack(&self) -> u32 {
        match self.get(key::FRAMES) {
            Value::List(list) => list + 1,
            _ => 0,
        }
    }
}

impl Taker for Taken {
    fn is_record(&self, pairs: &[[Value; 2]]) -> bool {
        let key =
            |[key, _]: &[Value; 2]| matches!(key, Value::Text(place) if RECORDS.contains(&(*place as usize)));
        pairs.iter().any(key)
    }

    fn take(&mut self, store: &Store, pairs: &[[Value; 2]]) -> Result<Option<Value>> {
        let is = |value: &Value, wanted| matches!(value, Value::Text(place) if *place as usize == wanted);
        let has = |wanted: usize| pairs.iter().any(|[key, _]| is(key, wanted));
        if has(key::ACTION) {
            let number = self.events.len();
            let event = self.event(store, &Fields::of(pairs));
            self.events.push(&event.with_context(|| format!("event {number}"))?.bytes())?;
            return run(Kind::Event, number);
        }
        if has(key::STATE) {
            let number = self.blocks.len();
            let block = self.block(store, &Fields::of(pairs));
            self.blocks.push(&block.with_context(|| format!("block {number}"))?.bytes())?;
            return run(Kind::Block, number);
        }
        if has(key::STAGE) {
            return self.annotation(store, &Fields::of(pairs)).map(Some);
        }
        Ok(None)
    }
}

fn run(kind: Kind, number: u64) -> Result<Option<Value>> {
    Ok(Some(Value::Run { kind, start: u32::try_from(number)?, count: 1 }))
}

impl Taken {
    fn event(&mut self, store: &Store, fields: &Fields) -> Result<Event> {
        // The texts of actions come right behind those of keys.
        let Value::Text(name) = fields.get(key::ACTION) else {
            bail!("action: expected text, found {}", store.describe(fields.get(key::ACTION)))
        };
        let known = (name as usize).checked_sub(KEYS.len()).and_then(|place| ACTIONS.get(place));
        let action = known.map_or(Action::Other, |(_, action)| *action);
        let time = match fields.get(key::TIME_US) {
            Value::None => NO_TIME,
            value => u64::try_from(store.integer(value, "time_us")?).context("time_us is negative")?,
        };
        let key = if action == Action::OutOfMemory { key::DEVICE_FREE } else { key::ADDR };
        let (mut address, mut size, mut stream) = (0, 0, 0);
        // What an event has that moves no memory is its own affair.
        match action {
            Action::Other => {}
            Action::Annotate => address = fields.size(store, key)?,
            _ => {
                address = fields.size(store, key)?;
                size = fields.size(store, key::SIZE)?;
                stream = match fields.get(key::STREAM) {
                    // Host memory has none.
                    Value::None => 0,
                    value => store.integer(value, "stream")?,
                };
            }
        }
        Ok(Event {
            action,
            address,
            size,
            time,
            stream: self.stream(stream)?,
            stack: fields.stack(),
            tag: self.tag(fields)?,
        })
    }

    fn block(&mut self, store: &Store, fields: &Fields) -> Result<BlockNow> {
        let size = fields.size(store, key::SIZE)?;
        let address = match fields.get(key::ADDRESS) {
            Value::None => None,
            _ => Some(fields.size(store, key::ADDRESS)?),
        };
        let requested = match fields.get(key::REQUESTED_SIZE) {
            Value::None => size,
            _ => fields.size(store, key::REQUESTED_SIZE)?,
        };
        let state = match store.string(fields.get(key::STATE), "state")? {
            "active_allocated" => State::Live,
            // The second is what its documentation says.
            "active_pending_free" | "active_awaiting_free" => State::Pending,
            "inactive" => State::Free,
            other => bail!(
                "the state {other:?} is not known; there are active_allocated, active_pending_free, active_awaiting_free and inactive"
            ),
        };
        Ok(BlockNow { address, size, requested, state, stack: fields.stack(), tag: self.tag(fields)? })
    }

    fn annotation(&mut self, store: &Store, fields: &Fields) -> Result<Value> {
        let start = u32::try_from(self.annotations.len())?;
        let Value::Text(name) = fields.get(key::NAME) else { bail!("an annotation has no name") };
        let device = match fields.get(key::DEVICE) {
            Value::Int(device) => device,
            _ => -1,
        };
        let stage = store.string(fields.get(key::STAGE), "stage")?;
        if stage == "TAG" {
            // A pool whose memory is a tag's, as cuda-mem says it: two numbers.
            let pool = store.string(fields.get(key::POOL_ID), "pool_id")?.split_once(", ");
            let pool = pool.and_then(|(first, second)| Some((first.parse().ok()?, second.parse().ok()?)));
            if let (Some(pool), true) = (pool, self.sleepers.len() < MAX_TAGS) {
                self.sleepers.insert((device, pool), name);
            }
            return Ok(Value::Run { kind: Kind::Annotation, start, count: 1 });
        }
        let begins = stage == "START";
        if let (Value::Int(time), true) = (fields.get(key::TIME_US), self.annotations.len() < MAX_ANNOTATIONS)
        {
            let time = u64::try_from(time).context("time_us is negative")?;
            self.annotations.push(Annotation { name, begins, device, time });
        }
        Ok(Value::Run { kind: Kind::Annotation, start, count: 1 })
    }

    fn stream(&mut self, stream: i64) -> Result<u32> {
        if let Some(place) = self.stream_places.get(&stream) {
            return Ok(*place);
        }
        ensure!(self.streams.len() < MAX_TAGS, "it has more than {MAX_TAGS} streams");
        let place = u32::try_from(self.streams.len())?;
        self.streams.push(stream);
        self.stream_places.insert(stream, place);
        Ok(place)
    }

    fn tag(&mut self, fields: &Fields) -> Result<u32> {
        let said = |key: usize| Some(fields.get(key)).filter(|value| !NOT_SAID.contains(value));
        let tag = Tag {
            metadata: said(key::ANNOTATION).or(said(key::USER_METADATA)).unwrap_or(Value::None),
            internal: said(key::INTERNAL_METADATA).unwrap_or(Value::None),
            compiled: said(key::COMPILE_CONTEXT).unwrap_or(Value::None),
            pool: said(key::POOL_ID).unwrap_or(Value::None),
        };
        if [tag.metadata, tag.internal, tag.compiled, tag.pool] == [Value::None; 4] {
            return Ok(0);
        }
        if let Some(place) = self.tag_places.get(&tag) {
            return Ok(*place);
        }
        if self.tags.len() >= MAX_TAGS {
            return Ok(0);
        }
        self.tags.push(tag);
        let place = u32::try_from(self.tags.len())?;
        self.tag_places.insert(tag, place);
        Ok(place)
    }
}

/// Numbers one after the other.
struct Writer([u8; 40], usize);

impl Writer {
    fn put<const N: usize>(mut self, bytes: [u8; N]) -> Self {
        if let Some(place) = self.0.get_mut(self.1..).and_then(|rest| rest.first_chunk_mut::<N>()) {
            *place = bytes;
        }
        self.1 += N;
        self
    }
}

struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    fn get<const N: usize>(&mut self) -> [u8; N] {
        let Some((bytes, rest)) = self.0.split_first_chunk::<N>() else { return [0; N] };
        self.0 = rest;
        *bytes
    }
}

impl Event {
    fn bytes(self) -> [u8; 40] {
        Writer([0; 40], 0)
            .put(self.address.to_le_bytes())
            .put(self.size.to_le_bytes())
            .put(self.time.to_le_bytes())
            .put(self.stream.to_le_bytes())
            .put(self.stack.to_le_bytes())
            .put(self.tag.to_le_bytes())
            .put([self.action as u8])
            .0
    }

    pub(super) fn of(bytes: &[u8; 40]) -> Self {
        let mut reader = Reader(bytes);
        Self {
            address: u64::from_le_bytes(reader.get()),
            size: u64::from_le_bytes(reader.get()),
            time: u64::from_le_bytes(reader.get()),
            stream: u32::from_le_bytes(reader.get()),
            stack: u32::from_le_bytes(reader.get()),
            tag: u32::from_le_bytes(reader.get()),
            action: CODES.get(usize::from(reader.get::<1>()[0])).copied().unwrap_or(Action::Other),
        }
    }
}

impl BlockNow {
    fn bytes(self) -> [u8; 40] {
        Writer([0; 40], 0)
            .put(self.address.unwrap_or(LIMIT).to_le_bytes())
            .put(self.size.to_le_bytes())
            .put(self.requested.to_le_bytes())
            .put(self.stack.to_le_bytes())
            .put(self.tag.to_le_bytes())
            .put([self.state as u8])
            .0
    }

    pub(super) fn of(bytes: &[u8; 40]) -> Self {
        let mut reader = Reader(bytes);
        Self {
            address: Some(u64::from_le_bytes(reader.get())).filter(|address| *address != LIMIT),
            size: u64::from_le_bytes(reader.get()),
            requested: u64::from_le_bytes(reader.get()),
            stack: u32::from_le_bytes(reader.get()),
            tag: u32::from_le_bytes(reader.get()),
            state: [State::Live, State::Pending, State::Free]
                .get(usize::from(reader.get::<1>()[0]))
                .copied()
                .unwrap_or(State::Free),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_keep_what_they_are_made_of() {
        for action in CODES {
            let event =
                Event { action, address: 1 << 51, size: 3, time: NO_TIME, stream: 4, stack: 5, tag: 6 };
            assert_eq!(Event::of(&event.bytes()), event);
        }
        for (address, state) in [(Some(0), State::Live), (None, State::Pending), (Some(512), State::Free)] {
            let block = BlockNow { address, size: 1, requested: 2, state, stack: 3, tag: 4 };
            assert_eq!(BlockNow::of(&block.bytes()), block);
        }
    }
}
