use super::*;

/// Entries that tell where they belong.
fn entry(number: u64) -> [u64; ENTRY] {
    std::array::from_fn(|word| number * 100 + word as u64)
}

#[cfg(not(loom))]
mod real {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::shared::wire::FIRST_OF_RELEASES;

    fn ring() -> (Shared, Producer<Shared>, Consumer<Shared>) {
        let shared =
            Shared::new(&SharedMapping::create(crate::shared::wire::SLOTS * 64).unwrap(), FIRST_OF_RELEASES);
        (shared.clone(), shared.producer(), shared.consumer())
    }

    proptest! {
        #[test]
        fn a_ring_is_a_queue_of_so_many(steps in prop::collection::vec(any::<bool>(), 0..2000)) {
            let (_, mut producer, mut consumer) = ring();
            let (mut model, mut number) = (VecDeque::new(), 0);
            for push in steps {
                if push {
                    let room = (model.len() as u64) < RING_ENTRIES;
                    let expected = if room { Pushed::Quietly } else { Pushed::Full };
                    prop_assert_eq!(producer.push(entry(number)), Ok(expected));
                    if room {
                        model.push_back(entry(number));
                    }
                    number += 1;
                } else {
                    prop_assert_eq!(consumer.peek(), Ok(model.front().copied()));
                    if model.pop_front().is_some() {
                        consumer.advance();
                    }
                }
            }
        }

        /// Whatever the other side writes anywhere, each end believes its own count alone.
        #[test]
        fn numbers_of_the_other_side_are_checked(tail in any::<u64>(), head in any::<u64>()) {
            let (shared, mut producer, mut consumer) = ring();
            for number in 0..3 {
                producer.push(entry(number)).unwrap();
            }
            consumer.peek().unwrap();
            consumer.advance();
            shared.store(TAIL, tail, Ordering::SeqCst);
            shared.store(HEAD, head, Ordering::SeqCst);
            prop_assert_eq!(consumer.peek().is_ok(), tail.wrapping_sub(1) <= RING_ENTRIES);
            prop_assert_eq!(producer.push(entry(3)).is_ok(), 3u64.wrapping_sub(head) <= RING_ENTRIES);
        }
    }

    #[test]
    fn who_sleeps_is_woken_and_who_need_not_does_not() {
        let (shared, mut producer, consumer) = ring();
        assert!(may_sleep(&shared, consumer.position()));
        assert_eq!(producer.push(entry(0)), Ok(Pushed::ToASleeper));
        awake(&shared);
        assert!(!may_sleep(&shared, consumer.position()), "there is something");
        awake(&shared);
        assert_eq!(producer.push(entry(1)), Ok(Pushed::Quietly));
    }

    #[test]
    fn the_only_reader_is_woken_once() {
        let (shared, mut producer, mut consumer) = ring();
        assert!(may_doze(&shared, consumer.position()));
        assert_eq!(producer.push(entry(0)), Ok(Pushed::ToASleeper));
        assert!(is_to_wake(&shared));
        assert_eq!(producer.push(entry(1)), Ok(Pushed::Quietly), "it is on its way");
        assert!(!is_to_wake(&shared));
        rise(&shared);
        assert!(!may_doze(&shared, consumer.position()), "there is something");
        for number in 0..2 {
            assert_eq!(consumer.peek(), Ok(Some(entry(number))));
            consumer.advance();
        }
        assert!(may_doze(&shared, consumer.position()));
    }

    #[test]
    fn threads_pass_everything_on_in_order() {
        const COUNT: u64 = 20_000;
        let (_, mut producer, mut consumer) = ring();
        let writer = std::thread::spawn(move || {
            for number in 0..COUNT {
                while producer.push(entry(number)) == Ok(Pushed::Full) {
                    std::thread::yield_now();
                }
            }
        });
        for number in 0..COUNT {
            let found = loop {
                match consumer.peek().unwrap() {
                    Some(found) => break found,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(found, entry(number));
            consumer.advance();
        }
        writer.join().unwrap();
    }
}

#[cfg(loom)]
mod model {
    use loom::sync::atomic::{AtomicU64, fence};
    use loom::sync::{Arc, Condvar, Mutex};

    use super::*;

    /// Room for two entries.
    #[derive(Clone)]
    struct Model(Arc<Vec<AtomicU64>>);

    impl Cells for Model {
        fn load(&self, cell: usize, order: Ordering) -> u64 {
            self.0[cell].load(order)
        }

        fn store(&self, cell: usize, value: u64, order: Ordering) {
            self.0[cell].store(value, order);
        }

        fn add(&self, cell: usize, value: u64) {
            self.0[cell].fetch_add(value, Ordering::Relaxed);
        }

        fn take(&self, cell: usize) -> bool {
            let found = self.0[cell].load(Ordering::Relaxed);
            let taken = || self.0[cell].compare_exchange(found, 0, Ordering::Relaxed, Ordering::Relaxed);
            found > 0 && taken().is_ok()
        }

        fn fence(&self) {
            fence(Ordering::SeqCst);
        }
    }

    type Bell = Arc<(Mutex<bool>, Condvar)>;

    fn ring(bell: &Bell) {
        *bell.0.lock().unwrap() = true;
        bell.1.notify_one();
    }

    /// The next entry, for the only one who reads.
    fn take(consumer: &mut Consumer<Model>, cells: &Model, bell: &Bell) -> [u64; ENTRY] {
        loop {
            if let Some(found) = consumer.peek().unwrap() {
                consumer.advance();
                return found;
            }
            if may_doze(cells, consumer.position()) {
                let mut rung = bell.0.lock().unwrap();
                while !*rung {
                    rung = bell.1.wait(rung).unwrap();
                }
                *rung = false;
            }
            rise(cells);
        }
    }

    /// In every order of the two sides the entries arrive whole and in order, an entry is not written over before it was read, and
    /// a reader that sleeps is woken: one that is not would be a deadlock.
    #[test]
    fn entries_arrive_and_nobody_sleeps_past_them() {
        loom::model(|| {
            let cells = Model(Arc::new((0..ENTRIES + 2 * LINE).map(|_| AtomicU64::new(0)).collect()));
            let bell = Arc::new((Mutex::new(false), Condvar::new()));
            let (mut producer, mut consumer) =
                (Producer::new(cells.clone(), 2), Consumer::new(cells.clone(), 2));
            let rung = Arc::clone(&bell);
            let writer = loom::thread::spawn(move || {
                for number in 0..2 {
                    if producer.push(entry(number)).unwrap() == Pushed::ToASleeper {
                        ring(&rung);
                    }
                }
            });
            for number in 0..2 {
                let found = loop {
                    if let Some(found) = consumer.peek().unwrap() {
                        break found;
                    }
                    if may_sleep(&cells, consumer.position()) {
                        let mut rung = bell.0.lock().unwrap();
                        while !*rung {
                            rung = bell.1.wait(rung).unwrap();
                        }
                        *rung = false;
                    }
                    awake(&cells);
                };
                assert_eq!(found, entry(number));
                consumer.advance();
            }
            writer.join().unwrap();
        });
    }

    /// The same with one reader, who is woken by the first who finds it asleep and by nobody else.
    #[test]
    fn the_only_reader_never_sleeps_past_an_entry() {
        loom::model(|| {
            let cells = Model(Arc::new((0..ENTRIES + 2 * LINE).map(|_| AtomicU64::new(0)).collect()));
            let bell = Arc::new((Mutex::new(false), Condvar::new()));
            let (mut producer, mut consumer) =
                (Producer::new(cells.clone(), 2), Consumer::new(cells.clone(), 2));
            let (rung, theirs) = (Arc::clone(&bell), cells.clone());
            let writer = loom::thread::spawn(move || {
                for number in 0..2 {
                    if producer.push(entry(number)).unwrap() == Pushed::ToASleeper && is_to_wake(&theirs) {
                        ring(&rung);
                    }
                }
            });
            for number in 0..2 {
                assert_eq!(take(&mut consumer, &cells, &bell), entry(number));
            }
            writer.join().unwrap();
        });
    }

    /// As releases are written: by any thread in its turn, which decides behind it whether to wake the reader. One does for both.
    #[test]
    fn the_only_reader_is_woken_by_one_of_several_writers() {
        loom::model(|| {
            let cells = Model(Arc::new((0..ENTRIES + 2 * LINE).map(|_| AtomicU64::new(0)).collect()));
            let bell = Bell::default();
            let producer = Arc::new(Mutex::new(Producer::new(cells.clone(), 2)));
            let mut consumer = Consumer::new(cells.clone(), 2);
            let writers = [0, 1].map(|number| {
                let (producer, bell, cells) = (Arc::clone(&producer), Arc::clone(&bell), cells.clone());
                loom::thread::spawn(move || {
                    let pushed = producer.lock().unwrap().push(entry(number)).unwrap();
                    if pushed == Pushed::ToASleeper && is_to_wake(&cells) {
                        ring(&bell);
                    }
                })
            });
            let mut found = [(); 2].map(|()| take(&mut consumer, &cells, &bell));
            found.sort_unstable();
            assert_eq!(found, [entry(0), entry(1)]);
            for writer in writers {
                writer.join().unwrap();
            }
        });
    }

    /// The third entry takes the first one's place.
    #[test]
    fn a_place_is_written_again_only_when_it_was_read() {
        loom::model(|| {
            let cells = Model(Arc::new((0..ENTRIES + LINE).map(|_| AtomicU64::new(0)).collect()));
            let (mut producer, mut consumer) = (Producer::new(cells.clone(), 1), Consumer::new(cells, 1));
            let writer = loom::thread::spawn(move || {
                let mut pushed = 0;
                for _ in 0..3 {
                    if producer.push(entry(pushed)).unwrap() != Pushed::Full {
                        pushed += 1;
                    }
                }
                pushed
            });
            let mut taken = 0;
            for _ in 0..3 {
                if let Some(found) = consumer.peek().unwrap() {
                    assert_eq!(found, entry(taken));
                    consumer.advance();
                    taken += 1;
                }
            }
            let pushed = writer.join().unwrap();
            while let Some(found) = consumer.peek().unwrap() {
                assert_eq!(found, entry(taken));
                consumer.advance();
                taken += 1;
            }
            assert_eq!(taken, pushed);
        });
    }
}
