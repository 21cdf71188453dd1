//! What runs a pickle's instructions.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};

use super::{Id, Value};

/// Values of one pickle: enough for the largest recordings, little enough for any machine.
const MAX_VALUES: usize = 100_000_000;

pub(super) struct Machine<'b> {
    bytes: &'b [u8],
    at: usize,
    values: Vec<Value>,
    stack: Vec<Id>,
    /// How high the stack was.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl Machine<'_> {
    /// All values of a pickle, and which of them is the whole.
    pub(super) fn run(bytes: &[u8]) -> Result<(Vec<Value>, Id)> {
        let mut machine = Machine {
            bytes,
            at: 0,
            values: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
        };
        loop {
            let start = machine.at;
            let ended = machine.step().with_context(|| format!("the pickle is broken at byte {start}"))?;
            if let Some(root) = ended {
                return Ok((machine.values, root));
            }
        }
    }

    /// Runs one instruction; the root if it was the last.
    fn step(&mut self) -> Result<Option<Id>> {
        let [code] = self.take::<1>()?;
        match code {
            // PROTO, FRAME: 5 and newer would bring nothing that is read here.
            0x80 => drop(self.take::<1>()?),
            0x95 => drop(self.take::<8>()?),
            b'.' => return self.pop().map(Some),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.pop_mark()?),
            b'2' => self.stack.push(self.top()?),
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'J' | b'K' | b'M' | 0x8a | 0x8b => self.integer(code)?,
            b'G' => {
                let number = f64::from_be_bytes(self.take()?);
                self.push(Value::Float(number))?;
            }
            b'X' | 0x8c | 0x8d => self.text(code)?,
            b']' | b')' => self.push(Value::List(Vec::new()))?,
            b'}' => self.push(Value::Dict(Vec::new()))?,
            b't' | b'l' | 0x85 | 0x86 | 0x87 => self.tuple(code)?,
            b'a' | b'e' => self.append(code == b'e')?,
            b's' | b'u' => self.set(code == b'u')?,
            b'q' | b'r' | 0x94 => self.memorize(code)?,
            b'h' | b'j' => {
                let key = if code == b'h' {
                    u32::from(self.take::<1>()?[0])
                } else {
                    u32::from_le_bytes(self.take()?)
                };
                let id = *self.memo.get(&key).with_context(|| format!("nothing was kept under {key}"))?;
                self.stack.push(id);
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
            b'J' => i128::from(i32::from_le_bytes(self.take()?)),
            b'K' => i128::from(self.take::<1>()?[0]),
            b'M' => i128::from(u16::from_le_bytes(self.take()?)),
            _ => {
                let length = if code == 0x8a {
                    usize::from(self.take::<1>()?[0])
                } else {
                    usize::try_from(i32::from_le_bytes(self.take()?))?
                };
                let digits = self.slice(length)?;
                ensure!(length <= 16, "an integer of {length} bytes is no size, address or count");
                let negative = digits.last().is_some_and(|digit| digit & 0x80 != 0);
                let mut wide = [if negative { 0xff } else { 0 }; 16];
                wide.iter_mut().zip(digits).for_each(|(place, digit)| *place = *digit);
                i128::from_le_bytes(wide)
            }
        };
        self.push(Value::Int(number))
    }

    /// BINUNICODE, SHORT_BINUNICODE, BINUNICODE8.
    fn text(&mut self, code: u8) -> Result<()> {
        let length = match code {
            0x8c => usize::from(self.take::<1>()?[0]),
            b'X' => usize::try_from(u32::from_le_bytes(self.take()?))?,
            _ => usize::try_from(u64::from_le_bytes(self.take()?))?,
        };
        // A file name may hold bytes that are no text: Python writes those as lone surrogates.
        let text = String::from_utf8_lossy(self.slice(length)?).into_owned();
        self.push(Value::Text(text))
    }

    /// TUPLE, LIST, TUPLE1, TUPLE2, TUPLE3.
    fn tuple(&mut self, code: u8) -> Result<()> {
        let items = match code {
            b't' | b'l' => self.pop_mark()?,
            _ => {
                let count = usize::from(code - 0x84);
                let from = self.stack.len().checked_sub(count).context("the stack is empty")?;
                self.stack.split_off(from)
            }
        };
        self.push(Value::List(items))
    }

    /// APPEND, APPENDS.
    fn append(&mut self, many: bool) -> Result<()> {
        let items = if many { self.pop_mark()? } else { vec![self.pop()?] };
        let list = self.top()?;
        match self.values.get_mut(list.0 as usize) {
            Some(Value::List(list)) => list.extend(items),
            _ => bail!("it appends to what is no list"),
        }
        Ok(())
    }

    /// SETITEM, SETITEMS.
    fn set(&mut self, many: bool) -> Result<()> {
        let items = if many {
            self.pop_mark()?
        } else {
            let value = self.pop()?;
            vec![self.pop()?, value]
        };
        let (pairs, rest) = items.as_chunks::<2>();
        ensure!(rest.is_empty(), "it sets a key without a value");
        let dict = self.top()?;
        match self.values.get_mut(dict.0 as usize) {
            Some(Value::Dict(dict)) => dict.extend(pairs.iter().map(|[key, value]| (*key, *value))),
            _ => bail!("it sets keys of what is no dictionary"),
        }
        Ok(())
    }

    /// BINPUT, LONG_BINPUT, MEMOIZE.
    fn memorize(&mut self, code: u8) -> Result<()> {
        let key = match code {
            b'q' => u32::from(self.take::<1>()?[0]),
            b'r' => u32::from_le_bytes(self.take()?),
            _ => u32::try_from(self.memo.len())?,
        };
        self.memo.insert(key, self.top()?);
        Ok(())
    }

    fn push(&mut self, value: Value) -> Result<()> {
        ensure!(self.values.len() < MAX_VALUES, "it has more than {MAX_VALUES} values");
        let id = Id(u32::try_from(self.values.len())?);
        self.values.push(value);
        self.stack.push(id);
        Ok(())
    }

    fn top(&self) -> Result<Id> {
        self.stack.last().copied().context("the stack is empty")
    }

    fn pop(&mut self) -> Result<Id> {
        self.stack.pop().context("the stack is empty")
    }

    /// All above the last mark.
    fn pop_mark(&mut self) -> Result<Vec<Id>> {
        let mark = self.marks.pop().context("there is no mark")?;
        ensure!(mark <= self.stack.len(), "the stack ends below the mark");
        Ok(self.stack.split_off(mark))
    }

    fn slice(&mut self, length: usize) -> Result<&[u8]> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let slice =
            rest.get(..length).with_context(|| format!("it ends {} bytes too early", length - rest.len()))?;
        self.at += length;
        Ok(slice)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.slice(N)?.try_into()?)
    }
}
