//! The driver's types, as bindgen reads them from the header.

#![allow(
    missing_docs,
    missing_debug_implementations,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "generated: names are the header's, and `Default` zeroes C structs, for which zero is a valid value"
)]

include!("generated/types.rs");
