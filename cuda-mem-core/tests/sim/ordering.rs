//! Random programs: whatever is done in whatever order on however many streams, no use is unordered and no byte is wrong.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use cuda_mem_core::host::{HostMemory, RegisterFlags, Registered};
use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, DeviceBuffer, Driver, Error, Result, Stream, copy};
use cuda_mem_sim::{Record, Sim};
use proptest::collection::vec;
use proptest::prelude::*;

const STREAMS: usize = 3;
const BUFFERS: usize = 4;
const LEN: usize = 67;

/// A step of a program on a few streams and a few places for buffers. Steps on an empty place do nothing.
#[derive(Debug, Clone)]
enum Step {
    Allocate {
        place: usize,
        stream: usize,
    },
    Fill {
        place: usize,
        stream: usize,
        value: u8,
    },
    Copy {
        from: usize,
        to: usize,
        stream: usize,
    },
    /// A copy in the shape of a kernel: the buffers learn of it by `on` alone.
    Launch {
        from: usize,
        to: usize,
        stream: usize,
    },
    Read {
        place: usize,
        stream: usize,
    },
    Move {
        place: usize,
        to: usize,
    },
    Drop {
        place: usize,
    },
    Close {
        place: usize,
    },
    /// Drops the handle; whatever the stream was used for keeps it alive. A new stream takes its number.
    Replace {
        stream: usize,
    },
    Wait {
        stream: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (place, stream) = (0..BUFFERS, 0..STREAMS);
    let pair = (0..BUFFERS, 0..BUFFERS, stream.clone());
    prop_oneof![
        3 => (place.clone(), stream.clone()).prop_map(|(place, stream)| Step::Allocate { place, stream }),
        4 => (place.clone(), stream.clone(), any::<u8>())
            .prop_map(|(place, stream, value)| Step::Fill { place, stream, value }),
        4 => pair.clone().prop_map(|(from, to, stream)| Step::Copy { from, to, stream }),
        4 => pair.prop_map(|(from, to, stream)| Step::Launch { from, to, stream }),
        2 => (place.clone(), stream.clone()).prop_map(|(place, stream)| Step::Read { place, stream }),
        1 => (place.clone(), 0..BUFFERS).prop_map(|(place, to)| Step::Move { place, to }),
        2 => place.clone().prop_map(|place| Step::Drop { place }),
        1 => place.prop_map(|place| Step::Close { place }),
        1 => stream.clone().prop_map(|stream| Step::Replace { stream }),
        1 => stream.prop_map(|stream| Step::Wait { stream }),
    ]
}

/// A buffer, and the bytes that it must have.
type Known = (DeviceBuffer<u8>, Vec<u8>);

struct Program<'c> {
    context: &'c Context,
    streams: Vec<Stream>,
    places: Vec<Option<Known>>,
}

impl<'c> Program<'c> {
    fn new(context: &'c Context) -> Result<Self> {
        let streams = (0..STREAMS).map(|_| Stream::new(context)).collect::<Result<_>>()?;
        Ok(Self { context, streams, places: (0..BUFFERS).map(|_| None).collect() })
    }

    fn run(&mut self, step: &Step) -> Result<()> {
        match *step {
            Step::Allocate { place, stream } => {
                let buffer = DeviceBuffer::zeroed(&self.streams[stream], LEN)?;
                self.places[place] = Some((buffer, vec![0; LEN]));
            }
            Step::Fill { place, stream, value } => {
                if let Some((buffer, bytes)) = &mut self.places[place] {
                    buffer.range(1..LEN - 1)?.fill_bytes(&self.streams[stream], value)?;
                    bytes[1..LEN - 1].fill(value);
                }
            }
            Step::Copy { from, to, stream } | Step::Launch { from, to, stream } => {
                if let Ok([Some((source, read)), Some((target, written))]) =
                    self.places.get_disjoint_mut([from, to])
                {
                    let stream = &self.streams[stream];
                    if matches!(step, Step::Copy { .. }) {
                        target.whole().copy_from(stream, &source.whole())?;
                    } else {
                        let (from, to) = (source.on_read(stream)?, target.on(stream)?);
                        // SAFETY: both know that this stream uses them.
                        unsafe { copy::memcpy_async(stream, to.address(), from.address(), LEN) }?;
                    }
                    written.copy_from_slice(read);
                }
            }
            Step::Read { place, stream } => {
                if let Some((buffer, bytes)) = &self.places[place] {
                    assert_eq!(&buffer.to_vec(&self.streams[stream])?, bytes);
                }
            }
            Step::Move { place, to } => self.places[to] = self.places[place].take(),
            Step::Drop { place } => self.places[place] = None,
            Step::Close { place } => {
                if let Some((buffer, _)) = self.places[place].take() {
                    buffer.close()?;
                }
            }
            Step::Replace { stream } => self.streams[stream] = Stream::new(self.context)?,
            Step::Wait { stream } => self.streams[stream].synchronize()?,
        }
        Ok(())
    }

    fn end(self) -> Result<()> {
        for (buffer, bytes) in self.places.iter().flatten() {
            assert_eq!(&buffer.to_vec(&self.streams[0])?, bytes);
        }
        Ok(())
    }
}

/// What is left on a simulator, and what was misused, as texts.
fn complaints(sim: &Sim) -> Vec<String> {
    let misuse = sim.misuse().into_iter().map(|misuse| misuse.to_string());
    misuse.chain(sim.leaks().into_iter().map(|leak| leak.to_string())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn uses_of_several_streams_are_ordered(steps in vec(step(), 1..60)) {
        let sim = Sim::builder().workers(3).build();
        let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
        let mut program = Program::new(&context).unwrap();
        for step in &steps {
            program.run(step).unwrap();
        }
        program.end().unwrap();
        prop_assert_eq!(context.driver().release_failures(), 0);
        drop(context);
        prop_assert_eq!(complaints(&sim), Vec::<String>::new());
    }

    #[test]
    fn registrations_are_shared_or_refused(steps in vec(registration(), 1..60)) {
        let sim = Sim::builder().record(true).build();
        let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
        let mut registry = Registry::new();
        for step in &steps {
            registry.run(&context, step);
            prop_assert_eq!(known_to_the_driver(&sim.log().records(), &registry.memory), registry.model());
        }
        drop((registry, context));
        prop_assert_eq!(complaints(&sim), Vec::<String>::new());
    }
}

// Registrations: against a model that looks at everything every time.

const PLACES: usize = 24;
const PIECE: usize = 64;

/// Memory in pieces that several owners can hold.
struct Memory([u8; PLACES * PIECE]);

/// Some neighbouring pieces of it.
#[derive(Clone)]
struct Pieces {
    memory: Arc<Memory>,
    range: Range<usize>,
}

// SAFETY: the memory stays where it is while anybody holds pieces of it, and nobody reads or writes it.
unsafe impl HostMemory for Pieces {
    fn as_ptr(&self) -> *const u8 {
        self.memory.0[self.range.start * PIECE..].as_ptr()
    }

    fn byte_len(&self) -> usize {
        self.range.len() * PIECE
    }

    fn is_writable(&self) -> bool {
        true
    }
}

#[derive(Debug, Clone)]
enum Registration {
    Claim {
        range: Range<usize>,
        mapped: bool,
    },
    /// Of the holder with this number, counted round.
    Drop {
        holder: usize,
    },
    Close {
        holder: usize,
    },
}

fn registration() -> impl Strategy<Value = Registration> {
    let range = (0..PLACES, 1..8usize).prop_map(|(start, len)| start..(start + len).min(PLACES));
    prop_oneof![
        3 => (range, any::<bool>()).prop_map(|(range, mapped)| Registration::Claim { range, mapped }),
        1 => any::<usize>().prop_map(|holder| Registration::Drop { holder }),
        1 => any::<usize>().prop_map(|holder| Registration::Close { holder }),
    ]
}

/// One that is held: what the driver knows it as, and the holder.
struct Held {
    registered_as: (usize, usize),
    mapped: bool,
    holder: Registered<Pieces>,
}

struct Registry {
    memory: Arc<Memory>,
    held: Vec<Held>,
}

impl Registry {
    fn new() -> Self {
        Self { memory: Arc::new(Memory([0; PLACES * PIECE])), held: Vec::new() }
    }

    fn run(&mut self, context: &Context, step: &Registration) {
        match step {
            Registration::Claim { range, mapped } => self.claim(context, range.clone(), *mapped),
            Registration::Drop { holder } => drop(self.take(*holder)),
            Registration::Close { holder } => {
                if let Some(held) = self.take(*holder) {
                    let pieces = held.holder.close().unwrap();
                    assert!(Arc::ptr_eq(&pieces.memory, &self.memory));
                }
            }
        }
    }

    fn take(&mut self, holder: usize) -> Option<Held> {
        let index = holder.checked_rem(self.held.len())?;
        Some(self.held.swap_remove(index))
    }

    fn claim(&mut self, context: &Context, range: Range<usize>, mapped: bool) {
        let mapped_flag = if mapped { RegisterFlags::MAPPED } else { RegisterFlags::empty() };
        let pieces = Pieces { memory: Arc::clone(&self.memory), range: range.clone() };
        let result = Registered::new(context, pieces, RegisterFlags::PORTABLE | mapped_flag);
        let overlaps = |held: &&Held| held.registered_as.0 < range.end && range.start < held.registered_as.1;
        let in_the_way: Vec<&Held> = self.held.iter().filter(overlaps).collect();
        let inside = |held: &&Held| {
            held.mapped == mapped && held.registered_as.0 <= range.start && range.end <= held.registered_as.1
        };
        let registered_as = match in_the_way.first() {
            None => Some((range.start, range.end)),
            // Ranges that the driver knows do not overlap: inside of one is inside of all that are in the way.
            Some(held) => in_the_way.iter().all(inside).then_some(held.registered_as),
        };
        match (result, registered_as) {
            (Ok(holder), Some(registered_as)) => self.held.push(Held { registered_as, mapped, holder }),
            (Err(refused), None) => {
                assert!(matches!(refused.error, Error::AlreadyRegistered { .. }), "{}", refused.error);
                assert_eq!(refused.owner.range, range);
            }
            (Ok(_), None) => panic!("{range:?} was registered over what is in its way"),
            (Err(refused), Some(_)) => panic!("{range:?} was refused: {}", refused.error),
        }
    }

    /// What the driver must know, in pieces: starts and ends.
    fn model(&self) -> BTreeMap<usize, usize> {
        self.held.iter().map(|held| held.registered_as).collect()
    }
}

/// What the driver knows, by its log.
fn known_to_the_driver(records: &[Record], memory: &Memory) -> BTreeMap<usize, usize> {
    let mut known = BTreeMap::new();
    for record in records.iter().filter(|record| record.result == CUresult::CUDA_SUCCESS) {
        let argument = |name: &str| {
            let value = record.arguments.split(", ").find_map(|argument| argument.strip_prefix(name));
            value.unwrap_or_else(|| panic!("no {name} in {record}"))
        };
        let address = || usize::from_str_radix(argument("p=0x"), 16).unwrap();
        let start = || (address() - memory.0.as_ptr().addr()) / PIECE;
        match record.function {
            "cuMemHostRegister" => {
                let len: usize = argument("bytesize=").parse().unwrap();
                known.insert(start(), start() + len / PIECE);
            }
            "cuMemHostUnregister" => {
                known.remove(&start()).expect("what is undone was done");
            }
            _ => {}
        }
    }
    known
}
