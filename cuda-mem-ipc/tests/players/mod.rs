//! A connection whose memory anybody writes to, played from bytes: for this crate's tests, and for the fuzz target `ring`.
//!
//! An exporter and an importer do what programs have them do, on one thread and without the one that looks after peers. In between
//! somebody writes into the memory of both whatever a peer could. Nothing may panic, loop or wait; what comes is an error that says why, or
//! a buffer that a message could have brought as well. As long as nobody has written, everything comes once and in order, and whoever
//! sleeps is called.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what must not happen is to be seen"
)]

mod input;
mod play;

use std::fmt;
use std::thread;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::{Context, Stream};

use crate::error::Result;
use crate::shared::{
    Exporter, Importer, MemoryKind, ReceivedBuffer, SharedBuffer, SharedPool, SharedPoolOptions,
};
use crate::transport::{Connection, PeerPolicy, Pending, pair};
use input::Input;
use play::Play;

/// Far longer than anything takes that has to happen.
const LIMIT: Duration = Duration::from_secs(60);

/// Bytes of each of the two segments.
const SEGMENT: usize = 2 << 20;

/// Of a longer input the rest says nothing: it would take time, and show nothing more.
const MOST_BYTES: usize = 1024;

/// Bits of an input's first byte: the exporter takes the importer to be in another process, and only both of them write.
const TO_ANOTHER: u8 = 1;
const NOBODY_WRITES: u8 = 2;

/// What all plays have.
pub struct Stage {
    context: Context,
    writer: Stream,
    reader: Stream,
    buffers: [SharedBuffer; 2],
    /// A connection that is used by nobody. With it the segments stay mapped, and the threads that drop things stay.
    _audience: (Exporter, Importer, [ReceivedBuffer; 2]),
}

impl Stage {
    /// On any driver whose devices can share memory.
    ///
    /// # Errors
    ///
    /// Those of what it makes.
    pub fn new(context: &Context) -> Result<Self> {
        let (writer, reader) = (Stream::new(context)?, Stream::new(context)?);
        let options = SharedPoolOptions { kind: MemoryKind::Device, segment_bytes: SEGMENT };
        let buffer = || SharedPool::new(context, &options)?.allocate(SEGMENT, &writer);
        let buffers = [buffer()?, buffer()?];
        let (exporter, importer) =
            ends(|here| Exporter::new(context, here, LIMIT), |there| Importer::new(context, there, LIMIT));
        let (exporter, importer) = (exporter?, importer?);
        let received = buffers
            .each_ref()
            .map(|buffer| exporter.hand_over(buffer, &writer, LIMIT).and_then(|_| importer.recv(LIMIT)));
        let [first, second] = received;
        let _audience = (exporter, importer, [first?, second?]);
        Ok(Self { context: context.clone(), writer, reader, buffers, _audience })
    }

    /// Plays what the bytes say, and tells how many buffers came.
    ///
    /// # Panics
    ///
    /// If something happens that must not.
    #[must_use]
    pub fn play(&self, input: &[u8]) -> usize {
        let mut input = Input::new(input.get(..MOST_BYTES).unwrap_or(input));
        let manner = input.byte().unwrap_or_default();
        let mut play = Play::new(self, manner);
        while play.step(&mut input).is_some() {}
        play.finish()
    }
}

/// Both ends of a connection, each of which waits for the other.
fn ends<A: Send, B>(one: impl FnOnce(Connection) -> A + Send, other: impl FnOnce(Connection) -> B) -> (A, B) {
    let (here, there) = pair().unwrap();
    let policy = PeerPolicy::default();
    thread::scope(|scope| {
        let one = scope.spawn(|| one(here.complete(&policy, LIMIT).unwrap()));
        let there = Pending::inherited(there).unwrap().complete(&policy, LIMIT).unwrap();
        let other = other(there);
        (one.join().expect("it does not panic"), other)
    })
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stage").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
