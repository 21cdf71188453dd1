//! The matrix against the workspace: what was added to a crate and forgotten in the matrix fails here.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::gpu_test::TESTED;
use crate::gpu_test::matrix::{DefaultStream, Driver, Kind, Matrix, Row};
use crate::workspace::{Package, Workspace};

/// Integration tests of these names run on the simulator and on hardware alike.
const PORTABLE: &[&str] = &["device", "conformance", "processes", "symmetric"];

/// The same, for ranks that have a device each: on two.
const OF_TWO: &[&str] = &["engines"];

/// Takes half a minute: not on four devices of the simulator.
const LONGEST: (&str, &str) = ("cuda-mem-ipc", "processes");

const SIM_13_0: Driver = Driver::Simulator(13000);
const SIM_12_2: Driver = Driver::Simulator(12020);

/// What every portable test, and every crate in an outside project, must be run on with `--full`.
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

/// The crates that the matrix is about: all but this tool, and the programs that must not compile, which `ci` has compiled.
fn crates(workspace: &Workspace) -> impl Iterator<Item = &Package> {
    workspace.packages.iter().filter(|package| !["xtask", "cuda-mem-ui"].contains(&&*package.name))
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
        let of_kind = |kind: Kind| {
            rows.iter().filter(move |row| row.kind == kind && row.packages().any(|name| name == package.name))
        };
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
            let is_asked = |&&(driver, devices): &&(Driver, usize)| {
                let is_longest = (&*package.name, &*target) == LONGEST && driver != Driver::Gpu;
                (!of_two || devices == 2) && !(is_longest && devices == 4)
            };
            for stream in [DefaultStream::Legacy, DefaultStream::PerThread] {
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

/// What is built with these words has the libraries of the tests.
#[test]
fn the_words_for_what_is_tested_name_the_packages_of_the_rows() {
    let (_, rows) = workspace();
    let tests = rows.iter().filter(|row| row.kind == Kind::Tests && !row.full);
    let packages = tests.map(|row| (row.package.as_str(), row.features.arguments())).collect::<BTreeSet<_>>();
    let words = packages.iter().flat_map(|(package, _)| ["--package", *package]).chain(["--all-features"]);
    assert!(TESTED.split_whitespace().eq(words));
    assert!(packages.iter().all(|(_, features)| *features == ["--all-features"]));
}

#[test]
fn the_matrix_names_only_what_is_there() {
    let (workspace, rows) = workspace();
    for row in &rows {
        let package = workspace.package(&row.package).unwrap();
        package.closure(&row.features).unwrap();
        if row.kind == Kind::Python {
            let scripts = workspace.root.join("ci").join(crate::gpu_test::SCRIPTS);
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

/// Each test on each driver, each of its settings, each number of devices and each default stream, and with each feature.
#[test]
fn what_runs_without_more_words_covers_each_value() {
    let (workspace, rows) = workspace();
    let values = |row: &Row| {
        let (driver, setting) = (row.driver.to_string(), format!("setting `{}`", row.simulator));
        let mut values = BTreeSet::from([driver, setting, format!("x{}", row.devices)]);
        values.insert(row.default_stream.name().to_owned());
        values.extend(workspace.package(&row.package).unwrap().closure(&row.features).unwrap());
        values
    };
    let mut missing = BTreeSet::new();
    for row in &rows {
        let is_on_gpu = |row: &Row| row.driver == Driver::Gpu;
        let alike = |other: &&Row| {
            let is_of_it = (other.kind, &other.package) == (row.kind, &row.package);
            let is_of_it = is_of_it && is_on_gpu(other) == is_on_gpu(row);
            !other.full && is_of_it && (other.only.is_empty() || other.only == row.only)
        };
        let alike = rows.iter().filter(alike).collect::<Vec<_>>();
        // What is run without test targets is one.
        for target in row.targets.iter().map(Some).chain(row.targets.is_empty().then_some(None)) {
            let with_target =
                alike.iter().filter(|row| target.is_none_or(|target| row.targets.contains(target)));
            let covered = with_target.flat_map(|row| values(row)).collect::<BTreeSet<_>>();
            missing.extend(values(row).difference(&covered).map(|value| {
                format!(
                    "{} {}: {value}",
                    row.package,
                    target.map_or(&*format!("{:?}", row.kind), |target| target)
                )
            }));
        }
    }
    assert!(missing.is_empty(), "only with `--full`: {missing:#?}");
}
