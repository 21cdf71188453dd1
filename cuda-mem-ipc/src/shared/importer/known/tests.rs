use std::os::fd::AsFd;
use std::thread;
use std::time::Instant;

use cuda_mem_pool::cuda_mem_core::host::SharedMapping;
use cuda_mem_pool::cuda_mem_core::{FenceLine, Stream};

use super::*;
use crate::shared::ends::ends;

/// One comes by each socket, and both were looked for before either was entered.
#[test]
fn the_second_segment_of_a_number_does_not_take_the_first_one_s_place() {
    let (_exporter, importer) = ends();
    let refused = |error| Known::Refused { error, is_slab: false };
    importer.link.enter(7, refused(Error::BlockImported)).unwrap();
    let twice = importer.link.enter(7, refused(Error::Broken));
    assert!(matches!(twice, Err(Error::Protocol { .. })), "{twice:?}");
    let segments = lock(&importer.link.segments);
    assert!(matches!(segments.get(&7), Some(Known::Refused { error: Error::BlockImported, .. })));
}

/// Says that there is host memory of its own behind a number, and gives what has become of it.
fn learn_of_host_memory(link: &Arc<ImportLink>, segment: u64) -> Option<Error> {
    let memory = SharedMapping::create(4096).unwrap();
    memory.write(0, &[1]).unwrap();
    let bytes = memory.bytes() as u64;
    let said = wire::Segment { segment, generation: 1, bytes, place: wire::Place::Host };
    link.learn(&said, vec![memory.as_fd().try_clone_to_owned().unwrap()]).unwrap();
    match lock(&link.segments).get(&segment) {
        Some(Known::Refused { error, .. }) => Some(error.clone()),
        _ => None,
    }
}

/// Nothing is unpinned while a stream is busy.
#[test]
fn host_memory_that_was_retired_counts_until_it_is_pinned_no_more() {
    const LIMIT: Duration = Duration::from_secs(60);
    let (_exporter, importer) = ends();
    let link = &importer.link;
    let others = Counted::new(&link.pinned, MOST_SEGMENTS - 1);
    let (stream, gate) = (Stream::new(&link.context).unwrap(), FenceLine::new(&link.context).unwrap());
    gate.fence(1).unwrap().hold_up(&stream).unwrap();
    let mapped = learn_of_host_memory(link, 1);
    assert!(mapped.is_none(), "{mapped:?}");
    link.forget(1).unwrap();
    let start = Instant::now();
    while link.context.driver().registrations_left() == 0 && start.elapsed() < LIMIT {
        thread::yield_now();
    }
    let refused = learn_of_host_memory(link, 2);
    gate.poison();
    assert!(matches!(refused, Some(Error::TooManyPinned { most: MOST_SEGMENTS })), "{refused:?}");
    while link.pinned.load(Ordering::SeqCst) >= MOST_SEGMENTS && start.elapsed() < LIMIT {
        thread::yield_now();
    }
    let mapped = learn_of_host_memory(link, 3);
    assert!(mapped.is_none(), "{mapped:?}");
    drop(others);
}
