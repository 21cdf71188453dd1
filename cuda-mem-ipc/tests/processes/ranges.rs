//! Copies of what is shared, received and exported, by its typed range: in order, and without an address.

use cuda_mem_core::{DeviceBuffer, Error as CoreError};
use cuda_mem_ipc::Error;
use cuda_mem_ipc::shared::{Exportable, Exporter, Importer, MemoryKind, Share, SharedPool};
use cuda_mem_pool::MemoryResource;
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};

use crate::common::World;
use crate::common::gate::Gate;
use crate::common::pair::{self, Channel, test_name};
use crate::link::{LIMIT, eventually, export_to, import_from, invite, invited, kinds, options};

const LEN: usize = 1000;

/// Reads each buffer by one stream, and writes its square there by another one.
fn receiver(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let (reading, writing) = (world.new_stream(), world.new_stream());
    while let Ok(buffer) = importer.recv(LIMIT) {
        let range = buffer.as_range::<u32>().unwrap();
        let mut found = vec![0; range.len()];
        range.copy_to_slice(&reading, &mut found).unwrap();
        found.iter_mut().for_each(|value| *value *= *value);
        let squares = DeviceBuffer::from_slice(&writing, &found).unwrap();
        range.copy_from(&writing, &squares.whole()).unwrap();
    }
    assert_eq!(world.driver.release_failures(), 0);
}

#[test]
fn what_is_shared_is_copied_by_ranges_behind_the_work_of_both_processes() {
    pair::play_beside(test_name!(), &[("receiver", receiver)], |cast| {
        let world = World::new();
        let peer = cast.start("receiver");
        let (exporter, stream) = (export_to(&world, &peer), world.new_stream());
        let values: Vec<u32> = (0..LEN as u32).collect();
        let squares: Vec<u32> = values.iter().map(|value| value * value).collect();
        for kind in kinds(&world) {
            let pool = SharedPool::new(&world.context, &options(kind, 2 << 20)).unwrap();
            let buffer = pool.allocate(4 * LEN + 3, &stream).unwrap();
            assert_eq!(buffer.as_range::<u32>().unwrap().len(), LEN);
            // The receiver has it while the work before the copy is held up.
            let gate = Gate::before(&stream);
            let source = DeviceBuffer::from_slice(&world.stream, &values).unwrap();
            buffer.as_range::<u32>().unwrap().copy_from(&stream, &source.whole()).unwrap();
            exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
            gate.open();
            exporter.returned(LIMIT).unwrap();
            // Behind the receiver's last write, by a stream that knows nothing of it.
            let mut found = vec![0; LEN];
            buffer.as_range::<u32>().unwrap().copy_to_slice(&world.stream, &mut found).unwrap();
            assert!(found == squares, "{kind:?}");
        }
        let allocator = CachingAllocator::new(&world.context, &CachingOptions::default()).unwrap();
        let block = allocator.allocate(4 * LEN, &stream).unwrap();
        let exported = Exportable::new(&allocator, block).unwrap();
        exported.as_range::<u32>().unwrap().copy_from_slice(&stream, &values).unwrap();
        exporter.hand_over(Share::from(&exported), &stream, LIMIT).unwrap();
        exporter.returned(LIMIT).unwrap();
        let mut found = vec![0; LEN];
        exported.as_range::<u32>().unwrap().copy_to_slice(&world.stream, &mut found).unwrap();
        assert!(found == squares);
        drop(exporter);
        peer.finish();
    });
}

/// Hands over what it never finishes, until it is killed.
fn unfinished(first: &Channel) {
    let world = World::new();
    let exporter = Exporter::new(&world.context, invited(first), LIMIT).unwrap();
    let pool = SharedPool::new(&world.context, &options(MemoryKind::Device, 2 << 20)).unwrap();
    let stream = world.new_stream();
    let buffer = pool.allocate(LEN, &stream).unwrap();
    let gate = Gate::before(&stream);
    exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
    first.send(b"handed over", &[]);
    first.receive();
    gate.open();
}

#[test]
fn a_copy_of_what_a_dead_exporter_has_not_finished_is_refused_by_its_own_error() {
    pair::play_beside(test_name!(), &[("exporter", unfinished)], |cast| {
        let world = World::new();
        let mut peer = cast.start("exporter");
        let importer = Importer::new(&world.context, invite(&peer), LIMIT).unwrap();
        let buffer = importer.recv(LIMIT).unwrap();
        assert_eq!(peer.receive().bytes, b"handed over");
        assert!(!buffer.is_ready().unwrap());
        peer.kill();
        eventually("the death is noticed", || buffer.is_ready().is_err());
        let target = DeviceBuffer::<u8>::zeroed(&world.stream, buffer.len()).unwrap();
        let refused = target.whole().copy_from(&world.stream, &buffer.as_range().unwrap());
        let Err(error @ CoreError::Owner(_)) = refused else { panic!("{refused:?}") };
        let text = error.to_string();
        let error = Error::from(error);
        assert!(matches!(error, Error::PeerDied { .. }) && error.to_string() == text, "{error:?}");
    });
}
