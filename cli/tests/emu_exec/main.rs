//! `flexcast emu exec`: what the program finds in its environment, and what is refused before it starts.

use std::process::{Command, Output};

use emu_config::Machine;

fn flexcast(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flexcast"));
    command.args(["emu", "exec"]).args(args).env("LD_LIBRARY_PATH", "/already/there").env_remove("FLEXCAST_MACHINE");
    command.env("FLEXCAST_PEER_TIMEOUT_MS", "100");
    command.output().expect("the tool starts")
}

/// A folder with the files of the libraries' folder.
fn libraries() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("libflexio.so"), "").expect("a file");
    folder
}

#[test]
fn the_program_finds_libraries_and_machine() {
    let folder = libraries();
    let libs = folder.path().to_str().expect("UTF-8");
    let options = ["--libs", libs, "--card", "3", "--bridge", "127.0.0.1:0,localhost:7472", "--pcap", "x.pcapng"];
    let script = "printf '%s\\n' \"$LD_LIBRARY_PATH\" \"$FLEXCAST_MACHINE\"; exit $1";
    let output = flexcast(&[&options[..], &["--", "sh", "-c", script, "sh", "7"]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(7), "the program's own code: {}", String::from_utf8_lossy(&output.stderr));
    let (path, machine) = text.split_once('\n').expect("two values");
    assert_eq!(path, format!("{libs}:/already/there"));
    let machine = Machine::parse(machine.strip_prefix("toml:").expect("the text itself")).expect("a machine file");
    assert_eq!(machine.first_card, Some(3));
    assert_eq!(machine.bridge.and_then(|bridge| bridge.peer).as_deref(), Some("localhost:7472"));
    assert!(machine.capture.is_some_and(|path| path.is_absolute() && path.ends_with("x.pcapng")));
}

#[test]
fn a_machine_file_is_read_before_the_program_starts() {
    let folder = libraries();
    let libs = folder.path().to_str().expect("UTF-8");
    let file = folder.path().join("machine.toml");
    let file = file.to_str().expect("UTF-8");
    std::fs::write(file, "cards = 2\n[link]\ndrop_ppm = 9\n").expect("a file");
    let output = flexcast(&["--libs", libs, "--machine", file, "--", "sh", "-c", "echo \"$FLEXCAST_MACHINE\""]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("drop_ppm = 9"), "{text}");

    let refused = |options: &[&str], code: i32, words: &[&str]| {
        let output = flexcast(&[&["--libs", libs], options, &["--", "sh", "-c", "echo started"]].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{options:?}: {text}");
        assert!(output.stdout.is_empty() && words.iter().all(|word| text.contains(word)), "{options:?}: {text}");
    };
    std::fs::write(file, "[bridge]\nlistens = \"127.0.0.1:1\"\n").expect("a file");
    refused(&["--machine", file], 1, &["machine.toml", "listens", "listen"]);
    refused(&["--machine", "/no/such/file"], 1, &["/no/such/file"]);
    refused(&["--bridge", "7471"], 2, &["HOST:PORT", "comma"]);
    refused(&["--machine", file, "--card", "1"], 2, &["--machine", "--card"]);
    refused(&["--rank", "1"], 2, &["--of"]);
    refused(&["--rank", "1", "--of", "4", "--card", "1"], 2, &["--rank", "--card"]);
    refused(&["--rank", "4", "--of", "4"], 1, &["ranks are 0 to 3"]);
    for (text, words) in [
        ("cards = 0", &["0 cards asked for"][..]),
        ("heap_mib = 0", &["heap_mib is 0: 1 to 8192"]),
        ("[reflector]\n[generator]", &["the cable has one free end"]),
        ("[replay]\ncapture = \"/no/such.pcap\"", &["/no/such.pcap cannot be played", "No such file or directory"]),
        ("[generator]\nreport = \"/no/such/report\"", &["the generator's report `/no/such/report` cannot be written"]),
        ("[timing]\nmodel = \"/no/such/model\"", &["/no/such/model"]),
        ("[network]\ntopology = \"ring-4\"", &["topology ring-4"]),
        ("cards = 99999\n[job]", &["cards"]),
        ("[bridge]\nlisten = \"127.0.0.1:0\"", &["neither peer nor peers"]),
    ] {
        std::fs::write(file, text).expect("a file");
        refused(&["--machine", file], 1, words);
    }
}

#[test]
fn names_of_devices_are_checked_before_the_program_starts() {
    let folder = libraries();
    let libs = folder.path().to_str().expect("UTF-8");
    let script = ["--", "sh", "-c", "echo \"$FLEXCAST_DEVICE_NAMES\""];
    let exec = |names: &str| flexcast(&[&["--libs", libs, "--device-names", names][..], &script].concat());
    let output = exec("mlx5_bond_0,roce1");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "mlx5_bond_0,roce1\n");
    for (names, words) in [
        ("a/b", "--device-names: device name `a/b`: letters, digits"),
        ("x,x", "is that of cards 0 and 1: give each its own"),
        ("a,b,c", "3 names, and the machine has 2 cards"),
    ] {
        let output = exec(names);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && output.stdout.is_empty() && text.contains(words), "{names}: {text}");
    }
}

#[test]
fn missing_libraries_and_programs_are_reported() {
    let output = flexcast(&["--libs", "/no/such/folder", "--", "true"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("cargo xtask build-emu-libs"), "{text}");
    let folder = libraries();
    let output = flexcast(&["--libs", folder.path().to_str().expect("UTF-8"), "--", "no-such-program-there-is"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text,
        "error: program `no-such-program-there-is` is in no folder of PATH: install it, or give its path, such as \
         ./no-such-program-there-is\n"
    );
    let output = flexcast(&["--libs", folder.path().to_str().expect("UTF-8"), "--", "./no-such-program"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("program `./no-such-program` cannot be started") && text.contains("No such file"), "{text}");
}

/// The program is not started: what its first call of verbs would say of it has fewer words.
#[test]
fn a_used_address_and_a_capture_that_cannot_be_are_reported_before_the_program_starts() {
    let folder = libraries();
    let libs = folder.path().to_str().expect("UTF-8");
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = taken.local_addr().expect("its address").to_string();
    let bridge = format!("{address},127.0.0.1:1");
    let port = taken.local_addr().expect("its address").port().to_string();
    let refused = |options: &[&str], words: &[&str]| {
        let output = flexcast(&[&["--libs", libs], options, &["--", "sh", "-c", "echo started"]].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{options:?}: {text}");
        assert!(output.stdout.is_empty() && words.iter().all(|word| text.contains(word)), "{options:?}: {text}");
    };
    refused(&["--bridge", &bridge], &["the bridge cannot listen on", &address, "another program"]);
    refused(&["--rank", "0", "--of", "2", "--port-base", &port], &["cannot listen on", &address]);
    refused(&["--bridge", "no.such.host.invalid:1,127.0.0.1:1"], &["no.such.host.invalid:1"]);
    let socket = folder.path().join("no.sock");
    let words = ["--attach: no process shares its cards at", "no.sock", "No such file", "correct the socket's path"];
    refused(&["--attach", socket.to_str().expect("UTF-8")], &words);
    refused(&["--pcap", "/proc/x.pcapng"], &["capture `/proc/x.pcapng` cannot be written"]);
}

/// A machine that detects races: the program's own code counts first, then whether there were any.
#[test]
fn races_show_in_the_exit_code() {
    let folder = libraries();
    let libs = folder.path().to_str().expect("UTF-8");
    let file = folder.path().join("machine.toml");
    let file = file.to_str().expect("UTF-8");
    std::fs::write(file, "detect_races = true\n").expect("a file");
    let ends = |script: &str| {
        let output = flexcast(&["--libs", libs, "--machine", file, "--", "sh", "-c", script]);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (clean, text) = ends("test -n \"$FLEXCAST_RACES\"");
    assert_eq!((clean, &*text), (Some(0), ""));
    let (found, text) = ends("echo a race >> \"$FLEXCAST_RACES\"");
    assert!(found == Some(66) && text.contains("has found races"), "{found:?}: {text}");
    let (own, text) = ends("echo a race >> \"$FLEXCAST_RACES\"; exit 7");
    assert!(own == Some(7) && text.contains("has found races"), "{own:?}: {text}");
    assert_eq!(ends("kill -KILL $$").0, Some(128 + 9), "as a shell shows a signal");
    let output = flexcast(&["--libs", libs, "--machine", file, "--", "no-such-program-there-is"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("no-such-program-there-is"), "{text}");
}

/// Without the file the program's code would say that there were no races.
#[test]
fn a_file_for_races_that_cannot_be_written_is_refused_before_the_program_starts() {
    let folder = libraries();
    let file = folder.path().join("machine.toml");
    std::fs::write(&file, "detect_races = true\n").expect("a file");
    let below = file.join("races");
    let mut command = Command::new(env!("CARGO_BIN_EXE_flexcast"));
    command.args(["emu", "exec", "--libs"]).arg(folder.path()).arg("--machine").arg(&file);
    let output =
        command.args(["--", "echo", "started"]).env("FLEXCAST_RACES", &below).output().expect("the tool starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{text}");
    assert!(text.contains("FLEXCAST_RACES") && text.contains(&below.display().to_string()), "{text}");
}

#[test]
fn a_request_to_end_reaches_the_program_that_is_watched_for_races() {
    let folder = libraries();
    let file = folder.path().join("machine.toml");
    std::fs::write(&file, "detect_races = true\n").expect("a file");
    let started = folder.path().join("started");
    // The shell ends with this code when it is asked to.
    let script = format!("trap 'exit 9' TERM; : > {}; while :; do sleep 0.01; done", started.display());
    let mut child = Command::new(env!("CARGO_BIN_EXE_flexcast"))
        .args(["emu", "exec", "--libs"])
        .arg(folder.path())
        .arg("--machine")
        .arg(&file)
        .args(["--", "sh", "-c", &script])
        .env_remove("FLEXCAST_MACHINE")
        .spawn()
        .expect("the tool starts");
    while !started.exists() {
        assert_eq!(child.try_wait().expect("it can be waited for"), None, "it waits for the program");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    // Time for the tool to have its handlers.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let asked = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill starts");
    assert!(asked.success());
    assert_eq!(child.wait().expect("it ends").code(), Some(9));
}

/// In a namespace of the program's own; nobody else sees the files.
#[test]
fn files_of_the_cards_are_in_dev_where_that_is_permitted() {
    let folder = libraries();
    let libs = folder.path().to_str().expect("UTF-8");
    let script = "test -c /dev/infiniband/uverbs1 && test -w /dev/infiniband/uverbs0 && test -c /dev/zero && \
                  test ! -e /dev/infiniband/uverbs2 && echo there";
    let output = flexcast(&["--libs", libs, "--device-files", "--", "sh", "-c", script]);
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("permits no mount namespace") || said.contains("is there already") {
        eprintln!("skipped: {said}");
        return;
    }
    assert_eq!(String::from_utf8_lossy(&output.stdout), "there\n", "{said}");
    assert!(!std::path::Path::new("/dev/infiniband/uverbs0").exists());
}
