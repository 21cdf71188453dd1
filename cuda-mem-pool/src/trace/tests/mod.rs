use std::io::{self, BufReader, Read};

use proptest::prelude::*;

use super::{Action, BTreeMap, Event, LONGEST, MAX_SIZE, Trace, event};

const PLAIN: &str = "op,id,size,stream\n";
const FULL: &str = "op,id,size,stream,time_us,thread\n";

fn refusal(text: &str) -> String {
    Trace::read(text.as_bytes()).unwrap_err().to_string()
}

/// An event's line, with all six columns.
fn line(event: &Event) -> String {
    let Event { action, id, stream, time_us, thread } = event;
    let [time, thread] = [time_us, thread].map(|cell| cell.map_or_else(String::new, |cell| cell.to_string()));
    let (letter, size) = match action {
        Action::Allocate { size } => ("a", size.to_string()),
        Action::Free => ("f", String::new()),
        Action::Complete => ("c", String::new()),
    };
    format!("{letter},{id},{size},{stream},{time},{thread}\n")
}

fn text_of(header: &BTreeMap<String, String>, events: &[Event]) -> String {
    let pairs = header.iter().map(|(key, value)| format!(" {key}={value}")).collect::<String>();
    format!("#{pairs}\n{FULL}{}", events.iter().map(line).collect::<String>())
}

fn plain(action: Action, id: u64, stream: u64) -> Event {
    Event { action, id, stream, time_us: None, thread: None }
}

#[test]
fn a_recording_is_read() {
    let text = format!(
        "# torch=2.11.0+cu130 wall_s=11.9 alloc_peak=13\n{PLAIN}a,5,100,7\nf,5,,7\nc,5,,7\na,6,0,8\n"
    );
    let trace = Trace::read(text.as_bytes()).unwrap();
    assert_eq!(
        trace.events,
        [
            plain(Action::Allocate { size: 100 }, 5, 7),
            plain(Action::Free, 5, 7),
            plain(Action::Complete, 5, 7),
            plain(Action::Allocate { size: 0 }, 6, 8),
        ]
    );
    assert_eq!(trace.header["torch"], "2.11.0+cu130");
    assert_eq!(trace.number("wall_s").unwrap(), Some(11.9));
    assert_eq!(trace.number("alloc_peak").unwrap(), Some(13.0));
    assert_eq!(trace.number("active_peak").unwrap(), None);
}

#[test]
fn time_and_thread_are_read_where_they_are_there() {
    let read = |text: &str| Trace::read(text.as_bytes()).unwrap().events;
    let event = plain(Action::Allocate { size: 1 }, 0, 0);
    assert_eq!(read("op,id,size,stream,time_us\na,0,1,0,9\n"), [Event { time_us: Some(9), ..event }]);
    assert_eq!(read(&format!("{FULL}a,0,1,0,9,4\n")), [Event { time_us: Some(9), thread: Some(4), ..event }]);
    assert_eq!(read(&format!("{FULL}a,0,1,0,,4\n")), [Event { thread: Some(4), ..event }]);
}

#[test]
fn the_first_line_may_be_missing_and_line_ends_may_be_windows() {
    let trace = Trace::read("op,id,size,stream\r\na,0,1,0\r\nf,0,,0".as_bytes()).unwrap();
    assert_eq!(trace.events.len(), 2);
    assert_eq!(trace.header, BTreeMap::new());
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    for (text, told) in [
        ("", "line 1: the columns are \"\", not op,id,size,stream[,time_us[,thread]]"),
        ("#", "line 2: the columns are \"\", not op,id,size,stream[,time_us[,thread]]"),
        ("# a=1\nop,id\n", "line 2: the columns are \"op,id\", not op,id,size,stream[,time_us[,thread]]"),
        (
            "# wall\nop,id,size,stream\n",
            "line 1: \"wall\" is no key=value; keys are letters, digits, `_`, `-` and `.`, values have no white space",
        ),
        ("# a=1 a=2\n", "line 1: the key \"a\" is there twice"),
        ("op,id,size,stream\na,0,1\n", "line 2: \"a,0,1\" has 3 columns and not 4"),
        ("op,id,size,stream\na,0,1,0,5\n", "line 2: \"a,0,1,0,5\" has 5 columns and not 4"),
        ("op,id,size,stream\na,0,1,0\n\n", "line 3: \"\" has 1 columns and not 4"),
        (
            "op,id,size,stream\nx,0,1,0\n",
            "line 2: the event \"x\" is not known; there are a (allocate), f (free) and c (complete)",
        ),
        (
            "op,id,size,stream\na,0,+1,0\n",
            "line 2: size is \"+1\", not a whole number from 0 to 1152921504606846976",
        ),
        (
            "op,id,size,stream\na,0,1152921504606846977,0\n",
            "line 2: size is \"1152921504606846977\", not a whole number from 0 to 1152921504606846976",
        ),
        (
            "op,id,size,stream\na,18446744073709551616,1,0\n",
            "line 2: id is \"18446744073709551616\", not a whole number from 0 to 18446744073709551615",
        ),
        (
            "op,id,size,stream\na,0,1,\n",
            "line 2: stream is \"\", not a whole number from 0 to 18446744073709551615",
        ),
        ("op,id,size,stream\na,0,1,0\nf,0,1,0\n", "line 3: size is \"1\"; it must be empty here"),
        (
            "op,id,size,stream\na,0,1,0\na,0,1,0\n",
            "line 3: the block 0 was allocated before; no id is used twice",
        ),
        (
            "op,id,size,stream\na,0,1,0\nf,0,,0\na,0,1,0\n",
            "line 4: the block 0 was allocated before; no id is used twice",
        ),
        ("op,id,size,stream\nf,0,,0\n", "line 2: the block 0 is freed and is not live"),
        ("op,id,size,stream\na,0,1,0\nf,0,,0\nf,0,,0\n", "line 4: the block 0 is freed and is not live"),
        (
            "op,id,size,stream\na,0,1,0\nc,0,,0\n",
            "line 3: the block 0 completes and is not freed, or did so before",
        ),
        ("op,id,size,stream\na,0,1,3\nf,0,,4\n", "line 3: the block 0 is of stream 3, not 4"),
    ] {
        assert_eq!(refusal(text), told, "{text:?}");
    }
}

#[test]
fn no_line_fills_the_memory() {
    let endless = BufReader::new(io::repeat(b'a').take(1 << 30));
    let error = Trace::read(endless).unwrap_err();
    assert_eq!(error.to_string(), "line 1: is longer than the 16384 bytes that it may have");
    let first = |length| format!("#a={}\n{PLAIN}", "1".repeat(length - "#a=".len()));
    assert!(Trace::read(first(LONGEST).as_bytes()).is_ok());
    assert_eq!(refusal(&first(LONGEST + 1)), "line 1: is longer than the 16384 bytes that it may have");
    let text = format!("{PLAIN}a,0,{},0\n", "1".repeat(1000));
    assert!(refusal(&text).len() < 200, "an error shows little of a long cell");
    let bytes = b"op,id,size,stream\na,0,1,\xff\n";
    assert_eq!(Trace::read(&bytes[..]).unwrap_err().to_string(), "line 2: is not UTF-8");
}

#[test]
fn a_source_that_fails_is_told() {
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("unplugged"))
        }
    }
    let source = BufReader::new(PLAIN.as_bytes().chain(Failing));
    let refused = Trace::read(source).unwrap_err();
    assert_eq!(refused.to_string(), "line 2: cannot be read: unplugged");
}

#[test]
fn a_header_takes_only_pairs_of_a_key_and_a_value() {
    for (words, told) in [
        ("a b=1", "a"),
        ("=1", "=1"),
        ("a!=1", "a!=1"),
        ("\u{e4}=1", "\u{e4}=1"),
        ("a=1\u{2003}2", "a=1\u{2003}2"),
        ("a=1\u{1}", "a=1\u{1}"),
        ("b!=1 a!=1", "b!=1"),
    ] {
        let problem =
            "is no key=value; keys are letters, digits, `_`, `-` and `.`, values have no white space";
        assert_eq!(refusal(&format!("# {words}\n{PLAIN}")), format!("line 1: {told:?} {problem}"));
    }
    let read = |words: &str| Trace::read(format!("#{words}\n{PLAIN}").as_bytes()).unwrap();
    let trace = read(" b=  a==2 _-.9=\u{e4}");
    let pairs = [("_-.9", "\u{e4}"), ("a", "=2"), ("b", "")];
    assert_eq!(trace.header, pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    assert_eq!(trace.number("b").unwrap_err().to_string(), "line 1: b=\"\" is no number from 0 on");
    for value in ["-1", "inf", "nan"] {
        assert!(read(&format!("b={value}")).number("b").is_err(), "{value}");
    }
}

#[test]
fn a_size_that_is_too_large_is_not_read() {
    for (size, is_read) in [(MAX_SIZE + 1, false), (MAX_SIZE, true)] {
        let text = text_of(&BTreeMap::new(), &[plain(Action::Allocate { size }, 0, 0)]);
        assert_eq!(Trace::read(text.as_bytes()).is_ok(), is_read);
    }
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let action = prop_oneof![
        (0..=MAX_SIZE).prop_map(|size| Action::Allocate { size }),
        Just(Action::Free),
        Just(Action::Complete)
    ];
    let event = (action, any::<u64>(), any::<u64>(), any::<Option<u64>>(), any::<Option<u64>>());
    let event =
        event.prop_map(|(action, id, stream, time_us, thread)| Event { action, id, stream, time_us, thread });
    prop::collection::vec(event, 0..50)
}

/// Text that is nearly a trace, so that more than the first line is tried.
fn nearly() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        3 => "[afc],[0-3],[0-9]{0,3},[0-2]",
        1 => "[afcx],[0-9+ -]{0,25},[0-9]{0,25},[0-9]{0,3}(,[0-9]{0,3})?(,[0-9]{0,3})?",
        1 => "[ -~]{0,40}",
    ];
    let first = prop_oneof![Just(String::new()), "# ([a-z]{1,3}=[0-9.]{0,3} ?){0,3}\n", "#[ -~]{0,20}\n"];
    let columns = prop_oneof![Just(PLAIN), Just(FULL), Just("op,id,size\n")];
    (first, columns, prop::collection::vec(line, 0..12))
        .prop_map(|(first, columns, lines)| format!("{first}{columns}{}", lines.join("\n")))
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(events in events()) {
        let read: Result<Vec<_>, _> = events.iter().map(|it| event(line(it).trim_end(), 6)).collect();
        prop_assert_eq!(read.unwrap(), events);
    }

    #[test]
    fn any_bytes_end_in_a_trace_or_an_error_with_a_line(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Err(error) = Trace::read(&*bytes) {
            // The last one may lack its end; and the error may be that the next one is missing.
            let ends = bytes.iter().filter(|byte| **byte == b'\n').count();
            let lines = ends + usize::from(bytes.last().is_some_and(|byte| *byte != b'\n'));
            let told = error.to_string();
            let line = told.strip_prefix("line ").and_then(|told| told.split_once(':')).unwrap().0;
            prop_assert!((1..=lines + 1).contains(&line.parse().unwrap()), "{}", told);
        }
    }

    #[test]
    fn what_is_nearly_a_trace_is_read_or_refused(text in nearly()) {
        let Ok(trace) = Trace::read(text.as_bytes()) else { return Ok(()) };
        let again = text_of(&trace.header, &trace.events);
        prop_assert_eq!(Trace::read(again.as_bytes()).unwrap(), trace);
    }
}
