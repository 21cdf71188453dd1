//! What the page shows of one device, of pinned host memory, or of a trace: curves, blocks, and what is summed up of the rest.

use std::collections::HashMap;

use anyhow::Result;

use super::history::{Block, History, Moment, OutOfMemory, Reference, Segment};
use super::keep::{Keeper, Rest, WHOLE};
use super::pickle::Value;
use super::records::{Annotation, Taken};
use super::snapshot::{Part, Snapshot, pair_of, said};
use super::stacks::{Resolver, Stacks};
use super::walk::{Totals, Visit, walk};

/// Points of a curve: more events than this share one, which shows the highest of them.
pub(super) const MAX_POINTS: u64 = 150_000;

/// Failed allocations that are listed.
const MAX_FAILED: usize = 1000;

/// Annotations that are shown: the longest.
const MAX_ANNOTATIONS: usize = 2000;

/// What was said with blocks: their label, what was compiled, their pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Label {
    pub(super) said: String,
    pub(super) compiled: String,
    pub(super) pool: Option<(i64, i64)>,
    /// The tag that the pool's memory sleeps and wakes with.
    pub(super) tag: String,
}

/// All that the page shows of one memory.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) name: String,
    /// What it is, for people.
    pub(super) kind: String,
    /// What an event is, in the plural.
    pub(super) what: &'static str,
    pub(super) device: Option<i64>,
    pub(super) curves: Curves,
    /// The blocks that are listed one by one, as they came. `tag` is a place in `labels`.
    pub(super) blocks: Vec<Block>,
    pub(super) labels: Vec<Label>,
    pub(super) segments: Vec<Segment>,
    /// Where each block is listed; of those that were there elsewhere, only the large ones are, and `rest` sums up the others.
    pub(super) windows: Vec<(Moment, Moment)>,
    pub(super) rest: Rest,
    pub(super) out_of_memory: Vec<OutOfMemory>,
    pub(super) failed: u64,
    pub(super) allocations: u64,
    pub(super) references: Vec<Reference>,
    /// Names, and moments at which they begin and end.
    pub(super) annotations: Vec<(String, Moment, Moment)>,
    /// What the allocator was set to.
    pub(super) settings: Vec<String>,
    /// What a reader should know.
    pub(super) notes: Vec<String>,
}

/// Bytes over time, in points that show the highest of what they stand for.
#[derive(Debug, Clone)]
pub(super) struct Curves {
    pub(super) events: Moment,
    /// Events of a point.
    pub(super) step: Moment,
    pub(super) live: Vec<u64>,
    pub(super) pending: Vec<u64>,
    /// Empty where nobody wrote it down.
    pub(super) reserved: Vec<u64>,
    /// Microseconds since the first event; empty where an event has none.
    pub(super) times: Vec<u64>,
    pub(super) peak_live: (u64, Moment),
    pub(super) peak_active: (u64, Moment),
    pub(super) peak_reserved: (u64, Moment),
    /// The clock at the first event.
    first: u64,
    has_times: bool,
    failed: Vec<OutOfMemory>,
    failures: u64,
}

impl Curves {
    fn new(events: Moment, points: u64) -> Self {
        let step = u64::from(events).div_ceil(points).max(1);
        let points = u64::from(events).div_ceil(step) as usize + 1;
        Self {
            events,
            step: Moment::try_from(step).unwrap_or(Moment::MAX),
            live: vec![0; points],
            pending: vec![0; points],
            reserved: vec![0; points],
            times: vec![0; points],
            peak_live: (0, 0),
            peak_active: (0, 0),
            peak_reserved: (0, 0),
            first: u64::MAX,
            has_times: true,
            failed: Vec::new(),
            failures: 0,
        }
    }

    fn point(&self, moment: Moment) -> usize {
        moment.div_ceil(self.step) as usize
    }

    fn add(&mut self, moment: Moment, totals: Totals) {
        let point = self.point(moment);
        let highest = |curve: &mut [u64], bytes: u64| {
            if let Some(known) = curve.get_mut(point) {
                *known = bytes.max(*known);
            }
        };
        highest(&mut self.live, totals.live);
        highest(&mut self.pending, totals.pending);
        highest(&mut self.reserved, totals.reserved);
        // Of several peaks the first; events come backwards or forwards.
        let peak = |known: &mut (u64, Moment), bytes: u64| {
            if bytes > known.0 || (bytes == known.0 && moment < known.1) {
                *known = (bytes, moment);
            }
        };
        peak(&mut self.peak_live, totals.live);
        peak(&mut self.peak_active, totals.live + totals.pending);
        peak(&mut self.peak_reserved, totals.reserved);
    }

    fn time(&mut self, moment: Moment, time: Option<u64>) {
        let point = self.point(moment);
        let Some(time) = time else {
            self.has_times &= moment == 0;
            return;
        };
        self.first = if moment == 1 { time } else { self.first.min(time) };
        if let Some(known) = self.times.get_mut(point) {
            *known = time.max(*known);
        }
    }

    /// Makes times those since the first event, which never run back.
    fn settle(&mut self) {
        if !self.has_times || self.events == 0 {
            self.times = Vec::new();
        }
        let mut last = 0;
        for time in &mut self.times {
            // Clocks are set; the order of events is not.
            last = time.saturating_sub(self.first).max(last);
            *time = last;
        }
    }

    /// The last moment that is not after a time of the clock.
    fn moment_of(&self, time: u64) -> Moment {
        let since = time.saturating_sub(self.first);
        let point = self.times.partition_point(|known| *known <= since).saturating_sub(1);
        self.events.min(Moment::try_from(point).unwrap_or(0).saturating_mul(self.step))
    }
}

impl Visit for Curves {
    fn moment(&mut self, moment: Moment, totals: Totals, time: Option<u64>) {
        self.add(moment, totals);
        self.time(moment, time);
    }

    fn failed(&mut self, event: OutOfMemory) {
        self.failures += 1;
        // They come the latest first, and the latest are kept.
        if self.failed.len() < MAX_FAILED {
            self.failed.push(event);
        }
    }
}

/// A second walk, for blocks.
impl Visit for Keeper {
    fn block(&mut self, block: Block) {
        self.keep(block);
    }
}

impl Space {
    /// One part of a snapshot. `parts` are those that share the page.
    pub(super) fn of_part(
        snapshot: &Snapshot,
        part: &Part,
        parts: u64,
        stacks: &mut Stacks,
        progress: &mut dyn FnMut(&'static str, u64, u64),
    ) -> Result<Self> {
        let total: u64 = part.events.iter().map(|(_, count)| count).sum();
        let events = Moment::try_from(total)?;
        let parts = parts.max(1);
        let mut curves = Curves::new(events, (MAX_POINTS / parts).max(2000));
        let share = WHOLE / Moment::try_from(parts)?;
        walk(&snapshot.taken, part, &mut curves, &mut |done| progress("following", done, total))?;
        curves.settle();
        curves.failed.reverse();
        let failed: Vec<_> = curves.failed.iter().map(|event| event.moment).collect();
        let peaks = [curves.peak_live.1, curves.peak_active.1, curves.peak_reserved.1];
        let mut keeper = Keeper::new(events, share, &peaks, &failed, curves.peak_active.0);
        let walked = walk(&snapshot.taken, part, &mut keeper, &mut |done| {
            progress("listing blocks", done, total);
        })?;

        let mut notes = notes(&curves, walked.strange, walked.forgotten);
        let mut resolver = Resolver::new(&snapshot.store, stacks);
        let (windows, mut blocks, mut rest) = keeper.finish();
        let mut labels = Labels::new(&snapshot.taken, part);
        for block in &mut blocks {
            block.stack = resolver.stack(block.stack);
            block.tag = labels.of(&resolver, block);
            block.note = 0;
        }
        rest.stacks(|stack| resolver.stack(stack));
        let mut out_of_memory = std::mem::take(&mut curves.failed);
        for event in &mut out_of_memory {
            event.stack = resolver.stack(event.stack);
        }
        // A history may leave mappings out.
        if walked.segments.is_empty() && curves.peak_active.0 > 0 {
            notes.push("Mappings were not recorded: what was reserved is not known.".to_owned());
            curves.reserved = Vec::new();
        }
        let device = part.device.unwrap_or(-1);
        let annotations = annotations(&snapshot.taken.annotations, device, &curves, &resolver);
        Ok(Self {
            name: part.device.map_or("Pinned host memory".to_owned(), |device| format!("GPU {device}")),
            kind: part.device.map_or("pinned host memory".to_owned(), |device| format!("device {device}")),
            what: "allocator events",
            device: part.device,
            failed: curves.failures,
            allocations: walked.allocations,
            curves,
            blocks,
            labels: labels.list,
            segments: walked.segments,
            windows,
            rest,
            out_of_memory,
            references: Vec::new(),
            annotations,
            settings: snapshot.settings.clone(),
            notes,
        })
    }

    /// Microseconds since the first event at a moment; the moment itself where times are not known.
    pub(super) fn time(&self, moment: Moment) -> u64 {
        self.curves.times.get(self.curves.point(moment)).copied().unwrap_or(moment.into())
    }

    /// Bytes and blocks by stack at a moment within a window.
    pub(super) fn held(&self, moment: Moment) -> HashMap<Option<u32>, (u64, u64)> {
        let mut held: HashMap<Option<u32>, (u64, u64)> = HashMap::new();
        for block in &self.blocks {
            if block.allocated <= moment && moment < block.done {
                let sum = held.entry(block.stack).or_default();
                *sum = (sum.0 + block.size, sum.1 + 1);
            }
        }
        held
    }

    /// A trace, or a replay of one.
    pub(super) fn of_history(history: History, name: &str) -> Result<Self> {
        let series = history.series()?;
        let mut curves = Curves::new(history.events, MAX_POINTS);
        let reserved = series.reserved.as_deref();
        for (moment, (live, pending)) in (0..).zip(series.live.iter().zip(&series.pending)) {
            let reserved = reserved.and_then(|reserved| reserved.get(moment as usize)).copied().unwrap_or(0);
            curves.add(moment, Totals { live: *live, pending: *pending, reserved });
        }
        curves.has_times = !history.times.is_empty();
        for (moment, time) in (0..).zip(&history.times) {
            curves.time(moment, Some(*time));
        }
        curves.first = 0;
        curves.settle();
        if reserved.is_none() {
            curves.reserved = Vec::new();
        }
        let failed: Vec<_> = history.out_of_memory.iter().map(|event| event.moment).collect();
        let peaks = [curves.peak_live.1, curves.peak_active.1, curves.peak_reserved.1];
        let mut keeper = Keeper::new(history.events, WHOLE, &peaks, &failed, curves.peak_active.0);
        let allocations = history.blocks.iter().filter(|block| block.allocated > 0).count() as u64;
        history.blocks.into_iter().for_each(|block| keeper.keep(block));
        let (windows, blocks, rest) = keeper.finish();
        Ok(Self {
            name: name.to_owned(),
            kind: "an allocation trace".to_owned(),
            what: history.what,
            device: None,
            curves,
            blocks,
            labels: vec![Label::default()],
            segments: history.segments,
            windows,
            rest,
            failed: failed.len() as u64,
            out_of_memory: history.out_of_memory.into_iter().take(MAX_FAILED).collect(),
            allocations,
            references: history.references,
            annotations: Vec::new(),
            settings: Vec::new(),
            notes: history.notes,
        })
    }
}

fn notes(curves: &Curves, strange: u64, forgotten: usize) -> Vec<String> {
    let mut notes = Vec::new();
    if curves.events == 0 {
        notes.push(
            "The snapshot has no history: the page shows the one moment at which it was taken.".to_owned(),
        );
    }
    if strange > 0 {
        notes.push(format!(
            "{strange} of {} events do not fit the blocks and segments at the end; they are left out.",
            curves.events
        ));
    }
    if forgotten > 0 {
        notes.push(format!("{forgotten} segments that came and went are left out of the map."));
    }
    notes
}

/// The longest annotations of a device, or of all.
fn annotations(
    all: &[Annotation],
    device: i64,
    curves: &Curves,
    resolver: &Resolver<'_>,
) -> Vec<(String, Moment, Moment)> {
    if curves.times.is_empty() {
        return Vec::new();
    }
    // They begin and end like brackets, name by name.
    let mut open: HashMap<u32, Vec<u64>> = HashMap::new();
    let mut found = Vec::new();
    for annotation in all.iter().filter(|annotation| annotation.device < 0 || annotation.device == device) {
        let begun = open.entry(annotation.name).or_default();
        if annotation.begins {
            begun.push(annotation.time);
        } else if let Some(time) = begun.pop() {
            found.push((annotation.name, time, annotation.time));
        }
    }
    for (name, begun) in open {
        found.extend(begun.into_iter().map(|time| (name, time, u64::MAX)));
    }
    found.sort_unstable_by_key(|(_, from, to)| (std::cmp::Reverse(to.saturating_sub(*from)), *from));
    found.truncate(MAX_ANNOTATIONS);
    found.sort_unstable_by_key(|(_, from, to)| (*from, std::cmp::Reverse(*to)));
    let named = found.into_iter().map(|(name, from, to)| {
        (
            resolver.store.text_of(name).chars().take(200).collect(),
            curves.moment_of(from),
            curves.moment_of(to),
        )
    });
    named.collect()
}

/// What is said with blocks, each once.
struct Labels<'s> {
    taken: &'s Taken,
    device: Option<i64>,
    /// Where pools have segments, by address.
    pools: Vec<(u64, u64, (i64, i64))>,
    list: Vec<Label>,
    places: HashMap<Label, u32>,
}

impl<'s> Labels<'s> {
    fn new(taken: &'s Taken, part: &Part) -> Self {
        let pools = part.segments.iter();
        let pools = pools.filter_map(|segment| Some((segment.address, segment.size, segment.pool?)));
        let mut pools: Vec<_> = pools.collect();
        pools.sort_unstable();
        let list = vec![Label::default()];
        Self { taken, device: part.device, pools, list, places: HashMap::from([(Label::default(), 0)]) }
    }

    fn of(&mut self, resolver: &Resolver<'_>, block: &Block) -> u32 {
        let tag = |place: u32| place.checked_sub(1).and_then(|place| self.taken.tags.get(place as usize));
        let text = |value: Option<Value>| {
            let value = value.filter(|value| *value != Value::None);
            value.map(|value| said(resolver.store, value)).unwrap_or_default()
        };
        let (first, later) = (tag(block.tag), tag(block.note));
        let spoken =
            [later.map(|tag| tag.metadata), first.map(|tag| tag.metadata), first.map(|tag| tag.internal)];
        let pool = match first.map(|tag| tag.pool) {
            Some(Value::List(pair)) => pair_of(resolver.store.items(pair)),
            _ => self.pool_at(block.address.unwrap_or(0)),
        };
        let sleeper = self.device.zip(pool).and_then(|place| self.taken.sleepers.get(&place));
        let label = Label {
            said: spoken.into_iter().map(text).find(|text| !text.is_empty()).unwrap_or_default(),
            compiled: text(first.map(|tag| tag.compiled)),
            pool,
            tag: sleeper.map(|name| resolver.store.text_of(*name).to_owned()).unwrap_or_default(),
        };
        if let Some(place) = self.places.get(&label) {
            return *place;
        }
        let Ok(place) = u32::try_from(self.list.len()) else { return 0 };
        self.list.push(label.clone());
        self.places.insert(label, place);
        place
    }

    fn pool_at(&self, address: u64) -> Option<(i64, i64)> {
        let after = self.pools.partition_point(|(start, ..)| *start <= address);
        let (start, size, pool) = self.pools.get(after.checked_sub(1)?)?;
        (address < start + size).then_some(*pool)
    }
}
