//! A rank that says what cannot be.

#[path = "blame.rs"]
mod blame;
#[path = "../../../cuda-mem-core/tests/common/capture.rs"]
#[allow(dead_code, reason = "shared with another crate's tests")]
mod capture;

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use cuda_mem_pool::cuda_mem_core::host::{PinnedFlags, SharedMapping};
use cuda_mem_pool::cuda_mem_core::sys::{CUdeviceptr, CUresult};
use cuda_mem_pool::cuda_mem_core::{DeviceBuffer, Driver, PinnedBuffer, Stream};
use rustix::process::{Resource, getrlimit, setrlimit};
use zerocopy::little_endian::U64;
use zerocopy::{FromZeros, IntoBytes};

use super::*;
use crate::primitive::lock;
use crate::symmetric::native::announced::{ANNOUNCED, Announced, Came, LEFT_ALONE, MAX_NUMBER, Row};
use crate::symmetric::native::directory::ENDED;
use crate::symmetric::native::message::{self, SegmentInfo};
use crate::symmetric::native::segment::OwnSegment;
use crate::symmetric::native::words::OwnWords;
use crate::symmetric::native::{Group, GroupOptions, NAME, SIGNAL_PAD_BYTES, watch};
use crate::symmetric::{CHANNELS, Exchange, SymmetricMemory, Why};
use crate::transport::refuse;

const SIZE: usize = 10_000;

/// The good one, and the other.
struct Pair {
    good: Group,
    bad: Group,
    directory: PathBuf,
}

impl Pair {
    fn new() -> Self {
        Self::with_timeout(Duration::from_secs(60))
    }

    fn with_timeout(timeout: Duration) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (pid, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(format!("cuda-mem-hostile-{pid}-{number}"));
        let driver = Driver::over(cuda_mem_sim::table()).unwrap();
        let context = driver.device(0).unwrap().primary_context().unwrap();
        let options = GroupOptions {
            timeout,
            segment_bytes: 1 << 20,
            segment_allocations: 4,
            ..GroupOptions::default()
        };
        let join = |rank| Group::join(&context, "hostile", rank, 2, &directory, &options).unwrap();
        let (good, bad) = std::thread::scope(|scope| {
            let bad = scope.spawn(|| join(1));
            (join(0), bad.join().unwrap())
        });
        Self { good, bad, directory }
    }

    /// An address of the good one's.
    fn alloc(&self) -> CUdeviceptr {
        self.good.alloc_bytes(SIZE, self.good.device()).unwrap().address
    }

    /// The good one's rendezvous.
    fn rendezvous(&self, address: CUdeviceptr) -> Result<Arc<dyn SymmetricMemory>> {
        self.good.clone().rendezvous(self.good.find(address).unwrap(), address)
    }

    /// What the good one gets to see of a segment.
    fn announce(&self, info: SegmentInfo, memory: std::os::fd::BorrowedFd<'_>) {
        self.say(message::SEGMENT, info.as_bytes(), &[memory]);
    }

    /// The bad one says something.
    fn say(&self, kind: u16, payload: &[u8], descriptors: &[std::os::fd::BorrowedFd<'_>]) {
        let Some(peer) = &self.bad.inner.state.peers[0] else { panic!("no peer") };
        peer.connection.send(kind, payload, descriptors, Duration::from_secs(60)).unwrap();
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn until_broken(group: &Group) -> (usize, Why) {
    let start = Instant::now();
    loop {
        match group.check() {
            Err(Error::Broken { rank, why, .. }) => return (rank, why),
            other => assert!(other.is_ok()),
        }
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What it names as accepted is not what was refused.
fn expect_refused_by_its_value<T>(refused: &Result<T>) {
    if let Err(Error::Invalid { what, value, accepted, .. }) = refused {
        assert!(!accepted.is_empty() && !accepted.contains(value), "{what} is {value}, of {accepted:?}");
    }
}

#[test]
fn entries_that_cannot_be_are_refused_and_name_the_rank() {
    let pair = Pair::new();
    let address = pair.alloc();
    pair.bad.alloc_bytes(SIZE, pair.bad.device()).unwrap();
    let directory = &pair.bad.inner.state.directory;
    let Found::There(right) = directory.entry(1, 0).unwrap() else { panic!("no entry") };
    let pads = 4 * SIGNAL_PAD_BYTES as u64;
    for wrong in [
        Entry { offset: u64::MAX, ..right },
        Entry { offset: u64::MAX - SIZE as u64 + 1, ..right },
        Entry { offset: 2 << 20, ..right },
        Entry { offset: 0, ..right },
        Entry { offset: pads - 1, ..right },
        Entry { pad: 4, ..right },
        Entry { pad: u64::MAX, ..right },
        Entry { segment: MAX_NUMBER, ..right },
        Entry { segment: u64::MAX, ..right },
        Entry { words: 4, ..right },
        Entry { words: u64::from(u32::MAX), ..right },
        Entry { words: MAX_NUMBER << 32, ..right },
        Entry { words: u64::MAX, ..right },
        Entry { base: MOST_BASE + 1, ..right },
        Entry { base: u64::MAX, ..right },
    ] {
        directory.publish(1, wrong).unwrap();
        let refused = pair.rendezvous(address);
        assert!(matches!(refused, Err(Error::Invalid { rank: 1, .. })), "{wrong:?}: {refused:?}");
        expect_refused_by_its_value(&refused);
    }
    for size in [0, SIZE as u64 + 1, u64::MAX] {
        directory.publish(1, Entry { size, ..right }).unwrap();
        let refused = pair.rendezvous(address);
        assert!(
            matches!(refused, Err(Error::OrderDiffers { rank: 1, theirs, .. }) if theirs == size),
            "{refused:?}"
        );
    }
    directory.publish(1, right).unwrap();
    let memory = pair.rendezvous(address).unwrap();
    assert_eq!(memory.world_size(), 2);
    pair.good.check().unwrap();
}

/// The system has no memory to receive with, for a while.
#[test]
fn what_the_system_refuses_is_no_other_ranks_fault() {
    let pair = Pair::new();
    let Some(peer) = &pair.good.inner.state.peers[1] else { panic!("no peer") };
    refuse(&peer.connection, Some(rustix::io::Errno::NOMEM));
    pair.say(message::SEGMENT, &[1], &[]);
    std::thread::sleep(Duration::from_millis(100));
    pair.good.check().unwrap();
    refuse(&peer.connection, None);
    assert_eq!(until_broken(&pair.good), (1, Why::Unreachable), "it was not taken the next time");
}

/// It has no room for the descriptors of a message, which is lost. The limit is the process's: this has one of its own.
#[test]
fn what_has_no_room_for_its_descriptors_is_no_other_ranks_fault() {
    const MARK: &str = "CUDA_MEM_TEST_CHILD";
    if std::env::var_os(MARK).is_none() {
        let name = std::thread::current().name().unwrap().to_owned();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", &name, "--test-threads=2"]).env(MARK, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let pair = Pair::new();
    let null = || std::fs::File::open("/dev/null");
    let file = null().unwrap();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(64);
    setrlimit(Resource::Nofile, limit).unwrap();
    let all = std::iter::from_fn(|| null().ok()).collect::<Vec<_>>();
    pair.say(message::SEGMENT, &[1], &[file.as_fd()]);
    let broken = until_broken(&pair.good);
    drop(all);
    assert_eq!(broken, (0, Why::Failed));
}

/// It has no memory to send with.
#[test]
fn what_the_system_does_not_send_is_no_other_ranks_fault() {
    let pair = Pair::new();
    let source = Arc::new(std::io::ErrorKind::OutOfMemory.into());
    let refused = pair.good.inner.state.unsent(1, &crate::Error::System { call: "sendmsg", source });
    assert!(matches!(refused, Error::Broken { rank: 0, why: Why::Failed, .. }), "{refused}");
}

#[test]
fn an_entry_that_was_overtaken_is_said_to_be() {
    let pair = Pair::new();
    let address = pair.alloc();
    pair.bad.alloc_bytes(SIZE, pair.bad.device()).unwrap();
    let directory = &pair.bad.inner.state.directory;
    let Found::There(entry) = directory.entry(1, 0).unwrap() else { panic!("no entry") };
    directory.publish(1, Entry { sequence: KEPT as u64, ..entry }).unwrap();
    let late = pair.rendezvous(address);
    assert!(matches!(late, Err(Error::Overtaken { rank: 1, sequence: 0, kept: KEPT })), "{late:?}");
}

#[test]
fn segments_that_cannot_be_are_refused_and_break_the_group() {
    let uuid = |pair: &Pair| pair.bad.device().uuid().unwrap();
    let honest =
        |pair: &Pair| SegmentInfo { number: U64::new(0), bytes: U64::new(2 << 20), device: uuid(pair) };
    type Change = fn(SegmentInfo) -> SegmentInfo;
    let changes: [(Change, usize); 7] = [
        (|info| SegmentInfo { number: U64::new(1), ..info }, 1),
        // No room for bytes behind the pads.
        (|info| SegmentInfo { bytes: U64::new(0), ..info }, 1),
        (|info| SegmentInfo { bytes: U64::new(4 * SIGNAL_PAD_BYTES as u64), ..info }, 1),
        (|info| SegmentInfo { bytes: U64::new(u64::MAX), ..info }, 0),
        (|info| SegmentInfo { bytes: U64::new(3 << 20), ..info }, 0),
        (|info| SegmentInfo { device: [7; 16], ..info }, 0),
        // As it should be, but for the memory, which is none.
        (|info| info, 0),
    ];
    for (index, (change, culprit)) in changes.into_iter().enumerate() {
        let pair = Pair::new();
        let address = pair.alloc();
        let none = SharedMapping::create(64 << 10).unwrap();
        pair.announce(change(honest(&pair)), none.as_fd());
        let entry =
            Entry { sequence: 0, size: SIZE as u64, segment: 0, offset: 1 << 20, pad: 0, words: 0, base: 0 };
        pair.bad.inner.state.directory.publish(1, entry).unwrap();
        let refused = pair.rendezvous(address);
        assert!(refused.is_err(), "{index}: {refused:?}");
        expect_refused_by_its_value(&refused);
        let (rank, _) = until_broken(&pair.good);
        assert_eq!(rank, culprit, "{index}: {refused:?}");
        let (rank, _) = until_broken(&pair.bad);
        assert_eq!(rank, culprit, "{index}: the other hears of it");
    }
}

#[test]
fn words_that_cannot_be_are_refused_and_break_the_group() {
    for (number, bytes, culprit) in [
        (1, 64 << 10, 1),
        // As it should be, but for the pages, which this process would make.
        (0, 64 << 10, 1),
        // Too small for four allocations, and larger than any is: it would be pinned.
        (0, 4 << 10, 1),
        (0, 128 << 10, 1),
        (0, 1 << 30, 1),
        // Whose memory is none.
        (0, 64 << 10, 0),
    ] {
        let pair = Pair::new();
        let address = pair.alloc();
        let (words, file) =
            (SharedMapping::create(bytes).unwrap(), std::fs::File::open("/dev/null").unwrap());
        let (segment, its, memory) = OwnSegment::create(
            &pair.bad.inner.context,
            &Stream::new(&pair.bad.inner.context).unwrap(),
            0,
            1 << 20,
            4,
        )
        .unwrap();
        pair.announce(its, memory.as_fd());
        let descriptor = if culprit == 0 { file.as_fd() } else { words.as_fd() };
        pair.say(message::WORDS, U64::new(number).as_bytes(), &[descriptor]);
        let (offset, size) = (segment.segment.data() as u64, SIZE as u64);
        let entry = Entry { sequence: 0, size, segment: 0, offset, pad: 0, words: 0, base: 0 };
        pair.bad.inner.state.directory.publish(1, entry).unwrap();
        let refused = pair.rendezvous(address);
        assert!(refused.is_err(), "{number}, {bytes}: {refused:?}");
        expect_refused_by_its_value(&refused);
        assert_eq!(until_broken(&pair.good).0, culprit, "{number}, {bytes}: {refused:?}");
        assert_eq!(until_broken(&pair.bad).0, culprit, "{number}, {bytes}: the other hears of it");
    }
}

#[test]
fn no_more_is_mapped_of_a_rank_than_it_can_name_and_no_more_words_than_it_can_need() {
    // Behind one allocation, of which four have words in a piece.
    let needed = (1 + KEPT as u64) / 4 + ANNOUNCED as u64;
    for (number, most) in [(MAX_NUMBER, MAX_NUMBER - 1), (needed + 1, needed)] {
        let pair = Pair::new();
        let address = pair.alloc();
        pair.bad.alloc_bytes(SIZE, pair.bad.device()).unwrap();
        pair.rendezvous(address).unwrap();
        let Some(peer) = &pair.good.inner.state.peers[1] else { panic!("no peer") };
        let piece = Arc::clone(&lock(&peer.pieces.mapped)[0]);
        let mut mapped = vec![piece; usize::try_from(number).unwrap()];
        let words = SharedMapping::create(64 << 10).unwrap();
        words.write(0, &vec![0; words.bytes()]).unwrap();
        let words = vec![words.as_fd().try_clone_to_owned().unwrap()].into();
        let next = (U64::new(number), words);
        match Row::map_next(&pair.good.inner, 1, &mut mapped, next) {
            Err(Error::Invalid { rank: 1, value, accepted, .. }) => {
                assert_eq!((value, accepted), (number, 0..=most));
            }
            other => panic!("{number}: {other:?}"),
        }
        assert_eq!(until_broken(&pair.good), (1, Why::Unreachable));
    }
}

/// Whenever one is mapped another one is announced.
#[derive(Debug)]
struct Endless;

static ENDLESS: LazyLock<Row<Endless>> = LazyLock::new(Row::new);

impl Endless {
    /// How many are announced and not mapped, and how many there are, so that there is an end at all.
    const AHEAD: usize = LEFT_ALONE + 4;
    const ALL: u64 = 1000;

    fn announce(number: u64) {
        let file = std::os::fd::OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert!(ENDLESS.announce(U64::new(number).as_bytes(), vec![file].into()));
    }
}

impl Announced for Endless {
    type Info = U64;
    const PLACE: usize = 0;
    const TEXTS: [&'static str; 3] = [""; 3];

    fn number(info: &U64) -> u64 {
        info.get()
    }

    fn open(_: &Inner, _: usize, (number, _): Came<Self>, _: Option<Arc<Self>>) -> Result<Arc<Self>> {
        if number.get() < Self::ALL {
            Self::announce(number.get() + Self::AHEAD as u64);
        }
        Ok(Arc::new(Self))
    }
}

#[test]
fn what_a_rank_announces_meanwhile_is_not_mapped_by_the_same_call() {
    let pair = Pair::new();
    (0..Endless::AHEAD as u64).for_each(Endless::announce);
    ENDLESS.map_ahead(&pair.good.inner, 1).unwrap();
    let mapped = lock(&ENDLESS.mapped).len();
    assert_eq!((mapped, ENDLESS.len()), (Endless::AHEAD - LEFT_ALONE, Endless::AHEAD));
}

#[test]
fn steps_that_cannot_be_come_to_an_end() {
    const STEP: u64 = 5 << 32;
    let refused = |ended: Option<u64>, said: u64| {
        let pair = Pair::with_timeout(Duration::from_secs(1));
        let directory = &pair.bad.inner.state.directory;
        let all = directory.word(ENDED).unwrap();
        let ended = ended.unwrap_or(STEP - (1 << 32));
        all.store(ended, Ordering::SeqCst);
        directory.come(1).unwrap().store(said, Ordering::SeqCst);
        let address = pair.alloc();
        // SAFETY: nobody uses the memory.
        let refused = unsafe { pair.good.sleep() }.unwrap_err();
        (refused, pair.good.check(), pair.good.find(address).is_some())
    };
    let all = [None, Some(0), Some(u64::MAX), Some(u64::MAX << 32), Some(1 << 63)];
    for (ended, said) in all.into_iter().zip([0, u64::MAX, STEP + (7 << 32)].into_iter().cycle()) {
        let (error, state, is_there) = refused(ended, said);
        // Behind the last number that there is nobody is at any step.
        let culprit = usize::from(ended.is_none_or(|ended| ended >> 32 < u64::from(u32::MAX)));
        let is_named = matches!(&error, Error::Missing { ranks, .. } if ranks == &[culprit]);
        assert!(is_named && state.is_ok() && is_there, "{ended:?}, {said:#x}: {error}");
    }
    let (error, state, _) = refused(None, STEP | u64::from(u32::MAX));
    assert!(matches!(error, Error::FailedElsewhere { rank: 1, .. }) && state.is_ok(), "{error}");
    for segments in [MAX_NUMBER + 1, u64::from(u32::MAX) - 1] {
        let (error, state, _) = refused(None, STEP | segments);
        assert!(matches!(error, Error::Invalid { rank: 1, .. }), "{error}");
        assert!(matches!(state, Err(Error::Broken { rank: 1, why: Why::Unreachable, .. })), "{state:?}");
    }
}

#[test]
fn a_rank_that_says_much_is_read_in_turns() {
    let pair = Pair::new();
    let state = &pair.good.inner.state;
    state.stop();
    let start = Instant::now();
    while Arc::strong_count(&pair.good.inner.state) > 1 {
        assert!(start.elapsed() < Duration::from_secs(60), "its thread goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
    // No news, and more than is read in one turn.
    (0..watch::MOST_AT_A_TIME + 1).for_each(|_| pair.say(message::BROKEN, &[], &[]));
    let Some(peer) = &state.peers[1] else { panic!("no peer") };
    let take = || watch::take(state, 1, peer);
    let is_read = || rustix::io::ioctl_fionread(&peer.connection).unwrap() == 0;
    take();
    assert!(!is_read(), "who is to stop reads on");
    state.stop.store(false, Ordering::Release);
    take();
    assert!(!is_read(), "deadlines and the other ranks wait for the last message");
    take();
    assert!(is_read());
    pair.good.check().unwrap();
}

#[test]
fn nothing_is_read_of_a_rank_behind_what_is_no_message() {
    let pair = Pair::new();
    pair.say(message::HELLO, b"again", &[]);
    assert_eq!(until_broken(&pair.good), (1, Why::Unreachable));
    let Some(peer) = &pair.bad.inner.state.peers[0] else { panic!("no peer") };
    let start = Instant::now();
    let send = || peer.connection.send(message::BROKEN, &[], &[], Duration::ZERO);
    while !send().is_err_and(|error| error.is_gone()) {
        assert!(start.elapsed() < Duration::from_secs(20), "it is listened to");
    }
}

#[test]
fn messages_that_cannot_be_break_the_group() {
    let messages: [&dyn Fn(&Pair); 8] = [
        &|pair| pair.say(message::HELLO, b"again", &[]),
        &|pair| pair.say(message::SEGMENT, b"short", &[]),
        &|pair| {
            // Without its descriptor.
            pair.say(message::SEGMENT, SegmentInfo::new_zeroed().as_bytes(), &[]);
        },
        &|pair| pair.say(message::WORDS, b"short", &[]),
        &|pair| {
            // What comes with it could be sent without end, and closing it may take long.
            let memory = SharedMapping::create(4096).unwrap();
            pair.say(message::BROKEN, &[], &[memory.as_fd()]);
        },
        &|pair| pair.say(message::WORDS, U64::new(0).as_bytes(), &[]),
        &|pair| {
            let words = SharedMapping::create(4096).unwrap();
            let info = U64::new(0);
            for _ in 0..ANNOUNCED + 1 {
                pair.say(message::WORDS, info.as_bytes(), &[words.as_fd()]);
            }
        },
        &|pair| {
            // More than is kept: descriptors of this process are not without end.
            let words = SharedMapping::create(4096).unwrap();
            for _ in 0..ANNOUNCED + 1 {
                pair.announce(SegmentInfo::new_zeroed(), words.as_fd());
            }
        },
    ];
    for (index, send) in messages.into_iter().enumerate() {
        let pair = Pair::new();
        send(&pair);
        assert_eq!(until_broken(&pair.good), (1, Why::Unreachable), "{index}");
        let refused = pair.good.alloc_bytes(SIZE, pair.good.device());
        assert!(matches!(refused, Err(Error::Broken { rank: 1, .. })), "{refused:?}");
    }
}

/// How many of the bad one's segments have come to the good one.
fn come(pair: &Pair) -> usize {
    let Some(peer) = &pair.good.inner.state.peers[1] else { panic!("no peer") };
    peer.segments.len() + lock(&peer.segments.mapped).len()
}

fn until_come(pair: &Pair, segments: usize) {
    let start = Instant::now();
    while come(pair) < segments {
        assert!(start.elapsed() < Duration::from_secs(60), "{} of {segments} came", come(pair));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// So large that it has a segment of its own.
const WHOLE: usize = 1 << 20;

#[test]
fn a_rank_that_makes_segments_keeps_few_of_the_others_unmapped() {
    let pair = Pair::new();
    for _ in 0..100 {
        pair.bad.alloc_bytes(WHOLE, pair.bad.device()).unwrap();
    }
    until_come(&pair, 100);
    let Some(peer) = &pair.good.inner.state.peers[1] else { panic!("no peer") };
    assert_eq!(peer.segments.len(), 100);
    let address = pair.good.alloc_bytes(WHOLE, pair.good.device()).unwrap().address;
    assert_eq!((peer.segments.len(), come(&pair)), (LEFT_ALONE, 100));
    pair.rendezvous(address).unwrap();
}

#[test]
fn a_rank_that_is_too_far_ahead_is_refused_and_may_go_on_later() {
    let pair = Pair::with_timeout(Duration::from_secs(3));
    let alloc = || pair.bad.alloc_bytes(WHOLE, pair.bad.device());
    for number in 0..ANNOUNCED {
        alloc().unwrap_or_else(|error| panic!("{number}: {error}"));
    }
    let ahead = alloc();
    assert!(matches!(&ahead, Err(Error::Missing { ranks, .. }) if ranks == &[0]), "{ahead:?}");
    assert!(pair.bad.inner.make_room::<Piece>(0).is_ok());
    until_come(&pair, ANNOUNCED);
    pair.good.alloc_bytes(WHOLE, pair.good.device()).unwrap();
    alloc().unwrap();
    pair.good.check().unwrap();
    let most = pair.bad.inner.make_room::<Segment>(MAX_NUMBER);
    assert!(matches!(most, Err(Error::GroupFull { most: MAX_NUMBER, .. })), "{most:?}");
    pair.bad.check().unwrap();
}

#[test]
fn what_a_rank_has_is_at_hand_while_it_waits_for_another() {
    let pair = Pair::new();
    let alloc = |group: &Group| group.alloc_bytes(WHOLE, group.device()).unwrap().address;
    let (theirs, ours) = (alloc(&pair.good), alloc(&pair.bad));
    (1..ANNOUNCED).for_each(|_| _ = alloc(&pair.bad));
    std::thread::scope(|scope| {
        // It waits for the good one to map a segment, and fails if that comes to nothing before it is late.
        let ahead = scope.spawn(|| alloc(&pair.bad));
        while pair.bad.inner.making.try_lock().is_ok() {
            assert!(!ahead.is_finished());
            std::thread::sleep(Duration::from_millis(1));
        }
        let found = pair.bad.find(ours).unwrap();
        // Somebody has it: if it were free, that would do for the one that is about to wait, should it come late.
        let kept = pair.bad.clone().rendezvous(found, ours).unwrap();
        drop(pair.bad.take(ours, |_| true).unwrap());
        assert!(!ahead.is_finished(), "it waits yet");
        until_come(&pair, ANNOUNCED);
        alloc(&pair.good);
        ahead.join().unwrap();
        drop(kept);
    });
    pair.rendezvous(theirs).unwrap();
}

/// The one that came too early calls again, also while the group sleeps, and is met where it was.
#[test]
fn an_allocation_that_others_were_missing_for_is_the_same_when_it_is_called_for_again() {
    let pair = Pair::with_timeout(Duration::from_secs(1));
    let early = pair.good.alloc::<u8>(SIZE);
    assert!(matches!(&early, Err(Error::Missing { ranks, .. }) if ranks == &[1]), "{early:?}");
    let both = |call: fn(&Group)| {
        std::thread::scope(|scope| {
            scope.spawn(|| call(&pair.bad));
            call(&pair.good);
        });
    };
    // SAFETY: nobody uses the memory.
    both(|group| assert!(unsafe { group.sleep() }.is_ok()));
    let asleep = pair.good.alloc::<u8>(SIZE);
    assert!(matches!(asleep, Err(Error::Asleep { .. })), "{asleep:?}");
    both(|group| group.wake().unwrap());
    let again = |group: &Group| {
        let mut tries = std::iter::repeat_with(|| group.alloc::<u8>(SIZE)).take(5);
        tries.find(|made| !matches!(made, Err(Error::Missing { .. }))).unwrap().unwrap()
    };
    let (ours, theirs) = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| again(&pair.bad));
        (again(&pair.good), theirs.join().unwrap())
    });
    let stream = Stream::new(&pair.good.inner.context).unwrap();
    let bytes = [7; SIZE];
    let source = DeviceBuffer::from_slice(&stream, &bytes).unwrap();
    ours.of(0).unwrap().as_range::<u8>().unwrap().copy_from(&stream, &source.whole()).unwrap();
    let seen = DeviceBuffer::<u8>::zeroed(&stream, SIZE).unwrap();
    seen.whole().copy_from(&stream, &theirs.of(0).unwrap().as_range().unwrap()).unwrap();
    assert_eq!(seen.to_vec(&stream).unwrap(), bytes);
}

/// It looks from time to time whether the first step of a sleep has ended, and finds the other one at the second.
#[test]
fn a_rank_that_is_slow_knows_how_many_segments_the_others_have() {
    let pair = Pair::new();
    let address = pair.alloc();
    pair.bad.alloc_bytes(SIZE, pair.bad.device()).unwrap();
    until_come(&pair, 1);
    let both = |call: fn(&Group)| {
        std::thread::scope(|scope| {
            scope.spawn(|| call(&pair.good));
            std::thread::sleep(Duration::from_millis(50));
            call(&pair.bad);
        });
        let said = |rank| pair.good.inner.state.directory.come(rank).unwrap().load(Ordering::SeqCst);
        [0, 1].map(|rank| said(rank) & u64::from(u32::MAX))
    };
    let Some(peer) = &pair.good.inner.state.peers[1] else { panic!("no peer") };
    let mapped = || (peer.segments.len(), lock(&peer.segments.mapped).len());
    // SAFETY: nobody uses the memory.
    let asleep = both(|group| assert!(unsafe { group.sleep() }.is_ok()));
    assert_eq!((asleep, mapped()), ([1, 1], (0, 1)), "no descriptor keeps what was given back");
    let awake = both(|group| group.wake().unwrap());
    assert_eq!((awake, mapped()), ([1, 1], (0, 1)));
    pair.rendezvous(address).unwrap();
}

/// It goes while nobody waits for it, and takes back that it has left.
#[test]
fn a_rank_that_is_gone_is_not_waited_for_whatever_it_says() {
    let mut pair = Pair::new();
    let address = pair.alloc();
    pair.bad.alloc_bytes(SIZE, pair.bad.device()).unwrap();
    let memory = pair.rendezvous(address).unwrap();
    drop(std::mem::replace(&mut pair.bad, pair.good.clone()));
    let state = &pair.good.inner.state;
    let start = Instant::now();
    while !state.is_gone(1) || !state.directory.has_left(1) {
        assert!(start.elapsed() < Duration::from_secs(60), "nobody has noticed");
        std::thread::sleep(Duration::from_millis(1));
    }
    // So that its end was looked at.
    std::thread::sleep(Duration::from_millis(100));
    state.directory.word(256 + 8 + 16).unwrap().store(0, Ordering::SeqCst);
    let stream = Stream::new(&pair.good.inner.context).unwrap();
    let refused = memory.wait_signal(&stream, 1, 0, None);
    assert!(matches!(refused, Err(Error::Left { rank: 1 })), "{refused:?}");
    assert!(stream.is_idle().unwrap());
    pair.good.check().unwrap();
}

#[test]
fn a_lie_about_who_broke_the_group_is_no_news() {
    let pair = Pair::new();
    let Some(peer) = &pair.bad.inner.state.peers[0] else { panic!("no peer") };
    peer.connection.send(message::BROKEN, &[], &[], Duration::from_secs(60)).unwrap();
    // It comes behind the message, and is taken after it.
    let address = pair.alloc();
    pair.bad.alloc_bytes(SIZE, pair.bad.device()).unwrap();
    let memory = pair.rendezvous(address).unwrap();
    memory.check().unwrap();
    let elsewhere = pair.good.take(address + 1, |_| true);
    assert!(matches!(elsewhere, Err(Error::UnknownAddress { backend: NAME, .. })), "{elsewhere:?}");
    drop(Arc::clone(&memory));
}

/// No count comes there. Whoever has the word next begins to count where its owner says.
#[test]
fn a_rank_whose_word_is_beyond_the_last_signal_is_named_by_whoever_waits_for_it() {
    const LAST: u64 = 1 << 62;
    // The words that rank 1 writes on channel 0, of barriers and of signals.
    for (word, is_barrier) in [(1, true), (2 * CHANNELS + 1, false)] {
        for value in [LAST + 1, i64::MAX as u64] {
            let pair = Pair::new();
            let alloc = |group: &Group| group.alloc_bytes(SIZE, group.device()).unwrap().address;
            let words = |address: CUdeviceptr| {
                let words = &pair.good.find(address).unwrap().words;
                assert_eq!(Words::of_place(words.place()), (0, words.index as u64));
                (words.place(), words.base)
            };
            let (ours, theirs) = (alloc(&pair.good), alloc(&pair.bad));
            let (place, base) = words(ours);
            let piece = Arc::clone(&pair.good.find(ours).unwrap().words.piece);
            let mapping = SharedMapping::open(piece.as_fd().try_clone_to_owned().unwrap()).unwrap();
            // The first allocation has the first words.
            mapping.word(word * 64).unwrap().store(value, Ordering::SeqCst);
            drop(pair.good.take(ours, |_| true).unwrap());
            drop(pair.bad.take(theirs, |_| true).unwrap());
            let (ours, _) = (alloc(&pair.good), alloc(&pair.bad));
            assert_eq!(words(ours), (place, base + (1 << 24)));
            let memory = pair.rendezvous(ours).unwrap();
            let stream = Stream::new(&pair.good.inner.context).unwrap();
            let refused = if is_barrier {
                memory.barrier(&stream, 0, None)
            } else {
                memory.wait_signal(&stream, 1, 0, None)
            };
            let is_named = matches!(refused, Err(Error::Broken { rank: 1, why: Why::Unreachable, .. }));
            assert!(is_named, "{word}, {value:#x}: {refused:?}");
            assert_eq!(until_broken(&pair.bad), (1, Why::Unreachable), "{word}, {value:#x}");
        }
    }
}

#[test]
fn words_whose_numbers_are_used_up_are_not_used_again() {
    let context = Driver::over(cuda_mem_sim::table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let own = Arc::<OwnWords>::default();
    own.add(Piece::create(&context, 1, 2).unwrap());
    let mut words = own.take().unwrap();
    assert_eq!(words.base, 0);
    words.base = MOST_BASE - (1 << 24);
    drop(words);
    let words = own.take().unwrap();
    assert_eq!(words.base, MOST_BASE);
    drop(words);
    assert!(own.take().is_none());
}

/// One rank frees each segment again and comes to `meet`; the other one keeps more than may be announced, and waits until they are mapped.
fn maps_what_the_other_waits_for(meet: fn(&Pair) -> Result<()>, other: fn(&Pair) -> Result<()>) {
    let pair = Pair::with_timeout(Duration::from_secs(10));
    std::thread::scope(|scope| {
        let keeps = scope.spawn(|| {
            for _ in 0..ANNOUNCED + 4 {
                pair.bad.alloc_bytes(WHOLE, pair.bad.device())?;
            }
            other(&pair)
        });
        for _ in 0..ANNOUNCED + 4 {
            let address = pair.good.alloc_bytes(WHOLE, pair.good.device()).unwrap().address;
            drop(pair.good.take(address, |_| true).unwrap());
        }
        meet(&pair).unwrap();
        keeps.join().unwrap().unwrap();
    });
}

#[test]
fn a_rank_that_waits_in_a_rendezvous_maps_what_the_other_waits_for() {
    maps_what_the_other_waits_for(
        |pair| pair.rendezvous(pair.alloc()).map(drop),
        |pair| pair.bad.alloc_bytes(SIZE, pair.bad.device()).map(drop),
    );
}

#[test]
fn a_rank_that_waits_in_an_exchange_maps_what_the_other_waits_for() {
    maps_what_the_other_waits_for(
        |pair| pair.good.all_gather(b"", Duration::from_secs(10)).map(drop),
        |pair| pair.bad.all_gather(b"", Duration::from_secs(10)).map(drop),
    );
}

/// Its thread does not run, as if the process were stopped, until its queue is full and the group is broken.
#[test]
fn a_rank_that_missed_the_word_lets_its_streams_go() {
    let pair = Pair::with_timeout(Duration::from_secs(2));
    let address = pair.alloc();
    let theirs = pair.bad.alloc_bytes(SIZE, pair.bad.device()).unwrap().address;
    let memory = std::thread::scope(|scope| {
        let ours = scope.spawn(|| pair.rendezvous(address).unwrap());
        let memory = pair.bad.clone().rendezvous(pair.bad.find(theirs).unwrap(), theirs).unwrap();
        drop(ours.join().unwrap());
        memory
    });
    let stream = Stream::new(&pair.bad.inner.context).unwrap();
    memory.wait_signal(&stream, 0, 0, None).unwrap();
    let state = &pair.bad.inner.state;
    state.stop();
    while Arc::strong_count(state) > 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let broken =
        std::iter::from_fn(|| Some(pair.good.alloc_bytes(1, pair.good.device()))).find_map(Result::err);
    assert!(matches!(broken, Some(Error::Broken { rank: 1, why: Why::TimedOut, .. })), "{broken:?}");
    assert!(!stream.is_idle().unwrap());
    state.stop.store(false, Ordering::Release);
    watch::start(state).unwrap();
    let start = Instant::now();
    while !stream.is_idle().unwrap() {
        assert!(start.elapsed() < Duration::from_secs(20), "it waits for ever");
        std::thread::sleep(Duration::from_millis(1));
    }
    state.stop();
}

/// Who ends the connection says why before, so that the other one does not take it for dead.
#[test]
fn who_hears_what_is_no_message_has_not_died() {
    for _ in 0..20 {
        let pair = Pair::new();
        let Some(peer) = &pair.bad.inner.state.peers[0] else { panic!("no peer") };
        rustix::net::send(&peer.connection, b"nonsense", rustix::net::SendFlags::empty()).unwrap();
        assert_eq!(until_broken(&pair.bad), (1, Why::Unreachable));
        assert_eq!(until_broken(&pair.good), (1, Why::Unreachable));
    }
}

/// The driver refuses it a stream.
#[test]
fn a_rank_that_cannot_join_has_not_died() {
    let directory = std::env::temp_dir().join(format!("cuda-mem-refused-{}", std::process::id()));
    let sims = [0, 1].map(|_| cuda_mem_sim::Sim::builder().build());
    sims[1].fail_call("cuStreamCreateWithPriority", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let options = GroupOptions { timeout: Duration::from_secs(20), ..GroupOptions::default() };
    let join = |rank: usize| {
        let context = Driver::over(sims[rank].table()).unwrap().device(0).unwrap().primary_context().unwrap();
        Group::join(&context, "refused", rank, 2, &directory, &options).map(drop)
    };
    let (one, other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| join(1));
        (join(0), other.join().unwrap())
    });
    let _ = std::fs::remove_dir_all(directory);
    assert!(matches!(one, Err(Error::Broken { rank: 1, why: Why::Failed, .. })), "{one:?}");
    assert!(matches!(other, Err(Error::Core(_))), "{other:?}");
}

/// A rank that waits maps, which releases what was put off. What then fails is told without a lock that the hook may want.
#[test]
fn what_fails_while_a_rank_waits_is_told_without_its_locks() {
    let meets: [fn(&Group, CUdeviceptr); 2] = [
        |group, _| drop(group.all_gather(b"", Duration::from_secs(20)).unwrap()),
        |group, address| drop(group.clone().rendezvous(group.find(address).unwrap(), address).unwrap()),
    ];
    for (number, meet) in meets.into_iter().enumerate() {
        let sim = cuda_mem_sim::Sim::builder().build();
        let driver = Driver::over(sim.table()).unwrap();
        let context = driver.device(0).unwrap().primary_context().unwrap();
        let directory = std::env::temp_dir().join(format!("cuda-mem-told-{}-{number}", std::process::id()));
        let options =
            GroupOptions { segment_bytes: 1 << 20, segment_allocations: 4, ..GroupOptions::default() };
        let join = |rank| Group::join(&context, "told", rank, 2, &directory, &options).unwrap();
        let (waits, other) = std::thread::scope(|scope| {
            let other = scope.spawn(|| join(1));
            (join(0), other.join().unwrap())
        });
        let alloc = |group: &Group, bytes| group.alloc_bytes(bytes, group.device()).unwrap().address;
        // The other one's last is still to come when this one waits for it.
        for _ in 0..LEFT_ALONE + 8 {
            alloc(&waits, SIZE);
        }
        let ours = alloc(&waits, SIZE);
        // None of these is mapped before the wait.
        for _ in 0..LEFT_ALONE + 8 {
            alloc(&other, WHOLE);
        }
        let told = Arc::new(Mutex::new(Vec::new()));
        let (inside, tells) = (waits.clone(), Arc::clone(&told));
        driver.on_release_failure(move |_| {
            let Some(peer) = &inside.inner.state.peers[1] else { return };
            let are_free =
                inside.inner.exchanging.try_lock().is_ok() && peer.segments.mapped.try_lock().is_ok();
            lock(&tells).push(are_free);
        });
        // Put off by a capture, and refused behind it.
        let stream = Stream::new(&context).unwrap();
        let put_off = PinnedBuffer::<u8>::zeroed(&context, 4096, PinnedFlags::empty()).unwrap();
        drop(put_off.on(&stream).unwrap());
        let capturing = capture::Capture::begin(&stream, capture::RELAXED);
        drop(put_off);
        sim.fail_call("cuMemFreeHost", 1, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        drop(capturing.end().unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                meet(&other, alloc(&other, SIZE));
            });
            meet(&waits, ours);
        });
        driver.reclaim();
        driver.on_release_failure(|_| ());
        let _ = std::fs::remove_dir_all(directory);
        assert_eq!(*lock(&told), [true], "behind the wait");
    }
}
