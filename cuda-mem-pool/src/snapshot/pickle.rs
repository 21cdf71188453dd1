//! Python's pickle format, as far as snapshots need it.
//!
//! Protocol 2, and of it the opcodes that the web viewer knows, which reads pickles by itself: numbers of up to 64 bits,
//! text, lists, dictionaries and pairs. Whatever is written is written at once; dictionary keys and other words that come again
//! are referred to by their number in the reader's memo.

use std::collections::HashMap;
use std::io::{self, Write};

/// Items that are put into a list with one opcode. The viewer passes them as arguments of one call.
const BATCH: usize = 1000;

/// Numbers of the memo that take one byte.
const WORDS: usize = 256;

/// Lists in the memo: so many at most, to bound what the writer remembers and the reader keeps.
const LISTS: u32 = 1 << 16;

/// Writes values one after the other, each complete.
pub(super) struct Pickler<W> {
    writer: W,
    words: HashMap<&'static str, u8>,
    /// Lists by the address of what they were made of.
    lists: HashMap<usize, u32>,
}

impl<W: Write> Pickler<W> {
    pub(super) fn new(mut writer: W) -> io::Result<Self> {
        writer.write_all(b"\x80\x02")?;
        Ok(Self { writer, words: HashMap::new(), lists: HashMap::new() })
    }

    /// The value that was written is the whole.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.writer.write_all(b".")?;
        self.writer.flush()
    }

    pub(super) fn uint(&mut self, value: u64) -> io::Result<()> {
        match (u8::try_from(value), u16::try_from(value), i32::try_from(value), i64::try_from(value)) {
            (Ok(value), ..) => self.writer.write_all(&[b'K', value]),
            (_, Ok(value), ..) => self.number(b"M", &value.to_le_bytes()),
            (.., Ok(value), _) => self.number(b"J", &value.to_le_bytes()),
            (.., Ok(value)) => self.number(b"\x8a\x08", &value.to_le_bytes()),
            // A byte more, or it would be less than 0.
            _ => self.number(b"\x8a\x09", &u128::from(value).to_le_bytes()[..9]),
        }
    }

    pub(super) fn int(&mut self, value: i64) -> io::Result<()> {
        match (u64::try_from(value), i32::try_from(value)) {
            (Ok(value), _) => self.uint(value),
            (_, Ok(value)) => self.number(b"J", &value.to_le_bytes()),
            _ => self.number(b"\x8a\x08", &value.to_le_bytes()),
        }
    }

    pub(super) fn float(&mut self, value: f64) -> io::Result<()> {
        self.number(b"G", &value.to_be_bytes())
    }

    pub(super) fn bool(&mut self, value: bool) -> io::Result<()> {
        self.writer.write_all(if value { b"\x88" } else { b"\x89" })
    }

    pub(super) fn text(&mut self, text: &str) -> io::Result<()> {
        let length = u32::try_from(text.len()).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidInput, "a text of 4 GiB or more does not fit a snapshot")
        })?;
        self.number(b"X", &length.to_le_bytes())?;
        self.writer.write_all(text.as_bytes())
    }

    /// A text that comes again and again.
    pub(super) fn word(&mut self, word: &'static str) -> io::Result<()> {
        if let Some(number) = self.words.get(word) {
            return self.writer.write_all(&[b'h', *number]);
        }
        self.text(word)?;
        if self.words.len() < WORDS {
            let number = self.words.len() as u8;
            self.words.insert(word, number);
            self.writer.write_all(&[b'q', number])?;
        }
        Ok(())
    }

    pub(super) fn pair(&mut self, first: u64, second: u64) -> io::Result<()> {
        self.uint(first)?;
        self.uint(second)?;
        self.writer.write_all(b"\x86")
    }

    pub(super) fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut item: impl FnMut(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.writer.write_all(b"]")?;
        let mut in_batch = 0;
        for value in items {
            if in_batch == 0 {
                self.writer.write_all(b"(")?;
            }
            item(self, value)?;
            in_batch += 1;
            if in_batch == BATCH {
                self.writer.write_all(b"e")?;
                in_batch = 0;
            }
        }
        if in_batch > 0 {
            self.writer.write_all(b"e")?;
        }
        Ok(())
    }

    /// A list that is the same one each time, as long as `items` stay where they are.
    pub(super) fn shared_list<T>(
        &mut self,
        items: &[T],
        item: impl FnMut(&mut Self, &T) -> io::Result<()>,
    ) -> io::Result<()> {
        // Empty ones are nowhere, so their address says nothing.
        if items.is_empty() {
            return self.list(items, item);
        }
        let address = items.as_ptr().addr();
        if let Some(number) = self.lists.get(&address) {
            let number = number.to_le_bytes();
            return self.number(b"j", &number);
        }
        self.list(items, item)?;
        let count = u32::try_from(self.lists.len()).unwrap_or(LISTS);
        if count < LISTS {
            // Numbers below are those of words.
            let number = count + WORDS as u32;
            self.lists.insert(address, number);
            self.number(b"r", &number.to_le_bytes())?;
        }
        Ok(())
    }

    /// A dictionary, which is then filled: a [`Pickler::word`] and a value, again and again.
    pub(super) fn dict(&mut self) -> io::Result<()> {
        self.writer.write_all(b"}(")
    }

    /// The dictionary has all its entries. They are few: keys are words of ours.
    pub(super) fn end_dict(&mut self) -> io::Result<()> {
        self.writer.write_all(b"u")
    }

    fn number(&mut self, opcode: &[u8], bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(opcode)?;
        self.writer.write_all(bytes)
    }
}
