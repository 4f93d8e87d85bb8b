//! Rooms of large crates: folders below `src`, in an order in which each uses only those before it.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::files::Findings;
use super::modules::Modules;
use crate::workspace;

/// Crates of more lines than this need a table.
const LINES: usize = 10_000;

/// Rooms of each large crate, from the bottom up. A file next to the root counts as a room of its own; the root itself
/// and `error` are no rooms. Rooms of one line may use each other; more than one is a circle, with its reason.
const ROOMS: &[(&str, &[&str])] = &[
    ("flexcast", &["sync", "memory", "op", "plan", "p2p", "engine", "carrier", "aggregation", "api"]),
    (
        "flexcast-proto",
        &[
            "ranks",
            "agreement",
            "barrier",
            "bitmap",
            "cutoff",
            "sequencer",
            "chains",
            "chunk",
            "failure",
            "gaps",
            "handshake",
            "pieces",
            "recovery",
            "stall",
            "message",
            "verdict",
            "collective",
            "eager",
            "immediate",
            "space",
            "missing",
            "p2p",
            "reuse",
            "session",
            "service",
            "sparse",
            "wire",
        ],
    ),
    (
        "emu-machine",
        &[
            "near",
            "time",
            "dpa",
            "config",
            "ranges",
            "host_memory",
            "trace",
            "weak",
            "observe",
            "bus",
            "numbering",
            "timed",
            "wires",
            // Methods of the world stand with what they are about.
            "card function host_process world",
            "current",
        ],
    ),
    (
        "emu-libibverbs",
        &[
            // An error is logged, and each call is: none of the four is there without the others.
            "errno fork handle log",
            "machine",
            "mailbox",
            "acknowledged",
            "kernel",
            "pinned",
            "prm",
            "umem",
            "segments",
            "umr",
            // Commands of mailboxes are requests to the card.
            "card devx_alias devx_create devx_query",
            "memory",
            "region",
            // A device has the events of its queues, which are of a device.
            "device failures",
            "sysfs",
            "steering",
            "devx",
            "dm",
            "pd",
            "window",
            "devx_umem",
            "address",
            "srq",
            // They refer to one another by handle.
            "channel cq extended indirect post qp",
            "cq_changes",
            "extended_cq",
            "direct",
            "gsi",
            "multicast",
            "events",
            "compat",
            "refused",
            "open",
        ],
    ),
    (
        "emu-nic",
        &[
            "mix",
            "transport",
            "address",
            "memory",
            "psn",
            "pacing",
            "timing",
            "counters",
            "packet",
            "grh",
            "icrc",
            // Which frames are RoCE, and what is in those.
            "ethernet wire",
            "frame",
            "cq",
            "cqe",
            "access",
            "qp",
            "wqe",
            "progress",
            "effects",
            "keys",
            "shared_receives",
            "queue_pair",
            "note",
            "log",
            "cx",
            "steering",
            "table",
            "identity",
            "groups",
            "engine",
            "nic",
        ],
    ),
    (
        "flexcast-lab",
        &[
            "accesses",
            "figures",
            "memory",
            "agreement",
            "jobs",
            "options",
            "machine",
            "machine_args",
            "overlap",
            "service",
            "flow",
            "sparse",
            // Each has a harness that the others measure with.
            "calibrate reference sim tput",
            "concurrent",
            "images",
            "incast",
            "model",
            "evaluate",
            "capacity",
            "perf",
            "compare",
            "pingpong",
            "probe",
            "shard",
            "soak",
            "tune",
        ],
    ),
];

/// One crate, as its imports show it.
struct House {
    name: String,
    lines: usize,
    /// Who imports what: rooms, and one of the files.
    arrows: BTreeSet<(String, String)>,
    rooms: BTreeSet<String>,
    samples: Vec<(String, String, String)>,
}

/// Every import of a room by one below it, and every large crate whose rooms are not listed.
pub(super) fn check(root: &Path) -> Result<Findings> {
    Ok(houses(root)?.iter().flat_map(judge).collect())
}

/// Rooms and arrows of the large crates, as lines for a reader.
pub(super) fn figures(root: &Path) -> Result<Vec<String>> {
    let line = |house: &House| {
        let up = judge(house).len();
        let (rooms, arrows) = (house.rooms.len(), house.arrows.len());
        format!("{:<20} {:>6} lines {rooms:>3} rooms {arrows:>4} arrows {up:>3} upward", house.name, house.lines)
    };
    let mut lines: Vec<String> = houses(root)?.iter().map(line).collect();
    lines.push(parts(root));
    Ok(lines)
}

/// What there should be few of in the library: each by words that only its files have.
const PARTS: [(&str, &str); 3] = [
    ("operation engines", " Datapath for "),
    ("carriers", "impl Carrier for "),
    ("executors of point-to-point schedules", "schedule.poll()"),
];

/// The files of each part of the library, without those of tests.
fn parts(root: &Path) -> String {
    let source = root.join("host/flexcast/src");
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let modules = Modules::read(&source.join("lib.rs"), &read);
    let of = |(name, words): (&str, &str)| {
        let files = modules.files().iter().filter(|file| read(file).is_some_and(|text| text.contains(words)));
        let files: Vec<String> =
            files.map(|file| file.strip_prefix(&source).unwrap_or(file).display().to_string()).collect();
        format!("{} {name} ({})", files.len(), files.join(", "))
    };
    format!("flexcast: {}", PARTS.map(of).join(", "))
}

fn order(name: &str) -> Option<&'static [&'static str]> {
    ROOMS.iter().find(|(of, _)| *of == name).map(|(_, rooms)| *rooms)
}

fn judge(house: &House) -> Findings {
    let name = &house.name;
    let Some(order) = order(name) else {
        let rooms: Vec<&str> = house.rooms.iter().map(String::as_str).collect();
        return vec![format!(
            "{name} has {} lines, more than {LINES}: list its rooms in order in xtask/src/tidy/rooms.rs ({})",
            house.lines,
            rooms.join(", ")
        )];
    };
    let place = |room: &str| order.iter().position(|floor| floor.split(' ').any(|listed| listed == room));
    let mut findings: Findings = house
        .rooms
        .iter()
        .filter(|room| place(room).is_none())
        .map(|room| format!("{name}: room {room} is not in the list of xtask/src/tidy/rooms.rs"))
        .collect();
    let upward = house.samples.iter().filter(|(from, to, _)| place(from).zip(place(to)).is_some_and(|(a, b)| b > a));
    findings.extend(upward.map(|(from, to, file)| {
        format!("{name}: room {from} is below {to} and imports it ({file}); move what both need down")
    }));
    findings
}

/// The room of a file, by its path below `src`; none for the root and `error`.
fn room(path: &Path) -> Option<String> {
    let first = path.components().next()?.as_os_str().to_string_lossy().into_owned();
    let name = first.strip_suffix(".rs").unwrap_or(&first).to_owned();
    (!["lib", "main", "error"].contains(&name.as_str())).then_some(name)
}

fn houses(root: &Path) -> Result<Vec<House>> {
    let mut houses = Vec::new();
    for manifest in ["Cargo.toml", "device/Cargo.toml"] {
        for package in workspace::metadata(&root.join(manifest))?.packages {
            let libraries = package.targets.iter().filter(|target| target.src_path.ends_with("src/lib.rs"));
            for target in libraries {
                let source = target.src_path.as_std_path();
                let read = |path: &Path| std::fs::read_to_string(path).ok();
                let modules = Modules::read(source, &read);
                let lines: usize = modules.files().iter().filter_map(|file| Some(read(file)?.lines().count())).sum();
                if lines > LINES || order(&package.name).is_some() {
                    let folder = source.parent().context("a file has a folder")?;
                    houses.push(house(package.name.to_string(), lines, folder, &modules));
                }
            }
        }
    }
    houses.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(houses)
}

fn house(name: String, lines: usize, folder: &Path, modules: &Modules) -> House {
    let rooms: Vec<Option<String>> =
        modules.files().iter().map(|file| room(file.strip_prefix(folder).unwrap_or(file))).collect();
    let mut house = House { name, lines, arrows: BTreeSet::new(), rooms: BTreeSet::new(), samples: Vec::new() };
    house.rooms.extend(rooms.iter().flatten().cloned());
    for (file, imports) in modules.imports().into_iter().enumerate() {
        for to in imports {
            let (Some(from), Some(to)) = (&rooms[file], &rooms[to]) else { continue };
            if from != to && house.arrows.insert((from.clone(), to.clone())) {
                let path = modules.files()[file].strip_prefix(folder).unwrap_or(&modules.files()[file]);
                house.samples.push((from.clone(), to.clone(), path.display().to_string()));
            }
        }
    }
    house
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn an_import_of_a_higher_room_and_a_room_without_a_place_are_reported() {
        let files = BTreeMap::from([
            ("src/lib.rs", "mod api; mod op; mod attic; mod error;"),
            ("src/api.rs", "use crate::op::Buffer; pub struct Face;"),
            ("src/op.rs", "use crate::api::Face; pub struct Buffer;"),
            ("src/attic.rs", "use crate::error::Error;"),
            ("src/error.rs", "pub struct Error;"),
        ]);
        let read = |path: &Path| files.get(path.to_str()?).map(|text| (*text).to_owned());
        let modules = Modules::read(Path::new("src/lib.rs"), &read);
        let findings = judge(&house("flexcast".to_owned(), 1, Path::new("src"), &modules));
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].contains("room attic is not in the list"), "{findings:?}");
        assert!(findings[1].contains("room op is below api and imports it (op.rs)"), "{findings:?}");
        let unlisted = judge(&house("another".to_owned(), 10_001, Path::new("src"), &modules));
        assert!(unlisted[0].contains("more than 10000: list its rooms"), "{unlisted:?}");
    }
}
