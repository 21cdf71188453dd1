use super::*;

/// An account, and the sizes of what its thread keeps.
#[derive(Default)]
struct Thread {
    purse: Purse,
    kept: Vec<usize>,
}

impl Account for Thread {
    fn purse(&mut self) -> &mut Purse {
        &mut self.purse
    }
}

/// As the thread caches use it: takes what the thread keeps, else something new.
fn take(ledger: &Ledger<Thread>, thread: &TryCell<Thread>, bytes: usize) {
    let place = |thread: &Thread| thread.kept.iter().position(|kept| *kept == bytes);
    let taken = thread.try_with(|thread| {
        let place = place(thread)?;
        ledger.take(&mut thread.purse, bytes).then(|| thread.kept.swap_remove(place))
    });
    if taken.flatten().is_none() {
        ledger.claim(bytes);
        thread.wait().with(|thread| {
            if let Some(place) = place(thread) {
                ledger.take_claimed(&mut thread.purse, bytes);
                thread.kept.swap_remove(place);
            }
        });
    }
}

fn give_back(ledger: &Ledger<Thread>, thread: &TryCell<Thread>, bytes: usize) {
    let kept = thread.try_with(|thread| {
        thread.kept.push(bytes);
        thread.purse.put(bytes);
    });
    if kept.is_none() {
        ledger.release(bytes);
    }
}

fn end(ledger: &Ledger<Thread>, thread: &Arc<TryCell<Thread>>) {
    thread.wait().with(|thread| ledger.release_all(&mut thread.purse));
    ledger.remove_account(thread, || {});
}

#[cfg(not(loom))]
mod sequential {
    use super::*;
    use proptest::prelude::*;

    const THREADS: usize = 4;

    #[derive(Debug, Clone)]
    enum Step {
        /// A thread takes this many granules.
        Take(usize, usize),
        /// A thread gives back what it or another took, and keeps it.
        GiveBack(usize, prop::sample::Index),
        /// A thread gives back what it does not keep.
        Release(prop::sample::Index),
        /// A thread's cache is trimmed.
        Trim(usize),
        /// A thread ends, and another begins.
        End(usize),
        ResetPeak,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let index = any::<prop::sample::Index>;
        let step = prop_oneof![
            8 => (0..THREADS, 1usize..5).prop_map(|(thread, size)| Step::Take(thread, size)),
            6 => (0..THREADS, index()).prop_map(|(thread, index)| Step::GiveBack(thread, index)),
            1 => index().prop_map(Step::Release),
            1 => (0..THREADS).prop_map(Step::Trim),
            1 => (0..THREADS).prop_map(Step::End),
            1 => Just(Step::ResetPeak),
        ];
        prop::collection::vec(step, 1..120)
    }

    fn begin(ledger: &Ledger<Thread>) -> Arc<TryCell<Thread>> {
        let thread = Arc::new(TryCell::new(Thread::default()));
        ledger.add_account(Arc::clone(&thread));
        thread
    }

    fn amount(live: &[usize]) -> Amount {
        Amount { count: live.len() as u64, bytes: live.iter().sum::<usize>() as u64 }
    }

    fn at_least(peak: Amount, now: Amount) -> Amount {
        Amount { count: peak.count.max(now.count), bytes: peak.bytes.max(now.bytes) }
    }

    proptest! {
        #[test]
        fn current_and_peaks_are_exact_while_threads_take_turns(steps in steps(), read_always in any::<bool>()) {
            let ledger = Ledger::new();
            let mut threads: Vec<_> = (0..THREADS).map(|_| begin(&ledger)).collect();
            let (mut live, mut peak) = (Vec::new(), Amount::default());
            for step in steps {
                match step {
                    Step::Take(thread, size) => {
                        take(&ledger, &threads[thread], size * 256);
                        live.push(size * 256);
                    }
                    Step::GiveBack(thread, index) if !live.is_empty() => {
                        let bytes = live.swap_remove(index.index(live.len()));
                        give_back(&ledger, &threads[thread], bytes);
                    }
                    Step::Release(index) if !live.is_empty() => {
                        ledger.release(live.swap_remove(index.index(live.len())));
                    }
                    Step::GiveBack(..) | Step::Release(_) => {}
                    Step::Trim(thread) => threads[thread].wait().with(|thread| {
                        ledger.release_all(&mut thread.purse);
                        thread.kept.clear();
                    }),
                    Step::End(thread) => {
                        end(&ledger, &threads[thread]);
                        threads[thread] = begin(&ledger);
                    }
                    Step::ResetPeak => {
                        ledger.reset_peak();
                        peak = amount(&live);
                    }
                }
                peak = at_least(peak, amount(&live));
                prop_assert_eq!(ledger.peak(), peak);
                for thread in &threads {
                    // What a thread keeps bounds its spare claim.
                    thread.wait().with(|thread| {
                        let kept = thread.kept.iter().fold(Packed::default(), |sum, bytes| sum.plus(Packed::one(*bytes)));
                        assert_eq!(thread.purse.kept, kept);
                        assert!(kept.covers(thread.purse.spare()));
                    });
                }
                // A read settles the accounts: what comes without one is to be seen too.
                if read_always {
                    prop_assert_eq!(ledger.current(|_| {}), amount(&live));
                }
            }
            prop_assert_eq!(ledger.current(|_| {}), amount(&live));
        }
    }

    #[test]
    fn a_thread_that_works_alone_leaves_the_gauge_alone() {
        let ledger = Ledger::new();
        let thread = begin(&ledger);
        let pairs = || {
            for bytes in [512, 4096, 256, 4096] {
                take(&ledger, &thread, bytes);
                give_back(&ledger, &thread, bytes);
            }
        };
        pairs();
        let claimed = ledger.gauge.current();
        pairs();
        assert_eq!(ledger.gauge.current(), claimed);
        assert_eq!(claimed, Amount { count: 1, bytes: 4096 }, "given back each time");
        assert_eq!(ledger.peak(), Amount { count: 1, bytes: 4096 });
    }

    #[test]
    fn without_turns_a_peak_may_count_what_others_had_but_misses_nothing() {
        let ledger = Ledger::new();
        let threads = [begin(&ledger), begin(&ledger)];
        for thread in &threads {
            take(&ledger, thread, 256);
            give_back(&ledger, thread, 256);
        }
        assert_eq!(ledger.peak().count, 1);
        lock(&ledger.books).turns = Turns { left: 0, since: Instant::now() + Duration::from_secs(3600) };
        take(&ledger, &threads[0], 256);
        assert_eq!(ledger.peak().count, 2, "the turns are not counted");
        assert_eq!(ledger.current(|_| {}), Amount { count: 1, bytes: 256 });
    }
}

#[cfg(loom)]
mod models {
    use super::*;
    use loom::thread;

    fn ledger() -> (loom::sync::Arc<Ledger<Thread>>, Vec<Arc<TryCell<Thread>>>) {
        let ledger = Ledger::new();
        let threads = (0..2).map(|_| Arc::new(TryCell::new(Thread::default()))).collect::<Vec<_>>();
        threads.iter().for_each(|thread| ledger.add_account(Arc::clone(thread)));
        (loom::sync::Arc::new(ledger), threads)
    }

    /// While one thread takes, gives back and ends, and another claims, no claim is lost and no peak is missed or made up.
    #[test]
    fn an_end_beside_a_claim() {
        loom::model(|| {
            let (ledger, threads) = ledger();
            take(&ledger, &threads[0], 256);
            give_back(&ledger, &threads[0], 256);
            let other = thread::spawn({
                let (ledger, mine) = (ledger.clone(), Arc::clone(&threads[0]));
                move || {
                    take(&ledger, &mine, 256);
                    end(&ledger, &mine);
                }
            });
            take(&ledger, &threads[1], 512);
            other.join().unwrap();
            assert_eq!(ledger.peak(), Amount { count: 2, bytes: 768 });
            assert_eq!(ledger.current(|_| {}), Amount { count: 2, bytes: 768 });
        });
    }

    /// One thread's pairs beside one claim: the reader sees a sum that was, and the peak is at most what both can have.
    #[test]
    fn a_read_beside_a_pair() {
        loom::model(|| {
            let (ledger, threads) = ledger();
            take(&ledger, &threads[1], 512);
            let other = thread::spawn({
                let (ledger, mine) = (ledger.clone(), Arc::clone(&threads[0]));
                move || {
                    take(&ledger, &mine, 256);
                    give_back(&ledger, &mine, 256);
                }
            });
            let seen = ledger.current(|_| {});
            other.join().unwrap();
            assert!(seen.bytes == 512 || seen.bytes == 768, "{seen:?}");
            assert_eq!(ledger.current(|_| {}), Amount { count: 1, bytes: 512 });
            assert_eq!(ledger.peak(), Amount { count: 2, bytes: 768 });
        });
    }
}
