//! What a process of ours says of its memory, as text: a line for each thing, its fields parted by tabs.
//!
//! The text comes from another process, so whatever is in it is checked. Lines of a kind that is not known are skipped: a newer process
//! may say more.

use std::fmt::Write as _;

use crate::error::Error;

/// The first line.
const HEAD: &str = "cuda-mem-top\t1";

/// More than any process has to say.
pub(crate) const MOST_BYTES: usize = 1 << 20;

/// The figures of a process.
///
/// ```
/// use cuda_mem_top::{DeviceFigures, Part, ProcessFigures};
///
/// let part = Part { stream: 0x7f10, pool: None, tag: None, reserved: 4 << 20, live: 1 << 20 };
/// let device = DeviceFigures { uuid: [7; 16], reserved: 4 << 20, live: 1 << 20, parts: vec![part], ..DeviceFigures::default() };
/// let figures = ProcessFigures { devices: vec![device] };
/// assert_eq!(ProcessFigures::parse(&figures.write())?, figures);
/// assert!(ProcessFigures::parse("something else").is_err());
/// # Ok::<(), cuda_mem_top::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessFigures {
    /// Its devices, those that it has used.
    pub devices: Vec<DeviceFigures>,
}

/// The figures of a device in a process. [`ProcessFigures`] has an example.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceFigures {
    /// Its number in the process.
    pub ordinal: i32,
    /// What names it in every process.
    pub uuid: [u8; 16],
    /// Bytes that the allocator has from the driver.
    pub reserved: u64,
    /// The most that `reserved` was.
    pub peak_reserved: u64,
    /// Bytes of blocks that the program has.
    pub live: u64,
    /// The most that `live` was.
    pub peak_live: u64,
    /// Requests for which memory had to be given back first.
    pub retries: u64,
    /// Requests that failed for lack of memory.
    pub out_of_memory: u64,
    /// What it is made of, one for each stream and pool.
    pub parts: Vec<Part>,
}

/// The memory of one stream in one pool. [`ProcessFigures`] has an example.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    /// The stream's handle; 0 is the default one.
    pub stream: u64,
    /// The private pool, by the two numbers that PyTorch gives it; none is the default one.
    pub pool: Option<(u64, u64)>,
    /// The name that the program gave the memory.
    pub tag: Option<String>,
    /// Bytes from the driver.
    pub reserved: u64,
    /// Bytes of blocks that the program has.
    pub live: u64,
}

impl ProcessFigures {
    /// The figures as text.
    #[must_use]
    pub fn write(&self) -> String {
        let mut text = format!("{HEAD}\n");
        for device in &self.devices {
            let uuid: String = device.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
            let DeviceFigures {
                ordinal,
                reserved,
                peak_reserved,
                live,
                peak_live,
                retries,
                out_of_memory,
                ..
            } = device;
            // Text that goes into a String cannot fail; so below.
            let _ = writeln!(
                text,
                "device\t{ordinal}\t{uuid}\t{reserved}\t{peak_reserved}\t{live}\t{peak_live}\t{retries}\t{out_of_memory}"
            );
            for Part { stream, pool, tag, reserved, live } in &device.parts {
                let (first, second) = pool.unwrap_or((0, 0));
                // A field ends at a tab, a line at its end.
                let tag = printable(tag.as_deref().unwrap_or_default());
                let _ = writeln!(text, "part\t{stream}\t{first}\t{second}\t{reserved}\t{live}\t{tag}");
            }
        }
        text
    }

    /// Reads what [`ProcessFigures::write`] wrote.
    ///
    /// # Errors
    ///
    /// [`Error::Figures`] names the line and what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut lines = (1..).zip(text.lines());
        match lines.next() {
            Some((_, HEAD)) => {}
            _ => return Err(Error::Figures { line: 1, what: "it is not what begins figures of version 1" }),
        }
        let mut figures = Self::default();
        for (line, text) in lines {
            let mut fields = Fields { fields: text.split('\t'), line };
            match fields.text("the kind")? {
                "device" => figures.devices.push(DeviceFigures {
                    ordinal: fields.number("the device")?.try_into().unwrap_or(i32::MAX),
                    uuid: fields.uuid()?,
                    reserved: fields.number("the reserved bytes")?,
                    peak_reserved: fields.number("the peak of the reserved bytes")?,
                    live: fields.number("the live bytes")?,
                    peak_live: fields.number("the peak of the live bytes")?,
                    retries: fields.number("the retries")?,
                    out_of_memory: fields.number("the failed requests")?,
                    parts: Vec::new(),
                }),
                "part" => {
                    let Some(device) = figures.devices.last_mut() else {
                        return Err(Error::Figures { line, what: "it comes before any device" });
                    };
                    let stream = fields.number("the stream")?;
                    let pool = (fields.number("the pool")?, fields.number("the pool's second number")?);
                    device.parts.push(Part {
                        stream,
                        pool: (pool != (0, 0)).then_some(pool),
                        reserved: fields.number("the reserved bytes")?,
                        live: fields.number("the live bytes")?,
                        // Whoever wrote it, a terminal shows it.
                        tag: Some(printable(fields.text("the tag")?)).filter(|tag| !tag.is_empty()),
                    });
                }
                _ => {}
            }
        }
        Ok(figures)
    }
}

fn printable(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).collect()
}

/// The fields of a line, in order.
struct Fields<'t> {
    fields: std::str::Split<'t, char>,
    line: usize,
}

impl<'t> Fields<'t> {
    fn text(&mut self, what: &'static str) -> Result<&'t str, Error> {
        self.fields.next().ok_or(Error::Figures { line: self.line, what })
    }

    fn number(&mut self, what: &'static str) -> Result<u64, Error> {
        let line = self.line;
        self.text(what)?.parse().map_err(|_| Error::Figures { line, what })
    }

    fn uuid(&mut self) -> Result<[u8; 16], Error> {
        let wrong = Error::Figures { line: self.line, what: "the UUID" };
        let text = self.text("the UUID")?;
        let number = match text.len() {
            32 => u128::from_str_radix(text, 16).map_err(|_| wrong)?,
            _ => return Err(wrong),
        };
        Ok(number.to_be_bytes())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn some() -> ProcessFigures {
        let part = |stream, pool, tag: Option<&str>| Part {
            stream,
            pool,
            tag: tag.map(str::to_owned),
            reserved: 6,
            live: 5,
        };
        let device = DeviceFigures {
            ordinal: 1,
            uuid: std::array::from_fn(|place| place as u8),
            reserved: 1,
            peak_reserved: 2,
            live: 3,
            peak_live: 4,
            retries: 7,
            out_of_memory: 8,
            parts: vec![part(0, None, None), part(9, Some((0, 3)), Some("weights of a model"))],
        };
        ProcessFigures { devices: vec![device, DeviceFigures::default()] }
    }

    #[test]
    fn figures_come_back_as_they_were() {
        assert_eq!(ProcessFigures::parse(&some().write()).unwrap(), some());
        let more = some().write() + "something of a later version\t7\n";
        assert_eq!(ProcessFigures::parse(&more).unwrap(), some());
    }

    #[test]
    fn a_tag_cannot_make_a_line() {
        let mut figures = some();
        figures.devices[0].parts[0].tag = Some("a\tb\npart\t0".to_owned());
        let read = ProcessFigures::parse(&figures.write()).unwrap();
        assert_eq!(read.devices[0].parts[0].tag.as_deref(), Some("abpart0"));
        assert_eq!(read.devices[0].parts.len(), 2);
        // Nor move a terminal's cursor, if another program wrote it.
        let foreign = some().write().replace("weights", "\u{1b}[2Jweights");
        let read = ProcessFigures::parse(&foreign).unwrap();
        assert_eq!(read.devices[0].parts[1].tag.as_deref(), Some("[2Jweights of a model"));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let text = some().write();
        for (from, to, line, what) in [
            ("cuda-mem-top\t1", "cuda-mem-top\t2", 1, "it is not what begins figures of version 1"),
            ("device\t1", "device\tx", 2, "the device"),
            ("000102", "00010", 2, "the UUID"),
            ("000102", "0001zz", 2, "the UUID"),
            ("\t7\t8\n", "\t7\n", 2, "the failed requests"),
            ("part\t0", "part\t-1", 3, "the stream"),
        ] {
            let error = ProcessFigures::parse(&text.replacen(from, to, 1)).unwrap_err();
            assert!(
                matches!(error, Error::Figures { line: l, what: w } if (l, w) == (line, what)),
                "{error:?}"
            );
        }
        let parts_only = "cuda-mem-top\t1\npart\t0\t0\t0\t6\t5\t\n";
        assert!(matches!(ProcessFigures::parse(parts_only), Err(Error::Figures { line: 2, .. })));
    }

    #[test]
    fn any_cut_is_read_or_refused() {
        let text = some().write();
        for end in 0..text.len() {
            let _ = ProcessFigures::parse(&text[..end]);
        }
    }
}
