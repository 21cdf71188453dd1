//! Writes snapshots as Python pickles.
//!
//! Protocol 2, and of it the opcodes that the web viewer knows, which reads pickles by itself: numbers of up to 64 bits, text, lists,
//! dictionaries and pairs. Each value is written at once; words and lists that come again are referred to by their number in the reader's memo.

use std::collections::HashMap;
use std::io::{self, Write};

use super::{Action, AllocatorSettings, BlockInfo, Frames, SegmentInfo, Snapshot, TraceEntry};
use crate::mempool_id::MempoolId;
use crate::statistics::PoolSize;

impl Snapshot {
    /// Writes the snapshot as a pickle of dictionaries, lists and plain values, in many small pieces: a file is best behind a
    /// [`BufWriter`](io::BufWriter). Beside the snapshot it takes memory for each stack of calls, 65,536 at most.
    ///
    /// # Errors
    ///
    /// The writer's; [`InvalidInput`](io::ErrorKind::InvalidInput) for a text of 4 GiB or more.
    pub fn write_pickle(&self, writer: impl Write) -> io::Result<()> {
        let mut segments: Vec<&SegmentInfo> = self.segments.iter().collect();
        segments.sort_by_key(|segment| segment.address);
        let mut pickler = Pickler::new(writer)?;
        pickler.dict([], |p| {
            p.word("segments")?;
            p.list(segments, Pickler::segment)?;
            p.word("device_traces")?;
            p.list(&self.device_traces, |p, trace| p.list(trace, Pickler::trace_entry))?;
            p.word("allocator_settings")?;
            p.settings(&self.allocator_settings)?;
            p.word("external_annotations")?;
            p.list(&self.tags, |p, (device, MempoolId(first, second), name)| {
                let entries = [
                    ("name", Text(name)),
                    ("stage", Word("TAG")),
                    ("device", Uint((*device).into())),
                    ("time_us", Uint(0)),
                    ("pool_id", Text(&format!("{first}, {second}"))),
                ];
                p.dict(entries, |_| Ok(()))
            })
        })?;
        pickler.finish()
    }
}

enum Value<'a> {
    Uint(u64),
    Int(i32),
    Float(f64),
    Bool(bool),
    Pair(u64, u64),
    Text(&'a str),
    Word(&'static str),
}

use Value::{Bool, Float, Int, Pair, Text, Uint, Word};

impl<W: Write> Pickler<W> {
    fn segment(&mut self, segment: &SegmentInfo) -> io::Result<()> {
        let kind = match segment.segment_type {
            PoolSize::Small => "small",
            PoolSize::Large => "large",
        };
        let entries = [
            ("device", Uint(segment.device.into())),
            ("address", Uint(segment.address)),
            ("total_size", Uint(segment.total_size)),
            ("allocated_size", Uint(segment.allocated_size)),
            ("active_size", Uint(segment.active_size)),
            ("requested_size", Uint(segment.requested_size)),
            ("stream", Uint(segment.stream)),
            ("segment_type", Word(kind)),
            ("segment_pool_id", Pair(segment.segment_pool_id.0, segment.segment_pool_id.1)),
            ("is_expandable", Bool(segment.is_expandable)),
        ];
        self.dict(entries, |p| {
            p.frames(segment.frames.as_ref())?;
            p.word("blocks")?;
            p.list(&segment.blocks, Self::block)
        })
    }

    fn block(&mut self, block: &BlockInfo) -> io::Result<()> {
        let entries = [
            ("address", Uint(block.address)),
            ("size", Uint(block.size)),
            ("requested_size", Uint(block.requested_size)),
            ("state", Word(block.state.name())),
        ];
        self.dict(entries, |p| p.frames(block.frames.as_ref()))
    }

    fn trace_entry(&mut self, entry: &TraceEntry) -> io::Result<()> {
        let address = if entry.action == Action::Oom { "device_free" } else { "addr" };
        let entries = [
            ("action", Word(entry.action.name())),
            (address, Uint(entry.address)),
            ("size", Uint(entry.size)),
            ("stream", Uint(entry.stream)),
            ("time_us", Uint(entry.time_us)),
            ("compile_context", entry.compile_context.as_deref().map_or(Word("N/A"), Text)),
            ("user_metadata", entry.user_metadata.as_deref().map_or(Word(""), Text)),
        ];
        self.dict(entries, |p| entry.frames.as_ref().map_or(Ok(()), |frames| p.frames(Some(frames))))
    }

    fn frames(&mut self, frames: Option<&Frames>) -> io::Result<()> {
        self.word("frames")?;
        self.shared_list(frames.map_or(&[], |frames| frames), |p, frame| {
            let entries = [
                ("filename", Text(&frame.filename)),
                ("line", Uint(frame.line.into())),
                ("name", Text(&frame.name)),
            ];
            p.dict(entries, |_| Ok(()))
        })
    }

    /// Writes all keys of PyTorch's dictionary; those that nothing here sets have its defaults.
    fn settings(&mut self, settings: &AllocatorSettings) -> io::Result<()> {
        let entries = [
            ("PYTORCH_CUDA_ALLOC_CONF", Text("")),
            ("max_split_size", settings.max_split_size.map_or(Int(-1), Uint)),
            ("garbage_collection_threshold", Float(settings.garbage_collection_threshold)),
            ("expandable_segments", Bool(settings.expandable_segments)),
            ("pinned_num_register_threads", Uint(0)),
            ("release_lock_on_cudamalloc", Bool(false)),
            ("pinned_use_cuda_host_register", Bool(false)),
            ("graph_capture_record_stream_reuse", Bool(settings.graph_capture_record_stream_reuse)),
        ];
        self.dict(entries, |p| {
            p.word("roundup_power2_divisions")?;
            p.dict([], |p| {
                (0..u64::BITS).zip(&settings.roundup_power2_divisions).try_for_each(|(power, divisions)| {
                    p.text(&(1u64 << power).to_string())?;
                    p.uint(*divisions)
                })
            })
        })
    }

    /// A dictionary of `entries` and of what `rest` writes: a [`Pickler::word`] and a value, again and again.
    fn dict<'a>(
        &mut self,
        entries: impl IntoIterator<Item = (&'static str, Value<'a>)>,
        rest: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        self.writer.write_all(b"}(")?;
        for (key, value) in entries {
            self.word(key)?;
            match value {
                Uint(value) => self.uint(value)?,
                Int(value) => self.number(b"J", &value.to_le_bytes())?,
                Float(value) => self.number(b"G", &value.to_be_bytes())?,
                Bool(value) => self.writer.write_all(if value { b"\x88" } else { b"\x89" })?,
                Pair(first, second) => {
                    self.uint(first)?;
                    self.uint(second)?;
                    self.writer.write_all(b"\x86")?;
                }
                Text(value) => self.text(value)?,
                Word(value) => self.word(value)?,
            }
        }
        rest(self)?;
        // They are few: keys are words of ours.
        self.writer.write_all(b"u")
    }
}

/// Items that are put into a list with one opcode. The viewer passes them as arguments of one call.
const BATCH: usize = 1000;

/// Values in the memo: so many at most, to bound what the writer remembers and the reader keeps.
const MEMO: u32 = 1 << 16;

struct Pickler<W> {
    writer: W,
    /// The numbers of words and lists, by the place of what they were made of: its address and length.
    memo: HashMap<(usize, usize), u32>,
}

impl<W: Write> Pickler<W> {
    fn new(mut writer: W) -> io::Result<Self> {
        writer.write_all(b"\x80\x02")?;
        Ok(Self { writer, memo: HashMap::new() })
    }

    fn finish(mut self) -> io::Result<()> {
        self.writer.write_all(b".")?;
        self.writer.flush()
    }

    fn uint(&mut self, value: u64) -> io::Result<()> {
        match (u8::try_from(value), u16::try_from(value), i32::try_from(value), i64::try_from(value)) {
            (Ok(value), ..) => self.writer.write_all(&[b'K', value]),
            (_, Ok(value), ..) => self.number(b"M", &value.to_le_bytes()),
            (.., Ok(value), _) => self.number(b"J", &value.to_le_bytes()),
            (.., Ok(value)) => self.number(b"\x8a\x08", &value.to_le_bytes()),
            // A byte more, or it would be less than 0.
            _ => self.number(b"\x8a\x09", &u128::from(value).to_le_bytes()[..9]),
        }
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        let length = u32::try_from(text.len()).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidInput, "a text of 4 GiB or more does not fit a snapshot")
        })?;
        self.number(b"X", &length.to_le_bytes())?;
        self.writer.write_all(text.as_bytes())
    }

    fn word(&mut self, word: &'static str) -> io::Result<()> {
        self.once((word.as_ptr().addr(), word.len()), |p| p.text(word))
    }

    fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut item: impl FnMut(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.writer.write_all(b"]")?;
        let mut items = items.into_iter().peekable();
        while items.peek().is_some() {
            self.writer.write_all(b"(")?;
            items.by_ref().take(BATCH).try_for_each(|value| item(self, value))?;
            self.writer.write_all(b"e")?;
        }
        Ok(())
    }

    /// A list that is the same one each time, as long as `items` stay where they are.
    fn shared_list<T>(
        &mut self,
        items: &[T],
        item: impl FnMut(&mut Self, &T) -> io::Result<()>,
    ) -> io::Result<()> {
        // Empty ones are nowhere, so their address says nothing.
        if items.is_empty() {
            return self.list(items, item);
        }
        self.once((items.as_ptr().addr(), items.len()), |p| p.list(items, item))
    }

    /// What `write` writes of a place, or its number if that was written before.
    fn once(
        &mut self,
        place: (usize, usize),
        write: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        if let Some(&number) = self.memo.get(&place) {
            return match u8::try_from(number) {
                Ok(number) => self.number(b"h", &[number]),
                Err(_) => self.number(b"j", &number.to_le_bytes()),
            };
        }
        write(self)?;
        let number = self.memo.len() as u32;
        if number < MEMO {
            self.memo.insert(place, number);
            self.number(b"r", &number.to_le_bytes())?;
        }
        Ok(())
    }

    fn number(&mut self, opcode: &[u8], bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(opcode)?;
        self.writer.write_all(bytes)
    }
}
