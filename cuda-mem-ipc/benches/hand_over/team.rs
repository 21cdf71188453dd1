//! The two processes: how the second is started, told its part, and heard.

use std::error::Error;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cuda_mem_ipc::shared::{Exporter, Importer};
use cuda_mem_ipc::transport::{Connection, Descriptors, FIRST_KIND, Message, PeerPolicy, Pending, pair};

use crate::side::Side;
use crate::table::{Table, Word};
use crate::{first_mapping, floor, leaks, many, mapping_steps, warm};

/// The argument that makes a process the second.
pub(crate) const SECOND: &str = "--second";

/// How long either waits for the other. Far longer than any needs.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// How long the second waits to be told something: other programs have their turn.
const IDLE: Duration = Duration::from_secs(24 * 3600);

/// What the second is told, by the kind of the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Begin,
    Warm,
    Floor,
    Many,
    First,
    Announced,
    AtOnce,
    FirstOfDriver,
    Steps,
    Life,
    Count,
}

const PARTS: [Part; 11] = [
    Part::Begin,
    Part::Warm,
    Part::Floor,
    Part::Many,
    Part::First,
    Part::Announced,
    Part::AtOnce,
    Part::FirstOfDriver,
    Part::Steps,
    Part::Life,
    Part::Count,
];

/// What the second says: numbers, or why it failed.
const ANSWER: u16 = FIRST_KIND + 100;
const FAILURE: u16 = FIRST_KIND + 101;

/// The process that was asked.
pub(crate) struct Lead {
    pub(crate) side: Side,
    second: Connection,
    child: Child,
}

impl Lead {
    pub(crate) fn start() -> Result<Self, Box<dyn Error>> {
        let side = Side::new(Table::create()?)?;
        let (here, there) = pair()?;
        let mut command = Command::new(std::env::current_exe()?);
        // The other end is its standard input.
        command.arg(SECOND).env_remove("CUDA_MEM_RECORD").stdin(there).stdout(Stdio::null());
        let child = command.spawn()?;
        // With it goes the parent's copy of the end.
        drop(command);
        let second = here.complete(&PeerPolicy::default(), LIMIT)?;
        let lead = Self { side, second, child };
        lead.tell(Part::Begin, &[], &[lead.side.table.descriptor()])?;
        lead.hear()?;
        Ok(lead)
    }

    pub(crate) fn tell(
        &self,
        part: Part,
        numbers: &[u64],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Box<dyn Error>> {
        self.side.table.clear()?;
        let kind = PARTS.iter().position(|other| *other == part).ok_or("a part without a number")?;
        let kind = FIRST_KIND + u16::try_from(kind)?;
        Ok(self.second.send(kind, &to_bytes(numbers), descriptors, LIMIT)?)
    }

    /// Tells a part that has an importer, and makes the exporter.
    pub(crate) fn tell_importer(&self, part: Part, numbers: &[u64]) -> Result<Exporter, Box<dyn Error>> {
        let (here, there) = pair()?;
        self.tell(part, numbers, &[there.as_fd()])?;
        drop(there);
        let exporter = || {
            let connection = here.complete(&PeerPolicy::default(), LIMIT)?;
            Ok(Exporter::new(&self.side.context, connection, LIMIT)?)
        };
        exporter().or_else(|error| self.finish(Err(error)))
    }

    /// Waits until the second has played its part.
    pub(crate) fn hear(&self) -> Result<Vec<u64>, Box<dyn Error>> {
        // It may be waiting itself.
        let answer = self.second.recv(2 * LIMIT)?;
        match answer.kind {
            ANSWER => Ok(to_numbers(&answer.payload)),
            _ => Err(String::from_utf8_lossy(&answer.payload).into_owned().into()),
        }
    }

    /// What `measured` gives, once the second is done too. Of two failures the first is told.
    pub(crate) fn finish<T>(&self, measured: Result<T, Box<dyn Error>>) -> Result<T, Box<dyn Error>> {
        let table = &self.side.table;
        if measured.is_err() && table.get(Word::Failed)? == 0 {
            // The second is not to wait for what will not come, and its answer belongs to this part.
            table.set(Word::Failed, 1)?;
            drop(self.hear());
            return measured;
        }
        self.hear()?;
        measured
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        // Idle between two parts, and nothing of it is needed any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The second process, to its end.
pub(crate) fn second() -> Result<(), Box<dyn Error>> {
    let lead = connect(io::stdin().as_fd().try_clone_to_owned()?)?;
    let [descriptor] =
        <[OwnedFd; 1]>::try_from(lead.recv(LIMIT)?.descriptors.into_vec()).map_err(|_| "no table came")?;
    let side = Side::new(Table::open(descriptor)?);
    if let Err(error) = &side {
        lead.send(FAILURE, error.to_string().as_bytes(), &[], LIMIT)?;
    }
    let side = side?;
    lead.send(ANSWER, &[], &[], LIMIT)?;
    loop {
        let message = match lead.recv(IDLE) {
            Err(error) if error.is_gone() => return Ok(()),
            message => message?,
        };
        match play(&side, message) {
            Ok(numbers) => lead.send(ANSWER, &to_bytes(&numbers), &[], LIMIT)?,
            Err(error) => {
                side.table.set(Word::Failed, 1)?;
                lead.send(FAILURE, error.to_string().as_bytes(), &[], LIMIT)?;
            }
        }
    }
}

fn play(side: &Side, message: Message) -> Result<Vec<u64>, Box<dyn Error>> {
    let part = PARTS.get(usize::from(message.kind.saturating_sub(FIRST_KIND)));
    let numbers = to_numbers(&message.payload);
    let number = |index: usize| numbers.get(index).copied().ok_or("a number is missing");
    let importer = |descriptors: Descriptors| -> Result<Importer, Box<dyn Error>> {
        let [socket] = <[OwnedFd; 1]>::try_from(descriptors.into_vec()).map_err(|_| "no socket came")?;
        Ok(Importer::new(&side.context, connect(socket)?, LIMIT)?)
    };
    match part {
        Some(Part::Warm) => {
            let importer = importer(message.descriptors)?;
            side.context.with_current(|| warm::play(side, &importer, number(0)?, number(1)? > 0))??;
        }
        Some(Part::Floor) => floor::play(side, number(0)?, number(1)? > 0)?,
        Some(Part::Many) => many::play(side, &importer(message.descriptors)?, number(0)?)?,
        Some(Part::First) => first_mapping::play(side, &importer(message.descriptors)?, number(0)?)?,
        Some(Part::Announced) => {
            first_mapping::play_announced(side, &importer(message.descriptors)?, number(0)?)?;
        }
        Some(Part::AtOnce) => {
            first_mapping::play_at_once(side, &importer(message.descriptors)?, number(0)?)?;
        }
        Some(Part::FirstOfDriver) => first_mapping::play_driver(side, number(0)?, number(1)?)?,
        Some(Part::Steps) => return mapping_steps::play(side, &message.descriptors, number(0)?),
        Some(Part::Life) => leaks::play(side, &importer(message.descriptors)?, number(0)?)?,
        Some(Part::Count) => return leaks::count(),
        Some(Part::Begin) | None => return Err("nobody plays that".into()),
    }
    Ok(Vec::new())
}

fn connect(socket: OwnedFd) -> Result<Connection, Box<dyn Error>> {
    Ok(Pending::inherited(socket)?.complete(&PeerPolicy::default(), LIMIT)?)
}

fn to_bytes(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn to_numbers(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
}
