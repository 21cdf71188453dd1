//! How the file is read.

use super::*;

const SMALL: &str = r#"
    time-limit = 60
    [[row]]
    kind = "tests"
    crates = ["cuda-mem-core", "cuda-mem-pool"]
    targets = ["lib", "device"]
    features = ["default", "tracing"]
    drivers = ["sim-13.0", "gpu"]
    devices = [1, 2]
    default-stream = ["legacy", "per_thread"]
    [[row]]
    kind = "vendored"
    name = "copied"
    crates = ["cuda-mem-sys"]
    drivers = ["sim-12.2"]
    time-limit = 600
    env = { A = "b" }
"#;

#[test]
fn a_group_expands_to_the_product_of_its_lists() {
    let matrix = Matrix::parse(SMALL).unwrap();
    let names = matrix.rows.iter().map(Row::name).collect::<Vec<_>>();
    assert_eq!(names.len(), 2 * 2 * 2 * 2 * 2 + 1);
    assert_eq!(names[0], "core/lib+device/default/sim-13.0/x1/legacy");
    assert_eq!(names[1], "core/lib+device/default/sim-13.0/x1/per_thread");
    assert_eq!(names[31], "pool/lib+device/tracing/gpu/x2/per_thread");
    assert_eq!(names[32], "sys/copied/default/sim-12.2/x1/legacy");
    let vendored = &matrix.rows[32];
    assert_eq!((vendored.driver, vendored.limit.as_secs()), (Driver::Simulator(12020), 600));
    assert_eq!(vendored.env["A"], "b");
    assert_eq!(matrix.rows[0].limit.as_secs(), 60);
}

#[test]
fn settings_of_the_simulator_are_an_axis_that_hardware_does_not_have() {
    let matrix = Matrix::parse(
        "time-limit = 1\n[[row]]\nkind = 'python'\nname = 'cuda-core'\ncrates = ['c']\ntargets = ['pools']\n\
         drivers = ['sim-13.0', 'gpu']\nsimulator = ['', 'numa=0']",
    )
    .unwrap();
    let names = matrix.rows.iter().map(Row::name).collect::<Vec<_>>();
    assert_eq!(
        names,
        [
            "c/cuda-core/default/sim-13.0/x1/legacy",
            "c/cuda-core/default/sim-13.0,numa=0/x1/legacy",
            "c/cuda-core/default/gpu/x1/legacy",
        ]
    );
    assert_eq!(matrix.rows[2].twin(13000), matrix.rows[0]);
}

#[test]
fn each_value_of_each_list_is_in_a_row_that_runs_without_full() {
    let matrix = Matrix::parse(
        "time-limit = 1\n[[row]]\nkind = 'tests'\ncrates = ['a', 'b']\ntargets = ['t']\ndevices = [1, 2, 4]\n\
         drivers = ['sim-13.0', 'gpu', 'sim-12.2']\ndefault-stream = ['legacy', 'per_thread']\n\
         [[row]]\nkind = 'tests'\ncrates = ['c']\ntargets = ['t']\ndrivers = ['sim-13.0']\nfull = true",
    )
    .unwrap();
    assert_eq!(
        matrix.rows.iter().filter(|row| !row.full).map(Row::name).collect::<Vec<_>>(),
        [
            "a/t/default/sim-13.0/x1/legacy",
            "a/t/default/sim-13.0/x4/legacy",
            "a/t/default/gpu/x1/legacy",
            "a/t/default/gpu/x2/per_thread",
            "a/t/default/gpu/x4/legacy",
            "a/t/default/sim-12.2/x2/per_thread",
            // The other way round: each stream on each driver.
            "b/t/default/sim-13.0/x1/per_thread",
            "b/t/default/sim-13.0/x4/per_thread",
            "b/t/default/gpu/x1/per_thread",
            "b/t/default/gpu/x2/legacy",
            "b/t/default/gpu/x4/per_thread",
            "b/t/default/sim-12.2/x2/legacy",
        ]
    );
    assert_eq!(matrix.rows.len(), 2 * 3 * 3 * 2 + 1);
}

#[test]
fn the_examples_of_all_documentation_are_one_row() {
    let matrix = Matrix::parse(
        "time-limit = 1\n[[row]]\nkind = 'doctests'\ncrates = ['a', 'b']\ndrivers = ['sim-13.0']",
    )
    .unwrap();
    let [row] = &matrix.rows[..] else { panic!("{:?}", matrix.rows) };
    assert_eq!(row.name(), "workspace/doctests/default/sim-13.0/x1/legacy");
    assert_eq!(row.packages().collect::<Vec<_>>(), ["a", "b"]);
}

fn error(text: &str) -> String {
    format!("{:#}", Matrix::parse(text).unwrap_err())
}

#[test]
fn mistakes_are_named() {
    let row = |lines: &str| error(&format!("time-limit = 1\n[[row]]\ncrates = [\"c\"]\n{lines}"));
    let unknown = row("kind = 'doctests'\ndrivers = ['sim-13.0']\ndevice = [1]");
    assert!(unknown.contains("unknown field `device`"), "{unknown}");
    let driver = row("kind = 'doctests'\ndrivers = ['13.0']");
    assert!(driver.contains("`13.0` is no driver: write `gpu`, or `sim-` and a version"), "{driver}");
    assert!(
        row("kind = 'tests'\ndrivers = ['gpu']")
            .contains("`targets` belong to rows of kind `tests` or `python`")
    );
    assert!(
        row("kind = 'doctests'\ndrivers = ['gpu']")
            .contains("only `tests`, `python` and `outside-project` run on a GPU")
    );
    assert!(row("kind = 'doctests'\ndrivers = []").contains("an empty list"));
    assert!(row("kind = 'doctests'\ndrivers = ['sim-13.0']\ndevices = [0]").contains("at least one device"));
    let twice = row("kind = 'doctests'\ndrivers = ['sim-13.0', 'sim-13.0']");
    assert_eq!(twice, "two rows are named c/doctests/default/sim-13.0/x1/legacy");
}

#[test]
fn a_twin_differs_in_its_driver_only() {
    let matrix = Matrix::parse(SMALL).unwrap();
    let gpu = matrix.rows.iter().find(|row| row.driver == Driver::Gpu).unwrap();
    assert_eq!(gpu.twin(12080).name(), gpu.name().replace("/gpu/", "/sim-12.8/"));
}
