//! A simulated CUDA driver, for programs and tests on machines without a GPU.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod api;
mod call;
mod config;
#[doc(hidden)]
pub mod dispatch;
mod driver;
mod exit;
mod fault;
mod log;
mod memory;
mod order;
mod report;
mod runtime;
mod sim;
mod site;

pub use config::{Builder, ConfigError};
pub use fault::Struck;
pub use log::{Log, Record};
pub use memory::misuse::{Leak, Misuse, MisuseKind};
pub use runtime::kernels::TEST_KERNELS;
pub use sim::{Sim, table};
pub use site::Site;
