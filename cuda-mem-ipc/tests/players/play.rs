//! Two ends of a connection, and what has to be true of them after each step.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use cuda_mem_pool::cuda_mem_core::host::SharedMapping;

use super::input::Input;
use super::{LIMIT, NOBODY_WRITES, SEGMENT, Stage, TO_ANOTHER, ends};
use crate::error::{Error, Result};
use crate::shared::ReceivedBuffer;
use crate::shared::buffer::Share;
use crate::shared::exporter::played::TestExporter;
use crate::shared::importer::played::TestImporter;
use crate::shared::wire::{FIRST_OF_RELEASES, FIRST_OF_RING, HandOver, RING_ENTRIES, SLOTS};
use crate::transport::Deadline;

/// How many buffers are out at most: more than the ring has room for.
const MOST: usize = 600;

/// The words of a ring that are no entries: how many there are, how many were taken, whether a reader sleeps, how often it was woken.
const NUMBERS: [usize; 4] = [0, 8, 16, 17];

/// The memory's size in words.
const WORDS: usize = SLOTS * 8;

/// A buffer that was handed over and has not come.
#[derive(Debug, PartialEq, Eq)]
struct Given {
    sequence: u64,
    offset: usize,
    len: usize,
}

/// A play as far as it has come.
pub(super) struct Play<'s> {
    stage: &'s Stage,
    exporter: TestExporter,
    importer: TestImporter,
    memory: SharedMapping,
    may_be_written: bool,
    /// Whether somebody has written what no peer should.
    is_written: bool,
    /// Until the other side is said to be gone.
    gives: bool,
    takes: bool,
    /// The receiver sleeps, and so does the thread that takes releases.
    sleeps: Option<u32>,
    dozes: bool,
    /// What has not come, what is here, and what was not given back.
    under_way: VecDeque<Given>,
    here: VecDeque<ReceivedBuffer>,
    leases: BTreeSet<u64>,
    handed: u64,
    came: usize,
    /// The importer has refused what the exporter said.
    is_refused: bool,
}

impl<'s> Play<'s> {
    pub(super) fn new(stage: &'s Stage, manner: u8) -> Self {
        let is_to_another = manner & TO_ANOTHER != 0;
        let deadline = Deadline::after(LIMIT);
        let (exporter, importer) = ends(
            |here| TestExporter::new(&stage.context, here, is_to_another, deadline).unwrap(),
            |there| TestImporter::new(&stage.context, there, deadline).unwrap(),
        );
        let memory = importer.memory();
        Self {
            stage,
            exporter,
            importer,
            memory,
            may_be_written: manner & NOBODY_WRITES == 0,
            is_written: false,
            gives: true,
            takes: true,
            sleeps: None,
            dozes: false,
            under_way: VecDeque::new(),
            here: VecDeque::new(),
            leases: BTreeSet::new(),
            handed: 0,
            came: 0,
            is_refused: false,
        }
    }

    /// None when the input says no more.
    pub(super) fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        match input.byte()? % 16 {
            0..3 => self.hand_over(input.byte()?),
            3 | 4 => {
                self.receive();
            }
            5 | 6 => self.give_back(input.byte()?),
            7 => self.serve_exporter(),
            8 => reason(self.importer.serve()),
            9 => self.lie_down(),
            10 => match input.byte()? {
                0..16 => self.end_exporter(),
                16..32 => self.end_importer(),
                _ => {
                    self.receive();
                }
            },
            how => self.write(how, input)?,
        }
        Some(())
    }

    /// Hands over up to sixteen parts of a buffer.
    fn hand_over(&mut self, what: u8) {
        let buffer = &self.stage.buffers[usize::from(what & 1)];
        for _ in 0..=what >> 4 {
            if !self.takes || self.leases.len() >= MOST {
                return;
            }
            let offset = 64 * usize::try_from(self.handed % 1000).unwrap();
            let len = 1 + usize::from(what >> 1 & 7);
            let handed =
                self.exporter.hand_over(buffer.range(offset..offset + len).unwrap(), &self.stage.writer);
            match handed {
                Ok(sequence) => {
                    assert!(self.gives, "to nobody");
                    assert!(self.leases.insert(sequence));
                    self.under_way.push_back(Given { sequence, offset, len });
                    self.handed = sequence + 1;
                }
                Err(error) => {
                    let has_room = self.leases.len() < usize::try_from(RING_ENTRIES).unwrap();
                    assert!(self.is_written || !self.gives || error.is_timeout() && !has_room, "{error}");
                    reason::<()>(Err(error));
                    return;
                }
            }
            let is_called = self.sleeps.is_none_or(|since| self.importer.is_woken(since));
            assert!(self.is_written || is_called, "nobody wakes the receiver");
        }
    }

    /// Whether a buffer came.
    fn receive(&mut self) -> bool {
        self.rise();
        match self.importer.receive() {
            Ok(buffer) => {
                assert!(!self.is_refused, "a buffer of a connection that is broken");
                self.came += 1;
                let (said, len) = (buffer.received.said, buffer.len());
                let offset = usize::try_from(said.offset).unwrap();
                assert_eq!(HandOver::of_entry(said.to_entry()), Ok(said));
                assert!(len > 0 && offset.checked_add(len).unwrap() <= SEGMENT);
                if !self.is_written {
                    let given = Given { sequence: buffer.sequence(), offset, len };
                    assert_eq!(self.under_way.pop_front(), Some(given), "out of order");
                }
                self.here.push_back(buffer);
                true
            }
            Err(error) => {
                let is_timeout = error.is_timeout();
                assert!(self.is_written || is_timeout || !self.gives || !self.takes, "{error}");
                let is_all = is_timeout || error.is_gone() && self.gives;
                assert!(self.is_written || !is_all || self.under_way.is_empty(), "something is lost");
                assert!(!self.is_refused || matches!(error, Error::Broken), "{error}");
                self.is_refused |= matches!(error, Error::Protocol { .. } | Error::Wire { .. });
                reason::<()>(Err(error));
                if is_timeout {
                    assert!(
                        self.importer.lies_down().is_some(),
                        "who waits for more does not sleep, and finds nothing"
                    );
                }
                false
            }
        }
    }

    fn give_back(&mut self, which: u8) {
        if self.here.is_empty() {
            return;
        }
        let index = usize::from(which >> 1) % self.here.len();
        let buffer = self.here.swap_remove_front(index).unwrap();
        let sequence = buffer.sequence();
        let is_ready = buffer.is_ready();
        if which & 1 != 0 && matches!(is_ready, Ok(true)) {
            // Nobody waits on the device for what may never come.
            reason(buffer.on(&self.stage.reader).map(drop));
        }
        reason(is_ready);
        drop(buffer);
        if !self.is_written && self.takes {
            assert!(self.leases.remove(&sequence));
            // One that is said to be gone is told nothing.
            let is_called = !self.dozes || !self.gives || self.exporter.is_called();
            assert!(is_called, "nobody wakes the exporter");
        }
    }

    /// Turns of the thread that takes releases, of which each takes so many messages at the most.
    fn take_turns(&self) -> Result<()> {
        let (mut served, mut turns) = (self.exporter.serve(), 1);
        // It sleeps behind a turn that has left nothing, and has the next one at once otherwise.
        while served.is_ok() && (self.exporter.is_called() || !self.exporter.lies_down()) {
            assert!(turns < 100, "the thread does not sleep, and finds nothing");
            (served, turns) = (self.exporter.serve(), turns + 1);
        }
        served
    }

    /// The thread takes all that is given back, and sleeps.
    fn serve_exporter(&mut self) {
        if !self.gives {
            return;
        }
        let mut served = self.take_turns();
        let begun = Instant::now();
        // A thread in the background writes what found no room in the ring, once there is some.
        while served.is_ok() && self.takes && !self.is_written && self.importer.has_unsent() {
            assert!(begun.elapsed() < LIMIT, "what found no room does not come");
            thread::yield_now();
            served = self.take_turns();
        }
        if served.is_ok() {
            // What was written before none was left.
            served = self.take_turns();
        }
        self.dozes = served.is_ok();
        if self.is_written {
            assert!(self.exporter.leases().iter().all(|sequence| *sequence < self.handed));
        } else {
            assert!(self.takes || served.is_ok());
            assert_eq!(self.exporter.leases(), self.leases, "what was not given back");
        }
        reason(served);
    }

    fn lie_down(&mut self) {
        self.rise();
        self.sleeps = self.importer.lies_down();
        assert!(self.is_written || self.sleeps.is_some() == self.under_way.is_empty());
    }

    fn rise(&mut self) {
        self.sleeps = None;
    }

    /// The importer is said to be gone.
    fn end_exporter(&mut self) {
        self.gives = false;
        self.exporter.end();
        assert!(self.exporter.leases().is_empty());
    }

    /// The exporter is said to be gone.
    fn end_importer(&mut self) {
        self.takes = false;
        self.importer.end();
    }

    /// Somebody writes to the memory.
    fn write(&mut self, how: u8, input: &mut Input<'_>) -> Option<()> {
        let releases = FIRST_OF_RELEASES * 8;
        match how {
            11 => {
                let (low, high, len) = (input.byte()?, input.byte()?, input.byte()? % 64);
                let bytes = input.bytes(usize::from(len))?;
                let at = usize::from(u16::from_le_bytes([low, high])) % (WORDS * 8 - bytes.len());
                if self.is_allowed() {
                    self.memory.write(at, bytes).unwrap();
                }
            }
            12 => {
                let (which, ring) = (input.byte()?, [FIRST_OF_RING * 8, releases]);
                let numbers = ring.iter().flat_map(|ring| NUMBERS.map(|number| ring + number));
                let all = numbers.collect::<Vec<_>>();
                self.change(all[usize::from(which) % all.len()], input)?;
            }
            13 => {
                let (place, word) = (input.byte()?, input.byte()?);
                let ring = if word & 128 == 0 { FIRST_OF_RING * 8 } else { releases };
                self.change(ring + (3 + 4 * usize::from(place & 127)) * 8 + usize::from(word % 8), input)?;
            }
            14 => {
                let segment = Share::from(&self.stage.buffers[0]).segment.info.id;
                self.forge(FIRST_OF_RING * 8, [self.handed, segment, 0, 16, 0, 1, 0], input)?;
            }
            _ => {
                let sequence = self.exporter.leases().first().copied().unwrap_or_default();
                self.forge(releases, [sequence, 0, 0, 0, 0, 0, 0], input)?;
            }
        }
        Some(())
    }

    /// Whether it may, which it has done then.
    fn is_allowed(&mut self) -> bool {
        self.is_written |= self.may_be_written;
        self.is_written
    }

    fn load(&self, word: usize) -> u64 {
        self.memory.word(word * 8).unwrap().load(Ordering::SeqCst)
    }

    fn store(&self, word: usize, value: u64) {
        self.memory.word(word * 8).unwrap().store(value, Ordering::SeqCst);
    }

    fn change(&mut self, word: usize, input: &mut Input<'_>) -> Option<()> {
        let value = input.number(self.load(word))?;
        if self.is_allowed() {
            self.store(word, value);
        }
        Some(())
    }

    /// Another entry behind those that are there, some of whose words the input has.
    fn forge(&mut self, ring: usize, mut entry: [u64; 7], input: &mut Input<'_>) -> Option<()> {
        let which = input.byte()?;
        // One alone as often as any of them: hardly one of the others is believed.
        let mask = if which & 128 != 0 { 1 << (which % 8) } else { which };
        for (bit, word) in entry.iter_mut().enumerate() {
            if mask & 1 << bit != 0 {
                *word = input.number(*word)?;
            }
        }
        if self.is_allowed() {
            let tail = self.load(ring);
            let place = ring + (3 + usize::try_from(tail % RING_ENTRIES).unwrap()) * 8;
            for (word, value) in (place..).zip(entry) {
                self.store(word, value);
            }
            self.store(ring, tail.wrapping_add(1));
        }
        Some(())
    }

    /// Tells how many buffers came.
    pub(super) fn finish(mut self) -> usize {
        self.rise();
        if !self.is_written && self.gives && self.takes {
            while self.receive() {}
        }
        while !self.here.is_empty() {
            self.give_back(0);
        }
        self.serve_exporter();
        // What this side's streams write comes before the words are poisoned for those of the other.
        self.stage.reader.synchronize().unwrap();
        self.end_exporter();
        self.end_importer();
        assert!(!self.is_refused || self.importer.segments() == 0, "segments of a connection that is broken");
        while self.receive() {}
        self.came
    }
}

impl Drop for Play<'_> {
    fn drop(&mut self) {
        // However it ends, streams that wait for the other side go on: the memory's end waits for them.
        self.exporter.end();
        self.importer.end();
    }
}

/// Anything but a reason that peers give is a fault of this side.
fn reason<T>(result: Result<T>) {
    if let Err(error) = result {
        let is_known = error.is_timeout()
            || error.is_gone()
            || matches!(error, Error::Broken | Error::Protocol { .. } | Error::Wire { .. });
        assert!(is_known, "{error}");
    }
}
