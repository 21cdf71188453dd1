//! Any bytes are a frame or an error, and a frame is written as it is read.

use cuda_mem_ipc::transport::{Frame, HEADER, MAGIC, MAX_DESCRIPTORS, MAX_PAYLOAD, VERSION};

/// Whether the bytes are a frame, or are one with what a fuzzer does not guess.
pub(crate) fn check(bytes: &[u8]) -> bool {
    let mut repaired = bytes.to_vec();
    repair(&mut repaired);
    is_read(bytes) | is_read(&repaired)
}

fn is_read(bytes: &[u8]) -> bool {
    let Ok(frame) = Frame::parse(bytes) else { return false };
    assert!(frame.payload.len() <= MAX_PAYLOAD && usize::from(frame.descriptors) <= MAX_DESCRIPTORS);
    let mut again = Vec::new();
    frame.encode(&mut again);
    assert_eq!(again, bytes);
    true
}

/// Magic, version and length as they must be.
pub(crate) fn repair(bytes: &mut [u8]) {
    let Some((header, body)) = bytes.split_first_chunk_mut::<HEADER>() else { return };
    header[..4].copy_from_slice(&MAGIC);
    header[4..6].copy_from_slice(&VERSION.to_le_bytes());
    header[8..12].copy_from_slice(&u32::try_from(body.len()).unwrap().to_le_bytes());
    header[14..].fill(0);
}
