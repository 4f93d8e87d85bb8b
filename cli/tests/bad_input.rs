//! Bad parameters of every command: one line with the value, the limit and the next step, and exit code 1. None of
//! these needs an image: they are refused before anything is opened.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::harness::skipped;

fn flexcast(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flexcast")).args(args).output().expect("the tool starts")
}

#[track_caller]
fn refused(args: &[&str], words: &[&str]) {
    refused_by(1, args, words);
}

/// `code` 2: an option does not take the value, whatever else is given.
#[track_caller]
fn refused_by(code: i32, args: &[&str], words: &[&str]) {
    let output = flexcast(args);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    assert!(output.stdout.is_empty(), "{args:?} printed a result");
    for word in words {
        assert!(text.contains(word), "{args:?}: {text:?} lacks {word:?}");
    }
}

#[test]
fn chunk_that_is_not_a_multiple_of_64() {
    refused(&["tput", "--chunk", "100"], &["100 bytes", "multiple of 64", "128"]);
    refused_by(2, &["tput", "--chunk", "0"], &["'0' for '--chunk", "from 64 to 8388608"]);
}

#[test]
fn zero_bytes() {
    refused_by(2, &["tput", "--bytes", "0"], &["'0' for '--bytes", "from 1"]);
}

#[test]
fn empty_file() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    refused(&["tput", "--file", &file.path().to_string_lossy()], &["0 bytes"]);
}

#[test]
fn more_chunks_than_the_published_kernels_take() {
    refused(&["reference", "--bytes", "33558528"], &["8193 chunks", "8192", "--threads"]);
    // A size that could never be allocated is refused as such, not tried.
    refused(&["reference", "--bytes", "9223372036854775807"], &["--chunk", "--threads"]);
    refused(&["reference", "--transport", "ud", "--chunk", "8192"], &["8192", "ud", "4096"]);
    refused_by(2, &["reference", "--threads", "191"], &["'191' for '--threads", "1 to 190"]);
    refused(&["reference", "--first-unit", "250", "--threads", "16"], &["unit 250", "1 to 254"]);
}

#[test]
fn repetitions_and_losses() {
    refused_by(2, &["tput", "--iterations", "0"], &["'0' for '--iterations", "from 1"]);
    refused_by(2, &["reference", "--iterations", "0"], &["'0' for '--iterations", "from 1"]);
    refused_by(2, &["perf", "--repetitions", "0"], &["'0' for '--repetitions", "from 1 to 10000000"]);
    refused_by(2, &["perf", "--zeros", "101"], &["'101' for '--zeros", "from 0 to 100"]);
    refused_by(2, &["tune", "--rounds", "1"], &["'1' for '--rounds", "from 2 to 1000"]);
    refused_by(2, &["info", "--check", "--seconds", "3601"], &["'3601' for '--seconds", "from 1 to 3600"]);
    refused(&["tput", "--loss", "101"], &["101 %", "0 to 100"]);
}

#[test]
fn files_that_are_not_there() {
    refused(&["tput", "--image", "no/such.elf"], &["no/such.elf", "cargo xtask build"]);
    refused(&["tput", "--file", "no/such.bin"], &["no/such.bin"]);
    refused(&["deploy", "no/such.elf"], &["no/such.elf", "cargo xtask build"]);
    refused(&["emu", "run", "no/such.elf"], &["no/such.elf"]);
}

/// Every file that an option or a variable names: one without an end, a pipe that nobody writes to, a folder, none.
#[test]
fn what_is_no_regular_file_is_refused_at_once_with_the_next_step() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let made = Command::new("mkfifo").arg(path("pipe")).status().expect("mkfifo");
    assert!(made.success());
    std::fs::write(path("long"), vec![b'#'; (1 << 20) + 1]).expect("a file");
    let kinds: &[(String, &str)] = &[
        ("/dev/zero".to_owned(), "it is a device, and only regular files are read"),
        (path("pipe"), "it is a pipe, and only regular files are read"),
        (folder.path().to_string_lossy().into_owned(), "it is a folder, and only regular files are read"),
        (path("none"), "No such file or directory (os error 2); correct its path"),
        (path("long"), "it has 1048577 bytes, and at most 1048576 are read; give a smaller file"),
    ];
    let begun = std::time::Instant::now();
    for (file, said) in kinds {
        let is_long = file.ends_with("long");
        // Of commands of ranks the variable is what names the file.
        for (args, is_short) in [
            (&["tput", "--machine"][..], true),
            (&["tput", "--topology"], false),
            (&["tput", "--topology", "switch-4", "--faults"], false),
            (&["service", "check"], true),
            (&["emu", "run", "--toolchain"], true),
            (&["tput", "--image"], false),
            (&["emu", "run"], false),
            (&["perf", "--interface", "lo", "--datapath", "dpa", "--firmware"], false),
            (&["info", "--interface", "lo"], false),
        ] {
            if is_long && !is_short {
                continue;
            }
            let mut tool = Command::new(env!("CARGO_BIN_EXE_flexcast"));
            tool.args(args).env("FLEXCAST_RANK", "0").env("FLEXCAST_SIZE", "1");
            match args[0] {
                "info" => tool.env("FLEXCAST_TUNING", file),
                _ => tool.arg(file),
            };
            if args.last() == Some(&"--toolchain") {
                tool.arg("program");
            }
            let output = tool.output().expect("the tool starts");
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{args:?} {file}: {text}");
            assert!(text.contains(file.as_str()) && text.contains("cannot be read"), "{args:?} {file}: {text}");
            assert!(text.contains(said), "{args:?} {file}: {text}");
            assert_eq!(args[0] == "info", text.contains("FLEXCAST_TUNING"), "{text}");
        }
    }
    assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
}

/// A variable of a file that is set to nothing has another next step than a file without content.
#[test]
fn an_empty_variable_of_the_secret_s_file_is_named() {
    let mut tool = Command::new(env!("CARGO_BIN_EXE_flexcast"));
    tool.args(["perf", "--interface", "lo"]).env("FLEXCAST_RANK", "0").env("FLEXCAST_SIZE", "1");
    let output = tool.env("FLEXCAST_SECRET_FILE", "").output().expect("the tool starts");
    let text = String::from_utf8_lossy(&output.stderr);
    let said = "error: FLEXCAST_SECRET_FILE is empty: set it to the path of a file with the secret, or unset it\n";
    assert_eq!((output.status.code(), &*text), (Some(1), said));
}

/// Numbers that are one, and beyond the range: the variable, its value and the range.
#[test]
fn parameters_beyond_their_range_are_named_by_their_variables() {
    for (variable, value, said) in [
        ("FLEXCAST_PORT", "0", "port is 0: must be 1 to 65535, alike on all ranks (FLEXCAST_PORT)"),
        ("FLEXCAST_TTL", "256", "ttl is 256: must be 1 to 255 (FLEXCAST_TTL)"),
        ("FLEXCAST_SUBGROUPS", "0", "subgroups is 0: must be 1 to 16 (FLEXCAST_SUBGROUPS)"),
        ("FLEXCAST_SOCKET_BUFFER", "1", "is 1: must be 2048 to 1073741824 (FLEXCAST_SOCKET_BUFFER)"),
        ("FLEXCAST_CHUNK_BYTES", "0", "chunk_bytes is 0: must be 64 to 1073741824 (FLEXCAST_CHUNK_BYTES)"),
        ("FLEXCAST_CHAINS", "5000", "chains is 5000: must be 0 to 1024 (FLEXCAST_CHAINS)"),
        ("FLEXCAST_CONTROL", "device", "control is device: must be host "),
        ("FLEXCAST_CONTROL", "service", "control is service: must be host "),
    ] {
        let mut tool = Command::new(env!("CARGO_BIN_EXE_flexcast"));
        tool.args(["perf", "--interface", "lo", "--sizes", "64"]).env("FLEXCAST_RANK", "0").env("FLEXCAST_SIZE", "1");
        let output = tool.env(variable, value).output().expect("the tool starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{variable}={value}: {text}");
        assert!(text.contains(said) && text.contains(variable), "{variable}={value}: {text}");
    }
}

#[test]
fn images_that_are_none() {
    let host = env!("CARGO_BIN_EXE_flexcast");
    refused(&["deploy", host], &["not RISC-V (243)"]);
    refused(&["emu", "run", host], &["not RISC-V (243)"]);
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), b"hello").expect("writable");
    refused(&["deploy", &file.path().to_string_lossy()], &["not an ELF file"]);
}

#[test]
fn unknown_device() {
    // Any readable image will do: devices are opened after it is read and before it is loaded.
    let image = env!("CARGO_BIN_EXE_flexcast");
    refused(&["reference", "--image", image, "--receiver", "mlx5_9"], &["no device `mlx5_9`", "mlx5_0", "mlx5_1"]);
}

#[test]
fn system_provider_without_doca() {
    // Where DOCA is installed this test has nothing to check.
    if std::path::Path::new("/opt/mellanox/flexio").exists() {
        skipped("DOCA is installed");
        return;
    }
    refused(&["devices", "--provider", "system"], &["DOCA not installed", "libflexio.so", "--provider emu"]);
    let output = flexcast(&["devices", "--provider", "system"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.matches("install its package").count() == 1 && text.lines().count() == 2, "said once: {text}");
    refused(&["tput", "--provider", "system", "--loss", "1"], &["--loss", "emulated"]);
    refused(&["tput", "--provider", "system", "--memory", "weak"], &["--memory", "emulated", "--provider system"]);
}

#[test]
fn topologies_and_faults_that_cannot_be() {
    refused(&["tput", "--topology", "ring-5"], &["topology ring-5", "switch-N", "fat-tree-188", "description file"]);
    refused(&["tput", "--topology", "nowhere.toml"], &["topology `nowhere.toml` cannot be read"]);
    refused(&["tput", "--topology", "/nofile"], &["topology `/nofile` cannot be read", "No such file"]);
    refused(&["tput", "--topology", "switch-1"], &["2 cards", "\"switch-1\"", "1 hosts", "larger topology"]);
    refused(&["tput", "--topology", "switch-4", "--cards", "2"], &["1 hosts are named for 2 cards", "such as 0,5"]);
    refused(&["tput", "--cards", "0,1"], &["hosts 0,1", "name a topology"]);
    refused(&["tput", "--set", "loads.l3_cycles=1"], &["set loads.l3_cycles=1", "name the model"]);
    refused(&["tput", "--machine", "nowhere.toml"], &["the machine file nowhere.toml cannot be read"]);
    refused(&["tput", "--topology", "switch-4", "--cards", "2,2"], &["both to be at host 2"]);
    refused(&["tput", "--topology", "switch-4", "--cards", "0,4"], &["no host \"4\"", "0 to 3", "\"h3\""]);
    refused(&["tput", "--faults", "nowhere.toml"], &["fault script `nowhere.toml` cannot be read"]);
    let script = |text: &str| {
        let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    };
    let file = script("[[fault]]\nlink = \"h9-switch\"\nfault = \"down\"\n");
    let path = file.path().to_string_lossy();
    refused(&["tput", "--topology", "switch-4", "--faults", &path], &[&path, "\"h9-switch\"", "\"h0-switch\""]);
    let file = script("[[fault]]\nlink = \"*\"\nfault = \"sideways\"\n");
    let path = file.path().to_string_lossy();
    refused(&["tput", "--topology", "switch-4", "--faults", &path], &["sideways"]);
    let file = script("[[host]]\nname = \"x\"\nto = \"nobody\"\n");
    let path = file.path().to_string_lossy();
    refused(&["tput", "--topology", &path], &["topology", "\"nobody\""]);
}

/// Runs the tool with so much address space, in KiB.
fn within(kib: u64, args: &[&str]) -> Output {
    let script = format!("ulimit -v {kib}; exec \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_flexcast")]).args(args);
    command.output().expect("a shell")
}

#[test]
fn memory_that_there_is_not() {
    for (args, words) in [
        (&["tput", "--bytes", "16000000000", "--chunk", "65536"][..], &["--bytes 16000000000", "59.6 GiB"][..]),
        (&["sim", "--ranks", "16", "--bytes", "64000000"], &["--bytes 64000000 with 16 ranks", "GiB"]),
        (&["sim", "--ranks", "16", "--bytes", "64000000", "--algorithm", "ring"], &["--bytes 64000000 with 16 ranks"]),
        (&["tput", "--file", "/dev/zero"], &["file to send `/dev/zero`", "a smaller file"]),
        (&["sim", "--file", "/dev/zero"], &["file to send `/dev/zero`", "a smaller file"]),
    ] {
        let output = within(1_000_000, args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
        assert!(text.contains("left within the limit of its address space (ulimit -v)"), "{args:?}: {text}");
        for word in words {
            assert!(text.contains(word), "{args:?}: {text:?} lacks {word:?}");
        }
    }
    // A file that is longer than all memory, but takes no room on the disk.
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.as_file().set_len(1 << 40).expect("a sparse file");
    refused(&["tput", "--chunk", "65536", "--file", &file.path().to_string_lossy()], &["4096.0 GiB", "smaller file"]);
}

#[test]
fn numbers_that_are_negative_or_none() {
    let refused = |line: &str, words: &[&str]| {
        let args: Vec<&str> = line.split_whitespace().collect();
        let output = flexcast(&args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {text}");
        for word in words {
            assert!(text.contains(word), "{line}: {text:?} lacks {word:?}");
        }
    };
    refused("tput --threads -1", &["'-1'", "--threads", "from 1 to 64"]);
    refused("tput --chunk -64", &["'-64'", "--chunk", "from 64 to 8388608"]);
    refused("tput --bytes -5", &["'-5'", "--bytes", "what memory has room for"]);
    refused("tput --slots 2.5", &["'2.5'", "--slots", "from 16 to 8192"]);
    refused("reference --threads -1", &["'-1'", "--threads", "from 1 to 190"]);
    refused("sim --bytes -5", &["'-5'", "--bytes", "from 0 to"]);
    refused("sim --ranks -1", &["'-1'", "--ranks", "from 1 to 1024"]);
    refused("soak --seeds -1", &["'-1'", "--seeds", "from 1 to"]);
    refused("report --jobs -1", &["'-1'", "--jobs", "from 1 to"]);
    refused("plan --link -200", &["'-200'", "--link", "from 1 to 3200"]);
    refused("emu exec --rank -1 --of 2 -- true", &["'-1'", "--rank", "from 0 to"]);
}

#[test]
fn numbers_of_a_timing_model() {
    let set = |change: &str, words: &[&str]| refused(&["tput", "--model", "m2", "--set", change], words);
    set("loads.l3_cycles=-1", &["loads.l3_cycles=-1", "from 0 to 18446744073709551615", "M.2 has 128"]);
    set("nosuch.x=1", &["nosuch.x=1", "no number nosuch.x", "its groups are", "loads"]);
    set("loads.x=1", &["no number loads.x", "its group loads has", "l3_cycles"]);
    refused(&["tput", "--loss", "-1"], &["-1 %", "0 to 100"]);
}

#[test]
fn numbers_of_bytes_have_units() {
    for line in
        ["sim --bytes 64X", "tput --bytes 1.5M", "plan --buffer 8MiBs", "perf --sizes 4Q", "compare --sizes 1MX"]
    {
        let args: Vec<&str> = line.split_whitespace().collect();
        let output = flexcast(&args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {text}");
        assert!(text.contains("give ") && (text.contains("4K") || text.contains("64KiB")), "{line}: {text}");
    }
}

/// Every variable, in every command that begins with the environment.
#[test]
fn nonsense_in_variables_is_refused_with_what_they_may_be() {
    let settings = flexcast::Setting::ALL.iter().filter_map(|setting| Some((setting, setting.variable()?)));
    let mut variables: Vec<&str> = Vec::new();
    for (setting, variable) in settings {
        // Any text names aggregators.
        if setting.parse("zzz").is_err() {
            variables.push(variable);
        }
    }
    assert!(variables.len() > 30, "{variables:?}");
    let others = ["SERVICE_PROCESSES", "SERVICE_DELIVERY", "PORT", "SHM", "UNAUTHENTICATED", "TTL", "LOG"];
    let others = others.map(|name| format!("FLEXCAST_{name}"));
    variables.extend(others.iter().map(String::as_str));
    for (at, variable) in variables.iter().enumerate() {
        // Each command has its turn.
        let command = ["perf", "info", "tune"][at % 3];
        let mut tool = Command::new(env!("CARGO_BIN_EXE_flexcast"));
        tool.args([command, "--interface", "lo"]).env("FLEXCAST_RANK", "0").env("FLEXCAST_SIZE", "1");
        let output = tool.env(variable, "zzz").output().expect("the tool starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command} with {variable}=zzz: {text}");
        assert!(text.contains(&format!("{variable} is \"zzz\": must be ")), "{command}: {text}");
    }
}

/// What two ranks say that are started with these options; both fail.
fn two_ranks(options: [&str; 2]) -> [String; 2] {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let store = listener.local_addr().expect("its address").to_string();
    drop(listener);
    let ranks = options.into_iter().enumerate().map(|(rank, options)| {
        let mut tool = Command::new(env!("CARGO_BIN_EXE_flexcast"));
        tool.args(options.split(' ')).args(["--interface", "lo"]).env("FLEXCAST_RANK", rank.to_string());
        tool.env("FLEXCAST_SIZE", "2").env("FLEXCAST_STORE", &store).stderr(Stdio::piped()).stdout(Stdio::null());
        tool.spawn().expect("the tool starts")
    });
    let ranks: Vec<_> = ranks.collect();
    let texts = ranks.into_iter().map(|rank| {
        let output = rank.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        text
    });
    texts.collect::<Vec<_>>().try_into().expect("two")
}

/// Both ranks report it at the start, before one waits for another that has less to do.
#[test]
fn options_that_differ_among_ranks_are_named_with_both_values() {
    let begun = std::time::Instant::now();
    for (first, other, said) in [
        ("perf --repetitions 3", "perf --repetitions 4", "--repetitions 4, rank 0 3"),
        ("perf --warm-up 1", "perf --warm-up 0", "--warm-up 0, rank 0 1"),
        ("perf --sizes 64", "perf --sizes 64,128", "--sizes 64,128, rank 0 64"),
        ("tune --rounds 2", "tune --rounds 3", "--rounds 3, rank 0 2"),
    ] {
        for text in two_ranks([first, other]) {
            assert_eq!(text, format!("error: rank 1 has {said}: give all ranks the same options\n"));
        }
    }
    for text in two_ranks(["perf", "tune"]) {
        assert!(text.contains("rank 1") && text.contains("one command"), "{text}");
    }
    assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
}

#[test]
fn a_command_of_ranks_names_a_launcher() {
    let output = Command::new(env!("CARGO_BIN_EXE_flexcast")).args(["perf", "--interface", "lo"]).env_clear().output();
    let output = output.expect("the tool starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for word in ["FLEXCAST_SIZE", "mpirun -n 4 flexcast perf", "FLEXCAST_RANK", "FLEXCAST_STORE"] {
        assert!(text.contains(word), "{text:?} lacks {word:?}");
    }
}

#[test]
fn the_addresses_of_emulated_cards_are_printed() {
    for (arguments, expected) in [
        (&["--card", "3"][..], "mlx5_0 198.18.0.4\nmlx5_1 198.18.0.5\n"),
        (&["--rank", "300", "--of", "301", "--cards", "1"], "mlx5_0 198.18.1.45\n"),
        (&["--bridge", "127.0.0.1:7471,127.0.0.1:7472", "--card", "1"], "mlx5_0 198.18.0.2\n"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flexcast"));
        let output = command.args(["emu", "exec", "--addresses"]).args(arguments).output().expect("the tool starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{arguments:?}");
    }
}

#[test]
fn a_program_on_the_emulator_s_libraries_needs_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("bin/flexcast");
    std::fs::create_dir(folder.path().join("bin")).expect("a folder");
    std::fs::copy(env!("CARGO_BIN_EXE_flexcast"), &program).expect("a copy");
    let mut command = Command::new(&program);
    command.args(["emu", "exec", "--", "true"]).current_dir(folder.path());
    // A process that another test starts at this moment may have the copy open for writing.
    let mut output = command.output();
    for _ in 0..100 {
        if !output.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ExecutableFileBusy) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        output = command.output();
    }
    let text = String::from_utf8_lossy(&output.expect("it starts").stderr).into_owned();
    for word in ["lib/flexcast/emu-libs", "cargo xtask build-emu-libs", "cargo xtask install --all", "--libs"] {
        assert!(text.contains(word), "{text:?} lacks {word:?}");
    }
}
