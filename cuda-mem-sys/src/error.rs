//! Why there is no driver, or why the driver lacks a function.

use std::error::Error;
use std::fmt;

/// Why a [`Table`](crate::Table) could not be built.
#[non_exhaustive]
pub enum LoadError {
    /// No driver library could be opened.
    Library {
        /// Each file name that was tried, with the loader's reason.
        tried: Vec<(String, String)>,
    },
    /// The library was opened but is not a CUDA driver of any supported kind: it lacks a function that each has.
    NotADriver {
        /// The library's file name, or what stands for it.
        library: String,
        /// The function it lacks.
        symbol: &'static str,
    },
    /// The driver refused to tell its version.
    VersionQuery {
        /// The driver's result code.
        code: u32,
    },
    /// The driver is older than [`MINIMUM_DRIVER`](crate::MINIMUM_DRIVER).
    TooOld {
        /// The driver's version, as CUDA counts: 1000 × major + 10 × minor.
        found: i32,
        /// The oldest version that serves.
        needed: i32,
    },
}

/// The text too: it is what a program prints whose `main` ends with the error.
impl fmt::Debug for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library { tried } => {
                f.write_str("no CUDA driver could be opened (")?;
                for (index, (name, reason)) in tried.iter().enumerate() {
                    f.write_str(if index == 0 { "" } else { "; " })?;
                    // The loader names the file itself.
                    f.write_str(if reason.is_empty() { name } else { reason })?;
                }
                f.write_str("); install the NVIDIA driver, or set CUDA_MEM_DRIVER to the path of its library or a simulator's")
            }
            Self::NotADriver { library, symbol } => write!(
                f,
                "{library} is no CUDA driver of version {} or newer: it has no {symbol}",
                Version(crate::MINIMUM_DRIVER)
            ),
            Self::VersionQuery { code } => {
                write!(f, "the CUDA driver did not tell its version: cuDriverGetVersion gave {code}")
            }
            Self::TooOld { found, needed } => write!(
                f,
                "the CUDA driver is too old: CUDA {} is needed, this driver has CUDA {}",
                Version(*needed),
                Version(*found)
            ),
        }
    }
}

impl Error for LoadError {}

/// A function that this driver does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct MissingFunction {
    /// The function's name.
    pub name: &'static str,
    /// The CUDA version that brought the ABI that was asked for: 1000 × major + 10 × minor.
    pub needed: i32,
    /// The version of the driver that was asked.
    pub found: i32,
}

impl fmt::Display for MissingFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, needed, found } = self;
        if needed > found {
            write!(
                f,
                "{name} needs a driver with CUDA {}, this one has CUDA {}",
                Version(*needed),
                Version(*found)
            )
        } else {
            write!(
                f,
                "the driver has CUDA {} but no {name}, which CUDA {} brought",
                Version(*found),
                Version(*needed)
            )
        }
    }
}

impl Error for MissingFunction {}

/// 12020 as people write it: 12.2.
struct Version(i32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_what_was_needed_and_what_was_found() {
        let old = LoadError::TooOld { found: 12010, needed: 12020 }.to_string();
        assert!(old.contains("12.2 is needed") && old.contains("has CUDA 12.1"), "{old}");
        let missing = MissingFunction { name: "cuMemGetMemPool", needed: 13000, found: 12020 }.to_string();
        assert_eq!(missing, "cuMemGetMemPool needs a driver with CUDA 13.0, this one has CUDA 12.2");
        let lost = MissingFunction { name: "cuMemAlloc", needed: 3020, found: 13000 }.to_string();
        assert!(lost.contains("has CUDA 13.0 but no cuMemAlloc"), "{lost}");
    }
}
