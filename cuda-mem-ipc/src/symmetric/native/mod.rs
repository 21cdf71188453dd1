//! Symmetric memory of one host, over the driver's virtual memory management and this crate's transport.
//!
//! # Safety
//!
//! Relies on the free lists of a group's segments giving no byte to two allocations at a time; and on each connection being one process's, checked
//! when the group was joined, whose messages come in order.

#![allow(unsafe_code, reason = "implements unsafe traits")]

mod announced;
mod directory;
mod group;
mod join;
mod lookup;
mod memory;
mod message;
mod segment;
mod sleep;
mod state;
mod watch;
mod words;

use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::{Device, forked};

use super::{Allocated, Error, Exchange, Result, SymmetricBackend, SymmetricMemory, Why};
use crate::primitive::{lock, lock_over_calls, refuse_forked};
use crate::transport::Deadline;
use lookup::Allocation;

pub use group::{Freed, Group, GroupBuffer, GroupOptions};

/// The channels that [`barrier`](SymmetricMemory::barrier) has for each allocation, and
/// [`put_signal`](SymmetricMemory::put_signal) apart from them.
pub const CHANNELS: usize = 8;

/// Bytes of a signal pad: as PyTorch's, 32 channels for 72 ranks.
pub const SIGNAL_PAD_BYTES: usize = 32 * 72 * 4;

const NAME: &str = "NATIVE";

/// The backend for ranks of one host, called `"NATIVE"`. It allocates for a [`Group`] only, on the group's device.
///
/// A group has segments of device memory, each of which every rank maps once. An allocation that fits one takes no driver call,
/// and neither does its rendezvous: each rank writes what it has allocated into a directory in shared host memory, and reads what
/// the others have. Only when more allocations live at once than ever before, by [`GroupOptions::segment_allocations`], is host memory
/// registered for their signals. The [module](super) has an example.
///
/// A forked child has nothing of it: every call is an error there, and its drops do nothing. A process that ends without dropping
/// its groups, those that a backend knows included ([`NativeBackend::remove_group`]), counts as dead for the others.
#[derive(Default)]
pub struct NativeBackend {
    groups: Mutex<Vec<Group>>,
}

impl NativeBackend {
    /// A backend without groups.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The program's.
    #[must_use]
    pub fn global() -> &'static Arc<Self> {
        static GLOBAL: LazyLock<Arc<NativeBackend>> = LazyLock::new(|| Arc::new(NativeBackend::new()));
        &GLOBAL
    }

    /// Makes a group known by its name, unless [one is](Error::GroupExists).
    pub fn add_group(&self, group: &Group) -> Result<()> {
        refuse_forked()?;
        let mut groups = lock(&self.groups);
        if groups.iter().any(|known| known.name() == group.name()) {
            return Err(Error::GroupExists { name: group.name().to_owned() });
        }
        groups.push(group.clone());
        Ok(())
    }

    /// Forgets a group, and frees what it has allocated: memory lives on while a [`SymmetricMemory`] of it does.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownGroup`].
    ///
    /// # Safety
    ///
    /// No code uses an allocation of the group by its address from now on.
    pub unsafe fn remove_group(&self, name: &str) -> Result<Group> {
        refuse_forked()?;
        let mut groups = lock(&self.groups);
        let removed = groups.iter().position(|known| known.name() == name).map(|place| groups.remove(place));
        drop(groups);
        let group = removed.ok_or_else(|| self.unknown(name))?;
        let all = std::mem::take(&mut *lock(&group.inner.own));
        drop(all);
        Ok(group)
    }

    /// Frees the allocation that begins at an address in two steps: nothing has the address from now on, also when another allocation gets it,
    /// and the memory is reused once the result is dropped. For callers that learn later that the work with it is done.
    ///
    /// ```
    /// use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Driver;
    /// use cuda_mem_ipc::symmetric::{Error, Group, GroupOptions, NativeBackend, SymmetricBackend};
    ///
    /// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
    /// let directory = std::env::temp_dir().join(format!("taken-{}", std::process::id()));
    /// let native = NativeBackend::new();
    /// native.add_group(&Group::join(&context, "alone", 0, 1, &directory, &GroupOptions::default())?)?;
    /// let address = native.alloc(4096, context.device(), Some("alone"))?.address;
    /// // SAFETY: an allocation of this program's, which forgets the address.
    /// let freed = unsafe { native.take(address) }?;
    /// assert!(matches!(native.find(address), Err(Error::UnknownAddress { .. })));
    /// assert_ne!(native.alloc(4096, context.device(), Some("alone"))?.address, address);
    /// context.synchronize()?; // whatever used it is done
    /// drop(freed);
    /// assert_eq!(native.alloc(4096, context.device(), Some("alone"))?.address, address);
    /// # std::fs::remove_dir(directory)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAddress`], also for an address inside an allocation.
    ///
    /// # Safety
    ///
    /// The allocation is the caller's, and no code uses it by its address once the result is dropped.
    pub unsafe fn take(&self, address: CUdeviceptr) -> Result<Freed> {
        let (group, _) = self.owner(address)?;
        group.take(address, |_| true)
    }

    fn unknown(&self, name: &str) -> Error {
        Error::UnknownGroup { name: name.to_owned(), known: self.names() }
    }

    fn names(&self) -> Vec<String> {
        lock(&self.groups).iter().map(|group| group.name().to_owned()).collect()
    }

    /// The group that has an address, and the allocation that it lies in.
    fn owner(&self, address: CUdeviceptr) -> Result<(Group, Arc<Allocation>)> {
        refuse_forked()?;
        let groups = lock(&self.groups);
        let found = groups.iter().find_map(|group| group.find(address).map(|found| (group.clone(), found)));
        drop(groups);
        found.ok_or_else(|| Error::UnknownAddress { address, backend: NAME })
    }
}

// SAFETY: an allocation is cut from a segment, whose free list gives no byte twice before it is given back.
unsafe impl SymmetricBackend for NativeBackend {
    fn name(&self) -> &str {
        NAME
    }

    /// Zero bytes are an allocation of their own too.
    ///
    /// # Errors
    ///
    /// [`Error::GroupNeeded`], [`Error::UnknownGroup`], [`Error::WrongDevice`]; [`Error::Broken`]; [`Error::Core`] when a new
    /// segment cannot be made; [`Error::Missing`] when a rank has not mapped one of the last 256 in time, which it does before
    /// it makes a segment, and while it waits in a rendezvous or an exchange; [`Error::GroupFull`].
    fn alloc(&self, size: usize, device: Device, group: Option<&str>) -> Result<Allocated> {
        let name = group.ok_or_else(|| Error::GroupNeeded { backend: NAME.to_owned() })?;
        refuse_forked()?;
        let found = lock(&self.groups).iter().find(|known| known.name() == name).cloned();
        found.ok_or_else(|| self.unknown(name))?.alloc_bytes(size, device)
    }

    fn find(&self, address: CUdeviceptr) -> Result<Allocated> {
        self.owner(address).map(|(_, allocation)| allocation.allocated())
    }

    /// Memory without a [`SymmetricMemory`] is reused when the uses that are known of it are over, for which this waits.
    unsafe fn free(&self, allocated: Allocated) -> Result<()> {
        let (group, _) = self.owner(allocated.address)?;
        group.take(allocated.address, |found| found.allocated() == allocated).map(drop)
    }

    /// Waits until every rank has made the same allocation, as long as the group's timeout.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAddress`]; [`Error::WrongGroup`]; [`Error::Missing`] for a rank that has not allocated in time,
    /// [`Error::OrderDiffers`] for one that allocated something else, [`Error::Overtaken`], [`Error::Invalid`];
    /// [`Error::Broken`], [`Error::Left`]; [`Error::Core`] when a segment cannot be mapped.
    fn rendezvous(&self, address: CUdeviceptr, group: Option<&str>) -> Result<Arc<dyn SymmetricMemory>> {
        let (owner, allocation) = self.owner(address)?;
        if let Some(asked) = group.filter(|name| *name != owner.name()) {
            return Err(Error::WrongGroup { allocated: owner.name().to_owned(), asked: asked.to_owned() });
        }
        owner.rendezvous(allocation, address)
    }
}

// In a forked child a thread of the parent may have the lock.
crate::impl_debug!(NativeBackend, |it| groups: if forked() { Vec::new() } else { it.names() });

/// The n-th message of a rank belongs to the n-th of every other.
// SAFETY: the n-th call takes the n-th message of every rank's own connection.
unsafe impl Exchange for Group {
    fn name(&self) -> &str {
        self.name()
    }

    fn rank(&self) -> usize {
        self.rank()
    }

    fn world_size(&self) -> usize {
        self.world_size()
    }

    /// A rank that says nothing in time breaks the group, for all ranks: ranks that heard all others must not go on alone.
    ///
    /// # Errors
    ///
    /// [`Error::Broken`], [`Error::Left`], which name the rank; [`Error::Transport`] for more bytes than a message has. Why memory that another
    /// rank announced was not mapped meanwhile, as of a rendezvous: the group is broken then.
    fn all_gather(&self, bytes: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        refuse_forked()?;
        let (_reports, _turn) = lock_over_calls(&self.inner.exchanging);
        let (state, deadline) = (&self.inner.state, Deadline::after(timeout));
        state.check()?;
        for (rank, peer) in state.others() {
            let sent = peer.connection.send(message::SAID, bytes, &[], deadline);
            sent.map_err(|error| match error {
                // Nothing was sent to any rank.
                source @ crate::Error::PayloadTooLong { .. } => Error::Transport { rank, source },
                error => state.unsent(rank, &error),
            })?;
        }
        let mut said = Vec::with_capacity(self.world_size());
        for rank in 0..self.world_size() {
            let Some(Some(peer)) = state.peers.get(rank) else {
                said.push(bytes.to_vec());
                continue;
            };
            said.push(loop {
                // Asked before the queue: what a rank said before it went is in it.
                let is_gone = peer.is_gone.load(Ordering::Acquire);
                if let Some(heard) = peer.said.next() {
                    break heard;
                }
                state.check()?;
                if is_gone {
                    return Err(state.left(rank));
                }
                if deadline.has_passed() {
                    return Err(state.break_by(rank, Why::TimedOut));
                }
                // The other rank may wait until this one maps what it announced.
                self.inner.map_ahead()?;
            });
        }
        // A rank may have given up meanwhile, and would not do what all ranks have said.
        state.check()?;
        Ok(said)
    }

    fn check(&self) -> Result<()> {
        self.check()
    }
}
