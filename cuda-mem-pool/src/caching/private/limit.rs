//! How much may be held, by the default pool and private ones together.

use crate::caching::shared::Shared;
use crate::error::Result;
use crate::primitive::{Ordering, lock};

impl Shared {
    /// Sets bytes of the limit aside for a segment, if it has as many left.
    pub(super) fn claim(&self, bytes: usize) -> Result<Option<Claim<'_>>> {
        let mut source = self.source()?;
        let limit = self.private.limit.load(Ordering::Relaxed);
        let reserved = self.private.reserved().saturating_add(bytes);
        if source.reserved().saturating_add(reserved) > limit {
            return Ok(None);
        }
        self.private.reserved.store(reserved, Ordering::Relaxed);
        source.set_limit(self.share_of_default(reserved));
        Ok(Some(Claim { shared: self, bytes }))
    }

    /// The bytes are the limit's again.
    pub(super) fn unclaim(&self, bytes: usize) {
        let mut source = self.source_unchecked();
        let reserved = self.private.reserved().saturating_sub(bytes);
        self.private.reserved.store(reserved, Ordering::Relaxed);
        source.set_limit(self.share_of_default(reserved));
    }

    fn share_of_default(&self, reserved: usize) -> usize {
        match self.private.limit.load(Ordering::Relaxed) {
            usize::MAX => usize::MAX,
            limit => limit.saturating_sub(reserved),
        }
    }

    /// The most that may be held, by the default pool and private ones together.
    pub(in crate::caching) fn set_limit(&self, limit: usize) -> Result<()> {
        let mut source = self.source()?;
        self.private.limit.store(limit, Ordering::Relaxed);
        source.set_limit(self.share_of_default(self.private.reserved()));
        drop(source);
        let threshold = lock(&self.private.state).options.garbage_collection_threshold();
        self.set_garbage(threshold);
        Ok(())
    }

    /// From which part of the limit on garbage is collected.
    pub(super) fn set_garbage(&self, threshold: Option<f64>) {
        let bytes = match (threshold, self.private.limit.load(Ordering::Relaxed)) {
            (None, _) | (_, usize::MAX) => usize::MAX,
            (Some(part), limit) => (part * limit as f64) as usize,
        };
        self.private.garbage.store(bytes, Ordering::Relaxed);
    }

    /// Gives back what is free when more is held than the threshold of garbage collection allows.
    pub(in crate::caching) fn collect_garbage(&self) {
        let most = self.private.garbage.load(Ordering::Relaxed);
        if most == usize::MAX {
            return;
        }
        let reserved = self.source.held().saturating_add(self.private.reserved());
        if reserved > most {
            // What the driver refuses stays; whoever asks for memory goes on without.
            let _ = self.empty_cache();
        }
    }
}

/// Bytes of the limit, until they are kept.
#[derive(Debug)]
#[must_use]
pub(super) struct Claim<'s> {
    shared: &'s Shared,
    bytes: usize,
}

impl Claim<'_> {
    /// There is a segment of them now, or memory that cannot be given back.
    pub(super) fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.shared.unclaim(self.bytes);
        }
    }
}
