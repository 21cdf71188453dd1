//! The format, byte by byte, and what is no format.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use super::*;

fn mapped(sizes: &[u64]) -> Named {
    let piece = |(place, &bytes): (usize, &u64)| Piece { bytes, descriptor: place as i32 + 7 };
    Named::Mapped { pid: 4321, pieces: sizes.iter().enumerate().map(piece).collect() }
}

/// As PyTorch 2.11 writes it: the header is a C structure with a gap of four bytes.
#[test]
fn the_bytes_of_mapped_memory_are_those_of_pytorch() {
    let bytes = mapped(&[2 << 20, 2 << 20]).write();
    assert_eq!(bytes[..2], [2, b'e']);
    assert_eq!(bytes[2..6], 4321i32.to_ne_bytes());
    assert_eq!(bytes[10..18], (2u64 << 20).to_ne_bytes());
    assert_eq!(bytes[18..26], 2u64.to_ne_bytes());
    assert_eq!(bytes[26..30], 7i32.to_ne_bytes());
    assert_eq!(bytes[30..34], 8i32.to_ne_bytes());
    assert_eq!(bytes.len(), 34);
}

#[test]
fn what_is_written_is_read() {
    let all = [Named::Legacy([9; 64]), mapped(&[2 << 20]), mapped(&[2 << 20, 4 << 20, 2 << 20])];
    for named in all {
        assert_eq!(Named::read(&named.write()).unwrap(), named);
    }
    assert_eq!(mapped(&[2 << 20, 4 << 20]).write()[1], b'm');
    // Of versions without a version.
    assert_eq!(Named::read(&[5; 64]).unwrap(), Named::Legacy([5; 64]));
}

#[test]
fn what_is_no_handle_is_refused_by_what_is_wrong() {
    let read = |bytes: &[u8]| Named::read(bytes).unwrap_err();
    assert!(matches!(read(&[]), HandleError::Length { found: 0, .. }));
    assert!(matches!(read(&[3, b'c']), HandleError::Version { found: 3, known: 2 }));
    assert!(matches!(read(&[0, b'c']), HandleError::Version { found: 0, .. }));
    assert!(matches!(read(&[2, b'x', 1]), HandleError::Kind { found: b'x' }));
    assert!(matches!(read(&[2, b'c', 1]), HandleError::Length { expected: 66, found: 3, .. }));
    let whole = mapped(&[2 << 20, 2 << 20]).write();
    for short in 2..whole.len() {
        assert!(matches!(read(&whole[..short]), HandleError::Length { .. }), "{short}");
    }
    let mut long = whole.clone();
    long.push(0);
    assert!(matches!(read(&long), HandleError::Length { expected: 34, found: 35, .. }));
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
    assert!(matches!(with(18, &3u64.to_ne_bytes()), HandleError::Length { expected: 38, .. }));
    assert!(matches!(with(26, &(-5i32).to_ne_bytes()), HandleError::Value { found: -5, .. }));
}

proptest::proptest! {
    /// Whatever comes is read or refused, and what was read is what would be written.
    #[test]
    fn any_bytes_are_read_or_refused(
        bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
        sizes in proptest::collection::vec(1..1u64 << 40, 1..20),
        place: usize,
        value: u8,
    ) {
        let _ = Named::read(&bytes);
        let mut near = mapped(&sizes).write();
        let place = place % near.len();
        near[place] = value;
        if let Ok(named) = Named::read(&near) && near.len() != HANDLE {
            // The gap in the header may have anything in it, and versions before this one are as this one; a size that all
            // pieces have may be written once or with each.
            assert_eq!(Named::read(&named.write()).unwrap(), named);
        }
    }
}
