use std::sync::mpsc;
use std::thread;

use super::*;
use crate::shared::ends::ends;
use crate::shared::reaper::Watched as _;
use crate::shared::wire::Place;

/// How long is waited for what must not happen.
const SHORT: Duration = Duration::from_millis(100);

/// The exporter ends while its pool tells of a new segment. Were the link let go of, nobody would hear that the importer is done with it.
#[test]
fn a_link_is_not_done_while_a_segment_is_told_of() {
    let (exporter, _importer) = ends();
    let link = Arc::clone(&exporter.link);
    let (answer, answered) = mpsc::channel();
    let face = Face::new(1, Place::Host);
    let told = link.announce_ahead(&face, |_| {
        drop(exporter);
        let link = Arc::clone(&link);
        thread::spawn(move || answer.send(link.is_done()));
        assert!(answered.recv_timeout(SHORT).is_err(), "it looked beside what is being told");
        Err(Error::Closed { doing: "telling of a segment" })
    });
    assert!(matches!(told, Err(Error::Closed { .. })), "{told:?}");
    assert!(answered.recv().unwrap(), "nothing was told after all");
}

/// The other way round: the exporter ends while the lock is awaited.
#[test]
fn nothing_is_told_of_once_the_exporter_has_ended() {
    let (exporter, _importer) = ends();
    let link = Arc::clone(&exporter.link);
    let announced = lock(&link.announced);
    let telling = thread::spawn({
        let link = Arc::clone(&link);
        move || link.announce_ahead(&Face::new(1, Place::Host), |_| panic!("it is told"))
    });
    // So that a look before the lock would come before the end.
    thread::sleep(SHORT);
    drop(exporter);
    drop(announced);
    assert!(!telling.join().unwrap().unwrap());
}
