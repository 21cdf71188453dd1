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
                    prop_assert_eq!(producer.push(entry(number), None), Ok(expected));
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

        /// Whatever the other side writes anywhere, each end believes its own count alone. How many were taken is looked at when there
        /// may be no room.
        #[test]
        fn numbers_of_the_other_side_are_checked(tail in any::<u64>(), head in any::<u64>()) {
            let (shared, mut producer, mut consumer) = ring();
            for number in 0..RING_ENTRIES {
                producer.push(entry(number), None).unwrap();
            }
            consumer.peek().unwrap();
            consumer.advance();
            shared.store(TAIL, tail, Ordering::SeqCst);
            shared.store(HEAD, head, Ordering::SeqCst);
            prop_assert_eq!(consumer.peek().is_ok(), tail.wrapping_sub(1) <= RING_ENTRIES);
            let used = RING_ENTRIES.wrapping_sub(head);
            let expected = match used {
                RING_ENTRIES => Ok(Pushed::Full),
                0..RING_ENTRIES => Ok(Pushed::Quietly),
                _ => Err(Corrupt),
            };
            prop_assert_eq!(producer.push(entry(RING_ENTRIES), None), expected);
        }
    }

    #[test]
    fn who_sleeps_is_woken_and_who_need_not_does_not() {
        let (shared, mut producer, consumer) = ring();
        assert!(may_sleep(&shared, consumer.position()));
        assert_eq!(producer.push(entry(0), None), Ok(Pushed::ToASleeper));
        awake(&shared);
        assert!(!may_sleep(&shared, consumer.position()), "there is something");
        awake(&shared);
        assert_eq!(producer.push(entry(1), None), Ok(Pushed::Quietly));
    }

    #[test]
    fn who_was_called_for_an_entry_is_called_again_once_it_has_heard_that() {
        let (shared, mut producer, mut consumer) = ring();
        assert!(!sleeps(&shared));
        assert!(may_sleep(&shared, consumer.position()) && sleeps(&shared));
        // The seventh frame was the call.
        assert_eq!(producer.push(entry(0), Some(6)), Ok(Pushed::Quietly), "it has not woken up yet");
        consumer.peek().unwrap();
        consumer.advance();
        say_heard(&shared, 6);
        assert_eq!(producer.push(entry(1), Some(6)), Ok(Pushed::Quietly), "it has heard another frame");
        say_heard(&shared, 7);
        assert_eq!(
            producer.push(entry(2), Some(6)),
            Ok(Pushed::ToASleeper),
            "and found nothing, for all we know"
        );
        assert_eq!(producer.push(entry(3), None), Ok(Pushed::ToASleeper), "nobody was called for this one");
    }

    #[test]
    fn frames_that_were_sent_are_looked_for_until_they_are_heard() {
        let (shared, ..) = ring();
        assert!(!has_unheard(&shared, 0));
        say_sent(&shared, 3);
        // Another thread's, which was sent before.
        say_sent(&shared, 2);
        assert!(has_unheard(&shared, 2) && !has_unheard(&shared, 3));
    }

    #[test]
    fn what_is_prepared_is_written_over_and_what_is_unread_is_left_alone() {
        let (_, mut producer, mut consumer) = ring();
        for number in 0..RING_ENTRIES {
            producer.prepare();
            producer.push(entry(number), None).unwrap();
        }
        producer.prepare();
        for number in 0..RING_ENTRIES {
            assert_eq!(consumer.peek(), Ok(Some(entry(number))));
            consumer.advance();
        }
    }

    #[test]
    fn the_only_reader_is_woken_once() {
        let (shared, mut producer, mut consumer) = ring();
        assert!(may_doze(&shared, consumer.position()));
        assert_eq!(producer.push(entry(0), None), Ok(Pushed::ToASleeper));
        assert!(is_to_wake(&shared));
        assert_eq!(producer.push(entry(1), None), Ok(Pushed::Quietly), "it is on its way");
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
                while producer.push(entry(number), None) == Ok(Pushed::Full) {
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

        fn replace(&self, cell: usize, found: u64, value: u64) -> bool {
            self.0[cell].compare_exchange(found, value, Ordering::Relaxed, Ordering::Relaxed).is_ok()
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
                    if producer.push(entry(number), None).unwrap() == Pushed::ToASleeper {
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

    /// The connection as far as calls go: who sleeps does so until one is there, and each is heard once, by anybody.
    #[derive(Default)]
    struct Calls {
        /// How many were sent, and how many of them were heard.
        frames: Mutex<(u64, u64)>,
        came: Condvar,
    }

    impl Calls {
        fn send(&self) -> u64 {
            let mut frames = self.frames.lock().unwrap();
            frames.0 += 1;
            self.came.notify_all();
            frames.0 - 1
        }

        fn hear(&self) -> Option<u64> {
            let mut frames = self.frames.lock().unwrap();
            (frames.1 < frames.0).then(|| {
                frames.1 += 1;
                frames.1
            })
        }

        fn sleep(&self) {
            let mut frames = self.frames.lock().unwrap();
            while frames.1 == frames.0 {
                frames = self.came.wait(frames).unwrap();
            }
        }
    }

    /// As buffers are handed over: who sleeps is called before the entry is there.
    fn hand_over(producer: &mut Producer<Model>, cells: &Model, calls: &Calls, number: u64) {
        let called = sleeps(cells).then(|| calls.send());
        producer.prepare();
        if producer.push(entry(number), called).unwrap() == Pushed::ToASleeper {
            calls.send();
        }
    }

    /// As buffers are received: by one at a time, who looks at the ring, then hears what there is, then sleeps.
    fn receive(turn: &Mutex<Consumer<Model>>, cells: &Model, calls: &Calls) -> [u64; ENTRY] {
        loop {
            let position = {
                let mut consumer = turn.lock().unwrap();
                loop {
                    if let Some(found) = consumer.peek().unwrap() {
                        consumer.advance();
                        return found;
                    }
                    let Some(heard) = calls.hear() else { break };
                    say_heard(cells, heard);
                }
                consumer.position()
            };
            if may_sleep(cells, position) {
                calls.sleep();
            }
            awake(cells);
        }
    }

    /// A call that comes before its entry wakes the reader in vain, or is found by it with the entry: in no order does it sleep on.
    #[test]
    fn who_is_called_early_never_sleeps_past_an_entry() {
        loom::model(|| {
            let cells = Model(Arc::new((0..ENTRIES + 2 * LINE).map(|_| AtomicU64::new(0)).collect()));
            let calls = Arc::new(Calls::default());
            let mut producer = Producer::new(cells.clone(), 2);
            let turn = Mutex::new(Consumer::new(cells.clone(), 2));
            let (theirs, called) = (cells.clone(), Arc::clone(&calls));
            let writer = loom::thread::spawn(move || {
                for number in 0..2 {
                    hand_over(&mut producer, &theirs, &called, number);
                }
            });
            for number in 0..2 {
                assert_eq!(receive(&turn, &cells, &calls), entry(number));
            }
            writer.join().unwrap();
        });
    }

    /// With two readers each takes one, whichever of them hears the calls.
    #[test]
    fn a_call_that_one_reader_hears_does_not_leave_the_other_asleep() {
        let mut model = loom::model::Builder::new();
        // Of three threads there are too many orders.
        model.preemption_bound = Some(2);
        model.check(|| {
            let cells = Model(Arc::new((0..ENTRIES + 2 * LINE).map(|_| AtomicU64::new(0)).collect()));
            let calls = Arc::new(Calls::default());
            let mut producer = Producer::new(cells.clone(), 2);
            let turn = Arc::new(Mutex::new(Consumer::new(cells.clone(), 2)));
            let reader = {
                let (turn, cells, calls) = (Arc::clone(&turn), cells.clone(), Arc::clone(&calls));
                loom::thread::spawn(move || receive(&turn, &cells, &calls))
            };
            let writer = {
                let (cells, calls) = (cells.clone(), Arc::clone(&calls));
                loom::thread::spawn(move || {
                    for number in 0..2 {
                        hand_over(&mut producer, &cells, &calls, number);
                    }
                })
            };
            let mut found = [receive(&turn, &cells, &calls), reader.join().unwrap()];
            found.sort_unstable();
            assert_eq!(found, [entry(0), entry(1)]);
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
                    if producer.push(entry(number), None).unwrap() == Pushed::ToASleeper
                        && is_to_wake(&theirs)
                    {
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
                    let pushed = producer.lock().unwrap().push(entry(number), None).unwrap();
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
                    if producer.push(entry(pushed), None).unwrap() != Pushed::Full {
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
