//! Copies of one size between host and device: staged, direct, and from pinned memory.

use std::error::Error;
use std::time::{Duration, Instant};

use cuda_mem_pool::cuda_mem_core::copy::Stager;
use cuda_mem_pool::cuda_mem_core::host::PinnedFlags;
use cuda_mem_pool::cuda_mem_core::sys::CUresult;
use cuda_mem_pool::cuda_mem_core::{DeviceBuffer, PinnedBuffer};

use crate::machine::Machine;
use crate::protocol::{Answer, Outcome, Request};

/// The memory that is copied, kept from one round to the next.
#[derive(Default)]
pub(crate) struct Staging {
    sides: Option<Sides>,
}

struct Sides {
    stager: Stager,
    pageable: Vec<u8>,
    pinned: PinnedBuffer<u8>,
    device: DeviceBuffer<u8>,
}

impl Staging {
    pub(crate) fn measure(&mut self, machine: &Machine, request: &Request) -> Outcome {
        let (bytes, copies) = (request.number::<usize>("bytes")?, request.number::<usize>("copies")?);
        let room = request.number::<usize>("room")?.max(bytes);
        let sides = match &mut self.sides {
            Some(sides) if sides.pageable.len() >= room => sides,
            sides => sides.insert(Sides::new(machine, room)?),
        };
        let (up, pinned) = (request.case == "h2d", request.participant == "pinned");
        let copy = match (request.participant.as_str(), up) {
            ("staged", true) => Sides::staged_up,
            ("staged", false) => Sides::staged_down,
            ("direct", true) => Sides::direct_up,
            ("direct", false) => Sides::direct_down,
            ("pinned", true) => Sides::pinned_up,
            ("pinned", false) => Sides::pinned_down,
            (other, _) => return Err(format!("{other} copies nothing").into()),
        };
        if request.has("verify") {
            sides.prepare(machine, up, bytes, pinned)?;
        }
        let mut times = Vec::with_capacity(copies);
        for _ in 0..copies {
            let started = Instant::now();
            copy(sides, machine, bytes)?;
            times.push(started.elapsed());
        }
        if request.has("verify") {
            sides.verify(machine, up, bytes, pinned)?;
        }
        times.sort();
        let median = times.get(times.len() / 2).copied().unwrap_or(Duration::MAX);
        Ok(Answer::Figures(vec![("rate", bytes as f64 / median.as_secs_f64() / 1e9)]))
    }
}

impl Sides {
    fn new(machine: &Machine, room: usize) -> Result<Self, Box<dyn Error>> {
        Ok(Self {
            stager: Stager::new(&machine.context)?,
            pageable: vec![1; room],
            pinned: PinnedBuffer::zeroed(&machine.context, room, PinnedFlags::default())?,
            device: DeviceBuffer::zeroed(&machine.stream, room)?,
        })
    }

    fn staged_up(&mut self, machine: &Machine, bytes: usize) -> Result<(), Box<dyn Error>> {
        let target = self.device.range(..bytes)?;
        self.stager.upload(&machine.stream, &self.pageable[..bytes], &target)?;
        Ok(machine.stream.synchronize()?)
    }

    fn staged_down(&mut self, machine: &Machine, bytes: usize) -> Result<(), Box<dyn Error>> {
        let source = self.device.range(..bytes)?;
        Ok(self.stager.download(&machine.stream, &source, &mut self.pageable[..bytes])?)
    }

    /// One copy of the driver's, and a wait: to the device the call may return before the bytes are there.
    fn direct_up(&mut self, machine: &Machine, bytes: usize) -> Result<(), Box<dyn Error>> {
        let copy = machine.context.driver().table().cuMemcpyHtoD()?;
        let wait = machine.context.driver().table().cuCtxSynchronize()?;
        let (target, source) = (self.device.as_raw(), self.pageable.as_ptr());
        let codes = machine.context.with_current(|| {
            // SAFETY: both sides hold `bytes` bytes and live on; no other work uses them.
            let copied = unsafe { copy(target, source.cast(), bytes) };
            // SAFETY: the context is current.
            (copied, unsafe { wait() })
        })?;
        successes([codes.0, codes.1])
    }

    fn direct_down(&mut self, machine: &Machine, bytes: usize) -> Result<(), Box<dyn Error>> {
        let copy = machine.context.driver().table().cuMemcpyDtoH()?;
        let (target, source) = (self.pageable.as_mut_ptr(), self.device.as_raw());
        // SAFETY: as above; the call returns when the bytes are in the host's memory.
        let code = machine.context.with_current(|| unsafe { copy(target.cast(), source, bytes) })?;
        successes([code])
    }

    fn pinned_up(&mut self, machine: &Machine, bytes: usize) -> Result<(), Box<dyn Error>> {
        let source = &self.pinned.as_slice()?[..bytes];
        Ok(self.device.range(..bytes)?.copy_from_slice(&machine.stream, source)?)
    }

    fn pinned_down(&mut self, machine: &Machine, bytes: usize) -> Result<(), Box<dyn Error>> {
        let target = &mut self.pinned.as_mut_slice()?[..bytes];
        Ok(self.device.range(..bytes)?.copy_to_slice(&machine.stream, target)?)
    }

    /// Puts a pattern where the copy starts, and other bytes where it ends.
    fn prepare(
        &mut self,
        machine: &Machine,
        up: bool,
        bytes: usize,
        pinned: bool,
    ) -> Result<(), Box<dyn Error>> {
        let host = if pinned { self.pinned.as_mut_slice()? } else { &mut self.pageable[..] };
        let (host, device) = (&mut host[..bytes], self.device.range(..bytes)?);
        fill(host);
        if up {
            device.fill_bytes(&machine.stream, 0xa5)?;
        } else {
            device.copy_from_slice(&machine.stream, host)?;
            host.fill(0xa5);
        }
        Ok(machine.stream.synchronize()?)
    }

    /// Whether the pattern arrived.
    fn verify(&self, machine: &Machine, up: bool, bytes: usize, pinned: bool) -> Result<(), Box<dyn Error>> {
        let arrived = if up {
            let mut arrived = vec![0; bytes];
            self.device.range(..bytes)?.copy_to_slice(&machine.stream, &mut arrived)?;
            is_filled(&arrived)
        } else if pinned {
            is_filled(&self.pinned.as_slice()?[..bytes])
        } else {
            is_filled(&self.pageable[..bytes])
        };
        if arrived { Ok(()) } else { Err(format!("of {bytes} bytes not all arrived as they left").into()) }
    }
}

/// Eight bytes that look random, so that a piece in the wrong place does not pass.
fn word(index: usize) -> [u8; 8] {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = (index as u64 + 1).wrapping_mul(ODD);
    (mixed ^ (mixed >> 29)).wrapping_mul(ODD).to_ne_bytes()
}

fn fill(bytes: &mut [u8]) {
    for (index, piece) in bytes.chunks_mut(8).enumerate() {
        piece.copy_from_slice(&word(index)[..piece.len()]);
    }
}

fn is_filled(bytes: &[u8]) -> bool {
    bytes.chunks(8).enumerate().all(|(index, piece)| *piece == word(index)[..piece.len()])
}

fn successes<const N: usize>(codes: [CUresult; N]) -> Result<(), Box<dyn Error>> {
    match codes.into_iter().find(|code| *code != CUresult::CUDA_SUCCESS) {
        Some(code) => Err(format!("a direct copy: {code:?}").into()),
        None => Ok(()),
    }
}
