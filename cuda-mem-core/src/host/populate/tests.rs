//! Bringing pages in without a driver.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;

use super::*;
use crate::host::{HostMapping, MappingOptions};

const LEN: usize = 1_000_001;

fn fresh() -> HostMapping {
    HostMapping::new(LEN, &MappingOptions::new()).unwrap()
}

/// A way to have pages.
type How = fn(&mut HostMapping) -> (Option<Touch>, Option<libc::c_int>);

/// The pages of some memory in pieces of one page each.
fn population(memory: &mut HostMapping, how: How) -> Population {
    let bytes = system::range_of(HostMemory::as_ptr(memory), LEN).unwrap();
    let pieces = Pieces::new(system::pages_around(&bytes), page_size());
    let (touch, advice) = how(memory);
    Population { bytes, pieces, touch, advice, of_reserve: false }
}

fn write(_: &mut HostMapping) -> (Option<Touch>, Option<libc::c_int>) {
    (None, Some(libc::MADV_POPULATE_WRITE))
}

fn touch(memory: &mut HostMapping) -> (Option<Touch>, Option<libc::c_int>) {
    (Some(Touch { start: Handle::new(memory.touch().unwrap()), step: page_size() }), None)
}

fn both(memory: &mut HostMapping) -> (Option<Touch>, Option<libc::c_int>) {
    (touch(memory).0, write(memory).1)
}

#[test]
fn every_page_is_there_before_a_registration_afterwards() {
    let ways: [How; 3] = [write, touch, both];
    for (how, threads) in ways.into_iter().flat_map(|how| [(how, 1), (how, 3)]) {
        let mut memory = fresh();
        memory.as_mut_slice()[5000..6000].fill(7);
        let population = population(&mut memory, how);
        let (seen, residents) = (RefCell::new(Vec::new()), Cell::new((0, 0)));
        let tell = |progress| seen.borrow_mut().push(progress);
        let options = RegisterOptions::new().threads(threads).progress(&tell);
        let register = || {
            let report = memory.residency()?;
            residents.set((report.resident, report.mapped));
            Ok(())
        };
        population.populate_and(&options, &register).unwrap();
        let (resident, mapped) = residents.get();
        assert!(resident == mapped && mapped >= LEN, "{resident} of {mapped}");
        let all = Progress::Populating { bytes: LEN, total: LEN };
        assert!(seen.into_inner().ends_with(&[all, Progress::Registering]));
        let bytes = memory.as_slice();
        assert_eq!((bytes[4999], bytes[5000], bytes[5999], bytes[6000], bytes[LEN - 1]), (0, 7, 7, 0, 0));
    }
}

#[test]
fn a_failure_or_a_cancellation_stops_before_the_registration() {
    let never = || panic!("it must not be registered");
    // Nothing is mapped at the lowest addresses.
    let bytes = page_size()..1 << 16;
    let pieces = Pieces::new(bytes.clone(), page_size());
    let advice = Some(libc::MADV_POPULATE_READ);
    let unmapped = Population { bytes: bytes.clone(), pieces, touch: None, advice, of_reserve: false };
    let error = unmapped.populate_and(&RegisterOptions::new().threads(4), &never).unwrap_err();
    assert!(
        matches!(&error, Error::NotMapped { range, hole } if *range == bytes && *hole == bytes),
        "{error}"
    );

    let mut memory = fresh();
    let population = population(&mut memory, write);
    let (token, reports) = (CancelToken::new(), Cell::new(0));
    let tell = |_| {
        reports.set(reports.get() + 1);
        token.cancel();
    };
    let options = RegisterOptions::new().threads(1).progress(&tell).cancel(&token);
    let error = population.populate_and(&options, &never).unwrap_err();
    assert!(matches!(error, Error::Cancelled), "{error}");
    assert_eq!(reports.get(), 1, "it is heard before the next piece");
}

#[test]
fn more_than_the_system_has_is_refused_before_a_page_is_brought_in() {
    // Addresses of our own without memory, more than anybody has.
    const VAST: usize = 1 << 42;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), VAST, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    let bytes = start.addr()..start.addr() + VAST;
    let pieces = Pieces::new(bytes.clone(), PIECE);
    let advice = Some(libc::MADV_POPULATE_WRITE);
    let vast = Population { bytes, pieces, touch: None, advice, of_reserve: false };
    let never = || panic!("it must not be registered");
    let error = vast.populate_and(&RegisterOptions::new(), &never).unwrap_err();
    assert!(
        matches!(error, Error::OutOfHostMemory { bytes, available } if bytes == VAST && available > 0),
        "{error}"
    );
    // SAFETY: the mapping made above, which nobody else knows.
    assert_eq!(unsafe { libc::munmap(start, VAST) }, 0);
}

#[test]
fn a_panic_in_the_callback_goes_on() {
    let mut memory = fresh();
    let population = population(&mut memory, touch);
    let tell = |_| panic!("of the callback");
    let options = RegisterOptions::new().threads(4).progress(&tell);
    let run = || population.populate_and(&options, &|| panic!("it must not be registered"));
    let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"of the callback"));
}

/// Memory whose owner says that it is of huge pages of a reserve.
struct OfReserve(HostMapping);

// SAFETY: the mapping's memory, and the mapping stays in the value.
unsafe impl HostMemory for OfReserve {
    fn as_ptr(&self) -> *const u8 {
        HostMemory::as_ptr(&self.0)
    }

    fn byte_len(&self) -> usize {
        self.0.byte_len()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        2 << 20
    }

    fn touch(&mut self) -> Option<*mut u8> {
        self.0.touch()
    }
}

#[test]
fn pages_of_a_reserve_are_asked_for_and_not_touched() {
    let ways = |population: Population| (population.touch.is_some(), population.advice);
    let (touched, advice) = ways(Population::of(&mut fresh(), RegisterFlags::PORTABLE).unwrap());
    assert!(touched);
    let population = Population::of(&mut OfReserve(fresh()), RegisterFlags::PORTABLE).unwrap();
    assert_eq!(ways(population), (false, advice));
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
