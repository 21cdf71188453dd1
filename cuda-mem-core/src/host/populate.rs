//! Bringing pages in, by several threads, before the driver pins them.
//!
//! The driver faults pages in one after the other; the zeroing of new pages is most of the time that a registration takes.
//! The threads here make no driver call, so captures do not notice them.
//!
//! # Safety
//!
//! `madvise` with the populating advices changes no byte of memory, whoever owns it. Population are touched only through an
//! address that the memory's owner gave for that, while the owner is borrowed mutably.

#![allow(unsafe_code, reason = "advises the kernel and touches pages")]

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use super::memory::HostMemory;
use super::options::{CancelToken, Progress, RegisterOptions};
use super::registered::RegisterFlags;
use super::system::{self, page_size};
use crate::error::{Error, Result};
use crate::handle::Handle;

/// What a thread takes at a time: a few milliseconds of zeroing, so that a cancellation is heard soon, and a whole number of
/// huge pages, so that two threads never wait for one page.
const PIECE: usize = 32 << 20;

/// More threads than this were not seen to bring pages in any faster: they wait for memory.
const MOST_THREADS: usize = 16;

/// When the registration starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Register {
    /// When all pieces are there.
    Afterwards,
    /// When all pieces are taken, and the calling thread has nothing else to do: the driver goes through the pages in the
    /// order in which they come.
    BesideTheLastPieces,
}

const REGISTER: Register = Register::Afterwards;

/// The pages of some memory, and how to have them.
#[derive(Debug)]
pub(super) struct Population {
    /// The memory's own bytes.
    bytes: Range<usize>,
    pieces: Pieces,
    how: How,
}

#[derive(Debug, Clone, Copy)]
enum How {
    /// By this advice.
    Advice(libc::c_int),
    /// By a write to each, from this address on.
    Touch(Handle<u8>),
    /// Not at all: the driver does it.
    Leave,
}

impl Population {
    /// The pages of `memory`, which nobody else may touch while they are brought in.
    pub(super) fn of<M: HostMemory>(memory: &mut M, flags: RegisterFlags) -> Result<Self> {
        let bytes = system::range_of(memory.as_ptr(), memory.byte_len())?;
        // A shared file that is written would be written back, also if the driver then refuses its pages.
        let shared_file = memory.file().is_some() && !memory.is_copy_on_write();
        let write = memory.is_writable() && !flags.contains(RegisterFlags::READ_ONLY) && !shared_file;
        let how = if advice_is_known() {
            How::Advice(if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ })
        } else {
            // Linux before 5.14.
            memory.touch().filter(|_| write).map_or(How::Leave, |start| How::Touch(Handle::new(start)))
        };
        let pieces = Pieces::new(system::pages_around(&bytes), PIECE.max(memory.page_size()));
        Ok(Self { bytes, pieces, how })
    }

    /// The pages of a range of any owner's, if they are many, and all of them private and writable: what writing to others
    /// would do beyond bringing them in, is not known here.
    pub(super) fn of_private(bytes: &Range<usize>) -> Option<Self> {
        let pages = system::pages_around(bytes);
        let pieces = Pieces::new(pages.clone(), PIECE);
        let wanted = pieces.count() > 1 && advice_is_known() && system::is_private_and_writable(&pages);
        wanted.then(|| Self { bytes: bytes.clone(), pieces, how: How::Advice(libc::MADV_POPULATE_WRITE) })
    }

    /// Brings all pages in, and calls `register`.
    pub(super) fn populate_and(
        &self,
        options: &RegisterOptions<'_>,
        register: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        self.populate(options, REGISTER, register)
    }

    fn populate(
        &self,
        options: &RegisterOptions<'_>,
        when: Register,
        register: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let total = self.bytes.len();
        let team = Team::new(self, options.cancel);
        let register = || {
            team.result()?;
            options.tell(Progress::Registering);
            register()
        };
        thread::scope(|scope| {
            let _stop = Stop(&team);
            for _ in 1..self.threads(options.threads) {
                // A thread that the system does not give is one fewer.
                if thread::Builder::new().spawn_scoped(scope, || team.work(&|_| {})).is_err() {
                    break;
                }
            }
            team.work(&|bytes| options.tell(Progress::Populating { bytes, total }));
            (when == Register::BesideTheLastPieces).then(register)
        })
        .unwrap_or_else(|| {
            if team.result().is_ok() {
                options.tell(Progress::Populating { bytes: total, total });
            }
            register()
        })
    }

    /// How many threads have something to do.
    fn threads(&self, wanted: usize) -> usize {
        let cores = || thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
        let wanted = if wanted == 0 { cores() } else { wanted };
        if matches!(self.how, How::Leave) { 1 } else { wanted.min(self.pieces.count()) }
    }

    fn bring_in(&self, piece: Range<usize>) -> Result<()> {
        match self.how {
            How::Advice(advice) => advise(piece, advice),
            How::Touch(start) => {
                touch(start, &self.bytes, &piece);
                Ok(())
            }
            How::Leave => Ok(()),
        }
    }
}

/// The threads that bring pages in, and what became of their work.
struct Team<'p> {
    pages: &'p Population,
    cancel: Option<&'p CancelToken>,
    /// The next piece to take. In ascending order, as the driver comes after.
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
            if let Err(error) = self.pages.bring_in(piece) {
                self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
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
        match &*self.failure.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error.clone()),
            None if self.is_cancelled() => Err(Error::Cancelled),
            None => Ok(()),
        }
    }
}

/// Ends the work of the others when the calling thread's has ended: no piece is left then, or its callback has panicked.
struct Stop<'t, 'p>(&'t Team<'p>);

impl Drop for Stop<'_, '_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
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

fn overlap(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    one.start.max(other.start)..one.end.min(other.end)
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

pub(super) fn advise(range: Range<usize>, advice: libc::c_int) -> Result<()> {
    let start = std::ptr::without_provenance_mut(range.start);
    loop {
        // SAFETY: these advices change no byte; addresses that are not mapped are an error.
        if unsafe { libc::madvise(start, range.len(), advice) } == 0 {
            return Ok(());
        }
        let source = io::Error::last_os_error();
        match source.raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // The access would have raised SIGBUS.
            Some(libc::EFAULT) => return Err(Error::NoPage { range }),
            Some(libc::ENOMEM | libc::EHWPOISON) => {
                let failed = Error::Io { call: "madvise(MADV_POPULATE)", source: source.into() };
                return Err(system::hole_in(&range).map_or(failed, |hole| Error::NotMapped { range, hole }));
            }
            // Population of a device, say, which cannot be populated. What can be registered is the driver's to judge.
            _ => return Ok(()),
        }
    }
}

/// Writes one byte of each page of `piece` that lies in `bytes`, which start at `start`, with the value it has.
fn touch(start: Handle<u8>, bytes: &Range<usize>, piece: &Range<usize>) {
    let part = overlap(piece, bytes);
    let mut at = part.start;
    while at < part.end {
        let byte = start.raw().wrapping_add(at.wrapping_sub(bytes.start));
        // SAFETY: inside the memory, whose owner is borrowed mutably and gave the address to be read and written through.
        let value = unsafe { byte.read_volatile() };
        // SAFETY: as above; no other thread here has this page.
        unsafe { byte.write_volatile(value) };
        at = system::pages_around(&(at..at.saturating_add(1))).end;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use proptest::prelude::*;

    use super::*;

    fn population(memory: &[u8], piece: usize, how: How) -> Population {
        let bytes = system::range_of(memory.as_ptr(), memory.len()).unwrap();
        let pieces = Pieces::new(system::pages_around(&bytes), piece);
        Population { bytes, pieces, how }
    }

    proptest! {
        #[test]
        fn pieces_are_the_range_cut_at_multiples(start in 0..100_000usize, len in 0..100_000usize, size in 1..5000usize) {
            let pieces = Pieces::new(start..start + len, size);
            let all: Vec<_> = (0..pieces.count()).map(|index| pieces.get(index).unwrap()).collect();
            prop_assert_eq!(pieces.get(pieces.count()), None);
            let mut at = start;
            for piece in &all {
                prop_assert_eq!(piece.start, at);
                prop_assert!(!piece.is_empty() && piece.len() <= size);
                prop_assert!(piece.end.is_multiple_of(size) || piece.end == start + len);
                at = piece.end;
            }
            prop_assert_eq!(at, start + len);
        }
    }

    #[test]
    fn pieces_at_the_end_of_the_address_space() {
        let last = usize::MAX - 4095..usize::MAX;
        let pieces = Pieces::new(last.clone(), 1 << 20);
        assert_eq!((pieces.count(), pieces.get(0), pieces.get(1)), (1, Some(last), None));
    }

    #[test]
    fn the_last_report_comes_before_the_registration_whichever_the_order() {
        for when in [Register::Afterwards, Register::BesideTheLastPieces] {
            let memory = vec![1u8; 1_000_001];
            let population = population(&memory, 4096, How::Leave);
            let (seen, registered) = (RefCell::new(Vec::new()), Cell::new(false));
            let tell = |progress| seen.borrow_mut().push((progress, registered.get()));
            let options = RegisterOptions::new().progress(&tell);
            let register = || {
                registered.set(true);
                Ok(())
            };
            population.populate(&options, when, &register).unwrap();
            assert!(registered.get());
            let seen = seen.into_inner();
            assert!(seen.iter().all(|&(_, registered)| !registered));
            assert_eq!(seen.last().unwrap().0, Progress::Registering);
            let before = seen[seen.len() - 2].0;
            assert_eq!(before, Progress::Populating { bytes: 1_000_001, total: 1_000_001 });
        }
    }

    #[test]
    fn a_failure_or_a_cancellation_stops_before_the_registration() {
        let never = || panic!("it must not be registered");
        for when in [Register::Afterwards, Register::BesideTheLastPieces] {
            // Nothing is mapped at the lowest addresses.
            let bytes = page_size()..1 << 16;
            let pieces = Pieces::new(bytes.clone(), page_size());
            let population = Population { bytes, pieces, how: How::Advice(libc::MADV_POPULATE_READ) };
            let error = population.populate(&RegisterOptions::new().threads(4), when, &never).unwrap_err();
            assert!(matches!(error, Error::NotMapped { .. }), "{error}");

            let memory = vec![1u8; 1_000_000];
            let population = self::population(&memory, 4096, How::Leave);
            let (token, pieces) = (CancelToken::new(), Cell::new(0));
            let tell = |_| {
                pieces.set(pieces.get() + 1);
                token.cancel();
            };
            let options = RegisterOptions::new().progress(&tell).cancel(&token);
            let error = population.populate(&options, when, &never).unwrap_err();
            assert!(matches!(error, Error::Cancelled), "{error}");
            assert_eq!(pieces.get(), 1, "it is heard before the next piece");
        }
    }

    #[test]
    fn a_panic_in_the_callback_goes_on_and_stops_the_others() {
        let mut memory = vec![1u8; 64 << 20];
        let start = Handle::new(memory.as_mut_ptr());
        let population = population(&memory, 4096, How::Touch(start));
        let tell = |_| panic!("of the callback");
        let options = RegisterOptions::new().threads(4).progress(&tell);
        let run = || population.populate_and(&options, &|| panic!("it must not be registered"));
        let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"of the callback"));
    }

    #[test]
    fn touching_changes_nothing_and_brings_every_page_in() {
        let options = super::super::MappingOptions::new();
        let mut memory = super::super::HostMapping::new(3_000_001, &options).unwrap();
        memory.as_mut_slice()[5000..6000].fill(7);
        let expected = memory.as_slice()[..10_000].to_vec();
        let bytes = system::range_of(HostMemory::as_ptr(&memory), 3_000_001).unwrap();
        let pieces = Pieces::new(system::pages_around(&bytes), 1 << 16);
        let how = How::Touch(Handle::new(memory.touch().unwrap()));
        let population = Population { bytes, pieces, how };
        population.populate_and(&RegisterOptions::new().threads(3), &|| Ok(())).unwrap();
        let report = memory.residency().unwrap();
        assert_eq!(report.resident, report.mapped);
        assert_eq!(memory.as_slice()[..10_000], expected);
        assert!(memory.as_slice()[10_000..].iter().all(|&byte| byte == 0));
    }
}
