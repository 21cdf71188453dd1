#[cfg(loom)]
mod models;
#[cfg(not(loom))]
mod sequential;
#[cfg(not(loom))]
mod threads;
