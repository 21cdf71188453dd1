//! A heap that looks at everything each time.

use super::support::Layout;
use crate::engine::segments::{Block, BlockState, Options};
use crate::statistics::PoolSize;

#[derive(Debug, Clone)]
pub(super) struct Segment {
    address: u64,
    bytes: u64,
    stream: u64,
    kind: PoolSize,
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone)]
struct Piece {
    size: u64,
    requested: u64,
    state: BlockState,
}

#[derive(Debug)]
pub(super) struct Model {
    options: Options,
    pub(super) no_split: bool,
    pub(super) segments: Vec<Segment>,
}

pub(super) fn kind_of(size: u64) -> PoolSize {
    if size <= 1 << 20 { PoolSize::Small } else { PoolSize::Large }
}

impl Model {
    pub(super) fn new(options: Options) -> Self {
        Self { options, no_split: false, segments: Vec::new() }
    }

    /// Best fit: the address.
    pub(super) fn allocate(&mut self, stream: u64, size: u64, requested: u64) -> Option<u64> {
        let kind = kind_of(size);
        let mut best: Option<(u64, u64)> = None;
        for segment in self.segments.iter().filter(|s| s.stream == stream && s.kind == kind) {
            let mut address = segment.address;
            for piece in &segment.pieces {
                if piece.state == BlockState::Inactive && piece.size >= size {
                    best = best.into_iter().chain([(piece.size, address)]).min();
                }
                address += piece.size;
            }
        }
        let (found, address) = best?;
        if let Some(most) = self.options.max_split_size {
            if size < most && found >= most {
                return None;
            }
            if size >= most && found >= size + self.options.non_split_rounding() {
                return None;
            }
        }
        self.take(address, size, requested);
        Some(address)
    }

    /// A new segment, and the request from it.
    pub(super) fn grow(&mut self, stream: u64, size: u64, requested: u64, address: u64, bytes: u64) {
        let kind = kind_of(size);
        let pieces = vec![Piece { size: bytes, requested: 0, state: BlockState::Inactive }];
        self.segments.push(Segment { address, bytes, stream, kind, pieces });
        self.segments.sort_by_key(|segment| segment.address);
        self.take(address, size, requested);
    }

    fn piece(&mut self, address: u64) -> (usize, usize) {
        let segment = self.segments.iter().rposition(|segment| segment.address <= address).unwrap();
        let mut at = self.segments[segment].address;
        let mut place = 0;
        while at < address {
            at += self.segments[segment].pieces[place].size;
            place += 1;
        }
        assert_eq!(at, address, "no block starts there");
        (segment, place)
    }

    fn take(&mut self, address: u64, size: u64, requested: u64) {
        let (segment, place) = self.piece(address);
        let (no_split, most) = (self.no_split, self.options.max_split_size.unwrap_or(u64::MAX));
        let segment = &mut self.segments[segment];
        let piece = &mut segment.pieces[place];
        let rest = piece.size - size;
        let split = match segment.kind {
            PoolSize::Small => rest >= 512,
            PoolSize::Large => size < most && rest > 1 << 20,
        };
        piece.state = BlockState::ActiveAllocated;
        piece.requested = requested;
        if split && !no_split {
            piece.size = size;
            let rest = Piece { size: rest, requested: 0, state: BlockState::Inactive };
            segment.pieces.insert(place + 1, rest);
        }
    }

    pub(super) fn pending(&mut self, address: u64) {
        let (segment, place) = self.piece(address);
        self.segments[segment].pieces[place].state = BlockState::ActivePendingFree;
    }

    pub(super) fn free(&mut self, address: u64) {
        let (segment, place) = self.piece(address);
        let segment = &mut self.segments[segment];
        segment.pieces[place].state = BlockState::Inactive;
        segment.pieces[place].requested = 0;
        for left in [place, place.wrapping_sub(1)] {
            let both = segment.pieces.get(left).zip(segment.pieces.get(left.wrapping_add(1)));
            let free = |piece: &Piece| piece.state == BlockState::Inactive;
            if both.is_some_and(|(one, other)| free(one) && free(other)) {
                let gone = segment.pieces.remove(left + 1);
                segment.pieces[left].size += gone.size;
            }
        }
    }

    pub(super) fn adopt(&mut self, from: u64, to: u64) {
        for segment in self.segments.iter_mut().filter(|segment| segment.stream == from) {
            segment.stream = to;
        }
    }

    fn is_whole(segment: &Segment) -> bool {
        segment.pieces.len() == 1 && segment.pieces[0].state == BlockState::Inactive
    }

    fn remove(&mut self, gone: &[u64]) {
        self.segments.retain(|segment| !gone.contains(&segment.address));
    }

    pub(super) fn release_cached(&mut self) -> Vec<u64> {
        let whole = self.segments.iter().filter(|segment| Self::is_whole(segment));
        let gone: Vec<u64> = whole.map(|segment| segment.address).collect();
        self.remove(&gone);
        gone
    }

    pub(super) fn release_available(&mut self, stream: u64, size: u64) -> Vec<u64> {
        let Some(most) = self.options.max_split_size else { return Vec::new() };
        let room = size.max(most);
        let mine = |s: &&Segment| s.stream == stream && s.kind == kind_of(size) && Self::is_whole(s);
        let mut whole: Vec<(u64, u64)> =
            self.segments.iter().filter(mine).map(|s| (s.bytes, s.address)).collect();
        whole.sort_unstable();
        let mut gone = Vec::new();
        let mut bytes = 0;
        if let Some(&(_, address)) = whole.iter().find(|&&(bytes, _)| bytes >= room) {
            gone.push(address);
        } else {
            for &(size, address) in whole.iter().rev().filter(|&&(size, _)| size >= most) {
                if bytes < room {
                    gone.push(address);
                    bytes += size;
                }
            }
        }
        self.remove(&gone);
        gone
    }

    /// Makes the segments that were there then what they were, and all others free.
    pub(super) fn restore(&mut self, then: &[Segment]) {
        for segment in &mut self.segments {
            let was = then.iter().find(|was| was.address == segment.address);
            if was.is_none() && Self::is_whole(segment) {
                continue;
            }
            let free = Piece { size: segment.bytes, requested: 0, state: BlockState::Inactive };
            segment.pieces = was.map_or(vec![free], |was| was.pieces.clone());
        }
    }

    pub(super) fn has_all_of(&self, then: &[Segment]) -> bool {
        then.iter().all(|was| self.segments.iter().any(|here| here.address == was.address))
    }

    pub(super) fn layout(&self) -> Layout {
        let view = self.segments.iter().map(|segment| {
            let mut address = segment.address;
            let blocks = segment.pieces.iter().map(|piece| {
                let Piece { size, requested, state, .. } = *piece;
                address += size;
                let (stream, kind) = (segment.stream, segment.kind);
                Block { address: address - size, size, requested, stream, state, kind }
            });
            (segment.address, segment.bytes, segment.stream, segment.kind, blocks.collect())
        });
        view.collect()
    }

    /// The free blocks that share their segment with others, and their bytes: counted from what is there.
    pub(super) fn splits(&self, kind: PoolSize) -> (u64, u64) {
        let of_kind = self.segments.iter().filter(|segment| segment.kind == kind && segment.pieces.len() > 1);
        let free = of_kind.flat_map(|segment| &segment.pieces).filter(|p| p.state == BlockState::Inactive);
        free.fold((0, 0), |(count, bytes), piece| (count + 1, bytes + piece.size))
    }
}
