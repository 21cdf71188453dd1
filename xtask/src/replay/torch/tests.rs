use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cuda_mem_pool::trace::Trace;
use flate2::read::GzDecoder;

use super::super::calls::CallLog;
use super::super::model::Model;
use super::super::plan::Plan;
use super::super::play::{Outcome, play};
use super::super::progress::Progress;
use super::Torch;

fn traces() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("ci/traces");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut traces =
        files.filter(|path| path.extension().is_some_and(|ending| ending == "gz")).collect::<Vec<_>>();
    traces.sort();
    traces
}

fn replayed(plan: &Plan, make: fn(Arc<Model>) -> Torch) -> Outcome {
    let model = Arc::new(Model::new(plan, 0, u64::MAX, CallLog::nowhere()));
    let candidate = make(Arc::clone(&model));
    play(plan, &candidate, &*model, 1, &Progress::new(String::new(), 0)).unwrap()
}

/// Within 5 % of what PyTorch reserved on the hardware.
#[test]
fn the_models_reserve_what_pytorch_did() {
    let mut seen = 0;
    for path in traces() {
        let file = BufReader::new(GzDecoder::new(File::open(&path).unwrap()));
        let trace = Trace::read(file).unwrap();
        let plan = Plan::new("", &trace).unwrap();
        for (key, make) in [
            ("native_reserved_peak", Torch::native as fn(Arc<Model>) -> Torch),
            ("expandable_reserved_peak", Torch::expandable),
        ] {
            let expected = trace.header().bytes(key).unwrap().unwrap() as f64;
            let off = replayed(&plan, make).peaks.reserved as f64 / expected - 1.0;
            assert!(off.abs() < 0.05, "{}: {key} is off by {:.1} %", path.display(), off * 100.0);
            seen += 1;
        }
    }
    assert_eq!(seen, 12);
}
