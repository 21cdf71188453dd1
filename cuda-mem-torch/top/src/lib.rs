//! Who uses which GPU: by process, as NVIDIA's management library knows it, and by stream, pool and tag for processes of cuda-mem, as
//! they say themselves.
//!
//! ```
//! use cuda_mem_top::{Error, table};
//!
//! match table() {
//!     Ok(text) => println!("{text}"),
//!     Err(Error::NoDriver(_) | Error::NoGpu) => println!("there is no GPU here"),
//!     Err(error) => println!("{error}"),
//! }
//! ```
//!
//! A process is asked only by its own user ([`publish`]).

#![forbid(unsafe_code)]

mod error;
mod figures;
mod screen;
mod socket;
mod table;
mod view;

use std::time::Duration;

pub use error::Error;
pub use figures::{DeviceFigures, Part, ProcessFigures};
pub use socket::{ask, processes, publish};

/// What there is now, as a table.
///
/// # Errors
///
/// [`Error::NoDriver`], [`Error::NoGpu`] where there is nothing to be shown.
pub fn table() -> Result<String, Error> {
    let lines = table::lines(&view::View::gather()?, true);
    Ok(lines.iter().flat_map(|line| [line.text.as_str(), "\n"]).collect())
}

/// Shows it on the terminal that this process has, gathered anew after each `interval`, until the user presses `q`.
///
/// # Errors
///
/// As [`table`], and [`Error::Terminal`].
///
/// ```no_run
/// cuda_mem_top::show(std::time::Duration::from_secs(1))?;
/// # Ok::<(), cuda_mem_top::Error>(())
/// ```
pub fn show(interval: Duration) -> Result<(), Error> {
    screen::show(interval)
}
