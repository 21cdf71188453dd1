//! Pickles as plain data: what a memory snapshot is made of, and nothing that a pickle could make Python do.
//!
//! A pickle is a program. This machine knows the instructions that build numbers, text, lists and dictionaries, and refuses
//! all that import or call. Values live in one list and name each other by their place there, so one that is used many times
//! is kept once, nothing is walked recursively, and memory grows with the length of the input alone.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};

/// Values of one pickle: enough for the largest recordings, little enough for any machine.
const MAX_VALUES: usize = 100_000_000;

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
                return Ok(Self { values: machine.values, root });
            }
        }
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

struct Machine<'b> {
    bytes: &'b [u8],
    at: usize,
    values: Vec<Value>,
    stack: Vec<Id>,
    /// How high the stack was.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl Machine<'_> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn error(bytes: &[u8]) -> String {
        format!("{:#}", Pickle::read(bytes).unwrap_err())
    }

    #[test]
    fn plain_data_is_read() {
        // {"a": [1, -2, 2**40, 1.5, True, None, ("x",)]}
        let bytes = b"\x80\x04}\x94\x8c\x01a\x94](K\x01J\xfe\xff\xff\xff\x8a\x06\0\0\0\0\0\x01G?\xf8\0\0\0\0\0\0\x88N\x8c\x01x\x85es.";
        let pickle = Pickle::read(bytes).unwrap();
        let items = pickle.list(pickle.root(), "a").unwrap().iter().map(|id| pickle.get(*id).clone());
        let items = items.collect::<Vec<_>>();
        assert_eq!(items[..4], [Value::Int(1), Value::Int(-2), Value::Int(1 << 40), Value::Float(1.5)]);
        assert_eq!(items[4..6], [Value::Bool(true), Value::None]);
        let Value::List(inner) = &items[6] else { panic!("{items:?}") };
        assert_eq!(pickle.get(inner[0]), &Value::Text("x".to_owned()));
    }

    #[test]
    fn nothing_is_imported_or_called() {
        // What pickle.dumps writes for an object whose __reduce__ is os.system("true").
        let bytes = b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.";
        assert!(error(bytes).contains("asks to import or call"), "{}", error(bytes));
        assert!(error(b"cos\nsystem\n(S'true'\ntR.").contains("asks to import or call"));
    }

    #[test]
    fn what_doubles_at_each_step_is_kept_once() {
        // A list of twice the one before, 4000 times over: 2^4000 items for who copies.
        let mut bytes = b"\x80\x02]".to_vec();
        for _ in 0..4000 {
            bytes.extend(b"2\x86");
        }
        bytes.push(b'.');
        let pickle = Pickle::read(&bytes).unwrap();
        assert_eq!(pickle.values.len(), 4001);
    }

    #[test]
    fn a_list_may_hold_itself() {
        let pickle = Pickle::read(b"\x80\x02}\x8c\x01a]q\0h\0as.").unwrap();
        let id = pickle.field(pickle.root(), "a").unwrap();
        assert_eq!(pickle.list(pickle.root(), "a").unwrap(), [id]);
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_an_answer() {
        let bytes = b"\x80\x04\x95\x1f\0\0\0\0\0\0\0}\x94(\x8c\x01a\x94]\x94(K\x01M\x02\x03e\x8c\x01b\x94h\x02\x8c\x01c\x94\x8a\x01\x05u.";
        assert!(Pickle::read(bytes).is_ok());
        for end in 0..bytes.len() {
            assert!(Pickle::read(&bytes[..end]).is_err(), "{end}");
            for byte in 0..=255 {
                let mut changed = bytes.to_vec();
                changed[end] = byte;
                // Either is right; a panic or a hang is not.
                let _ = Pickle::read(&changed);
            }
        }
    }

    #[test]
    fn errors_name_the_place_and_the_reason() {
        assert!(error(b"\x80\x04\x8c\x09ab").contains("at byte 2: it ends 7 bytes too early"));
        assert!(error(b"h\x05").contains("nothing was kept under 5"));
        assert!(error(b"e").contains("there is no mark"));
        let pickle = Pickle::read(b"}\x8c\x01aK\x05s.").unwrap();
        let list = pickle.list(pickle.root(), "a").unwrap_err().to_string();
        assert_eq!(list, "a: expected a list, found an integer");
        assert_eq!(pickle.text(pickle.root(), "b").unwrap_err().to_string(), "the key b is missing");
    }
}
