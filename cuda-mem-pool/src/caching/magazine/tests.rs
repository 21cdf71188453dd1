use super::*;
use std::sync::Mutex;

fn block(number: u32) -> Block {
    Block { address: u64::from(number) * 512, record: number }
}

/// What ended threads gave back.
#[derive(Debug, Default)]
struct Books(Mutex<Vec<(u32, Block)>>);

impl Home for Books {
    fn take_back(&self, heap: u32, blocks: Vec<Block>) {
        self.0.lock().unwrap().extend(blocks.into_iter().map(|block| (heap, block)));
    }
}

fn all(magazines: &Magazines) -> Vec<u32> {
    let mut out = Vec::new();
    assert!(magazines.take_all(&mut out));
    let mut records: Vec<u32> = out.into_iter().map(|block| block.record).collect();
    records.sort_unstable();
    records
}

#[cfg(not(loom))]
mod alone {
    use super::*;
    use crate::caching::page_map::PageMap;
    use crate::engine::paged::PageKind;
    use std::hint::black_box;
    use std::time::{Duration, Instant};

    fn joined() -> (Magazines, Arc<Books>) {
        let (magazines, books) = (Magazines::new(3), Arc::default());
        assert!(magazines.join(&books));
        (magazines, books)
    }

    #[test]
    fn the_last_one_in_is_the_first_one_out() {
        let (magazines, _books) = joined();
        for number in 0..3 {
            assert_eq!(magazines.push(4, block(number)), Ok(()));
        }
        assert_eq!(magazines.pop(5), None);
        for number in [2, 1, 0] {
            assert_eq!(magazines.pop(4), Some(block(number)));
        }
        assert_eq!(magazines.pop(4), None);
        assert_eq!(magazines.pop(200), None);
        assert_eq!(magazines.push(200, block(0)), Err(Full));
    }

    #[test]
    fn heaps_and_threads_have_their_own() {
        let ((one, books), (two, _)) = (joined(), joined());
        assert!(!one.join(&books), "joined twice");
        one.push(1, block(1)).unwrap();
        two.push(1, block(2)).unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                assert_eq!(one.push(1, block(3)), Err(Full));
                assert!(one.join(&books));
                assert_eq!(one.pop(1), None);
            });
            other.join().unwrap();
        });
        assert_eq!(two.pop(1), Some(block(2)));
        assert_eq!(one.pop(1), Some(block(1)));
    }

    #[test]
    fn a_class_is_bounded_and_gives_its_oldest_half() {
        let (magazines, _books) = joined();
        magazines.push(2, block(1000)).unwrap();
        for number in 0..DEPTH as u32 {
            magazines.push(1, block(number)).unwrap();
        }
        assert_eq!(magazines.push(1, block(0)), Err(Full));
        let mut out = Vec::new();
        magazines.take_half(1, &mut out);
        assert!(out.into_iter().eq((0..DEPTH as u32 / 2).map(block)));
        assert_eq!(magazines.push(1, block(0)), Ok(()));
        assert_eq!(magazines.pop(2), Some(block(1000)));
    }

    #[test]
    fn bytes_are_bounded_and_every_class_gives_half() {
        let (magazines, _books) = joined();
        let mut bytes = 0;
        let mut kept = 0;
        while magazines.push([32, 31][kept % 2], block(kept as u32)).is_ok() {
            bytes += [32, 31][kept % 2] * GRANULE;
            kept += 1;
        }
        assert!(bytes <= LIMIT && bytes + 32 * GRANULE > LIMIT, "{bytes}");
        let mut out = Vec::new();
        magazines.take_half(32, &mut out);
        assert!(out.len() * 2 >= kept && out.len() * 2 <= kept + 2, "{} of {kept}", out.len());
        assert_eq!(magazines.push(32, block(0)), Ok(()));
        assert_eq!(all(&magazines).len(), kept - out.len() + 1);
        // Nothing is left of it in the count either.
        for number in 0..DEPTH as u32 {
            assert_eq!(magazines.push(32, block(number)), Ok(()));
        }
    }

    #[test]
    fn a_thread_that_ends_gives_its_blocks_back() {
        let (magazines, books) = joined();
        let taken = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                assert!(magazines.join(&books));
                magazines.push(1, block(1)).unwrap();
                magazines.push(7, block(2)).unwrap();
                magazines.push(9, block(3)).unwrap();
                magazines.pop(9)
            });
            other.join().unwrap()
        });
        assert_eq!(taken, Some(block(3)));
        assert_eq!(*books.0.lock().unwrap(), [(3, block(1)), (3, block(2))]);
        assert!(all(&magazines).is_empty());
    }

    #[test]
    fn who_closes_gets_everything_and_nothing_comes_later() {
        let (magazines, books) = joined();
        magazines.push(1, block(1)).unwrap();
        let mut out = Vec::new();
        assert!(magazines.close(&mut out));
        assert_eq!(out, [block(1)]);
        assert_eq!(magazines.push(1, block(2)), Err(Full));
        std::thread::scope(|scope| scope.spawn(|| assert!(!magazines.join(&books))).join().unwrap());
    }

    /// Owners at full speed and one who takes everything all the time: each block stays one block.
    #[test]
    fn no_block_is_lost_or_doubled_under_trimming() {
        const EACH: u32 = 64;
        const ROUNDS: usize = 20_000;
        let (magazines, books) = joined();
        let spilled = Mutex::new(Vec::new());
        let running = std::sync::atomic::AtomicUsize::new(2);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (magazines, books, spilled, running) = (&magazines, &books, &spilled, &running);
                scope.spawn(move || {
                    assert!(magazines.join(books));
                    let mut mine: Vec<Block> = (thread * EACH..(thread + 1) * EACH).map(block).collect();
                    for round in 0..ROUNDS {
                        let class = [1, 5][round % 2];
                        let refused = mine.pop().filter(|block| magazines.push(class, *block).is_err());
                        mine.extend(refused);
                        mine.extend((round % 3 == 0).then(|| magazines.pop(class)).flatten());
                        if mine.is_empty() {
                            mine.append(&mut spilled.lock().unwrap());
                        }
                    }
                    spilled.lock().unwrap().append(&mut mine);
                    running.fetch_sub(1, std::sync::atomic::Ordering::Release);
                });
            }
            while running.load(std::sync::atomic::Ordering::Acquire) > 0 {
                let mut out = Vec::new();
                assert!(magazines.take_all(&mut out));
                spilled.lock().unwrap().append(&mut out);
            }
        });
        let mut records: Vec<u32> = spilled.into_inner().unwrap().iter().map(|block| block.record).collect();
        records.extend(books.0.lock().unwrap().iter().map(|(_, block)| block.record));
        records.sort_unstable();
        assert!(records.into_iter().eq(0..2 * EACH));
    }

    /// The median of `ROUNDS` rounds, in nanoseconds a turn.
    fn median(mut body: impl FnMut()) -> f64 {
        const ROUNDS: usize = 2001;
        const TURNS: u32 = 1000;
        let mut times: Vec<Duration> = (0..ROUNDS)
            .map(|_| {
                let began = Instant::now();
                (0..TURNS).for_each(|_| body());
                began.elapsed()
            })
            .collect();
        times.sort_unstable();
        times[ROUNDS / 2].as_nanos() as f64 / f64::from(TURNS)
    }

    /// `cargo test --release -p cuda-mem-pool --lib caching -- --ignored --nocapture --test-threads=1`.
    #[test]
    #[ignore = "measures, and decides nothing"]
    fn what_it_costs() {
        let ((one, _books), (two, _more)) = (joined(), joined());
        for number in 0..8 {
            one.push(4, block(number)).unwrap();
            two.push(4, block(number)).unwrap();
        }
        let pair = |magazines: &Magazines| {
            let block = magazines.pop(black_box(4)).unwrap();
            magazines.push(black_box(4), black_box(block)).unwrap();
        };
        println!("pair {:.1} ns", median(|| pair(&one)));
        let map = PageMap::new();
        let page = 0x7f12_0000_0000;
        map.add_page(page, 3, PageKind::Small).unwrap();
        map.set_small(page, 5, 4).unwrap();
        let with_look_up = |magazines: &Magazines| {
            let block = magazines.pop(black_box(4)).unwrap();
            let found = map.find(black_box(page) + block.address / (1 << 40)).unwrap();
            magazines.push(found.class.unwrap(), Block { record: found.record, ..block }).unwrap();
        };
        println!("pair with a look-up {:.1} ns", median(|| with_look_up(&one)));
        println!(
            "a pair of each of two heaps by turns {:.1} ns",
            median(|| [&one, &two].into_iter().for_each(pair))
        );
        let mut out = Vec::new();
        let taken = median(|| {
            one.take_all(&mut out);
            out.truncate(8);
        });
        println!("taking everything from one thread {taken:.0} ns");
    }
}

#[cfg(loom)]
mod models {
    use super::*;
    use loom::thread;

    fn records(blocks: Vec<Block>) -> impl Iterator<Item = u32> {
        blocks.into_iter().map(|block| block.record)
    }

    /// An owner that pushes, pops and ends, one that trims and one that closes: each block ends with one of them.
    #[test]
    fn nothing_is_lost_between_a_thread_that_ends_and_who_takes_or_closes() {
        loom::model(|| {
            let magazines = Arc::new(Magazines::new(0));
            let books = Arc::new(Books::default());
            let (mut magazine, others) = owner_cell::new(Magazine::new());
            lock(&magazines.all).magazines.push(others);
            let owner = thread::spawn({
                let home: Weak<dyn Home> = Arc::downgrade(&books) as _;
                move || {
                    let mut own = Vec::new();
                    for number in [1, 2] {
                        let kept = magazine.try_with(|magazine| magazine.push(1, block(number)));
                        own.extend((kept != Some(Ok(()))).then(|| block(number)));
                    }
                    own.extend(magazine.try_with(|magazine| magazine.pop(1)).flatten());
                    Mine { heap: 0, home, magazine }.end();
                    own
                }
            });
            let trimming = thread::spawn({
                let magazines = Arc::clone(&magazines);
                move || all(&magazines)
            });
            let mut out = Vec::new();
            assert!(magazines.close(&mut out));
            let mut found: Vec<u32> = records(out).chain(records(owner.join().unwrap())).collect();
            found.extend(trimming.join().unwrap());
            found.extend(all(&magazines));
            found.extend(books.0.lock().unwrap().iter().map(|(_, block)| block.record));
            found.sort_unstable();
            assert_eq!(found, [1, 2]);
        });
    }
}
