//! What a rank has after the rendezvous.

use std::sync::{Arc, OnceLock};

use cuda_mem_pool::cuda_mem_core::{Driver, Uses, forked};

use super::Group;
use super::allocation::{Allocation, Remote};
use crate::symmetric::memory::{Layout, Used};
use crate::symmetric::{Error, Result};

pub(super) struct NativeMemory {
    pub(super) allocation: Arc<Allocation>,
    /// By rank, once somebody asks for one.
    views: OnceLock<Vec<Arc<View>>>,
    pub(super) layout: Layout,
    /// Last: its end waits for what streams signal by the words that the allocation has of other ranks.
    pub(super) group: Group,
}

/// A rank's memory, with the uses that this handle has made of it. The group outlives it, and with it the words.
#[derive(Debug)]
struct View {
    kind: Kind,
    group: Group,
}

#[derive(Debug)]
enum Kind {
    Own(Arc<Allocation>),
    Other { remote: Remote, uses: Uses },
}

impl Used for View {
    fn driver(&self) -> Driver {
        self.group.device().driver()
    }

    fn uses(&self) -> &Uses {
        match &self.kind {
            Kind::Own(allocation) => &allocation.uses,
            Kind::Other { uses, .. } => uses,
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if let Kind::Other { remote, uses } = &mut self.kind
            && !forked()
        {
            // The mapping outlives the work.
            remote.segment.mapping.absorb_uses(std::mem::take(uses));
        }
    }
}

impl NativeMemory {
    pub(super) fn new(group: Group, allocation: Arc<Allocation>, offset: usize) -> Self {
        let own = &allocation.segment.segment;
        let here = [allocation.address(), own.pad_address(allocation.block.pad)];
        let remotes = allocation.remotes.get().map_or(&[][..], Vec::as_slice);
        let (rank, ranks, size) = (group.rank(), group.world_size(), allocation.size);
        let layout = Layout::new(rank, ranks, group.device(), (size, offset), |rank| {
            match remotes.get(rank).and_then(Option::as_ref) {
                Some(Remote { segment, offset, pad, .. }) => {
                    [segment.mapping.as_raw() + *offset as u64, segment.pad_address(*pad)]
                }
                None => here,
            }
        });
        Self { group, views: OnceLock::new(), layout, allocation }
    }

    /// Another rank's place; none for this one.
    pub(super) fn remote(&self, rank: usize) -> Option<&Remote> {
        self.allocation.remotes.get()?.get(rank)?.as_ref()
    }

    pub(super) fn view(&self, rank: usize) -> Result<Arc<dyn Used>> {
        let kind = |rank: usize| match self.remote(rank) {
            Some(remote) => Kind::Other { remote: remote.clone(), uses: Uses::new() },
            None => Kind::Own(Arc::clone(&self.allocation)),
        };
        let view = |rank| Arc::new(View { kind: kind(rank), group: self.group.clone() });
        let views = self.views.get_or_init(|| (0..self.layout.ranks).map(view).collect());
        let view = views.get(rank).ok_or(Error::Left { rank })?;
        Ok(Arc::<View>::clone(view))
    }
}

crate::shown!(NativeMemory, |it| group: it.group, allocation: it.allocation.sequence, layout: it.layout);
