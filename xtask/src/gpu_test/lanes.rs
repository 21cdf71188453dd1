//! Runs rows beside each other: most of them wait half of the time, for other processes and for deadlines.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use super::build::Broken;
use super::matrix::{Driver, Kind};
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

/// Rows that nobody has begun, and whether one that runs has the hardware: its rows count what a device has free.
struct Waiting {
    /// By their places in the plan, those on hardware first.
    rows: Vec<usize>,
    is_hardware_taken: bool,
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
        rows.sort_by_key(|place| !is_on_hardware(&plan[*place]));
        let waiting = Waiting { rows, is_hardware_taken: false };
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
        if is_on_hardware(&self.plan[place]) {
            lock(&self.waiting).is_hardware_taken = false;
        }
    }

    /// The first row that may run now. None as well where all that are left need the hardware that the other lane has, which will run
    /// them then.
    fn next(&self) -> Option<usize> {
        let mut waiting = lock(&self.waiting);
        let is_taken = waiting.is_hardware_taken;
        let at = waiting.rows.iter().position(|place| !(is_taken && is_on_hardware(&self.plan[*place])))?;
        let place = waiting.rows.remove(at);
        waiting.is_hardware_taken |= is_on_hardware(&self.plan[place]);
        Some(place)
    }
}

fn is_on_hardware(planned: &Planned) -> bool {
    planned.row.driver == Driver::Gpu
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
        ];
        let rows = Matrix::parse(&text.concat()).unwrap().rows.into_iter();
        rows.map(|row| Planned { row, decision: Decision::Run, twin: None }).collect()
    }

    #[test]
    fn hardware_is_for_one_row_at_a_time() {
        let plan = plan();
        let road = Road::new(&plan);
        let (mut running, mut begun) = (Vec::<usize>::new(), Vec::new());
        loop {
            let next = if running.len() < LANES { road.next() } else { None };
            match next {
                Some(place) => {
                    running.push(place);
                    begun.push(place);
                    let on_hardware = running.iter().filter(|place| is_on_hardware(&plan[**place]));
                    assert!(on_hardware.count() <= 1, "{running:?} beside each other");
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
