//! Pickles as plain data: what a memory snapshot is made of, and nothing that a pickle could make Python do.
//!
//! A pickle is a program. This machine knows the instructions that build numbers, text, lists and dictionaries, and refuses
//! all that import or call. Values live in one list and name each other by their place there, so one that is used many times
//! is kept once, nothing is walked recursively, and memory grows with the length of the input alone.

mod machine;
#[cfg(test)]
mod tests;

use anyhow::{Context, Result, bail};

use machine::Machine;

/// Names a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Id(u32);

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    /// Or a tuple.
    List(Vec<Id>),
    /// In the order in which pairs were set: of two with one key the last counts.
    Dict(Vec<(Id, Id)>),
}

/// A pickle that was read.
#[derive(Debug)]
pub(super) struct Pickle {
    values: Vec<Value>,
    root: Id,
}

impl Pickle {
    /// Reads one pickle, of protocol 2 or newer.
    pub(super) fn read(bytes: &[u8]) -> Result<Self> {
        let (values, root) = Machine::run(bytes)?;
        Ok(Self { values, root })
    }

    pub(super) fn root(&self) -> Id {
        self.root
    }

    pub(super) fn get(&self, id: Id) -> &Value {
        self.values.get(id.0 as usize).unwrap_or(&Value::None)
    }

    /// The value of a key that may be missing.
    pub(super) fn find(&self, dict: Id, key: &str) -> Result<Option<Id>> {
        let Value::Dict(pairs) = self.get(dict) else {
            bail!("expected a dictionary with the key {key}, found {}", self.describe(dict))
        };
        let is_key = |id: Id| matches!(self.get(id), Value::Text(text) if text == key);
        Ok(pairs.iter().rev().find(|(name, _)| is_key(*name)).map(|(_, value)| *value))
    }

    /// The value of a key that must be there.
    pub(super) fn field(&self, dict: Id, key: &str) -> Result<Id> {
        self.find(dict, key)?.with_context(|| format!("the key {key} is missing"))
    }

    /// The list under a key.
    pub(super) fn list(&self, dict: Id, key: &str) -> Result<&[Id]> {
        let id = self.field(dict, key)?;
        match self.get(id) {
            Value::List(items) => Ok(items),
            _ => bail!("{key}: expected a list, found {}", self.describe(id)),
        }
    }

    /// The text under a key.
    pub(super) fn text(&self, dict: Id, key: &str) -> Result<&str> {
        let id = self.field(dict, key)?;
        match self.get(id) {
            Value::Text(text) => Ok(text),
            _ => bail!("{key}: expected text, found {}", self.describe(id)),
        }
    }

    /// The integer under a key.
    pub(super) fn integer<T: TryFrom<i128>>(&self, dict: Id, key: &str) -> Result<T> {
        let id = self.field(dict, key)?;
        match self.get(id) {
            Value::Int(value) => {
                T::try_from(*value).ok().with_context(|| format!("{key}: {value} is out of range"))
            }
            _ => bail!("{key}: expected an integer, found {}", self.describe(id)),
        }
    }

    fn describe(&self, id: Id) -> &'static str {
        match self.get(id) {
            Value::None => "None",
            Value::Bool(_) => "a truth value",
            Value::Int(_) => "an integer",
            Value::Float(_) => "a fraction",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Dict(_) => "a dictionary",
        }
    }
}
