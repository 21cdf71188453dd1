//! What a history records, and how it comes by stacks of calls.

use std::backtrace::Backtrace;
use std::sync::Arc;

use crate::primitive::setters;
use crate::snapshot::{Action, Frame, Frames};

/// Which entries are recorded, and how many. As PyTorch's `_record_memory_history`, without stacks by default.
/// [`History`](super::History) has an example.
#[derive(Clone)]
pub struct HistoryOptions {
    /// How many entries are kept, the newest ones; at least one is.
    pub max_entries: usize,
    /// What is not recorded.
    pub skip_actions: Vec<Action>,
    /// For which entries and blocks the calling stack is recorded.
    pub context: RecordContext,
    /// What tells the calling stack, innermost call first; see [`with_frames`](Self::with_frames).
    pub frames: Option<Arc<dyn Fn() -> Frames + Send + Sync>>,
    /// Whether earlier entries are forgotten.
    pub clear_history: bool,
}

/// For what the calling stack is recorded. Each level includes those before it. [`History`](super::History) has an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecordContext {
    /// For nothing.
    #[default]
    Never,
    /// For blocks in use.
    State,
    /// For the entries of their allocation, too; those of their free have the same.
    Alloc,
    /// For frees, too, each with its own.
    All,
}

impl HistoryOptions {
    setters! {
        with_max_entries(max_entries: usize) => max_entries;
        with_skip_actions(skip_actions: impl IntoIterator<Item = Action>) => skip_actions.into_iter().collect();
        with_clear_history(clear_history: bool) => clear_history;
    }

    /// Records what `frames` says of the calling stack. It may allocate, which is recorded without stacks. If it panics, there is no stack.
    #[must_use]
    pub fn with_frames(
        mut self,
        context: RecordContext,
        frames: impl Fn() -> Frames + Send + Sync + 'static,
    ) -> Self {
        self.context = context;
        self.frames = Some(Arc::new(frames));
        self
    }
}

impl Default for HistoryOptions {
    /// All entries, without stacks.
    fn default() -> Self {
        Self {
            max_entries: usize::MAX,
            skip_actions: Vec::new(),
            context: RecordContext::Never,
            frames: None,
            clear_history: false,
        }
    }
}

crate::impl_debug!(HistoryOptions, |it|
    max_entries: it.max_entries, skip_actions: it.skip_actions, context: it.context
);

/// The calling stack of Rust code, as far as the program has symbols. It takes microseconds to milliseconds.
///
/// ```
/// let frames = cuda_mem_pool::history::backtrace();
/// assert!(frames.iter().any(|frame| frame.name.contains("main")));
/// ```
#[must_use]
pub fn backtrace() -> Frames {
    parse(&Backtrace::force_capture().to_string())
}

/// The standard library tells of frames by text only: `N: NAME`, and on the next line `at FILE:LINE:COLUMN`. Where it should
/// change, names and lines are missing.
pub(super) fn parse(text: &str) -> Frames {
    let mut frames: Vec<Frame> = Vec::new();
    for line in text.lines().map(str::trim_start) {
        if let Some(place) = line.strip_prefix("at ") {
            let mut parts = place.rsplitn(3, ':').skip(1);
            let (line, filename) = (parts.next().and_then(|line| line.parse().ok()), parts.next());
            if let (Some(frame), Some(line), Some(filename)) = (frames.last_mut(), line, filename) {
                (frame.filename, frame.line) = (filename.into(), line);
            }
        } else if let Some((_, name)) = line.split_once(": ") {
            frames.push(Frame { filename: "".into(), line: 0, name: name.into() });
        }
    }
    frames.into()
}
