//! Words that two processes have: lines of fences between them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use cuda_mem_sys::CUdeviceptr;

use super::FenceLine;
use super::memory::{LineWords, Memory, State, Word, let_go, poison};
use crate::driver::{Context, Driver, fork, refuse_forked};
use crate::error::{Error, Result};
use crate::host::{HostMemory, RegisterFlags, Registered, SharedMapping};
use crate::pointer::device_address;
use crate::stream::idle::{Awaited, WhenIdle};
use crate::stream::{Stream, stream_mem};
use crate::uses::{OpenUse, Uses};

/// Bytes of a slot: a cache line, so that no word is slowed by its neighbour.
const SLOT: usize = 64;

/// Slots for lines of fences in memory that other processes map too.
///
/// A slot is a cache line: 8 bytes of generation, 8 that are not 0 once it is poisoned, and 48 that are not used. The memory is
/// a [`SharedMapping`] that is registered with the driver, so the streams of each process write and wait for the words, and
/// each host reads them. What another process writes there is only ever read as a number. That process can still complete fences
/// early, as it can hand over wrong bytes; it cannot keep a stream here waiting that is let go by [`FenceLine::poison`],
/// unless it takes pages out of the memory that a device here has: against that, [seal](SharedMapping::seal) the mapping before it
/// is registered, with [`SharedWords::of`], once all have mapped it.
///
/// One process records on a line, the others take its fences by their numbers ([`FenceLine::fence`]). Dropped while a stream
/// of this process waits for a fence that was not reached, the words are poisoned, and the drop waits for the stream; for one that
/// captures, and in a host function, [`Driver::reclaim`] sees to it from then on.
///
/// ```
/// use std::os::fd::AsFd;
///
/// use cuda_mem_core::ipc::SharedWords;
/// use cuda_mem_core::{Driver, Error, Stream};
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
/// let (producer, consumer) = (Stream::new(&context)?, Stream::new(&context)?);
/// let words = SharedWords::create(&context, 64)?;
/// let generation = words.line(3)?.record(&producer)?.generation().unwrap_or_default();
///
/// // In the other process, which received the descriptor and the number (here the same one).
/// let descriptor = words.as_fd().try_clone_to_owned().expect("a descriptor");
/// let theirs = SharedWords::open(&context, descriptor)?;
/// let line = theirs.line(3)?;
/// line.fence(generation)?.make_wait(&consumer)?; // the consumer's later work comes after the producer's earlier work
///
/// line.poison(); // the producer has died
/// assert!(matches!(line.fence(generation)?.synchronize(None), Err(Error::Poisoned)));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct SharedWords {
    page: Arc<Page>,
}

/// The slots of one mapping. With the last handle they are poisoned, where streams here still wait.
pub(super) struct Page {
    /// Kept for moments by who looks whether they are awaited, too.
    pub(super) slots: Arc<Slots>,
}

/// The mapping, and what this process knows of its slots.
pub(super) struct Slots {
    registered: Registered<SharedMapping>,
    /// The same, to be touched while it is in use.
    mapping: SharedMapping,
    address: CUdeviceptr,
    states: Vec<State>,
}

impl SharedWords {
    /// New memory with at least `slots` slots, to be given to other processes by its descriptor ([`AsFd`]).
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device's streams cannot wait for 64-bit words; those of [`SharedMapping::create`] and
    /// [`Registered::new`].
    pub fn create(context: &Context, slots: usize) -> Result<Self> {
        refuse_forked()?;
        let bytes = slots.checked_mul(SLOT).ok_or(Error::TooLarge { count: slots, size: SLOT })?;
        Self::of(context, SharedMapping::create(bytes)?)
    }

    /// The memory behind a descriptor that another process sent, all of it, which is pinned and so has to be there: of a process that
    /// is not trusted, open a [`SharedMapping`], look at its size and take [`SharedWords::of`] that.
    /// Errors: as [`SharedWords::create`], and those of [`SharedMapping::open`].
    pub fn open(context: &Context, descriptor: OwnedFd) -> Result<Self> {
        refuse_forked()?;
        Self::of(context, SharedMapping::open(descriptor)?)
    }

    /// All of a mapping as words.
    /// Errors: as [`SharedWords::create`], but for those of [`SharedMapping::create`].
    pub fn of(context: &Context, mapping: SharedMapping) -> Result<Self> {
        refuse_forked()?;
        stream_mem::expect_supported(context.device())?;
        let flags = RegisterFlags::PORTABLE | RegisterFlags::MAPPED;
        let registered = Registered::new(context, mapping.clone(), flags)?;
        let address = device_address(context, mapping.as_ptr())?;
        let states = (0..mapping.bytes() / SLOT).map(|_| State::default()).collect();
        let slots = Arc::new(Slots { registered, mapping, address, states });
        let watched: Weak<Slots> = Arc::downgrade(&slots);
        context.driver().service::<WhenIdle>().watch(watched);
        Ok(Self { page: Arc::new(Page { slots }) })
    }

    /// How many slots there are.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.page.slots.states.len()
    }

    /// The line of a slot. Each call gives the same line.
    ///
    /// Each of its fences takes an event, for the next stream to wait for: what another process writes to the word keeps no stream of this
    /// process waiting for another one. If one stream alone records, [`SharedWords::line_of_one_stream`] does without.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`].
    pub fn line(&self, slot: usize) -> Result<FenceLine> {
        self.line_at(slot, false)
    }

    /// The line of a slot as [`SharedWords::line`] gives it, but its fences take no event: behind one of them, another stream's are
    /// refused ([`Error::OtherStream`]).
    ///
    /// Errors: as there.
    pub fn line_of_one_stream(&self, slot: usize) -> Result<FenceLine> {
        self.line_at(slot, true)
    }

    fn line_at(&self, slot: usize, of_one_stream: bool) -> Result<FenceLine> {
        refuse_forked()?;
        if slot >= self.slots() {
            return Err(Error::OutOfRange { range: slot..slot.saturating_add(1), len: self.slots() });
        }
        Ok(FenceLine::over(Memory::Shared { page: Arc::clone(&self.page), slot, of_one_stream }))
    }

    /// The uses of the words by streams of this process so far: to find out when none of these streams writes a word any more.
    #[must_use]
    pub fn uses(&self) -> Uses {
        if fork::forked() { Uses::new() } else { self.page.slots.registered.uses().copied() }
    }

    /// The memory, which other code may map without a driver: [`poison_word`].
    #[must_use]
    pub fn mapping(&self) -> &SharedMapping {
        &self.page.slots.mapping
    }
}

impl AsFd for SharedWords {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.page.slots.mapping.as_fd()
    }
}

/// Poisons the line of a slot, in a process that has the memory but no driver, such as a supervisor.
///
/// # Errors
///
/// [`Error::OutOfRange`].
pub fn poison_word(mapping: &SharedMapping, slot: usize) -> Result<()> {
    let slots = mapping.bytes() / SLOT;
    let at = |word: usize| mapping.word(slot.saturating_mul(SLOT).saturating_add(8 * word));
    match (at(0), at(1)) {
        (Ok(generation), Ok(flag)) if slot < slots => {
            poison(generation, flag);
            Ok(())
        }
        _ => Err(Error::OutOfRange { range: slot..slot.saturating_add(1), len: slots }),
    }
}

impl Slots {
    pub(super) fn address(&self, slot: usize) -> CUdeviceptr {
        self.address + (slot * SLOT) as u64
    }

    pub(super) fn note<'p>(&'p self, stream: &'p Stream) -> Result<OpenUse<'p>> {
        self.registered.uses().note(stream)
    }

    pub(super) fn state(&self, slot: usize) -> &State {
        &self.states[slot]
    }

    pub(super) fn word(&self, slot: usize, word: Word) -> &AtomicU64 {
        self.mapping.word_inside(slot * SLOT + 8 * word as usize)
    }
}

impl LineWords for Slots {
    fn driver(&self) -> Driver {
        self.registered.context().driver()
    }

    /// Of those lines that a stream here still waits for, and that are poisoned.
    fn poison(&self) {
        for (slot, state) in self.states.iter().enumerate() {
            let (generation, flag) = (self.word(slot, Word::Generation), self.word(slot, Word::Flag));
            if state.is_awaited(generation) || state.poisoned.load(Ordering::SeqCst) {
                state.poisoned.store(true, Ordering::SeqCst);
                poison(generation, flag);
            }
        }
    }

    fn uses(&mut self) -> &mut Uses {
        self.registered.uses_mut()
    }
}

impl Awaited for Slots {
    fn is_awaited(&self) -> bool {
        let is_awaited = |(slot, state): &(usize, &State)| {
            state.is_awaited_still(self.word(*slot, Word::Generation), self.word(*slot, Word::Flag))
        };
        // All of them, for each is let go that can be.
        self.states.iter().enumerate().filter(is_awaited).count() > 0
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if fork::forked() {
            return;
        }
        // So that they are dropped here, and not by a thread that is looking whether they are awaited.
        self.slots.driver().service::<WhenIdle>().forget(&self.slots);
        // The release waits for the streams that were told of the words. A word may be moved back before a stream has come to its wait.
        self.slots.poison();
        let_go(&mut self.slots);
    }
}

impl_debug!(Page, |it| slots: it.slots.states.len());
