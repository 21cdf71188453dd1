//! `LoggingAdaptor`: what it writes is read back.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use cuda_mem_pool::{LoggingAdaptor, MemoryResource};

use super::faulty::Faulty;
use crate::common::World;
use crate::support::device;

pub(crate) const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream";

/// A writer whose bytes can be read.
#[derive(Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    pub(crate) fn rows(&self) -> Vec<Row> {
        parse(&String::from_utf8(self.0.lock().unwrap().clone()).unwrap())
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) thread: u64,
    /// Since midnight.
    pub(crate) micros: u64,
    pub(crate) action: String,
    pub(crate) pointer: u64,
    pub(crate) size: usize,
    pub(crate) stream: usize,
}

/// As RMM's replay reads it, and stricter: every field must be what its column says.
pub(crate) fn parse(text: &str) -> Vec<Row> {
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(HEADER));
    let hexadecimal = |field: &str| u64::from_str_radix(field.strip_prefix("0x").unwrap(), 16).unwrap();
    let row = |line: &str| {
        let [thread, time, action, pointer, size, stream] = line.split(',').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let (clock, micros) = time.split_once('.').unwrap();
        assert_eq!((clock.len(), micros.len()), (8, 6), "{line}");
        let [hours, minutes, seconds] =
            clock.split(':').map(|part| part.parse::<u64>().unwrap()).collect::<Vec<_>>()[..]
        else {
            panic!("{line}")
        };
        assert!(hours < 24 && minutes < 60 && seconds < 60, "{line}");
        Row {
            thread: thread.parse().unwrap(),
            micros: ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros.parse::<u64>().unwrap(),
            action: action.to_owned(),
            pointer: hexadecimal(pointer),
            size: size.parse().unwrap(),
            stream: usize::try_from(hexadecimal(stream)).unwrap(),
        }
    };
    lines.map(row).collect()
}

fn actions(rows: &[Row]) -> Vec<(&str, u64, usize)> {
    rows.iter().map(|row| (row.action.as_str(), row.pointer, row.size)).collect()
}

#[test]
fn each_allocation_failure_and_free_is_a_row() {
    let world = World::new();
    let (upstream, log) = (Faulty::new(&world), Shared::default());
    let resource = LoggingAdaptor::new(upstream.clone(), log.clone());
    assert!(log.rows().is_empty());
    let block = resource.allocate(100, &world.stream).unwrap();
    let address = block.address();
    upstream.refuse_allocations(1);
    assert!(resource.allocate(200, &world.stream).is_err());
    drop(block);
    assert!(resource.allocate(0, &world.stream).unwrap().is_empty());
    let rows = log.rows();
    assert_eq!(
        actions(&rows),
        [("allocate", address, 100), ("allocate failure", 0, 200), ("free", address, 100)]
    );
    let stream = world.stream.as_raw() as usize;
    assert!(rows.iter().all(|row| row.stream == stream && row.thread == rows[0].thread && row.thread > 0));
    // Midnight may lie between two of them, but not between three.
    assert!(rows.windows(2).filter(|pair| pair[0].micros > pair[1].micros).count() <= 1);
    assert_eq!(resource.write_failures(), 0);
}

#[test]
fn a_free_that_is_refused_is_no_row() {
    let world = World::new();
    let (upstream, log) = (Faulty::new(&world), Shared::default());
    let resource = LoggingAdaptor::new(upstream.clone(), log.clone());
    let block = resource.allocate(100, &world.stream).unwrap();
    upstream.refuse_frees(1);
    let block = block.close().unwrap_err().owner;
    assert_eq!(log.rows().len(), 1);
    block.close().unwrap();
    assert_eq!(log.rows().len(), 2);
}

#[test]
fn a_path_gets_the_same() {
    let world = World::new();
    let path = std::env::temp_dir().join(format!("cuda-mem-pool-log-{}.csv", std::process::id()));
    let resource = LoggingAdaptor::to_path(device(&world), &path).unwrap();
    let block = resource.allocate(100, &world.stream).unwrap();
    let address = block.address();
    resource.flush().unwrap();
    let flushed = std::fs::read_to_string(&path).unwrap();
    drop(block);
    drop(resource);
    let whole = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(actions(&parse(&flushed)), [("allocate", address, 100)]);
    assert_eq!(actions(&parse(&whole)), [("allocate", address, 100), ("free", address, 100)]);
    let nowhere = path.join("below a file that is not there");
    assert_eq!(LoggingAdaptor::to_path(device(&world), nowhere).unwrap_err().kind(), io::ErrorKind::NotFound);
}

/// What a writer does with each of its calls.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    Error,
    Panic,
}

impl Write for Trouble {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        match self {
            Self::Error => Err(io::Error::other("the disk is full")),
            Self::Panic => panic!("the writer's own"),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write(&[]).map(drop)
    }
}

#[test]
fn a_writer_in_trouble_fails_no_allocation_and_is_counted() {
    let world = World::new();
    for trouble in [Trouble::Error, Trouble::Panic] {
        let upstream = Faulty::new(&world);
        let resource = LoggingAdaptor::new(upstream.clone(), trouble);
        assert_eq!(resource.write_failures(), 1, "the header");
        let block = resource.allocate(100, &world.stream).unwrap();
        assert_eq!(resource.write_failures(), 2);
        block.close().unwrap();
        assert_eq!(resource.write_failures(), 3);
        assert!(resource.flush().is_err());
        world.context.synchronize().unwrap();
        assert_eq!(upstream.used(), 0);
    }
}
