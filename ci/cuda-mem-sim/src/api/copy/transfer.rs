//! What all copies have in common: two ends, rows of bytes, and who waits for what.
//!
//! The rules are those of the driver's manual, ["API synchronization behavior"][sync]: a synchronous copy returns when it
//! is done, but between two places in device memory it does not wait; an asynchronous copy from pageable memory has read
//! its source when it returns, one to pageable memory has written it, and one from host to host is synchronous.
//!
//! # Safety
//!
//! Places come out of the table of memory for the whole extent of an end, and only rows within it are touched.
//!
//! [sync]: https://docs.nvidia.com/cuda/cuda-driver-api/api-sync-behavior.html

use std::sync::{Arc, OnceLock};

use cuda_mem_sys::{CUgraphNodeType, CUresult, CUstream};

use crate::api::pointer::lies_on_host;
use crate::call::Call;
use crate::driver::Driver;
use crate::memory::bytes::{self, Place};
use crate::memory::misuse::Act;
use crate::memory::{State, blocks::Kind};
use crate::runtime::op::{Op, Outcome};

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// How much pageable memory an asynchronous copy reads ahead of its turn. A larger one is waited for instead, which keeps
/// the same promise.
const STAGED: u64 = 64 << 20;

/// What the caller says an address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// An address that the driver must know.
    Device,
    /// The same, in a context that the caller names.
    Peer,
    /// Any address: what the driver does not know is pageable host memory.
    Any,
}

/// One end of a copy: rows of bytes that begin `pitch` apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) at: u64,
    pub(super) pitch: u64,
    pub(super) side: Side,
}

impl End {
    /// An end that is one row.
    pub(super) fn line(at: u64, side: Side) -> Self {
        Self { at, pitch: 0, side }
    }
}

/// A copy of `height` rows of `width` bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer {
    pub(super) to: End,
    pub(super) from: End,
    pub(super) width: u64,
    pub(super) height: u64,
}

/// What the memory at one end turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sort {
    Device {
        /// Whether synchronous copies there are to be waited for in any case.
        waits: bool,
    },
    Pinned,
    Pageable,
}

/// When the caller wants control back.
#[derive(Debug, Clone, Copy)]
pub(super) enum Mode {
    Synchronous,
    Asynchronous(CUstream),
}

impl Transfer {
    /// A copy of `len` bytes in one row.
    pub(super) fn line(to: End, from: End, len: usize) -> Self {
        Self { to, from, width: len as u64, height: 1 }
    }

    /// From the first byte of an end to its last.
    fn extent(&self, end: End) -> Outcome<u64> {
        let rows = end.pitch.checked_mul(self.height.saturating_sub(1));
        rows.and_then(|rows| rows.checked_add(self.width)).ok_or(INVALID_VALUE)
    }

    /// Checks both ends, puts the copy in its order and waits as far as the manual promises.
    pub(super) fn submit(self, call: &Call<'_>, mode: Mode) -> Outcome<()> {
        let stream = match mode {
            Mode::Synchronous => call.default_stream()?,
            Mode::Asynchronous(handle) => call.stream(handle)?,
        };
        if self.width == 0 || self.height == 0 {
            return Ok(());
        }
        let (to_len, from_len) = (self.extent(self.to)?, self.extent(self.from)?);
        let (to, from) = {
            let by = Act::by_host(call);
            let current = call.current().map_or(stream.context.device, |context| context.device);
            let mut state = call.memory().lock();
            let sorts = sort(&state, self.to, to_len, true, current)
                .and_then(|to| Ok((to, sort(&state, self.from, from_len, false, current)?)));
            sorts.inspect_err(|_| {
                state.note_refused(&(self.to.at..self.to.at.saturating_add(to_len)), &by);
                state.note_refused(&(self.from.at..self.from.at.saturating_add(from_len)), &by);
            })?
        };
        let on_host = |sort| !matches!(sort, Sort::Device { .. });
        let fault = Arc::default();
        match mode {
            Mode::Synchronous => {
                let op = self.op(call.function, to, from, &fault)?;
                if [to, from] == [Sort::Device { waits: false }; 2] {
                    return call.driver.runtime.enqueue_synchronous(call, &stream, op);
                }
                call.run_sync(op)?;
                told(&fault)
            }
            Mode::Asynchronous(_) if call.is_capturing(&stream) => {
                call.enqueue(&stream, self.op(call.function, to, from, &fault)?)
            }
            Mode::Asynchronous(_) => {
                let size = self.width.saturating_mul(self.height);
                if from == Sort::Pageable && !on_host(to) && size <= STAGED {
                    return call.enqueue(&stream, self.staged(call.function)?);
                }
                call.enqueue(&stream, self.op(call.function, to, from, &fault)?)?;
                if to == Sort::Pageable || from == Sort::Pageable || (on_host(to) && on_host(from)) {
                    call.wait(&stream)?;
                }
                told(&fault)
            }
        }
    }

    /// The operation that moves the bytes when its turn comes.
    fn op(self, name: &'static str, to: Sort, from: Sort, fault: &Fault) -> Outcome<Op> {
        let fault = Arc::clone(fault);
        let run = move |driver: &Driver| {
            let (to_place, from_place) = {
                let state = driver.memory.lock();
                (self.place(&state, self.to, to)?, self.place(&state, self.from, from)?)
            };
            let moved = self.rows(to_place, from_place).and_then(|()| self.damage(driver, to_place));
            if to == Sort::Pageable || from == Sort::Pageable {
                // On real hardware the host itself would fault there; an error of the call is as near as it gets.
                return moved.or_else(|_| {
                    let _ = fault.set(INVALID_VALUE);
                    Ok(())
                });
            }
            moved
        };
        let op = Op::new(name, CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY, run);
        Ok(op.reading(self.from.at, self.extent(self.from)?).writing(self.to.at, self.extent(self.to)?))
    }

    /// As [`op`](Self::op), for a source that is read now.
    fn staged(self, name: &'static str) -> Outcome<Op> {
        let packed = End { pitch: self.width, ..self.from };
        let mut buffer = vec![0_u8; (self.width * self.height) as usize];
        let into = Self { to: packed, ..self };
        into.rows(Place::Own(buffer.as_mut_ptr()), Place::Program(self.from.at as usize))
            .map_err(|_| INVALID_VALUE)?;
        let out_of = Self { from: packed, ..self };
        let run = move |driver: &Driver| {
            let to = out_of.place(&driver.memory.lock(), out_of.to, Sort::Device { waits: false })?;
            out_of.rows(to, Place::Own(buffer.as_ptr().cast_mut()))?;
            out_of.damage(driver, to)
        };
        let op = Op::new(name, CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY, run);
        Ok(op.writing(self.to.at, self.extent(self.to)?))
    }

    /// The place of an end, now that its turn has come: memory that was freed meanwhile is error 700.
    fn place(&self, state: &State, end: End, sort: Sort) -> Outcome<Place> {
        match sort {
            Sort::Pageable => Ok(Place::Program(end.at as usize)),
            Sort::Device { .. } | Sort::Pinned => {
                let len = self.extent(end)?;
                state.known_place(end.at, len).ok_or(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)
            }
        }
    }

    /// Flips a bit of what arrived, if a fault says so.
    fn damage(&self, driver: &Driver, to: Place) -> Outcome<()> {
        let Some(offset) = driver.faults.damage(self.width) else { return Ok(()) };
        let mut byte = 0_u8;
        let (arrived, buffer) = (to.offset(offset as usize), Place::Own(&raw mut byte));
        // SAFETY: one byte of the place's first row, and a buffer of one byte.
        unsafe { bytes::copy(buffer, arrived, 1) }?;
        byte ^= 1;
        // SAFETY: as above.
        unsafe { bytes::copy(arrived, Place::Own(&raw mut byte), 1) }
    }

    fn rows(&self, to: Place, from: Place) -> Outcome<()> {
        let packed = |end: End| self.height == 1 || end.pitch == self.width;
        let (rows, width) = if packed(self.to) && packed(self.from) {
            (1, self.width * self.height)
        } else {
            (self.height, self.width)
        };
        for row in 0..rows {
            let (to, from) =
                (to.offset((row * self.to.pitch) as usize), from.offset((row * self.from.pitch) as usize));
            // SAFETY: the places were given for the whole extent of either end, of which this is one row.
            unsafe { bytes::copy(to, from, width as usize) }?;
        }
        Ok(())
    }
}

/// Where an operation leaves an error that only its own call tells.
type Fault = Arc<OnceLock<CUresult>>;

fn told(fault: &Fault) -> Outcome<()> {
    fault.get().map_or(Ok(()), |&error| Err(error))
}

/// What the memory at an end is, if a copy may use it at all: error 1 otherwise.
fn sort(state: &State, end: End, len: u64, write: bool, current: usize) -> Outcome<Sort> {
    if end.at == 0 || end.at.checked_add(len).is_none() {
        return Err(INVALID_VALUE);
    }
    let Some(block) = state.known(end.at) else {
        // An address that could only ever be the driver's is not pageable memory.
        let pageable = end.side == Side::Any && !state.space.owns(end.at);
        return if pageable { Ok(Sort::Pageable) } else { Err(INVALID_VALUE) };
    };
    let is_of_host_pool = matches!(block.kind, Kind::Pooled(_)) && lies_on_host(state, block);
    let may_use = state.copy_may_use(end.at, len, write, Some(current).filter(|_| end.side != Side::Peer));
    // A pool of the host has nothing that a call takes for a device's memory.
    if !may_use || (is_of_host_pool && end.side != Side::Any) {
        return Err(INVALID_VALUE);
    }
    Ok(if block.is_host() { Sort::Pinned } else { Sort::Device { waits: block.sync_memops } })
}
