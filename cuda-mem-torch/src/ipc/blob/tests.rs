//! The format, byte by byte, and what is no format.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use super::*;

fn mapped(count: usize, offer: bool) -> Named {
    Named::Mapped(Mapped {
        pid: 4321,
        size: 2 << 20,
        descriptors: (7..).take(count).collect(),
        offer: offer.then(|| Offer { socket: 99 << 70, handles: (1 << 40..).take(count).collect() }),
    })
}

/// As PyTorch 2.11 writes it: the header is a C structure with a gap of four bytes.
#[test]
fn the_bytes_of_mapped_memory_are_those_of_pytorch() {
    for offer in [false, true] {
        let bytes = mapped(2, offer).write(2);
        assert_eq!(bytes[..2], [2, b'e']);
        assert_eq!(bytes[2..6], 4321i32.to_ne_bytes());
        assert_eq!(bytes[6..10], [0; 4]);
        assert_eq!(bytes[10..18], (2u64 << 20).to_ne_bytes());
        assert_eq!(bytes[18..26], 2u64.to_ne_bytes());
        assert_eq!(bytes[26..30], 7i32.to_ne_bytes());
        assert_eq!(bytes[30..34], 8i32.to_ne_bytes());
        assert_eq!(bytes.len(), if offer { 34 + 8 + 16 + 2 * 8 } else { 34 });
    }
}

/// As PyTorch 2.13 writes it: the header says that the handles are descriptors.
#[test]
fn later_versions_say_what_their_handles_are() {
    let (old, new) = (mapped(2, true).write(2), mapped(2, true).write(3));
    assert_eq!(new[..2], [3, b'e']);
    assert_eq!(new[2..26], old[2..26]);
    assert_eq!(new[26..34], [1i32.to_ne_bytes(), [0; 4]].concat());
    assert_eq!(new[34..], old[26..]);
}

#[test]
fn what_is_written_is_read() {
    for version in VERSIONS {
        let all =
            [Named::Legacy([9; 64]), mapped(1, false), mapped(3, false), mapped(1, true), mapped(300, true)];
        for named in all {
            assert_eq!(Named::read(&named.write(version)).unwrap(), named);
        }
    }
    // Of versions without a version.
    assert_eq!(Named::read(&[5; 64]).unwrap(), Named::Legacy([5; 64]));
}

#[test]
fn handles_of_a_fabric_are_left_to_others() {
    let header = |version| mapped(2, false).write(version)[..if version == 3 { 34 } else { 26 }].to_vec();
    let old = [header(2), vec![7; 128]].concat();
    assert_eq!(Named::read(&old).unwrap(), Named::Fabric);
    let mut new = [header(3), vec![7; 128]].concat();
    new[26..30].copy_from_slice(&2i32.to_ne_bytes());
    assert_eq!(Named::read(&new).unwrap(), Named::Fabric);
}

#[test]
fn what_is_no_handle_is_refused_by_what_is_wrong() {
    let read = |bytes: &[u8]| Named::read(bytes).unwrap_err();
    assert!(matches!(read(&[]), HandleError::Length { found: 0, .. }));
    assert!(matches!(read(&[4, b'c']), HandleError::Version { found: 4, known: 3 }));
    assert!(matches!(read(&[0, b'c']), HandleError::Version { found: 0, .. }));
    assert!(matches!(read(&[2, b'x', 1]), HandleError::Kind { found: b'x' }));
    assert!(matches!(read(&[2, b'm', 1]), HandleError::Kind { found: b'm' }));
    assert!(matches!(read(&[2, b'c', 1]), HandleError::Length { expected: 66, found: 3, .. }));
    for version in VERSIONS {
        let whole = mapped(2, false).write(version);
        for short in 2..whole.len() {
            assert!(matches!(read(&whole[..short]), HandleError::Length { .. }), "{short}");
        }
        let with = |at: usize, bytes: &[u8]| {
            let mut changed = whole.clone();
            changed[at..at + bytes.len()].copy_from_slice(bytes);
            read(&changed)
        };
        assert!(matches!(with(2, &(-1i32).to_ne_bytes()), HandleError::Value { found: -1, .. }));
        assert!(matches!(with(10, &0u64.to_ne_bytes()), HandleError::Value { found: 0, .. }));
        assert!(matches!(with(10, &u64::MAX.to_ne_bytes()), HandleError::Value { .. }));
        for count in [0, u64::MAX] {
            assert!(matches!(with(18, &count.to_ne_bytes()), HandleError::Value { .. }), "{count}");
        }
        assert!(matches!(with(18, &3u64.to_ne_bytes()), HandleError::Length { .. }));
        let first = whole.len() - 8;
        assert!(matches!(with(first, &(-5i32).to_ne_bytes()), HandleError::Value { found: -5, .. }));
    }
    let mut unknown = mapped(2, false).write(3);
    unknown[26] = 3;
    assert!(matches!(read(&unknown), HandleError::Value { found: 3, .. }));
}

/// PyTorch's reader takes what it needs from a stream.
#[test]
fn a_trailer_of_somebody_else_is_skipped() {
    let mut bytes = mapped(2, false).write(2);
    bytes.extend(b"something of a later version, of another length");
    assert_eq!(Named::read(&bytes).unwrap(), mapped(2, false));
    let whole = mapped(2, true).write(2);
    assert_eq!(Named::read(&whole[..whole.len() - 1]).unwrap(), mapped(2, false));
}

proptest::proptest! {
    /// Whatever comes is read or refused, and what was read is what would be written.
    #[test]
    fn any_bytes_are_read_or_refused(
        bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
        count in 1..20usize,
        offer: bool,
        is_new: bool,
        place: usize,
        value: u8,
    ) {
        let _ = Named::read(&bytes);
        let version = VERSIONS[usize::from(is_new)];
        let mut near = mapped(count, offer).write(version);
        let place = place % near.len();
        near[place] = value;
        // A change of the version alone makes other fields of the same bytes.
        if place != 0 && let Ok(named) = Named::read(&near) && named != Named::Fabric {
            // The gaps in the header may have anything in them.
            assert_eq!(Named::read(&named.write(version)).unwrap(), named);
        }
    }
}
