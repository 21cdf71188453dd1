#[cfg(not(loom))]
mod churn;
#[cfg(not(loom))]
mod growth;
#[cfg(not(loom))]
mod heap;
#[cfg(loom)]
mod models;
#[cfg(not(loom))]
mod statistics;
