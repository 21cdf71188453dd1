//! The test kernels, as functions of the host that do the same.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use cuda_mem_sys::{CUgraphNodeType, CUresult};

use super::op::{Op, Outcome};
use crate::driver::Driver;
use crate::memory::bytes::{self, Place};
use crate::memory::resolve::Who;

/// The kernels that the simulated driver can run, as PTX for a real one.
///
/// | entry | arguments | what it does |
/// |---|---|---|
/// | `fill_u32` | pointer, count (`u64`), value (`u32`) | writes `value` to `count` words |
/// | `copy_u8` | to, from, count (`u64`) | copies `count` bytes |
/// | `add_one_u32` | pointer, count (`u64`) | adds one to `count` words |
/// | `spin_ns` | duration (`u64`) | occupies its stream for that many nanoseconds |
/// | `spin_until_u32` | pointer, value (`u32`) | occupies its stream until the word is `value` |
/// | `write_checked` | pointer | writes `0x600D_F00D` to one word |
///
/// The text ends with a zero byte, as `cuModuleLoadData` wants it. Memory that a kernel may not reach loses the context,
/// with `CUDA_ERROR_ILLEGAL_ADDRESS`.
pub const TEST_KERNELS: &str = concat!(include_str!("../../kernels/test_kernels.ptx"), "\0");

/// A kernel by its name: the sizes of its arguments, and what it does with them on a device.
pub(crate) struct Kernel {
    pub(crate) name: &'static str,
    pub(crate) arguments: &'static [usize],
    pub(crate) op: fn(usize, &[u64]) -> Op,
}

/// All that there are.
pub(crate) static KERNELS: &[Kernel] = &[
    Kernel { name: "fill_u32", arguments: &[8, 8, 4], op: fill_u32 },
    Kernel { name: "copy_u8", arguments: &[8, 8, 8], op: copy_u8 },
    Kernel { name: "add_one_u32", arguments: &[8, 8], op: add_one_u32 },
    Kernel { name: "spin_ns", arguments: &[8], op: spin_ns },
    Kernel { name: "spin_until_u32", arguments: &[8, 4], op: spin_until_u32 },
    Kernel { name: "write_checked", arguments: &[8], op: write_checked },
];

const KERNEL: CUgraphNodeType = CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL;

/// What `write_checked` writes.
const WRITTEN: u32 = 0x600D_F00D;

/// How many words `add_one_u32` takes at a time.
const PIECE: u64 = 64 << 10;

fn argument(arguments: &[u64], index: usize) -> u64 {
    arguments.get(index).copied().unwrap_or(0)
}

fn fill_u32(device: usize, arguments: &[u64]) -> Op {
    let (at, len) = (argument(arguments, 0), argument(arguments, 1).saturating_mul(4));
    let value = (argument(arguments, 2) as u32).to_ne_bytes();
    let run = move |driver: &Driver| {
        if len == 0 {
            return Ok(());
        }
        check_alignment(at)?;
        let to = driver.memory.lock().place(at, len, Who::Device(device), true)?;
        // SAFETY: the place was given for `len` bytes.
        unsafe { bytes::fill(to, &value, len as usize) }
    };
    Op::new("fill_u32", KERNEL, run).writing(at, len)
}

fn copy_u8(device: usize, arguments: &[u64]) -> Op {
    let (to, from, len) = (argument(arguments, 0), argument(arguments, 1), argument(arguments, 2));
    let run = move |driver: &Driver| {
        if len == 0 {
            return Ok(());
        }
        let state = driver.memory.lock();
        let to = state.place(to, len, Who::Device(device), true)?;
        let from = state.place(from, len, Who::Device(device), false)?;
        drop(state);
        // SAFETY: both places were given for `len` bytes.
        unsafe { bytes::copy(to, from, len as usize) }
    };
    Op::new("copy_u8", KERNEL, run).reading(from, len).writing(to, len)
}

fn add_one_u32(device: usize, arguments: &[u64]) -> Op {
    let (at, count) = (argument(arguments, 0), argument(arguments, 1));
    let run = move |driver: &Driver| {
        check_alignment(at)?;
        let mut words = vec![0_u32; PIECE.min(count) as usize];
        let mut done = 0;
        while done < count {
            let piece = PIECE.min(count - done);
            let len = piece * 4;
            let here = driver.memory.lock().place(at + done * 4, len, Who::Device(device), true)?;
            let buffer = Place::Own(words.as_mut_ptr().cast());
            // SAFETY: the place was given for `len` bytes, and the buffer holds as many.
            unsafe { bytes::copy(buffer, here, len as usize) }?;
            words.iter_mut().take(piece as usize).for_each(|word| *word = word.wrapping_add(1));
            let buffer = Place::Own(words.as_mut_ptr().cast());
            // SAFETY: as above.
            unsafe { bytes::copy(here, buffer, len as usize) }?;
            done += piece;
        }
        Ok(())
    };
    Op::new("add_one_u32", KERNEL, run).writing(at, count.saturating_mul(4))
}

fn spin_ns(_: usize, arguments: &[u64]) -> Op {
    let wanted = Duration::from_nanos(argument(arguments, 0));
    Op::polling("spin_ns", KERNEL, move |_, elapsed| Ok(elapsed >= wanted))
}

fn spin_until_u32(device: usize, arguments: &[u64]) -> Op {
    let (at, wanted) = (argument(arguments, 0), argument(arguments, 1));
    let poll = move |driver: &Driver, _| {
        check_alignment(at)?;
        let word = read_word(driver, at, 4, Who::Device(device))?;
        Ok(word.is_none_or(|word| word == wanted))
    };
    Op::polling("spin_until_u32", KERNEL, poll).reading(at, 4)
}

fn write_checked(device: usize, arguments: &[u64]) -> Op {
    let at = argument(arguments, 0);
    let run = move |driver: &Driver| {
        check_alignment(at)?;
        write_word(driver, at, WRITTEN.into(), 4, Who::Device(device))
    };
    Op::new("write_checked", KERNEL, run).writing(at, 4)
}

/// Words that kernels read and write must lie at multiples of four.
fn check_alignment(at: u64) -> Outcome<()> {
    if at.is_multiple_of(4) { Ok(()) } else { Err(CUresult::CUDA_ERROR_MISALIGNED_ADDRESS) }
}

/// Reads a word of 4 or 8 bytes in one piece; none where memory has no bytes.
pub(crate) fn read_word(driver: &Driver, at: u64, size: u64, who: Who) -> Outcome<Option<u64>> {
    let place = driver.memory.lock().place(at, size, who, false)?;
    match place {
        Place::Nowhere => Ok(None),
        Place::Own(from) if is_whole(from, size) => {
            if size == 4 {
                // SAFETY: the place holds four bytes, aligned to four, for as long as the simulator lives. Whoever else
                // changes them, program, device or another process, is beyond this language's memory model, as with any
                // memory shared between processes; an atomic access is what it has for that.
                let word = unsafe { AtomicU32::from_ptr(from.cast()) };
                return Ok(Some(word.load(Ordering::Acquire).into()));
            }
            // SAFETY: as above, with eight bytes aligned to eight.
            let word = unsafe { AtomicU64::from_ptr(from.cast()) };
            Ok(Some(word.load(Ordering::Acquire)))
        }
        place => {
            let mut word = [0_u8; 8];
            let buffer = Place::Own(word.as_mut_ptr());
            // SAFETY: the place was given for `size` bytes, and the buffer holds eight.
            unsafe { bytes::copy(buffer, place, size as usize) }?;
            Ok(Some(u64::from_le_bytes(word)))
        }
    }
}

/// Writes a word of 4 or 8 bytes in one piece.
pub(crate) fn write_word(driver: &Driver, at: u64, value: u64, size: u64, who: Who) -> Outcome<()> {
    let place = driver.memory.lock().place(at, size, who, true)?;
    match place {
        Place::Nowhere => Ok(()),
        Place::Own(to) if is_whole(to, size) => {
            if size == 4 {
                // SAFETY: as in `read_word`.
                let word = unsafe { AtomicU32::from_ptr(to.cast()) };
                word.store(value as u32, Ordering::Release);
                return Ok(());
            }
            // SAFETY: as in `read_word`.
            let word = unsafe { AtomicU64::from_ptr(to.cast()) };
            word.store(value, Ordering::Release);
            Ok(())
        }
        place => {
            let word = value.to_le_bytes();
            let buffer = Place::Own(word.as_ptr().cast_mut());
            // SAFETY: the place was given for `size` bytes; the buffer holds eight and is only read.
            unsafe { bytes::copy(place, buffer, size as usize) }
        }
    }
}

/// Whether a word at an address can be reached in one piece.
fn is_whole(at: *mut u8, size: u64) -> bool {
    (at.addr() as u64).is_multiple_of(size)
}

/// Whether the kernel of a name exists.
pub(crate) fn kernel(name: &str) -> Outcome<&'static Kernel> {
    KERNELS.iter().find(|kernel| kernel.name == name).ok_or(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_every_kernel_with_its_arguments() {
        for kernel in KERNELS {
            let head = TEST_KERNELS.split(&format!(".entry {}(", kernel.name)).nth(1).unwrap();
            let parameters = head.split(')').next().unwrap();
            let sizes: Vec<usize> = parameters
                .split(',')
                .map(|parameter| if parameter.contains(".u64") { 8 } else { 4 })
                .collect();
            assert_eq!(sizes, kernel.arguments, "{}", kernel.name);
        }
    }
}
