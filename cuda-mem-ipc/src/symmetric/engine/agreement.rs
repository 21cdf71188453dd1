//! How all ranks agree on a call before any of them makes it.
//!
//! Two exchanges: in the first each rank says what it is about to do, in the second that it has heard all and they are at one. A rank
//! that is late for the first is noticed by the ranks that wait, which do not come to the second: no rank makes the call then. What is left is
//! a rank that stops between the two for as long as the others wait; a [`Group`](crate::symmetric::Group) notices that too.
//!
//! A call may fail on some ranks alone: after one that leaves something behind, all say in a third exchange whether it worked. What all have is
//! undone by all; what only some have cannot be, and then there are no more calls.
//!
//! A message is words of eight bytes, little-endian: 2, the number of the agreement, rank, ranks, kind, size, number of the allocation, then the
//! numbers of the allocations that this rank has freed. The second is the same without those, with kind 0, and the
//! third with kind 5: there the size is 1 after a failure, and the number of the allocation 1 if there is something to undo.

use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::sys::engine::Version;

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, Unaligned};

use crate::symmetric::{Error, Exchange, Result};

const VERSION: u64 = 2;
const HEAD: usize = 7;
/// How many freed allocations a message names at most: it has 16384 bytes.
const FREED: usize = 1024;
/// The kind of the second message.
const GO: u64 = 0;
/// The kind of the third message.
const DONE: u64 = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Start = 1,
    Alloc,
    Rendezvous,
    Close,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Proposal {
    pub(super) kind: Kind,
    /// For [`Kind::Close`], where ranks may differ, the allocations in use.
    pub(super) size: u64,
    pub(super) sequence: u64,
    pub(super) retired: Vec<u64>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    pub(super) sizes: Vec<u64>,
    /// What all have freed, in order.
    pub(super) freed: Vec<u64>,
}

/// What a rank tells before the library starts.
#[derive(FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Introduction {
    /// The library's version, and its state in the process.
    words: [U32; 4],
    /// Rank 0's counts.
    id: [u8; 128],
}

impl Introduction {
    /// `is_initialised` is whether the process has an instance already, of a library that has one for each.
    pub(super) fn new(version: Version, is_initialised: Option<bool>, id: [u8; 128]) -> Self {
        let Version { major, minor, patch } = version;
        let state = is_initialised.map_or(0, |is_initialised| 1 + u32::from(is_initialised));
        Self { words: [major, minor, patch, state].map(U32::new), id }
    }

    /// The id, if all ranks are alike.
    fn compare(&self, told: &[Vec<u8>], backend: &'static str) -> Result<[u8; 128]> {
        let text = |words: [U32; 4]| {
            let [major, minor, patch, state] = words.map(U32::get);
            let state =
                ["", ", not initialised", ", initialised"].get(state as usize).unwrap_or(&", in no state");
            format!("{backend} {major}.{minor}.{patch}{state}")
        };
        let mut first = None;
        for (rank, bytes) in told.iter().enumerate() {
            let theirs = Self::read_from_bytes(bytes).map_err(|_| Error::NoMessage { rank, backend })?;
            if theirs.words != self.words {
                return Err(Error::Disagrees { rank, ours: text(self.words), theirs: text(theirs.words) });
            }
            first.get_or_insert(theirs.id);
        }
        first.ok_or(Error::NoMessage { rank: 0, backend })
    }
}

/// The calls that this rank has made.
#[derive(Debug, Default)]
pub(super) struct Calls {
    agreements: u64,
    /// How many allocations were begun: the number of the next one.
    pub(super) allocated: u64,
    /// How many times the library has connected all ranks.
    pub(super) connected: usize,
    /// Why there are no more.
    ended: Option<Error>,
}

impl Calls {
    /// Returns rank 0's id once all ranks are alike and about to start.
    pub(super) fn start(&mut self, talk: Talk<'_>, ours: &Introduction) -> Result<[u8; 128]> {
        let told = talk.exchange.all_gather(ours.as_bytes(), talk.timeout)?;
        let id = ours.compare(&told, talk.backend)?;
        let start = Proposal { kind: Kind::Start, size: 0, sequence: 0, retired: Vec::new() };
        self.agree(talk, start).map(|_| id)
    }

    /// Returns once all ranks are about to make the same call.
    pub(super) fn agree(&mut self, talk: Talk<'_>, proposal: Proposal) -> Result<Agreed> {
        if let Some(ended) = &self.ended {
            return Err(ended.clone());
        }
        let Proposal { kind, size, sequence, mut retired } = proposal;
        retired.truncate(FREED);
        let number = self.agreements;
        let said = talk.hear([number, kind as u64, size, sequence], &retired);
        let said = said.inspect_err(|error| self.end(error))?;
        self.agreements += 1;
        // All ranks compare the same messages: when they differ no rank comes to the second exchange.
        let agreed = compare(&said, talk.exchange.rank(), kind)?;
        talk.expect([number, GO, size, sequence]).inspect_err(|error| self.end(error))?;
        Ok(agreed)
    }

    /// Returns what was made once all ranks have made theirs, or why not, on all ranks. `leaves` says whether there is something that all
    /// have to undo together, which is the caller's to do unless there are [no more calls](Self::has_ended).
    pub(super) fn settle<T>(
        &mut self,
        talk: Talk<'_>,
        call: &'static str,
        made: Result<T>,
        leaves: bool,
    ) -> Result<T> {
        let (backend, leaves) = (talk.backend, u64::from(leaves));
        let said = talk.expect([self.agreements, DONE, u64::from(made.is_err()), leaves]);
        let error = match said.inspect_err(|error| self.end(error)) {
            Ok(said) => {
                let Some(rank) = said.iter().position(|said| said.size != 0) else { return made };
                if said.iter().all(|said| said.sequence == leaves) {
                    Error::FailedElsewhere { backend, call, rank }
                } else {
                    let uneven = Error::Uneven { backend, call, rank };
                    self.end(&uneven);
                    uneven
                }
            }
            Err(error) => error,
        };
        made.and(Err(error))
    }

    /// Whether there are no more calls, so that nothing can be undone together.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Messages are not matched any more.
    pub(super) fn end(&mut self, error: &Error) {
        self.ended = Some(error.clone());
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Said {
    number: u64,
    kind: u64,
    size: u64,
    sequence: u64,
    retired: Vec<u64>,
}

impl Said {
    fn told(&self) -> String {
        let Self { number, kind, size, sequence, .. } = self;
        let kinds = [Kind::Start, Kind::Alloc, Kind::Rendezvous, Kind::Close];
        match kinds.into_iter().find(|known| *known as u64 == *kind) {
            Some(Kind::Alloc) => format!("call {number}, allocation {sequence} of {size} bytes"),
            Some(Kind::Rendezvous) => {
                format!("call {number}, the rendezvous of allocation {sequence} of {size} bytes")
            }
            Some(kind) => format!("call {number}, {kind:?}"),
            None => format!("call {number}, of kind {kind}"),
        }
    }
}

fn encode(head: &[u64; HEAD], retired: &[u64]) -> Vec<u8> {
    head.iter().chain(retired).flat_map(|word| word.to_le_bytes()).collect()
}

/// What ranks agree over, for which backend, and for how long they are waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Talk<'e> {
    pub(super) exchange: &'e dyn Exchange,
    pub(super) backend: &'static str,
    pub(super) timeout: Duration,
}

impl Talk<'_> {
    /// Says a message, by its number, kind, size and sequence, and returns what the ranks said, each as the rank that it is.
    fn hear(self, [number, kind, size, sequence]: [u64; 4], retired: &[u64]) -> Result<Vec<Said>> {
        let (rank, ranks) = (self.exchange.rank() as u64, self.exchange.world_size());
        let head = [VERSION, number, rank, ranks as u64, kind, size, sequence];
        let told = self.exchange.all_gather(&encode(&head, retired), self.timeout)?;
        let nothing = |rank| Error::NoMessage { rank, backend: self.backend };
        if told.len() != ranks {
            return Err(nothing(told.len().min(ranks)));
        }
        let message = |(rank, bytes): (usize, &Vec<u8>)| {
            let (words, rest) = bytes.as_chunks::<8>();
            let words = words.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<_>>();
            match words.as_slice() {
                &[VERSION, number, said_rank, said_ranks, kind, size, sequence, ref retired @ ..]
                    if rest.is_empty()
                        && (said_rank, said_ranks) == (rank as u64, ranks as u64)
                        && retired.len() <= FREED =>
                {
                    Ok(Said { number, kind, size, sequence, retired: retired.to_vec() })
                }
                _ => Err(nothing(rank)),
            }
        };
        told.iter().enumerate().map(message).collect()
    }

    /// As [`hear`](Self::hear), of messages of the same call and kind.
    fn expect(self, head: [u64; 4]) -> Result<Vec<Said>> {
        let said = self.hear(head, &[])?;
        match said.iter().position(|said| [said.number, said.kind] != head[..2]) {
            Some(rank) => Err(Error::NoMessage { rank, backend: self.backend }),
            None => Ok(said),
        }
    }
}

/// Whether all are about to do the same.
fn compare(said: &[Said], own: usize, kind: Kind) -> Result<Agreed> {
    let Some(ours) = said.get(own) else {
        return Err(Error::RankTaken { rank: own, world_size: said.len() });
    };
    for (rank, theirs) in said.iter().enumerate() {
        let is_same_call = (theirs.kind, theirs.number) == (ours.kind, ours.number);
        let is_same_memory = theirs.sequence == ours.sequence;
        if !is_same_call || !is_same_memory {
            return Err(Error::Disagrees { rank, ours: ours.told(), theirs: theirs.told() });
        }
        if kind != Kind::Close && theirs.size != ours.size {
            let (sequence, ours, theirs) = (ours.sequence, ours.size, theirs.size);
            return Err(Error::OrderDiffers { rank, sequence, ours, theirs });
        }
    }
    let all_have = |sequence: &u64| said.iter().all(|theirs| theirs.retired.contains(sequence));
    let mut freed = ours.retired.iter().copied().filter(all_have).collect::<Vec<_>>();
    freed.sort_unstable();
    Ok(Agreed { sizes: said.iter().map(|said| said.size).collect(), freed })
}

#[cfg(test)]
mod tests;
