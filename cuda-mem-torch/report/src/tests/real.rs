//! Snapshots that PyTorch wrote with each allocator, on the simulated driver: `ci/torch/simulated/snapshots.py` made them.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::super::space::Space;
use super::{Recording, spaces};

/// What the program asked its allocator for at its end, device by device.
#[derive(Debug, Deserialize)]
struct Figures {
    version: String,
    live: Vec<u64>,
    reserved: Vec<u64>,
}

fn held(space: &Space) -> u64 {
    space.held(space.curves.events).values().map(|(bytes, _)| bytes).sum()
}

#[test]
fn snapshots_that_pytorch_wrote_show_what_its_statistics_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/snapshots");
    let figures = std::fs::read_to_string(folder.join("figures.json")).unwrap();
    let figures: BTreeMap<String, Figures> = serde_json::from_str(&figures).unwrap();
    for (version, kinds) in [("2.6", 2), ("2.9", 2), ("2.11", 3), ("2.13", 3), ("2.15", 3)] {
        for kind in &["native", "expandable", "ours"][..kinds] {
            assert!(figures.contains_key(&format!("{version}-{kind}")), "{version} {kind}");
        }
    }
    for (name, figures) in figures {
        assert!(name.starts_with(figures.version.rsplit_once('.').unwrap().0), "{name}");
        let recording =
            Recording { input: folder.join(format!("{name}.pickle.gz")), calls: None, device: None };
        let (spaces, stacks) = spaces(&recording).unwrap();
        for (device, space) in spaces.iter().take(2).enumerate() {
            assert_eq!((space.device, &space.notes), (Some(device as i64), &Vec::new()), "{name}");
            let found = (held(space), *space.curves.reserved.last().unwrap());
            assert_eq!(found, (figures.live[device], figures.reserved[device]), "{name}, device {device}");
        }
        let gpu = &spaces[0];
        let steps = gpu.annotations.iter().filter(|(annotation, ..)| annotation == "step").count();
        assert_eq!((steps, gpu.failed), (20, 1), "{name}");
        assert!(gpu.blocks.iter().any(|block| block.stream != 0), "{name}: a stream");
        let [failed] = &gpu.out_of_memory[..] else { panic!("{name}: {:?}", gpu.out_of_memory) };
        assert!(failed.requested >= 300 << 20 && failed.free.is_some(), "{name}: {failed:?}");
        let pooled = gpu
            .blocks
            .iter()
            .filter(|block| gpu.labels[block.tag as usize].pool.is_some())
            .collect::<Vec<_>>();
        assert!(pooled.iter().any(|block| block.requested == 6 << 20), "{name}: a pool");
        // The innermost line of the program is that of its own function.
        let stack = gpu.blocks.iter().find_map(|block| block.stack).unwrap();
        let mut frames = stacks.frames_of(stack).iter().filter_map(|frame| stacks.frame(*frame));
        assert!(frames.any(|frame| frame.file == "/home/user/program.py"), "{name}");
        if name.starts_with("2.15") {
            let said = |text: &str| gpu.labels.iter().any(|label| label.said == text);
            assert!(said("embedding") && said("{\"phase\":\"validation\"}"), "{name}: {:?}", gpu.labels);
            let host = spaces.last().unwrap();
            assert_eq!((host.name.as_str(), held(host)), ("Pinned host memory", 12 << 20), "{name}");
        }
    }
}
