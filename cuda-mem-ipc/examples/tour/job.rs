//! Pin, copy to the device and back, compare; window by window, so that neither memory has to hold the whole file.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use cuda_mem_core::copy::Stager;
use cuda_mem_core::host::{FileMapping, HostMemory, PinnedFlags, RegisterFlags, Registered};
use cuda_mem_core::{Context, Device, DeviceBuffer, Error, PinnedBuffer, Stream, scope};

use crate::input::Input;
use crate::{Result, pool};

/// What is copied at a time.
const WINDOW: usize = 256 << 20;

/// How the file's bytes came to be pinned.
#[derive(Debug)]
pub(crate) enum Pinned {
    /// Where they are.
    InPlace,
    /// Copied to pinned memory, because the driver or the kernel does not pin this file's pages.
    Copied { reason: Error },
}

/// What was done and how long it took.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) bytes: usize,
    pub(crate) pinned: Pinned,
    pub(crate) registration: Duration,
    /// From the file's registered pages, or the copy in their place, and back to a registered vector.
    pub(crate) registered: Rates,
    /// The same bytes from and to memory that the driver allocated pinned.
    pub(crate) allocated: Rates,
    /// And from and to ordinary memory, by the driver's own copies.
    pub(crate) pageable: Rates,
    /// The same ordinary memory, through a ring of pinned slots.
    pub(crate) staged: Rates,
    /// A pinned pool with a window's memory; none where the driver has no such pools.
    pub(crate) pool: Option<pool::Ready>,
}

/// The time of both directions, over all windows.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Rates {
    pub(crate) to_device: Duration,
    pub(crate) to_host: Duration,
}

pub(crate) fn run(device: Device, input: &Input) -> Result<Outcome> {
    let context = device.primary_context()?;
    let start = Instant::now();
    let mapping = FileMapping::read_only(input.file())?;
    if mapping.byte_len() != input.len() {
        return Err(format!("{} changed while it was opened", input.name()).into());
    }
    let source = Registered::new(&context, mapping, RegisterFlags::PORTABLE | RegisterFlags::READ_ONLY);
    let registration = start.elapsed();
    let (pinned, source) = match source {
        Ok(source) => (Pinned::InPlace, Some(source)),
        Err(refused) => (Pinned::Copied { reason: refused.error }, None),
    };
    let mut outcome = Outcome {
        bytes: input.len(),
        pinned,
        registration,
        registered: Rates::default(),
        allocated: Rates::default(),
        pageable: Rates::default(),
        staged: Rates::default(),
        pool: pool::measure(&context, input.len().clamp(1, WINDOW))?,
    };
    if input.len() > 0 {
        let mut windows = Windows::new(&context, input.len().min(WINDOW))?;
        let mut progress = Progress::new(input.len());
        for offset in (0..input.len()).step_by(WINDOW) {
            let len = WINDOW.min(input.len().saturating_sub(offset));
            windows.copy(input, source.as_ref(), offset, len, &mut outcome)?;
            progress.advance(len);
        }
        progress.finish();
    }
    if let Some(source) = source {
        source.close()?;
    }
    Ok(outcome)
}

/// The buffers that every window passes through.
struct Windows {
    stream: Stream,
    stager: Stager,
    device: DeviceBuffer<u8>,
    allocated: PinnedBuffer<u8>,
    returned: Registered<Vec<u8>>,
    pageable: Vec<u8>,
}

impl Windows {
    fn new(context: &Context, len: usize) -> Result<Self> {
        let stream = Stream::new(context)?;
        Ok(Self {
            device: DeviceBuffer::zeroed(&stream, len)?,
            allocated: PinnedBuffer::zeroed(context, len, PinnedFlags::default())?,
            returned: Registered::new(context, vec![0; len], RegisterFlags::default())?,
            pageable: vec![0; len],
            stager: Stager::new(context)?,
            stream,
        })
    }

    /// One window, there and back in each of four ways; each way's result is compared with the file.
    fn copy(
        &mut self,
        input: &Input,
        source: Option<&Registered<FileMapping>>,
        offset: usize,
        len: usize,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let Self { stream, stager, device, allocated, returned, pageable } = self;
        let context = stream.context().clone();
        let window = device.range(..len)?;
        let file = &mut pageable[..len];
        input.read(offset, file)?;

        // Once to warm up and to fill the pinned window, then timed: first touches and page faults are not the link's.
        allocated.as_mut_slice()?[..len].copy_from_slice(file);
        window.copy_from_slice(stream, &allocated.as_slice()?[..len])?;

        window.fill_bytes(stream, 0)?;
        stream.synchronize()?;
        let start = Instant::now();
        match source {
            Some(source) => scope(&context, |scope| {
                let end = offset.saturating_add(len);
                scope.upload_bytes(stream, source, offset..end, &window)
            })?,
            None => window.copy_from_slice(stream, &allocated.as_slice()?[..len])?,
        }
        outcome.registered.to_device += start.elapsed();
        let start = Instant::now();
        window.copy_to_slice(stream, &mut returned.as_mut_slice()?[..len])?;
        outcome.registered.to_host += start.elapsed();
        compare(input, offset, file, &returned.as_slice()?[..len])?;

        window.fill_bytes(stream, 0)?;
        stream.synchronize()?;
        let start = Instant::now();
        window.copy_from_slice(stream, &allocated.as_slice()?[..len])?;
        outcome.allocated.to_device += start.elapsed();
        let start = Instant::now();
        window.copy_to_slice(stream, &mut allocated.as_mut_slice()?[..len])?;
        outcome.allocated.to_host += start.elapsed();
        compare(input, offset, file, &allocated.as_slice()?[..len])?;

        window.fill_bytes(stream, 0)?;
        stream.synchronize()?;
        let start = Instant::now();
        window.copy_from_slice(stream, file)?;
        outcome.pageable.to_device += start.elapsed();
        let start = Instant::now();
        window.copy_to_slice(stream, file)?;
        outcome.pageable.to_host += start.elapsed();
        compare(input, offset, &allocated.as_slice()?[..len], file)?;

        window.fill_bytes(stream, 0)?;
        stream.synchronize()?;
        let start = Instant::now();
        stager.upload(stream, file, &window)?;
        stream.synchronize()?;
        outcome.staged.to_device += start.elapsed();
        let start = Instant::now();
        stager.download(stream, &window, file)?;
        outcome.staged.to_host += start.elapsed();
        compare(input, offset, &allocated.as_slice()?[..len], file)
    }
}

/// Every byte that came back against the file's.
fn compare(input: &Input, offset: usize, file: &[u8], returned: &[u8]) -> Result<()> {
    if file == returned {
        return Ok(());
    }
    let position =
        file.iter().zip(returned).position(|(expected, found)| expected != found).unwrap_or_default();
    let at = offset.saturating_add(position);
    let (expected, found) = (file[position], returned[position]);
    let name = input.name();
    Err(format!("{name} differs at byte {at}: {expected:#04x} in the file, {found:#04x} came back").into())
}

/// One line that is written over, on a terminal only.
struct Progress {
    total: usize,
    done: usize,
    shown: bool,
}

impl Progress {
    fn new(total: usize) -> Self {
        Self { total, done: 0, shown: std::io::stdout().is_terminal() }
    }

    fn advance(&mut self, bytes: usize) {
        self.done = self.done.saturating_add(bytes);
        if self.shown {
            print!("\rcopied    {} of {} MiB", self.done >> 20, self.total >> 20);
            // Only progress: if it cannot be shown, the result still can.
            let _ = std::io::stdout().flush();
        }
    }

    fn finish(&self) {
        if self.shown {
            print!("\r{:40}\r", "");
        }
    }
}
