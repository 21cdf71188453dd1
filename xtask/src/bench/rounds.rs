//! The run itself: each case in rounds, in each round everybody once, each round begun by another.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Map, Value};

use super::figures::{Figures, unit};
use super::peers::Launcher;
use super::program::{Answer, Program};
use super::report::short;
use super::suite::{Case, Kind, Seat, Suite};

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) figures: Figures,
    /// Who ran, with what versions.
    pub(crate) programs: Vec<(String, Map<String, Value>)>,
    pub(crate) absences: Vec<Absence>,
}

/// Somebody who did not take part in a case, or in any.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Absence {
    pub(crate) case: Option<String>,
    pub(crate) participants: Vec<String>,
    pub(crate) reason: String,
    /// It is ours and it failed: the run has failed. A peer's failure is the peer's.
    pub(crate) is_failure: bool,
}

impl Run {
    pub(crate) fn has_failed(&self) -> bool {
        self.absences.iter().any(|absence| absence.is_failure)
    }
}

/// A seat with its program.
struct Taken<'s> {
    seat: &'s Seat,
    program: Program,
}

/// Starts all programs and goes through all cases.
pub(crate) fn run(suite: &Suite, launcher: &Launcher<'_>, out: &Path) -> Result<Run> {
    let logs = out.join("logs");
    fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
    let mut run = Run { figures: Figures::default(), programs: Vec::new(), absences: Vec::new() };
    let mut taken = Vec::new();
    for seat in &suite.programs {
        let name = seat.participants.join("+");
        let log = logs.join(format!("{name}.log"));
        let log = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let started = launcher.command(seat.kind).and_then(|command| match command {
            Ok(mut command) => Program::start(&mut command, log).map(Ok),
            Err(reason) => Ok(Err(reason)),
        });
        let (reason, is_failure) = match started {
            Ok(Ok((program, Answer::Ready(info)))) => {
                run.programs.push((name, info));
                taken.push(Taken { seat, program });
                continue;
            }
            Ok(Ok((_, Answer::Skip(reason)))) | Ok(Err(reason)) => (reason, false),
            Ok(Ok((_, Answer::Error(reason)))) => (reason, seat.kind == Kind::Ours),
            Ok(Ok((_, Answer::Figures(_)))) => {
                ("it measured before it was asked".to_owned(), seat.kind == Kind::Ours)
            }
            Err(error) => (format!("{error:#}"), seat.kind == Kind::Ours),
        };
        let participants = seat.participants.iter().map(|name| (*name).to_owned()).collect();
        note(&mut run.absences, Absence { case: None, participants, reason, is_failure });
    }
    for case in &suite.cases {
        play(case, &mut taken, &mut run);
    }
    Ok(run)
}

/// One case.
fn play(case: &Case, taken: &mut [Taken<'_>], run: &mut Run) {
    println!("{}: {} rounds", case.name, case.rounds);
    let mut players = case.participants.to_vec();
    players.retain(|player| taken.iter().any(|taken| taken.seat.participants.contains(player)));
    let warm_up = case.warm_up.iter().map(|request| (request, false));
    let rounds = (0..case.rounds).map(|_| (&case.request, true));
    for (round, (request, counts)) in warm_up.chain(rounds).enumerate() {
        for player in in_turn(&players, round) {
            let Some(seat) = taken.iter_mut().find(|taken| taken.seat.participants.contains(&player)) else {
                continue;
            };
            let (reason, is_failure) = match seat.program.ask(&format!("{player} {request}")) {
                Answer::Figures(figures) => {
                    for (metric, value) in figures.into_iter().filter(|_| counts) {
                        run.figures.add(&case.name, player, &metric, value);
                    }
                    continue;
                }
                Answer::Skip(reason) => (reason, false),
                Answer::Error(reason) => (reason, seat.seat.kind == Kind::Ours),
                Answer::Ready(_) => ("it answered without a figure".to_owned(), seat.seat.kind == Kind::Ours),
            };
            // Whoever cannot, or fails, is not asked again.
            players.retain(|other| *other != player);
            let (case, participants) = (Some(case.name.clone()), vec![player.to_owned()]);
            note(&mut run.absences, Absence { case, participants, reason, is_failure });
        }
    }
    if let Some(line) = medians(case, &run.figures) {
        println!("  {line}");
    }
}

/// Everybody's median so far of what a case measures first: a run takes long, and somebody may end it.
fn medians(case: &Case, figures: &Figures) -> Option<String> {
    let metric = figures.iter().find(|series| series.case == case.name)?.metric.clone();
    let of = |player: &&str| {
        let median = figures.median(&case.name, player, &metric)?;
        Some(format!("{player} {}", short(median)))
    };
    let players = case.participants.iter().filter_map(of).collect::<Vec<_>>();
    Some(format!("{metric} in {}: {}", unit(&metric), players.join(", ")))
}

/// All of them, beginning with another in each round: who comes first finds other caches and clocks than who comes second.
fn in_turn<'p>(players: &[&'p str], round: usize) -> Vec<&'p str> {
    let mut players = players.to_vec();
    if !players.is_empty() {
        let first = round % players.len();
        players.rotate_left(first);
    }
    players
}

fn note(absences: &mut Vec<Absence>, absence: Absence) {
    let what = if absence.is_failure { "FAILED" } else { "absent" };
    println!("  {} {what}: {}", absence.participants.join(", "), absence.reason);
    absences.push(absence);
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn seat(kind: Kind, name: &'static [&'static str]) -> Seat {
        Seat { kind, participants: name }
    }

    fn program(script: &str) -> Program {
        let log = File::options().write(true).open("/dev/null").unwrap();
        let script = format!("echo '{{\"ready\":{{}}}}'; {script}");
        let (program, first) = Program::start(Command::new("sh").args(["-c", &script]), log).unwrap();
        assert_eq!(first, Answer::Ready(Map::new()));
        program
    }

    const PEER: Kind = Kind::Python { script: "", native: None, env: &[] };

    #[test]
    fn rounds_are_counted_and_failures_told_apart() {
        // One that counts its questions, one that never can, one that fails in the second round.
        let counts = "n=0; while read q; do n=$((n+1)); echo \"{\\\"figures\\\":{\\\"ready\\\":$n}}\"; done";
        let cannot = "while read q; do echo '{\"skip\":\"no\"}'; done";
        let fails = "for i in 1 2; do read q; echo '{\"figures\":{\"ready\":9}}'; done; read q; echo '{\"error\":\"!\"}'";
        let seats = [seat(PEER, &["counts"]), seat(PEER, &["cannot"]), seat(Kind::Ours, &["fails"])];
        let programs = [counts, cannot, fails].map(program);
        let mut taken =
            seats.iter().zip(programs).map(|(seat, program)| Taken { seat, program }).collect::<Vec<_>>();
        let case = Case {
            name: "case".to_owned(),
            participants: &["counts", "cannot", "fails", "not there"],
            request: "x".to_owned(),
            warm_up: Some("x".to_owned()),
            rounds: 4,
            memory: 0,
        };
        let mut run = Run { figures: Figures::default(), programs: vec![], absences: vec![] };
        play(&case, &mut taken, &mut run);
        let values =
            run.figures.iter().map(|series| (&*series.participant, &*series.values)).collect::<Vec<_>>();
        assert_eq!(values, [("fails", &[9.0][..]), ("counts", &[2.0, 3.0, 4.0, 5.0])]);
        assert_eq!(medians(&case, &run.figures).unwrap(), "ready in s: counts 3.5000, fails 9.0000");
        let told = run.absences.iter().map(|absence| (&*absence.participants[0], absence.is_failure));
        assert_eq!(told.collect::<Vec<_>>(), [("cannot", false), ("fails", true)]);
        assert!(run.has_failed());
    }

    #[test]
    fn everybody_begins_once() {
        let players = ["a", "b", "c"];
        let firsts = (0..4).map(|round| in_turn(&players, round)[0]).collect::<Vec<_>>();
        assert_eq!(firsts, ["a", "b", "c", "a"]);
        assert_eq!(in_turn(&players, 1), ["b", "c", "a"]);
        assert!(in_turn(&[], 5).is_empty());
    }
}
