//! The first buffer of a segment, whose descriptor has come: until the stream is behind its fence and the address is valid.

use std::error::Error;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::ipc::{DeviceAllocation, MemoryHandle, OpenedMemory};
use cuda_mem_ipc::shared::{Exporter, Importer, ReceivedBuffer, SharedBuffer, SharedPool, SharedPoolOptions};

use crate::protocol::{Answer, Outcome, Request};
use crate::side::{LEN, Side};
use crate::table::{Word, now};
use crate::team::{LIMIT, Lead, Part};
use crate::warm::percentile;

pub(crate) fn measure(lead: &Lead, request: &Request) -> Outcome {
    let (times, bytes) = (request.number::<usize>("times")?, request.number::<usize>("bytes")?);
    let side = &lead.side;
    let exporter = lead.tell_importer(Part::First, &[times as u64])?;
    let measured = (|| {
        let pool = SharedPool::new(&side.context, &SharedPoolOptions::default())?;
        let (mut taken, mut buffers) = (Vec::new(), Vec::new());
        for round in 1..=times {
            // A segment of its own. They stay until the last was mapped, so that no unmapping is in the way of a mapping.
            let buffer = pool.allocate_isolated(bytes.max(LEN), &side.stream)?;
            side.write(buffer.on(&side.stream)?.address(), round)?;
            exporter.hand_over(&buffer, &side.stream, LIMIT)?;
            side.stream.synchronize()?;
            buffers.push(buffer);
            taken.push(mapped(side, round as u64)?);
        }
        Ok(taken)
    })();
    Ok(Answer::Figures(vec![("first", percentile(&mut lead.finish(measured)?, 50) / 1e3)]))
}

/// As [`measure`], of segments that were announced ahead, and mapped before their buffer is handed over.
pub(crate) fn measure_announced(lead: &Lead, request: &Request) -> Outcome {
    measure_attached(lead, request, Part::Announced, |exporter, buffer, round| {
        let side = &lead.side;
        side.table.spin(Word::Ready, round)?;
        exporter.hand_over(buffer, &side.stream, LIMIT)?;
        side.stream.synchronize()?;
        mapped(side, round)
    })
}

/// The same without a pause: from the call that hands over, right behind the allocation, to the other process, which waits for it.
pub(crate) fn measure_at_once(lead: &Lead, request: &Request) -> Outcome {
    measure_attached(lead, request, Part::AtOnce, |exporter, buffer, round| {
        let side = &lead.side;
        let start = now();
        exporter.hand_over(buffer, &side.stream, LIMIT)?;
        side.table.spin(Word::Done, round)?;
        Ok(side.table.get(Word::Time)?.saturating_sub(start))
    })
}

/// Each round allocates a segment of an attached pool.
fn measure_attached(
    lead: &Lead,
    request: &Request,
    part: Part,
    round_of: impl Fn(&Exporter, &SharedBuffer, u64) -> Result<u64, Box<dyn Error>>,
) -> Outcome {
    let (times, bytes) = (request.number::<usize>("times")?, request.number::<usize>("bytes")?);
    let side = &lead.side;
    let exporter = lead.tell_importer(part, &[times as u64])?;
    let measured = (|| {
        let options = SharedPoolOptions { segment_bytes: bytes.max(LEN), ..SharedPoolOptions::default() };
        let pool = SharedPool::new(&side.context, &options)?;
        exporter.attach(&pool)?;
        let (mut taken, mut buffers) = (Vec::new(), Vec::new());
        for round in 1..=times {
            let buffer = pool.allocate(bytes.max(LEN), &side.stream)?;
            side.write(buffer.on(&side.stream)?.address(), round)?;
            taken.push(round_of(&exporter, &buffer, round as u64)?);
            buffers.push(buffer);
        }
        Ok(taken)
    })();
    Ok(Answer::Figures(vec![("first", percentile(&mut lead.finish(measured)?, 50) / 1e3)]))
}

/// As [`measure`], with memory of `cuMemAlloc`.
pub(crate) fn measure_driver(lead: &Lead, request: &Request) -> Outcome {
    let (times, bytes) = (request.number::<usize>("times")?, request.number::<usize>("bytes")?);
    let side = &lead.side;
    lead.tell(Part::FirstOfDriver, &[times as u64, bytes as u64], &[])?;
    let mut kept = Vec::new();
    let measured = (|| {
        let mut taken = Vec::new();
        for round in 1..=times {
            let memory = DeviceAllocation::new(&side.context, bytes.max(LEN))?;
            side.write(memory.on(&side.stream)?.address(), round)?;
            side.stream.synchronize()?;
            // SAFETY: the memory stays until the peer has closed what it opened.
            side.table.put(unsafe { memory.handle(0..memory.bytes()) }?.base())?;
            // Its memory must outlive every mapping of it.
            kept.push(memory);
            taken.push(mapped(side, round as u64)?);
        }
        Ok(taken)
    })();
    Ok(Answer::Figures(vec![("first", percentile(&mut lead.finish(measured)?, 50) / 1e3)]))
}

/// Lets the other process map what is there for it; the nanoseconds that it took.
fn mapped(side: &Side, round: u64) -> Result<u64, Box<dyn Error>> {
    side.table.set(Word::Go, round)?;
    side.table.spin(Word::Done, round)?;
    side.table.get(Word::Time)
}

pub(crate) fn play(side: &Side, importer: &Importer, times: u64) -> Result<(), Box<dyn Error>> {
    let buffers = (1..=times).map(|round| take(side, importer, round)).collect::<Result<Vec<_>, _>>()?;
    drop(buffers);
    Ok(())
}

/// A round's buffer, once it may be taken, and how long that took.
fn take(side: &Side, importer: &Importer, round: u64) -> Result<ReceivedBuffer, Box<dyn Error>> {
    side.table.spin(Word::Go, round)?;
    let start = now();
    let buffer = importer.recv(LIMIT)?;
    let address = buffer.on(&side.stream)?.address();
    side.table.set(Word::Time, now() - start)?;
    side.check(address, usize::try_from(round)?)?;
    side.table.set(Word::Done, round)?;
    Ok(buffer)
}

pub(crate) fn play_announced(side: &Side, importer: &Importer, times: u64) -> Result<(), Box<dyn Error>> {
    let mut buffers = Vec::new();
    for round in 1..=times {
        let begin = now();
        while importer.mapped_ahead() == 0 {
            if u128::from(now() - begin) > LIMIT.as_nanos() {
                return Err("no segment is mapped ahead".into());
            }
            std::hint::spin_loop();
        }
        side.table.set(Word::Ready, round)?;
        buffers.push(take(side, importer, round)?);
    }
    Ok(())
}

pub(crate) fn play_at_once(side: &Side, importer: &Importer, times: u64) -> Result<(), Box<dyn Error>> {
    let mut buffers = Vec::new();
    for round in 1..=times {
        let buffer = importer.recv(LIMIT)?;
        let address = buffer.on(&side.stream)?.address();
        side.table.set(Word::Time, now())?;
        side.check(address, usize::try_from(round)?)?;
        buffers.push(buffer);
        side.table.set(Word::Done, round)?;
    }
    Ok(())
}

pub(crate) fn play_driver(side: &Side, times: u64, bytes: u64) -> Result<(), Box<dyn Error>> {
    let mut opened = Vec::new();
    for round in 1..=times {
        side.table.spin(Word::Go, round)?;
        let mut base = [0; 64];
        side.table.take(&mut base)?;
        let handle = MemoryHandle::from_parts(base, 0, bytes.max(LEN as u64));
        let start = now();
        let memory = OpenedMemory::open(&side.context, &handle)?;
        let address = memory.on(&side.stream)?.address();
        side.table.set(Word::Time, now() - start)?;
        side.check(address, usize::try_from(round)?)?;
        opened.push(memory);
        side.table.set(Word::Done, round)?;
    }
    Ok(())
}
