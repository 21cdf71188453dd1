//! What runs a pickle's instructions.

use anyhow::{Context, Result, bail, ensure};

use super::Taker;
use super::bytes::Bytes;
use super::memo::Memo;
use super::store::{MAX_LENGTH, Store, Value};

/// Values that wait for the container that they go into.
const MAX_STACK: usize = 8 << 20;

/// How far down the stack a value is looked for that is referred to before it was used.
const MAX_BACK: usize = 1 << 16;

/// A list or dictionary that is being filled.
#[derive(Debug, Default)]
struct Container {
    is_dict: bool,
    items: Vec<Value>,
    /// What the memo has it under.
    keys: Vec<u64>,
}

pub(super) struct Machine<'r, 't, T> {
    bytes: Bytes<'r>,
    store: Store,
    taker: &'t mut T,
    stack: Vec<Value>,
    /// How high the stack was.
    marks: Vec<usize>,
    memo: Memo,
    /// By the number of [`Value::Open`], and numbers that are free again.
    open: Vec<Container>,
    unused: Vec<u32>,
    /// Values in open containers.
    held: usize,
}

impl<'r, 't, T: Taker> Machine<'r, 't, T> {
    /// Runs a pickle to its end: what its values are made of, and the whole.
    pub(super) fn run(bytes: Bytes<'r>, store: Store, taker: &'t mut T) -> Result<(Store, Value)> {
        let mut machine = Self {
            bytes,
            store,
            taker,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Memo::default(),
            open: Vec::new(),
            unused: Vec::new(),
            held: 0,
        };
        loop {
            let start = machine.bytes.position();
            let ended = machine.step().with_context(|| format!("the pickle is broken at byte {start}"))?;
            if let Some(root) = ended {
                return Ok((machine.store, root));
            }
        }
    }

    /// Runs one instruction; the whole if it was the last.
    fn step(&mut self) -> Result<Option<Value>> {
        let [code] = self.bytes.take::<1>()?;
        match code {
            // PROTO, FRAME: 5 and newer would bring nothing that is read here.
            0x80 => drop(self.bytes.take::<1>()?),
            0x95 => drop(self.bytes.take::<8>()?),
            b'.' => {
                let root = self.pop()?;
                return self.closed(root).map(Some);
            }
            b'(' => {
                ensure!(self.marks.len() < MAX_STACK, "it opens too much at once");
                self.marks.push(self.stack.len());
            }
            b'0' => {
                let from = self.stack.len().checked_sub(1).context("the stack is empty")?;
                self.discard(from)?;
            }
            b'1' => {
                let from = self.mark()?;
                self.discard(from)?;
            }
            b'2' => {
                let top = self.top()?;
                ensure!(!matches!(top, Value::Open(_)), "it doubles what is not finished");
                self.push(top)?;
            }
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'J' | b'K' | b'M' | 0x8a | 0x8b => self.integer(code)?,
            b'G' => {
                let bits = u64::from_be_bytes(self.bytes.take()?);
                self.push(Value::Float(bits))?;
            }
            b'X' | 0x8c | 0x8d => self.text(code)?,
            b']' => self.open(false)?,
            b'}' => self.open(true)?,
            b')' => {
                let empty = Value::List(self.store.list(&[])?);
                self.push(empty)?;
            }
            b't' | b'l' => {
                let from = self.mark()?;
                self.tuple(from)?;
            }
            0x85..=0x87 => {
                let count = usize::from(code - 0x84);
                let from = self.stack.len().checked_sub(count).context("the stack is empty")?;
                self.tuple(from)?;
            }
            b'a' => {
                let from = self.stack.len().checked_sub(1).context("the stack is empty")?;
                self.fill(from, false)?;
            }
            b's' => {
                let from = self.stack.len().checked_sub(2).context("the stack is empty")?;
                self.fill(from, true)?;
            }
            b'e' => {
                let from = self.mark()?;
                self.fill(from, false)?;
            }
            b'u' => {
                let from = self.mark()?;
                self.fill(from, true)?;
                self.take_early()?;
            }
            b'q' | b'r' | 0x94 => self.memorize(code)?,
            b'h' | b'j' => {
                let key = self.key(code == b'h')?;
                let value = self.memo.get(key)?;
                let value = self.finished(value)?;
                self.push(value)?;
            }
            b'c' | b'i' | b'o' | b'R' | b'b' | b'P' | b'Q' | 0x81..=0x84 | 0x92 | 0x93 => {
                bail!("it asks to import or call something; a memory snapshot is plain data")
            }
            other => bail!("instruction {other:#04x} is none of a memory snapshot in protocol 2 or newer"),
        }
        Ok(None)
    }

    /// BININT, BININT1, BININT2, LONG1, LONG4.
    fn integer(&mut self, code: u8) -> Result<()> {
        let number = match code {
            b'J' => i32::from_le_bytes(self.bytes.take()?).into(),
            b'K' => self.bytes.take::<1>()?[0].into(),
            b'M' => u16::from_le_bytes(self.bytes.take()?).into(),
            _ => {
                let length = if code == 0x8a {
                    u64::from(self.bytes.take::<1>()?[0])
                } else {
                    u64::try_from(i32::from_le_bytes(self.bytes.take()?))?
                };
                let wide = self.bytes.text(length, 8, |digits| {
                    let negative = digits.last().is_some_and(|digit| digit & 0x80 != 0);
                    let mut wide = [if negative { 0xff } else { 0 }; 8];
                    wide.iter_mut().zip(digits).for_each(|(place, digit)| *place = *digit);
                    i64::from_le_bytes(wide)
                })?;
                if length > 8 {
                    return self.push(Value::Huge);
                }
                wide
            }
        };
        self.push(Value::Int(number))
    }

    /// BINUNICODE, SHORT_BINUNICODE, BINUNICODE8.
    fn text(&mut self, code: u8) -> Result<()> {
        let length = match code {
            0x8c => u64::from(self.bytes.take::<1>()?[0]),
            b'X' => u64::from(u32::from_le_bytes(self.bytes.take()?)),
            _ => u64::from_le_bytes(self.bytes.take()?),
        };
        let store = &mut self.store;
        // A file name may hold bytes that are no text: Python writes those as lone surrogates.
        let text =
            self.bytes.text(length, MAX_LENGTH, |bytes| store.text(&String::from_utf8_lossy(bytes)))??;
        self.push(Value::Text(text))
    }

    fn open(&mut self, is_dict: bool) -> Result<()> {
        let number = match self.unused.pop() {
            Some(number) => number,
            None => {
                self.open.push(Container::default());
                u32::try_from(self.open.len() - 1)?
            }
        };
        let container = self.open.get_mut(number as usize).context("a container is lost")?;
        container.is_dict = is_dict;
        self.push(Value::Open(number))
    }

    /// Puts all from a place of the stack on into the container below.
    fn fill(&mut self, from: usize, is_dict: bool) -> Result<()> {
        self.close_from(from)?;
        let below = from.checked_sub(1).and_then(|place| self.stack.get(place)).copied();
        let kind = if is_dict { "dictionary" } else { "list" };
        let Some(Value::Open(number)) = below else {
            bail!("it fills what is no {kind}, or was used already")
        };
        let container = self.open.get_mut(number as usize).context("a container is lost")?;
        ensure!(container.is_dict == is_dict, "it fills what is no {kind}");
        ensure!(!is_dict || (self.stack.len() - from).is_multiple_of(2), "it sets a key without a value");
        self.held += self.stack.len() - from;
        ensure!(self.held < MAX_STACK, "it holds too many values at once");
        for value in self.stack.drain(from..) {
            append(&mut container.items, value);
        }
        Ok(())
    }

    /// Takes the dictionary on top as a record, where it is one: some writers have all of a list on the stack before they fill it.
    fn take_early(&mut self) -> Result<()> {
        let Value::Open(number) = self.top()? else { return Ok(()) };
        let container = self.open.get(number as usize).context("a container is lost")?;
        let (pairs, _) = container.items.as_chunks::<2>();
        if !self.taker.is_record(pairs) {
            return Ok(());
        }
        let value = self.pop()?;
        let value = self.closed(value)?;
        let above_mark = self.marks.last().is_some_and(|mark| *mark < self.stack.len());
        if above_mark {
            append(&mut self.stack, value);
            return Ok(());
        }
        self.push(value)
    }

    /// Has all from a place of the stack on be used.
    fn close_from(&mut self, from: usize) -> Result<()> {
        for place in from..self.stack.len() {
            let value = *self.stack.get(place).context("the stack is empty")?;
            let closed = self.closed(value)?;
            if let Some(place) = self.stack.get_mut(place) {
                *place = closed;
            }
        }
        Ok(())
    }

    /// A value as it is used: containers are finished by it.
    fn closed(&mut self, value: Value) -> Result<Value> {
        let Value::Open(number) = value else { return Ok(value) };
        let container = self.open.get_mut(number as usize).context("a container is lost")?;
        let mut container = std::mem::take(container);
        let closed = if container.is_dict {
            let (pairs, _) = container.items.as_chunks::<2>();
            match self.taker.take(&self.store, pairs)? {
                Some(record) => record,
                None => Value::Dict(self.store.list(&container.items)?),
            }
        } else {
            Value::List(self.store.list(&container.items)?)
        };
        for key in &container.keys {
            self.memo.set(*key, closed)?;
        }
        self.held = self.held.saturating_sub(container.items.len());
        container.items.clear();
        container.keys.clear();
        // The room of a large one is given back.
        if container.items.capacity() > 4096 {
            container.items = Vec::new();
        }
        if let Some(place) = self.open.get_mut(number as usize) {
            *place = container;
        }
        self.unused.push(number);
        Ok(closed)
    }

    /// A value that is referred to again. It may still wait on the stack: two equal frames of one stack, say.
    fn finished(&mut self, value: Value) -> Result<Value> {
        if !matches!(value, Value::Open(_)) {
            return Ok(value);
        }
        let near = self.stack.iter().enumerate().rev().take(MAX_BACK);
        let place = near.into_iter().find(|(_, there)| **there == value).map(|(place, _)| place);
        let place = place.context("it refers to what is not finished")?;
        ensure!(self.marks.binary_search(&(place + 1)).is_err(), "it holds itself");
        let closed = self.closed(value)?;
        if let Some(there) = self.stack.get_mut(place) {
            *there = closed;
        }
        Ok(closed)
    }

    /// Forgets what is on the stack from a place on.
    fn discard(&mut self, from: usize) -> Result<()> {
        while self.stack.len() > from {
            let value = self.pop()?;
            self.closed(value)?;
        }
        Ok(())
    }

    /// TUPLE, LIST, TUPLE1, TUPLE2, TUPLE3.
    fn tuple(&mut self, from: usize) -> Result<()> {
        self.close_from(from)?;
        let list = self.store.list(self.stack.get(from..).unwrap_or_default())?;
        self.stack.truncate(from);
        self.push(Value::List(list))
    }

    fn key(&mut self, short: bool) -> Result<u64> {
        Ok(if short {
            u64::from(self.bytes.take::<1>()?[0])
        } else {
            u64::from(u32::from_le_bytes(self.bytes.take()?))
        })
    }

    /// BINPUT, LONG_BINPUT, MEMOIZE.
    fn memorize(&mut self, code: u8) -> Result<()> {
        let key = match code {
            0x94 => self.memo.len(),
            _ => self.key(code == b'q')?,
        };
        let value = self.top()?;
        if let Value::Open(number) = value {
            let container = self.open.get_mut(number as usize).context("a container is lost")?;
            ensure!(container.keys.len() < 64, "it remembers one value too often");
            container.keys.push(key);
        }
        self.memo.set(key, value)
    }

    fn push(&mut self, value: Value) -> Result<()> {
        ensure!(self.stack.len() < MAX_STACK, "it has too many values at once");
        self.stack.push(value);
        Ok(())
    }

    fn top(&self) -> Result<Value> {
        self.stack.last().copied().context("the stack is empty")
    }

    fn pop(&mut self) -> Result<Value> {
        self.stack.pop().context("the stack is empty")
    }

    /// The height of the stack at the last mark.
    fn mark(&mut self) -> Result<usize> {
        let mark = self.marks.pop().context("there is no mark")?;
        ensure!(mark <= self.stack.len(), "the stack ends below the mark");
        Ok(mark)
    }
}

/// Adds a value; a record that follows another one makes that longer.
fn append(items: &mut Vec<Value>, value: Value) {
    if let (Some(Value::Run { kind, start, count }), Value::Run { kind: other, start: next, count: more }) =
        (items.last_mut(), value)
        && *kind == other
        && start.checked_add(*count) == Some(next)
        && let Some(sum) = count.checked_add(more)
    {
        *count = sum;
        return;
    }
    items.push(value);
}
