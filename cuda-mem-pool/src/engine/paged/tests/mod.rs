//! The engine over a model of a driver, on traces and on random work.

mod failing;
mod model;
mod traces;
