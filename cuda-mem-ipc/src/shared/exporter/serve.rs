//! What receivers have, and what an exporter hears of them, on the thread that looks after peers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::ExportLink;
use crate::background::{self, DROPS, drop_in_background};
use crate::error::{Error, Result};
use crate::primitive::lock;
use crate::shared::buffer::Holder;
use crate::shared::reaper::{self, Urgent, Watched};
use crate::shared::wire::{self, Release};
use crate::shared::words::ReleaseFence;
use crate::shared::{Counted, MOST_AT_A_TIME, heard, protocol, ring, say, unreadable};
use crate::transport::Connection;

#[derive(Default)]
pub(super) struct Leases {
    next: u64,
    pub(super) open: HashMap<u64, Lease>,
    are_over: bool,
}

/// A buffer that a receiver has, kept until its release has come.
pub(super) struct Lease {
    holder: Arc<dyn Holder>,
    /// Last: who sees that it has ended finds the buffer back.
    _count: Counted,
}

impl ExportLink {
    /// Refused, the holder is dropped behind the lock, as arguments are: a buffer may end with it.
    pub(super) fn lease(&self, holder: Arc<dyn Holder>) -> Result<u64> {
        let mut leases = lock(&self.leases);
        if leases.are_over {
            return Err(Error::PeerDied { pid: self.connection.peer().pid() });
        }
        let sequence = leases.next;
        leases.next = sequence.wrapping_add(1);
        let (_count, _) = Counted::new(&self.out, 1);
        leases.open.insert(sequence, Lease { holder, _count });
        Ok(sequence)
    }

    /// The caller drops it outside the lock: a buffer may end with it.
    pub(super) fn end_lease(&self, sequence: u64) -> Option<Lease> {
        lock(&self.leases).open.remove(&sequence)
    }

    /// Whether no lease is out any more, nor will be.
    fn is_let_go(&self) -> bool {
        !self.is_open.load(Ordering::SeqCst) && self.out.load(Ordering::SeqCst) == 0
    }

    /// Ends leases. What waits with one of them holds up those behind it, and nobody else's.
    fn let_go(self: Arc<Self>, leases: Vec<Lease>) {
        if !leases.is_empty() {
            DROPS.run(move || {
                drop(leases);
                if !self.is_open.load(Ordering::SeqCst) {
                    reaper::wake();
                }
            });
        }
    }

    /// The leases that have `ended`. Buffers, and all that they have, may end with them and wait for streams: not here.
    fn take_releases(&self, ended: &mut Vec<Lease>) -> Result<()> {
        let connection = &self.connection;
        let mut releases = lock(&self.releases);
        for _ in 0..MOST_AT_A_TIME {
            let what = "it has put more into the ring than there is room for";
            let Some(entry) = releases.peek().map_err(|_| protocol(connection, what))? else { break };
            releases.advance();
            let Release { sequence, fence: point } =
                Release::of_entry(entry).map_err(unreadable(connection))?;
            let none = || protocol(connection, "it releases what it does not have");
            let lease = self.end_lease(sequence).ok_or_else(none)?;
            if point.generation > 0 {
                let words = Arc::clone(&self.words);
                words.expect(point);
                lease.holder.released(ReleaseFence { words, point });
            }
            ended.push(lease);
        }
        Ok(())
    }

    fn take_messages(&self) -> Result<()> {
        for _ in 0..MOST_AT_A_TIME {
            let (message, descriptors) = match heard(&self.connection, Duration::ZERO) {
                Err(error) if error.is_timeout() => return Ok(()),
                result => result?,
            };
            match message {
                wire::Message::Ring if descriptors.is_empty() => {}
                wire::Message::LetGo { segment: wire::ALL } if descriptors.is_empty() => {
                    // Nobody tells it of another one behind this.
                    let _announced = lock(&self.announced);
                    let _ = self.ended.set(Error::Closed { doing: "handing over" });
                    drop_in_background(std::mem::take(&mut *lock(&self.slabs)));
                }
                wire::Message::LetGo { segment } if descriptors.is_empty() => {
                    let slab = lock(&self.slabs).remove(&segment);
                    let none = || protocol(&self.connection, "it lets go of what it does not have");
                    let slab = slab.ok_or_else(none)?;
                    // If it does so of its own accord, it has to be told anew.
                    lock(&self.announced).remove(&segment);
                    drop_in_background(slab);
                }
                _ => return Err(protocol(&self.connection, "an importer does not say that")),
            }
        }
        Ok(())
    }
}

impl Watched for ExportLink {
    fn connection(&self) -> &Connection {
        &self.connection
    }

    fn service(self: Arc<Self>, _urgent: &mut Vec<Urgent>) -> Result<()> {
        ring::awake(&self.wake_flag);
        // Both, whatever the other says: what a peer has given back counts, and is in the ring before its end is heard.
        let (heard, mut ended) = (self.take_messages(), Vec::new());
        let taken = self.take_releases(&mut ended).and(heard);
        Arc::clone(&self).let_go(ended);
        if let Some(error) = taken.as_ref().err().filter(|error| !error.is_the_system_s()) {
            let _ = self.ended.set(error.clone());
            // Long before the leases end: a peer that lives reads nothing then of what is written anew.
            self.words.give_up();
            return taken;
        }
        if self.is_let_go() {
            // Without leases nobody needs the segments there.
            let mut announced = lock(&self.announced);
            let slabs = lock(&self.slabs);
            let retiring = slabs.keys().copied().filter(|segment| announced.remove(segment).is_some());
            lock(&self.retiring).extend(retiring);
        }
        let mut retiring = lock(&self.retiring);
        while let Some(&segment) = retiring.last()
            && say(&self.connection, &wire::Message::Retire { segment }, &[], Duration::ZERO).is_ok()
        {
            retiring.pop();
        }
        taken
    }

    fn may_sleep(&self) -> bool {
        let position = lock(&self.releases).position();
        ring::prepare_sleep(&self.wake_flag, position).is_some()
    }

    fn is_restless(&self) -> bool {
        !lock(&self.retiring).is_empty() || self.is_let_go()
    }

    fn ends_well(&self) -> bool {
        // As long as the peer has to reach something, it is watched. Whoever tells it of a segment just now ends first.
        let is_done = self.is_let_go() && self.words.expected_are_reached() && {
            let _announced = lock(&self.announced);
            lock(&self.slabs).is_empty()
        };
        if is_done {
            // All that it has said it would reach was reached just now, and it can take that back.
            self.words.end();
        }
        is_done
    }

    fn end(self: Arc<Self>) {
        let _ = self.ended.set(Error::PeerExited { pid: self.connection.peer().pid() });
        // First, so that whoever gets the memory next does not wait for the dead.
        self.words.end();
        let held = {
            let mut leases = lock(&self.leases);
            leases.are_over = true;
            std::mem::take(&mut leases.open)
        };
        let (slabs, peer) = (std::mem::take(&mut *lock(&self.slabs)), Arc::clone(self.connection.peer()));
        if !slabs.is_empty() {
            // A process that lives may have them imported, and nobody hears of its free any more.
            background::until(move || {
                let _kept = &slabs;
                matches!(peer.is_alive(), Ok(false))
            });
        }
        self.let_go(held.into_values().collect());
    }
}
