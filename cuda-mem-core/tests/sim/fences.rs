//! Fences that somebody was told of and that the driver refuses.

use std::thread;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Driver, Error, FenceLine, Stream};
use cuda_mem_sim::Sim;

/// Another thread records on the line at once: its fence would let go whoever waits for the refused one.
#[test]
fn the_number_of_a_fence_that_was_refused_is_no_other_s() {
    let sim = Sim::builder().build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let (line, stream) = (FenceLine::new(&context).unwrap(), Stream::new(&context).unwrap());
    sim.fail_call("cuStreamWriteValue64", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let mut next = None;
    let refused = line.record_announced(&stream, |generation| {
        let (line, stream) = (line.clone(), stream.clone());
        next = Some((generation, thread::spawn(move || line.record(&stream))));
        true
    });
    assert!(matches!(refused, Err(Error::Driver(_))), "{refused:?}");
    let (generation, next) = next.unwrap();
    let next = next.join().unwrap();
    assert!(matches!(next, Err(Error::Poisoned)), "{next:?}");
    assert!(matches!(line.fence(generation).unwrap().is_complete(), Err(Error::Poisoned)));
}

#[test]
fn a_fence_that_was_refused_and_nobody_told_of_leaves_its_line() {
    let sim = Sim::builder().build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let (line, stream) = (FenceLine::new(&context).unwrap(), Stream::new(&context).unwrap());
    sim.fail_call("cuStreamWriteValue64", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    line.record_announced(&stream, |_| false).unwrap_err();
    let fence = line.record(&stream).unwrap();
    stream.synchronize().unwrap();
    assert!(fence.is_complete().unwrap());
}
