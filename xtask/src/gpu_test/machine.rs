//! What this machine is: asked before anything runs, so that every skip has a reason that was found here.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::matrix::Version;
use crate::process;

/// A driver that does not answer in this time is treated as none.
const PATIENCE: Duration = Duration::from_secs(120);

/// The machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Machine {
    /// The GPU driver and its devices, or why there is none.
    pub(crate) gpu: Result<Gpu, String>,
    /// The library that stands in for the system's driver, if the environment names one.
    pub(crate) stand_in: Option<String>,
    pub(crate) host: Host,
}

/// A working driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Gpu {
    /// Its CUDA version: 1000 × major + 10 × minor.
    pub(crate) driver: i32,
    pub(crate) devices: Vec<Device>,
}

/// One device, in the driver's order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) bus: String,
    pub(crate) memory: u64,
    /// -1 where the driver does not tell.
    pub(crate) numa_node: i32,
}

/// The side of the machine that the GPU hangs on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Host {
    pub(crate) processors: usize,
    pub(crate) numa_nodes: usize,
    /// The kernel's setting for transparent huge pages.
    pub(crate) transparent_huge_pages: String,
    pub(crate) kernel: String,
}

/// What the probe writes.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Answer {
    Found(Gpu),
    Missing { error: String },
}

impl Machine {
    /// Runs the probe in a process of its own: a driver that crashes or hangs takes nothing with it.
    pub(crate) fn probe(program: &Path, scratch: &Path) -> Result<Self> {
        let path = scratch.join("probe.json");
        let output = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        let ending = process::run(&mut Command::new(program), &output, PATIENCE, &mut || ())?;
        let gpu = if ending.is_success() {
            understand(&fs::read_to_string(&path)?)
        } else {
            Err(format!("the probe of the driver {ending}"))
        };
        Ok(Self { gpu, stand_in: std::env::var("CUDA_MEM_DRIVER").ok(), host: Host::read() })
    }

    /// One line for people.
    pub(crate) fn describe(&self) -> String {
        let host = &self.host;
        let host = format!(
            "{} processors, {} NUMA node{}, transparent huge pages: {}",
            host.processors,
            host.numa_nodes,
            if host.numa_nodes == 1 { "" } else { "s" },
            host.transparent_huge_pages
        );
        match &self.gpu {
            Ok(gpu) => {
                let names = gpu.devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>();
                let stand_in =
                    self.stand_in.as_ref().map_or_else(String::new, |path| format!(" from {path}"));
                format!("{} with CUDA {}{stand_in}; {host}", names.join(", "), Version(gpu.driver))
            }
            Err(reason) => format!("no GPU: {reason}; {host}"),
        }
    }
}

fn understand(output: &str) -> Result<Gpu, String> {
    // Libraries that the driver loads may print too: the probe's line is the last one.
    let line = output.lines().last().unwrap_or_default();
    match serde_json::from_str(line) {
        Ok(Answer::Found(gpu)) => Ok(gpu),
        Ok(Answer::Missing { error }) => Err(error),
        Err(error) => Err(format!("the probe of the driver wrote `{line}`: {error}")),
    }
}

impl Host {
    fn read() -> Self {
        let read = |path: &str| {
            fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
        };
        // The setting in force stands in brackets: `always [madvise] never`.
        let pages = read("/sys/kernel/mm/transparent_hugepage/enabled");
        let chosen = pages.split(['[', ']']).nth(1).unwrap_or(&pages).to_owned();
        let is_node = |name: &str| name.strip_prefix("node").is_some_and(|rest| rest.parse::<u32>().is_ok());
        let nodes = fs::read_dir("/sys/devices/system/node").map_or(1, |entries| {
            entries.flatten().filter(|entry| is_node(&entry.file_name().to_string_lossy())).count()
        });
        Self {
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            numa_nodes: nodes.max(1),
            transparent_huge_pages: chosen,
            kernel: read("/proc/sys/kernel/osrelease"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_the_probe() {
        let found = understand(
            "noise\n{\"driver\":13000,\"devices\":[{\"name\":\"A\",\"bus\":\"0\",\"memory\":5,\"numa_node\":-1}]}\n",
        );
        let gpu = found.unwrap();
        assert_eq!((gpu.driver, gpu.devices.len(), gpu.devices[0].memory), (13000, 1, 5));
        assert_eq!(understand("{\"error\":\"no library\"}"), Err("no library".to_owned()));
        assert!(understand("").unwrap_err().contains("the probe of the driver wrote ``"));
    }
}
