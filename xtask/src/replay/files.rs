//! The files of a replay: traces and logs, plain or gzipped.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;

use anyhow::{Context, Result};
use cuda_mem_pool::trace::Trace;
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;

/// What gzipped files begin with.
const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A file's text, unpacked if it is packed; the name does not matter.
fn open(path: &Path) -> Result<Box<dyn BufRead>> {
    let mut file = BufReader::new(File::open(path).context("cannot be opened")?);
    let start = file.fill_buf().context("cannot be read")?;
    Ok(if start.starts_with(&MAGIC) { unpacked(file) } else { Box::new(file) })
}

fn unpacked(packed: impl Read + 'static) -> Box<dyn BufRead> {
    Box::new(BufReader::new(MultiGzDecoder::new(packed)))
}

/// A trace.
pub(crate) fn read_trace(path: &Path) -> Result<Trace> {
    Ok(Trace::read(open(path)?)?)
}

/// A log of calls.
pub(crate) fn read_log(path: &Path) -> Result<Box<dyn BufRead>> {
    open(path).with_context(|| path.display().to_string())
}

/// The file's name without its endings.
pub(crate) fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    name.strip_suffix(".csv").unwrap_or(name).to_owned()
}

/// A new log, packed as it is written.
pub(crate) fn create_log(path: &Path) -> Result<impl Write + Send + 'static> {
    let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(Packed { encoder: GzEncoder::new(BufWriter::new(file), Compression::fast()) })
}

/// Ends the packed file when it is flushed: a log is flushed once, at its end.
struct Packed {
    encoder: GzEncoder<BufWriter<File>>,
}

impl Write for Packed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.encoder.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.encoder.try_finish()?;
        self.encoder.get_mut().flush()
    }
}
