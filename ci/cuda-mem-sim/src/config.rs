//! What a simulated machine is made of, from a builder or from the environment.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
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
    pub(crate) workers: usize,
    pub(crate) finds_misuse: bool,
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
    /// Attributes that differ from the modelled device's.
    pub(crate) attributes: BTreeMap<u32, i32>,
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
                devices: vec![Device { memory: DEVICE_MEMORY, attributes: BTreeMap::new() }],
                driver_version: NEWEST_DRIVER,
                missing: BTreeSet::new(),
                numa_nodes: 1,
                peers: Peers::All,
                has_data: true,
                host_memory: u64::MAX,
                workers: 8,
                finds_misuse: true,
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
        let device = pattern.unwrap_or(Device { memory: DEVICE_MEMORY, attributes: BTreeMap::new() });
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
        let device = |&memory| Device { memory, attributes: BTreeMap::new() };
        self.config.devices = bytes.iter().map(device).collect();
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

    /// How many nodes the host's memory has.
    pub fn numa_nodes(mut self, nodes: i32) -> Self {
        self.config.numa_nodes = nodes;
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

    /// Whether uses of memory are checked against the order of streams; on unless told otherwise.
    pub fn misuse_detection(mut self, on: bool) -> Self {
        self.config.finds_misuse = on;
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

    /// What the environment variable `CUDA_MEM_SIM` says; the defaults if it is not set.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the setting and what it accepts.
    pub fn from_env() -> Result<Self, ConfigError> {
        match std::env::var(VARIABLE) {
            Ok(text) => Self::parse(&text),
            Err(std::env::VarError::NotPresent) => Ok(Self::default()),
            Err(std::env::VarError::NotUnicode(text)) => {
                Err(refused(VARIABLE, &text.to_string_lossy(), "text"))
            }
        }
    }

    /// What a text like `devices=2,memory=8GiB,driver=12020,no-data` says; docs/simulator.md has the table of settings.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the setting and what it accepts.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let mut builder = Self::default();
        // The order of settings says nothing, but memory and attributes are those of devices that exist.
        let mut settings: Vec<(&str, &str)> = text
            .split(',')
            .map(str::trim)
            .filter(|setting| !setting.is_empty())
            .map(|setting| setting.split_once('=').unwrap_or((setting, "")))
            .collect();
        settings.sort_by_key(|(name, _)| *name != "devices");
        for (name, value) in settings {
            builder = builder.set(name, value)?;
        }
        Ok(builder)
    }

    fn set(mut self, name: &str, value: &str) -> Result<Self, ConfigError> {
        match name {
            "devices" => Ok(self.devices(number(name, value, 0..=64, "a number from 0 to 64")?)),
            "memory" => {
                let sizes = value.split('+').map(|size| bytes(name, size)).collect::<Result<Vec<_>, _>>()?;
                match *sizes.as_slice() {
                    [size] => Ok(self.memory(size)),
                    _ => Ok(self.memories(&sizes)),
                }
            }
            "host-memory" => Ok(self.host_memory(bytes(name, value)?)),
            "driver" => {
                let accepted = "a driver version from 11000 to 13000, as 12020 for CUDA 12.2";
                Ok(self.driver(number(name, value, 11000..=NEWEST_DRIVER, accepted)?))
            }
            "missing" => {
                for function in value.split('+') {
                    let known = dispatch::is_function(function);
                    let known =
                        known.ok_or_else(|| refused(name, value, "functions of the driver, joined by +"))?;
                    self = self.missing(known);
                }
                Ok(self)
            }
            "numa" => Ok(self.numa_nodes(number(name, value, 1..=1024, "a number from 1 to 1024")?)),
            "peer" => {
                self.config.peers =
                    peers(value).ok_or_else(|| refused(name, value, "all, none, or pairs like 0-1+1-0"))?;
                Ok(self)
            }
            "workers" => Ok(self.workers(number(name, value, 1..=64, "a number from 1 to 64")?)),
            "no-data" => flag(name, value).map(|()| self.no_data()),
            "no-misuse" => flag(name, value).map(|()| self.misuse_detection(false)),
            "backtraces" => flag(name, value).map(|()| self.backtraces(true)),
            "attribute" => {
                for pair in value.split('+') {
                    let accepted = "pairs of numbers like 87:0+115:1";
                    let (attribute, to) =
                        pair.split_once(':').ok_or_else(|| refused(name, value, accepted))?;
                    let attribute = number(name, attribute, 1..=100_000, accepted)?;
                    let to = to.parse().map_err(|_| refused(name, value, accepted))?;
                    self = self.attribute(CUdevice_attribute(attribute), to);
                }
                Ok(self)
            }
            "log" => {
                File::options()
                    .create(true)
                    .append(true)
                    .open(value)
                    .map_err(|_| refused(name, value, "a file that can be written"))?;
                self.config.log = Some(PathBuf::from(value));
                Ok(self)
            }
            "report" => {
                self.config.report = Some(match value {
                    "" => return Err(refused(name, value, "stderr, or a file")),
                    "stderr" => Target::Stderr,
                    path => Target::File(PathBuf::from(path)),
                });
                Ok(self)
            }
            "faults" => {
                for fault in value.split('+') {
                    let fault = fault_of(fault).ok_or_else(|| {
                        refused(name, value, "function:nth:code, or any:nth:code, joined by +")
                    })?;
                    self.config.faults.push(fault);
                }
                Ok(self)
            }
            "flip" => {
                let accepted = "copy:byte, such as 2:4096";
                let (nth, offset) = value.split_once(':').ok_or_else(|| refused(name, value, accepted))?;
                let nth =
                    nth.parse().ok().filter(|&nth| nth > 0).ok_or_else(|| refused(name, value, accepted))?;
                let offset = offset.parse().map_err(|_| refused(name, value, accepted))?;
                self.config.flips.push((nth, offset));
                Ok(self)
            }
            _ => Err(refused(
                "a name of a setting",
                name,
                "devices, memory, host-memory, driver, missing, numa, peer, workers, no-data, no-misuse, backtraces, attribute, log, report, faults, flip",
            )),
        }
    }
}

fn refused(setting: &str, value: &str, accepted: &'static str) -> ConfigError {
    ConfigError { setting: setting.to_owned(), value: value.to_owned(), accepted }
}

fn flag(name: &str, value: &str) -> Result<(), ConfigError> {
    if value.is_empty() { Ok(()) } else { Err(refused(name, value, "no value")) }
}

fn number<N>(
    name: &str,
    value: &str,
    range: std::ops::RangeInclusive<N>,
    accepted: &'static str,
) -> Result<N, ConfigError>
where
    N: std::str::FromStr + PartialOrd,
{
    value.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| refused(name, value, accepted))
}

/// A size like `4096`, `512MiB` or `8GiB`.
fn bytes(name: &str, value: &str) -> Result<u64, ConfigError> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("", 0)];
    let size = units.iter().find_map(|(unit, shift)| {
        let count: u64 = value.strip_suffix(unit)?.parse().ok()?;
        count.checked_mul(1 << shift)
    });
    size.ok_or_else(|| refused(name, value, "a size like 4096, 512MiB or 8GiB, or one a device, joined by +"))
}

fn peers(value: &str) -> Option<Peers> {
    match value {
        "all" => Some(Peers::All),
        "none" => Some(Peers::None),
        pairs => {
            let pair = |pair: &str| {
                let (from, to) = pair.split_once('-')?;
                Some((from.parse().ok()?, to.parse().ok()?))
            };
            pairs.split('+').map(pair).collect::<Option<_>>().map(Peers::Pairs)
        }
    }
}

fn fault_of(text: &str) -> Option<(String, u64, CUresult)> {
    let (function, rest) = text.split_once(':')?;
    let (nth, code) = rest.split_once(':')?;
    if function != "any" && dispatch::is_function(function).is_none() {
        return None;
    }
    let nth = nth.parse().ok().filter(|&nth| nth > 0)?;
    Some((function.to_owned(), nth, CUresult(code.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Config {
        Builder::parse(text).unwrap().config
    }

    #[test]
    fn settings_are_understood_in_any_order() {
        let config =
            parsed("memory=1GiB, devices=2, driver=12020,missing=cuCtxRecordEvent+cuMemGetMemPool,no-data");
        assert_eq!(config.devices.iter().map(|device| device.memory).collect::<Vec<_>>(), [1 << 30, 1 << 30]);
        assert_eq!((config.driver_version, config.has_data), (12020, false));
        assert!(config.missing.contains("cuMemGetMemPool") && config.missing.contains("cuCtxRecordEvent"));
        assert_eq!(parsed("memory=1GiB+2GiB").devices.len(), 2);
        assert_eq!(parsed("").devices.len(), 1);
    }

    #[test]
    fn peer_access_goes_from_one_to_the_other() {
        let peers = parsed("devices=2,peer=0-1").peers;
        assert!(peers.reach(0, 1) && !peers.reach(1, 0) && !peers.reach(0, 0));
    }

    #[test]
    fn faults_are_functions_counts_and_codes() {
        let config = parsed("faults=cuMemAlloc:3:2+any:7:999");
        let expected = [
            ("cuMemAlloc".to_owned(), 3, CUresult::CUDA_ERROR_OUT_OF_MEMORY),
            ("any".to_owned(), 7, CUresult::CUDA_ERROR_UNKNOWN),
        ];
        assert_eq!(config.faults, expected);
    }

    #[test]
    fn bad_settings_name_what_is_accepted() {
        for (text, needle) in [
            ("devices=many", "a number from 0 to 64"),
            ("memory=8GB", "512MiB"),
            ("driver=13", "12020"),
            ("missing=cuNothing", "functions of the driver"),
            ("peer=some", "none"),
            ("no-data=yes", "no value"),
            ("faults=cuMemAlloc:0:2", "function:nth:code"),
            ("flip=0:5", "copy:byte"),
            ("colour=blue", "devices, memory"),
        ] {
            let error = Builder::parse(text).unwrap_err().to_string();
            assert!(error.contains(needle), "{text}: {error}");
        }
    }
}
