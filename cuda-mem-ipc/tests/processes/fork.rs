//! A forked child has its parent's pools and may only drop them.

use cuda_mem_core::Error as CoreError;
use cuda_mem_ipc::Error;
use cuda_mem_ipc::shared::{Exporter, Importer, SharedPool, SharedPoolOptions};

use crate::common::child;
use crate::common::pair::{self, Channel, checksum, test_name};
use crate::common::{World, pattern};
use crate::link::{LIMIT, SHORT, download, eventually, export_to, import_from, upload};
use crate::raw::both_ends;

const LEN: usize = 10_000;

fn receiver(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let stream = world.new_stream();
    for _ in 0..2 {
        let buffer = importer.recv(LIMIT).unwrap();
        let mut parent = Some(buffer.clone());
        child::forked(|| {
            let inherited = parent.take().unwrap();
            expect_forked(inherited.on(&stream).map(drop))?;
            expect_forked(inherited.is_ready())?;
            expect_forked(importer.recv(LIMIT))?;
            drop(inherited);
            Ok(())
        });
        drop(parent);
        let address = buffer.on(&stream).unwrap().address();
        first.send_words(&[checksum(&download(&stream, address, LEN))]);
    }
}

fn expect_forked<T: std::fmt::Debug>(result: Result<T, Error>) -> Result<(), String> {
    match result {
        Err(Error::Core(CoreError::Forked) | Error::Forked { .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

#[test]
fn a_forked_child_gets_errors_and_harms_nobody() {
    pair::play(test_name!(), &[("receiver", receiver)], |cast| {
        let world = World::new();
        let stream = world.new_stream();
        let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
        let buffer = pool.allocate(LEN, &stream).unwrap();
        upload(&stream, buffer.as_raw(), &pattern(LEN, 1));
        let peer = cast.start("receiver");
        let exporter = export_to(&world, &peer);
        exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
        let (here, there) = both_ends();
        let mut connections = Some((here, there));
        let mut owned = Some((pool.clone(), buffer.clone()));
        child::forked(|| {
            let (here, there) = connections.take().unwrap();
            expect_forked(pool.allocate(LEN, &stream))?;
            expect_forked(buffer.on(&stream).map(drop))?;
            expect_forked(exporter.hand_over(&buffer, &stream, LIMIT))?;
            expect_forked(SharedPool::new(&world.context, &SharedPoolOptions::default()))?;
            expect_forked(Exporter::new(&world.context, here, LIMIT))?;
            expect_forked(Importer::new(&world.context, there, LIMIT))?;
            expect_forked(Exporter::listen("forked", &world.context, SHORT))?;
            expect_forked(Importer::connect("forked", &world.context, SHORT))?;
            if (pool.trim(), exporter.leases()) != (0, 0) {
                return Err("a child has no memory".into());
            }
            drop(owned.take());
            Ok(())
        });
        drop((owned, connections));
        // The parent's are as they were.
        exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
        for _ in 0..2 {
            assert_eq!(peer.receive().words(), [checksum(&pattern(LEN, 1))]);
        }
        eventually("all go back", || exporter.leases() == 0);
        peer.finish();
    });
}
