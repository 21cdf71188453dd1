//! A peer that sends what is not of the protocol: a typed error, nothing stays open, nothing is believed any more.

use cuda_mem_ipc::Error;
use cuda_mem_ipc::transport::{FIRST_KIND, HEADER, MAX_DESCRIPTORS, MAX_FRAME, MessageError};
use proptest::collection::vec;
use proptest::prelude::*;

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
    let good = frame(FIRST_KIND, b"payload");
    let named = |packet: &[u8], attached| match refused(packet, attached) {
        Error::Frame(MessageError::Value { field, value }) => (field, value),
        Error::Frame(MessageError::Length { found, expected }) if expected == found + 3 => ("three", 0),
        Error::Frame(MessageError::Length { found: 10, expected: HEADER }) => ("header", 0),
        error => panic!("{error}"),
    };
    assert_eq!(named(&good[..10], 3), ("header", 0));
    // Without descriptors it would be the peer's end.
    let empty = refused(b"", 1);
    assert!(matches!(empty, Error::Frame(MessageError::Length { found: 0, expected: HEADER })), "{empty}");
    assert_eq!(named(&good[..20], 0), ("three", 0), "three bytes are missing");
    assert_eq!(named(&vec![b'C'; MAX_FRAME + 1], 2), ("length", MAX_FRAME as u64 + 1));
    assert_eq!(named(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 1).0, "magic");
    let mut changed = good;
    changed[14] ^= 4;
    assert_eq!(named(&changed, MAX_DESCRIPTORS), ("last field", 4));
}

#[test]
fn a_wrong_count_closes_what_came() {
    for (declared, attached) in [(0, 1), (1, 0), (1, 2), (5, 4), (253, 252), (0, 253)] {
        match refused(&frame_with(FIRST_KIND, b"", declared), attached) {
            Error::DescriptorCount { declared: said, received } => {
                assert_eq!((said, received), (declared, attached));
            }
            error => panic!("{declared} declared, {attached} attached: {error}"),
        }
    }
}

#[test]
fn the_kinds_of_the_transport_are_not_for_its_users() {
    for kind in [0, 1, FIRST_KIND - 1] {
        assert!(
            matches!(refused(&frame(kind, b""), 0), Error::ReservedKind { kind: said, .. } if said == kind)
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

/// What a peer may send: a packet, and how many descriptors with it.
fn packets() -> impl Strategy<Value = Vec<(Vec<u8>, usize)>> {
    let honest = (0..20_u16, vec(any::<u8>(), 0..50), 0..4_usize)
        .prop_map(|(kind, payload, count)| (frame_with(kind, &payload, count), count));
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
    let noise = (vec(any::<u8>(), 1..100), 0..6_usize);
    let long =
        (MAX_FRAME - 2..MAX_FRAME + 3, 0..3_usize).prop_map(|(length, count)| (vec![b'C'; length], count));
    vec(prop_oneof![4 => honest, 1 => changed, 1 => cut, 1 => miscounted, 1 => noise, 1 => long], 1..6)
}

proptest! {
    #[test]
    fn whatever_comes_is_a_message_or_an_error_and_leaves_nothing_open(packets in packets()) {
        let (raw, connection) = Raw::connected();
        let watched = Watched::new();
        for (bytes, count) in packets {
            raw.send(&bytes, &vec![watched.descriptor(); count]);
            match connection.recv(LIMIT) {
                // Then it was the next message, whole.
                Ok(message) => {
                    prop_assert_eq!(&frame_with(message.kind, &message.payload, count), &bytes);
                    prop_assert_eq!(message.descriptors.len(), count);
                }
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
