//! The engine over a model of a driver, on traces and on random work.

mod device;
mod failing;
mod machine;
mod model;
mod traces;
