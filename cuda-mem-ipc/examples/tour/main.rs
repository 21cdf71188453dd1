//! A first job on a real file: its pages pinned where they are, copied to the device and back, verified byte by byte, with the
//! rates. Then memory in two processes: a buffer handed to another one and back, and two ranks that read each other's symmetric buffer.
//! Then the memory of a training run: its allocations replayed, what the caching allocator reserves for them beside what
//! PyTorch did, and a page that shows it.
//!
//! ```text
//! cargo run --release --example tour -- [FILE]
//! ```
//!
//! Without FILE it writes one of 256 MiB first, and draws the page in the end; with FILE it names the command that does. It takes a GPU if there is one and the simulated driver if not, and says which.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program")]

mod input;
mod job;
mod memory;
mod page;
mod pool;
mod processes;
mod report;

use std::process::ExitCode;

use cuda_mem_core::{Driver, Error};

/// What ends the program early, in words for its user.
pub(crate) type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tour: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    if processes::play()? {
        return Ok(());
    }
    let mut arguments = std::env::args_os().skip(1);
    let path = arguments.next();
    if arguments.next().is_some() {
        return Err("usage: tour [FILE]".into());
    }
    let (driver, simulated) = driver()?;
    match &simulated {
        None => println!("driver    CUDA {}.{}", driver.version() / 1000, driver.version() % 1000 / 10),
        Some(reason) => println!("driver    simulated, rates mean nothing ({reason})"),
    }
    let device = driver.device(0)?;
    println!("device    {}, {} of memory", device.name()?, report::bytes(device.total_memory()?));
    let whole = path.is_none();
    let input = match path {
        Some(path) => input::Input::open(path.as_ref())?,
        None => input::Input::written()?,
    };
    println!("file      {}, {}", input.name(), report::bytes(input.len()));
    let outcome = job::run(device, &input)?;
    report::print(&outcome);
    println!();
    processes::show(&device.primary_context()?)?;
    println!();
    let snapshot = if simulated.is_some() { memory::replay_without_bytes() } else { memory::replay(device) };
    page::show(&snapshot?, whole);
    Ok(())
}

/// The system's driver, or the simulated one and the reason for it.
pub(crate) fn driver() -> Result<(Driver, Option<Error>)> {
    match Driver::system() {
        Ok(driver) => Ok((driver, None)),
        // No library, or no device behind it: the tour shows the same steps without a GPU.
        Err(reason @ (Error::Load(_) | Error::Driver(_))) => {
            Ok((Driver::over(cuda_mem_sim::table())?, Some(reason)))
        }
        Err(error) => Err(error.into()),
    }
}
