//! Several threads at once, each with a stream and memory of its own: every byte must be where it was put.

use std::ffi::c_void;
use std::ptr;
use std::thread;

use cuda_mem_sys::{CUcontext, CUstream};

use crate::gpu::{Gpu, OK, cu};

/// A generator of numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Device memory filled with one byte.
struct Held {
    at: u64,
    len: usize,
    byte: u8,
    from_pool: bool,
}

fn work(gpu: &Gpu, context: CUcontext, seed: u64) {
    assert_eq!(cu!(gpu, cuCtxSetCurrent(context)), OK);
    let (mut numbers, stream) = (Numbers(seed), gpu.stream());
    let mut held: Vec<Held> = Vec::new();
    for _ in 0..300 {
        if held.len() < 8 || numbers.below(2) == 0 {
            held.push(take(gpu, &mut numbers, stream));
        } else {
            let one = held.swap_remove(numbers.below(held.len()));
            check_and_free(gpu, one, stream);
        }
    }
    held.into_iter().for_each(|one| check_and_free(gpu, one, stream));
    gpu.synchronize(stream);
    gpu.destroy_stream(stream);
}

fn take(gpu: &Gpu, numbers: &mut Numbers, stream: CUstream) -> Held {
    let (len, from_pool) = (1 + numbers.below(200_000), numbers.below(2) == 0);
    let at = if from_pool {
        let mut at = 0;
        assert_eq!(cu!(gpu, cuMemAllocAsync(&mut at, len, stream)), OK);
        at
    } else {
        gpu.alloc(len)
    };
    let byte = numbers.below(256) as u8;
    assert_eq!(cu!(gpu, cuMemsetD8Async(at, byte, len, stream)), OK);
    Held { at, len, byte, from_pool }
}

fn check_and_free(gpu: &Gpu, one: Held, stream: CUstream) {
    let mut bytes = vec![0_u8; one.len];
    let to = bytes.as_mut_ptr().cast::<c_void>();
    assert_eq!(cu!(gpu, cuMemcpyDtoHAsync(to, one.at, one.len, stream)), OK);
    assert!(bytes.iter().all(|&byte| byte == one.byte));
    let freed = if one.from_pool { cu!(gpu, cuMemFreeAsync(one.at, stream)) } else { gpu.free(one.at) };
    assert_eq!(freed, OK);
}

#[test]
fn threads_do_not_disturb_each_other() {
    let gpu = Gpu::new();
    let mut context: CUcontext = ptr::null_mut();
    assert_eq!(cu!(gpu, cuCtxGetCurrent(&mut context)), OK);
    let context = context.expose_provenance();
    thread::scope(|scope| {
        for seed in 0..4 {
            let gpu = &gpu;
            scope.spawn(move || work(gpu, ptr::with_exposed_provenance_mut(context), seed));
        }
    });
    gpu.assert_quiet();
}
