//! Call stacks, each once, whatever inputs they come from.

use std::collections::HashMap;

use indexmap::IndexSet;

use super::pickle::{Store, Value};

/// Frames of one stack, and letters of one name, that are kept.
const MAX_FRAMES: usize = 128;
const MAX_LETTERS: usize = 300;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Frame {
    pub(super) name: String,
    pub(super) file: String,
    pub(super) line: i64,
}

impl Frame {
    /// As one line; what is compiled without lines has no file worth naming.
    pub(super) fn text(&self) -> String {
        if self.line > 0 { format!("{} ({}:{})", self.name, self.file, self.line) } else { self.name.clone() }
    }
}

#[derive(Debug, Default)]
pub(super) struct Stacks {
    frames: IndexSet<Frame>,
    /// Frames, the innermost first.
    stacks: IndexSet<Vec<u32>>,
}

impl Stacks {
    pub(super) fn frame(&self, place: u32) -> Option<&Frame> {
        self.frames.get_index(place as usize)
    }

    /// The frames of a stack, the innermost first.
    pub(super) fn frames_of(&self, stack: u32) -> &[u32] {
        self.stacks.get_index(stack as usize).map_or(&[], |frames| frames)
    }

    /// The stack of a list of frames of a snapshot; none where it has no frames.
    fn of_list(&mut self, store: &Store, list: u32) -> Option<u32> {
        let items = store.items(list).iter().take(MAX_FRAMES);
        let frames: Vec<_> = items.filter_map(|frame| self.of_frame(store, *frame)).collect();
        if frames.is_empty() {
            return None;
        }
        u32::try_from(self.stacks.insert_full(frames).0).ok()
    }

    fn of_frame(&mut self, store: &Store, frame: Value) -> Option<u32> {
        store.pairs(frame)?;
        let text = |key| match store.find(frame, key) {
            Ok(Some(Value::Text(text))) => store.text_of(text).chars().take(MAX_LETTERS).collect(),
            _ => String::new(),
        };
        let line = match store.find(frame, "line") {
            Ok(Some(Value::Int(line))) => line,
            _ => 0,
        };
        let frame = Frame { name: text("name"), file: text("filename"), line };
        u32::try_from(self.frames.insert_full(frame).0).ok()
    }
}

/// The stacks of one snapshot: its lists of frames, each looked at once.
#[derive(Debug)]
pub(super) struct Resolver<'s> {
    pub(super) store: &'s Store,
    pub(super) stacks: &'s mut Stacks,
    known: HashMap<u32, Option<u32>>,
}

impl<'s> Resolver<'s> {
    pub(super) fn new(store: &'s Store, stacks: &'s mut Stacks) -> Self {
        Self { store, stacks, known: HashMap::new() }
    }

    pub(super) fn stack(&mut self, list: Option<u32>) -> Option<u32> {
        let list = list?;
        if let Some(known) = self.known.get(&list) {
            return *known;
        }
        let stack = self.stacks.of_list(self.store, list);
        self.known.insert(list, stack);
        stack
    }
}
