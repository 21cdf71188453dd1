//! The adaptors, alone and over each other.

mod aligned;
mod captures;
mod failure_callback;
mod faulty;
mod limiting;
mod logging;
mod model;
mod nested;
mod statistics;
mod threads;
mod tracking;
