//! What a first mapping consists of, step by step, as the importer does it.

use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::vmm::{
    Access, AddressRange, CreateOptions, PhysicalMemory, ShareableMemory, granularity,
};

use crate::protocol::{Answer, Outcome, Request};
use crate::side::Side;
use crate::table::now;
use crate::team::{Lead, Part};
use crate::warm::percentile;

/// In this order. The import has the properties in it, which are asked for once more alone.
const STEPS: [&str; 5] = ["reserve", "import", "properties", "map", "access"];

pub(crate) fn measure(lead: &Lead, request: &Request) -> Outcome {
    let (times, bytes) = (request.number::<usize>("times")?, request.number::<usize>("bytes")?);
    let device = lead.side.context.device();
    let bytes = bytes.next_multiple_of(granularity(device)?);
    let options = CreateOptions::supported_by(device)?;
    let create = |_| Ok(ShareableMemory::create(device, bytes, &options)?.export_posix_fd()?);
    let exported = (0..times).map(create).collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    let descriptors = exported.iter().map(OwnedFd::as_fd).collect::<Vec<_>>();
    lead.tell(Part::Steps, &[bytes as u64], &descriptors)?;
    let taken = lead.hear()?;
    let figures = STEPS.into_iter().enumerate().map(|(step, name)| {
        let mut times = taken.iter().skip(step).step_by(STEPS.len()).copied().collect::<Vec<_>>();
        (name, percentile(&mut times, 50) / 1e3)
    });
    Ok(Answer::Figures(figures.collect()))
}

/// The nanoseconds of each step, one memory after the other.
pub(crate) fn play(side: &Side, exported: &[OwnedFd], bytes: u64) -> Result<Vec<u64>, Box<dyn Error>> {
    let (device, bytes) = (side.context.device(), usize::try_from(bytes)?);
    let (mut taken, mut mapped) = (Vec::new(), Vec::new());
    for descriptor in exported {
        let start = now();
        let range = AddressRange::reserve(device, bytes, 0)?;
        let reserved = now();
        let memory = PhysicalMemory::import_posix_fd(device, descriptor.as_fd(), bytes)?;
        let imported = now();
        memory.properties()?;
        let asked = now();
        range.map(0, &memory)?;
        let there = now();
        range.set_access(0, bytes, &[device], Access::ReadWrite)?;
        let moments = [start, reserved, imported, asked, there, now()];
        taken.extend(moments.windows(2).map(|pair| pair[1] - pair[0]));
        // As in the case beside it, none is unmapped before the last is mapped.
        mapped.push((range, memory));
    }
    for (range, _memory) in mapped {
        // SAFETY: all that is mapped there, which no work has ever used.
        unsafe { range.unmap(0, bytes) }?;
        range.close().map_err(|refused| refused.error)?;
    }
    Ok(taken)
}
