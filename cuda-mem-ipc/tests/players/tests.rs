use cuda_mem_pool::cuda_mem_core::Driver;
use proptest::prelude::*;

use super::*;

fn stage() -> Stage {
    let context = Driver::over(cuda_mem_sim::table()).unwrap().device(0).unwrap().primary_context().unwrap();
    Stage::new(&context).unwrap()
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..400)
}

#[test]
fn whatever_is_written_into_the_memory_of_both_is_refused_or_checked() {
    let stage = stage();
    proptest!(|(input in bytes())| {
        let _ = stage.play(&input);
    });
}

#[test]
fn what_nobody_else_writes_comes_once_and_in_order() {
    let stage = stage();
    proptest!(|(mut input in bytes(), is_to_another in any::<bool>())| {
        input.insert(0, NOBODY_WRITES | if is_to_another { TO_ANOTHER } else { 0 });
        let _ = stage.play(&input);
    });
}

/// What fuzzing found worth keeping, again: the target `ring` of `ci/fuzz`.
#[test]
fn what_is_kept_is_played_again() {
    let kept = include_str!("../../../ci/fuzz/seeds/ring.txt");
    let byte = |digits: &[u8; 2]| u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap();
    let stage = stage();
    let mut came = 0;
    for line in kept.lines().filter(|line| !line.starts_with('#')) {
        let (pairs, rest) = line.as_bytes().as_chunks::<2>();
        assert!(rest.is_empty(), "half a byte: {line}");
        came += stage.play(&pairs.iter().map(byte).collect::<Vec<_>>());
    }
    assert!(came > 600, "the corpus is lost");
}
