//! The adaptors, alone and over each other.

mod aligned;
mod captures;
mod faulty;
mod limiting;
mod model;
mod nested;
mod pinned_cache;
mod threads;
mod tracking;
