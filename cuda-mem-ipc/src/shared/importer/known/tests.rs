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
