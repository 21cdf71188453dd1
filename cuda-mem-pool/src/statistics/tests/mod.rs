#[cfg(loom)]
mod models;
#[cfg(not(loom))]
mod sequential;
#[cfg(not(loom))]
mod threads;

use super::{DeviceStatistics, PeakCounter};

fn read(counter: &PeakCounter) -> DeviceStatistics {
    let mut statistics = DeviceStatistics::default();
    counter.read(&mut statistics);
    statistics
}
