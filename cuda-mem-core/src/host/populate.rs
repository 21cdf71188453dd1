//! Bringing pages in, by several threads, before the driver pins them.
//!
//! The driver faults pages in one after the other; the zeroing of new pages is most of the time that a registration takes.
//! The threads here make no driver call, so captures do not notice them.
//!
//! # Safety
//!
//! `madvise` with the populating advices changes no byte of memory, whoever owns it. Pages are touched only through an
//! address that the memory's owner gave for that, while the owner is borrowed mutably.

#![allow(unsafe_code, reason = "advises the kernel and touches pages")]

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;

use super::memory::HostMemory;
use super::options::{CancelToken, Progress, RegisterOptions};
use super::registered::RegisterFlags;
use super::residency::PageReport;
use super::system::{self, page_size};
use crate::driver::{Handle, lock};
use crate::error::{Error, Result};

/// What a thread takes at a time: a few milliseconds of zeroing, so that a cancellation is heard soon, and a whole number of
/// huge pages, so that two threads never wait for one page.
const PIECE: usize = 32 << 20;

/// More threads than this were not seen to bring pages in any faster: they wait for memory.
const MOST_THREADS: usize = 16;

/// What is touched before the rest of a piece is asked for: a huge page comes in whole at the first touch.
const HUGE_PAGE: usize = 2 << 20;

/// The pages of some memory, and how to have them. With neither way it is left to the driver.
#[derive(Debug)]
pub(super) struct Population {
    /// The memory's own bytes.
    bytes: Range<usize>,
    pieces: Pieces,
    /// First by a write every so many bytes, from this address on. A fault takes the lock of one mapping, the advice that of
    /// the address space: with huge pages, touching them was 1.7 times as fast (`ci/measure/populate.cpp`).
    touch: Option<Touch>,
    /// Then by this advice, whatever is not there yet.
    advice: Option<libc::c_int>,
    /// Whether the pages are of a reserve of huge ones.
    of_reserve: bool,
}

#[derive(Debug, Clone, Copy)]
struct Touch {
    start: Handle<u8>,
    step: usize,
}

impl Population {
    /// The pages of `memory`, to be brought in while it is borrowed.
    pub(super) fn of<M: HostMemory>(memory: &mut M, flags: RegisterFlags) -> Result<Self> {
        let bytes = system::range_of(memory.as_ptr(), memory.byte_len())?;
        // A shared file that is written would be written back, also if the driver then refuses its pages.
        let shared_file = memory.file().is_some() && !memory.is_copy_on_write();
        let write = memory.is_writable() && !flags.contains(RegisterFlags::READ_ONLY) && !shared_file;
        let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        // Linux has the advices since 5.14.
        let advice = advice_is_known().then_some(advice);
        let step = if advice.is_some() { HUGE_PAGE } else { page_size() };
        // Where a limit leaves no page of a reserve, a touch raises SIGBUS, and the advice is an error.
        let of_reserve = memory.page_size() > page_size();
        let touch = memory.touch().filter(|_| write && !of_reserve);
        let touch = touch.map(|start| Touch { start: Handle::new(start), step });
        let pieces = Pieces::new(system::pages_around(&bytes), PIECE.max(memory.page_size()));
        Ok(Self { bytes, pieces, touch, advice, of_reserve })
    }

    /// The pages of a range of any owner's, if they are many, and all of them private and writable: what writing to others
    /// would do beyond bringing them in, is not known here.
    pub(super) fn of_private(bytes: &Range<usize>) -> Option<Self> {
        let pages = system::pages_around(bytes);
        let pieces = Pieces::new(pages.clone(), PIECE);
        let wanted = pieces.count() > 1 && advice_is_known() && system::is_private_and_writable(&pages);
        let advice = Some(libc::MADV_POPULATE_WRITE);
        wanted.then(|| Self { bytes: bytes.clone(), pieces, touch: None, advice, of_reserve: false })
    }

    /// Brings all pages in, then calls `register`. Beside the last pages it would end no sooner: both want the same locks
    /// (`ci/measure/populate.cpp`).
    pub(super) fn populate_and(
        &self,
        options: &RegisterOptions<'_>,
        register: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let total = self.bytes.len();
        self.expect_memory()?;
        let team = Team::new(self, options.cancel);
        thread::scope(|scope| {
            let _stop = Stop(&team);
            for _ in 1..self.threads(options.threads) {
                // A thread that the system does not give is one fewer.
                if thread::Builder::new().spawn_scoped(scope, || team.work(&|_| {})).is_err() {
                    break;
                }
            }
            team.work(&|bytes| options.tell(Progress::Populating { bytes, total }));
        });
        team.result()?;
        options.tell(Progress::Populating { bytes: total, total });
        options.tell(Progress::Registering);
        register()
    }

    /// Refuses what the system has no memory for. It would not refuse by itself, but end a process.
    fn expect_memory(&self) -> Result<()> {
        // A reserve of huge pages is no part of what is available, and refuses by itself.
        let wanted = self.bytes.len();
        if wanted < PIECE || self.of_reserve {
            return Ok(());
        }
        let Some(available) = system::available_memory().filter(|available| *available < wanted) else {
            return Ok(());
        };
        let resident = PageReport::of(system::pages_around(&self.bytes))?.resident;
        let bytes = wanted.saturating_sub(resident);
        if bytes > available { Err(Error::OutOfHostMemory { bytes, available }) } else { Ok(()) }
    }

    /// How many threads have something to do.
    fn threads(&self, wanted: usize) -> usize {
        let cores = || thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
        let wanted = if wanted == 0 { cores() } else { wanted };
        let nothing = self.touch.is_none() && self.advice.is_none();
        if nothing { 1 } else { wanted.min(self.pieces.count()) }
    }

    fn bring_in(&self, piece: &Range<usize>) -> Result<()> {
        if let Some(touch) = self.touch {
            touch.each(&self.bytes, piece);
        }
        self.advice.map_or(Ok(()), |advice| advise(piece, advice, &self.bytes))
    }
}

/// The threads that bring pages in, and what became of their work.
struct Team<'p> {
    pages: &'p Population,
    cancel: Option<&'p CancelToken>,
    /// The next piece to take.
    next: AtomicUsize,
    /// Bytes that are there.
    done: AtomicUsize,
    /// Set after the failure, if there is one.
    stop: AtomicBool,
    failure: Mutex<Option<Error>>,
}

impl<'p> Team<'p> {
    fn new(pages: &'p Population, cancel: Option<&'p CancelToken>) -> Self {
        Self {
            pages,
            cancel,
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// Takes pieces until there are none.
    fn work(&self, tell: &dyn Fn(usize)) {
        while !self.stop.load(Ordering::Acquire) && !self.is_cancelled() {
            let Some(piece) = self.pages.pieces.get(self.next.fetch_add(1, Ordering::Relaxed)) else {
                return;
            };
            let bytes = overlap(&piece, &self.pages.bytes).len();
            if let Err(error) = self.pages.bring_in(&piece) {
                lock(&self.failure).get_or_insert(error);
                self.stop.store(true, Ordering::Release);
                return;
            }
            let before = self.done.fetch_add(bytes, Ordering::Relaxed);
            tell(before.saturating_add(bytes));
        }
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(CancelToken::is_cancelled)
    }

    fn result(&self) -> Result<()> {
        match &*lock(&self.failure) {
            Some(error) => Err(error.clone()),
            None if self.is_cancelled() => Err(Error::Cancelled),
            None => Ok(()),
        }
    }
}

/// Ends the work of the others with the calling thread's: no piece is left then, or it has panicked.
struct Stop<'t, 'p>(&'t Team<'p>);

impl Drop for Stop<'_, '_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
    }
}

/// Whether the kernel knows the populating advices; asked with an empty range, which any known advice is right for.
fn advice_is_known() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let start = std::ptr::without_provenance_mut(page_size());
        // SAFETY: no page is named.
        unsafe { libc::madvise(start, 0, libc::MADV_POPULATE_WRITE) == 0 }
    })
}

/// Gives the advice for some pages of a `whole`.
pub(super) fn advise(pages: &Range<usize>, advice: libc::c_int, whole: &Range<usize>) -> Result<()> {
    let start = std::ptr::without_provenance_mut(pages.start);
    loop {
        // SAFETY: these advices change no byte; addresses that are not mapped are an error.
        if unsafe { libc::madvise(start, pages.len(), advice) } == 0 {
            return Ok(());
        }
        let source = io::Error::last_os_error();
        match source.raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // The access would have raised SIGBUS.
            Some(libc::EFAULT) => return Err(Error::NoPage { range: pages.clone() }),
            Some(libc::ENOMEM | libc::EHWPOISON) => {
                let failed = Error::Io { call: "madvise(MADV_POPULATE)", source: source.into() };
                let range = whole.clone();
                return Err(system::hole_in(whole).map_or(failed, |hole| Error::NotMapped { range, hole }));
            }
            // Pages of a device, say, which cannot be populated. What can be registered is the driver's to judge.
            _ => return Ok(()),
        }
    }
}

impl Touch {
    /// Writes a byte of `piece`, as far as it lies in `bytes`, at its start and at each multiple of the step, with the value
    /// it has.
    fn each(self, bytes: &Range<usize>, piece: &Range<usize>) {
        let part = overlap(piece, bytes);
        let mut at = part.start;
        while at < part.end {
            let byte = self.start.raw().wrapping_add(at.wrapping_sub(bytes.start));
            // SAFETY: inside the memory, whose owner is borrowed mutably and gave the address to be read and written through.
            let value = unsafe { byte.read_volatile() };
            // SAFETY: as above; no other thread here has this page.
            unsafe { byte.write_volatile(value) };
            at = at.div_euclid(self.step).saturating_add(1).saturating_mul(self.step);
        }
    }
}

/// A range of whole pages in pieces, cut where addresses are multiples of the pieces' size.
#[derive(Debug, Clone)]
struct Pieces {
    range: Range<usize>,
    size: usize,
}

impl Pieces {
    fn new(range: Range<usize>, size: usize) -> Self {
        Self { range, size: size.max(1) }
    }

    fn count(&self) -> usize {
        let Range { start, end } = self.range;
        if self.range.is_empty() {
            return 0;
        }
        end.div_ceil(self.size).saturating_sub(start.div_euclid(self.size))
    }

    fn get(&self, index: usize) -> Option<Range<usize>> {
        let number = self.range.start.div_euclid(self.size).checked_add(index)?;
        let start = number.checked_mul(self.size)?;
        let piece = overlap(&(start..start.saturating_add(self.size)), &self.range);
        (!piece.is_empty()).then_some(piece)
    }
}

/// What two ranges have in common.
fn overlap(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    one.start.max(other.start)..one.end.min(other.end)
}

#[cfg(test)]
mod tests;
