//! The first line of a trace: what is known of the run.

use std::fmt;
use std::str::FromStr;

use super::error::{TraceError, TraceErrorKind};
use super::lines::LONGEST;

/// What the first line of a trace tells of the run, by key.
///
/// ```
/// use cuda_mem_pool::trace::Header;
///
/// let mut header = Header::default();
/// header.set("wall_s", 11.9)?;
/// assert_eq!(header.to_string(), "# wall_s=11.9");
/// assert_eq!(header.number("wall_s")?, Some(11.9));
/// # Ok::<(), cuda_mem_pool::trace::TraceError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    /// In the order of the line.
    pairs: Vec<(String, String)>,
}

impl Header {
    /// From the line, without the number sign it begins with.
    pub(super) fn parse(words: &str) -> Result<Self, TraceError> {
        let mut header = Self::default();
        for word in words.split_ascii_whitespace() {
            let pair = word.split_once('=').filter(|(key, value)| is_key(key) && is_value(value));
            let Some((key, value)) = pair else {
                return Err(first_line(TraceErrorKind::BadPair { word: word.to_owned() }));
            };
            if header.get(key).is_some() {
                return Err(first_line(TraceErrorKind::DuplicateKey { key: key.to_owned() }));
            }
            header.pairs.push((key.to_owned(), value.to_owned()));
        }
        // As it would be written: with a space after the number sign.
        if header.to_string().len() > LONGEST {
            return Err(first_line(TraceErrorKind::TooLong { most: LONGEST }));
        }
        Ok(header)
    }

    /// The value of a key, as it stands there.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(own, _)| own == key).map(|(_, value)| &**value)
    }

    /// The value of a key, as a number of something that is measured: finite and not below zero.
    ///
    /// # Errors
    ///
    /// [`TraceErrorKind::BadValue`] if it is no such number.
    pub fn number(&self, key: &str) -> Result<Option<f64>, TraceError> {
        self.parsed(key, "number from 0 on", |value: &f64| value.is_finite() && *value >= 0.0)
    }

    /// The value of a key, as a count of bytes.
    ///
    /// # Errors
    ///
    /// [`TraceErrorKind::BadValue`] if it is no whole number.
    pub fn bytes(&self, key: &str) -> Result<Option<u64>, TraceError> {
        self.parsed(key, "whole number from 0 on", |_: &u64| true)
    }

    fn parsed<T: FromStr>(
        &self,
        key: &str,
        expected: &'static str,
        accepts: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, TraceError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.parse().ok().filter(accepts) {
            Some(parsed) => Ok(Some(parsed)),
            None => Err(first_line(TraceErrorKind::BadValue {
                key: key.to_owned(),
                value: value.to_owned(),
                expected,
            })),
        }
    }

    /// Sets a key, or changes it.
    ///
    /// # Errors
    ///
    /// [`TraceErrorKind::BadPair`] for what could not be read again.
    pub fn set(&mut self, key: &str, value: impl fmt::Display) -> Result<(), TraceError> {
        let value = value.to_string();
        if !is_key(key) || !is_value(&value) {
            return Err(first_line(TraceErrorKind::BadPair { word: format!("{key}={value}") }));
        }
        match self.pairs.iter_mut().find(|(own, _)| own == key) {
            Some((_, old)) => *old = value,
            None => self.pairs.push((key.to_owned(), value)),
        }
        Ok(())
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("#")?;
        self.pairs.iter().try_for_each(|(key, value)| write!(f, " {key}={value}"))
    }
}

fn first_line(kind: TraceErrorKind) -> TraceError {
    TraceError::new(1, kind)
}

fn is_key(key: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    !key.is_empty() && key.bytes().all(fits)
}

fn is_value(value: &str) -> bool {
    !value.chars().any(|letter| letter.is_whitespace() || letter.is_control())
}
