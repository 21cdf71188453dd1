//! What was hoped for beside what was found. A verdict is told and never decides whether a run succeeds.

use serde::Serialize;

/// Which side of a bound is good.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Wanted {
    AtLeast(f64),
    AtMost(f64),
}

/// A goal and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Verdict {
    pub(crate) goal: String,
    pub(crate) wanted: Wanted,
    pub(crate) unit: &'static str,
    /// None where someone who is needed for it did not take part.
    pub(crate) found: Option<f64>,
    pub(crate) verdict: &'static str,
}

impl Verdict {
    pub(crate) fn new(
        goal: impl Into<String>,
        wanted: Wanted,
        unit: &'static str,
        found: Option<f64>,
    ) -> Self {
        let met = found.map(|found| match wanted {
            Wanted::AtLeast(bound) => found >= bound,
            Wanted::AtMost(bound) => found <= bound,
        });
        let verdict = match met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "not measured",
        };
        Self { goal: goal.into(), wanted, unit, found, verdict }
    }

    /// The bound as a table shows it.
    pub(crate) fn bound(&self) -> String {
        match self.wanted {
            Wanted::AtLeast(bound) => format!("≥ {bound} {}", self.unit),
            Wanted::AtMost(bound) => format!("≤ {bound} {}", self.unit),
        }
    }
}

/// The least of what there is; none if anything is missing.
pub(crate) fn least(values: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    all(values, f64::min)
}

/// The most of what there is; none if anything is missing.
pub(crate) fn most(values: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    all(values, f64::max)
}

fn all(values: impl IntoIterator<Item = Option<f64>>, choose: fn(f64, f64) -> f64) -> Option<f64> {
    values.into_iter().collect::<Option<Vec<f64>>>()?.into_iter().reduce(choose)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive_and_what_is_missing_is_neither_met_nor_missed() {
        let verdict = |wanted, found| Verdict::new("", wanted, "×", found).verdict;
        assert_eq!(verdict(Wanted::AtLeast(5.0), Some(5.0)), "met");
        assert_eq!(verdict(Wanted::AtLeast(5.0), Some(4.9)), "missed");
        assert_eq!(verdict(Wanted::AtMost(1.03), Some(1.03)), "met");
        assert_eq!(verdict(Wanted::AtMost(1.03), Some(f64::NAN)), "missed");
        assert_eq!(verdict(Wanted::AtMost(1.03), None), "not measured");
    }

    #[test]
    fn the_worst_of_an_incomplete_list_is_unknown() {
        assert_eq!(least([Some(2.0), Some(1.0)]), Some(1.0));
        assert_eq!(most([Some(2.0), Some(1.0)]), Some(2.0));
        assert_eq!(least([Some(2.0), None]), None);
        assert_eq!(least([]), None);
    }
}
