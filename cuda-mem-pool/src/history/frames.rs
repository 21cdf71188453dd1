//! Stacks of calls.

use std::backtrace::Backtrace;
use std::sync::Arc;

use crate::snapshot::{Frame, Frames};

/// Tells the calling stack, innermost call first.
pub type FramesProvider = Arc<dyn Fn() -> Frames + Send + Sync>;

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
fn parse(text: &str) -> Frames {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn frames_have_names_and_mostly_places() {
        let text = "   0: a::b<c>\n             at /x/y.rs:12:34\n   1: main\n   2: d\n             at ./z:1.rs:5:6\n";
        let frame =
            |filename: &str, line, name: &str| Frame { filename: filename.into(), line, name: name.into() };
        let expected = [frame("/x/y.rs", 12, "a::b<c>"), frame("", 0, "main"), frame("./z:1.rs", 5, "d")];
        assert_eq!(*parse(text), expected);
    }

    #[test]
    fn a_backtrace_has_its_caller() {
        let frames = backtrace();
        assert!(frames.iter().any(|frame| frame.name.contains("a_backtrace_has_its_caller")), "{frames:?}");
    }
}
