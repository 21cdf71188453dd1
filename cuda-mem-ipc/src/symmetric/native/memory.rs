//! What a rank has after the rendezvous.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::{Device, Driver, Stream, Uses, forked};

use super::allocation::{Allocation, Remote};
use super::{Group, SIGNAL_PAD_BYTES};
use crate::symmetric::memory::{Used, part_len};
use crate::symmetric::{Error, PeerBuffer, Result, SymmetricMemory};

pub(super) struct NativeMemory {
    pub(super) allocation: Arc<Allocation>,
    /// By rank, once somebody asks for one.
    views: OnceLock<Vec<Arc<View>>>,
    addresses: Addresses,
    offset: usize,
    /// Last: its end waits for what streams signal by the words that the allocation has of other ranks.
    pub(super) group: Group,
}

/// Each rank's buffer, and then each rank's pad: in place for as many ranks as a host has devices as a rule, which spares an allocation.
struct Addresses {
    few: [CUdeviceptr; 2 * FEW],
    many: Vec<CUdeviceptr>,
    ranks: usize,
}

const FEW: usize = 8;

impl Addresses {
    fn new(ranks: usize) -> Self {
        let many = if ranks > FEW { vec![0; 2 * ranks] } else { Vec::new() };
        Self { few: [0; 2 * FEW], many, ranks }
    }

    fn all(&self) -> &[CUdeviceptr] {
        if self.ranks > FEW { &self.many } else { &self.few[..2 * self.ranks] }
    }

    fn set(&mut self, rank: usize, [buffer, pad]: [CUdeviceptr; 2]) {
        let all = if self.ranks > FEW { &mut self.many[..] } else { &mut self.few[..2 * self.ranks] };
        (all[rank], all[self.ranks + rank]) = (buffer, pad);
    }
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
        let ranks = group.world_size();
        let mut addresses = Addresses::new(ranks);
        for rank in 0..ranks {
            let place = match remotes.get(rank).and_then(Option::as_ref) {
                Some(Remote { segment, offset, pad, .. }) => {
                    [segment.mapping.as_raw() + *offset as u64, segment.pad_address(*pad)]
                }
                None => here,
            };
            addresses.set(rank, place);
        }
        Self { group, views: OnceLock::new(), addresses, offset, allocation }
    }

    /// Another rank's place; none for this one.
    pub(super) fn remote(&self, rank: usize) -> Option<&Remote> {
        self.allocation.remotes.get()?.get(rank)?.as_ref()
    }

    pub(super) fn expect_rank(&self, rank: usize) -> Result<()> {
        let ranks = self.world_size();
        if rank < ranks {
            return Ok(());
        }
        Err(Error::NotAccepted { what: "the rank", value: rank, accepted: 0..=ranks - 1 })
    }

    fn view(&self, rank: usize) -> Result<&Arc<View>> {
        self.expect_rank(rank)?;
        let kind = |rank: usize| match self.remote(rank) {
            Some(remote) => Kind::Other { remote: remote.clone(), uses: Uses::new() },
            None => Kind::Own(Arc::clone(&self.allocation)),
        };
        let view = |rank| Arc::new(View { kind: kind(rank), group: self.group.clone() });
        let views = self.views.get_or_init(|| (0..self.world_size()).map(view).collect());
        views.get(rank).ok_or(Error::Left { rank })
    }
}

impl SymmetricMemory for NativeMemory {
    fn rank(&self) -> usize {
        self.group.rank()
    }

    fn world_size(&self) -> usize {
        self.group.world_size()
    }

    fn device(&self) -> Device {
        self.group.device()
    }

    fn buffer_ptrs(&self) -> &[CUdeviceptr] {
        &self.addresses.all()[..self.world_size()]
    }

    fn signal_pad_ptrs(&self) -> &[CUdeviceptr] {
        &self.addresses.all()[self.world_size()..]
    }

    fn buffer_size(&self) -> usize {
        self.allocation.size
    }

    fn signal_pad_size(&self) -> usize {
        SIGNAL_PAD_BYTES
    }

    fn offset(&self) -> usize {
        self.offset
    }

    fn get_buffer(&self, rank: usize, bytes: Range<usize>) -> Result<PeerBuffer> {
        let view = self.view(rank)?;
        let start = bytes.start;
        let len = part_len(rank, bytes, self.allocation.size - self.offset)?;
        let address = self.buffer_ptrs()[rank] + (self.offset + start) as u64;
        Ok(PeerBuffer::new(address, len, view.clone()))
    }

    fn get_signal_pad(&self, rank: usize) -> Result<PeerBuffer> {
        let view = self.view(rank)?;
        Ok(PeerBuffer::new(self.signal_pad_ptrs()[rank], SIGNAL_PAD_BYTES, view.clone()))
    }

    fn check(&self) -> Result<()> {
        self.group.check()
    }

    fn barrier(&self, stream: &Stream, channel: usize, timeout: Option<Duration>) -> Result<()> {
        self.meet(stream, channel, timeout)
    }

    fn put_signal(&self, stream: &Stream, to: usize, channel: usize) -> Result<()> {
        self.signal(stream, to, channel)
    }

    fn wait_signal(
        &self,
        stream: &Stream,
        from: usize,
        channel: usize,
        timeout: Option<Duration>,
    ) -> Result<()> {
        self.await_signal(stream, from, channel, timeout)
    }
}

impl fmt::Debug for NativeMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeMemory")
            .field("group", &self.group)
            .field("allocation", &self.allocation.sequence)
            .field("bytes", &self.allocation.size)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}
