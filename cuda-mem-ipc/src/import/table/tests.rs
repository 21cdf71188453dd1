use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const LONG: Duration = Duration::from_secs(60);

/// Memory as a driver has it that lets nobody have it twice.
#[derive(Default)]
struct Driver {
    open: AtomicUsize,
    imports: AtomicUsize,
    closes: AtomicUsize,
}

/// One import. Its fields are dropped behind the release.
struct Memory {
    driver: StdArc<Driver>,
    _departure: Box<dyn Send + Sync>,
}

impl Memory {
    fn import(driver: &StdArc<Driver>, departure: Box<dyn Send + Sync>) -> Self {
        let before = driver.open.fetch_add(1, Ordering::SeqCst);
        assert_eq!(before, 0, "imported while it was imported, or while it was on its way out");
        driver.imports.fetch_add(1, Ordering::SeqCst);
        Self { driver: StdArc::clone(driver), _departure: departure }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        assert_eq!(self.driver.open.fetch_sub(1, Ordering::SeqCst), 1);
        self.driver.closes.fetch_add(1, Ordering::SeqCst);
    }
}

fn share(table: &Arc<Table<u32, Memory>>, driver: &StdArc<Driver>) -> StdArc<Memory> {
    let import = |departure| Ok::<_, ()>(Memory::import(driver, departure));
    match Table::import(table, &7, LONG, || {}, import) {
        Ok(value) => value,
        Err(error) => panic!("{error:?}"),
    }
}

fn expect_all_gone(table: &Table<u32, Memory>, driver: &Driver) {
    assert_eq!(driver.open.load(Ordering::SeqCst), 0);
    assert_eq!(driver.imports.load(Ordering::SeqCst), driver.closes.load(Ordering::SeqCst));
    assert_eq!(table.len(), 0);
}

/// Every way in which two threads can come and go, one of them twice.
#[cfg(loom)]
#[test]
fn loom_nobody_gets_what_is_on_its_way_out() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let (table, driver) = (Arc::new(Table::new()), StdArc::new(Driver::default()));
        let other = {
            let (table, driver) = (Arc::clone(&table), StdArc::clone(&driver));
            loom::thread::spawn(move || drop(share(&table, &driver)))
        };
        drop(share(&table, &driver));
        drop(share(&table, &driver));
        other.join().unwrap();
        expect_all_gone(&table, &driver);
    });
}

#[cfg(not(loom))]
mod real {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn shares_are_of_one_import_and_the_last_gives_it_back() {
        let (table, driver) = (Arc::new(Table::new()), Arc::new(Driver::default()));
        let [one, two, three] = [(); 3].map(|()| share(&table, &driver));
        assert!(Arc::ptr_eq(&one, &two) && Arc::ptr_eq(&one, &three));
        drop((one, two));
        assert_eq!(driver.open.load(Ordering::SeqCst), 1);
        drop(three);
        expect_all_gone(&table, &driver);
        drop(share(&table, &driver));
        assert_eq!(driver.imports.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_failed_import_leaves_nothing_and_the_next_may_try() {
        let (table, driver) = (Arc::new(Table::<u32, Memory>::new()), Arc::new(Driver::default()));
        let failed = Table::import(&table, &7, LONG, || {}, |_| Err("no")).err();
        assert_eq!(failed, Some(ImportError::Failed("no")));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            drop(Table::import(&table, &7, LONG, || {}, |_| -> Result<_, ()> { panic!("on purpose") }));
        }));
        assert!(panicked.is_err());
        assert_eq!(table.len(), 0);
        drop(share(&table, &driver));
        expect_all_gone(&table, &driver);
    }

    #[test]
    fn who_comes_while_it_goes_waits_for_its_end_and_not_for_ever() {
        let (table, driver) = (Arc::new(Table::new()), Arc::new(Driver::default()));
        // The owner keeps the guard beyond the memory's end, as one does whose release was put off.
        let kept = Mutex::new(None);
        let import = |guard| {
            *kept.lock().unwrap() = Some(guard);
            Ok::<_, ()>(Memory::import(&driver, Box::new(())))
        };
        drop(Table::import(&table, &7, LONG, || {}, import).ok().unwrap());
        assert_eq!(table.len(), 1);
        let nudges = AtomicUsize::new(0);
        let nudge = || {
            nudges.fetch_add(1, Ordering::SeqCst);
        };
        let never = |_| -> Result<Memory, ()> { panic!("it is not gone yet") };
        let short = Duration::from_millis(20);
        let late = Table::import(&table, &7, short, nudge, never).err();
        assert_eq!(late, Some(ImportError::Timeout(short)));
        assert!(nudges.load(Ordering::SeqCst) > 0);
        // A nudge is what ends it.
        let nudge = || drop(kept.lock().unwrap().take());
        let import = |guard| Ok::<_, ()>(Memory::import(&driver, guard));
        drop(Table::import(&table, &7, LONG, nudge, import).ok().unwrap());
        expect_all_gone(&table, &driver);
    }

    #[test]
    fn different_keys_do_not_wait_for_each_other() {
        let table = Arc::new(Table::<u32, u32>::new());
        let both_in = Barrier::new(2);
        std::thread::scope(|scope| {
            for key in [1, 2] {
                let (table, both_in) = (&table, &both_in);
                scope.spawn(move || {
                    let import = |guard: Box<dyn Send + Sync>| {
                        both_in.wait();
                        drop(guard);
                        Ok::<_, ()>(key)
                    };
                    let value = Table::import(table, &key, LONG, || {}, import).ok().unwrap();
                    assert_eq!(*value, key);
                });
            }
        });
    }

    #[test]
    fn threads_that_come_and_go_never_have_it_twice() {
        let (table, driver) = (Arc::new(Table::new()), Arc::new(Driver::default()));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (table, driver) = (&table, &driver);
                scope.spawn(move || {
                    for round in 0..5000 {
                        let one = share(table, driver);
                        let two = (round % 3 == thread % 3).then(|| share(table, driver));
                        drop(one);
                        drop(two);
                    }
                });
            }
        });
        expect_all_gone(&table, &driver);
        assert!(driver.imports.load(Ordering::SeqCst) > 0);
    }
}
