//! The engine over a model of a driver, on traces and on random work.

mod adopting;
mod churn;
mod device;
#[path = "../../../../benches/participant/device/engines.rs"]
mod engines;
mod extents;
mod failing;
mod homing;
mod machine;
mod model;
mod random;
mod sheltered;
mod threads;
mod traces;
