//! The configuration as a text: `name=value` pairs joined by commas.

use std::fs::File;
use std::path::PathBuf;

use cuda_mem_sys::{CUdevice_attribute, CUresult};

use super::{Builder, ConfigError, NEWEST_DRIVER, Peers, VARIABLE};
use crate::dispatch;
use crate::report::Target;

impl Builder {
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
        settings.sort_by_key(|(name, _)| (*name != "devices", *name != "memory"));
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
            "numa" => Ok(self.numa_nodes(number(name, value, 0..=1024, "a number from 0 to 1024")?)),
            "device-nodes" => {
                let node = |node| number(name, node, 0..=1023, "numbers of nodes, one a device, joined by +");
                let nodes = value.split('+').map(node).collect::<Result<Vec<_>, _>>()?;
                Ok(self.device_nodes(&nodes))
            }
            "peer" => {
                self.config.peers =
                    peers(value).ok_or_else(|| refused(name, value, "all, none, or pairs like 0-1+1-0"))?;
                Ok(self)
            }
            "workers" => Ok(self.workers(number(name, value, 1..=64, "a number from 1 to 64")?)),
            "no-data" => flag(name, value).map(|()| self.no_data()),
            "no-misuse" => flag(name, value).map(|()| self.misuse_detection(false)),
            "ended-streams-fault" => flag(name, value).map(|()| self.fault_on_ended_streams()),
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
            "account" => Ok(self.account(writable(name, value)?)),
            "log" => {
                self.config.log = Some(writable(name, value)?);
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
                "devices, memory, host-memory, account, driver, missing, numa, device-nodes, peer, workers, no-data, no-misuse, ended-streams-fault, backtraces, attribute, log, report, faults, flip",
            )),
        }
    }
}

fn refused(setting: &str, value: &str, accepted: &'static str) -> ConfigError {
    ConfigError { setting: setting.to_owned(), value: value.to_owned(), accepted }
}

fn writable(name: &str, value: &str) -> Result<PathBuf, ConfigError> {
    let opened = File::options().create(true).append(true).open(value);
    opened.map(|_| PathBuf::from(value)).map_err(|_| refused(name, value, "a file that can be written"))
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
    use super::super::Config;
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
    fn devices_lie_at_nodes() {
        let nodes = |text| parsed(text).devices.iter().map(|device| device.node).collect::<Vec<_>>();
        assert_eq!(nodes("device-nodes=1+0,memory=1GiB+2GiB,numa=2"), [Some(1), Some(0)]);
        assert_eq!(nodes("device-nodes=1,devices=2,numa=2"), [Some(1), None]);
        assert_eq!(parsed("numa=0").numa_nodes, 0);
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
            ("numa=-1", "from 0 to 1024"),
            ("device-nodes=a", "numbers of nodes"),
            ("missing=cuNothing", "functions of the driver"),
            ("peer=some", "none"),
            ("no-data=yes", "no value"),
            ("faults=cuMemAlloc:0:2", "function:nth:code"),
            ("flip=0:5", "copy:byte"),
            ("account=/nowhere/at/all", "can be written"),
            ("colour=blue", "devices, memory"),
        ] {
            let error = Builder::parse(text).unwrap_err().to_string();
            assert!(error.contains(needle), "{text}: {error}");
        }
    }
}
