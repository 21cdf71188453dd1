//! Files as they come: packed or not, a trace or a snapshot.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use flate2::read::MultiGzDecoder;

use super::{Input, Source};

/// More than any recording has, less than a machine that draws pages.
const MAX_BYTES: u64 = 2 << 30;

/// What a file holds.
#[derive(Debug)]
pub(super) enum Content {
    /// Comma-separated values.
    Table(String),
    Pickle(Vec<u8>),
}

/// Reads a file, unpacked if it is packed.
pub(super) fn read(input: &Input) -> Result<Content> {
    let bytes = match &input.source {
        Source::File(path) => bytes(path).with_context(|| format!("cannot read {}", path.display()))?,
        Source::Bytes(bytes) => bytes.clone(),
    };
    let name = &input.name;
    // What every pickle of protocol 2 or newer begins with.
    if bytes.first() == Some(&0x80) {
        return Ok(Content::Pickle(bytes));
    }
    ensure!(!bytes.is_empty(), "{name} is empty");
    // What older protocols begin with when they write a dictionary or a list; no line of a trace does.
    ensure!(
        !matches!(bytes.first(), Some(b'(' | b'}' | b']')),
        "{name} is neither a trace nor a pickle of protocol 2 or newer, in which snapshots are written"
    );
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Content::Table(text)),
        Err(_) => bail!("{name} is neither a trace (text) nor a snapshot (a pickle)"),
    }
}

fn bytes(path: &Path) -> Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut magic = Vec::new();
    (&file).take(2).read_to_end(&mut magic)?;
    file.rewind()?;
    let mut reader: Box<dyn Read> =
        if magic == [0x1f, 0x8b] { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    let mut bytes = Vec::new();
    reader.by_ref().take(MAX_BYTES).read_to_end(&mut bytes)?;
    let rest = reader.read(&mut [0])?;
    ensure!(rest == 0, "it has more than {MAX_BYTES} bytes");
    Ok(bytes)
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
            assert!(matches!(read(&Input::file(&path)).unwrap(), Content::Table(text) if text == "op,id\n"));
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
            let error = read(&Input::file(&path)).unwrap_err().to_string();
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
