//! Device memory from ours, and from what stands beside it: the same measures as `ci/peers/patterns.h` makes of the peers.

mod allocator;
mod caching;
mod churn;
mod engines;
mod floor;
mod hit;
mod kernels;
mod pressure;
mod random;
mod remote;
mod sequence;
mod sizes;
mod streams;
mod team;

use std::error::Error;

use cuda_mem_pool::cuda_mem_core::Stream;

use crate::machine::Machine;
use crate::protocol::{Outcome, Request};
use allocator::Allocator;
use caching::Caching;
use floor::{Floor, Nothing};
use kernels::Kernels;

/// Threads that work at the same time, at most.
const THREADS: usize = 16;

/// What the measures share, kept from one round to the next.
pub(crate) struct Device {
    /// One a thread.
    streams: Vec<Stream>,
    default: Stream,
    kernels: Kernels,
}

impl Device {
    pub(crate) fn new(machine: &Machine) -> Result<Self, Box<dyn Error>> {
        let streams = (0..THREADS).map(|_| Stream::new(&machine.context)).collect::<Result<_, _>>()?;
        let kernels = Kernels::load(&machine.context)?;
        Ok(Self { streams, default: Stream::legacy(&machine.context)?, kernels })
    }

    /// Everybody begins with nothing.
    pub(crate) fn measure(&self, machine: &Machine, request: &Request) -> Outcome {
        match request.participant.as_str() {
            "ours" => self.measure_of(&Caching::new(&machine.context)?, machine, request),
            "floor" => self.measure_of(&Floor, machine, request),
            "loop" => self.measure_of(&Nothing, machine, request),
            other => Err(format!("{other} allocates nothing on the device").into()),
        }
    }

    fn measure_of<A: Allocator>(&self, allocator: &A, machine: &Machine, request: &Request) -> Outcome {
        let (streams, first, kernels) = (&self.streams[..], &self.streams[0], &self.kernels);
        match request.case.as_str() {
            "churn" => churn::measure(allocator, streams, request),
            "hit" => hit::measure(allocator, first, request),
            "remote" => remote::measure(allocator, first, request),
            "random" => random::measure(allocator, &self.default, request),
            "streams" => streams::measure(allocator, streams, kernels, machine, request),
            "pressure" => pressure::measure(allocator, first, kernels, machine, request),
            other => Err(format!("nobody measures {other} here").into()),
        }
    }
}
