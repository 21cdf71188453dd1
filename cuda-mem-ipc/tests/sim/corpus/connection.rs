//! Any packets with any descriptors are messages or errors, and leave nothing open.
//!
//! The input is packets: a byte of which bits 0 and 1 are how many descriptors go with it, bits 2 and 3 ask for a right magic, version and
//! length; two bytes of length; the packet.

use std::time::Duration;

use cuda_mem_ipc::Error;
use cuda_mem_ipc::transport::MAX_FRAME;

use super::frame::repair;
use crate::raw::{Raw, Watched, frame_with};

/// How many messages were received.
pub(crate) fn check(mut input: &[u8]) -> usize {
    let (raw, connection) = Raw::connected();
    let watched = Watched::new();
    let mut received = 0;
    while let Some((&[control, low, high], rest)) = input.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([low, high])) % (MAX_FRAME + 8);
        let (packet, rest) = rest.split_at(length.min(rest.len()));
        input = rest;
        if packet.is_empty() {
            break;
        }
        let mut packet = packet.to_vec();
        if control & 12 != 0 {
            repair(&mut packet);
        }
        let attached = usize::from(control & 3);
        raw.send(&packet, &vec![watched.descriptor(); attached]);
        match connection.recv(Duration::ZERO) {
            Ok(message) => {
                assert_eq!(message.descriptors.len(), attached);
                assert_eq!(frame_with(message.kind, &message.payload, attached), packet);
                received += 1;
            }
            Err(error) => {
                assert!(!error.is_timeout() && !error.is_gone(), "{error}");
                assert!(matches!(connection.recv(Duration::ZERO), Err(Error::Broken)));
                break;
            }
        }
    }
    drop(connection);
    watched.expect_closed();
    received
}
