//! The knobs of growth, and what each is for.

use super::sizes::PAGE;

/// Less memory than this counts as this much.
const LEAST_HELD: usize = 1 << 30;

/// What may be held beyond need where little is held at all: so many thousandths of it, up to so many bytes.
const LITTLE_SHARE: usize = 85;
const LITTLE: usize = 32 << 20;

/// So many thousandths for each heap after the first, up to so many bytes.
const FURTHER: usize = 4;
const MOST_FURTHER: usize = 32 << 20;

/// With more heaps than these, so many thousandths each, up to so many bytes: they take from each other all the time otherwise.
pub(super) const FEW: usize = 4;
const MANY_FURTHER: usize = 20;
const MOST_MANY_FURTHER: usize = 128 << 20;

/// What is held, as far as handles are made by it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holding {
    pub(crate) bytes: usize,
    /// The bytes that a large block has in the mean.
    pub(crate) mean: usize,
    pub(crate) heaps: usize,
}

/// How memory is got and moved. [`Policy::DEFAULT`] is what ships; `docs/allocator.md` has the measurements that chose them.
/// The [module](super) has an example.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// New memory is made as long as what is held stays under so many thousandths more than the most that was ever in use at
    /// once; beyond that, free pages are moved. More costs memory, less costs calls.
    pub(crate) slack: u32,
    /// From so many thousandths on, large blocks are placed where they break up the least of free handles.
    pub(crate) tight: u32,
    /// A block is made of about so many handles: the driver's cost goes with their number, the waste with their size.
    pub(crate) handles_per_block: usize,
    /// The smallest and the largest handle, powers of two; a larger one only where it is no more than a thousandth of what is held.
    pub(crate) smallest_handle: usize,
    pub(crate) largest_handle: usize,
    /// No handle is more than such a part of what is held: what a block leaves of the handle that it ends in cannot be moved.
    pub(crate) of_held: usize,
    /// Unless it is such a part of the mean block: few large blocks leave few ends, and each takes many handles.
    pub(crate) of_mean: usize,
    /// Nor is a handle of a block less than such a part of what is held, which bounds the calls that it takes to fill a device.
    pub(crate) of_all: usize,
    /// With several heaps, which may hold more and move more from one to another, less than such a part.
    pub(crate) of_several: usize,
    /// Losing a thousandth of what is held to a broken handle counts as so many microseconds of driver calls.
    pub(crate) price_of_waste: u64,
    /// Making memory beyond what may be held counts so many times as much: it stays, where a broken handle is whole again some time.
    pub(crate) price_of_more: u64,
    /// Blocks of this size and more are placed with care when memory is tight.
    pub(crate) placed: usize,
    /// The free end of a partly used handle, if it is as large as this, may begin a block elsewhere.
    pub(crate) smallest_tail: usize,
    /// While less than this and the room of the heaps is held, what is kept is not given up for new memory.
    pub(crate) room: usize,
    /// While less than this is held for each heap, nothing moves.
    pub(crate) room_of_heap: usize,
    /// While less than this is held for each heap, blocks have windows of their own.
    pub(crate) little: usize,
    /// Heaps with windows of their own take from each other from so many thousandths of the most that was ever in use on, if they
    /// may not hold as much otherwise. The peaks of up to four together are seldom as much; those of more, smaller ones are.
    pub(crate) nests: usize,
    /// And once something has become free so often: a program that only fills memory needs no windows, and its blocks stay.
    pub(crate) churn: u64,
    /// A size that comes again within so many frees comes again soon.
    pub(crate) soon: u64,
    /// From so many of those on, less half of the others, a heap has no windows: its blocks are alike and there at once, so that
    /// each would need one of its own.
    pub(crate) alike: u32,
    /// So many leaves may be mapped for a heap before they are paid for: what a thousand sizes need that come again and again.
    pub(crate) leaves: u64,
    /// And with so many frees each is paid for: more of them leave fewer calls where windows do not pay, and fewer windows where they do.
    pub(crate) frees_a_leaf: u64,
    /// Each free pays for so many microseconds of calls that move pages.
    pub(crate) credit: u64,
    /// From so many microseconds that nothing has paid for, new memory is made rather than pages moved.
    pub(crate) patience: u64,
    /// One block counts as no more than so many microseconds: a few very large ones are no reason.
    pub(crate) of_one_block: u64,
    /// As long as what is held stays under so many thousandths more than the most that was ever in use.
    pub(crate) hasty: usize,
    /// Of what a limit leaves, at most so many thousandths of the most that was ever in use, half is held before pages are moved.
    pub(crate) near: usize,
    /// And three quarters as long as it leaves so many thousandths or more.
    pub(crate) ample: usize,
    /// Mappings beyond which new sizes take the windows of others. Each heap has a bound of its own, which comes first with less than
    /// some sixty heaps.
    pub(crate) nested_mappings: usize,
    /// Mappings beyond which those that nobody needs are taken away. The driver's own limit is 524,072.
    pub(crate) most_mappings: usize,
    /// Whether pages may be mapped elsewhere at all.
    pub(crate) moves: bool,
}

impl Policy {
    /// What ships.
    pub const DEFAULT: Self = Self {
        slack: 7,
        tight: 7,
        handles_per_block: 8,
        price_of_waste: 16,
        price_of_more: 30,
        placed: 4 * PAGE,
        smallest_handle: 2 * PAGE,
        largest_handle: 16 * PAGE,
        of_held: 280,
        of_mean: 4,
        of_all: 1500,
        of_several: 500,
        smallest_tail: 4 * PAGE,
        room: 80 << 20,
        room_of_heap: 16 << 20,
        little: 512 << 20,
        nests: 1750,
        churn: 256,
        soon: 64,
        alike: 8,
        leaves: 2560,
        frees_a_leaf: 32,
        credit: 25,
        patience: 8_000,
        of_one_block: 100,
        hasty: 1250,
        near: 100,
        ample: 40,
        nested_mappings: 50_000,
        most_mappings: 100_000,
        moves: true,
    };

    /// One part in so many of what is active may wait for other streams although its own stream could wait instead.
    pub const WAITS_ON: usize = 16;

    /// Sets whether free pages may be mapped elsewhere rather than new memory be made.
    #[must_use]
    pub const fn with_moves(self, moves: bool) -> Self {
        Self { moves, ..self }
    }

    /// What so many heaps may hold together before they give up what they keep.
    pub(crate) const fn room_of_all(&self, heaps: usize) -> usize {
        self.room.saturating_add(self.room_of_heap.saturating_mul(heaps))
    }

    /// What each of so many heaps may hold of that.
    pub(crate) const fn room_of_each(&self, heaps: usize) -> usize {
        self.room / (if heaps == 0 { 1 } else { heaps }) + self.room_of_heap
    }

    /// What free bytes are worth when so many are held.
    pub(super) const fn waste(&self, held: usize) -> Waste {
        // Little memory is not worth more than calls: it has hardly any.
        let held = if held < LEAST_HELD { LEAST_HELD } else { held };
        Waste(self.price_of_waste * 1000 * (1 << 20) / (held as u64 >> 10))
    }

    /// How many bytes more than `most` may be held before pages are moved, where so many heaps have memory.
    ///
    /// A share of it; for little memory so many bytes as it takes to have room between a few blocks, which are no loss there;
    /// and some for each further heap, because what one has cut up no other can use.
    pub(crate) const fn slack_bytes(&self, most: usize, heaps: usize) -> usize {
        let share = most / 1000 * self.slack as usize;
        let little = most / 1000 * LITTLE_SHARE;
        let little = if little < LITTLE { little } else { LITTLE };
        let (each, bound) =
            if heaps > FEW { (MANY_FURTHER, MOST_MANY_FURTHER) } else { (FURTHER, MOST_FURTHER) };
        let each = most / 1000 * each;
        let each = if each < bound { each } else { bound };
        let further = each * heaps.saturating_sub(1);
        if share > little { share + further } else { little + further }
    }

    /// The largest handle for a block of this size, which is held then too.
    pub(crate) fn handle(&self, block: usize, holding: Holding) -> usize {
        let wanted = (block / self.handles_per_block).max(self.least(holding)).next_power_of_two();
        wanted.min(self.largest(Holding { bytes: holding.bytes.saturating_add(block), ..holding }))
    }

    /// The handle that a block is made of at least, as far as it is as long.
    pub(crate) fn least(&self, holding: Holding) -> usize {
        let part = if holding.heaps > 1 { self.of_several } else { self.of_all };
        power(holding.bytes / part).max(self.smallest_handle)
    }

    /// The largest handle.
    pub(crate) fn largest(&self, holding: Holding) -> usize {
        let Holding { bytes, mean, .. } = holding;
        // Where there is much, a thousandth of it is no loss, and saves calls.
        let most = power(bytes / 1024).clamp(self.largest_handle, MOST);
        power((bytes / self.of_held).max(mean / self.of_mean)).clamp(self.smallest_handle, most)
    }
}

/// The largest power of two that is no more than this, or 0.
const fn power(bytes: usize) -> usize {
    match bytes.checked_ilog2() {
        Some(exponent) => 1 << exponent,
        None => 0,
    }
}

/// No handle has more bytes, so that the records of mappings may be short.
const MOST: usize = 1 << 40;

/// What driver calls cost, in microseconds a handle, as measured on an H200.
pub(super) mod cost {
    /// Map and set access.
    pub(in crate::engine::paged) const MAP: i64 = 21;
    pub(in crate::engine::paged) const UNMAP: i64 = 13;
    /// So many mappings are looked at in a microsecond when a window is looked for.
    pub(in crate::engine::paged) const LOOKED_AT: i64 = 40;
}

/// What free bytes are worth that can be moved, in microseconds a GiB.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waste(u64);

impl Waste {
    /// What breaks a wholly free handle loses the rest of it.
    pub(super) const fn of(self, bytes: u64) -> i64 {
        // The price is below 2^14, and bytes below 2^46, or 30 times as many.
        (((bytes >> 10).saturating_mul(self.0)) >> 20) as i64
    }
}
