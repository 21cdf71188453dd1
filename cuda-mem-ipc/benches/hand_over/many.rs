//! Many buffers at once, to a process that has none of their segments yet.

use std::error::Error;

use cuda_mem_ipc::shared::{Importer, SharedPool, SharedPoolOptions};

use crate::protocol::{Answer, Outcome, Request};
use crate::side::{LEN, Side};
use crate::table::{Word, now};
use crate::team::{LIMIT, Lead, Part};

pub(crate) fn measure(lead: &Lead, request: &Request) -> Outcome {
    let (count, bytes) = (request.number::<usize>("count")?, request.number::<usize>("bytes")?);
    let side = &lead.side;
    let options =
        SharedPoolOptions { segment_bytes: request.number("segment")?, ..SharedPoolOptions::default() };
    let pool = SharedPool::new(&side.context, &options)?;
    let mut buffers = Vec::new();
    for index in 0..count {
        let buffer = pool.allocate(bytes.max(LEN), &side.stream)?;
        side.write(buffer.on(&side.stream)?.address(), index)?;
        buffers.push(buffer);
    }
    side.stream.synchronize()?;
    let exporter = lead.tell_importer(Part::Many, &[count as u64])?;
    let measured = (|| {
        side.table.spin(Word::Ready, 1)?;
        let start = now();
        for buffer in &buffers {
            exporter.hand_over(buffer, &side.stream, LIMIT)?;
        }
        side.table.spin(Word::Done, 1)?;
        Ok(side.table.get(Word::Time)?.saturating_sub(start))
    })();
    let nanoseconds = lead.finish(measured)?;
    Ok(Answer::Figures(vec![("total", nanoseconds as f64 / 1e9)]))
}

pub(crate) fn play(side: &Side, importer: &Importer, count: u64) -> Result<(), Box<dyn Error>> {
    let mut buffers = Vec::with_capacity(usize::try_from(count)?);
    side.table.set(Word::Ready, 1)?;
    for _ in 0..count {
        let buffer = importer.recv(LIMIT)?;
        let address = buffer.on(&side.stream)?.address();
        buffers.push((address, buffer));
    }
    side.table.set(Word::Time, now())?;
    side.table.set(Word::Done, 1)?;
    // All of them were there at once, and each is its own.
    for (index, (address, _)) in buffers.iter().enumerate().step_by(97) {
        side.check(*address, index)?;
    }
    Ok(())
}
