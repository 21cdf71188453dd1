//! A simulated CUDA driver, for programs and tests on machines without a GPU.
//!
//! It is not a stub. Streams are ordered queues that worker threads run, events and waits order them, memory has addresses
//! of its own and real bytes, captures become graphs, and each call returns the code that was measured on hardware. What a
//! real driver lets pass today and punishes tomorrow, like a copy into memory whose free nothing orders behind it, is found
//! on the first run and reported with both calls.
//!
//! A test builds a [`Sim`] and uses its [`table`](Sim::table) like that of any driver:
//!
//! ```
//! use std::ptr;
//!
//! use cuda_mem_sim::{CUresult, MisuseKind, Sim};
//!
//! let sim = Sim::builder().devices(2).memory(1 << 30).build();
//! let driver = sim.table();
//!
//! // SAFETY: the calls of the manual's first page: results go to live variables, and every handle is valid.
//! unsafe {
//!     assert_eq!(driver.cuInit()?(0), CUresult::CUDA_SUCCESS);
//!     let mut context = ptr::null_mut();
//!     driver.cuDevicePrimaryCtxRetain()?(&mut context, 0);
//!     driver.cuCtxSetCurrent()?(context);
//!
//!     // The next allocation fails, as if the device were full.
//!     sim.fail_call("cuMemAlloc", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
//!     let mut pointer = 0;
//!     assert_eq!(driver.cuMemAlloc()?(&mut pointer, 1024), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
//!     assert_eq!(driver.cuMemAlloc()?(&mut pointer, 1024), CUresult::CUDA_SUCCESS);
//!
//!     // Freed while work that uses it may still be under way.
//!     let mut stream = ptr::null_mut();
//!     driver.cuStreamCreate()?(&mut stream, 1);
//!     driver.cuMemsetD8Async()?(pointer, 0, 1024, stream);
//!     driver.cuMemFree()?(pointer);
//! }
//! assert_eq!(sim.misuse()[0].kind, MisuseKind::UseUnorderedWithFree);
//! assert!(sim.leaks().iter().any(|leak| leak.what == "stream"));
//! # Ok::<(), cuda_mem_sys::MissingFunction>(())
//! ```
//!
//! Programs that load a library get the same driver as `libcuda_mem_sim.so`, which the environment variable `CUDA_MEM_SIM`
//! configures; so does the one behind [`table`], for tests that want any driver at all. docs/simulator.md tells what is
//! modelled, what is not, and every setting.
//!
//! # How it is built
//!
//! `dispatch` holds the C functions: one a function, slot and default-stream mode, for a C function carries no state and
//! several simulators live in a process. A call passes its door (is there a simulator, is it forked or exiting, is a fault
//! due?) and becomes a `Call` for the function of that name in `api`, which checks arguments and leaves the rest to
//! `runtime` (what runs when) and `memory` (what lies where). Work goes to a stream as an `Op` with the ranges that it reads
//! and writes; `order` knows by vector clocks what comes after what, from the moment it is enqueued.

mod api;
mod call;
mod config;
#[doc(hidden)]
pub mod dispatch;
mod driver;
mod exit;
mod fault;
mod freeing;
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
pub use sim::{Sim, account, misuse, table};
pub use site::Site;

pub use cuda_mem_sys::CUresult;
