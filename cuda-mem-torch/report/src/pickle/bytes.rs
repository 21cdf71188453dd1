//! Bytes of a file that is read once, from its beginning to its end.

use std::io::Read;

use anyhow::{Context, Result, bail};

const BUFFER: usize = 64 << 10;

pub(super) struct Bytes<'r> {
    reader: Box<dyn Read + 'r>,
    buffer: Vec<u8>,
    at: usize,
    end: usize,
    /// Bytes before those in the buffer.
    before: u64,
    /// Is told how many bytes were read.
    progress: &'r mut dyn FnMut(u64),
}

impl<'r> Bytes<'r> {
    pub(super) fn new(reader: Box<dyn Read + 'r>, progress: &'r mut dyn FnMut(u64)) -> Self {
        Self { reader, buffer: vec![0; BUFFER], at: 0, end: 0, before: 0, progress }
    }

    /// How many bytes were taken.
    pub(super) fn position(&self) -> u64 {
        self.before + self.at as u64
    }

    #[inline]
    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        if let Some(bytes) = self.buffer.get(self.at..self.end).and_then(|rest| rest.first_chunk::<N>()) {
            self.at += N;
            return Ok(*bytes);
        }
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// Takes `length` bytes, of which the first `most` are shown.
    pub(super) fn text<T>(&mut self, length: u64, most: usize, show: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let shown = usize::try_from(length).unwrap_or(usize::MAX).min(most);
        let here = self.buffer.get(self.at..self.end).unwrap_or_default();
        if let Some(bytes) = here.get(..shown).filter(|_| shown as u64 == length) {
            self.at += shown;
            return Ok(show(bytes));
        }
        let mut bytes = vec![0; shown];
        self.fill(&mut bytes)?;
        let mut rest = length - shown as u64;
        let mut unused = [0; 4096];
        while rest > 0 {
            let some = usize::try_from(rest).unwrap_or(usize::MAX).min(unused.len());
            self.fill(unused.get_mut(..some).unwrap_or_default())?;
            rest -= some as u64;
        }
        Ok(show(&bytes))
    }

    fn fill(&mut self, mut bytes: &mut [u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.at == self.end {
                self.refill()?;
                if self.end == 0 {
                    bail!("the file ends here, {} bytes too early at least", bytes.len());
                }
            }
            let here = self.buffer.get(self.at..self.end).unwrap_or_default();
            let some = here.len().min(bytes.len());
            let (now, later) = bytes.split_at_mut(some);
            now.copy_from_slice(here.get(..some).unwrap_or_default());
            self.at += some;
            bytes = later;
        }
        Ok(())
    }

    fn refill(&mut self) -> Result<()> {
        self.before += self.end as u64;
        self.at = 0;
        self.end = 0;
        self.end = self.reader.read(&mut self.buffer).context("cannot read on")?;
        (self.progress)(self.before);
        Ok(())
    }
}
