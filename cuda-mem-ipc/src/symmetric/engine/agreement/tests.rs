//! # Safety
//!
//! Implements an unsafe trait for a list of answers; nothing is called on the strength of it.

#![allow(unsafe_code, reason = "a test's exchange")]

use std::sync::Mutex;

use super::*;

/// Says what it is told to, for rank 1 of two.
#[derive(Debug)]
struct Script(Mutex<Vec<Option<Vec<u8>>>>);

// SAFETY: nothing is called on the strength of it.
unsafe impl Exchange for Script {
    fn name(&self) -> &str {
        "script"
    }

    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        2
    }

    fn all_gather(&self, bytes: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        let missing = Error::Missing { ranks: vec![1], what: "say something", waited: timeout };
        let mut script = self.0.lock().unwrap();
        assert!(!script.is_empty(), "one exchange too many");
        Ok(vec![bytes.to_vec(), script.remove(0).ok_or(missing)?])
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }
}

fn said(number: u64, kind: u64, size: u64, sequence: u64, retired: &[u64]) -> Option<Vec<u8>> {
    Some(encode(&[VERSION, number, 1, 2, kind, size, sequence], retired))
}

fn alloc(size: u64, retired: &[u64]) -> Proposal {
    Proposal { kind: Kind::Alloc, size, sequence: 3, retired: retired.to_vec() }
}

fn talk(script: &Script) -> Talk<'_> {
    Talk { exchange: script, backend: "NVSHMEM", timeout: Duration::from_secs(1) }
}

fn agree(calls: &mut Calls, script: &Script, proposal: Proposal) -> Result<Agreed> {
    calls.agree(talk(script), proposal)
}

#[test]
fn what_all_have_freed_is_freed_in_order() {
    let script = Script(Mutex::new(vec![said(0, 2, 64, 3, &[1, 0, 7]), said(0, GO, 64, 3, &[])]));
    let mut calls = Calls::default();
    let agreed = agree(&mut calls, &script, alloc(64, &[2, 1, 0])).unwrap();
    assert_eq!(agreed, Agreed { sizes: vec![64, 64], freed: vec![0, 1] });
    assert_eq!(calls.agreements, 1);
}

#[test]
fn ranks_that_differ_do_not_come_to_the_second_exchange_and_may_go_on() {
    let differing = [said(0, 2, 65, 3, &[]), said(1, 3, 64, 3, &[]), said(2, 2, 64, 4, &[])];
    let agreeing = [said(3, 2, 64, 3, &[]), said(3, GO, 64, 3, &[])];
    let script = Script(Mutex::new(differing.into_iter().chain(agreeing).collect()));
    let mut calls = Calls::default();
    let error = agree(&mut calls, &script, alloc(64, &[])).unwrap_err();
    assert!(matches!(error, Error::OrderDiffers { rank: 1, sequence: 3, ours: 64, theirs: 65 }), "{error}");
    for expected in ["rendezvous of allocation 3", "allocation 4"] {
        let error = agree(&mut calls, &script, alloc(64, &[])).unwrap_err();
        let Error::Disagrees { rank: 1, theirs, .. } = &error else { panic!("{error}") };
        assert!(theirs.contains(expected), "{error}");
    }
    agree(&mut calls, &script, alloc(64, &[])).unwrap();
}

#[test]
fn who_is_missing_in_either_exchange_ends_it_for_good() {
    for script in [vec![None], vec![said(0, 2, 64, 3, &[]), None]] {
        let (script, mut calls) = (Script(Mutex::new(script)), Calls::default());
        for _ in 0..2 {
            // The second time nobody is asked.
            let error = agree(&mut calls, &script, alloc(64, &[])).unwrap_err();
            assert!(matches!(&error, Error::Missing { ranks, .. } if ranks == &[1]), "{error}");
        }
    }
}

#[test]
fn what_is_no_message_ends_it_too() {
    let with = |index: usize, value: u64| {
        let mut head = [VERSION, 0, 1, 2, 2, 64, 3];
        head[index] = value;
        Some(encode(&head, &[]))
    };
    let long = said(0, 2, 64, 3, &[0; FREED + 1]);
    for wrong in [Some(Vec::new()), Some(vec![0; 57]), with(0, 1), with(2, 0), with(3, 3), long] {
        let (script, mut calls) = (Script(Mutex::new(vec![wrong])), Calls::default());
        for _ in 0..2 {
            let error = agree(&mut calls, &script, alloc(64, &[])).unwrap_err();
            assert!(matches!(error, Error::NoMessage { rank: 1, .. }), "{error}");
        }
    }
    // Of another call, or the first message again, where the second is expected.
    for second in [said(1, GO, 64, 3, &[]), said(0, 2, 64, 3, &[])] {
        let script = Script(Mutex::new(vec![said(0, 2, 64, 3, &[]), second]));
        let error = agree(&mut Calls::default(), &script, alloc(64, &[])).unwrap_err();
        assert!(matches!(error, Error::NoMessage { rank: 1, .. }), "{error}");
    }
}

fn settle(script: Vec<Option<Vec<u8>>>, made: Result<u8>, leaves: bool) -> (Result<u8>, bool) {
    let (script, mut calls) = (Script(Mutex::new(script)), Calls::default());
    let settled = calls.settle(talk(&script), "call", made, leaves);
    (settled, calls.has_ended())
}

#[test]
fn a_call_is_made_when_all_have_made_it() {
    let (settled, has_ended) = settle(vec![said(0, DONE, 0, 1, &[])], Ok(7), true);
    assert_eq!((settled.unwrap(), has_ended), (7, false));
}

#[test]
fn what_failed_elsewhere_is_undone_by_all_or_by_none() {
    for leaves in [false, true] {
        let (settled, has_ended) = settle(vec![said(0, DONE, 1, leaves.into(), &[])], Ok(7), leaves);
        let error = settled.unwrap_err();
        assert!(matches!(error, Error::FailedElsewhere { rank: 1, call: "call", .. }), "{error}");
        assert!(!has_ended);
        let (settled, has_ended) = settle(vec![said(0, DONE, 1, (!leaves).into(), &[])], Ok(7), leaves);
        let error = settled.unwrap_err();
        assert!(matches!(error, Error::Uneven { rank: 1, .. }), "{error}");
        assert!(has_ended);
    }
    // This rank's own failure is told as it is.
    let (settled, has_ended) =
        settle(vec![said(0, DONE, 0, 1, &[])], Err(Error::NotReachable { rank: 5 }), false);
    assert!(matches!(settled.unwrap_err(), Error::NotReachable { rank: 5 }) && has_ended);
}

#[test]
fn who_does_not_say_what_became_of_a_call_ends_it_for_good() {
    for script in [None, said(1, DONE, 0, 0, &[]), said(0, GO, 0, 0, &[])] {
        let (settled, has_ended) = settle(vec![script], Ok(7), false);
        let error = settled.unwrap_err();
        assert!(matches!(error, Error::Missing { .. } | Error::NoMessage { rank: 1, .. }), "{error}");
        assert!(has_ended);
    }
}

#[test]
fn a_message_names_no_more_than_fits() {
    let many = (0..3000).collect::<Vec<_>>();
    let script = Script(Mutex::new(vec![said(0, 2, 64, 3, &many[..FREED]), said(0, GO, 64, 3, &[])]));
    let agreed = agree(&mut Calls::default(), &script, alloc(64, &many)).unwrap();
    assert_eq!(agreed.freed.len(), FREED);
    const { assert!((HEAD + FREED) * 8 <= crate::transport::MAX_PAYLOAD) };
}

#[test]
fn nothing_is_agreed_on_after_the_end() {
    let mut calls = Calls::default();
    calls.end(&Error::EngineClosed { backend: "NVSHMEM" });
    let error = agree(&mut calls, &Script(Mutex::default()), alloc(64, &[])).unwrap_err();
    assert!(matches!(error, Error::EngineClosed { backend: "NVSHMEM" }), "{error}");
}
