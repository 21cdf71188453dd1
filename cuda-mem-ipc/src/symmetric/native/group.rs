//! A group of ranks, what this one has allocated for it, and typed memory of all of them for Rust programs.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::{Context, Device, DeviceCopy, Error as CoreError, Stream, forked};

use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::announced::ORDER;
use super::directory::GONE;
use super::lookup::Allocation;
use super::memory::NativeMemory;
use super::message;
use super::segment::{GRANULE, OwnSegment, Segment};
use super::state::{SLICE, State};
use super::watch;
use super::words::{OwnWords, Piece, Words};
use crate::primitive::{lock, lock_over_calls, refuse_forked};
use crate::symmetric::{Allocated, Error, PeerBuffer, Result, SymmetricMemory};
use crate::transport::{Deadline, PeerPolicy};

/// How a group works. All ranks pass the same. The [module](crate::symmetric) has an example.
#[derive(Debug, Clone)]
pub struct GroupOptions {
    /// How long a rank is waited for: to join, to allocate, to map what is announced, to take a message. 60 seconds.
    pub timeout: Duration,
    /// Which processes may be ranks.
    pub policy: PeerPolicy,
    /// Bytes of a segment's data, at least: a larger allocation has one of its own. 64 MiB.
    pub segment_bytes: usize,
    /// How many allocations a segment has room for, each with a signal pad, and a piece of host memory with words for signals. 256.
    pub segment_allocations: usize,
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(60),
            policy: PeerPolicy::default(),
            segment_bytes: 64 << 20,
            segment_allocations: 256,
        }
    }
}

/// The ranks that allocate together, processes of one host with a device each. Clones are handles to the same group.
///
/// It ends with its last handle, [`SymmetricMemory`] and backends count: the rank has left then, and other ranks that
/// wait for it are let go. [`Group::join`] makes it; the [module](crate::symmetric) has an example.
#[derive(Clone)]
pub struct Group {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) context: Context,
    stream: Stream,
    pub(super) options: GroupOptions,
    pub(super) state: Arc<State>,
    watch: Option<JoinHandle<()>>,
    /// This rank's segments. Held while ranks are waited for; the order of allocations is the order of this lock.
    pub(super) making: Mutex<Vec<Arc<OwnSegment>>>,
    /// How many allocations there were. Changes under that lock.
    pub(super) made: AtomicU64,
    /// What is found by address. Held for a moment, never with `making`.
    pub(super) own: Mutex<BTreeMap<CUdeviceptr, Arc<Allocation>>>,
    words: Arc<OwnWords>,
    /// What the last [`Group::alloc`] has published, if others were missing, or slept by then.
    pending: Mutex<Option<Arc<Allocation>>>,
    /// What the group's own barrier signals by, once there was one.
    pub(super) barrier: Mutex<Option<Arc<Allocation>>>,
    /// One exchange at a time: the order is the ranks' order.
    pub(super) exchanging: Mutex<()>,
}

/// The same number of values on every rank of a [`Group`], each rank's within reach of all.
///
/// Dropped, this rank's part is given back behind its uses. All ranks allocate and drop in the same order, as with
/// [`SymmetricBackend`](crate::symmetric::SymmetricBackend). The [module](crate::symmetric) has an example.
pub struct GroupBuffer<T> {
    memory: Arc<dyn SymmetricMemory>,
    count: usize,
    values: PhantomData<fn() -> T>,
}

/// An allocation that was freed and may be in use yet ([`NativeBackend::take`](super::NativeBackend::take)). When it is dropped its
/// memory is reused as after [`free`](crate::symmetric::SymmetricBackend::free); its group does not end before.
/// [`NativeBackend::take`](crate::symmetric::NativeBackend::take) has an example.
#[derive(Debug)]
pub struct Freed {
    allocation: Arc<Allocation>,
    /// Behind the allocation: dropped after it.
    group: Group,
}

impl Freed {
    /// Where it is.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.allocation.address()
    }

    /// The group that it was allocated for.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }
}

impl Group {
    /// A group whose ranks are connected.
    pub(super) fn of(context: &Context, state: &Arc<State>, options: &GroupOptions) -> Result<Self> {
        let (state, stream) = (Arc::clone(state), Stream::new(context)?);
        let watch = watch::start(&state).map_err(|source| Error::Join {
            group: state.group.clone(),
            source: crate::Error::System { call: "starting a thread", source: source.into() },
        })?;
        let inner = Inner {
            context: context.clone(),
            stream,
            options: options.clone(),
            state,
            watch: Some(watch),
            making: Mutex::default(),
            made: AtomicU64::new(0),
            own: Mutex::default(),
            words: Arc::default(),
            pending: Mutex::default(),
            barrier: Mutex::default(),
            exchanging: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.state.group
    }

    /// This process's rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.inner.state.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.inner.state.ranks()
    }

    /// This rank's device.
    #[must_use]
    pub fn device(&self) -> Device {
        self.inner.context.device()
    }

    /// Whether all ranks are sound so far.
    ///
    /// # Errors
    ///
    /// [`Error::Broken`], which names the rank; [`Error::Core`] in a forked child.
    pub fn check(&self) -> Result<()> {
        refuse_forked()?;
        self.inner.state.check()
    }

    /// Memory for `count` values on every rank. Every rank calls it, with the same count, and it returns when all have. What is in it is
    /// undefined. A rank whose call fails may call again, with the same count, while the others wait; once theirs fail too, it may if
    /// [ranks were missing](Error::Missing), and else end the group: ranks count calls.
    ///
    /// # Errors
    ///
    /// Those of [`SymmetricBackend::alloc`](crate::symmetric::SymmetricBackend::alloc) and
    /// [`rendezvous`](crate::symmetric::SymmetricBackend::rendezvous) of [`NativeBackend`](crate::symmetric::NativeBackend).
    pub fn alloc<T: DeviceCopy>(&self, count: usize) -> Result<GroupBuffer<T>> {
        refuse_forked()?;
        let too_large = CoreError::TooLarge { count, size: size_of::<T>() };
        let bytes = count.checked_mul(size_of::<T>()).ok_or(too_large)?;
        let pending = lock(&self.inner.pending).take();
        let allocation = match pending.filter(|pending| pending.size == bytes) {
            Some(pending) => pending,
            None => self.inner.alloc(bytes, self.device())?,
        };
        let address = allocation.address();
        let memory = self.clone().rendezvous(Arc::clone(&allocation), address);
        if let Err(Error::Missing { .. } | Error::Asleep { .. }) = memory {
            // The other ranks may come to it yet.
            *lock(&self.inner.pending) = Some(allocation);
        }
        Ok(GroupBuffer { memory: memory?, count, values: PhantomData })
    }

    /// Has the later work in `stream` wait for the earlier work of all ranks that call it. The host waits for nothing, but for the other ranks
    /// when it is called first. If a rank dies the stream goes on: ask [`check`](Self::check) before results are used.
    ///
    /// # Errors
    ///
    /// Those of [`SymmetricMemory::barrier`], and of [`alloc`](Self::alloc) when it is called first.
    pub fn barrier(&self, stream: &Stream) -> Result<()> {
        refuse_forked()?;
        let (_reports, mut barrier) = lock_over_calls(&self.inner.barrier);
        let allocation = match &mut *barrier {
            Some(known) => Arc::clone(known),
            none => Arc::clone(none.insert(self.inner.alloc(0, self.device())?)),
        };
        drop(barrier);
        let address = allocation.address();
        self.clone().rendezvous(allocation, address)?.barrier(stream, 0, None)
    }

    pub(super) fn find(&self, address: CUdeviceptr) -> Option<Arc<Allocation>> {
        let own = lock(&self.inner.own);
        let (_, before) = own.range(..=address).next_back()?;
        before.has(address).then(|| Arc::clone(before))
    }

    /// An allocation that is found by its address.
    pub(super) fn alloc_bytes(&self, size: usize, device: Device) -> Result<Allocated> {
        let allocation = self.inner.alloc(size, device)?;
        let allocated = allocation.allocated();
        lock(&self.inner.own).insert(allocated.address, allocation);
        Ok(allocated)
    }

    /// Takes what begins at an address out of what is found by address, if it is what is meant.
    pub(super) fn take(
        &self,
        address: CUdeviceptr,
        is_meant: impl FnOnce(&Allocation) -> bool,
    ) -> Result<Freed> {
        let taken = match lock(&self.inner.own).entry(address) {
            Entry::Occupied(found) if is_meant(found.get()) => Some(found.remove()),
            _ => None,
        };
        let allocation = taken.ok_or(Error::UnknownAddress { address, backend: super::NAME })?;
        Ok(Freed { allocation, group: self.clone() })
    }

    /// Brings the ranks together over an allocation, for an address in it.
    pub(super) fn rendezvous(
        self,
        allocation: Arc<Allocation>,
        address: CUdeviceptr,
    ) -> Result<Arc<dyn SymmetricMemory>> {
        self.check()?;
        if allocation.remotes.get().is_none() {
            self.inner.state.expect_awake()?;
            let remotes = self.inner.look(&allocation)?;
            // Another thread may have been faster, and found the same.
            let _ = allocation.remotes.set(remotes);
        }
        let offset = usize::try_from(address - allocation.address()).unwrap_or(0);
        Ok(Arc::new(NativeMemory::new(self, allocation, offset)))
    }
}

impl Inner {
    pub(super) fn alloc(&self, size: usize, device: Device) -> Result<Arc<Allocation>> {
        let accepted = self.context.device();
        accepted.driver().expect_same(device.driver(), "the device")?;
        if device != accepted {
            let (device, accepted) = (device.as_raw(), accepted.as_raw());
            return Err(Error::WrongDevice { group: self.state.group.clone(), device, accepted });
        }
        self.state.check()?;
        let len = size.max(1).checked_next_multiple_of(GRANULE);
        let len = len.ok_or(CoreError::TooLarge { count: size, size: 1 })?;
        let (_reports, mut segments) = lock_over_calls(&self.making);
        self.state.expect_awake()?;
        let words = self.take_words()?;
        let take = |own: &Arc<OwnSegment>| Some((Arc::clone(own), own.take(len)?));
        let mut found = segments.iter().find_map(take);
        if found.is_none() {
            let segment = self.grow(segments.len() as u64, len)?;
            found = take(&segment);
            segments.push(segment);
        }
        let (segment, block) = found.ok_or(CoreError::OutOfRange { range: 0..len, len: 0 })?;
        let allocation = Arc::new(Allocation::new(segment, block, words, size, self.made.load(ORDER)));
        self.state.directory.publish(self.state.rank, allocation.entry())?;
        self.made.fetch_add(1, ORDER);
        Ok(allocation)
    }

    fn grow(&self, number: u64, len: usize) -> Result<Arc<OwnSegment>> {
        self.make_room::<Segment>(number)?;
        let (bytes, pads) = (self.options.segment_bytes.max(len), self.options.segment_allocations);
        let (segment, info, memory) = OwnSegment::create(&self.context, &self.stream, number, bytes, pads)?;
        self.announce(message::SEGMENT, info.as_bytes(), memory.as_fd())?;
        Ok(Arc::new(segment))
    }

    /// Words for an allocation, of a new piece if need be, which all ranks are told of.
    fn take_words(&self) -> Result<Words> {
        if let Some(words) = self.words.take() {
            return Ok(words);
        }
        let (number, room) = (self.words.pieces(), self.options.segment_allocations);
        self.make_room::<Piece>(number)?;
        let piece = Piece::create(&self.context, room, self.state.ranks())?;
        self.announce(message::WORDS, U64::new(number).as_bytes(), piece.as_fd())?;
        self.words.add(piece);
        self.words.take().ok_or(CoreError::OutOfRange { range: 0..1, len: 0 }.into())
    }

    /// Tells all ranks of something that they may map, within the timeout for all of them.
    pub(super) fn announce(&self, kind: u16, payload: &[u8], descriptor: BorrowedFd<'_>) -> Result<()> {
        let deadline = Deadline::after(self.options.timeout);
        for (rank, peer) in self.state.others() {
            // In slices of the time: the group may break while there is no room.
            loop {
                let slice = deadline.min(Deadline::after(SLICE));
                match peer.connection.send(kind, payload, &[descriptor], slice) {
                    // A rank that has left needs nothing any more. The other ranks do.
                    Err(_) if self.state.directory.has_left(rank) => break,
                    Err(error) if error.has_no_room() && !deadline.has_passed() => self.state.check()?,
                    // Some ranks know of it and some do not: that cannot be taken back.
                    sent => break sent.map_err(|error| self.state.unsent(rank, &error))?,
                }
            }
        }
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if forked() {
            // The group is the parent's and goes on. Its thread is not here: the drop of its handle would detach what is not there.
            let _ = std::mem::ManuallyDrop::new(self.watch.take());
            return;
        }
        // What still waits would hold up the release of the memory.
        self.state.leave();
        (self.own, self.pending, self.barrier, self.making) = Default::default();
        self.words.clear();
        for (_, peer) in self.state.others() {
            peer.segments.clear();
            peer.pieces.clear();
        }
        self.state.stop();
        // It does not panic; and if it did, it is gone all the same.
        let _ = self.watch.take().map(JoinHandle::join);
        // After the streams' last signals, which the release has waited for.
        let _ = self.state.directory.leaving(self.state.rank).map(|word| word.store(GONE, ORDER));
    }
}

crate::impl_debug!(Group, |it| name: it.name(), rank: it.rank(), world_size: it.world_size());

impl<T> GroupBuffer<T> {
    /// How many values each rank has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// A rank's part, whose elements are those that [`PeerBuffer::as_range`] names; [`NotAccepted`](crate::symmetric::Error::NotAccepted) for a
    /// rank that there is not.
    pub fn of(&self, rank: usize) -> Result<PeerBuffer> {
        self.memory.get_buffer(rank, 0..self.count.saturating_mul(size_of::<T>()))
    }

    /// All that there is of it: addresses, signal pads and signals between two ranks.
    #[must_use]
    pub fn memory(&self) -> &Arc<dyn SymmetricMemory> {
        &self.memory
    }
}

crate::impl_debug!([T] GroupBuffer<T>, |it| len: it.count);
