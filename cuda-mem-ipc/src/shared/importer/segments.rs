//! The segments that an exporter has announced: how they are heard of, mapped, and let go of.

use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, Weak};
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::{self as core, forked};

use super::ImportLink;
use super::give_back::MOST_UNHEARD;
use crate::background::{DROPS, drop_in_background};
use crate::error::{Error, Result};
use crate::import::{ImportError, ImportKey, Imports};
use crate::primitive::{lock, try_lock};
use crate::shared::reaper::{Urgent, Watched};
use crate::shared::segment::Segment;
use crate::shared::slab::Slab;
use crate::shared::{Counted, MOST_AT_A_TIME, heard, reaper, say, wire};
use crate::transport::{Descriptors, Peer};

/// How many segments a peer may have this process map at a time.
pub(super) const MOST_SEGMENTS: usize = 4096;

/// How many messages are read for the segment of a buffer, which came before it: far more than a socket has room for.
const MOST_BEFORE: usize = 4 * MOST_SEGMENTS;

/// How long another connection's import or release of a segment may take, whatever the deadline: who is refused stays refused.
const IMPORT: Duration = Duration::from_secs(10);

/// How many descriptors came, for all importers, of segments that are not mapped yet.
pub(super) static WAITING: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// What this process has mapped for all importers.
static IMPORTS: OnceLock<Imports<Segment>> = OnceLock::new();

pub(super) struct Known {
    link: Weak<ImportLink>,
    said: wire::Segment,
    /// Whether no buffer of it came yet, and whether it is mapped before one does.
    is_ahead: AtomicBool,
    is_early: bool,
    /// Why it could not be imported, if it could not: its buffers go back at once.
    memory: OnceLock<Result<Arc<Segment>>>,
    /// Its descriptors until they are closed, and what they add to `waiting` of the link and of all. Locked while it is imported, by a thread or by
    /// the receiver of its first buffer: whoever comes second waits.
    came: Mutex<(Descriptors, Option<[Counted; 2]>)>,
}

impl Known {
    /// Its memory, or why there is none. It is imported now, unless somebody has done so.
    fn memory(&self, link: &Arc<ImportLink>) -> Result<Arc<Segment>> {
        // Here, and not while it is imported: with an owner goes what the program has it drop, which may receive.
        link.context.driver().reclaim();
        let _reports = core::LateReports::new();
        self.memory.get_or_init(|| link.import(&self.said, &mut lock(&self.came).0)).clone()
    }

    /// Imports it, unless somebody has done so, and closes its descriptors, which nobody waits for.
    fn finish(&self, link: &Arc<ImportLink>) {
        drop(self.memory(link));
        drop(std::mem::take(&mut *lock(&self.came)));
        // There may be room for more.
        reaper::wake();
    }

    /// What is to be done of it in the background.
    pub(super) fn job(self: Arc<Self>) -> Urgent {
        Box::new(move || self.link.upgrade().into_iter().for_each(|link| self.finish(&link)))
    }

    pub(super) fn is_in_a_pool(&self) -> bool {
        self.said.place.is_in_a_pool()
    }

    /// Whether it counts against what is mapped ahead.
    fn counts(&self) -> bool {
        self.is_early && self.is_ahead.load(Ordering::SeqCst)
    }

    /// Whether it has descriptors, or somebody is about to use them: one that is being imported is locked.
    fn is_waiting(&self) -> bool {
        try_lock(&self.came).is_none_or(|came| came.1.is_some())
    }

    fn slab(&self) -> Option<&Slab> {
        self.memory.get()?.as_ref().ok()?.info.slab.as_deref()
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        // What nobody else has says so itself, when it is gone. In a child all of it is the parent's.
        if self.is_in_a_pool()
            && !forked()
            && let Some(link) = self.link.upgrade()
            && self.slab().is_none_or(|slab| slab.leave(&self.link, self.said.segment))
        {
            link.slab_is_gone(self.said.segment);
        }
    }
}

impl ImportLink {
    /// Takes what the exporter has said, by whichever thread, up to a segment that is to be mapped ahead: how many messages those were, and that
    /// segment. An error of the system may be over the next time; any other one means that nothing more comes.
    pub(super) fn read_messages(
        self: &Arc<Self>,
        mut is_needed: impl FnMut(&Self) -> bool,
    ) -> Result<(usize, Option<Arc<Known>>)> {
        let _reading = lock(&self.reading);
        let (mut count, mut early) = (0, None);
        while count < MOST_AT_A_TIME && early.is_none() && is_needed(self) {
            let (message, descriptors) = match heard(&self.connection, Duration::ZERO) {
                Err(error) if error.is_timeout() => break,
                result => result?,
            };
            match message {
                wire::Message::Segment(said) if descriptors.len() == said.descriptors() => {
                    early = self.learn(said, descriptors)?;
                }
                wire::Message::Retire { segment } if descriptors.is_empty() => self.forget(segment)?,
                _ => return Err(self.breaks("an exporter does not say that")),
            }
            count += 1;
        }
        Ok((count, early))
    }

    /// Notes a segment, and returns it unless there are enough without a buffer.
    fn learn(self: &Arc<Self>, said: wire::Segment, descriptors: Descriptors) -> Result<Option<Arc<Known>>> {
        // An importer that is at its end, or its exporter, needs none.
        let is_wanted = self.is_open.load(Ordering::SeqCst) && !self.is_over();
        let is_early = is_wanted && self.has_room_for(said.bytes);
        let waiting = [&self.waiting, &*WAITING].map(|all| Counted::new(all, descriptors.len()).0);
        let came = Mutex::new((descriptors, Some(waiting)));
        let (link, is_ahead) = (Arc::downgrade(self), AtomicBool::new(true));
        let known = Arc::new(Known { link, said, is_ahead, is_early, memory: OnceLock::new(), came });
        if known.is_in_a_pool() {
            self.slabs.fetch_add(1, Ordering::SeqCst);
        }
        let refused = {
            let mut segments = lock(&self.segments);
            let is_full = segments.len() >= MOST_SEGMENTS;
            match segments.entry(known.said.segment) {
                Entry::Vacant(place) if !is_full => {
                    place.insert(Arc::clone(&known));
                    None
                }
                Entry::Vacant(_) => Some("it announces more segments than are accepted"),
                Entry::Occupied(_) => Some("it announces a segment twice"),
            }
        };
        if let Some(what) = refused {
            return Err(self.breaks(what));
        }
        Ok(is_early.then_some(known))
    }

    fn has_room_for(&self, bytes: u64) -> bool {
        let segments = lock(&self.segments);
        let early = segments.values().filter(|known| known.counts()).map(|known| known.said.bytes);
        self.ahead_limit.has_room(bytes, early)
    }

    pub(super) fn mapped_ahead(&self) -> usize {
        let is_mapped = |known: &Known| matches!(known.memory.get(), Some(Ok(_)));
        let is_ahead = |known: &Known| known.is_ahead.load(Ordering::SeqCst) && is_mapped(known);
        lock(&self.segments).values().filter(|known| is_ahead(known)).count()
    }

    /// Maps a segment, unless this process has it. By calls of the driver, which nothing interrupts.
    fn import(self: &Arc<Self>, said: &wire::Segment, descriptors: &mut Descriptors) -> Result<Arc<Segment>> {
        let key = ImportKey::new(self.context.device(), &identity(self.connection.peer(), said));
        let import = |departure| Segment::import(&self.context, said, descriptors, departure, &self.budget);
        match IMPORTS.get_or_init(Imports::new).import(&key, IMPORT, import) {
            Ok(segment) if segment.info.is_as(said) => {
                if let Some(slab) = &segment.info.slab {
                    slab.tell(Arc::downgrade(self), said.segment);
                }
                Ok(segment)
            }
            // Somebody else's import of what the peer now says is something else.
            Ok(_) => Err(self.breaks("it announces a segment otherwise than before")),
            Err(ImportError::Failed(error)) => Err(error),
            Err(ImportError::Timeout(_)) => Err(Error::ImportBusy),
            Err(ImportError::Forked) => Err(core::Error::Forked.into()),
        }
    }

    /// The memory of a segment of which there is a buffer, or why there is none. It is imported now if it was not ahead of that.
    pub(super) fn memory(self: &Arc<Self>, number: u64) -> Result<Arc<Segment>> {
        let mut heard = 0;
        loop {
            // Without the lock behind this, which others need for other segments.
            let known = lock(&self.segments).get(&number).cloned();
            if let Some(known) = known {
                let is_first = known.is_ahead.swap(false, Ordering::SeqCst);
                let memory = known.memory(self);
                if is_first && known.is_waiting() {
                    // Nobody waits for the rest.
                    DROPS.run(known.job());
                }
                return memory;
            }
            // It was sent before the buffer, so that it is there. This thread reads it if the other one has not come to it.
            let is_missing = |link: &Self| !lock(&link.segments).contains_key(&number);
            let mut may_read = true;
            let (read, early) = self.read_messages(|link| {
                may_read = link.may_read();
                may_read && is_missing(link)
            })?;
            // The missing one is mapped here.
            let others = early.into_iter().filter(|known| known.said.segment != number);
            others.for_each(|known| DROPS.run(known.job()));
            heard += read;
            if is_missing(self) && (heard > MOST_BEFORE || (may_read && read == 0)) {
                return Err(self.breaks("it hands over a part of a segment that it did not announce"));
            }
            if !may_read {
                self.import_one();
            }
        }
    }

    /// Makes room for another message: imports a segment that waits.
    fn import_one(self: &Arc<Self>) {
        let waiting = lock(&self.segments).values().find(|known| known.is_waiting()).cloned();
        match waiting {
            Some(known) => known.finish(self),
            // Those that wait are just being let go of.
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }

    /// The exporter may free a segment.
    pub(in crate::shared) fn slab_is_gone(&self, segment: u64) {
        let count = {
            let mut let_go = lock(&self.let_go);
            let_go.push(segment);
            let_go.len()
        };
        if count > MOST_UNHEARD {
            let _ = self.breaks("it does not take what is let go of");
        }
        reaper::wake();
    }

    /// The exporter says that a segment is gone.
    fn forget(&self, segment: u64) -> Result<()> {
        let known = lock(&self.segments).remove(&segment);
        match known {
            Some(known) => {
                let is_in_a_pool = known.is_in_a_pool();
                // It may be being mapped.
                drop_in_background(known);
                if is_in_a_pool {
                    // From here on the thread looks whether its free was reached.
                    reaper::wake();
                }
                Ok(())
            }
            // They were let go of before their exporter heard of it.
            None if self.is_let_go() => Ok(()),
            None => Err(self.breaks("it retires a segment that it did not announce")),
        }
    }

    /// Nothing more will come of any segment. Their release waits for streams.
    pub(super) fn forget_all(&self) {
        let segments = std::mem::take(&mut *lock(&self.segments));
        if !segments.is_empty() {
            drop_in_background(segments);
        }
    }

    /// Tells the exporter which segments are gone here, and has those go that can.
    pub(super) fn let_go_of_slabs(&self) {
        if self.is_let_go() {
            // The exporter need not say that they are used no more.
            self.forget_all();
        }
        // What has been freed in stream order ends here. It may wait for streams, so that it is not done by the thread that asks.
        if !self.is_reclaiming.swap(true, Ordering::SeqCst) {
            let (driver, is_reclaiming) = (self.context.driver(), Arc::clone(&self.is_reclaiming));
            DROPS.run(move || {
                driver.reclaim();
                is_reclaiming.store(false, Ordering::SeqCst);
            });
        }
        let mut let_go = lock(&self.let_go);
        while let Some(&segment) = let_go.last()
            && say(&self.connection, &wire::Message::LetGo { segment }, &[], Duration::ZERO).is_ok()
        {
            let_go.pop();
            self.slabs.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for ImportLink {
    fn drop(&mut self) {
        if !forked() {
            // Nobody has a buffer of it any more.
            self.forget_all();
        }
    }
}

/// What names a segment in this process: who announces it, and as what. Nobody can name another's.
fn identity(peer: &Peer, said: &wire::Segment) -> Vec<u8> {
    let numbers = [peer.pid().into(), peer.start_time(), said.generation, said.segment];
    numbers.iter().flat_map(|number: &u64| number.to_le_bytes()).collect()
}
