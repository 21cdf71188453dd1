//! What no hand-over can do without: a word that the other process sees, spinning, or is woken for.

use std::error::Error;

use crate::protocol::{Answer, Outcome, Request};
use crate::side::Side;
use crate::table::{Word, linger, now};
use crate::team::{Lead, Part};
use crate::warm::{ASLEEP, percentiles};

pub(crate) fn measure(lead: &Lead, request: &Request) -> Outcome {
    let (rounds, asleep) = (request.number::<u32>("rounds")?, request.number::<u64>("asleep")?);
    lead.tell(Part::Floor, &[rounds.into(), asleep], &[])?;
    let table = &lead.side.table;
    let measured = (|| {
        let mut times = Vec::new();
        for round in 1..=rounds {
            table.spin(Word::Ready, round.into())?;
            if asleep > 0 {
                linger(ASLEEP);
            }
            let start = now();
            if asleep > 0 {
                table.wake(Word::Go, round)?;
            } else {
                table.set(Word::Go, round.into())?;
            }
            table.spin(Word::Done, round.into())?;
            times.push(table.get(Word::Time)?.saturating_sub(start));
        }
        Ok(times)
    })();
    Ok(Answer::Figures(percentiles(&mut lead.finish(measured)?)))
}

pub(crate) fn play(side: &Side, rounds: u64, asleep: bool) -> Result<(), Box<dyn Error>> {
    for round in 1..=rounds {
        side.table.set(Word::Ready, round)?;
        if asleep {
            side.table.sleep(Word::Go, u32::try_from(round)?)?;
        } else {
            side.table.spin(Word::Go, round)?;
        }
        side.table.set(Word::Time, now())?;
        side.table.set(Word::Done, round)?;
    }
    Ok(())
}
