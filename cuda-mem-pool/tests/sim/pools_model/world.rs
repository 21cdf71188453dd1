//! A machine, the resources on it and their memory, with what must be in it.

use std::collections::BTreeMap;

use cuda_mem_core::{Context, Driver, Stream};
use cuda_mem_pool::Error;
use cuda_mem_sim::Sim;
use proptest::sample::Index;

use super::books::Pool;
use super::kinds::{Config, Kind, Resource};
use super::memory::Memory;
use super::sharing::Names;
use super::{Size, Step};
use crate::common::gate::Gate;
use crate::common::pattern;
use crate::machines::Machine;

const STREAMS_PER_DEVICE: usize = 2;

pub(super) struct Live {
    pub(super) memory: Memory,
    pool: usize,
    /// None before it was written.
    bytes: Option<Vec<u8>>,
}

pub(super) struct World {
    pub(super) machine: Machine,
    contexts: Vec<Context>,
    /// Those of one device after those of another.
    streams: Vec<Stream>,
    gate: Option<Gate>,
    /// Gates that are open. Giving one back waits for all work, so they are kept until something else does.
    opened: Vec<Gate>,
    pub(super) slots: Vec<Option<Resource>>,
    pub(super) pools: BTreeMap<usize, Pool>,
    pub(super) live: Vec<Live>,
    pub(super) names: Names,
    /// Nothing was freed since everything was waited for.
    quiet: bool,
    seed: u8,
}

impl World {
    pub(super) fn new(sim: &Sim, machine: Machine, configs: &[Config]) -> Self {
        let devices = Driver::over(sim.table()).unwrap().devices().unwrap();
        let contexts = devices.iter().map(|device| device.primary_context().unwrap()).collect::<Vec<_>>();
        let of_one = |context| (0..STREAMS_PER_DEVICE).map(move |_| Stream::new(context).unwrap());
        let streams = contexts.iter().flat_map(of_one).collect();
        let mut world = Self {
            machine,
            contexts,
            streams,
            gate: None,
            opened: Vec::new(),
            slots: Vec::new(),
            pools: BTreeMap::new(),
            live: Vec::new(),
            names: Names::default(),
            quiet: true,
            seed: 0,
        };
        for config in configs {
            let made = world.make(*config);
            world.slots.push(made);
        }
        world
    }

    pub(super) fn step(&mut self, step: &Step) {
        match *step {
            Step::Open(slot, config) => {
                self.close_resource(slot);
                let made = self.make(config);
                let slot = slot.index(self.slots.len());
                self.slots[slot] = made;
            }
            Step::CloseResource(slot) => self.close_resource(slot),
            Step::Allocate { slot, size, stream, by_address } => {
                self.allocate(slot, size, stream, by_address);
            }
            Step::Fill { block, stream, value } => self.fill(block, stream, value),
            Step::Write { block, stream, from } => self.write(block, stream, from),
            Step::Read { block, stream, fill } => {
                if fill {
                    self.seed = self.seed.wrapping_add(1);
                    self.fill(block, stream, self.seed);
                }
                self.let_go();
                if let Some((at, stream)) = self.pick(block, stream) {
                    self.expect_bytes(at, &stream);
                }
            }
            Step::Drop { block, stream } => self.drop_block(block, stream),
            Step::Close(block) => {
                if let Some(at) = self.which(block) {
                    self.take(at).memory.close();
                }
            }
            Step::Trim(slot, keep) => {
                let Some(resource) = self.resource(slot) else { return };
                self.pools[&resource.pool()].trim(&resource, keep, self.quiet);
            }
            Step::SetThreshold(slot, bytes) => {
                let Some(resource) = self.resource(slot) else { return };
                self.pool_of(&resource).set_threshold(&resource, bytes);
            }
            Step::ResetHighs(slot) => {
                let Some(resource) = self.resource(slot) else { return };
                self.pool_of(&resource).reset_highs(&resource);
            }
            Step::Synchronise => self.synchronise(),
            Step::Hold(stream) => {
                if self.gate.is_none() {
                    self.gate = Some(Gate::before(stream.get(&self.streams)));
                }
            }
            Step::Share { slot, bare, register_own } => self.share(slot, bare, register_own),
            Step::DropImport(import) => self.names.drop_mapping(import),
            Step::SetPeers(slot, peers) => self.set_peers(slot, peers),
        }
    }

    /// What must be true at any time.
    pub(super) fn check(&self) {
        let mut spans = self
            .live
            .iter()
            .filter(|live| live.memory.len() > 0)
            .map(|live| live.memory.span())
            .collect::<Vec<_>>();
        spans.sort_unstable();
        for pair in spans.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "two have the same bytes: {pair:x?}");
        }
        self.slots.iter().flatten().for_each(|resource| self.pools[&resource.pool()].check(resource));
    }

    /// Gives everything back.
    pub(super) fn end(mut self) {
        self.synchronise();
        for at in 0..self.live.len() {
            let stream = self.permitted(self.live[at].pool, 0);
            self.expect_bytes(at, &stream);
        }
        while !self.live.is_empty() {
            self.take(0).memory.free(None);
        }
        self.synchronise();
        self.check();
        for resource in self.slots.iter().flatten() {
            assert_eq!(resource.attributes().used_mem_current().unwrap(), 0);
            self.pools[&resource.pool()].trim(resource, 0, self.quiet);
        }
    }

    fn make(&mut self, config: Config) -> Option<Resource> {
        let config = config.plain();
        let device = config.device.index(self.contexts.len());
        let made = config.open(&self.contexts[device]);
        if !config.is_there(self.machine, &made) {
            return None;
        }
        let made = made.unwrap();
        if let Resource::Pinned(pinned) = &made {
            let near = config.shared.then_some(device as i32 % self.machine.numa_nodes);
            assert_eq!(pinned.numa_id(), config.node.or(near).unwrap_or(-1));
            assert!(pinned.is_device_accessible().unwrap());
        }
        self.pools.entry(made.pool()).or_insert_with(|| Pool::new(config, device)).opened();
        Some(made)
    }

    pub(super) fn resource(&self, slot: Index) -> Option<Resource> {
        slot.get(&self.slots).clone()
    }

    pub(super) fn pool_of(&mut self, resource: &Resource) -> &mut Pool {
        self.pools.get_mut(&resource.pool()).unwrap()
    }

    fn close_resource(&mut self, slot: Index) {
        let slot = slot.index(self.slots.len());
        if let Some(resource) = self.slots[slot].take() {
            resource.close();
        }
    }

    fn allocate(&mut self, slot: Index, size: Size, stream: Option<Index>, by_address: bool) {
        let Some(resource) = self.resource(slot) else { return };
        let (most, used) = (self.pool_of(&resource).most(), self.pool_of(&resource).used);
        let limit = self.pool_of(&resource).config.max_size as u64;
        if limit > 0 {
            // The driver may wait for memory that is freed already.
            self.let_go();
        }
        let bytes = match size {
            Size::Bytes(bytes) => bytes,
            Size::AboveMax if limit > 0 => most as usize + 1,
            Size::AboveMax => (33 << 20) + 1,
        };
        let stream = stream.map(|stream| stream.get(&self.streams).clone());
        let attempt = || match by_address {
            true => resource.allocate_raw(bytes, stream.as_ref()),
            false => resource.allocate(bytes, stream.as_ref()),
        };
        let mut result = attempt();
        if let Err(error) = &result {
            let right = matches!(error, Error::OutOfMemory { requested, used: out, limit: named, source: Some(_) }
                if limit > 0 && (*requested, *out, *named) == (bytes, used, limit));
            assert!(right, "{error:?}");
            if bytes as u64 > most || used > 0 {
                return;
            }
            // It was in pieces, or about to be free.
            self.synchronise();
            resource.trim_to(0).unwrap();
            result = attempt();
        }
        let memory = result.unwrap();
        assert_eq!(memory.len(), bytes);
        assert_eq!(memory.address() == 0, bytes == 0);
        assert_eq!(memory.address() % 256, 0);
        if !by_address && bytes > 0 {
            let foreign = resource.deallocate(memory.address(), bytes, None);
            assert!(matches!(foreign, Err(Error::UnknownAddress { .. })), "it is its owner's to free");
        }
        self.pool_of(&resource).allocated(bytes);
        self.live.push(Live { memory, pool: resource.pool(), bytes: None });
    }

    fn which(&self, block: Index) -> Option<usize> {
        (!self.live.is_empty()).then(|| block.index(self.live.len()))
    }

    /// A block, and a stream that may use it.
    fn pick(&self, block: Index, stream: Index) -> Option<(usize, Stream)> {
        let at = self.which(block)?;
        Some((at, self.permitted(self.live[at].pool, stream.index(self.streams.len()))))
    }

    /// The stream of this number if its device reaches the pool, else one whose device does.
    fn permitted(&self, pool: usize, stream: usize) -> Stream {
        let Pool { config, device, peers, .. } = &self.pools[&pool];
        let from = stream / STREAMS_PER_DEVICE;
        let reaches = config.kind != Kind::Device || from == *device || peers.contains(&from);
        self.streams[if reaches { stream } else { device * STREAMS_PER_DEVICE }].clone()
    }

    fn fill(&mut self, block: Index, stream: Index, value: u8) {
        let Some((at, stream)) = self.pick(block, stream) else { return };
        let live = &mut self.live[at];
        if live.memory.fill(&stream, value) {
            live.bytes = Some(vec![value; live.memory.len()]);
        }
    }

    /// Bytes of the host, from somewhere in the block on if it is written already; every second time the device just did that.
    fn write(&mut self, block: Index, stream: Index, from: Index) {
        let Some((at, stream)) = self.pick(block, stream) else { return };
        self.seed = self.seed.wrapping_add(1);
        let known = self.live[at].bytes.is_some();
        let len = self.live[at].memory.len();
        let tile = pattern(4099, self.seed);
        let filled = self.seed.is_multiple_of(2) && self.live[at].memory.fill(&stream, 0);
        let from = if filled || known { from.index(len + 1) } else { 0 };
        let mut source = tile.repeat((len - from) / 4099 + 1);
        source.truncate(len - from);
        // Last, so that whoever should wait and does not has no time to be lucky.
        self.let_go();
        let live = &mut self.live[at];
        live.memory.write(&stream, from, &source);
        if filled {
            live.bytes = None;
        }
        live.bytes.get_or_insert_with(|| vec![0; len])[from..].copy_from_slice(&source);
    }

    fn expect_bytes(&mut self, at: usize, stream: &Stream) {
        let live = &mut self.live[at];
        if let Some(expected) = &live.bytes {
            assert!(live.memory.read(stream) == *expected, "other bytes than were written last");
        }
    }

    fn drop_block(&mut self, block: Index, stream: Option<Index>) {
        let Some(at) = self.which(block) else { return };
        let stream = stream.map(|stream| stream.get(&self.streams).clone());
        self.take(at).memory.free(stream.as_ref());
    }

    /// Takes a block out of the books, to be freed.
    fn take(&mut self, at: usize) -> Live {
        let live = self.live.swap_remove(at);
        self.pools.get_mut(&live.pool).unwrap().used -= live.memory.len() as u64;
        self.quiet = false;
        live
    }

    fn let_go(&mut self) {
        if let Some(gate) = self.gate.take() {
            gate.open();
            self.opened.push(gate);
        }
    }

    pub(super) fn synchronise(&mut self) {
        self.let_go();
        self.contexts.iter().for_each(|context| context.synchronize().unwrap());
        self.opened.clear();
        self.quiet = true;
        self.slots.iter().flatten().for_each(|resource| self.pools[&resource.pool()].synchronised(resource));
    }
}
