//! Private pools by name: who uses them, which allocations go to them, and what becomes of their memory.

mod private_pool;
mod private_pools;
mod routes;
mod taking;

pub use private_pool::PrivatePool;
pub use private_pools::PrivatePools;
pub use routes::{Filter, Routes};
pub use taking::TakenSegment;
