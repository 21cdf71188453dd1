//! `cargo xtask replay`
mod caching;
mod calls;
mod candidate;
mod check;
mod costs;
mod machine;
mod model;
mod plan;
mod play;
mod progress;
mod torch;
