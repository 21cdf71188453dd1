//! What a simulated machine is made of, from a builder or from the environment.

mod parse;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use cuda_mem_sys::{CUdevice_attribute, CUresult};

use crate::dispatch;
use crate::driver::Driver;
use crate::report::Target;
use crate::sim::Sim;

/// The environment variable that configures the simulator that a process has without asking.
pub(crate) const VARIABLE: &str = "CUDA_MEM_SIM";

/// The memory of one device unless it is told otherwise: enough for any test, little enough to run out of on purpose.
const DEVICE_MEMORY: u64 = 8 << 30;

/// The driver whose behaviour is modelled.
const NEWEST_DRIVER: i32 = 13000;

/// A simulated machine and driver.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) devices: Vec<Device>,
    pub(crate) driver_version: i32,
    pub(crate) missing: BTreeSet<String>,
    pub(crate) numa_nodes: i32,
    pub(crate) peers: Peers,
    pub(crate) has_data: bool,
    pub(crate) host_memory: u64,
    pub(crate) account: Option<PathBuf>,
    pub(crate) workers: usize,
    pub(crate) finds_misuse: bool,
    pub(crate) faults_on_ended_streams: bool,
    pub(crate) backtraces: bool,
    pub(crate) records: bool,
    pub(crate) log: Option<PathBuf>,
    pub(crate) report: Option<Target>,
    pub(crate) faults: Vec<(String, u64, CUresult)>,
    /// Copies that arrive damaged: which one, and at which byte.
    pub(crate) flips: Vec<(u64, u64)>,
}

/// One simulated device.
#[derive(Debug, Clone)]
pub(crate) struct Device {
    pub(crate) memory: u64,
    /// The node of host memory next to it; unless told, devices take the nodes in turn.
    pub(crate) node: Option<i32>,
    /// Attributes that differ from the modelled device's.
    pub(crate) attributes: BTreeMap<u32, i32>,
}

impl Device {
    fn new(memory: u64) -> Self {
        Self { memory, node: None, attributes: BTreeMap::new() }
    }
}

/// Which devices can reach each other's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Peers {
    All,
    None,
    /// Only these, from first to second.
    Pairs(BTreeSet<(usize, usize)>),
}

impl Peers {
    /// Whether `device` can reach the memory of `peer`, another device.
    pub(crate) fn reach(&self, device: usize, peer: usize) -> bool {
        device != peer
            && match self {
                Self::All => true,
                Self::None => false,
                Self::Pairs(pairs) => pairs.contains(&(device, peer)),
            }
    }
}

/// Why a configuration was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    setting: String,
    value: String,
    accepted: &'static str,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setting, value, accepted } = self;
        write!(f, "{setting} in the simulator's configuration cannot be {value:?}; accepted: {accepted}")
    }
}

impl std::error::Error for ConfigError {}

/// Builds a [`Sim`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Builder {
    config: Config,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            config: Config {
                devices: vec![Device::new(DEVICE_MEMORY)],
                driver_version: NEWEST_DRIVER,
                missing: BTreeSet::new(),
                numa_nodes: 1,
                peers: Peers::All,
                has_data: true,
                host_memory: u64::MAX,
                account: None,
                workers: 8,
                finds_misuse: true,
                faults_on_ended_streams: false,
                backtraces: false,
                records: false,
                log: None,
                report: None,
                faults: Vec::new(),
                flips: Vec::new(),
            },
        }
    }
}

impl Builder {
    /// How many devices there are; each has the memory of the first.
    pub fn devices(mut self, count: usize) -> Self {
        let pattern = self.config.devices.first().cloned();
        let device = pattern.unwrap_or_else(|| Device::new(DEVICE_MEMORY));
        self.config.devices = vec![device; count];
        self
    }

    /// The memory of every device, in bytes.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.config.devices.iter_mut().for_each(|device| device.memory = bytes);
        self
    }

    /// The memory of each device, in bytes; there are as many devices as entries.
    pub fn memories(mut self, bytes: &[u64]) -> Self {
        self.config.devices = bytes.iter().copied().map(Device::new).collect();
        self
    }

    /// The version of the driver: 1000 × major + 10 × minor. Functions that are newer are not there.
    pub fn driver(mut self, version: i32) -> Self {
        self.config.driver_version = version;
        self
    }

    /// A function that the driver does not have, although its version says so.
    pub fn missing(mut self, function: &str) -> Self {
        self.config.missing.insert(function.to_owned());
        self
    }

    /// How many nodes the host's memory has; none for a host that has no notion of nodes.
    pub fn numa_nodes(mut self, nodes: i32) -> Self {
        self.config.numa_nodes = nodes;
        self
    }

    /// The node of host memory next to each device, in the order of the devices; unless told, they take the nodes in turn.
    pub fn device_nodes(mut self, nodes: &[i32]) -> Self {
        for (device, &node) in self.config.devices.iter_mut().zip(nodes) {
            device.node = Some(node);
        }
        self
    }

    /// No device can reach the memory of another.
    pub fn no_peer_access(mut self) -> Self {
        self.config.peers = Peers::None;
        self
    }

    /// Only these devices can reach each other's memory: from the first of each pair to the second.
    pub fn peer_access(mut self, pairs: &[(usize, usize)]) -> Self {
        self.config.peers = Peers::Pairs(pairs.iter().copied().collect());
        self
    }

    /// Memory has addresses but no bytes: for traces of any size.
    pub fn no_data(mut self) -> Self {
        self.config.has_data = false;
        self
    }

    /// How much host memory may be allocated and registered in all, in bytes; without limit unless told.
    pub fn host_memory(mut self, bytes: u64) -> Self {
        self.config.host_memory = bytes;
        self
    }

    /// The file in which all memory is counted: simulators that are told the same one have the same devices, in whatever process they are.
    /// [`Sim::account`] tells that of another.
    pub fn account(mut self, file: impl Into<PathBuf>) -> Self {
        self.config.account = Some(file.into());
        self
    }

    /// The value of an attribute on every device.
    pub fn attribute(mut self, attribute: CUdevice_attribute, value: i32) -> Self {
        for device in &mut self.config.devices {
            device.attributes.insert(attribute.0, value);
        }
        self
    }

    /// How many threads run the work of streams at most; one is the most deterministic.
    pub fn workers(mut self, workers: usize) -> Self {
        self.config.workers = workers.max(1);
        self
    }

    /// Whether uses and frees of memory are checked against the order of streams; on unless told otherwise.
    pub fn misuse_detection(mut self, on: bool) -> Self {
        self.config.finds_misuse = on;
        self
    }

    /// A call that names a stream that is no more ends the process, which is what drivers do (a fault of memory), rather than be refused.
    pub fn fault_on_ended_streams(mut self) -> Self {
        self.config.faults_on_ended_streams = true;
        self
    }

    /// Whether reports tell where in the program calls were made; that makes every call slow.
    pub fn backtraces(mut self, on: bool) -> Self {
        self.config.backtraces = on;
        self
    }

    /// Whether calls are recorded from the start.
    pub fn record(mut self, on: bool) -> Self {
        self.config.records = on;
        self
    }

    /// Builds the simulator. If there are as many as a process can have, waits until one is dropped.
    #[must_use]
    pub fn build(self) -> Sim {
        Sim::new(dispatch::occupy(|slot| self.into_driver(slot)))
    }

    pub(crate) fn into_driver(self, slot: usize) -> Arc<Driver> {
        Driver::new(self.config, slot)
    }
}
