//! A peer that sends what is not of the protocol: a typed error, nothing stays open, nothing is believed any more.

use cuda_mem_ipc::Error;
use cuda_mem_ipc::transport::{FIRST_KIND, FrameError, MAX_DESCRIPTORS, MAX_FRAME};
use proptest::collection::vec;
use proptest::prelude::*;
use rustix::io::Errno;

use crate::other::{LIMIT, SHORT};
use crate::raw::{Raw, Watched, frame, frame_with};

/// Sends the packet with as many descriptors, and what `recv` says to it. The connection must be broken then.
fn refused(packet: &[u8], attached: usize) -> Error {
    let (raw, connection) = Raw::connected();
    let watched = Watched::new();
    raw.send(packet, &vec![watched.descriptor(); attached]);
    // It is there already: no error is for want of time.
    let error = connection.recv(LIMIT).unwrap_err();
    watched.expect_closed();
    assert!(matches!(connection.recv(LIMIT), Err(Error::Broken)));
    assert!(matches!(connection.send(FIRST_KIND, b"", &[], LIMIT), Err(Error::Broken)));
    assert_eq!(raw.next_packet(), b"", "the peer sees the end");
    error
}

#[test]
fn what_is_no_frame_breaks_the_connection() {
    let good = frame(FIRST_KIND, 1, b"payload");
    assert!(matches!(refused(&good[..20], 3), Error::Frame(FrameError::TooShort { bytes: 20 })));
    assert!(matches!(refused(&good[..30], 0), Error::Frame(FrameError::Length { .. })));
    assert!(matches!(refused(&vec![b'C'; MAX_FRAME + 1], 2), Error::Frame(FrameError::TooLong { .. })));
    assert!(matches!(
        refused(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 1),
        Error::Frame(FrameError::Magic { .. })
    ));
    let mut changed = good;
    changed[31] ^= 4;
    assert!(matches!(refused(&changed, MAX_DESCRIPTORS), Error::Frame(FrameError::Checksum { .. })));
}

#[test]
fn a_wrong_count_closes_what_came() {
    for (declared, attached) in [(0, 1), (1, 0), (1, 2), (5, 4), (253, 252), (0, 253)] {
        match refused(&frame_with(FIRST_KIND, 1, b"", declared), attached) {
            Error::DescriptorCount { declared: said, received } => {
                assert_eq!((said, received), (declared, attached));
            }
            error => panic!("{declared} declared, {attached} attached: {error}"),
        }
    }
}

#[test]
fn messages_are_taken_in_their_order_and_once() {
    for (sequence, kind) in [(0, FIRST_KIND), (2, FIRST_KIND), (u64::MAX, FIRST_KIND), (0, 0)] {
        let error = refused(&frame(kind, sequence, b""), 0);
        assert!(matches!(error, Error::OutOfOrder { found, expected: 1 } if found == sequence), "{error}");
    }
    let (raw, connection) = Raw::connected();
    let packet = frame(FIRST_KIND, 1, b"once");
    raw.send(&packet, &[]);
    raw.send(&packet, &[]);
    assert_eq!(connection.recv(LIMIT).unwrap().payload, b"once");
    assert!(matches!(connection.recv(LIMIT), Err(Error::OutOfOrder { found: 1, expected: 2 })));
}

#[test]
fn the_kinds_of_the_transport_are_not_for_its_users() {
    for kind in [0, 1, FIRST_KIND - 1] {
        assert!(
            matches!(refused(&frame(kind, 1, b""), 0), Error::ReservedKind { kind: said, .. } if said == kind)
        );
    }
    let (_raw, connection) = Raw::connected();
    assert!(matches!(connection.send(15, b"", &[], LIMIT), Err(Error::ReservedKind { kind: 15, first: 16 })));
    connection.send(16, b"", &[], LIMIT).unwrap();
}

#[test]
fn an_empty_packet_is_the_end() {
    let (raw, connection) = Raw::connected();
    raw.send(b"", &[]);
    assert!(matches!(connection.recv(LIMIT), Err(Error::Closed { doing: "receiving" })));
}

#[test]
fn named_descriptors_that_the_peer_does_not_have_lose_the_message_alone() {
    let (raw, connection) = Raw::connected();
    let packet = by_number(1, &[i32::MAX]);
    raw.send(&packet, &[]);
    raw.send(&frame(FIRST_KIND, 2, b"next"), &[]);
    match connection.recv(LIMIT) {
        Err(Error::DescriptorNotTaken { pid, number: i32::MAX, source }) => {
            assert_eq!(pid, std::process::id());
            assert_eq!(Errno::from_io_error(&source), Some(Errno::BADF));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(connection.recv(LIMIT).unwrap().payload, b"next");
    // Named and sent is one too many.
    assert!(matches!(refused(&by_number(1, &[0]), 1), Error::DescriptorCount { declared: 0, received: 1 }));
}

/// As the table of the frame has it.
fn by_number(sequence: u64, numbers: &[i32]) -> Vec<u8> {
    let mut bytes = frame_with(FIRST_KIND, sequence, b"", numbers.len());
    bytes[22] = 1;
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..24]);
    hasher.update(&bytes[28..]);
    bytes[24..28].copy_from_slice(&hasher.finalize().to_le_bytes());
    bytes
}

/// What a peer may send: a packet, and how many descriptors with it.
fn packets() -> impl Strategy<Value = Vec<(Vec<u8>, usize)>> {
    let honest = (0..4_u64, 0..20_u16, vec(any::<u8>(), 0..50), 0..4_usize)
        .prop_map(|(sequence, kind, payload, count)| (frame_with(kind, sequence, &payload, count), count));
    let changed = (honest.clone(), any::<prop::sample::Index>(), any::<u8>()).prop_map(
        |((mut bytes, count), at, to)| {
            let at = at.index(bytes.len());
            bytes[at] = to;
            (bytes, count)
        },
    );
    let cut = (honest.clone(), any::<prop::sample::Index>()).prop_map(|((mut bytes, count), at)| {
        bytes.truncate(at.index(bytes.len()).max(1));
        (bytes, count)
    });
    let miscounted = (honest.clone(), 0..6_usize).prop_map(|((bytes, _), count)| (bytes, count));
    let named = (0..4_u64, vec(prop_oneof![-2..0, 1_000_000..i32::MAX], 1..4))
        .prop_map(|(sequence, numbers)| (by_number(sequence, &numbers), 0));
    let noise = (vec(any::<u8>(), 1..100), 0..6_usize);
    let long =
        (MAX_FRAME - 2..MAX_FRAME + 3, 0..3_usize).prop_map(|(length, count)| (vec![b'C'; length], count));
    vec(
        prop_oneof![4 => honest, 1 => changed, 1 => cut, 1 => miscounted, 1 => named, 1 => noise, 1 => long],
        1..6,
    )
}

proptest! {
    #[test]
    fn whatever_comes_is_a_message_or_an_error_and_leaves_nothing_open(packets in packets()) {
        let (raw, connection) = Raw::connected();
        let watched = Watched::new();
        for (next, (bytes, count)) in (1..).zip(packets) {
            raw.send(&bytes, &vec![watched.descriptor(); count]);
            match connection.recv(LIMIT) {
                // Then it was the next message, whole.
                Ok(message) => {
                    prop_assert_eq!(&frame_with(message.kind, next, &message.payload, count), &bytes);
                    prop_assert_eq!(message.descriptors.len(), count);
                }
                Err(Error::DescriptorNotTaken { .. }) => prop_assert_eq!(count, 0),
                Err(error) => {
                    prop_assert!(!error.is_timeout() && !error.is_gone(), "{}", error);
                    prop_assert!(matches!(connection.recv(SHORT), Err(Error::Broken)));
                    break;
                }
            }
        }
        watched.expect_closed();
    }
}
