//! Pickles as plain data: what a memory snapshot is made of, and nothing that a pickle could make Python do.
//!
//! A pickle is a program. This machine knows the instructions that build numbers, text, lists and dictionaries, and refuses
//! all that import or call. It reads the file once and keeps little of it: a dictionary that a [`Taker`] knows (an event, a block)
//! becomes a record and is dropped, and of all others each content is kept once. So memory does not grow with the
//! number of events; where a file has more of anything else than any snapshot has, it is refused.

mod bytes;
mod machine;
mod memo;
mod store;
#[cfg(test)]
mod tests;

use std::io::Read;

use anyhow::Result;

use bytes::Bytes;
use machine::Machine;
pub(super) use store::{Fast, Kind, Store, Value};

/// Who turns dictionaries into records.
pub(super) trait Taker {
    /// Whether a dictionary with these keys is one.
    fn is_record(&self, pairs: &[[Value; 2]]) -> bool;

    /// Takes a dictionary; what stands for it from then on, or nothing if it is another.
    fn take(&mut self, store: &Store, pairs: &[[Value; 2]]) -> Result<Option<Value>>;
}

/// Reads one pickle, of protocol 2 or newer: its values, and the whole. `store` may hold texts already, whose numbers stay.
pub(super) fn read<'r>(
    reader: Box<dyn Read + 'r>,
    store: Store,
    taker: &mut impl Taker,
    progress: &'r mut dyn FnMut(u64),
) -> Result<(Store, Value)> {
    Machine::run(Bytes::new(reader, progress), store, taker)
}
