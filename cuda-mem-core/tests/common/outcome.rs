//! What a test saw, as a line that a simulator and a GPU must agree on.

use std::fs::File;
use std::io::Write;

use cuda_mem_core::{Error, Refused};

/// Something a test saw: a result code, or bytes.
pub(crate) trait Outcome {
    fn line(&self) -> String;
}

impl<T> Outcome for Result<T, Error> {
    fn line(&self) -> String {
        self.as_ref().err().map_or_else(|| "ok".to_owned(), Outcome::line)
    }
}

impl<T, O> Outcome for Result<T, Refused<O>> {
    fn line(&self) -> String {
        self.as_ref().err().map_or_else(|| "ok".to_owned(), |refused| refused.error.line())
    }
}

impl Outcome for Error {
    /// The driver's code; for an error of ours, its kind.
    fn line(&self) -> String {
        if let Some(code) = self.code() {
            return code.0.to_string();
        }
        let text = format!("{self:?}");
        text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default().to_owned()
    }
}

impl Outcome for [u8] {
    /// FNV-1a: bytes that differ have lines that differ.
    fn line(&self) -> String {
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        format!("{:016x}", self.iter().fold(0xcbf2_9ce4_8422_2325, step))
    }
}

impl Outcome for Vec<u8> {
    fn line(&self) -> String {
        self.as_slice().line()
    }
}

impl Outcome for [u32] {
    fn line(&self) -> String {
        self.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>().line()
    }
}

impl Outcome for Vec<u32> {
    fn line(&self) -> String {
        self.as_slice().line()
    }
}

impl Outcome for usize {
    fn line(&self) -> String {
        self.to_string()
    }
}

impl Outcome for bool {
    fn line(&self) -> String {
        self.to_string()
    }
}

/// Appends a line to the file that the environment variable `CUDA_MEM_RECORD` names, if it is set.
pub(crate) fn append(test: &str, step: &str, outcome: &(impl Outcome + ?Sized)) {
    let Some(path) = std::env::var_os("CUDA_MEM_RECORD") else { return };
    let line = format!("{test}\t{step}\t{}\n", outcome.line());
    let mut file = File::options().create(true).append(true).open(path).expect("the record's file");
    // One write a line: tests in other threads and processes append too.
    file.write_all(line.as_bytes()).expect("the record's file");
}

/// Records what the test around it saw in one of its steps: `record!("step", &outcome)`.
#[allow(unused_macros, reason = "only portable tests record")]
macro_rules! record {
    ($step:expr, $outcome:expr) => {{
        fn here() {}
        let test = std::any::type_name_of_val(&here).trim_end_matches("::here");
        $crate::common::outcome::append(test, $step, $outcome)
    }};
}
#[allow(unused_imports, reason = "as above")]
pub(crate) use record;
