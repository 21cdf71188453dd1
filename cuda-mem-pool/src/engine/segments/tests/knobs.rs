//! Rounding, and what the options take.

use super::support::{KIB, MIB};
use crate::engine::segments::{Options, OptionsError, SegmentError};

fn refused(result: Result<Options, OptionsError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn blocks_are_multiples_of_512_bytes() {
    let options = Options::default();
    let sizes = [(0, 512), (1, 512), (511, 512), (512, 512), (513, 1024), (MIB + 1, MIB + 512)];
    for (bytes, block) in sizes {
        assert_eq!(options.block_size(bytes), Ok(block));
    }
    assert_eq!(options.block_size((1 << 60) - 1), Ok(1 << 60));
    for requested in [1 << 60, u64::MAX] {
        assert_eq!(
            options.block_size(requested),
            Err(SegmentError::TooLarge { requested, most: (1 << 60) - 1 })
        );
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
    let other = Options::builder().large_segment_size(64 * MIB).build().unwrap();
    assert_eq!(other.segment_size(2 * MIB), 64 * MIB);
}

#[test]
fn divisions_round_between_powers_of_two() {
    let mut divisions = [0; 16];
    (divisions[0], divisions[6], divisions[15]) = (4, 8, 2);
    let options = Options::builder().roundup_power2_divisions(divisions).build().unwrap();
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
        assert_eq!(options.block_size(bytes), Ok(block), "{bytes}");
    }
    let one = Options::builder().roundup_power2_divisions([1; 16]).build().unwrap();
    assert_eq!(one.block_size(5 * MIB), Ok(5 * MIB), "1 is as 0");
    // A number of steps that no size has room for rounds as if there were none.
    let many = Options::builder().roundup_power2_divisions([1 << 63; 16]).build().unwrap();
    assert_eq!(many.block_size(70 << 30), Ok(70 << 30));
}

#[test]
fn a_bad_option_is_named_with_what_is_accepted() {
    for bytes in [0, 10 * MIB, 11 * MIB + 1, 1 << 60] {
        let message = refused(Options::builder().large_segment_size(bytes).build());
        assert!(message.contains(&bytes.to_string()) && message.contains("more than 10"), "{message}");
    }
    let message = refused(Options::builder().max_split_size(Some(20 * MIB - 1)).build());
    assert_eq!(
        message,
        "max_split_size is 20971519 bytes; it must be None or at least the large segment's 20971520"
    );
    let larger = Options::builder().large_segment_size(32 * MIB);
    let message = refused(larger.clone().max_non_split_rounding(20 * MIB).build());
    assert!(
        message.contains("max_non_split_rounding is 20971520") && message.contains("33554432"),
        "{message}"
    );
    assert_eq!(larger.build().unwrap().max_non_split_rounding(), 32 * MIB, "follows the large segment");
    let mut divisions = [0; 16];
    divisions[3] = 6;
    let message = refused(Options::builder().roundup_power2_divisions(divisions).build());
    assert_eq!(message, "roundup_power2_divisions[3] is 6; it must be 0 or a power of two");
    for threshold in [0.0, 1.0, -0.5, f64::NAN, f64::INFINITY] {
        let message = refused(Options::builder().garbage_collection_threshold(Some(threshold)).build());
        assert!(
            message.contains(&threshold.to_string()) && message.contains("above 0 and below 1"),
            "{message}"
        );
    }
}

#[test]
fn what_is_built_without_changes_is_the_default() {
    assert_eq!(Options::builder().build(), Ok(Options::default()));
}
