//! The adaptors, alone and over each other.

mod captures;
mod faulty;
mod model;
mod nested;
mod pinned_cache;
mod threads;
mod tracking;
