//! Every committed input, without libFuzzer: what once crashed stays fixed.
use std::path::Path;

use flexcast_fuzz::{TARGETS, replay};

#[test]
fn every_committed_input_is_handled() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    replay::abort_on_panic();
    for target in TARGETS {
        let files = replay::committed(root, target.name).expect("readable folders");
        assert!(!files.is_empty(), "{} has no seeds; run `cargo xtask fuzz --seeds`", target.name);
        for file in files {
            println!("{}", file.display());
            (target.run)(&std::fs::read(&file).expect("readable"));
        }
    }
}
