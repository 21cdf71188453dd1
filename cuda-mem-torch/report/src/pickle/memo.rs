//! What a pickle may refer to again: four bytes a value, and beyond a bound in a file.

use anyhow::{Result, bail, ensure};

use super::super::spill::Records;
use super::store::{Kind, Value};

/// Values that are remembered in memory: 320 MiB.
const IN_MEMORY: usize = 80 << 20;

/// Numbers of values: what is left of four bytes beside what they are.
const MASK: u32 = (1 << 29) - 1;

const TEXT: u32 = 1;
const LIST: u32 = 2;
const DICT: u32 = 3;
const OPEN: u32 = 4;
const EVENT: u32 = 5;
const BLOCK: u32 = 6;

#[derive(Debug, Default)]
pub(super) struct Memo {
    first: Vec<u32>,
    /// Those that came when memory had enough.
    more: Records<4>,
}

impl Memo {
    pub(super) fn len(&self) -> u64 {
        self.first.len() as u64 + self.more.len()
    }

    pub(super) fn set(&mut self, key: u64, value: Value) -> Result<()> {
        let packed = pack(value)?;
        let place = usize::try_from(key)?;
        if let Some(known) = self.first.get_mut(place) {
            *known = packed;
            return Ok(());
        }
        // Writers count upwards; a number far ahead is none of theirs.
        ensure!(key < self.len() + 4096, "it remembers a value as number {key}, after {}", self.len());
        while self.len() < key {
            self.push(0)?;
        }
        if self.len() == key {
            return self.push(packed);
        }
        // The newest of those in the file can be changed, which is enough: containers are finished soon.
        self.more.set(key - self.first.len() as u64, &packed.to_le_bytes());
        Ok(())
    }

    fn push(&mut self, packed: u32) -> Result<()> {
        if self.first.len() < IN_MEMORY {
            self.first.push(packed);
            return Ok(());
        }
        self.more.push(&packed.to_le_bytes())
    }

    pub(super) fn get(&self, key: u64) -> Result<Value> {
        let packed = match self.first.get(usize::try_from(key)?) {
            Some(packed) => *packed,
            None if key < self.len() => u32::from_le_bytes(self.more.get(key - self.first.len() as u64)?),
            None => 0,
        };
        let number = packed & MASK;
        match packed >> 29 {
            TEXT => Ok(Value::Text(number)),
            LIST => Ok(Value::List(number)),
            DICT => Ok(Value::Dict(number)),
            OPEN => Ok(Value::Open(number)),
            EVENT => Ok(Value::Run { kind: Kind::Event, start: number, count: 1 }),
            BLOCK => Ok(Value::Run { kind: Kind::Block, start: number, count: 1 }),
            _ => bail!("nothing was kept under {key}"),
        }
    }
}

fn pack(value: Value) -> Result<u32> {
    let (tag, number) = match value {
        Value::Text(number) => (TEXT, number),
        Value::List(number) => (LIST, number),
        Value::Dict(number) => (DICT, number),
        Value::Open(number) => (OPEN, number),
        Value::Run { kind: Kind::Event, start, count: 1 } => (EVENT, start),
        Value::Run { kind: Kind::Block, start, count: 1 } => (BLOCK, start),
        // No writer of snapshots refers to one again, nor to a number, a truth value or None.
        _ => (0, 0),
    };
    ensure!(number <= MASK, "it has more than {MASK} values of one kind");
    Ok(tag << 29 | number)
}
