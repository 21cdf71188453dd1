//! What the safe layer of `cuda-mem-core` adds to a call of the driver: `cargo bench --package cuda-mem-overhead`.
