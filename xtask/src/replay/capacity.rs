//! The smallest memory that a trace fits.

use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use cuda_mem_pool::trace::Trace;

use super::calls::{CallLog, Text};
use super::check;
use super::plan::Plan;
use super::setting::{Backend, Setting};

/// Capacities are multiples of this.
const STEP: u64 = 2 << 20;

/// Larger capacities that are tried too, in thousandths of the smallest that was found.
const BEYOND: [u64; 4] = [1005, 1010, 1020, 1050];

/// How much memory there is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Capacity {
    Bytes(u64),
    /// Times the trace's peak active bytes.
    Factor(f64),
    Auto,
}

impl FromStr for Capacity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let factor =
            |text: &str| text.parse().ok().filter(|factor: &f64| factor.is_finite() && *factor > 0.0);
        let parsed = match (text, text.strip_suffix('x')) {
            ("auto", _) => Some(Self::Auto),
            (_, Some(number)) => factor(number).map(Self::Factor),
            (number, None) => number.parse().ok().map(Self::Bytes),
        };
        parsed
            .ok_or_else(|| format!("{text:?} is no number of bytes, no factor such as 1.05x, and not `auto`"))
    }
}

impl Capacity {
    /// The bytes for a plan; nothing for as many as are wanted.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a factor is not exact to begin with, and above zero"
    )]
    pub(crate) fn bytes(self, plan: &Plan) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Factor(factor) => Some((plan.peak_active as f64 * factor) as u64),
            Self::Auto => None,
        }
    }
}

/// What the search found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Smallest {
    /// The smallest capacity above which every one that was tried did.
    pub(crate) bytes: u64,
    /// Smaller capacities that did, though a larger one did not.
    pub(crate) lucky: Vec<u64>,
}

/// Finds the smallest capacity with which the replay has no out-of-memory event. `reserved` is what it takes without limit.
///
/// Every capacity is really replayed, and the log of each is checked.
pub(crate) fn smallest(plan: &Plan, trace: &Trace, setting: &Setting, reserved: u64) -> Result<Smallest> {
    ensure!(setting.backend == Backend::Model, "--capacity auto needs the backend model");
    search(plan.peak_live, reserved, |bytes| {
        fits(plan, trace, setting, bytes).with_context(|| format!("with {bytes} bytes"))
    })
}

fn search(live: u64, reserved: u64, mut fits: impl FnMut(u64) -> Result<bool>) -> Result<Smallest> {
    // In steps. Less than what is live cannot do; without limit it did.
    let least = live.div_ceil(STEP);
    let mut low = least.saturating_sub(1);
    let most = reserved.div_ceil(STEP).max(least);
    let mut high = most;
    while !fits(high * STEP)? {
        // An allocator that is short of memory may need more than one that is not.
        low = high;
        high += (high / 8).max(1);
        ensure!(
            high < most.saturating_mul(4),
            "it runs out of memory with four times what it reserves without limit"
        );
    }
    let mut lucky = Vec::new();
    loop {
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle * STEP)? { high = middle } else { low = middle }
        }
        // The search believes that more memory is never worse: look whether that holds.
        let mut worse = None;
        for thousandths in BEYOND {
            let beyond = (high * thousandths / 1000).max(high + 1);
            if !fits(beyond * STEP)? {
                worse = Some(beyond);
            }
        }
        let Some(worse) = worse else { return Ok(Smallest { bytes: high * STEP, lucky }) };
        lucky.push(high * STEP);
        low = worse;
        high = (worse + (worse / 50).max(1)).max(most);
        while !fits(high * STEP)? {
            low = high;
            high += (high / 8).max(1);
            ensure!(high < most.saturating_mul(4), "no capacity was found above which it has enough");
        }
    }
}

/// Whether a replay with so many bytes has no out-of-memory event.
fn fits(plan: &Plan, trace: &Trace, setting: &Setting, bytes: u64) -> Result<bool> {
    let text = Text::default();
    let outcome = setting.replay(plan, Some(bytes), CallLog::new(text.clone()))?;
    let sums = check::check(&*text.take(), Some(trace), setting.checked_lag())
        .context("the checker rejects the replay")?;
    ensure!(
        sums.oom == outcome.oom && sums.peak_reserved <= bytes,
        "the checker finds {} bytes reserved and {} out-of-memory events, the replay {} of those",
        sums.peak_reserved,
        sums.oom,
        outcome.oom
    );
    Ok(outcome.oom == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capacity_is_bytes_a_factor_or_auto() {
        assert_eq!("4096".parse(), Ok(Capacity::Bytes(4096)));
        assert_eq!("1.05x".parse(), Ok(Capacity::Factor(1.05)));
        assert_eq!("auto".parse(), Ok(Capacity::Auto));
        for wrong in ["", "x", "-1", "1.5", "-1x", "infx", "1 GiB"] {
            assert!(wrong.parse::<Capacity>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_search_finds_the_edge() {
        for edge in [10, 11, 57, 99, 100] {
            let found = search(10 * STEP, 100 * STEP, |bytes| Ok(bytes >= edge * STEP)).unwrap();
            assert_eq!(found, Smallest { bytes: edge * STEP, lucky: vec![] });
        }
        let found = search(1, 100 * STEP, |_| Ok(true)).unwrap();
        assert_eq!(found.bytes, STEP, "never less than what is live");
    }

    #[test]
    fn an_edge_above_what_it_takes_without_limit_is_found() {
        let found = search(10 * STEP, 100 * STEP, |bytes| Ok(bytes >= 130 * STEP)).unwrap();
        assert_eq!(found.bytes, 130 * STEP);
        assert!(search(10 * STEP, 100 * STEP, |_| Ok(false)).is_err());
    }

    #[test]
    fn a_smaller_capacity_that_only_happens_to_do_is_told() {
        // The search comes to 245 first, and 5 % above it there is not enough.
        let found = search(100 * STEP, 400 * STEP, |bytes| {
            let steps = bytes / STEP;
            Ok(steps >= 300 || (245..250).contains(&steps))
        })
        .unwrap();
        assert_eq!(found, Smallest { bytes: 300 * STEP, lucky: vec![245 * STEP] });
    }
}
