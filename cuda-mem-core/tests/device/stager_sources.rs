//! Staged copies of files and readers, and what happens when they fail.

use std::io::{self, Read, Seek};
use std::panic::{AssertUnwindSafe, catch_unwind};

use cuda_mem_core::copy::Stager;
use cuda_mem_core::{DeviceBuffer, Error};

use crate::common::files::TempFile;
use crate::common::gate::Gate;
use crate::common::outcome::record;
use crate::common::{World, pattern};

const SLOT: usize = 32 << 10;

fn small(world: &World) -> Stager {
    Stager::builder(&world.context).threads(3).slots(3).slot_bytes(SLOT).build().unwrap()
}

#[test]
fn files_are_read_from_any_offset() {
    let world = World::new();
    let (stager, stream) = (small(&world), &world.stream);
    let bytes = pattern(10 * SLOT + 17, 1);
    for temporary in [TempFile::on_tmpfs(&bytes), TempFile::on_disk(&bytes)] {
        let mut file = temporary.open();
        for (offset, len) in [(0, bytes.len()), (1, 0), (1, 1), (4095, 70_000), (17, 10 * SLOT)] {
            let device = DeviceBuffer::<u8>::zeroed(stream, len).unwrap();
            stager.upload_file(stream, &file, offset as u64, &device.whole()).unwrap();
            assert!(device.to_vec(stream).unwrap() == bytes[offset..offset + len], "{len} at {offset}");
        }
        assert_eq!(file.stream_position().unwrap(), 0);
    }
}

#[test]
fn a_file_that_ends_early_says_where_and_the_stager_goes_on() {
    let world = World::new();
    let (stager, stream) = (small(&world), &world.stream);
    let bytes = pattern(5 * SLOT + 3, 2);
    let temporary = TempFile::on_tmpfs(&bytes);
    let device = DeviceBuffer::<u8>::zeroed(stream, 8 * SLOT).unwrap();
    for offset in [0, 7, bytes.len(), bytes.len() + 100] {
        let result = stager.upload_file(stream, &temporary.open(), offset as u64, &device.whole());
        record!("ends early", &result);
        let Err(Error::Source { at, total, source }) = result else { panic!("{result:?}") };
        assert_eq!(at, bytes.len().saturating_sub(offset) as u64);
        assert_eq!((total, source.kind()), (8 * SLOT as u64, io::ErrorKind::UnexpectedEof));
    }
    for offset in [u64::MAX, i64::MAX as u64] {
        let result = stager.upload_file(stream, &temporary.open(), offset, &device.whole());
        assert!(matches!(result, Err(Error::Source { at: 0, .. })), "{result:?}");
    }
    let folder = std::fs::File::open("/").unwrap();
    let error = stager.upload_file(stream, &folder, 0, &device.whole()).unwrap_err();
    assert!(error.to_string().contains("failed at byte 0"), "{error}");
    let part = device.range(..bytes.len()).unwrap();
    stager.upload_file(stream, &temporary.open(), 0, &part).unwrap();
    assert!(device.to_vec(stream).unwrap()[..bytes.len()] == bytes);
}

#[test]
fn a_file_that_is_cut_short_meanwhile_says_where() {
    let world = World::new();
    let (stager, stream) = (small(&world), world.new_stream());
    let (bytes, short) = (pattern(12 * SLOT, 6), SLOT + 5);
    for temporary in [TempFile::on_tmpfs(&bytes), TempFile::on_disk(&bytes)] {
        let device = DeviceBuffer::<u8>::zeroed(&stream, bytes.len()).unwrap();
        stream.synchronize().unwrap();
        let (file, writer) = (temporary.open(), temporary.open_for_writing());
        // No more is read than the ring has room for while the stream is held up.
        let gate = Gate::before(&stream);
        let result = std::thread::scope(|scope| {
            let upload = scope.spawn(|| stager.upload_file(&stream, &file, 0, &device.whole()));
            writer.set_len(short as u64).unwrap();
            gate.open();
            upload.join().unwrap()
        });
        let Err(Error::Source { at, total, source }) = result else { panic!("{result:?}") };
        assert_eq!((total, source.kind()), (bytes.len() as u64, io::ErrorKind::UnexpectedEof));
        let at = usize::try_from(at).unwrap();
        assert!((short..=3 * SLOT).contains(&at), "{at}");
        let sent = at / SLOT * SLOT;
        assert!(device.to_vec(&stream).unwrap()[..sent] == bytes[..sent], "{at}");
    }
}

/// What a read does when all bytes were read.
type End = fn() -> io::Result<usize>;

/// Yields `bytes` in reads of at most `step`, and then does what `end` does.
struct Source<'s> {
    bytes: &'s [u8],
    step: usize,
    interrupt: bool,
    end: End,
}

impl Read for Source<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        self.interrupt = !self.interrupt;
        if self.interrupt {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if self.bytes.is_empty() {
            return (self.end)();
        }
        let len = self.step.min(target.len());
        self.bytes.read(&mut target[..len])
    }
}

fn source(bytes: &[u8], end: End) -> Source<'_> {
    Source { bytes, step: 1009, interrupt: false, end }
}

#[test]
fn a_reader_is_read_as_far_as_the_target_goes() {
    let world = World::new();
    let (stager, stream) = (small(&world), &world.stream);
    let bytes = pattern(9 * SLOT + 5, 3);
    let device = DeviceBuffer::<u8>::zeroed(stream, bytes.len() - 2).unwrap();
    let mut reader = source(&bytes, || Ok(0));
    stager.upload_from(stream, &mut reader, &device.whole()).unwrap();
    assert!(device.to_vec(stream).unwrap() == bytes[..bytes.len() - 2]);
    assert_eq!(reader.bytes, &bytes[bytes.len() - 2..]);
    let one: &mut dyn Read = &mut &bytes[..];
    stager.upload_from(stream, one, &device.range(..1).unwrap()).unwrap();
}

#[test]
fn a_reader_that_fails_half_way_says_where() {
    let world = World::new();
    let (stager, stream) = (small(&world), &world.stream);
    let bytes = pattern(4 * SLOT + 5, 4);
    let device = DeviceBuffer::<u8>::zeroed(stream, 9 * SLOT).unwrap();
    let ends: [(End, io::ErrorKind); 3] = [
        (|| Ok(0), io::ErrorKind::UnexpectedEof),
        (|| Err(io::ErrorKind::ConnectionReset.into()), io::ErrorKind::ConnectionReset),
        (|| Ok(usize::MAX), io::ErrorKind::InvalidData),
    ];
    for (end, kind) in ends {
        let result = stager.upload_from(stream, &mut source(&bytes, end), &device.whole());
        record!("fails", &result);
        let Err(Error::Source { at, total, source }) = result else { panic!("{result:?}") };
        assert_eq!((at, total, source.kind()), (bytes.len() as u64, 9 * SLOT as u64, kind));
        // What was sent before has its bytes, and nothing else has come after.
        let device = device.to_vec(stream).unwrap();
        assert!(device[..4 * SLOT] == bytes[..4 * SLOT] && device[5 * SLOT..] == vec![0; 4 * SLOT]);
    }
}

#[test]
fn a_reader_that_panics_takes_nothing_with_it() {
    let world = World::new();
    let (stager, stream) = (small(&world), &world.stream);
    let bytes = pattern(4 * SLOT + 5, 5);
    let device = DeviceBuffer::<u8>::zeroed(stream, bytes.len() + 1).unwrap();
    for _ in 0..5 {
        let mut reader = source(&bytes, || panic!("the reader's own"));
        let upload = || stager.upload_from(stream, &mut reader, &device.whole());
        let panic = catch_unwind(AssertUnwindSafe(upload)).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"the reader's own"));
    }
    let part = device.range(..bytes.len()).unwrap();
    stager.upload_from(stream, &mut &bytes[..], &part).unwrap();
    let mut target = vec![0; bytes.len()];
    stager.download(stream, &part, &mut target).unwrap();
    assert!(target == bytes);
}

#[test]
fn a_reader_may_use_the_stager_itself() {
    struct Nested<'s>(&'s Stager, &'s DeviceBuffer<u8>, &'s cuda_mem_core::Stream);
    impl Read for Nested<'_> {
        fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
            let bytes = vec![8; self.1.len()];
            self.0.upload(self.2, &bytes, &self.1.whole()).map_err(io::Error::other)?;
            target.fill(9);
            Ok(target.len())
        }
    }
    let world = World::new();
    // One slot, which the outer copy holds while the inner one wants it.
    let stager = Stager::builder(&world.context).threads(2).slots(1).slot_bytes(SLOT).build().unwrap();
    let stream = &world.stream;
    let (outer, inner) = (
        DeviceBuffer::<u8>::zeroed(stream, 3 * SLOT).unwrap(),
        DeviceBuffer::<u8>::zeroed(stream, 3 * SLOT).unwrap(),
    );
    stager.upload_from(stream, &mut Nested(&stager, &inner, stream), &outer.whole()).unwrap();
    assert!(outer.to_vec(stream).unwrap() == vec![9; 3 * SLOT]);
    assert!(inner.to_vec(stream).unwrap() == vec![8; 3 * SLOT]);
}
