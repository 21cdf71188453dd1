//! Which allocator is replayed on what.

use std::sync::Arc;

use anyhow::{Result, bail};
use clap::ValueEnum;
use cuda_mem_core::Driver;

use super::caching::{Modelled, OnDevice};
use super::calls::CallLog;
use super::candidate::Candidate;
use super::driver::{Device, DriverPool};
use super::model::Model;
use super::plan::Plan;
use super::play::{Outcome, play};
use super::progress::Progress;
use super::torch::{Expandable, Native, Torch};

/// The allocators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Allocator {
    /// Ours.
    Caching,
    /// Ours, whose pages stay where they are.
    CachingNoMove,
    /// A model of PyTorch's.
    Native,
    /// A model of PyTorch's with `expandable_segments:True`.
    Expandable,
    /// The driver's own, `cudaMallocAsync`.
    DriverPool,
}

/// What a replay runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// A GPU if there is one and the allocator runs on it; else the model, for driver-pool the simulator.
    Auto,
    /// The first GPU.
    Gpu,
    /// The simulated driver; calls take the time that the model knows.
    Sim,
    /// No driver: bytes and calls are counted, times are modelled.
    Model,
}

/// As the command line has it.
pub(crate) fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// What `auto` means, or why the allocator does not run on what was asked for.
pub(crate) fn choose(allocator: Allocator, asked: Backend) -> Result<Backend> {
    let has_gpu = || Driver::system().and_then(Driver::device_count).is_ok_and(|count| count > 0);
    let takes: &[Backend] = match allocator {
        Allocator::Caching | Allocator::CachingNoMove => &[Backend::Gpu, Backend::Sim, Backend::Model],
        Allocator::Native | Allocator::Expandable => &[Backend::Model],
        Allocator::DriverPool => &[Backend::Gpu, Backend::Sim],
    };
    match asked {
        Backend::Auto if takes.contains(&Backend::Gpu) && has_gpu() => Ok(Backend::Gpu),
        Backend::Auto if takes.contains(&Backend::Model) => Ok(Backend::Model),
        Backend::Auto => Ok(Backend::Sim),
        asked if takes.contains(&asked) => Ok(asked),
        asked => {
            let names = takes.iter().map(|backend| name(*backend)).collect::<Vec<_>>().join(" and ");
            bail!("{} does not run on the backend `{}`; it runs on {names}", name(allocator), name(asked))
        }
    }
}

/// What is replayed how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) allocator: Allocator,
    pub(crate) backend: Backend,
    pub(crate) lag: u64,
    pub(crate) threads: u32,
}

impl Setting {
    /// Replays a plan on a new device with so many bytes, or with as many as it wants.
    pub(crate) fn replay(&self, plan: &Plan, capacity: Option<u64>, log: CallLog) -> Result<Outcome> {
        let progress = Progress::new(plan.name.clone(), plan.operations.len());
        if self.backend == Backend::Model {
            let model = Arc::new(Model::new(plan, self.lag, capacity.unwrap_or(u64::MAX), log));
            let candidate = self.over_model(Arc::clone(&model))?;
            return play(plan, &*candidate, &*model, self.threads, &progress);
        }
        let device = Arc::new(match self.backend {
            Backend::Gpu => Device::gpu(plan, self.lag, log)?,
            _ => Device::simulated(plan, self.lag, capacity, log)?,
        });
        let candidate: Box<dyn Candidate> = match self.allocator {
            Allocator::DriverPool => Box::new(DriverPool::new(Arc::clone(&device), capacity)?),
            Allocator::Caching => Box::new(OnDevice::new(Arc::clone(&device), capacity, true)?),
            Allocator::CachingNoMove => Box::new(OnDevice::new(Arc::clone(&device), capacity, false)?),
            Allocator::Native | Allocator::Expandable => bail!("PyTorch's policies are models"),
        };
        play(plan, &*candidate, &*device, self.threads, &progress)
    }

    fn over_model(&self, model: Arc<Model>) -> Result<Box<dyn Candidate>> {
        Ok(match self.allocator {
            Allocator::Caching => Box::new(Modelled::new(model, true)),
            Allocator::CachingNoMove => Box::new(Modelled::new(model, false)),
            Allocator::Native => Box::new(Torch::<Native>::new(model)),
            Allocator::Expandable => Box::new(Torch::<Expandable>::new(model)),
            Allocator::DriverPool => bail!("the driver's pool has no model"),
        })
    }

    /// The lag that a checker can hold the log against: only the model's device is exactly that far behind.
    pub(crate) fn checked_lag(&self) -> Option<u64> {
        (self.backend == Backend::Model).then_some(self.lag)
    }
}
