#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use super::*;
use crate::snapshot::Frame;

const ALLOC: Event =
    Event { action: Action::Alloc, address: 4096, size: 500, stream: 7, pool: MempoolId(0, 3) };

fn event(action: Action) -> Event {
    Event { action, ..ALLOC }
}

/// An entry that is known by its address.
fn numbered(address: u64) -> Event {
    Event { address, ..ALLOC }
}

fn addresses(history: &History) -> Vec<u64> {
    history.entries().iter().map(|entry| entry.address).collect()
}

#[derive(Default)]
struct Told(Mutex<Vec<TraceEntry>>);

impl Told {
    /// Has it be told.
    fn by(history: &History) -> (Arc<Self>, CallbackId) {
        let told = Arc::<Self>::default();
        let telling = told.clone();
        (told, history.attach(move |entry| lock(&telling.0).push(entry.clone())))
    }

    fn actions(&self) -> Vec<Action> {
        lock(&self.0).iter().map(|entry| entry.action).collect()
    }
}

#[test]
fn the_oldest_entries_go_first() {
    let history = History::new();
    history.start(&HistoryOptions::default().with_max_entries(3));
    (0..5).for_each(|number| history.record(numbered(number), None));
    assert_eq!(addresses(&history), [2, 3, 4]);
    history.start(&HistoryOptions::default().with_max_entries(2));
    assert_eq!(addresses(&history), [3, 4]);
    // At least one.
    history.start(&HistoryOptions::default().with_max_entries(0));
    history.record(numbered(5), None);
    assert_eq!(addresses(&history), [5]);
    history.start(&HistoryOptions::default().with_clear_history(true));
    (6..16).for_each(|number| history.record(numbered(number), None));
    assert_eq!(addresses(&history), (6..16).collect::<Vec<_>>());
}

#[test]
fn nothing_is_recorded_before_the_start_or_after_the_end() {
    let history = History::new();
    history.record(ALLOC, None);
    assert!(!history.is_listening() && history.entries().is_empty());
    history.start(&HistoryOptions::default());
    history.record(ALLOC, None);
    assert!(history.is_recording() && history.entries().len() == 1);
    history.stop();
    history.record(ALLOC, None);
    assert!(!history.is_listening() && history.entries().is_empty());
}

#[test]
fn an_entry_says_what_where_when_and_for_whom() {
    let history = History::new();
    history.start(&HistoryOptions::default());
    let before = now_us();
    set_user_metadata(Some("step 3"));
    history.record(event(Action::SegmentMap), None);
    set_user_metadata(None);
    history.record(event(Action::Oom), None);
    let entries = history.entries();
    let entry = &entries[0];
    assert_eq!((entry.action, entry.address, entry.size, entry.stream), (Action::SegmentMap, 4096, 500, 7));
    assert!((before..=now_us()).contains(&entry.time_us));
    assert_eq!(entry.user_metadata.as_deref(), Some("step 3"));
    assert_eq!(entries[1].user_metadata, None);
}

#[test]
fn what_a_thread_says_is_its_own() {
    let history = History::new();
    history.start(&HistoryOptions::default());
    set_user_metadata(Some("mine"));
    std::thread::scope(|scope| {
        scope.spawn(|| history.record(ALLOC, None));
    });
    history.record(ALLOC, None);
    set_user_metadata(None);
    let said: Vec<_> = history.entries().into_iter().map(|entry| entry.user_metadata).collect();
    assert_eq!(said, [None, Some("mine".into())]);
}

#[test]
fn trackers_are_told_of_everything() {
    let history = History::new();
    let (told, id) = Told::by(&history);
    history.record(event(Action::SegmentAlloc), None);
    assert!(history.entries().is_empty(), "not recording");
    history.start(&HistoryOptions::default().with_skip_actions([Action::Alloc]));
    history.record(event(Action::Alloc), None);
    history.record(event(Action::FreeRequested), None);
    assert_eq!(told.actions(), [Action::SegmentAlloc, Action::Alloc, Action::FreeRequested]);
    assert_eq!(history.entries(), lock(&told.0)[2..]);
    history.stop();
    assert!(history.is_listening());
    assert!(history.detach(id) && !history.detach(id));
    assert!(!history.is_listening());
    history.record(event(Action::Alloc), None);
    assert_eq!(told.actions().len(), 3);
}

/// Records and detaches while it is told, and panics in the end.
struct Meddling {
    history: Arc<History>,
    id: Mutex<Option<CallbackId>>,
}

impl Meddling {
    fn track(&self) {
        self.history.record(event(Action::Snapshot), None);
        assert!(self.history.detach(lock(&self.id).take().unwrap()));
        panic!("on purpose");
    }
}

impl Drop for Meddling {
    fn drop(&mut self) {
        self.history.record(event(Action::SegmentFree), None);
    }
}

#[test]
fn a_tracker_may_record_detach_itself_and_panic() {
    let history = Arc::new(History::new());
    history.start(&HistoryOptions::default());
    let meddling = Arc::new(Meddling { history: history.clone(), id: Mutex::new(None) });
    let tracked = meddling.clone();
    let id = history.attach(move |_| tracked.track());
    *lock(&meddling.id) = Some(id);
    let (told, _) = Told::by(&history);
    drop(meddling);
    history.record(ALLOC, None);
    history.record(event(Action::FreeRequested), None);
    assert_eq!(told.actions(), [Action::Alloc, Action::FreeRequested]);
    let recorded: Vec<_> = history.entries().iter().map(|entry| entry.action).collect();
    assert_eq!(recorded, [Action::Alloc, Action::Snapshot, Action::SegmentFree, Action::FreeRequested]);
}

#[test]
fn all_threads_are_in_one_order() {
    const THREADS: u64 = 4;
    const EACH: u64 = 500;
    let history = History::new();
    history.start(&HistoryOptions::default());
    let (told, _) = Told::by(&history);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let history = &history;
            scope.spawn(move || {
                (0..EACH).for_each(|number| history.record(numbered(thread * EACH + number), None))
            });
        }
    });
    let recorded = addresses(&history);
    assert_eq!(recorded.len() as u64, THREADS * EACH);
    let told: Vec<u64> = lock(&told.0).iter().map(|entry| entry.address).collect();
    assert_eq!(told, recorded);
    for thread in 0..THREADS {
        assert!(recorded.iter().filter(|number| **number / EACH == thread).is_sorted());
    }
}

#[test]
fn stacks_are_recorded_up_to_the_level_that_was_asked_for() {
    let frames = || Frames::from([Frame { filename: "".into(), line: 0, name: "caller".into() }]);
    let levels = [RecordContext::State, RecordContext::Alloc, RecordContext::All];
    let history = History::new();
    assert_eq!(history.frames(RecordContext::State), None, "not recording");
    for (context, known, in_entry) in [
        (RecordContext::Never, [false; 3], false),
        (RecordContext::State, [true, false, false], false),
        (RecordContext::Alloc, [true, true, false], true),
        (RecordContext::All, [true; 3], true),
    ] {
        history.start(&HistoryOptions::default().with_clear_history(true).with_frames(context, frames));
        assert_eq!(levels.map(|level| history.frames(level).is_some()), known, "{context:?}");
        history.record(ALLOC, Some(&frames()));
        assert_eq!(history.entries()[0].frames.is_some(), in_entry, "{context:?}");
    }
    history.start(&HistoryOptions { context: RecordContext::All, ..HistoryOptions::default() });
    assert_eq!(history.frames(RecordContext::State), None, "nobody tells");
}

#[test]
fn frames_have_names_and_mostly_places() {
    let text =
        "   0: a::b<c>\n             at /x/y.rs:12:34\n   1: main\n   2: d\n             at ./z:1.rs:5:6\n";
    let frame =
        |filename: &str, line, name: &str| Frame { filename: filename.into(), line, name: name.into() };
    let expected = [frame("/x/y.rs", 12, "a::b<c>"), frame("", 0, "main"), frame("./z:1.rs", 5, "d")];
    assert_eq!(*options::parse(text), expected);
}

#[test]
fn a_backtrace_has_its_caller() {
    let frames = backtrace();
    assert!(frames.iter().any(|frame| frame.name.contains("a_backtrace_has_its_caller")), "{frames:?}");
}
