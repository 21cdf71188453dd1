//! The engine over a model of a driver, on traces and on random work.

mod model;
mod traces;
