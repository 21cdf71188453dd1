use super::*;

/// Entries that tell where they belong.
fn entry(number: u64) -> [u64; ENTRY] {
    std::array::from_fn(|word| number * 100 + word as u64)
}

/// Puts an entry there if there is room, and tells whether the reader has to be woken for it.
fn give<C: Cells>(producer: &mut Producer<C>, cells: &C, number: u64) -> Result<Option<bool>, Corrupt> {
    if !producer.reserve()? {
        return Ok(None);
    }
    producer.push(entry(number));
    Ok(Some(claim(cells)))
}

#[cfg(not(loom))]
mod real {
    use std::collections::VecDeque;
    use std::time::Duration;

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
        fn a_ring_is_a_queue_of_so_many(steps in prop::collection::vec(0..4u8, 0..3000)) {
            let (_, mut producer, mut consumer) = ring();
            let (mut model, mut reserved, mut number) = (VecDeque::new(), 0, 0);
            for step in steps {
                match step {
                    0 | 1 => {
                        let room = (model.len() as u64) + reserved < RING_ENTRIES;
                        prop_assert_eq!(producer.reserve(), Ok(room));
                        reserved += u64::from(room);
                    }
                    2 if reserved > 0 && number % 5 == 4 => {
                        producer.cancel();
                        (reserved, number) = (reserved - 1, number + 1);
                    }
                    2 if reserved > 0 => {
                        producer.push(entry(number));
                        model.push_back(entry(number));
                        (reserved, number) = (reserved - 1, number + 1);
                    }
                    2 => {}
                    _ => {
                        prop_assert_eq!(consumer.peek(), Ok(model.front().copied()));
                        if model.pop_front().is_some() {
                            consumer.advance();
                        }
                    }
                }
            }
        }

        /// Whatever the other side writes anywhere, each end believes its own count alone. How many were taken is looked at when there
        /// may be no room.
        #[test]
        fn numbers_of_the_other_side_are_checked(tail in any::<u64>(), head in any::<u64>()) {
            let (shared, mut producer, mut consumer) = ring();
            for number in 0..RING_ENTRIES {
                give(&mut producer, &shared, number).unwrap();
            }
            consumer.peek().unwrap();
            consumer.advance();
            shared.store(TAIL, tail, Ordering::SeqCst);
            shared.store(HEAD, head, Ordering::SeqCst);
            prop_assert_eq!(consumer.peek().is_ok(), tail.wrapping_sub(1) <= RING_ENTRIES);
            let expected = match RING_ENTRIES.wrapping_sub(head) {
                RING_ENTRIES => Ok(false),
                0..RING_ENTRIES => Ok(true),
                _ => Err(Corrupt),
            };
            prop_assert_eq!(producer.reserve(), expected);
        }
    }

    #[test]
    fn who_sleeps_is_woken_once_and_who_need_not_does_not() {
        let (shared, mut producer, consumer) = ring();
        let rung = prepare_sleep(&shared, consumer.position()).unwrap();
        assert!(shared.load(SLEEPS, Ordering::Relaxed) > 0);
        assert_eq!(give(&mut producer, &shared, 0), Ok(Some(true)));
        assert_ne!(shared.rung(), rung, "a sleep that begins now ends at once");
        assert_eq!(give(&mut producer, &shared, 1), Ok(Some(false)), "it is on its way");
        assert_eq!(prepare_sleep(&shared, consumer.position()), None, "there is something");
        awake(&shared);
        assert_eq!(give(&mut producer, &shared, 2), Ok(Some(false)));
    }

    #[test]
    fn who_was_woken_too_early_is_woken_again_once_it_sleeps_again() {
        let (shared, mut producer, consumer) = ring();
        prepare_sleep(&shared, consumer.position()).unwrap();
        assert!(claim(&shared) && !claim(&shared));
        prepare_sleep(&shared, consumer.position()).unwrap();
        assert_eq!(give(&mut producer, &shared, 0), Ok(Some(true)));
    }

    /// By the word itself, as the other process has it.
    #[test]
    fn a_sleep_ends_with_its_wake_and_not_behind_one() {
        let (shared, ..) = ring();
        let rung = prepare_sleep(&shared, 0).unwrap();
        let theirs = shared.clone();
        let sleeper = std::thread::spawn(move || sleep(&theirs, rung, Duration::from_secs(600).into()));
        // Once is enough, whether it sleeps already or not.
        assert!(wake(&shared) && !wake(&shared));
        sleeper.join().unwrap();
        sleep(&shared, rung, Duration::from_secs(600).into());
    }

    #[test]
    fn what_is_reserved_is_written_over_and_what_is_unread_is_left_alone() {
        let (shared, mut producer, mut consumer) = ring();
        for number in 0..RING_ENTRIES {
            give(&mut producer, &shared, number).unwrap();
        }
        assert_eq!(producer.reserve(), Ok(false));
        for number in 0..RING_ENTRIES {
            assert_eq!(consumer.peek(), Ok(Some(entry(number))));
            consumer.advance();
        }
    }

    #[test]
    fn threads_pass_everything_on_in_order() {
        const COUNT: u64 = 20_000;
        let (shared, mut producer, mut consumer) = ring();
        let writer = std::thread::spawn(move || {
            for number in 0..COUNT {
                while give(&mut producer, &shared, number) == Ok(None) {
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

/// A peer that writes between any two looks at the memory.
#[cfg(not(loom))]
mod hostile;

#[cfg(loom)]
mod model {
    use loom::sync::atomic::{AtomicU64, fence};
    use loom::sync::{Arc, Condvar, Mutex};

    use super::*;

    /// Room for two entries, and the futex.
    #[derive(Clone)]
    struct Model(Arc<(Vec<AtomicU64>, Mutex<()>, Condvar)>);

    fn model() -> Model {
        let cells = (0..ENTRIES + 2 * LINE).map(|_| AtomicU64::new(0)).collect();
        Model(Arc::new((cells, Mutex::new(()), Condvar::new())))
    }

    impl Cells for Model {
        fn load(&self, cell: usize, order: Ordering) -> u64 {
            self.0.0[cell].load(order)
        }

        fn store(&self, cell: usize, value: u64, order: Ordering) {
            self.0.0[cell].store(value, order);
        }

        fn replace(&self, cell: usize, found: u64, value: u64) -> bool {
            self.0.0[cell].compare_exchange(found, value, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        }

        fn fence(&self) {
            fence(Ordering::SeqCst);
        }

        fn rung(&self) -> u32 {
            u32::try_from(self.0.0[BELL].load(Ordering::Acquire)).unwrap()
        }

        fn ring(&self) {
            self.0.0[BELL].fetch_add(1, Ordering::Release);
        }
    }

    impl Model {
        /// As the system does it: the look at the word and the sleep are one step for whoever wakes.
        fn sleep(&self, rung: u32) {
            let mut guard = self.0.1.lock().unwrap();
            while self.rung() == rung {
                guard = self.0.2.wait(guard).unwrap();
            }
        }

        fn wake(&self) {
            drop(self.0.1.lock().unwrap());
            self.0.2.notify_all();
        }
    }

    /// As buffers are handed over: who sleeps is woken before the entry is there.
    fn hand_over(producer: &mut Producer<Model>, cells: &Model, number: u64, is_early: bool) {
        if is_early && claim(cells) {
            cells.wake();
        }
        if give(producer, cells, number).unwrap().unwrap() {
            cells.wake();
        }
    }

    /// As buffers are received, by any of several readers.
    fn receive(entries: &Mutex<Consumer<Model>>, cells: &Model) -> [u64; ENTRY] {
        loop {
            let position = {
                let mut consumer = entries.lock().unwrap();
                if let Some(found) = consumer.peek().unwrap() {
                    consumer.advance();
                    return found;
                }
                consumer.position()
            };
            if let Some(rung) = prepare_sleep(cells, position) {
                cells.sleep(rung);
            }
        }
    }

    /// In every order of the two sides the entries arrive whole and in order, and a reader that sleeps is woken: one that is not would be a
    /// deadlock.
    #[test]
    fn entries_arrive_and_nobody_sleeps_past_them() {
        for is_early in [false, true] {
            let mut builder = loom::model::Builder::new();
            builder.preemption_bound = Some(3);
            builder.check(move || {
                let cells = model();
                let mut producer = Producer::new(cells.clone(), 2);
                let entries = Mutex::new(Consumer::new(cells.clone(), 2));
                let theirs = cells.clone();
                let writer = loom::thread::spawn(move || {
                    for number in 0..2 {
                        hand_over(&mut producer, &theirs, number, is_early);
                    }
                });
                for number in 0..2 {
                    assert_eq!(receive(&entries, &cells), entry(number));
                }
                writer.join().unwrap();
            });
        }
    }

    /// With two readers each takes one, whichever of them is woken.
    #[test]
    fn a_wake_that_one_reader_has_does_not_leave_the_other_asleep() {
        let mut builder = loom::model::Builder::new();
        // Of three threads there are too many orders.
        builder.preemption_bound = Some(2);
        builder.check(|| {
            let cells = model();
            let mut producer = Producer::new(cells.clone(), 2);
            let entries = Arc::new(Mutex::new(Consumer::new(cells.clone(), 2)));
            let reader = {
                let (entries, cells) = (Arc::clone(&entries), cells.clone());
                loom::thread::spawn(move || receive(&entries, &cells))
            };
            let theirs = cells.clone();
            let writer = loom::thread::spawn(move || {
                for number in 0..2 {
                    hand_over(&mut producer, &theirs, number, true);
                }
            });
            let mut found = [receive(&entries, &cells), reader.join().unwrap()];
            found.sort_unstable();
            assert_eq!(found, [entry(0), entry(1)]);
            writer.join().unwrap();
        });
    }

    /// As releases are written: by any thread in its turn, which decides behind it whether to wake the only reader, who says when it is awake.
    #[test]
    fn the_only_reader_is_woken_by_one_of_several_writers() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(|| {
            let cells = model();
            let producer = Arc::new(Mutex::new(Producer::new(cells.clone(), 2)));
            let bell = Arc::new((Mutex::new(false), Condvar::new()));
            let mut consumer = Consumer::new(cells.clone(), 2);
            let writers = [0, 1].map(|number| {
                let (producer, cells, bell) = (Arc::clone(&producer), cells.clone(), Arc::clone(&bell));
                loom::thread::spawn(move || {
                    let is_to_wake = give(&mut producer.lock().unwrap(), &cells, number).unwrap().unwrap();
                    if is_to_wake {
                        // A message.
                        *bell.0.lock().unwrap() = true;
                        bell.1.notify_one();
                    }
                })
            });
            let mut found = Vec::new();
            while found.len() < 2 {
                if let Some(entry) = consumer.peek().unwrap() {
                    consumer.advance();
                    found.push(entry);
                    continue;
                }
                if prepare_sleep(&cells, consumer.position()).is_some() {
                    let mut rung = bell.0.lock().unwrap();
                    while !*rung {
                        rung = bell.1.wait(rung).unwrap();
                    }
                    *rung = false;
                }
                awake(&cells);
            }
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
            let cells = model();
            let (mut producer, mut consumer) =
                (Producer::new(cells.clone(), 1), Consumer::new(cells.clone(), 1));
            let writer = loom::thread::spawn(move || {
                let mut pushed = 0;
                for _ in 0..3 {
                    if give(&mut producer, &cells, pushed).unwrap().is_some() {
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
