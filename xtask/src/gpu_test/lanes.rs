//! Runs rows beside each other: most of them wait half of the time, for other processes and for deadlines.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use super::build::Broken;
use super::matrix::{Driver, Kind, Row};
use super::plan::{Decision, Planned};
use super::progress::Progress;
use super::run::{Done, Outcome, Runner};

/// How many rows run at once. More of them would leave tests too little of a small machine.
const LANES: usize = 2;

/// What the lanes share.
struct Road<'a> {
    plan: &'a [Planned],
    waiting: Mutex<Waiting>,
    progress: Mutex<Progress>,
}

/// Rows that nobody has begun, and what rows that run have for themselves.
struct Waiting {
    /// By their places in the plan, those that need something for themselves first.
    rows: Vec<usize>,
    taken: Vec<Sole>,
}

/// What one row has at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sole {
    /// Its rows count what a device has free.
    Hardware,
    /// Its rows have much built, in one folder.
    Cargo,
    /// Its rows make an environment that all of them use.
    Python,
}

impl Sole {
    /// What a row needs for itself.
    fn of(row: &Row) -> Vec<Self> {
        let kind = match row.kind {
            Kind::Tests | Kind::OutsideProject => None,
            Kind::Doctests | Kind::Vendored => Some(Self::Cargo),
            Kind::Python => Some(Self::Python),
        };
        kind.into_iter().chain((row.driver == Driver::Gpu).then_some(Self::Hardware)).collect()
    }
}

/// Runs all rows; what came of each, in the order of the plan.
pub(super) fn run(plan: &[Planned], runner: &Runner<'_>, broken: &Broken) -> Vec<Done> {
    let road = Road::new(plan);
    let mut done: Vec<(usize, Done)> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(|| road.drive(runner, broken))).collect();
        // A lane that panicked has told why, and this thread ends the same way.
        lanes
            .into_iter()
            .flat_map(|lane| lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, done)| done).collect()
}

impl<'a> Road<'a> {
    fn new(plan: &'a [Planned]) -> Self {
        let mut rows: Vec<usize> = (0..plan.len()).collect();
        // They follow each other in one lane, and all others have the other one.
        rows.sort_by_key(|place| Sole::of(&plan[*place].row).is_empty());
        let waiting = Waiting { rows, taken: Vec::new() };
        Self { plan, waiting: Mutex::new(waiting), progress: Mutex::new(Progress::new(plan.len())) }
    }

    /// One lane: runs row after row until none is left for it.
    fn drive(&self, runner: &Runner<'_>, broken: &Broken) -> Vec<(usize, Done)> {
        let mut done = Vec::new();
        while let Some(place) = self.next() {
            let planned = &self.plan[place];
            let name = planned.row.name();
            lock(&self.progress).started(&name);
            let ended = run_row(planned, runner, broken, &mut || lock(&self.progress).running());
            lock(&self.progress).ended(&ended);
            self.give_back(place);
            done.push((place, ended));
        }
        done
    }

    /// Lets others have what a row had for itself.
    fn give_back(&self, place: usize) {
        let had = Sole::of(&self.plan[place].row);
        lock(&self.waiting).taken.retain(|sole| !had.contains(sole));
    }

    /// The first row that may run now. None as well where all that are left need what the other lane has, which will run them then.
    fn next(&self) -> Option<usize> {
        let mut waiting = lock(&self.waiting);
        let needs = |place: usize| Sole::of(&self.plan[place].row);
        let may_run = |place: &usize| !needs(*place).iter().any(|sole| waiting.taken.contains(sole));
        let at = waiting.rows.iter().position(may_run)?;
        let place = waiting.rows.remove(at);
        waiting.taken.extend(needs(place));
        Some(place)
    }
}

fn run_row(planned: &Planned, runner: &Runner<'_>, broken: &Broken, tick: &mut dyn FnMut()) -> Done {
    let row = &planned.row;
    let unstarted = |outcome| Done::unstarted(row.name(), outcome);
    match (&planned.decision, broken.get(&(row.package.clone(), row.features.clone()))) {
        (Decision::Skip(reason), _) => unstarted(Outcome::Skipped(reason.clone())),
        (Decision::Fail(reason), _) => unstarted(Outcome::Failed(reason.clone())),
        (Decision::Run, Some(error)) if row.kind == Kind::Tests => unstarted(Outcome::Failed(error.clone())),
        (Decision::Run, _) => runner.run(row, tick),
    }
}

/// A lane that panicked leaves nothing half done behind a lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::matrix::Matrix;
    use super::*;

    fn plan() -> Vec<Planned> {
        let row = |kind: &str, rest: &str| format!("[[row]]\nkind = {kind:?}\ncrates = [\"c\"]\n{rest}\n");
        let text = [
            "time-limit = 1\n".to_owned(),
            row("tests", "targets = [\"device\"]\ndrivers = [\"sim-13.0\", \"gpu\"]\ndevices = [1, 2]"),
            row("doctests", "drivers = [\"sim-13.0\"]"),
            row("vendored", "drivers = [\"sim-13.0\"]"),
        ];
        let rows = Matrix::parse(&text.concat()).unwrap().rows.into_iter();
        rows.map(|row| Planned { row, decision: Decision::Run, twin: None }).collect()
    }

    #[test]
    fn what_one_row_has_no_other_has_beside_it() {
        let plan = plan();
        let road = Road::new(&plan);
        let (mut running, mut begun) = (Vec::<usize>::new(), Vec::new());
        loop {
            let next = if running.len() < LANES { road.next() } else { None };
            match next {
                Some(place) => {
                    running.push(place);
                    begun.push(place);
                    let taken: Vec<Sole> =
                        running.iter().flat_map(|place| Sole::of(&plan[*place].row)).collect();
                    let is_twice = |sole: &Sole| taken.iter().filter(|other| *other == sole).count() > 1;
                    assert!(!taken.iter().any(is_twice), "{taken:?} beside each other");
                }
                None if running.is_empty() => break,
                None => road.give_back(running.remove(0)),
            }
        }
        begun.sort_unstable();
        assert_eq!(begun, (0..plan.len()).collect::<Vec<_>>(), "each row once");
    }

    #[test]
    fn a_lane_ends_where_all_that_is_left_needs_what_the_other_has() {
        let mut plan = plan();
        plan.retain(|planned| planned.row.driver == Driver::Gpu);
        let road = Road::new(&plan);
        let first = road.next().unwrap();
        assert_eq!(road.next(), None);
        road.give_back(first);
        assert!(road.next().is_some_and(|second| second != first));
    }
}
