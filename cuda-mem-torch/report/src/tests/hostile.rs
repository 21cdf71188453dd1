//! Snapshots that are cut, changed or made up: an answer in any case, and little memory.

use super::super::{Input, of_snapshot};
use super::{Files, pickled, read};
use crate::tests::programs::snapshot;

/// Numbers that are as good as random, and the same each time.
fn numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

fn refuses_cuts(whole: &[u8], cuts: impl Iterator<Item = usize>) {
    assert!(of_snapshot(whole, None, "whole").is_ok());
    for end in cuts {
        let error = of_snapshot(&whole[..end], None, "cut").err().map(|error| error.to_string());
        let error = error.unwrap_or_else(|| panic!("{end} bytes of {} are a snapshot", whole.len()));
        assert!(error.contains("the pickle is broken at byte"), "{end}: {error}");
    }
}

#[test]
fn a_snapshot_that_is_cut_anywhere_is_an_error_that_says_where() {
    let files = Files::new("cut");
    // Every place of a small one, every seventeenth of one with all that there is.
    let path = pickled(
        &files,
        "dict(segments=[segment()], device_traces=[[dict(action='alloc', addr=4096, size=512, stream=0, time_us=1, \
         frames=[dict(name='f', filename='a.py', line=3)], user_metadata={'a': 1}, pool_id=(0, 1))]], \
         external_annotations=[dict(name='x', stage='START', device=0, time_us=5)])",
    );
    let whole = std::fs::read(path).unwrap();
    refuses_cuts(&whole, 0..whole.len());
    snapshot(&files, "all", "2.15");
    let whole = std::fs::read(files.0.join("all.pickle")).unwrap();
    refuses_cuts(&whole, (0..whole.len()).step_by(17));
}

#[test]
fn a_snapshot_whose_bytes_were_changed_is_a_page_or_an_error() {
    let files = Files::new("changed");
    snapshot(&files, "all", "2.15");
    let whole = std::fs::read(files.0.join("all.pickle")).unwrap();
    let mut next = numbers(0x5EED);
    let (mut pages, mut errors) = (0, 0);
    for _ in 0..600 {
        let mut changed = whole.clone();
        for _ in 0..=next() % 3 {
            let place = next() as usize % changed.len();
            changed[place] = next() as u8;
        }
        // Either is right; a panic or a hang is not.
        match of_snapshot(&changed, None, "changed") {
            Ok(_) => pages += 1,
            Err(_) => errors += 1,
        }
    }
    assert!(pages > 50 && errors > 50, "{pages} pages, {errors} errors");
}

#[test]
fn instructions_in_any_order_are_an_error_or_nothing() {
    let codes = b"().012NJKMGX\x8c\x8d\x88\x89\x8a\x8b]}tl\x85\x86\x87aesuqr\x94hj\x80\x95";
    let mut next = numbers(7);
    for _ in 0..20_000 {
        let bytes = (0..next() % 120).map(|_| match next() % 4 {
            0 => (next() % 5) as u8,
            _ => codes[next() as usize % codes.len()],
        });
        let bytes: Vec<u8> = bytes.collect();
        let _ = of_snapshot(&bytes, None, "made up");
    }
}

#[test]
fn what_claims_to_be_long_takes_no_memory() {
    // A text of 2^62 bytes, and a million lists that are opened and dropped.
    let error = of_snapshot(b"\x80\x04\x8d\0\0\0\0\0\0\0\x40abc", None, "long").unwrap_err().to_string();
    assert!(error.contains("too early"), "{error}");
    let mut bytes = b"\x80\x04".to_vec();
    (0..1_000_000).for_each(|_| bytes.extend(b"]0"));
    assert!(of_snapshot(&bytes, None, "lists").is_err());
    // More values at once than any snapshot has.
    let bytes = vec![b'N'; 9 << 20];
    let error = of_snapshot(&bytes, None, "values").unwrap_err().to_string();
    assert!(error.contains("too many values at once"), "{error}");
}

#[test]
fn files_that_are_no_recordings_are_named_with_the_reason() {
    let files = Files::new("foreign");
    for (bytes, reason) in [
        (&b""[..], "page.pickle is empty"),
        (b"PK\x03\x04rest of an archive", "is a ZIP archive, as torch.save writes them"),
        (b"\x80\x04]\x94.", ""),
        (b"\x80\x04K\x05.", "this pickle is no memory snapshot, but an integer"),
        (
            b"\x80\x04}\x94\x8c\x01a\x94K\x01s.",
            "this pickle is no memory snapshot: the key segments is missing",
        ),
        (b"\x80\x04\x8c\x05torch\x8c\x06Tensor\x93.", "asks to import or call something"),
        (b"\x7fELF\x02\x01\xff\xfe", "neither a trace (text) nor a snapshot"),
    ] {
        std::fs::write(files.0.join("page.pickle"), bytes).unwrap();
        let found = read(&files.arguments("page.pickle"));
        if reason.is_empty() {
            // An empty list is what an idle allocator gives.
            assert!(found.is_ok());
            continue;
        }
        let error = format!("{:#}", found.unwrap_err());
        assert!(error.contains(reason), "{error}");
    }
    let missing =
        super::super::write(&[Input::file("/nonexistent/a.pickle")], &Default::default(), &mut |_| {});
    assert!(missing.unwrap_err().to_string().starts_with("cannot read /nonexistent/a.pickle: "));
}
