//! What people and programs get to read.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::figures::{self, Series, unit};
use super::goal::Verdict;
use super::rounds::Run;
use super::suite::Suite;
use super::system::State;
use crate::table;

/// A finished run with all that belongs to it.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    pub(crate) suite: &'a Suite,
    pub(crate) system: &'a State,
    pub(crate) on_gpu: bool,
    pub(crate) quick: bool,
    pub(crate) run: &'a Run,
    pub(crate) verdicts: &'a [Verdict],
}

impl Report<'_> {
    /// Writes `NAME.json`.
    pub(crate) fn write_json(&self, out: &Path) -> Result<PathBuf> {
        let path = out.join(format!("{}.json", self.suite.name));
        let text = serde_json::to_string_pretty(&self.json())?;
        fs::write(&path, text + "\n").with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    fn json(&self) -> Value {
        let programs =
            self.run.programs.iter().map(|(name, info)| json!({ "participants": name, "versions": info }));
        let requests =
            self.suite.cases.iter().map(|case| json!({ "case": case.name, "request": case.request }));
        let figures = self.in_order().into_iter().map(|series| {
            let summary = series.summary();
            json!({
                "case": series.case,
                "participant": series.participant,
                "metric": series.metric,
                "unit": unit(&series.metric),
                "rounds": series.values.len(),
                "median": summary.median,
                "min": summary.min,
                "max": summary.max,
                "of_ours": self.of_ours(series),
                "values": series.values,
            })
        });
        json!({
            "bench": self.suite.name,
            "quick": self.quick,
            "backend": if self.on_gpu { "gpu" } else { "sim" },
            "system": self.system,
            "programs": programs.collect::<Vec<_>>(),
            "cases": requests.collect::<Vec<_>>(),
            "figures": figures.collect::<Vec<_>>(),
            "goals": self.verdicts,
            "absent": self.run.absences,
        })
    }

    /// The median over that of ours, for everybody but ours.
    fn of_ours(&self, series: &Series) -> Option<f64> {
        let ours = ["ours", "staged"].into_iter().find_map(|name| {
            let median = self.run.figures.median(&series.case, name, &series.metric)?;
            (series.participant != name).then_some(median)
        })?;
        Some(series.summary().median / ours).filter(|ratio| ratio.is_finite())
    }

    /// Prints the figures, the verdicts, the absences and, last, one line that says it all.
    pub(crate) fn show(&self, files: &[PathBuf]) {
        match self.suite.tables {
            Some(tables) => println!("\n{}", tables(&self.run.figures)),
            None => println!("\n{}", self.all_figures()),
        }
        if !self.verdicts.is_empty() {
            let rows = self.verdicts.iter().map(|verdict| {
                let found = verdict.found.map_or_else(|| "-".to_owned(), short);
                vec![verdict.goal.clone(), verdict.bound(), found, verdict.verdict.to_owned()]
            });
            println!(
                "{}",
                table::render(&["goal", "wanted", "found", "verdict"], &rows.collect::<Vec<_>>(), &[2])
            );
        }
        for absence in &self.run.absences {
            let case = absence.case.as_ref().map_or_else(String::new, |case| format!(" in `{case}`"));
            let what = if absence.is_failure { "FAILED" } else { "absent" };
            println!("{what}: {}{case}: {}", absence.participants.join(", "), absence.reason);
        }
        for file in files {
            println!("written: {}", file.display());
        }
        println!("{}", self.tally());
    }

    /// A line for each series.
    fn all_figures(&self) -> String {
        let rows = self.in_order().into_iter().map(|series| {
            let summary = series.summary();
            let ratio = self.of_ours(series).map_or_else(String::new, short);
            vec![
                series.case.clone(),
                series.metric.clone(),
                series.participant.clone(),
                short(summary.median),
                short(summary.min),
                short(summary.max),
                unit(&series.metric).to_owned(),
                ratio,
            ]
        });
        let heading = ["case", "metric", "participant", "median", "min", "max", "unit", "÷ ours"];
        table::render(&heading, &rows.collect::<Vec<_>>(), &[3, 4, 5, 7])
    }

    /// The series by case, metric and participant, as the suite lists them.
    fn in_order(&self) -> Vec<&Series> {
        let mut all = self.run.figures.iter().collect::<Vec<_>>();
        let place = |series: &Series| {
            let case = self.suite.cases.iter().position(|case| case.name == series.case)?;
            let players = self.suite.cases.get(case)?.participants;
            Some((
                case,
                figures::place(&series.metric),
                players.iter().position(|name| *name == series.participant),
            ))
        };
        all.sort_by_key(|series| place(series));
        all
    }

    fn tally(&self) -> String {
        let failures = self.run.absences.iter().filter(|absence| absence.is_failure).count();
        let measured = self.run.figures.iter().count();
        let mut tally = format!("{}: {measured} figures, {failures} failed", self.suite.name);
        if !self.verdicts.is_empty() {
            let count = |what| self.verdicts.iter().filter(|verdict| verdict.verdict == what).count();
            let (met, missed, open) = (count("met"), count("missed"), count("not measured"));
            tally += &format!("; goals: {met} met, {missed} missed, {open} not measured");
        }
        tally
    }
}

/// Four digits, and all of them before the point if there are more.
pub(crate) fn short(value: f64) -> String {
    let magnitude = value.abs();
    let digits = match magnitude {
        _ if magnitude >= 1000.0 => 0,
        _ if magnitude >= 100.0 => 1,
        _ if magnitude >= 10.0 => 2,
        _ if magnitude >= 0.1 => 4,
        _ => 6,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_long_as_they_tell_something() {
        let numbers = [123_456.7, 123.45, 12.345, 1.00061, 0.0123].map(short);
        assert_eq!(numbers, ["123457", "123.5", "12.35", "1.0006", "0.012300"]);
    }
}
