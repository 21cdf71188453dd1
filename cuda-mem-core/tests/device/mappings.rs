//! File mappings: registered, copied from, never touched by the host.

use std::fs::File;

use cuda_mem_core::host::{FileMapping, HostMemory, RegisterFlags, Registered};
use cuda_mem_core::{DeviceBuffer, Error, scope};

use crate::common::files::TempFile;
use crate::common::outcome::{Outcome, record};
use crate::common::{Backend, World, backend, pattern};

const LEN: usize = 5 * 4096 + 17;

/// Registers a mapping and copies it to the device; what the driver and the kernel do not take is an error, and recorded.
fn register_and_copy(world: &World, mapping: FileMapping, expected: &[u8]) -> Result<(), Error> {
    let registered = Registered::new(&world.context, mapping, RegisterFlags::default())?;
    let device = DeviceBuffer::<u8>::zeroed(&world.stream, expected.len())?;
    scope(&world.context, |scope| {
        scope.upload_bytes(&world.stream, &registered, 0..expected.len(), &device.whole())
    })?;
    assert!(device.to_vec(&world.stream)? == expected);
    drop(registered.close()?);
    Ok(())
}

#[test]
fn files_in_memory_can_be_registered() {
    let world = World::new();
    let bytes = pattern(LEN, 1);
    let file = TempFile::on_tmpfs(&bytes);
    let private = register_and_copy(&world, FileMapping::private(&file.open()).unwrap(), &bytes);
    record!("private", &private);
    private.unwrap();
    let shared = register_and_copy(&world, FileMapping::shared(&file.open_for_writing()).unwrap(), &bytes);
    record!("shared", &shared);
    shared.unwrap();
    let read_only = register_and_copy(&world, FileMapping::read_only(&file.open()).unwrap(), &bytes);
    record!("read-only", &read_only);
    assert!(matches!(read_only, Ok(()) | Err(Error::Unsupported { .. })), "{read_only:?}");
}

#[test]
fn files_on_a_disk_can_be_registered_where_the_kernel_lets_them() {
    let world = World::new();
    let bytes = pattern(LEN, 2);
    let file = TempFile::on_disk(&bytes);
    let private = register_and_copy(&world, FileMapping::private(&file.open()).unwrap(), &bytes);
    record!("private", &private);
    private.unwrap();
    for (name, mapping) in [
        ("shared", FileMapping::shared(&file.open_for_writing()).unwrap()),
        ("read-only", FileMapping::read_only(&file.open()).unwrap()),
    ] {
        let result = register_and_copy(&world, mapping, &bytes);
        record!(name, &result);
        let refused = |error: &Error| matches!(error, Error::Unsupported { .. }) || error.code().is_some();
        assert!(result.as_ref().err().is_none_or(refused), "{name}: {}", result.line());
    }
}

#[test]
fn a_file_that_shrank_is_an_error_and_no_signal() {
    let world = World::new();
    let file = TempFile::on_tmpfs(&pattern(LEN, 3));
    let writable = file.open_for_writing();
    let mapping = FileMapping::shared(&writable).unwrap();
    writable.set_len(4096).unwrap();
    let refused = Registered::new(&world.context, mapping, RegisterFlags::default()).unwrap_err();
    record!("shrunk", &refused.error);
    assert!(refused.error.code().is_some(), "{}", refused.error);
    assert_eq!(refused.owner.byte_len(), LEN);
}

#[test]
fn a_file_that_shrinks_while_it_is_registered_hurts_nobody() {
    let world = World::new();
    // Small pieces the host would load, so they are read from the file; large ones the device reads from pages it holds.
    // The simulator cannot hold pages of a file that has become shorter: there a large piece is a fault of the device.
    let sizes = if backend() == Backend::Gpu {
        &[("small", LEN), ("large", 50 * LEN)][..]
    } else {
        &[("small", LEN)]
    };
    for &(name, len) in sizes {
        let bytes = pattern(len, 4);
        let file = TempFile::on_tmpfs(&bytes);
        let writable = file.open_for_writing();
        let mapping = FileMapping::shared(&writable).unwrap();
        let registered = Registered::new(&world.context, mapping, RegisterFlags::default()).unwrap();
        writable.set_len(4096).unwrap();
        let device = DeviceBuffer::<u8>::zeroed(&world.stream, len).unwrap();
        let result = scope(&world.context, |scope| {
            scope.upload_bytes(&world.stream, &registered, 0..len, &device.whole())
        });
        record!(name, &result);
        match (name, result) {
            ("large", Ok(())) => assert!(device.to_vec(&world.stream).unwrap()[..4096] == bytes[..4096]),
            ("small", Err(Error::Io { call: "pread", .. })) => {}
            (_, other) => panic!("{name}: {other:?}"),
        }
        drop(registered.close().unwrap());
    }
}

#[test]
fn a_file_goes_to_a_device_in_pieces_wherever_they_begin() {
    let world = World::new();
    let (skipped, len) = (4096 + 3, (32 << 20) + LEN);
    let bytes = pattern(skipped + len, 5);
    let mapping = FileMapping::private(&TempFile::on_tmpfs(&bytes).open()).unwrap();
    let device = DeviceBuffer::<u8>::zeroed(&world.stream, len).unwrap();
    scope(&world.context, |scope| {
        scope.upload_bytes(&world.stream, &mapping, skipped..skipped + len, &device.whole())
    })
    .unwrap();
    assert!(device.to_vec(&world.stream).unwrap() == bytes[skipped..]);
}

#[test]
fn what_is_no_file_with_bytes_is_an_error_or_empty() {
    let world = World::new();
    let folder = FileMapping::read_only(&File::open("/").unwrap()).unwrap_err();
    assert!(matches!(&folder, Error::Io { call: "mmap", .. }), "{folder}");
    let empty = FileMapping::read_only(&TempFile::on_tmpfs(&[]).open()).unwrap();
    assert_eq!(empty.byte_len(), 0);
    let flags = RegisterFlags::default();
    let registered = Registered::new(
        &world.context,
        FileMapping::private(&TempFile::on_tmpfs(&[]).open()).unwrap(),
        flags,
    );
    assert_eq!(registered.unwrap().close().unwrap().byte_len(), 0);
    let unwritable = FileMapping::shared(&TempFile::on_tmpfs(&[1; 10]).open()).unwrap_err();
    assert!(matches!(&unwritable, Error::Io { call: "mmap", .. }), "{unwritable}");
}

#[test]
fn a_private_mapping_does_not_write_the_file() {
    let world = World::new();
    let bytes = pattern(LEN, 5);
    let file = TempFile::on_tmpfs(&bytes);
    let mapping = FileMapping::private(&file.open()).unwrap();
    let registered = Registered::new(&world.context, mapping, RegisterFlags::default()).unwrap();
    assert!(registered.is_writable());
    drop(registered);
    assert!(std::fs::read(file.path()).unwrap() == bytes);
}
