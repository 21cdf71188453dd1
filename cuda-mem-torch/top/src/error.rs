//! What can go wrong.

use std::io;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::nvml;

/// Why it cannot be shown who uses which GPU.
///
/// ```
/// use cuda_mem_top::{Error, ProcessFigures};
///
/// let error = ProcessFigures::parse("").unwrap_err();
/// assert_eq!(error.to_string(), "line 1 of a process's figures is wrong: it is not what begins figures of version 1");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no NVIDIA driver here, or it cannot be asked; and no process of ours.
    #[error("no GPU can be seen: {0}. Is the driver installed, and passed into this container?")]
    NoDriver(#[source] nvml::Error),
    /// The driver knows no GPU, and there is no process of ours.
    #[error("the driver is here, and knows no GPU")]
    NoGpu,
    /// The terminal, or what the table is written to, failed.
    #[error("the terminal failed: {0}")]
    Terminal(#[from] io::Error),
    /// A process could not be asked, or this one cannot be.
    #[error(transparent)]
    Ask(#[from] cuda_mem_ipc::Error),
    /// What a process said is not what processes of ours say.
    #[error("line {line} of a process's figures is wrong: {what}")]
    Figures {
        /// The line, from 1.
        line: usize,
        /// What is wrong or missing.
        what: &'static str,
    },
}
