//! Ranks as processes, each with an emulated card of its own, all cards in one network: the examples, and what goes
//! wrong between processes. They find the emulator's libraries as those of an installed DOCA are found.
//!
//! Programs in C are skipped without a C compiler; the tests say so on stderr.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use flexcast_tests::examples::{
    Example, Rank, allgather, compile, compiler, declared_functions, free_tcp_port, free_udp_ports,
};
use flexcast_tests::harness::skipped;
use flexcast_tests::workspace_root;
use object::{Object as _, ObjectSymbol as _};

/// Longest that the ranks may take; they need a second or two.
const BOUND: Duration = Duration::from_secs(120);

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("four_processes").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    folder
}

/// `flexcast emu exec` of rank `rank`, to which the program and its arguments are added.
fn with_card(example: &Example, rank: u16, ranks: u16, udp: u16) -> Command {
    let mut command = Command::new(&example.tool);
    command.args(["emu", "exec", "--rank", &rank.to_string(), "--of", &ranks.to_string()]);
    command.args(["--port-base", &udp.to_string(), "--libs"]).arg(&example.libraries).arg("--");
    command
}

/// Runs an example among four and gives what each rank said.
fn four(name: &str, example: &Example, variables: &[(&str, &str)]) -> Vec<String> {
    const RANKS: u16 = 4;
    let folder = scratch(name);
    let (udp, tcp) = (free_udp_ports(RANKS), free_tcp_port());
    let start = |rank: u16| {
        let mut command = with_card(example, rank, RANKS, udp);
        command.arg(&example.program).arg(&example.image).envs(variables.iter().copied());
        command.env("FLEXCAST_RANK", rank.to_string()).env("FLEXCAST_SIZE", RANKS.to_string());
        command.env("FLEXCAST_STORE", format!("127.0.0.1:{tcp}"));
        Rank::start(&mut command, &folder, &format!("rank-{rank}"))
    };
    let mut ranks: Vec<Rank> = (0..RANKS).map(start).collect();
    let ends: Vec<(bool, String)> = ranks.iter_mut().map(|rank| rank.end(BOUND)).collect();
    for (rank, (success, text)) in ends.iter().enumerate() {
        assert!(*success && text.contains(&format!("rank {rank} of 4: ")) && text.contains("equal"), "{ends:?}");
    }
    ends.into_iter().map(|(_, text)| text).collect()
}

#[test]
fn the_example_in_rust_gathers_and_broadcasts() {
    four("rust", allgather(false), &[]);
}

#[test]
fn sizes_of_all_kinds_arrive() {
    // Nothing, one byte, more than fits in the staging slots.
    for bytes in ["0", "1", "3000000"] {
        let texts = four("rust-sizes", allgather(false), &[("EXAMPLE_BYTES", bytes)]);
        assert!(texts[0].contains(&format!("allgather of {bytes} bytes")), "{}", texts[0]);
    }
}

#[test]
fn the_example_in_c_gathers_and_broadcasts() {
    if compiler().is_some() {
        four("c", allgather(true), &[]);
    }
}

/// The same program, whose processes receive and send themselves: no firmware is started.
#[test]
fn the_example_in_c_needs_no_dpa() {
    if compiler().is_some() {
        for bytes in ["0", "70000", "3000000"] {
            four("c-verbs", allgather(true), &[("FLEXCAST_DATAPATH", "verbs"), ("EXAMPLE_BYTES", bytes)]);
        }
    }
}

/// Every collective of programs in C, each in turn, by the card's DPA and by the hosts' processors. Nothing but
/// variables, alike for all ranks, says which libraries, device, firmware and network they have; the rank is a
/// launcher's.
#[test]
fn every_collective_of_programs_in_c_is_right() {
    let Some(compiler) = compiler() else { return };
    for datapath in ["dpa", "verbs"] {
        let folder = scratch(&format!("collectives-{datapath}"));
        let (program, example) = (compile(compiler, "collectives", &folder), allgather(true));
        let (udp, tcp) = (free_udp_ports(4), free_tcp_port());
        let start = |rank: u16| {
            let mut command = Command::new(&program);
            command.args([&rank.to_string(), "4", &format!("127.0.0.1:{tcp}")]).env_remove("LD_LIBRARY_PATH");
            command.env("FLEXCAST_DATAPATH", datapath).env("FLEXCAST_LIBRARIES", &example.libraries);
            command.env("FLEXCAST_FIRMWARE", &example.image);
            if datapath == "dpa" {
                // Image `sparse` together with the other: the DPAs add what sparse AllReduce sends.
                command.env("FLEXCAST_SPARSE_FIRMWARE", flexcast_tests::image_path("sparse"));
                command.env("FLEXCAST_SPARSE_AGGREGATION", "dpa").env("FLEXCAST_SPARSE_FIXED_POINT", "10");
            }
            command.env("FLEXCAST_MACHINE", format!("toml:[job]\nfirst_port = {udp}"));
            command.env("PMI_RANK", rank.to_string()).env("PMI_SIZE", "4");
            Rank::start(&mut command, &folder, &format!("rank-{rank}"))
        };
        let mut ranks: Vec<Rank> = (0..4).map(start).collect();
        let ends: Vec<(bool, String)> = ranks.iter_mut().map(|rank| rank.end(BOUND)).collect();
        for (rank, (success, text)) in ends.iter().enumerate() {
            let equal = format!("collectives: rank {rank} of 4: equal");
            assert!(*success && text.contains(&equal), "{datapath}: {ends:#?}");
        }
    }
}

/// Where no firmware can be read, the cards are used without their DPA: no threads of it are taken.
#[test]
fn without_firmware_the_processors_take_over() {
    let Some(compiler) = compiler() else { return };
    for datapath in ["verbs", "auto"] {
        let folder = scratch(&format!("processors-{datapath}"));
        let (program, example) = (compile(compiler, "ranks", &folder), allgather(true));
        let (udp, tcp) = (free_udp_ports(4), free_tcp_port());
        let start = |rank: u16| {
            let mut command = with_card(example, rank, 4, udp);
            command.arg(&program).args(["split", &rank.to_string(), "4", &format!("127.0.0.1:{tcp}"), "30000"]);
            command.arg("no image").env("FLEXCAST_DATAPATH", datapath);
            Rank::start(&mut command, &folder, &format!("rank-{rank}"))
        };
        let mut ranks: Vec<Rank> = (0..4).map(start).collect();
        let ends: Vec<(bool, String)> = ranks.iter_mut().map(|rank| rank.end(BOUND)).collect();
        for (success, text) in &ends {
            assert!(*success && text.contains("threads: 0; ") && text.contains(" of 2: equal"), "{datapath}: {ends:?}");
        }
    }
}

/// The measuring command finds the card as any program does.
#[test]
fn the_measuring_command_runs_over_cards() {
    let example = allgather(false);
    for datapath in ["verbs", "dpa", "auto"] {
        let folder = scratch(&format!("perf-{datapath}"));
        let (udp, tcp) = (free_udp_ports(2), free_tcp_port());
        let start = |rank: u16| {
            let mut command = with_card(example, rank, 2, udp);
            command.arg(&example.tool).args(["perf", "--datapath", datapath, "--json"]);
            command.args(["--sizes", "100,200K", "--repetitions", "2", "--warm-up", "1"]);
            command
                .args((datapath == "dpa").then_some("--firmware"))
                .args((datapath == "dpa").then_some(&example.image));
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", tcp.to_string());
            Rank::start(&mut command, &folder, &format!("rank-{rank}"))
        };
        let mut ranks: Vec<Rank> = (0..2).map(start).collect();
        let ends: Vec<(bool, String)> = ranks.iter_mut().map(|rank| rank.end(BOUND)).collect();
        assert!(ends.iter().all(|(success, _)| *success), "{datapath}: {ends:?}");
        let text = &ends[0].1;
        // Without firmware, `auto` is the card's own queues.
        let expected = if datapath == "dpa" { "datapath dpa" } else { "datapath verbs" };
        assert!(text.contains("2 ranks over mlx5_0 (MTU") && text.contains(expected), "{text}");
        let line = text.lines().find(|line| line.starts_with('{')).expect("one object");
        let table: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let rows = table["rows"].as_array().expect("rows");
        let lengths: Vec<_> = rows.iter().map(|row| (row["bytes"].as_u64(), row["errors"].as_u64())).collect();
        assert_eq!(lengths, [(Some(100), Some(0)), (Some(200 << 10), Some(0))], "{line}");
        assert_eq!(rows[0]["algorithm"], "eager", "{line}");
    }
}

/// Starts `tests/c/ranks.c` as the given ranks of four, with a card if `way` needs one, and gives what each said.
fn ranks_in_c(name: &str, way: &str, ranks: &[u16], timeout_ms: u64) -> Option<Vec<String>> {
    let folder = scratch(name);
    let program = compile(compiler()?, "ranks", &folder);
    let example = allgather(true);
    let (udp, tcp) = (free_udp_ports(4), free_tcp_port());
    let start = |(number, rank): (usize, &u16)| {
        let mut command = match way {
            "meet" => Command::new(&program),
            _ => {
                let mut command = with_card(example, *rank, 4, udp);
                command.arg(&program);
                command
            }
        };
        command.args([way, &rank.to_string(), "4", &format!("127.0.0.1:{tcp}"), &timeout_ms.to_string()]);
        Rank::start(command.arg(&example.image), &folder, &format!("process-{number}"))
    };
    let mut processes: Vec<Rank> = ranks.iter().enumerate().map(start).collect();
    let ends: Vec<(bool, String)> = processes.iter_mut().map(|rank| rank.end(BOUND)).collect();
    assert!(ends.iter().all(|(success, _)| *success), "{ends:?}");
    Some(ends.into_iter().map(|(_, text)| text).collect())
}

/// FLEXCAST_ERROR_EXCHANGE and so on, as the header has them.
const EXCHANGE: &str = "101: ";
const CONFIG: &str = "102: ";
const PEER: &str = "107: ";
const FAILED: &str = "112: ";

#[test]
fn a_missing_rank_is_named_by_all_within_the_bound() {
    let Some(texts) = ranks_in_c("missing", "meet", &[0, 1, 3], 1000) else { return };
    for text in &texts {
        assert!(text.contains(EXCHANGE) && text.contains("rank 2 of 4 did not come within 1.0 s"), "{texts:?}");
    }
}

#[test]
fn a_duplicate_rank_is_named_by_all() {
    let Some(texts) = ranks_in_c("duplicate", "meet", &[0, 1, 2, 1], 10_000) else { return };
    assert!(texts[0].contains(EXCHANGE) && texts[0].contains("rank 1 came twice"), "{texts:?}");
    assert!(texts.iter().all(|text| text.contains(EXCHANGE)), "{texts:?}");
}

#[test]
fn different_sizes_end_all_ranks_and_both_calls_are_named() {
    let Some(texts) = ranks_in_c("sizes", "sizes", &[0, 1, 2, 3], 30_000) else { return };
    for text in &texts {
        assert!(text.contains(FAILED), "{texts:?}");
        let both = ["called allgather of 30000 bytes", "called allgather of 20000 bytes", "rank 2 called "];
        assert!(both.iter().all(|call| text.contains(call)), "{texts:?}");
        // FLEXCAST_CAUSE_DISAGREES, and the memory is the program's again.
        assert!(text.contains("report: 3 ") && text.trim_end().ends_with(" 0"), "{texts:?}");
    }
}

#[test]
fn a_rank_that_cancels_ends_the_operation_on_all() {
    let Some(texts) = ranks_in_c("cancel", "cancel", &[0, 1, 2, 3], 30_000) else { return };
    for text in &texts {
        assert!(text.contains(FAILED) && text.contains("rank 1 cancelled the operation"), "{texts:?}");
        // FLEXCAST_CAUSE_CANCELLED by rank 1.
        assert!(text.contains("report: 2 1 ") && text.trim_end().ends_with(" 0"), "{texts:?}");
    }
}

#[test]
fn a_rank_that_cannot_make_its_part_is_named_by_the_others() {
    let Some(texts) = ranks_in_c("slots", "slots", &[0, 1, 2, 3], 30_000) else { return };
    assert!(texts[1].contains(CONFIG) && texts[1].contains("slots is 100"), "{texts:?}");
    for text in [&texts[0], &texts[2], &texts[3]] {
        assert!(text.contains(PEER) && text.contains("rank 1 could not make its part"), "{texts:?}");
        assert!(text.contains("slots is 100"), "{texts:?}");
    }
}

#[test]
fn parts_of_a_communicator_work_concurrently_with_it() {
    let Some(texts) = ranks_in_c("split", "split", &[0, 1, 2, 3], 30_000) else { return };
    for (text, own) in texts.iter().zip([1, 0, 1, 0]) {
        assert!(text.contains(&format!("split: rank {own} of 2: equal")), "{texts:?}");
    }
}

#[test]
fn the_protocol_runs_on_the_card_for_programs_in_c() {
    let threads = |text: &str| -> u32 {
        let number = text.split_once("threads: ").and_then(|(_, rest)| rest.split_once(';')).expect("reported").0;
        number.parse().expect("a number")
    };
    let Some(host) = ranks_in_c("host", "split", &[0, 1, 2, 3], 30_000) else { return };
    let Some(device) = ranks_in_c("device", "device", &[0, 1, 2, 3], 30_000) else { return };
    for (host, device) in host.iter().zip(&device) {
        assert!(device.contains("of 2: equal"), "{device}");
        assert_eq!(threads(device), threads(host) + 1, "the progress thread is a thread of its own");
    }
}

/// What rank 1 says first when it joins: taken from a real one.
fn hello(program: &Path, example: &Example, folder: &Path) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let mut command = Command::new(program);
    command.args(["meet", "1", "2", &address, "1000"]).arg(&example.image);
    let mut rank = Rank::start(&mut command, folder, "recorded");
    let (mut stream, _) = listener.accept().expect("rank 1 connects");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
    let mut bytes = [0; 256];
    let mut len = 0;
    // It ends in the job id, and in a byte for "not encrypted".
    while !bytes[..len].ends_with(b"a test\0") {
        let more = stream.read(&mut bytes[len..]).expect("rank 1 says who it is");
        assert!(more > 0, "it ended after {:02x?}", &bytes[..len]);
        len += more;
    }
    drop(stream);
    assert!(rank.end(BOUND).1.contains(EXCHANGE), "nobody answered it");
    bytes[..len].to_vec()
}

#[test]
fn a_peer_of_another_release_is_named() {
    let Some(compiler) = compiler() else { return };
    let folder = scratch("release");
    let (program, example) = (compile(compiler, "ranks", &folder), allgather(true));
    let hello = hello(&program, example, &folder);
    // Behind magic, version, rank and size: the digest of the layouts. The version comes first of all.
    for (at, word) in [(20, "other layouts"), (8, "speaks version")] {
        let tcp = free_tcp_port();
        let mut command = Command::new(&program);
        command.args(["meet", "0", "2", &format!("127.0.0.1:{tcp}"), "10000"]).arg(&example.image);
        let mut first = Rank::start(&mut command, &folder, "rank-0");
        let start = Instant::now();
        let mut stream = loop {
            match TcpStream::connect(("127.0.0.1", tcp)) {
                Ok(stream) => break stream,
                Err(error) => assert!(start.elapsed() < BOUND, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut other = hello.clone();
        other[at] ^= 0x55;
        stream.write_all(&other).expect("rank 0 reads");
        let (_, text) = first.end(BOUND);
        assert!(text.contains(EXCHANGE) && text.contains("rank 1 at ") && text.contains(word), "{text}");
    }
}

#[test]
fn the_interface_refuses_what_it_says_it_refuses() {
    let Some(compiler) = compiler() else { return };
    let folder = scratch("capi");
    let (program, example) = (compile(compiler, "capi", &folder), allgather(true));
    let mut command = Command::new(&program);
    command.arg(&example.image).arg(&example.libraries);
    let (success, text) = Rank::start(&mut command, &folder, "capi").end(BOUND);
    assert!(success && text.contains("all as promised"), "{text}");
}

#[test]
fn the_library_exports_what_the_header_declares_and_nothing_else() {
    if compiler().is_none() {
        return;
    }
    let bytes = std::fs::read(allgather(true).prefix().join("lib/libflexcast.so")).expect("the library");
    let library = object::File::parse(&*bytes).expect("an ELF");
    let exported: Vec<String> = library
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global())
        .map(|symbol| symbol.name().expect("a name").to_owned())
        .collect();
    let header = std::fs::read_to_string(workspace_root().join("host/capi/include/flexcast.h")).expect("the header");
    let declared = declared_functions(&header);
    assert!(declared.len() > 20, "{declared:?}");
    for name in &declared {
        assert_eq!(declared.iter().filter(|other| *other == name).count(), 1, "declarations of {name}");
    }
    let sorted = |mut names: Vec<String>| {
        names.retain(|name| !name.starts_with("FLEXCAST_"));
        names.sort();
        names
    };
    assert_eq!(sorted(exported), sorted(declared));
}

/// The header and the example that comes with it, as a program with strict warnings compiles them.
#[test]
fn header_and_example_compile_without_warnings_in_c_and_cpp() {
    const STRICT: [&str; 6] = ["-Wall", "-Wextra", "-Wpedantic", "-Wredundant-decls", "-Werror", "-fsyntax-only"];
    let root = workspace_root();
    let [example, smallest] = ["allgather", "smallest"].map(|name| root.join(format!("examples/c/{name}.c")));
    let own = scratch("header").join("header.c");
    let program = "#include \"flexcast.h\"\n#include \"flexcast.h\"\n\
        int main(void)\n{\n    flexcast_request *request;\n    \
        if (flexcast_allgather(NULL, FLEXCAST_IN_PLACE, NULL, 8, &request) == FLEXCAST_OK)\n        return 1;\n    \
        return flexcast_abi_version() != FLEXCAST_ABI_VERSION;\n}\n";
    std::fs::write(&own, program).expect("written");
    let compilers = [
        ("gcc", ["-xc", "-std=c99"]),
        ("gcc", ["-xc", "-std=c11"]),
        ("clang", ["-xc", "-std=c11"]),
        ("g++", ["-xc++", "-std=c++11"]),
        ("g++", ["-xc++", "-std=c++17"]),
        ("clang++", ["-xc++", "-std=c++17"]),
    ];
    for (compiler, language) in compilers {
        // The examples are programs in C.
        for source in [&own, &example, &smallest].into_iter().filter(|source| language[0] == "-xc" || *source == &own) {
            let mut command = Command::new(compiler);
            command.args(STRICT).arg(format!("-I{}", root.join("host/capi/include").display())).args(language);
            match command.arg(source).output() {
                Ok(output) => {
                    let said = String::from_utf8_lossy(&output.stderr);
                    assert!(output.status.success(), "{compiler} {language:?} {}:\n{said}", source.display());
                }
                Err(_) => skipped(format_args!("{compiler} is not installed (Debian: {compiler})")),
            }
        }
    }
}

#[test]
fn a_forked_child_is_refused_at_once_and_disturbs_nothing() {
    let Some(compiler) = compiler() else { return };
    let read = |name: &str| std::fs::read_to_string(workspace_root().join("tests/c").join(name)).expect("the program");
    let text = read("forked.c") + &read("expect.h");
    let header = std::fs::read_to_string(workspace_root().join("host/capi/include/flexcast.h")).expect("the header");
    for name in declared_functions(&header) {
        assert!(text.contains(&format!("{name}(")), "tests/c/forked.c does not call {name} in the child");
    }
    let folder = scratch("forked");
    let (program, example) = (compile(compiler, "forked", &folder), allgather(true));
    let mut command = Command::new(&program);
    command.arg(&example.image).arg(&example.libraries);
    let (success, text) = Rank::start(&mut command, &folder, "forked").end(BOUND);
    assert!(success && text.contains("all as promised"), "{text}");
}
