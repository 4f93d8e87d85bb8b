//! The committed seeds are those that the targets make. With `FLEXCAST_WRITE_SEEDS=1` they are written instead
//! (`cargo xtask fuzz --seeds`).
use std::path::Path;

use flexcast_fuzz::TARGETS;

#[test]
fn committed_seeds_are_those_that_the_targets_make() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let write = std::env::var_os("FLEXCAST_WRITE_SEEDS").is_some();
    for target in TARGETS {
        let folder = root.join(target.name);
        let seeds = (target.seeds)();
        if write {
            if folder.is_dir() {
                std::fs::remove_dir_all(&folder).expect("removable");
            }
            std::fs::create_dir_all(&folder).expect("writable");
            for (name, bytes) in &seeds {
                std::fs::write(folder.join(name), bytes).expect("writable");
            }
        }
        for (name, bytes) in &seeds {
            let committed = std::fs::read(folder.join(name)).unwrap_or_default();
            assert!(committed == *bytes, "{}/{name} differs; run `cargo xtask fuzz --seeds`", target.name);
        }
        let files = std::fs::read_dir(&folder).expect("a folder of seeds").count();
        assert_eq!(files, seeds.len(), "seeds/{} has files that the target does not make", target.name);
    }
}
