//! Values of a pickle, each content kept once: the same few thousand frames, stacks and names come with millions of events.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};

use anyhow::{Context, Result, bail, ensure};

/// Values within lists and dictionaries, of one pickle.
const MAX_VALUES: usize = 8_000_000;

/// Bytes of different texts, of one pickle.
const MAX_TEXT: usize = 128 << 20;

/// Bytes of one text that are kept.
pub(super) const MAX_LENGTH: usize = 4096;

/// What records are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Event,
    Block,
    Annotation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// An integer of more than 64 bits.
    Huge,
    /// Its bits.
    Float(u64),
    Text(u32),
    List(u32),
    /// Its keys and values by turns, as a list.
    Dict(u32),
    /// A container that is not finished.
    Open(u32),
    /// Dictionaries that were taken as records, one after the other.
    Run {
        kind: Kind,
        start: u32,
        count: u32,
    },
}

/// Texts and lists.
#[derive(Debug, Default)]
pub(crate) struct Store {
    texts: Vec<Box<str>>,
    text_bytes: usize,
    lists: Vec<Box<[Value]>>,
    values: usize,
    /// Places by hash; few hashes have more than one.
    by_hash: HashMap<(u8, u64), Vec<u32>, Fast>,
}

/// A fast hash for what is hashed already, and for addresses.
pub(crate) type Fast = BuildHasherDefault<Mixer>;

/// Multiplies and folds.
#[derive(Debug, Default, Clone)]
pub(crate) struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        for byte in rest {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn write_u64(&mut self, value: u64) {
        let wide = u128::from(self.0 ^ value ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93;
        let [low, high] = [wide & u128::from(u64::MAX), wide >> 64];
        self.0 = u64::try_from(low ^ high).unwrap_or(0);
    }
}

impl Store {
    pub(crate) fn text(&mut self, text: &str) -> Result<u32> {
        let hash = Fast::default().hash_one(text);
        let places = self.by_hash.entry((0, hash)).or_default();
        let same = |place: &&u32| self.texts.get(**place as usize).is_some_and(|known| **known == *text);
        if let Some(place) = places.iter().find(same) {
            return Ok(*place);
        }
        self.text_bytes += text.len() + 64;
        ensure!(self.text_bytes < MAX_TEXT, "it has more than {MAX_TEXT} bytes of different texts");
        let place = u32::try_from(self.texts.len())?;
        self.texts.push(text.into());
        places.push(place);
        Ok(place)
    }

    pub(super) fn list(&mut self, items: &[Value]) -> Result<u32> {
        let hash = Fast::default().hash_one(items);
        let places = self.by_hash.entry((1, hash)).or_default();
        let same = |place: &&u32| self.lists.get(**place as usize).is_some_and(|known| **known == *items);
        if let Some(place) = places.iter().find(same) {
            return Ok(*place);
        }
        self.values += items.len() + 2;
        ensure!(self.values < MAX_VALUES, "it has more than {MAX_VALUES} values beside events");
        let place = u32::try_from(self.lists.len())?;
        self.lists.push(items.into());
        places.push(place);
        Ok(place)
    }

    /// The text of a place.
    pub(crate) fn text_of(&self, place: u32) -> &str {
        self.texts.get(place as usize).map_or("", |text| text)
    }

    pub(crate) fn items(&self, place: u32) -> &[Value] {
        self.lists.get(place as usize).map_or(&[], |items| items)
    }

    /// The pairs of a dictionary.
    pub(crate) fn pairs(&self, value: Value) -> Option<&[[Value; 2]]> {
        match value {
            Value::Dict(place) => Some(self.items(place).as_chunks().0),
            _ => None,
        }
    }

    /// The value of a key that may be missing. Of two with one key the last counts.
    pub(crate) fn find(&self, dict: Value, key: &str) -> Result<Option<Value>> {
        let Some(pairs) = self.pairs(dict) else {
            bail!("expected a dictionary with the key {key}, found {}", self.describe(dict))
        };
        let is_key = |value: Value| matches!(value, Value::Text(text) if self.text_of(text) == key);
        Ok(pairs.iter().rev().find(|[name, _]| is_key(*name)).map(|[_, value]| *value))
    }

    /// The value of a key that must be there.
    pub(crate) fn field(&self, dict: Value, key: &str) -> Result<Value> {
        self.find(dict, key)?.with_context(|| format!("the key {key} is missing"))
    }

    /// The items of a list.
    pub(crate) fn list_of(&self, value: Value, what: &str) -> Result<&[Value]> {
        match value {
            Value::List(place) => Ok(self.items(place)),
            other => bail!("{what}: expected a list, found {}", self.describe(other)),
        }
    }

    pub(crate) fn string(&self, value: Value, what: &str) -> Result<&str> {
        match value {
            Value::Text(place) => Ok(self.text_of(place)),
            other => bail!("{what}: expected text, found {}", self.describe(other)),
        }
    }

    pub(crate) fn integer(&self, value: Value, what: &str) -> Result<i64> {
        match value {
            Value::Int(number) => Ok(number),
            Value::Huge => bail!("{what}: an integer of more than 64 bits is out of range"),
            other => bail!("{what}: expected an integer, found {}", self.describe(other)),
        }
    }

    pub(crate) fn describe(&self, value: Value) -> &'static str {
        match value {
            Value::None => "None",
            Value::Bool(_) => "a truth value",
            Value::Int(_) | Value::Huge => "an integer",
            Value::Float(_) => "a fraction",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Dict(_) => "a dictionary",
            Value::Open(_) => "what is not finished",
            Value::Run { kind: Kind::Event, .. } => "an event",
            Value::Run { kind: Kind::Block, .. } => "a block",
            Value::Run { kind: Kind::Annotation, .. } => "an annotation",
        }
    }
}
