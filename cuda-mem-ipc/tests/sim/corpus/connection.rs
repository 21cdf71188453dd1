//! Any packets with any descriptors are messages or errors, and leave nothing open.
//!
//! The input is packets: a byte of which bits 0 and 1 are how many descriptors go with it, bit 2 asks for a right magic, version and
//! checksum, bit 3 for the right sequence number too; two bytes of length; the packet.

use std::time::Duration;

use cuda_mem_ipc::Error;
use cuda_mem_ipc::transport::MAX_FRAME;

use super::frame::repair;
use crate::raw::{Raw, Watched, frame_with};

/// How many messages were received.
pub(crate) fn check(mut input: &[u8]) -> usize {
    let (raw, connection) = Raw::connected();
    let watched = Watched::new();
    // The hello was 0. A message that lost its descriptors has used its number too.
    let (mut next, mut received) = (1, 0);
    while let Some((&[control, low, high], rest)) = input.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([low, high])) % (MAX_FRAME + 8);
        let (packet, rest) = rest.split_at(length.min(rest.len()));
        input = rest;
        if packet.is_empty() {
            break;
        }
        let mut packet = packet.to_vec();
        if let Some(sequence) = packet.get_mut(8..16).filter(|_| control & 8 != 0) {
            sequence.copy_from_slice(&u64::to_le_bytes(next));
        }
        if control & 12 != 0 {
            repair(&mut packet);
        }
        let attached = usize::from(control & 3);
        raw.send(&packet, &vec![watched.descriptor(); attached]);
        match connection.recv(Duration::ZERO) {
            Ok(message) if packet[22] == 0 => {
                assert_eq!(message.descriptors.len(), attached);
                assert_eq!(frame_with(message.kind, next, &message.payload, attached), packet);
                received += 1;
            }
            // By number it may have named descriptors that this process really has.
            Ok(_) => received += 1,
            Err(Error::DescriptorNotTaken { .. }) => {}
            Err(error) => {
                assert!(!error.is_timeout() && !error.is_gone(), "{error}");
                assert!(matches!(connection.recv(Duration::ZERO), Err(Error::Broken)));
                break;
            }
        }
        next += 1;
    }
    drop(connection);
    watched.expect_closed();
    received
}
