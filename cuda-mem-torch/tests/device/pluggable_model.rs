//! `PluggableAllocator` against a plain model, through random sequences of calls.

use std::collections::BTreeMap;

use cuda_mem_core::Stream;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::MempoolId;
use cuda_mem_torch::{CudaAllocator, Error};
use proptest::prelude::*;

use crate::common::World;
use crate::program::{Call, Program};

/// What the program may give out at once, in bytes.
const LIMIT: usize = 64 << 20;

#[derive(Debug, Clone)]
enum Step {
    Malloc { size: usize, stream: usize },
    Free { which: usize },
    FreeUnknown { address: u64 },
    Record { which: usize, stream: usize },
    RefuseFree { which: usize },
    EmptyCache,
    ResetPeak,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![0..2000usize, (1 << 20) - 2..(1 << 20) + 2usize, 1..(30usize << 20)];
    let step = prop_oneof![
        6 => (size, 0..3usize).prop_map(|(size, stream)| Step::Malloc { size, stream }),
        4 => any::<usize>().prop_map(|which| Step::Free { which }),
        1 => any::<u64>().prop_map(|address| Step::FreeUnknown { address }),
        2 => (any::<usize>(), 0..3usize).prop_map(|(which, stream)| Step::Record { which, stream }),
        1 => any::<usize>().prop_map(|which| Step::RefuseFree { which }),
        1 => Just(Step::EmptyCache),
        1 => Just(Step::ResetPeak),
    ];
    proptest::collection::vec(step, 1..60)
}

/// What there must be: all streams are idle, so what is freed is gone at the next call that looks.
#[derive(Default)]
struct Model {
    /// Size, stream, and whether another stream was recorded.
    live: BTreeMap<u64, (usize, usize, bool)>,
    freed: usize,
    peak: usize,
    allocated: u64,
    ooms: u64,
}

impl Model {
    fn bytes(&self) -> usize {
        self.live.values().map(|(size, ..)| size).sum()
    }

    fn nth(&self, which: usize) -> Option<u64> {
        self.live.keys().nth(which.checked_rem(self.live.len())?).copied()
    }
}

fn run(steps: Vec<Step>) {
    let world = World::new();
    let streams: [Stream; 3] = [world.stream.clone(), world.new_stream(), world.new_stream()];
    let (program, device) = (Program::new(), world.context.device());
    program.limit(Some(LIMIT));
    let allocator = program.allocator(&world);
    let mut model = Model::default();
    for step in steps {
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        program.calls();
        match step {
            Step::Malloc { size, stream } => match allocator.malloc(size, device, &streams[stream]) {
                Ok(0) => assert_eq!((size, program.calls()), (0, Vec::new())),
                Ok(address) => {
                    let id = streams[stream].id().as_raw();
                    assert_eq!(program.calls().last(), Some(&Call::Alloc(size, device, id)));
                    assert!(model.live.insert(address, (size, stream, false)).is_none());
                    model.freed = 0;
                    model.allocated += 1;
                    model.peak = model.peak.max(model.bytes());
                }
                Err(error) => {
                    assert!(error.is_out_of_memory(), "{error}");
                    assert!(model.bytes() + size > LIMIT, "{} of {LIMIT}", model.bytes());
                    model.freed = 0;
                    model.ooms += 1;
                }
            },
            Step::Free { which } => {
                let Some(address) = model.nth(which) else { continue };
                let (size, stream, recorded) = model.live.remove(&address).unwrap();
                // SAFETY: allocated above, freed once, and no work was put anywhere.
                unsafe { allocator.raw_delete(address) }.unwrap();
                let id = streams[stream].id().as_raw();
                let calls = if recorded { vec![] } else { vec![Call::Free(address, size, device, id)] };
                assert_eq!(program.calls(), calls);
                model.freed += usize::from(recorded);
            }
            Step::FreeUnknown { address } => {
                if address == 0 || model.live.contains_key(&address) {
                    continue;
                }
                // SAFETY: refused, because nothing is there.
                let refused = unsafe { allocator.raw_delete(address) };
                assert!(matches!(refused, Err(Error::UnknownPointer { .. })), "{refused:?}");
            }
            Step::Record { which, stream } => {
                let Some(address) = model.nth(which) else { continue };
                allocator.record_stream(address, &streams[stream]).unwrap();
                let entry = model.live.get_mut(&address).unwrap();
                entry.2 |= entry.1 != stream;
            }
            Step::RefuseFree { which } => {
                let Some(address) = model.nth(which).filter(|address| !model.live[address].2) else {
                    continue;
                };
                program.refuse_free();
                // SAFETY: nothing uses it; it is refused.
                assert!(unsafe { allocator.raw_delete(address) }.is_err());
            }
            Step::EmptyCache => {
                allocator.empty_cache(MempoolId::NONE).unwrap();
                model.freed = 0;
            }
            Step::ResetPeak => {
                allocator.reset_peak_stats(device).unwrap();
                model.peak = model.bytes();
            }
        }
        assert_eq!(program.out(), model.live.len() + model.freed);
        let stats = allocator.device_stats(device).unwrap();
        assert_eq!(stats.allocation.all.current, model.live.len() as u64);
        assert_eq!(stats.active.all.current, (model.live.len() + model.freed) as u64);
        assert_eq!(stats.allocated_bytes.all.current, model.bytes() as u64);
        assert_eq!(stats.allocated_bytes.all.peak, model.peak as u64);
        assert_eq!(stats.num_ooms, model.ooms);
        assert!(stats.allocation.all.allocated >= model.allocated);
    }
    for address in model.live.into_keys() {
        // SAFETY: allocated above, freed once, and no work was put anywhere.
        unsafe { allocator.raw_delete(address) }.unwrap();
    }
    allocator.empty_cache(MempoolId::NONE).unwrap();
    assert_eq!(program.out(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_does_what_a_plain_model_does(steps in steps()) {
        run(steps);
    }
}
