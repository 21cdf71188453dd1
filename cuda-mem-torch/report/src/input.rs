//! Files as they come: packed or not, a trace or a snapshot.

use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use flate2::read::MultiGzDecoder;

use super::{Input, Source};

/// More than any trace has, less than a machine that draws pages.
const MAX_TABLE: u64 = 2 << 30;

/// What a file holds.
pub(super) enum Content<'i> {
    /// Comma-separated values.
    Table(String),
    /// A pickle, and how many bytes it has; 0: not known.
    Pickle { reader: Box<dyn Read + 'i>, bytes: u64 },
}

/// Opens a recording, unpacked if it is packed.
pub(super) fn open(input: &Input) -> Result<Content<'_>> {
    let name = &input.name;
    let (mut reader, bytes): (Box<dyn Read + '_>, u64) = match &input.source {
        Source::Bytes(bytes) => (Box::new(bytes.as_slice()), bytes.len() as u64),
        Source::File(path) => file(path).with_context(|| format!("cannot read {}", path.display()))?,
    };
    let mut first = Vec::new();
    reader.by_ref().take(1).read_to_end(&mut first).with_context(|| format!("cannot read {name}"))?;
    let reader: Box<dyn Read + '_> = Box::new(Cursor::new(first.clone()).chain(reader));
    match first.first() {
        None => bail!("{name} is empty"),
        // What every pickle of protocol 2 or newer begins with.
        Some(0x80) => return Ok(Content::Pickle { reader, bytes }),
        // What older protocols begin with when they write a dictionary or a list; no line of a trace does.
        Some(b'(' | b'}' | b']') => bail!(
            "{name} is neither a trace nor a pickle of protocol 2 or newer, in which snapshots are written"
        ),
        Some(_) => {}
    }
    let mut bytes = Vec::new();
    let read =
        reader.take(MAX_TABLE).read_to_end(&mut bytes).with_context(|| format!("cannot read {name}"))?;
    ensure!((read as u64) < MAX_TABLE, "{name} has more than {MAX_TABLE} bytes of text");
    ensure!(
        !bytes.starts_with(b"PK\x03\x04"),
        "{name} is a ZIP archive, as torch.save writes them; torch.cuda.memory._dump_snapshot writes snapshots"
    );
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Content::Table(text)),
        Err(_) => bail!("{name} is neither a trace (text) nor a snapshot (a pickle)"),
    }
}

fn file(path: &Path) -> Result<(Box<dyn Read>, u64)> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    ensure!(!metadata.is_dir(), "it is a folder");
    let mut magic = Vec::new();
    (&file).take(2).read_to_end(&mut magic)?;
    if magic == [0x1f, 0x8b] {
        file.rewind()?;
        return Ok((Box::new(BufReader::with_capacity(1 << 18, MultiGzDecoder::new(file))), 0));
    }
    // What is no file of a disk, a pipe say, cannot be rewound.
    Ok((Box::new(Cursor::new(magic).chain(file)), metadata.len()))
}

/// The fields of a line, each asked for once, in order.
#[derive(Debug)]
pub(super) struct Fields<'l>(std::str::Split<'l, char>);

impl<'l> Fields<'l> {
    pub(super) fn of(line: &'l str) -> Self {
        Self(line.split(','))
    }

    pub(super) fn text(&mut self, name: &str) -> Result<&'l str> {
        self.0.next().map(str::trim).with_context(|| format!("the field {name} is missing"))
    }

    /// An integer, in decimal digits or hexadecimal ones after `0x`.
    pub(super) fn number(&mut self, name: &str) -> Result<u64> {
        let text = self.text(name)?;
        let number = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        number.with_context(|| format!("{name} is no number: {text:?}"))
    }

    pub(super) fn signed(&mut self, name: &str) -> Result<i64> {
        let text = self.text(name)?;
        text.parse().with_context(|| format!("{name} is no number: {text:?}"))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn saved(name: &str, bytes: &[u8]) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("xtask-report-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn packed_and_plain_files_read_the_same() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(b"op,id\n").unwrap();
        for (name, bytes) in [("plain", b"op,id\n".to_vec()), ("packed", packed.finish().unwrap())] {
            let path = saved(name, &bytes);
            assert!(matches!(open(&Input::file(&path)).unwrap(), Content::Table(text) if text == "op,id\n"));
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn what_is_neither_is_named() {
        // Noise, nothing, and an empty dictionary in protocols 0 and 1.
        for (bytes, what) in [
            (&b"\xff\xfe\0\0"[..], "neither a trace (text) nor a snapshot"),
            (b"", "is empty"),
            (b"(dp0\n.", "protocol 2 or newer"),
            (b"}q\0.", "protocol 2 or newer"),
        ] {
            let path = saved("noise", bytes);
            let error = open(&Input::file(&path)).err().unwrap().to_string();
            std::fs::remove_file(path).unwrap();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        let mut fields = Fields::of("12,0x1f,-3,x");
        assert_eq!((fields.number("a").unwrap(), fields.number("b").unwrap()), (12, 31));
        assert_eq!(fields.signed("c").unwrap(), -3);
        assert_eq!(fields.number("size").unwrap_err().to_string(), "size is no number: \"x\"");
        assert_eq!(fields.text("stream").unwrap_err().to_string(), "the field stream is missing");
    }
}
