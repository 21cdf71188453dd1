//! One buffer of a segment that the other process has, from the call that hands it over to the other's stream behind its fence.

use std::error::Error;
use std::time::{Duration, Instant};

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::FenceLine;
use cuda_mem_ipc::shared::{Importer, ReceivedBuffer, SharedPool, SharedPoolOptions};

use crate::protocol::{Answer, Outcome, Request};
use crate::side::{LEN, Side, Work};
use crate::table::{Word, linger, now};
use crate::team::{LIMIT, Lead, Part};

/// By when who waits sleeps.
pub(crate) const ASLEEP: Duration = Duration::from_micros(200);

/// How long one wait of somebody who spins may be: shorter than an importer looks before it sleeps.
const GLANCE: Duration = Duration::from_micros(15);

pub(crate) fn measure(lead: &Lead, request: &Request) -> Outcome {
    // And a first one, which maps the segment.
    let (rounds, asleep) = (request.number::<usize>("rounds")? + 1, request.number::<u64>("asleep")?);
    let work = Work::new(&lead.side, request.number("work")?)?;
    let exporter = lead.tell_importer(Part::Warm, &[rounds as u64, asleep])?;
    let side = &lead.side;
    let measured = (|| {
        let pool = SharedPool::new(&side.context, &SharedPoolOptions::default())?;
        let line = FenceLine::new(&side.context)?;
        let mut series = Series::default();
        for round in 1..=rounds {
            let number = round as u64;
            side.table.spin(Word::Ready, number)?;
            if asleep > 0 {
                linger(ASLEEP);
            }
            let buffer = pool.allocate(LEN, &side.stream)?;
            let address = buffer.on(&side.stream)?.address();
            // Long enough that the fence is not reached when the buffer is received: the stream really waits.
            work.enqueue(side)?;
            side.write(address, round)?;
            let start = now();
            exporter.hand_over(&buffer, &side.stream, LIMIT)?;
            let called = now();
            side.table.spin(Word::Done, number)?;
            let end = side.table.get(Word::Time)?;
            if is_split(number) {
                series.order.push(side.table.get(Word::Order)?);
                series.wait.push(side.table.get(Word::Wait)?);
            } else {
                series.whole.push(end.saturating_sub(start));
                series.behind.push(end.saturating_sub(called));
            }
            series.call.push(called.saturating_sub(start));
            let start = Instant::now();
            line.record(&side.stream)?;
            series.fence.push(u64::try_from(start.elapsed().as_nanos())?);
            series.write.push(side.bare_write()?);
            if round == 1 {
                series = Series::default();
            }
        }
        Ok(series)
    })();
    let mut series = lead.finish(measured)?;
    let mut figures = percentiles(&mut series.whole);
    for (name, values) in [
        ("behind", &mut series.behind),
        ("call", &mut series.call),
        ("order", &mut series.order),
        ("fence", &mut series.fence),
        ("write", &mut series.write),
        ("wait", &mut series.wait),
    ] {
        figures.push((name, percentile(values, 50)));
    }
    Ok(Answer::Figures(figures))
}

/// Nanoseconds of all rounds.
#[derive(Debug, Default)]
struct Series {
    whole: Vec<u64>,
    /// From the return of `hand_over` on, the last that it does but one being the fence.
    behind: Vec<u64>,
    /// The part in `hand_over`.
    call: Vec<u64>,
    /// The part in `on`.
    order: Vec<u64>,
    /// Recording a fence and nothing else, behind the same work.
    fence: Vec<u64>,
    /// The driver's calls that either side cannot do without.
    write: Vec<u64>,
    wait: Vec<u64>,
}

/// Whether a round is one in which the receiver looks at the clock in between, which takes time of its own.
fn is_split(round: u64) -> bool {
    round.is_multiple_of(2)
}

pub(crate) fn play(
    side: &Side,
    importer: &Importer,
    rounds: u64,
    asleep: bool,
) -> Result<(), Box<dyn Error>> {
    for round in 1..=rounds {
        side.table.set(Word::Ready, round)?;
        let buffer = if asleep { importer.recv(LIMIT)? } else { spin(importer)? };
        let received = if is_split(round) { now() } else { 0 };
        let address = buffer.on(&side.stream)?.address();
        let end = now();
        side.table.set(Word::Time, end)?;
        if is_split(round) {
            side.table.set(Word::Order, end - received)?;
            side.table.set(Word::Wait, side.bare_wait()?)?;
        }
        side.table.set(Word::Done, round)?;
        side.check(address, usize::try_from(round)?)?;
    }
    Ok(())
}

/// The next buffer, by somebody who never sleeps for long.
fn spin(importer: &Importer) -> Result<ReceivedBuffer, Box<dyn Error>> {
    let start = Instant::now();
    loop {
        match importer.recv(GLANCE) {
            Err(error) if error.is_timeout() && start.elapsed() < LIMIT => {}
            received => return Ok(received?),
        }
    }
}

/// The half and the 99th of 100.
pub(crate) fn percentiles(values: &mut [u64]) -> Vec<(&'static str, f64)> {
    vec![("p50", percentile(values, 50)), ("p99", percentile(values, 99))]
}

pub(crate) fn percentile(values: &mut [u64], hundredth: usize) -> f64 {
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) * hundredth / 100).map_or(f64::NAN, |value| *value as f64)
}
