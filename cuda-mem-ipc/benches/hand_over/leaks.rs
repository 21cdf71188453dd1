//! Whole lives of a connection, its pool and its segment, and what is left of them in either process.

use std::error::Error;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_ipc::shared::{Importer, SharedPool, SharedPoolOptions};

use crate::protocol::{Answer, Outcome, Request};
use crate::side::{LEN, Side};
use crate::team::{LIMIT, Lead, Part};

/// Lives that leave what is made once in a process.
const FIRST_LIVES: usize = 3;

pub(crate) fn measure(lead: &Lead, request: &Request) -> Outcome {
    let rounds = request.number::<usize>("rounds")?;
    (0..FIRST_LIVES).try_for_each(|round| life(lead, round))?;
    let before = settled(lead, None)?;
    let start = Instant::now();
    (0..rounds).try_for_each(|round| life(lead, round))?;
    let life = start.elapsed().as_secs_f64() * 1e6 / rounds.max(1) as f64;
    let after = settled(lead, Some(before))?;
    let more = |now: u64, then: u64| now as f64 - then as f64;
    Ok(Answer::Figures(vec![
        ("life", life),
        ("descriptors", more(after.descriptors, before.descriptors)),
        ("mappings", more(after.mappings, before.mappings)),
        // Free memory, so the other way round.
        ("device_memory", more(before.free, after.free) / f64::from(1 << 20)),
    ]))
}

fn life(lead: &Lead, round: usize) -> Result<(), Box<dyn Error>> {
    let side = &lead.side;
    let exporter = lead.tell_importer(Part::Life, &[round as u64])?;
    let options = SharedPoolOptions { segment_bytes: 2 << 20, ..SharedPoolOptions::default() };
    let pool = SharedPool::new(&side.context, &options)?;
    let buffer = pool.allocate(LEN, &side.stream)?;
    side.write(buffer.on(&side.stream)?.address(), round)?;
    exporter.hand_over(&buffer, &side.stream, LIMIT)?;
    lead.hear()?;
    Ok(())
}

pub(crate) fn play(side: &Side, importer: &Importer, round: u64) -> Result<(), Box<dyn Error>> {
    let buffer = importer.recv(LIMIT)?;
    let address = buffer.on(&side.stream)?.address();
    side.check(address, usize::try_from(round)?)
}

/// What both processes have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    descriptors: u64,
    mappings: u64,
    /// Of the device, for everybody.
    free: u64,
}

/// What stays: as before, or once nothing has changed for a while. Connections end in a thread of their own.
fn settled(lead: &Lead, before: Option<Held>) -> Result<Held, Box<dyn Error>> {
    let (start, mut last, mut times) = (Instant::now(), held(lead)?, 0);
    while Some(last) != before && times < 100 && start.elapsed() < Duration::from_secs(20) {
        thread::sleep(Duration::from_millis(10));
        let now = held(lead)?;
        times = if now == last { times + 1 } else { 0 };
        last = now;
    }
    Ok(last)
}

fn held(lead: &Lead) -> Result<Held, Box<dyn Error>> {
    lead.tell(Part::Count, &[], &[])?;
    let (theirs, ours) = (lead.hear()?, count()?);
    let both = |index: usize| Some(theirs.get(index)? + ours.get(index)?);
    let (Some(descriptors), Some(mappings)) = (both(0), both(1)) else {
        return Err("the other process does not count".into());
    };
    // The driver's pool gives back what other cases had.
    lead.side.context.synchronize()?;
    Ok(Held { descriptors, mappings, free: lead.side.context.memory_info()?.free as u64 })
}

/// Descriptors of this process, and its mappings of shared memory.
pub(crate) fn count() -> Result<Vec<u64>, Box<dyn Error>> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let mappings = maps.lines().filter(|line| line.contains("/memfd:cuda-mem")).count();
    Ok(vec![fs::read_dir("/proc/self/fd")?.count() as u64, mappings as u64])
}
