//! The matrix against the workspace: what was added to a crate and forgotten in the matrix fails here.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::matrix::{DefaultStream, Driver, Kind, Matrix, Row};
use crate::workspace::{Package, Workspace};

/// Integration tests of these names run on the simulator and on hardware alike.
const PORTABLE: &[&str] = &["device", "conformance", "processes", "symmetric"];

/// The same, for ranks that have a device each: on two.
const OF_TWO: &[&str] = &["engines"];

/// Those of `cuda-mem-ipc` that take long: with the other default stream, one simulator is enough.
const LONG: &[&str] = &["processes", "symmetric"];

/// Takes a minute: on the simulator each setting once, in one of these.
const LONGEST: &str = "processes";
const OF_LONGEST: &[(Driver, usize, DefaultStream)] =
    &[(SIM_13_0, 2, DefaultStream::Legacy), (SIM_12_2, 1, DefaultStream::PerThread)];

const SIM_13_0: Driver = Driver::Simulator(13000);
const SIM_12_2: Driver = Driver::Simulator(12020);

/// What every portable test, and every crate in an outside project, must be run on.
const CONFIGURATIONS: &[(Driver, usize)] = &[
    (SIM_13_0, 1),
    (SIM_12_2, 1),
    (SIM_13_0, 2),
    (SIM_13_0, 4),
    (Driver::Gpu, 1),
    (Driver::Gpu, 2),
    (Driver::Gpu, 4),
];

fn workspace() -> (Workspace, Vec<Row>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let matrix = Matrix::read(&root.join("ci/gpu-matrix.toml")).unwrap();
    (Workspace::read(root).unwrap(), matrix.rows)
}

/// The crates that the matrix is about: all but this tool and the wrapper that makes the simulator a library.
fn crates(workspace: &Workspace) -> impl Iterator<Item = &Package> {
    workspace.packages.iter().filter(|package| !["xtask", "cuda-mem-sim-library"].contains(&&*package.name))
}

/// Whether any source of the crate's library holds `text`.
fn sources_hold(folder: &Path, text: &str) -> bool {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).any(|path| match path.is_dir() {
        true => sources_hold(&path, text),
        false => {
            path.extension().is_some_and(|ending| ending == "rs")
                && fs::read_to_string(&path).unwrap().contains(text)
        }
    })
}

/// The test targets that have tests: `lib` and the names in `tests/`.
fn test_targets(package: &Package) -> Vec<String> {
    let mut targets = Vec::new();
    for target in package.targets.iter().filter(|target| target.test) {
        if target.kind.iter().any(|kind| kind == "test") {
            targets.push(target.name.clone());
        } else if sources_hold(&package.folder().join("src"), "#[test]") {
            targets.push("lib".to_owned());
        }
    }
    targets
}

/// All of it at once, so that one run of this test names all that is missing.
#[test]
fn the_matrix_forgets_nothing() {
    let (workspace, rows) = workspace();
    let mut missing = Vec::new();
    for package in crates(&workspace) {
        let of_kind =
            |kind: Kind| rows.iter().filter(move |row| row.package == package.name && row.kind == kind);
        let mut lacks = |what: String| missing.push(format!("{}: {what}", package.name));

        for target in test_targets(package) {
            let mut with_target = of_kind(Kind::Tests).filter(|row| row.targets.contains(&target));
            let of_two = OF_TWO.contains(&&*target) && package.name == "cuda-mem-ipc";
            if !PORTABLE.contains(&&*target) && !of_two {
                if with_target.next().is_none() {
                    lacks(format!("no row runs the test target `{target}`"));
                }
                continue;
            }
            for stream in [DefaultStream::Legacy, DefaultStream::PerThread] {
                let is_long = LONG.contains(&&*target) && package.name == "cuda-mem-ipc";
                let is_longest = is_long && *target == *LONGEST;
                let is_asked = |&&(driver, devices): &&(Driver, usize)| {
                    if is_longest && driver != Driver::Gpu {
                        return OF_LONGEST.contains(&(driver, devices, stream));
                    }
                    let is_once = driver == Driver::Gpu || (driver, devices) == (SIM_13_0, 1);
                    (!of_two || devices == 2) && (!is_long || stream == DefaultStream::Legacy || is_once)
                };
                for (driver, devices) in CONFIGURATIONS.iter().filter(is_asked) {
                    let there = with_target.clone().any(|row| {
                        row.driver == *driver && row.devices == *devices && row.default_stream == stream
                    });
                    if !there {
                        lacks(format!("`{target}` does not run on {driver} x{devices} {}", stream.name()));
                    }
                }
            }
        }

        if !test_targets(package).is_empty() {
            let built = of_kind(Kind::Tests).map(|row| package.closure(&row.features).unwrap());
            let built = built.collect::<BTreeSet<_>>();
            for build in package.distinct_builds().unwrap().difference(&built) {
                lacks(format!("no row tests it with exactly the features {build:?}"));
            }
        }
        if sources_hold(&package.folder().join("src"), "//! ```") && of_kind(Kind::Doctests).next().is_none()
        {
            lacks("no row runs its documentation tests".to_owned());
        }
        for (driver, devices) in CONFIGURATIONS.iter().filter(|_| package.is_published()) {
            let on = |row: &Row| row.driver == *driver && row.devices == *devices;
            if !of_kind(Kind::OutsideProject).any(on) {
                lacks(format!("no outside project runs it on {driver} x{devices}"));
            }
        }
        if package.name == "cuda-mem-sys" && of_kind(Kind::Vendored).next().is_none() {
            lacks("no row vendors it".to_owned());
        }
    }
    assert!(missing.is_empty(), "ci/gpu-matrix.toml lacks rows:\n{}", missing.join("\n"));
}

#[test]
fn the_matrix_names_only_what_is_there() {
    let (workspace, rows) = workspace();
    for row in &rows {
        let package = workspace.package(&row.package).unwrap();
        package.closure(&row.features).unwrap();
        if row.kind == Kind::Python {
            let scripts = workspace.root.join("ci").join(super::SCRIPTS);
            for script in &row.targets {
                assert!(scripts.join(script).with_extension("py").is_file(), "{}: no `{script}`", row.name());
            }
            continue;
        }
        for target in &row.targets {
            assert!(test_targets(package).contains(target), "{}: no test target `{target}`", row.name());
            let portable = PORTABLE.iter().chain(OF_TWO).any(|portable| portable == target);
            assert!(portable || row.driver != Driver::Gpu, "{}: `{target}` is not portable", row.name());
        }
    }
}
