use std::io::PipeReader;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::{FenceLine, Stream};

use super::*;
use crate::error::Error;
use crate::shared::ends::{LIMIT, ends, eventually};
use crate::transport::Poller;

/// How long is waited for what must not happen.
const SHORT: Duration = Duration::from_millis(100);

/// One to keep, and what tells when nobody has it.
fn one() -> (PipeReader, OwnedFd) {
    let (reader, writer) = std::io::pipe().unwrap();
    (reader, writer.into())
}

fn is_closed(reader: &PipeReader, limit: Duration) -> bool {
    let mut poller = Poller::new();
    poller.closed((), reader);
    !poller.wait(limit).unwrap().is_empty()
}

#[test]
fn what_is_to_be_kept_no_more_is_closed_whichever_message_comes_first() {
    let (_exporter, importer) = ends();
    let link = &importer.link;
    let (early, late) = (one(), one());
    link.keep_no_more(0).unwrap();
    link.keep(early.1).unwrap();
    assert!(is_closed(&early.0, SHORT));
    link.keep(late.1).unwrap();
    link.keep_no_more(0).unwrap();
    assert!(!is_closed(&late.0, SHORT), "it is another one's number");
    link.keep_no_more(1).unwrap();
    assert!(is_closed(&late.0, SHORT));
    link.keep_no_more(1).unwrap();
}

/// Who sends one again had taken back the first, by a way that may be the slower one.
#[test]
fn what_came_again_is_kept_until_the_last_of_it_is_taken_back() {
    let (_exporter, importer) = ends();
    let link = &importer.link;
    let (keepers, keepsake) = one();
    link.keep(keepsake.try_clone().unwrap()).unwrap();
    link.keep(keepsake).unwrap();
    link.keep_no_more(0).unwrap();
    assert!(!is_closed(&keepers, SHORT));
    link.keep_no_more(1).unwrap();
    assert!(is_closed(&keepers, SHORT));
}

#[test]
fn an_exporter_that_takes_back_what_it_does_not_send_has_its_connection_ended() {
    let (_exporter, importer) = ends();
    let link = &importer.link;
    (0..MOST_KEPT as u64).for_each(|number| link.keep_no_more(number).unwrap());
    let refused = link.keep_no_more(u64::MAX);
    assert!(matches!(refused, Err(Error::Protocol { .. })), "{refused:?}");
    assert!(link.connection.is_broken());
}

/// What is kept for those before a dead exporter is closed when this process is done, whatever that one has said before.
#[test]
fn what_is_kept_when_the_exporter_is_gone_is_let_go_of_as_ever() {
    let (exporter, importer) = ends();
    let (link, (keepers, keepsake)) = (&importer.link, one());
    link.keep(keepsake).unwrap();
    drop(exporter);
    eventually("it is known to be gone", || link.is_over());
    link.keep_no_more(0).unwrap();
    assert!(is_closed(&keepers, LIMIT));
}

/// Who was before a dead exporter takes the memory as free when all have closed what they keep, whatever streams here were to tell before.
#[test]
fn what_is_kept_stays_until_what_streams_were_to_tell_is_told() {
    let (_exporter, importer) = ends();
    let link = &importer.link;
    let (stream, gate) = (Stream::new(&link.context).unwrap(), FenceLine::new(&link.context).unwrap());
    gate.fence(1).unwrap().hold_up(&stream).unwrap();
    link.words.record(&stream).unwrap();
    let kept = Kept { recorded: Recorded::of(&link.words), ..Kept::default() };
    assert!(kept.recorded.is_some());
    let mut last = Last { kept, parting: Arc::default(), driver: link.context.driver() };
    assert!(!last.has_passed(), "the stream has not come to it");
    gate.poison();
    stream.synchronize().unwrap();
    eventually("it is told", || last.has_passed());
}
