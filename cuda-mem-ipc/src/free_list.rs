//! Which bytes of a segment are free. Offsets alone: no memory is touched here.

use std::collections::{BTreeMap, BTreeSet};

/// What has to be waited for before free bytes are used again. Parts of a region inherit it, neighbours join theirs.
pub(crate) trait PendingUses: Clone {
    fn join(&mut self, other: Self);
}

/// For owners that hand bytes out again only when nothing uses them any more.
impl PendingUses for () {
    fn join(&mut self, (): Self) {}
}

/// How many of the regions that are large enough are looked at for one that need not be waited for.
const LOOKED_AT: usize = 16;

/// Keeps the free regions of a segment: best fit, neighbours joined at once.
#[derive(Debug)]
pub(crate) struct FreeList<P> {
    /// By offset.
    free: BTreeMap<usize, Region<P>>,
    /// Length and offset of the same regions.
    sizes: BTreeSet<(usize, usize)>,
    bytes: usize,
}

#[derive(Debug)]
struct Region<P> {
    len: usize,
    pending: P,
}

impl<P: PendingUses> FreeList<P> {
    pub(crate) fn new(bytes: usize, pending: P) -> Self {
        let mut list = Self { free: BTreeMap::new(), sizes: BTreeSet::new(), bytes };
        list.insert(0, bytes, pending);
        list
    }

    /// Takes `len` bytes from the smallest region that has them and that is `wanted`.
    pub(crate) fn take(&mut self, len: usize, wanted: impl Fn(&P) -> bool) -> Option<(usize, P)> {
        let fitting = self.sizes.range((len, 0)..).take(LOOKED_AT);
        let is_wanted = |offset: &usize| self.free.get(offset).is_some_and(|region| wanted(&region.pending));
        let offset = fitting.map(|&(_, offset)| offset).find(is_wanted)?;
        let region = self.remove(offset)?;
        let rest = region.len.saturating_sub(len);
        if rest > 0 {
            self.insert(offset.saturating_add(len), rest, region.pending.clone());
        }
        Some((offset, region.pending))
    }

    pub(crate) fn give(&mut self, mut offset: usize, mut len: usize, mut pending: P) {
        if let Some(after) = self.remove(offset.saturating_add(len)) {
            len = len.saturating_add(after.len);
            pending.join(after.pending);
        }
        let before = self.free.range(..offset).next_back().map(|(&at, region)| (at, region.len));
        if let Some((at, before_len)) = before
            && at.saturating_add(before_len) == offset
            && let Some(before) = self.remove(at)
        {
            (offset, len) = (at, len.saturating_add(before.len));
            pending.join(before.pending);
        }
        self.insert(offset, len, pending);
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.free.get(&0).is_some_and(|region| region.len == self.bytes)
    }

    fn insert(&mut self, offset: usize, len: usize, pending: P) {
        self.sizes.insert((len, offset));
        self.free.insert(offset, Region { len, pending });
    }

    fn remove(&mut self, offset: usize) -> Option<Region<P>> {
        let region = self.free.remove(&offset)?;
        self.sizes.remove(&(region.len, offset));
        Some(region)
    }
}

#[cfg(test)]
mod tests;
