//! Outputs of every command, to stdout and to files. What cannot be written is reported before the work, or after it as
//! an error, and nothing is left half written.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn images() -> PathBuf {
    let images = std::env::var_os("FLEXCAST_IMAGES").map_or_else(|| root().join("target/device/emu"), PathBuf::from);
    assert!(images.join("allgather.elf").exists(), "no images in {}: run `cargo xtask build` first", images.display());
    images
}

fn image(name: &str) -> String {
    images().join(name).to_string_lossy().into_owned()
}

fn flexcast(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flexcast"));
    command.args(args).current_dir(root());
    command
}

fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// One command of each kind that ends soon, and what it prints on stdout.
fn printing() -> Vec<Vec<String>> {
    let (receive, pingpong, allgather, folder) = (
        image("allgather.elf"),
        image("pingpong.elf"),
        image("allgather.elf"),
        images().to_string_lossy().into_owned(),
    );
    let state = Path::new(env!("CARGO_TARGET_TMPDIR")).join("outputs-state.json").to_string_lossy().into_owned();
    let written = flexcast(&["tput", "--image", &receive, "--bytes", "4096", "--state", &state]).output().unwrap();
    assert!(written.status.success(), "{}", stderr_of(&written));
    let lines = [
        "--help".to_owned(),
        "--version".to_owned(),
        "tput --help".to_owned(),
        "devices".to_owned(),
        "devices --json".to_owned(),
        format!("tput --image {receive} --bytes 4096"),
        format!("tput --image {receive} --bytes 4096 --json"),
        format!("tput --image {receive} --bytes 4096 --stats"),
        format!("sim --image {allgather} --ranks 2 --bytes 64"),
        "sim --algorithm ring --ranks 2 --bytes 64 --json".to_owned(),
        format!("soak --image {allgather} --seeds 1 --jobs 1"),
        format!("soak --image {allgather} --seeds 1 --jobs 1 --json"),
        format!("deploy {receive}"),
        format!("run {pingpong}"),
        format!("plan --images {folder}"),
        format!("plan --images {folder} --json"),
        format!("ps {state}"),
        format!("stats {state} --json"),
    ];
    lines.iter().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

#[test]
fn a_full_stdout_is_an_error_of_every_command() {
    for arguments in printing() {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let full = File::options().write(true).open("/dev/full").expect("/dev/full");
        let output = flexcast(&arguments).stdout(full).stderr(Stdio::piped()).output().expect("the tool starts");
        let text = stderr_of(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        assert!(text.contains("error: stdout cannot be written: No space left on device"), "{arguments:?}: {text}");
        assert!(!text.contains("panicked"), "{arguments:?}: {text}");
    }
}

#[test]
fn a_reader_that_has_gone_ends_the_command_quietly() {
    use std::os::unix::process::ExitStatusExt as _;
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = flexcast(&["devices"]).stdout(writer).stderr(Stdio::piped()).output().expect("the tool starts");
    // SIGPIPE, as every other program.
    assert_eq!((output.status.signal(), stderr_of(&output).as_str()), (Some(13), ""));
}

#[test]
fn cards_that_are_emulated_are_said_to_be() {
    let text = |args: &[&str]| {
        let output = flexcast(args).output().expect("the tool starts");
        assert!(output.status.success(), "{args:?}: {}", stderr_of(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    let devices = text(&["devices"]);
    assert!(devices.starts_with("emulated cards") && devices.contains("--provider system"), "{devices}");
    assert!(text(&["devices", "--json"]).starts_with('['), "no such line in JSON");
    let deployed = text(&["deploy", &image("pingpong.elf")]);
    assert!(deployed.contains("on emulated card mlx5_0"), "{deployed}");
}

/// A parameter of the communicator that is refused has the name of the option that was given.
#[test]
fn refused_parameters_have_the_names_of_options() {
    for (option, value, limit) in
        [("--chunk", "8192", "64 to 4096"), ("--slots", "100", "a power of two (nearest: 64 or 128)")]
    {
        let output = flexcast(&["tput", "--image", &image("allgather.elf"), option, value]).output();
        let text = stderr_of(&output.expect("the tool starts"));
        assert_eq!(text, format!("error: {option} {value}: must be {limit}\n"));
    }
}

#[test]
fn an_rpc_of_an_image_is_called_with_a_number() {
    let argument = 0x1234_u64;
    let run = |call: &[&str]| {
        let pingpong = image("pingpong.elf");
        flexcast(&[&["run", &pingpong, "--call"], call].concat()).output().expect("the tool starts")
    };
    let output = run(&["bring_up", "0x1234"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", stderr_of(&output));
    let answer = flexcast_abi::bring_up_answer(argument);
    let line = text.lines().find(|line| line.starts_with("bring_up(4660) = ")).unwrap_or_else(|| panic!("{text}"));
    let rest = line.strip_prefix(&format!("bring_up(4660) = {answer} ({answer:#x}); "));
    let spent = rest.and_then(|rest| rest.strip_suffix(" instructions (emulated)"));
    assert!(spent.is_some_and(|spent| spent.parse::<u64>().is_ok_and(|spent| spent > 0)), "{line}");
    // Another name, and what is no number.
    let output = run(&["nosuch", "1"]);
    assert!(!output.status.success() && stderr_of(&output).contains("bring_up"), "{}", stderr_of(&output));
    let output = run(&["bring_up", "many"]);
    assert!(
        stderr_of(&output).contains("argument \"many\" of bring_up: give a whole number"),
        "{}",
        stderr_of(&output)
    );
}

#[test]
fn titles_of_experiments_are_in_one_column() {
    let output = flexcast(&["report", "--list"]).output().expect("the tool starts");
    let text = String::from_utf8(output.stdout).expect("text");
    let column = |line: &str| {
        let (id, _) = line.split_once(' ').expect("an id and a title");
        line.len() - line[id.len()..].trim_start().len()
    };
    let columns: std::collections::BTreeSet<usize> = text.lines().map(column).collect();
    assert!(text.lines().count() > 10 && columns.len() == 1, "{columns:?}\n{text}");
}

/// One rank of a job of `size` ranks on the loopback interface, which meet at `port`.
fn perf(size: u32, port: u16, args: &[&str]) -> Command {
    let mut command =
        flexcast(&[&["perf", "--interface", "lo", "--repetitions", "2", "--warm-up", "0"], args].concat());
    command.env("FLEXCAST_RANK", "0").env("FLEXCAST_SIZE", size.to_string());
    command.env("FLEXCAST_STORE", format!("127.0.0.1:{port}")).env_remove("FLEXCAST_LOG");
    command
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}

/// Measuring a network takes minutes: a place that takes no file is reported before, and figures are there where a disk
/// was full.
#[test]
fn a_table_of_algorithms_is_written_whole_or_not_at_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let tune = |output: &str| {
        let mut command = flexcast(&["tune", "--interface", "lo", "--sizes", "64", "--ops", "broadcast"]);
        command.args(["--rounds", "2", "--repetitions", "1", "--output", output]);
        command.current_dir(&folder).env("FLEXCAST_RANK", "0").env("FLEXCAST_SIZE", "1").env_remove("FLEXCAST_STORE");
        command.output().expect("the tool starts")
    };
    for (output, is_measured) in [("no/such/folder.toml", false), (".", false), ("/dev/full", true)] {
        let ended = tune(output);
        let text = stderr_of(&ended);
        assert_eq!((ended.status.code(), !ended.stdout.is_empty()), (Some(1), is_measured), "{output}: {text}");
        for word in [output, "cannot be written", "name with --output a file"] {
            assert!(text.contains(word), "{output}: {text:?} lacks {word:?}");
        }
    }
    assert_eq!(fs::read_dir(&folder).expect("the folder").count(), 0, "something is left");
    let ended = tune("tuning.toml");
    assert!(ended.status.success() && folder.path().join("tuning.toml").exists(), "{}", stderr_of(&ended));
    assert_eq!(fs::read_dir(&folder).expect("the folder").count(), 1, "something is left");
}

/// A program that is no rank comes to where ranks meet: the rank that waits there warns of it.
#[test]
fn warnings_of_the_library_are_shown_unless_a_variable_says_otherwise() {
    use std::io::{BufRead as _, BufReader, Write as _};
    for (level, is_shown) in [(None, true), (Some("warn"), true), (Some("error"), false)] {
        let port = free_port();
        let mut command = perf(2, port, &["--sizes", "64"]);
        command.envs(level.map(|level| ("FLEXCAST_LOG", level)));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the tool starts");
        let (to, lines) = std::sync::mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).for_each(|line| drop(to.send(line))));
        let begun = std::time::Instant::now();
        let mut stranger = loop {
            match std::net::TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break stream,
                Err(error) => assert!(begun.elapsed().as_secs() < 60, "nobody listens: {error}"),
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        stranger.write_all(&[0xAA; 64]).expect("it is read");
        // Whoever is turned away sees the end of the connection.
        stranger.set_read_timeout(Some(std::time::Duration::from_secs(60))).expect("a time");
        let mut answer = [0; 64];
        while matches!(std::io::Read::read(&mut stranger, &mut answer), Ok(bytes) if bytes > 0) {}
        let wait = std::time::Duration::from_secs(if is_shown { 60 } else { 1 });
        let found = std::iter::from_fn(|| lines.recv_timeout(wait).ok()).find(|line| line.contains("turned away"));
        child.kill().and_then(|()| child.wait()).expect("a child");
        assert_eq!(found.is_some(), is_shown, "{level:?}: {found:?}");
        assert!(found.is_none_or(|line| line.trim_start().starts_with("WARN ")));
    }
}

/// In the output of a launcher the rows would be there twice, and within one another.
#[test]
fn progress_is_shown_on_terminals_alone() {
    let output = perf(1, 1, &["--sizes", "64,1K"]).output().expect("the tool starts");
    let (text, said) = (String::from_utf8_lossy(&output.stdout), stderr_of(&output));
    assert!(output.status.success() && text.contains("│  1024 ┆"), "{text}{said}");
    assert!(said.starts_with("1 rank over lo") && said.lines().count() == 1, "{said}");
}

/// Nothing can be reported; what the command does is done.
#[test]
fn a_full_stderr_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = folder.path().join("x.pcapng");
    let arguments =
        ["tput", "--image", &image("allgather.elf"), "--bytes", "4096", "--pcap", &capture.to_string_lossy()];
    let full = File::options().write(true).open("/dev/full").expect("/dev/full");
    let output = flexcast(&arguments).stderr(full).output().expect("the tool starts");
    assert_eq!(output.status.code(), Some(0));
    let full = File::options().write(true).open("/dev/full").expect("/dev/full");
    let output = flexcast(&["tput", "--slots", "100"]).stderr(full).output().expect("the tool starts");
    assert_eq!(output.status.code(), Some(1));
}

/// Each command is refused before its work: it prints no result and nothing of what it does.
#[test]
fn places_that_cannot_be_written_are_tried_before_the_work() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    fs::create_dir_all(folder.path().join("out/index.html")).expect("a folder in the place of a file");
    fs::create_dir_all(folder.path().join("other/models.csv")).expect("a folder in the place of a file");
    fs::write(folder.path().join("file"), "").expect("a file");
    let (receive, pingpong, folder_of_images) =
        (image("allgather.elf"), image("pingpong.elf"), images().to_string_lossy().into_owned());
    let report = format!("report --images {folder_of_images} --only models --reduced");
    let calibrate = format!("calibrate --images {folder_of_images} --quick");
    let cases = [
        (format!("{report} --out /proc/x"), "/proc/x"),
        (format!("{report} --out {}", path("file")), "file/models.csv"),
        (format!("{report} --out {}", path("out")), "out/index.html"),
        (format!("{report} --out {}", path("other")), "other/models.csv"),
        (format!("{report} --out {} --summary /proc/x.md", path("good")), "/proc/x.md"),
        (format!("{calibrate} --markdown /proc/x.md"), "/proc/x.md"),
        (format!("{calibrate} --markdown {}", path("out")), "out"),
        (format!("tput --image {receive} --pcap /proc/x.pcapng"), "/proc/x.pcapng"),
        (format!("tput --image {receive} --trace /proc/x.json"), "/proc/x.json"),
        (format!("tput --image {receive} --state /proc/x.json"), "/proc/x.json"),
        (format!("tput --image {receive} --core-dir /proc/x"), "/proc/x"),
        (format!("tput --image {receive} --core-dir {}", path("file")), "file"),
        (format!("trace -o /proc/x.json tput --image {receive}"), "/proc/x.json"),
        (format!("run {pingpong} --trace {}", path("out")), "out"),
    ];
    for (line, place) in cases {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let output = flexcast(&arguments).output().expect("the tool starts");
        let text = stderr_of(&output);
        assert_eq!(output.status.code(), Some(1), "{line}: {text}");
        assert!(text.contains(place) && text.starts_with("error: "), "{line}: {text}");
        assert!(output.stdout.is_empty(), "{line} printed a result");
        // Progress of runs begins so.
        assert!(!text.contains("[1/"), "{line}: {text}");
    }
}

/// Runs a command of the shell that lets no file become longer than some KiB: writes beyond fail as on a full disk.
fn with_short_files(kib: u32, arguments: &[&str]) -> Output {
    // The signal would end the program; ignored, the write fails.
    let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$@\"", kib * 2);
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_flexcast")]).args(arguments).current_dir(root());
    command.output().expect("a shell")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn what_does_not_fit_leaves_the_files_of_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (trace, state, cores) = (path("trace.json"), path("state.json"), path("cores"));
    for file in [&trace, &state] {
        fs::write(file, "of before").expect("written");
    }
    let receive = image("allgather.elf");
    let run = ["tput", "--image", &receive, "--bytes", "400000"];
    let output = with_short_files(
        4,
        &[&run[..], &["--threads", "16", "--slots", "64", "--batch", "32", "--trace", &trace, "--state", &state]]
            .concat(),
    );
    let text = stderr_of(&output);
    assert!(output.status.code() == Some(1) && text.contains("cannot be written"), "{text}");
    assert_eq!(names(folder.path()), ["state.json", "trace.json"], "{text}");
    assert_eq!(fs::read_to_string(&trace).expect("the file"), "of before", "{text}");
    // The state is written over and over; the first, of cards without processes, fits.
    let last: serde_json::Value = serde_json::from_slice(&fs::read(&state).expect("the file")).expect("whole");
    assert_eq!((&last["format"], &last["time_ps"]), (&"flexcast-state".into(), &0.into()), "{text}");
    let folder_of_images = images().to_string_lossy().into_owned();
    let report = ["report", "--images", &folder_of_images, "--only", "models", "--reduced"];
    let out = path("out");
    let output = with_short_files(4, &[&report[..], &["--out", &out]].concat());
    let text = stderr_of(&output);
    assert!(output.status.code() == Some(1) && text.contains("cannot be written"), "{text}");
    // Files that fit are whole, the page is not one of them, and nothing is left next to them.
    let left = names(Path::new(&out));
    assert!(!left.iter().any(|name| name == "index.html" || name.starts_with('.')), "{left:?}: {text}");
    // An image whose handler dies at once.
    let mut elf = fs::read(&receive).expect("the image");
    let parsed = flexcast_image::Image::parse(&elf).expect("a valid image");
    let code = parsed.bytes_at(parsed.symbol("ud_receive").expect("a handler"), 64).expect("its code").to_vec();
    let at = elf.windows(64).position(|window| window == code).expect("it is in the file");
    elf[at..at + 4].fill(0xFF);
    let broken = path("broken.elf");
    fs::write(&broken, elf).expect("written");
    let output = with_short_files(4, &["tput", "--image", &broken, "--bytes", "4096", "--core-dir", &cores]);
    let text = stderr_of(&output);
    assert!(output.status.code() == Some(1) && text.contains("illegal instruction"), "{text}");
    assert_eq!(names(Path::new(&cores)), ["mlx5_0.001.crash"], "the dump does not fit, the report does: {text}");
}
