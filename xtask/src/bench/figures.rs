//! What was measured: a series of values for each case, participant and metric.

use serde::Serialize;

/// All series, in the order in which they began.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    series: Vec<Series>,
}

/// The values of all rounds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    pub(crate) case: String,
    pub(crate) participant: String,
    pub(crate) metric: String,
    /// In the order of the rounds.
    pub(crate) values: Vec<f64>,
}

/// A series in three numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Figures {
    pub(crate) fn add(&mut self, case: &str, participant: &str, metric: &str, value: f64) {
        let found = self.series.iter_mut().find(|series| series.is(case, participant, metric));
        match found {
            Some(series) => series.values.push(value),
            None => self.series.push(Series {
                case: case.to_owned(),
                participant: participant.to_owned(),
                metric: metric.to_owned(),
                values: vec![value],
            }),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Series> {
        self.series.iter()
    }

    pub(crate) fn get(&self, case: &str, participant: &str, metric: &str) -> Option<Summary> {
        self.series.iter().find(|series| series.is(case, participant, metric)).map(Series::summary)
    }

    pub(crate) fn median(&self, case: &str, participant: &str, metric: &str) -> Option<f64> {
        self.get(case, participant, metric).map(|summary| summary.median)
    }

    /// The median of one participant over that of another, in the same case.
    pub(crate) fn ratio(&self, case: &str, metric: &str, over: &str, under: &str) -> Option<f64> {
        Some(self.median(case, over, metric)? / self.median(case, under, metric)?)
    }
}

impl Series {
    fn is(&self, case: &str, participant: &str, metric: &str) -> bool {
        self.case == case && self.participant == participant && self.metric == metric
    }

    pub(crate) fn summary(&self) -> Summary {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        // A series begins with a value and never loses one.
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            at(middle)
        } else {
            f64::midpoint(at(middle.wrapping_sub(1)), at(middle))
        };
        Summary { median, min: at(0), max: at(sorted.len().wrapping_sub(1)) }
    }
}

/// All metrics with their units, in the order in which they are shown.
const METRICS: [(&str, &str); 59] = [
    ("ready", "s"),
    ("register", "s"),
    ("release", "s"),
    ("resident", "× requested"),
    ("taken", "× requested"),
    ("huge", "× requested"),
    ("held", "× requested"),
    ("pair", "ns"),
    ("again", "µs/GiB"),
    ("rate", "GB/s"),
    ("op", "ns"),
    ("p50", "ns"),
    ("p99", "ns"),
    ("behind", "ns"),
    ("allocation", "ns"),
    ("handle", "ns"),
    ("call", "ns"),
    ("order", "ns"),
    ("fence", "ns"),
    ("write", "ns"),
    ("wait", "ns"),
    ("total", "s"),
    ("first", "µs"),
    ("reserve", "µs"),
    ("properties", "µs"),
    ("life", "µs"),
    ("fresh", "µs"),
    ("grown", "µs"),
    ("allocate", "µs"),
    ("rendezvous", "µs"),
    ("first_read", "µs"),
    ("create", "µs"),
    ("export", "µs"),
    ("map", "µs"),
    ("access", "µs"),
    ("clear", "µs"),
    ("announce", "µs"),
    ("import", "µs"),
    ("peer_map", "µs"),
    ("peer_access", "µs"),
    ("exchange", "µs"),
    ("words", "µs"),
    ("start", "ms"),
    ("join", "ms"),
    ("descriptors", "more"),
    ("mappings", "more"),
    ("device_memory", "MiB more"),
    ("remote_alloc", "ns"),
    ("remote_free", "ns"),
    ("random", "ms"),
    ("streams", "µs"),
    ("slowdown", "× alone"),
    ("allocations", "blocks"),
    ("refusals", "blocks"),
    ("live", "MiB"),
    ("blocks", "blocks"),
    ("reserved", "× live"),
    ("metadata", "× reserved"),
    ("driver_calls", "calls"),
];

pub(crate) fn unit(metric: &str) -> &'static str {
    METRICS.iter().find(|(name, _)| *name == metric).map_or("", |(_, unit)| unit)
}

/// Where a metric is shown; one that nobody knows comes last.
pub(crate) fn place(metric: &str) -> usize {
    METRICS.iter().position(|(name, _)| *name == metric).unwrap_or(METRICS.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(values: &[f64]) -> Figures {
        let mut figures = Figures::default();
        values.iter().for_each(|value| figures.add("case", "ours", "pair", *value));
        figures
    }

    #[test]
    fn a_median_is_the_middle_or_the_mean_of_two() {
        let summary = |values: &[f64]| figures(values).get("case", "ours", "pair").unwrap();
        assert_eq!(summary(&[3.0, 1.0, 2.0]), Summary { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(summary(&[4.0, 1.0, 3.0, 2.0]), Summary { median: 2.5, min: 1.0, max: 4.0 });
        assert_eq!(summary(&[7.0]), Summary { median: 7.0, min: 7.0, max: 7.0 });
    }

    #[test]
    fn ratios_want_both_sides() {
        let mut figures = figures(&[2.0]);
        assert_eq!(figures.ratio("case", "pair", "peer", "ours"), None);
        figures.add("case", "peer", "pair", 10.0);
        assert_eq!(figures.ratio("case", "pair", "peer", "ours"), Some(5.0));
        assert_eq!(figures.ratio("other", "pair", "peer", "ours"), None);
    }
}
