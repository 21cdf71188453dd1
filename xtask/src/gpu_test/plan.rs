//! Which rows run here, which are skipped, and why. A skip never counts as passed.

use std::collections::BTreeSet;

use super::machine::Machine;
use super::matrix::{Driver, Kind, Row};
use crate::workspace::FeatureSet;

/// Whose driver the rows run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Backend {
    /// A GPU's driver if the machine has one, else the simulator; tests run on both.
    Auto,
    /// The GPU's driver, without which all fails; rows of tests run on the simulator too, to be compared.
    Gpu,
    /// The simulator alone.
    Sim,
}

/// What happens to a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    Run,
    Skip(String),
    Fail(String),
}

/// A row and its fate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) row: Row,
    pub(crate) decision: Decision,
    /// For a row on hardware: the position of the simulated row that it is compared with.
    pub(crate) twin: Option<usize>,
}

/// Whether a name matches a pattern: `*` stands for anything, and a pattern without one may match anywhere in the name.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    if !pattern.contains('*') {
        return name.contains(pattern);
    }
    let pieces = pattern.split('*').collect::<Vec<_>>();
    let (first, last) = (pieces[0], pieces[pieces.len() - 1]);
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    for piece in &pieces[1..pieces.len() - 1] {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

/// Decides on every row that the backend is for; each hardware row that runs gets its twin on the simulator.
pub(crate) fn plan(rows: Vec<Row>, backend: Backend, machine: &Machine) -> Vec<Planned> {
    let mut planned = rows
        .into_iter()
        .filter(|row| match backend {
            Backend::Auto => true,
            Backend::Gpu => row.driver == Driver::Gpu,
            Backend::Sim => row.driver != Driver::Gpu,
        })
        .map(|row| Planned { decision: decide(&row, backend, machine), row, twin: None })
        .collect::<Vec<_>>();
    let Ok(gpu) = &machine.gpu else { return planned };
    for index in 0..planned.len() {
        if planned[index].row.driver != Driver::Gpu || planned[index].decision != Decision::Run {
            continue;
        }
        let twin = planned[index].row.twin(gpu.driver);
        let position = planned.iter().position(|other| other.row.name() == twin.name());
        planned[index].twin = Some(position.unwrap_or(planned.len()));
        if position.is_none() {
            planned.push(Planned { row: twin, decision: Decision::Run, twin: None });
        }
    }
    planned
}

fn decide(row: &Row, backend: Backend, machine: &Machine) -> Decision {
    if row.driver != Driver::Gpu {
        return Decision::Run;
    }
    match &machine.gpu {
        Ok(gpu) if gpu.devices.len() < row.devices => {
            Decision::Skip(format!("needs {} GPUs, the machine has {}", row.devices, gpu.devices.len()))
        }
        Ok(_) => Decision::Run,
        // Whoever asks for the GPU is told that nothing was shown, and not that all was well.
        Err(reason) if backend == Backend::Gpu => Decision::Fail(format!("no GPU: {reason}")),
        // The probe's reason stands once, at the head of the run.
        Err(_) => Decision::Skip("needs a GPU, the probe found none".to_owned()),
    }
}

/// The rows whose executables also run on hardware: what a bundle holds, and all that it runs.
pub(crate) fn portable(rows: &[Row]) -> Vec<Row> {
    let on_hardware = rows.iter().filter(|row| row.driver == Driver::Gpu).map(build).collect::<BTreeSet<_>>();
    rows.iter().filter(|row| on_hardware.contains(&build(row))).cloned().collect()
}

/// What two rows share if they run the same executables.
fn build(row: &Row) -> (Kind, &str, &FeatureSet, &[String]) {
    (row.kind, &row.package, &row.features, &row.targets)
}

#[cfg(test)]
mod tests {
    use super::super::machine::{Device, Gpu, Host};
    use super::super::matrix::Matrix;
    use super::*;

    fn machine(gpus: Option<usize>) -> Machine {
        let device = Device { name: "G".to_owned(), bus: "0".to_owned(), memory: 1, numa_node: 0 };
        Machine {
            gpu: gpus
                .map(|count| Gpu { driver: 13000, devices: vec![device; count] })
                .ok_or_else(|| "no library".to_owned()),
            stand_in: None,
            host: Host {
                processors: 1,
                numa_nodes: 1,
                transparent_huge_pages: "never".to_owned(),
                kernel: "6".to_owned(),
            },
        }
    }

    fn matrix() -> Matrix {
        Matrix::parse(
            r#"
            time-limit = 1
            [[row]]
            kind = "tests"
            crates = ["c"]
            targets = ["device"]
            drivers = ["sim-12.2", "gpu"]
            devices = [1, 2]
            [[row]]
            kind = "doctests"
            crates = ["c"]
            drivers = ["sim-13.0"]
        "#,
        )
        .unwrap()
    }

    fn planned(backend: Backend, gpus: Option<usize>) -> Vec<(String, Decision)> {
        let plan = plan(matrix().rows, backend, &machine(gpus));
        plan.into_iter().map(|planned| (planned.row.name(), planned.decision)).collect()
    }

    fn row(name: &str, decision: Decision) -> (String, Decision) {
        (name.to_owned(), decision)
    }

    fn skip(reason: &str) -> Decision {
        Decision::Skip(reason.to_owned())
    }

    #[test]
    fn without_a_gpu_hardware_rows_are_skipped() {
        assert_eq!(
            planned(Backend::Auto, None),
            [
                row("c/device/default/sim-12.2/x1/legacy", Decision::Run),
                row("c/device/default/sim-12.2/x2/legacy", Decision::Run),
                row("c/device/default/gpu/x1/legacy", skip("needs a GPU, the probe found none")),
                row("c/device/default/gpu/x2/legacy", skip("needs a GPU, the probe found none")),
                row("c/doctests/default/sim-13.0/x1/legacy", Decision::Run),
            ]
        );
    }

    #[test]
    fn asking_for_a_gpu_that_is_not_there_fails_every_row() {
        let fail = || Decision::Fail("no GPU: no library".to_owned());
        assert_eq!(
            planned(Backend::Gpu, None),
            [row("c/device/default/gpu/x1/legacy", fail()), row("c/device/default/gpu/x2/legacy", fail()),]
        );
    }

    #[test]
    fn hardware_rows_that_run_get_a_simulated_twin_of_the_same_version() {
        assert_eq!(
            planned(Backend::Gpu, Some(1)),
            [
                row("c/device/default/gpu/x1/legacy", Decision::Run),
                row("c/device/default/gpu/x2/legacy", skip("needs 2 GPUs, the machine has 1")),
                row("c/device/default/sim-13.0/x1/legacy", Decision::Run),
            ]
        );
    }

    /// The plan for one row of tests, with what else the row says.
    fn of_row(says: &str, backend: Backend) -> Vec<Planned> {
        let text =
            format!("time-limit = 1\n[[row]]\nkind = 'tests'\ncrates = ['c']\ntargets = ['lib']\n{says}");
        plan(Matrix::parse(&text).unwrap().rows, backend, &machine(Some(4)))
    }

    #[test]
    fn a_twin_is_told_all_but_the_rounds_of_the_litmus_test() {
        let env = "env = { CUDA_MEM_LITMUS_ROUNDS = '1000000', RUST_TEST_THREADS = '8' }";
        let plan = of_row(&format!("drivers = ['gpu']\n{env}"), Backend::Gpu);
        assert_eq!(plan.iter().map(|planned| planned.row.env.len()).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn a_twin_that_is_in_the_matrix_runs_once() {
        let plan = of_row("drivers = ['sim-13.0', 'gpu']", Backend::Auto);
        assert_eq!(plan.len(), 2);
        assert_eq!((plan[0].twin, plan[1].twin), (None, Some(0)));
    }

    #[test]
    fn the_simulator_alone_leaves_hardware_out() {
        assert_eq!(
            planned(Backend::Sim, Some(2)),
            [
                row("c/device/default/sim-12.2/x1/legacy", Decision::Run),
                row("c/device/default/sim-12.2/x2/legacy", Decision::Run),
                row("c/doctests/default/sim-13.0/x1/legacy", Decision::Run),
            ]
        );
    }

    #[test]
    fn a_bundle_runs_what_hardware_can_run_and_its_simulated_counterparts() {
        let names = portable(&matrix().rows).iter().map(Row::name).collect::<Vec<_>>();
        assert_eq!(
            names,
            [
                "c/device/default/sim-12.2/x1/legacy",
                "c/device/default/sim-12.2/x2/legacy",
                "c/device/default/gpu/x1/legacy",
                "c/device/default/gpu/x2/legacy",
            ]
        );
    }

    #[test]
    fn patterns() {
        let name = "core/device/default/sim-13.0/x2/legacy";
        for pattern in ["core", "x2", name, "core/*", "*legacy", "core/*/x2/*", "*", "*device*"] {
            assert!(matches(pattern, name), "{pattern}");
        }
        for pattern in ["pool", "pool*", "*per_thread", "core/*/x4/*", "core*legacy*x2"] {
            assert!(!matches(pattern, name), "{pattern}");
        }
    }
}
