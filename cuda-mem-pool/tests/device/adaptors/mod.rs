//! The adaptors, alone and over each other.

mod aligned;
mod captures;
mod failure_callback;
mod faulty;
mod limiting;
mod logging;
mod model;
mod nested;
mod pinned_cache;
mod statistics;
mod threads;
mod tracking;
