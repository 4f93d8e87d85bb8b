//! Ranks as processes over the loopback interface, without any card: programs in C, the measuring command, and what
//! goes wrong between processes.
//!
//! Programs in C are skipped without a C compiler; the tests say so on stderr.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use flexcast_tests::examples::{Rank, allgather, compile, compiler, free_tcp_port};
use flexcast_tests::harness::is_long;

/// Longest that the ranks may take; they need a second or two.
const BOUND: Duration = Duration::from_secs(120);
const RANKS: u16 = 4;

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ethernet").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    folder
}

/// Starts `tests/c/ranks.c` as four ranks; `changed` gives a rank another environment.
fn start(name: &str, way: &str, changed: impl Fn(u16, &mut Command)) -> Option<(PathBuf, Vec<Rank>)> {
    let folder = scratch(name);
    let program = compile(compiler()?, "ranks", &folder);
    let tcp = free_tcp_port();
    let start = |rank: u16| {
        let mut command = Command::new(&program);
        command.args([way, &rank.to_string(), &RANKS.to_string(), &format!("127.0.0.1:{tcp}"), "30000", "no image"]);
        command.envs([("FLEXCAST_DATAPATH", "udp"), ("FLEXCAST_INTERFACE", "lo")]);
        changed(rank, &mut command);
        Rank::start(&mut command, &folder, &format!("rank-{rank}"))
    };
    let ranks = (0..RANKS).map(start).collect();
    Some((folder, ranks))
}

fn ends(ranks: &mut [Rank]) -> Vec<String> {
    ranks.iter_mut().map(|rank| rank.end(BOUND).1).collect()
}

#[test]
fn programs_in_c_gather_part_and_broadcast() {
    let Some((_, mut ranks)) = start("split", "split", |_, _| ()) else { return };
    let texts = ends(&mut ranks);
    for (text, own) in texts.iter().zip([1, 0, 1, 0]) {
        assert!(text.contains(&format!("split: rank {own} of 2: equal")), "{texts:?}");
    }
}

#[test]
fn every_collective_of_programs_in_c_is_right() {
    let Some(compiler) = compiler() else { return };
    let folder = scratch("collectives");
    let program = compile(compiler, "collectives", &folder);
    let tcp = free_tcp_port();
    let start = |rank: u16| {
        let mut command = Command::new(&program);
        command.args([&rank.to_string(), &RANKS.to_string(), &format!("127.0.0.1:{tcp}")]);
        command.env("FLEXCAST_INTERFACE", "lo");
        Rank::start(&mut command, &folder, &format!("rank-{rank}"))
    };
    let mut ranks: Vec<Rank> = (0..RANKS).map(start).collect();
    for (rank, text) in ends(&mut ranks).iter().enumerate() {
        assert_eq!(text.trim(), format!("collectives: rank {rank} of {RANKS}: equal"));
    }
}

#[test]
fn different_calls_and_cancelled_ones_end_all_ranks() {
    let Some((_, mut ranks)) = start("sizes", "sizes", |_, _| ()) else { return };
    let texts = ends(&mut ranks);
    assert!(texts.iter().all(|text| text.contains("112: ") && text.contains("compare their calls")), "{texts:?}");
    let Some((_, mut ranks)) = start("cancel", "cancel", |_, _| ()) else { return };
    let texts = ends(&mut ranks);
    assert!(texts.iter().all(|text| text.contains("rank 1 cancelled the operation")), "{texts:?}");
}

#[test]
fn ranks_with_other_settings_are_named() {
    let other = |name: &'static str, value: &'static str| {
        move |rank: u16, command: &mut Command| {
            if rank == 2 {
                command.env(name, value);
            }
        }
    };
    let Some((_, mut ranks)) = start("port", "split", other("FLEXCAST_PORT", "17111")) else { return };
    let texts = ends(&mut ranks);
    assert!(texts[0].contains("rank 2 has port 17111, this rank 17110"), "{texts:?}");
    let Some((_, mut ranks)) = start("group", "split", other("FLEXCAST_GROUP", "239.1.2.3")) else { return };
    let texts = ends(&mut ranks);
    assert!(texts[0].contains("rank 2 has the address 127.0.0.1 and 239.1.2.3 group"), "{texts:?}");
    let Some((_, mut ranks)) = start("wrong", "split", other("FLEXCAST_TTL", "many")) else { return };
    let texts = ends(&mut ranks);
    assert!(texts[2].contains("126: ") && texts[2].contains("FLEXCAST_TTL is \"many\""), "{texts:?}");
}

#[test]
fn whoever_is_killed_at_any_time_is_named_by_the_others() {
    let trials = if is_long() { 12 } else { 3 };
    for trial in 0..trials {
        let Some((_, mut ranks)) = start("killed", "rounds1000000", |_, _| ()) else { return };
        let victim = trial % usize::from(RANKS);
        let begun = Instant::now();
        while !ranks.iter().all(|rank| rank.printed().contains("begun")) {
            assert!(begun.elapsed() < BOUND, "they have not begun: {}", ranks[0].printed());
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_micros(1700 * trial as u64));
        ranks[victim].signal("KILL");
        let killed = Instant::now();
        for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
            let text = process.end(BOUND).1;
            // Between two operations the next one is refused.
            let has_failed = text.contains("112: ") || text.contains("113: ");
            assert!(has_failed && text.contains(&format!("rank {victim}")), "rank {rank}: {text}");
        }
        // A connection that breaks is seen at once.
        assert!(killed.elapsed() < Duration::from_secs(20), "{:?}", killed.elapsed());
    }
}

#[test]
fn whoever_is_stopped_is_named_within_the_bound() {
    let Some((_, mut ranks)) = start("stopped", "rounds1000000", |_, _| ()) else { return };
    let begun = Instant::now();
    while !ranks.iter().all(|rank| rank.printed().contains("begun")) {
        assert!(begun.elapsed() < BOUND, "they have not begun: {}", ranks[0].printed());
        std::thread::sleep(Duration::from_millis(2));
    }
    let victim = 2;
    ranks[victim].signal("STOP");
    let stopped = Instant::now();
    for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
        let text = process.end(BOUND).1;
        assert!(text.contains("112: ") && text.contains(&format!("rank {victim}")), "rank {rank}: {text}");
    }
    // How long ranks wait for others to begin an operation, and a quarter more for neighbours to contradict.
    assert!(stopped.elapsed() < Duration::from_secs(20), "{:?}", stopped.elapsed());
}

/// Starts the measuring command as four ranks that exchange blocks over the loopback interface; `changed` gives a rank
/// another environment.
fn exchange(name: &str, repetitions: u32, changed: impl Fn(u16, &mut Command)) -> Vec<Rank> {
    let (tool, folder, tcp) = (&allgather(false).tool, scratch(name), free_tcp_port());
    let start = |rank: u16| {
        let mut command = Command::new(tool);
        command.args(["perf", "--op", "alltoall", "--sizes", "100K", "--repetitions", &repetitions.to_string()]);
        command.envs([("FLEXCAST_INTERFACE", "lo"), ("FLEXCAST_STORE", &format!("127.0.0.1:{tcp}"))]);
        command.envs([("FLEXCAST_RANK", rank.to_string()), ("FLEXCAST_SIZE", RANKS.to_string())]);
        command.env_remove("FLEXCAST_SHM");
        changed(rank, &mut command);
        Rank::start(&mut command, &folder, &format!("rank-{rank}"))
    };
    (0..RANKS).map(start).collect()
}

/// Whether a process has mapped memory that ranks share.
fn shares_memory(process: &Rank) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", process.id()));
    maps.is_ok_and(|maps| maps.contains("memfd:flexcast"))
}

/// The numbers of a process's sockets.
fn sockets(process: &Rank) -> Vec<String> {
    let links = std::fs::read_dir(format!("/proc/{}/fd", process.id())).into_iter().flatten();
    let targets = links.filter_map(|link| std::fs::read_link(link.ok()?.path()).ok());
    let number = |target: PathBuf| Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned());
    targets.filter_map(number).collect()
}

#[test]
fn ranks_that_share_memory_name_whoever_is_killed_and_leave_nothing_behind() {
    let mut ranks = exchange("shared", 1_000_000, |_, _| ());
    let begun = Instant::now();
    while !ranks.iter().all(shares_memory) {
        assert!(begun.elapsed() < BOUND, "no memory is shared: {}", ranks[0].printed());
        std::thread::sleep(Duration::from_millis(2));
    }
    // In the middle of operations.
    std::thread::sleep(Duration::from_millis(300));
    let all: Vec<String> = ranks.iter().flat_map(sockets).collect();
    let known = || std::fs::read_to_string("/proc/net/unix").expect("the list of Unix sockets");
    let is_known = |list: &str| {
        list.lines().filter_map(|line| line.split(' ').nth(6)).any(|number| all.iter().any(|own| own == number))
    };
    assert!(is_known(&known()), "they have Unix sockets: {all:?}");
    ranks[2].signal("KILL");
    let killed = Instant::now();
    for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != 2) {
        let (success, text) = process.end(BOUND);
        assert!(!success && text.contains("rank 2"), "rank {rank}: {text}");
    }
    assert!(killed.elapsed() < Duration::from_secs(20), "{:?}", killed.elapsed());
    let _ = ranks[2].end(BOUND);
    assert!(!is_known(&known()), "{}", known());
    let files = std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .filter_map(|file| file.ok()?.file_name().into_string().ok());
    assert_eq!(files.filter(|name| name.contains("flexcast")).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn ranks_that_share_no_memory_are_reached_all_the_same() {
    let mut ranks = exchange("separate", 3, |rank, command| _ = (rank == 1).then(|| command.env("FLEXCAST_SHM", "0")));
    for process in &mut ranks {
        let (success, text) = process.end(BOUND);
        assert!(success, "{text}");
    }
    let mut ranks = exchange("off", 1_000_000, |_, command| _ = command.env("FLEXCAST_SHM", "0"));
    let begun = Instant::now();
    while !ranks.iter().all(|process| sockets(process).len() > 4) {
        assert!(begun.elapsed() < BOUND, "they have not begun: {}", ranks[0].printed());
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(!ranks.iter().any(shares_memory));
    ranks.iter().for_each(|process| process.signal("KILL"));
    ranks.clear();
    let mut ranks = exchange("neither", 3, |_, command| _ = command.env("FLEXCAST_SHM", "2"));
    let (success, text) = ranks[0].end(BOUND);
    assert!(!success && text.contains("FLEXCAST_SHM is \"2\""), "{text}");
}

/// Every collective, checked on every rank: lengths are made ones that fit.
#[test]
fn the_measuring_command_has_every_collective() {
    let tool = &allgather(false).tool;
    let folder = scratch("collectives");
    let ops: [(&str, bool, &[u64]); 12] = [
        ("broadcast", false, &[0, 103, 20 << 10]),
        ("reduce", false, &[0, 100, 20 << 10]),
        ("reduce", true, &[0, 100, 20 << 10]),
        ("allreduce", false, &[0, 100, 20 << 10]),
        ("allreduce", true, &[0, 100, 20 << 10]),
        ("reduce-scatter", false, &[0, 96, 20_472]),
        ("alltoall", false, &[0, 102, 20_478]),
        ("alltoall", true, &[0, 102, 20_478]),
        ("gather", false, &[0, 103, 20 << 10]),
        ("scatter", false, &[0, 103, 20 << 10]),
        ("allgather", true, &[0, 103, 20 << 10]),
        ("barrier", false, &[0]),
    ];
    for (op, in_place, lengths) in ops {
        let tcp = free_tcp_port().to_string();
        let start = |rank: u16| {
            let mut command = Command::new(tool);
            command.args([
                "perf",
                "--op",
                op,
                "--sizes",
                "0,103,20K",
                "--repetitions",
                "4",
                "--warm-up",
                "1",
                "--json",
            ]);
            command.args(in_place.then_some("--in-place")).args(["--interface", "lo"]);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", "3");
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &tcp);
            Rank::start(&mut command, &folder, &format!("{op}-{rank}"))
        };
        let mut ranks: Vec<Rank> = (0..3).map(start).collect();
        let ends: Vec<(bool, String)> = ranks.iter_mut().map(|rank| rank.end(BOUND)).collect();
        assert!(ends.iter().all(|(success, _)| *success), "{op}: {ends:?}");
        let line = ends[0].1.lines().find(|line| line.starts_with('{')).expect("one object");
        let table: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let rows = table["rows"].as_array().expect("rows");
        let bytes: Vec<u64> = rows.iter().filter_map(|row| row["bytes"].as_u64()).collect();
        assert_eq!(bytes, lengths, "{op}");
        assert!(rows.iter().all(|row| row["errors"] == 0 && row["op"] == op && row["in_place"] == in_place), "{line}");
    }
}

#[test]
fn the_measuring_command_runs_as_ranks_of_launchers() {
    let tool = &allgather(false).tool;
    let folder = scratch("perf");
    for (rank_name, size_name, store) in [("FLEXCAST_RANK", "FLEXCAST_SIZE", true), ("RANK", "WORLD_SIZE", false)] {
        let tcp = free_tcp_port().to_string();
        let start = |rank: u16| {
            let mut command = Command::new(tool);
            command.args(["perf", "--sizes", "0,100,20K", "--repetitions", "3", "--warm-up", "1", "--json"]);
            command.args(["--interface", "lo"]).env(rank_name, rank.to_string()).env(size_name, "3");
            if store {
                command.env("FLEXCAST_STORE", format!("127.0.0.1:{tcp}"));
            } else {
                command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &tcp);
            }
            Rank::start(&mut command, &folder, &format!("rank-{rank}"))
        };
        let mut ranks: Vec<Rank> = (0..3).map(start).collect();
        let ends: Vec<(bool, String)> = ranks.iter_mut().map(|rank| rank.end(BOUND)).collect();
        assert!(ends.iter().all(|(success, _)| *success), "{ends:?}");
        let line = ends[0].1.lines().find(|line| line.starts_with('{')).expect("one object");
        let table: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let rows = table["rows"].as_array().expect("rows");
        let bytes: Vec<u64> = rows.iter().filter_map(|row| row["bytes"].as_u64()).collect();
        assert_eq!(bytes, [0, 100, 20 << 10]);
        assert!(rows.iter().all(|row| row["errors"] == 0 && row["ranks"] == 3 && row["op"] == "allgather"), "{line}");
    }
}

/// What is measured is a table that is read: by `flexcast info`, and by ranks that then sum up a sparse array.
#[test]
fn the_table_of_the_tuning_command_is_one_that_programs_read() {
    let tool = &allgather(false).tool;
    let folder = scratch("tune");
    let file = folder.join("tuning.toml");
    let run = |args: &[&str], tuned: bool| {
        let tcp = free_tcp_port().to_string();
        let start = |rank: u16| {
            let mut command = Command::new(tool);
            command.args(args).args(["--interface", "lo"]);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &tcp);
            if tuned && rank == 0 {
                command.env("FLEXCAST_TUNING", &file);
            }
            Rank::start(&mut command, &folder, &format!("{}-{rank}", args[0]))
        };
        let mut ranks: Vec<Rank> = (0..2).map(start).collect();
        let ends: Vec<(bool, String)> = ranks.iter_mut().map(|rank| rank.end(BOUND)).collect();
        assert!(ends.iter().all(|(success, _)| *success), "{ends:?}");
        ends[0].1.clone()
    };
    let object = |text: &str| -> serde_json::Value {
        let line = text.lines().find(|line| line.starts_with('{')).expect("one object");
        serde_json::from_str(line).expect("JSON")
    };
    let name = file.to_str().expect("a name");
    let ops = "allreduce,sparse-allreduce";
    let args =
        ["tune", "--ops", ops, "--sizes", "1K,64K", "--rounds", "2", "--repetitions", "2", "--json", "--output", name];
    let table = object(&run(&args, false));
    let of = |op: &str| table["rows"].as_array().expect("rows").iter().filter(|row| row["op"] == op).count();
    assert_eq!(of("sparse-allreduce"), 2 * 3, "{table}");
    let mut info = Command::new(tool);
    info.args(["info", "--json", "--interface", "lo"]).env("FLEXCAST_TUNING", &file);
    let info = object(&String::from_utf8_lossy(&info.output().expect("it starts").stdout));
    let lengths: Vec<_> = info["sparse"].as_array().expect("points").iter().map(|point| &point["bytes"]).collect();
    assert_eq!(lengths, [1 << 10, 64 << 10], "{info}");
    let args = ["perf", "--op", "sparse-allreduce", "--sizes", "1K,64K,1M", "--repetitions", "3", "--json"];
    let table = object(&run(&args, true));
    assert!(table["rows"].as_array().expect("rows").iter().all(|row| row["errors"] == 0), "{table}");
}
