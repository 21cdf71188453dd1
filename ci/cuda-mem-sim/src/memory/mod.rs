//! Simulated memory: addresses, the bytes behind them, and who may reach them.
//!
//! [`Memory`] is one lock around [`State`]; the functions of the driver's interface in `api` are thin above it. Bytes are
//! moved outside the lock, by the workers, between places that [`State::place`] checked.

mod account;
pub(crate) mod blocks;
pub(crate) mod bytes;
pub(crate) mod device;
pub(crate) mod host;
pub(crate) mod ipc;
pub(crate) mod managed;
mod maps;
pub(crate) mod misuse;
pub(crate) mod os;
pub(crate) mod pool_file;
pub(crate) mod pool_state;
pub(crate) mod pools;
mod races;
mod ranges;
pub(crate) mod report;
pub(crate) mod resolve;
pub(crate) mod shared;
pub(crate) mod space;
pub(crate) mod vmm;
pub(crate) mod vmm_state;
pub(crate) mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use account::Account;
use blocks::{Block, Blocks};
use ipc::Exchange;
use managed::Advices;
use misuse::Reports;
use pools::{Pool, PoolId};
use space::Space;
use vmm::{HandleId, Location, Physical, Reservations};

use crate::runtime::op::Outcome;

/// What a simulated driver's memory is made of.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    /// Bytes of each device.
    pub(crate) devices: Vec<u64>,
    /// Nodes of host memory.
    pub(crate) nodes: i32,
    /// How much host memory may be allocated and registered in all.
    pub(crate) lock_limit: u64,
    /// The account that other processes count in too; none for one of its own.
    pub(crate) account: Option<PathBuf>,
    /// Whether memory has bytes.
    pub(crate) has_data: bool,
    /// Whether uses and frees are checked against the order of streams.
    pub(crate) finds_misuse: bool,
}

impl Setup {
    /// All the memory there is at a location.
    pub(crate) fn room_at(&self, location: Location) -> u64 {
        match location {
            Location::Device(device) => self.devices.get(device).copied().unwrap_or(0),
            Location::Host | Location::Node(_) => self.lock_limit,
        }
    }
}

/// The memory of one simulated driver.
#[derive(Debug)]
pub(crate) struct Memory {
    setup: Setup,
    state: Mutex<State>,
}

/// Everything that one lock guards.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) setup: Setup,
    pub(crate) space: Space,
    pub(crate) blocks: Blocks,
    /// Devices that may use what another one allocates: from the first to the second.
    pub(crate) peers: BTreeSet<(usize, usize)>,
    /// What is in use of each device, and of the host.
    pub(crate) account: Arc<Account>,
    pub(crate) reservations: Reservations,
    pub(crate) handles: BTreeMap<HandleId, Physical>,
    /// How many blocks are mappings of them.
    pub(crate) mappings: usize,
    most_mappings: usize,
    pub(crate) pools: BTreeMap<PoolId, Pool>,
    /// The driver's own pools, made when they are first asked for; whether managed tells those at one location apart.
    pub(crate) default_pools: BTreeMap<(Location, bool), PoolId>,
    /// The pools that the program put in their place.
    pub(crate) current_pools: BTreeMap<(Location, bool), PoolId>,
    pub(crate) advice: Advices,
    pub(crate) exchange: Exchange,
    pub(crate) reports: Reports,
    last_number: u64,
}

impl Memory {
    pub(crate) fn new(setup: Setup) -> Self {
        let state = State {
            space: Space::new(setup.has_data),
            blocks: Blocks::default(),
            peers: BTreeSet::new(),
            account: Account::open(setup.account.as_deref()),
            reservations: Reservations::default(),
            handles: BTreeMap::new(),
            mappings: 0,
            most_mappings: vmm_state::most_mappings(setup.has_data),
            pools: BTreeMap::new(),
            default_pools: BTreeMap::new(),
            current_pools: BTreeMap::new(),
            advice: Advices::default(),
            exchange: Exchange::default(),
            reports: Reports::default(),
            last_number: 0,
            setup: setup.clone(),
        };
        Self { setup, state: Mutex::new(state) }
    }

    /// What the memory is made of.
    pub(crate) fn setup(&self) -> &Setup {
        &self.setup
    }

    /// The state. A thread that panicked with the lock held leaves it usable: every change is complete or not begun.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A number that nothing else has: the handles of pools and of physical memory.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        // Looks like a pointer, as the driver's handles do, and is none.
        HANDLES + self.last_number * 16
    }

    /// Adds a block: its addresses mean something new from now on.
    pub(crate) fn add_block(&mut self, block: Block) {
        let block = Block { id: self.blocks.next_id(), ..block };
        self.reports.reused(&block.range());
        self.blocks.insert(block);
    }
}

/// Where handle numbers begin: an address range in which no process has memory.
const HANDLES: u64 = 0x5151_0000_0000_0000;
