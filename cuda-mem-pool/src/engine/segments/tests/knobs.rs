//! Rounding, and what the options take.

use super::support::{KIB, MIB};
use crate::engine::segments::Options;

fn refused(options: Options) -> String {
    options.check().unwrap_err().to_string()
}

#[test]
fn blocks_are_multiples_of_512_bytes() {
    let options = Options::default();
    let sizes = [(0, 512), (1, 512), (511, 512), (512, 512), (513, 1024), (MIB + 1, MIB + 512)];
    for (bytes, block) in sizes {
        assert_eq!(options.block_size(bytes), Some(block));
    }
    assert_eq!(options.block_size((1 << 60) - 1), Some(1 << 60));
    for requested in [1 << 60, u64::MAX] {
        assert_eq!(options.block_size(requested), None);
    }
}

#[test]
fn segments_are_pytorchs() {
    let options = Options::default();
    let sizes = [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (800 * MIB, 800 * MIB),
    ];
    for (block, segment) in sizes {
        assert_eq!(options.segment_size(block), segment, "{block}");
    }
    let other = Options::default().with_large_segment_size(64 * MIB);
    assert_eq!(other.segment_size(2 * MIB), 64 * MIB);
}

#[test]
fn divisions_round_between_powers_of_two() {
    let mut divisions = [0; 16];
    (divisions[0], divisions[6], divisions[15]) = (4, 8, 2);
    let options = Options::default().with_roundup_power2_divisions(divisions);
    let sizes = [
        (600, 1024),                      // too small for four steps
        (2049, 2560),                     // 2048, 2560, 3072, 3584, 4096
        (3600, 4096),                     //
        (4096, 4096),                     // a power of two stays
        (1100 * KIB, 1280 * KIB),         // the first number is for all below 2 MiB
        (2 * MIB + 1, 2 * MIB + 512),     // the second is 0
        (65 * MIB, 72 * MIB),             // the seventh: 64 to 128 MiB
        (127 * MIB, 128 * MIB),           //
        (128 * MIB + 1, 128 * MIB + 512), //
        (40 << 30, 48 << 30),             // the last is for 32 GiB and all beyond
        (70 << 30, 96 << 30),             //
    ];
    for (bytes, block) in sizes {
        assert_eq!(options.block_size(bytes), Some(block), "{bytes}");
    }
    let one = Options::default().with_roundup_power2_divisions([1; 16]);
    assert_eq!(one.block_size(5 * MIB), Some(5 * MIB), "1 is as 0");
    // A number of steps that no size has room for rounds as if there were none.
    let many = Options::default().with_roundup_power2_divisions([1 << 63; 16]);
    assert_eq!(many.block_size(70 << 30), Some(70 << 30));
}

#[test]
fn a_bad_option_is_named_with_what_is_accepted() {
    for bytes in [0, 10 * MIB, 11 * MIB + 1, 1 << 60] {
        let message = refused(Options::default().with_large_segment_size(bytes));
        assert!(message.contains(&bytes.to_string()) && message.contains("more than 10"), "{message}");
    }
    let message = refused(Options::default().with_max_split_size(Some(20 * MIB - 1)));
    assert_eq!(
        message,
        "max_split_size is 20971519 bytes; it must be None or at least the large segment's 20971520"
    );
    let larger = Options::default().with_large_segment_size(32 * MIB);
    let message = refused(larger.with_max_non_split_rounding(Some(20 * MIB)));
    assert!(
        message.contains("max_non_split_rounding is 20971520") && message.contains("33554432"),
        "{message}"
    );
    assert_eq!(larger.non_split_rounding(), 32 * MIB, "follows the large segment");
    let mut divisions = [0; 16];
    divisions[3] = 6;
    let message = refused(Options::default().with_roundup_power2_divisions(divisions));
    assert_eq!(message, "roundup_power2_divisions[3] is 6; it must be 0 or a power of two");
    for threshold in [0.0, 1.0, -0.5, f64::NAN, f64::INFINITY] {
        let message = refused(Options::default().with_garbage_collection_threshold(Some(threshold)));
        assert!(
            message.contains(&threshold.to_string()) && message.contains("above 0 and below 1"),
            "{message}"
        );
    }
}

#[test]
fn the_default_is_accepted() {
    assert_eq!(Options::default().check(), Ok(()));
}
