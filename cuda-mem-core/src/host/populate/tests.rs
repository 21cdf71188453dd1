//! Bringing pages in without a driver.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::host::{HostMapping, MappingOptions};

const LEN: usize = 1_000_001;

fn fresh() -> HostMapping {
    HostMapping::new(LEN, &MappingOptions::new()).unwrap()
}

/// The pages of some memory in pieces of one page each.
fn population(memory: &mut HostMapping, how: impl FnOnce(Handle<u8>) -> How) -> Population {
    let bytes = system::range_of(HostMemory::as_ptr(memory), LEN).unwrap();
    let pieces = Pieces::new(system::pages_around(&bytes), page_size());
    Population { bytes, pieces, how: how(Handle::new(memory.touch().unwrap())) }
}

fn write(_: Handle<u8>) -> How {
    How::Advice(libc::MADV_POPULATE_WRITE)
}

#[test]
fn every_page_is_there_before_a_registration_afterwards() {
    for (how, threads) in [(write as fn(_) -> _, 1), (write, 3), (How::Touch, 1), (How::Touch, 3)] {
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
        population.populate(&options, Register::Afterwards, &register).unwrap();
        let (resident, mapped) = residents.get();
        assert!(resident == mapped && mapped >= LEN, "{resident} of {mapped}");
        let all = Progress::Populating { bytes: LEN, total: LEN };
        assert!(seen.into_inner().ends_with(&[all, Progress::Registering]));
        let bytes = memory.as_slice();
        assert_eq!((bytes[4999], bytes[5000], bytes[5999], bytes[6000], bytes[LEN - 1]), (0, 7, 7, 0, 0));
    }
}

#[test]
fn a_registration_beside_the_rest_is_called_once() {
    for eighths in [0, 4, 8] {
        let mut memory = fresh();
        let population = population(&mut memory, write);
        let (told, calls) = (Cell::new(0), Cell::new(0));
        let tell = |progress| {
            if progress == Progress::Registering {
                assert_eq!(calls.get(), 0);
                told.set(told.get() + 1);
            }
        };
        let options = RegisterOptions::new().threads(3).progress(&tell);
        let register = || {
            calls.set(calls.get() + 1);
            Ok(())
        };
        population.populate(&options, Register::Beside { eighths }, &register).unwrap();
        assert_eq!((told.get(), calls.get()), (1, 1));
        let refuse = || Err(Error::Forked);
        let error = population.populate(&options.progress(&|_| {}), Register::Beside { eighths }, &refuse);
        assert!(matches!(error, Err(Error::Forked)));
    }
}

#[test]
fn a_failure_or_a_cancellation_stops_before_the_registration() {
    let never = || panic!("it must not be registered");
    for when in [Register::Afterwards, Register::Beside { eighths: 8 }] {
        // Nothing is mapped at the lowest addresses.
        let bytes = page_size()..1 << 16;
        let pieces = Pieces::new(bytes.clone(), page_size());
        let population =
            Population { bytes: bytes.clone(), pieces, how: How::Advice(libc::MADV_POPULATE_READ) };
        let error = population.populate(&RegisterOptions::new().threads(4), when, &never).unwrap_err();
        assert!(
            matches!(&error, Error::NotMapped { range, hole } if *range == bytes && *hole == bytes),
            "{error}"
        );

        let mut memory = fresh();
        let population = self::population(&mut memory, write);
        let (token, reports) = (CancelToken::new(), Cell::new(0));
        let tell = |_| {
            reports.set(reports.get() + 1);
            token.cancel();
        };
        let options = RegisterOptions::new().threads(1).progress(&tell).cancel(&token);
        let error = population.populate(&options, when, &never).unwrap_err();
        assert!(matches!(error, Error::Cancelled), "{error}");
        assert_eq!(reports.get(), 1, "it is heard before the next piece");
    }
}

#[test]
fn a_panic_in_the_callback_goes_on() {
    let mut memory = fresh();
    let population = population(&mut memory, How::Touch);
    let tell = |_| panic!("of the callback");
    let options = RegisterOptions::new().threads(4).progress(&tell);
    let run = || population.populate_and(&options, &|| panic!("it must not be registered"));
    let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"of the callback"));
}
