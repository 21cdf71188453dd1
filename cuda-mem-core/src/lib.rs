//! Safe pinned and device memory, streams, events and copies over the CUDA driver, loaded at run time.
#![deny(unsafe_code)]
