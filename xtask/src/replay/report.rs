//! What people and programs get to read.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::capacity::Smallest;
use super::check::Sums;
use super::costs::Kind;
use super::plan::Plan;
use super::play::Outcome;
use super::setting::{Setting, name};
use crate::table;

/// One replayed trace.
#[derive(Debug)]
pub(crate) struct Row {
    trace: String,
    setting: Setting,
    allocations: usize,
    wall: Option<f64>,
    outcome: Outcome,
    smallest: Option<Smallest>,
}

impl Row {
    pub(crate) fn new(plan: &Plan, setting: &Setting, outcome: Outcome, smallest: Option<Smallest>) -> Self {
        Self {
            trace: plan.name.clone(),
            setting: *setting,
            allocations: plan.blocks.len(),
            wall: plan.wall,
            outcome,
            smallest,
        }
    }

    fn ratio(&self) -> f64 {
        quotient(self.outcome.peaks.reserved, self.outcome.peak_active)
    }

    /// Driver time and host waits as a share of the run, if the trace tells how long that took.
    fn share(&self) -> Option<f64> {
        let costs = &self.outcome.costs;
        self.wall.map(|wall| (costs.driver + costs.host_wait).as_secs_f64() / wall)
    }

    fn capacity_ratio(&self) -> Option<f64> {
        self.smallest.as_ref().map(|smallest| quotient(smallest.bytes, self.outcome.peak_active))
    }

    /// One line for programs.
    pub(crate) fn json(&self) -> Value {
        let Outcome { peaks, costs, tally, nanoseconds, oom, late_calls, late_time, .. } = &self.outcome;
        let calls = costs.calls.by_kind().map(|(kind, count)| (kind.name().to_owned(), json!(count)));
        let mut row = json!({
            "trace": self.trace,
            "allocator": name(self.setting.allocator),
            "backend": name(self.setting.backend),
            "lag": self.setting.lag,
            "threads": self.setting.threads,
            "allocs": self.allocations,
            "peak_live": self.outcome.peak_live,
            "peak_active": self.outcome.peak_active,
            "peak_reserved": peaks.reserved,
            "ratio": self.ratio(),
            "driver_calls": calls.collect::<serde_json::Map<_, _>>(),
            "driver_seconds": costs.driver.as_secs_f64(),
            "host_wait_seconds": costs.host_wait.as_secs_f64(),
            "driver_share": self.share(),
            "mappings_peak": peaks.mappings,
            "metadata_bytes": tally.metadata_bytes,
            "ns_per_op": nanoseconds,
            "late_calls_per_10k": late_calls,
            "late_share": self.wall.map(|wall| late_time.as_secs_f64() / (wall / 2.0)),
            "stream_waits": costs.calls.of(Kind::StreamWait),
            "host_waits": costs.calls.of(Kind::HostWait),
            "device_syncs": costs.syncs,
            "oom": oom,
            "min_capacity_ratio": self.capacity_ratio(),
        });
        if let Some(bytes) = tally.unconfirmed {
            row["unconfirmed_bytes"] = json!(bytes);
        }
        row
    }
}

/// The tables for people, and a last line that says it all.
pub(crate) fn tables(rows: &[Row], setting: &Setting) -> String {
    let parts = [memory(rows), time(rows), calls(rows), confirmed(rows), last_line(rows, setting)];
    parts.iter().filter(|part| !part.is_empty()).map(|part| format!("{part}\n")).collect()
}

/// What the driver says of the memory that is held, where it was asked.
fn confirmed(rows: &[Row]) -> String {
    let most = rows.iter().filter_map(|row| row.outcome.tally.unconfirmed).max();
    most.map_or_else(String::new, |most| {
        format!("the driver's free memory fell by what is held at the end, within {} MiB\n", mebibytes(most))
    })
}

fn memory(rows: &[Row]) -> String {
    let heading = [
        "trace",
        "allocations",
        "live MiB",
        "active MiB",
        "reserved MiB",
        "ratio",
        "mappings",
        "books KiB",
        "oom",
        "smallest MiB",
        "ratio",
    ];
    let cells = rows.iter().map(|row| {
        let Outcome { peaks, tally, oom, .. } = &row.outcome;
        let smallest = row.smallest.as_ref();
        let lucky = smallest.is_some_and(|smallest| !smallest.lucky.is_empty());
        vec![
            row.trace.clone(),
            row.allocations.to_string(),
            mebibytes(row.outcome.peak_live),
            mebibytes(row.outcome.peak_active),
            mebibytes(peaks.reserved),
            format!("{:.4}", row.ratio()),
            peaks.mappings.to_string(),
            (tally.metadata_bytes >> 10).to_string(),
            oom.to_string(),
            smallest.map_or_else(dash, |found| {
                mebibytes(found.bytes) + if lucky { " (not monotone)" } else { "" }
            }),
            row.capacity_ratio().map_or_else(dash, |ratio| format!("{ratio:.4}")),
        ]
    });
    table::render(&heading, &cells.collect::<Vec<_>>(), &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
}

fn time(rows: &[Row]) -> String {
    let heading = [
        "trace",
        "run s",
        "driver ms",
        "host wait ms",
        "share %",
        "ns/operation",
        "retries",
        "device syncs",
        "driver calls",
        "late calls /10,000",
    ];
    let cells = rows.iter().map(|row| {
        let Outcome { costs, tally, nanoseconds, late_calls, .. } = &row.outcome;
        vec![
            row.trace.clone(),
            row.wall.map_or_else(dash, |wall| format!("{wall:.1}")),
            format!("{:.2}", costs.driver.as_secs_f64() * 1e3),
            format!("{:.2}", costs.host_wait.as_secs_f64() * 1e3),
            row.share().map_or_else(dash, |share| format!("{:.3}", share * 100.0)),
            format!("{nanoseconds:.0}"),
            tally.retries.to_string(),
            costs.syncs.to_string(),
            costs.calls.total().to_string(),
            format!("{late_calls:.1}"),
        ]
    });
    table::render(&heading, &cells.collect::<Vec<_>>(), &[1, 2, 3, 4, 5, 6, 7, 8, 9])
}

/// Driver calls by kind; kinds that nobody made are left out.
fn calls(rows: &[Row]) -> String {
    let of = |row: &Row| row.outcome.costs.calls.by_kind().map(|(_, count)| count).collect::<Vec<_>>();
    let counts = rows.iter().map(of).collect::<Vec<_>>();
    let made = |place: &usize| counts.iter().any(|row| row[*place] > 0);
    let shown = (0..Kind::ALL.len()).filter(made).collect::<Vec<_>>();
    let mut heading = vec!["trace"];
    heading.extend(shown.iter().map(|place| Kind::ALL[*place].name()));
    let cells = rows.iter().zip(&counts).map(|(row, counts)| {
        let counts = shown.iter().map(|place| counts[*place].to_string());
        std::iter::once(row.trace.clone()).chain(counts).collect()
    });
    let right = (1..heading.len()).collect::<Vec<_>>();
    table::render(&heading, &cells.collect::<Vec<_>>(), &right)
}

fn last_line(rows: &[Row], setting: &Setting) -> String {
    let ratios = rows.iter().map(Row::ratio);
    let (least, most) = (ratios.clone().fold(f64::INFINITY, f64::min), ratios.fold(0.0, f64::max));
    let share = rows.iter().filter_map(Row::share).reduce(f64::max);
    let syncs = rows.iter().map(|row| row.outcome.costs.syncs).sum::<u64>();
    let oom = rows.iter().map(|row| row.outcome.oom).sum::<u64>();
    format!(
        "{} {}, {} on {}, lag {}, threads {}: ratio {least:.4} to {most:.4}, driver share at most {}, {syncs} device \
         synchronisations, {oom} out-of-memory events",
        rows.len(),
        if rows.len() == 1 { "trace" } else { "traces" },
        name(setting.allocator),
        name(setting.backend),
        setting.lag,
        setting.threads,
        share.map_or_else(|| "unknown".to_owned(), |share| format!("{:.3} %", share * 100.0)),
    )
}

/// What a checked log amounts to.
pub(crate) fn sums(sums: &Sums) -> String {
    let rows = [
        ("allocations", sums.allocations.to_string()),
        ("out of memory", sums.oom.to_string()),
        ("peak live MiB", mebibytes(sums.peak_live)),
        ("peak active MiB", sums.peak_active.map_or_else(dash, mebibytes)),
        ("peak reserved MiB", mebibytes(sums.peak_reserved)),
        ("peak mappings", sums.peak_mappings.to_string()),
        ("host waits", sums.waits.to_string()),
        ("driver ms", format!("{:.2}", sums.driver_seconds * 1e3)),
    ];
    let rows = rows.map(|(name, value)| vec![name.to_owned(), value]);
    format!(
        "{}\nthe log of {} events is right\n",
        table::render(&["figure", "value"], &rows, &[1]),
        sums.events
    )
}

/// The replay's figures against those of the checker.
pub(crate) fn compare(sums: &Sums, outcome: &Outcome) -> Result<()> {
    let pairs = [
        ("out-of-memory events", sums.oom, outcome.oom),
        ("peak reserved bytes", sums.peak_reserved, outcome.peaks.reserved),
        ("peak mappings", sums.peak_mappings, outcome.peaks.mappings),
        ("peak live bytes", sums.peak_live, outcome.peak_live),
    ];
    for (what, checked, told) in pairs {
        ensure!(checked == told, "{what}: {told} by the replay, {checked} by the checker");
    }
    ensure!(
        sums.peak_active == Some(outcome.peak_active),
        "peak active bytes: {} by the replay, {:?} by the checker",
        outcome.peak_active,
        sums.peak_active
    );
    Ok(())
}

fn dash() -> String {
    "-".to_owned()
}

#[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
fn mebibytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// Nothing for nothing is as it should be; something for nothing is beyond all measure, which JSON writes as null.
#[expect(clippy::cast_precision_loss, reason = "a ratio needs no last digit")]
fn quotient(bytes: u64, of: u64) -> f64 {
    match (bytes, of) {
        (0, 0) => 1.0,
        (_, 0) => f64::INFINITY,
        _ => bytes as f64 / of as f64,
    }
}
