use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use cuda_mem_pool::trace::Trace;
use flate2::read::GzDecoder;

use super::super::calls::CallLog;
use super::super::plan::Plan;
use super::super::setting::{Allocator, Backend, Setting};

fn traces() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("ci/traces");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut traces =
        files.filter(|path| path.extension().is_some_and(|ending| ending == "gz")).collect::<Vec<_>>();
    traces.sort();
    traces
}

/// Within 5 % of what PyTorch reserved on the hardware.
#[test]
fn the_models_reserve_what_pytorch_did() {
    let mut seen = 0;
    for path in traces() {
        let file = BufReader::new(GzDecoder::new(File::open(&path).unwrap()));
        let trace = Trace::read(file).unwrap();
        let plan = Plan::new("", &trace).unwrap();
        for (key, allocator) in
            [("native_reserved_peak", Allocator::Native), ("expandable_reserved_peak", Allocator::Expandable)]
        {
            let setting = Setting { allocator, backend: Backend::Model, lag: 0, threads: 1 };
            let outcome = setting.replay(&plan, None, CallLog::nowhere()).unwrap();
            let expected = trace.number(key).unwrap().unwrap();
            let off = outcome.peaks.reserved as f64 / expected - 1.0;
            assert!(off.abs() < 0.05, "{}: {key} is off by {:.1} %", path.display(), off * 100.0);
            seen += 1;
        }
    }
    assert_eq!(seen, 12);
}

#[test]
fn more_than_there_are_addresses_for_is_out_of_memory() {
    let trace = Trace::read(
        "op,id,size,stream\na,0,1152921504606846976,0\na,1,576460752303423488,0\na,2,1,0\n".as_bytes(),
    )
    .unwrap();
    let plan = Plan::new("", &trace).unwrap();
    let setting = Setting { allocator: Allocator::Expandable, backend: Backend::Model, lag: 0, threads: 1 };
    let outcome = setting.replay(&plan, None, CallLog::nowhere()).unwrap();
    assert_eq!((outcome.oom, outcome.peaks.reserved), (2, 2 << 20));
}
