//! The engine over a model of a driver, on traces and on random work.

mod churn;
mod failing;
mod model;
mod traces;
