//! The tool on emulated cards with the real images. `cargo xtask build` makes them; without them these tests fail and
//! say so.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use flexcast_lab::tput::run::made_up_bytes;
use serde_json::Value;

fn images() -> PathBuf {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/device/emu");
    let images = std::env::var_os("FLEXCAST_IMAGES").map_or(default, PathBuf::from);
    assert!(images.join("allgather.elf").exists(), "no images in {}: run `cargo xtask build` first", images.display());
    images
}

fn image(name: &str) -> String {
    images().join(name).to_string_lossy().into_owned()
}

fn flexcast(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_flexcast")).args(args).output().expect("the tool starts");
    assert!(
        output.status.success(),
        "{args:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn json(args: &[&str]) -> Value {
    serde_json::from_slice(&flexcast(args).stdout).expect("one JSON value on stdout")
}

fn tput(extra: &[&str]) -> Value {
    let image = image("allgather.elf");
    let mut args = vec!["tput", "--json", "--image", &image];
    args.extend_from_slice(extra);
    json(&args)
}

#[test]
fn devices_are_the_two_emulated_cards() {
    let devices = json(&["devices", "--json"]);
    let names: Vec<&str> = devices.as_array().unwrap().iter().map(|d| d["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["mlx5_0", "mlx5_1"]);
    assert!(String::from_utf8_lossy(&flexcast(&["devices"]).stdout).contains("mlx5_1"));
}

#[test]
fn everything_arrives_without_loss() {
    for transport in ["uc", "uc-unicast", "ud"] {
        for threads in ["1", "4", "16"] {
            let r = tput(&["--transport", transport, "--threads", threads, "--bytes", "1000003"]);
            assert_eq!(r["transport"], transport);
            assert_eq!(r["threads"].to_string(), threads);
            assert_eq!(r["bytes"], 1_000_003);
            assert_eq!(r["chunks"], 245);
            assert_eq!(r["recovered_chunks"], 0, "{r}");
            assert_eq!(r["digest_ok"], true, "{r}");
            assert_eq!(r["device"]["cqes"], 245, "{r}");
            assert_eq!(r["kind"], "emulated");
            assert_eq!(r["model"], "uncalibrated-1");
            assert!(r["instructions_per_cqe"].as_f64().unwrap() > 1.0, "{r}");
            assert!(r["goodput_gib_s"].as_f64().unwrap() > 0.0, "{r}");
            assert!(r["operation_us"].as_f64().unwrap() > r["data_us"].as_f64().unwrap(), "{r}");
        }
    }
}

#[test]
fn one_byte() {
    for transport in ["uc-unicast", "ud"] {
        let r = tput(&["--transport", transport, "--bytes", "1", "--threads", "2"]);
        assert_eq!((&r["chunks"], &r["device"]["cqes"], &r["digest_ok"]), (&1.into(), &1.into(), &true.into()), "{r}");
    }
}

#[test]
fn wrapped_rings() {
    // 4096 chunks of 64 bytes on a ring of 128: every ring wraps 32 times.
    for transport in ["uc-unicast", "ud"] {
        let more = ["--bytes", "262144", "--chunk", "64", "--slots", "128", "--batch", "8", "--threads", "1"];
        let r = tput(&[&["--transport", transport][..], &more].concat());
        assert_eq!((&r["chunks"], &r["digest_ok"]), (&4096.into(), &true.into()), "{r}");
    }
}

#[test]
fn losses_are_reported_and_what_is_lost_is_fetched() {
    for transport in ["uc-unicast", "ud"] {
        let args = ["--transport", transport, "--bytes", "8388608", "--loss", "1", "--seed", "7"];
        let r = tput(&args);
        let fetched = r["recovered_chunks"].as_u64().unwrap();
        // 2048 packets at 1 %: the mean is 20, and 60 is nine standard deviations away.
        assert!((1..60).contains(&fetched), "{r}");
        assert_eq!(r["digest_ok"], true, "{r}");
        assert_eq!(r["device"]["cqes"], 2048 - fetched, "{r}");
        let again = tput(&args);
        for key in ["recovered_chunks", "goodput_gib_s", "instructions_per_cqe", "cycles_per_cqe", "device"] {
            assert_eq!(r[key], again[key], "the same seed gives the same run");
        }
    }
}

#[test]
fn total_loss_ends_with_the_reason() {
    let image = image("allgather.elf");
    let output = Command::new(env!("CARGO_BIN_EXE_flexcast"))
        .args(["tput", "--image", &image, "--bytes", "65536", "--loss", "100", "--threads", "2"])
        .output()
        .expect("the tool starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("rank"), "{text}");
}

/// The published kernels have a command of their own, with and without their counters.
#[test]
fn the_published_kernels_run() {
    let reference = image("reference.elf");
    for transport in ["uc", "ud"] {
        let run = |more: &[&str]| {
            let options =
                ["reference", "--json", "--image", &reference, "--transport", transport, "--bytes", "4194304"];
            json(&[&options[..], more].concat())
        };
        let (counted, plain) = (run(&[]), run(&["--plain"]));
        assert_eq!((&counted["device"]["cqes"], &counted["counted"]), (&1024.into(), &true.into()), "{counted}");
        assert_eq!(plain["device"]["poll_instructions"], 0, "{plain}");
        let each = |report: &Value| report["instructions_per_cqe"].as_f64().unwrap();
        assert!(each(&counted) > each(&plain) + 20.0, "{counted}\n{plain}");
    }
    let refused = Command::new(env!("CARGO_BIN_EXE_flexcast"))
        .args(["reference", "--image", &reference, "--bytes", "65536", "--loss", "10"])
        .output()
        .expect("the tool starts");
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && why.contains("repair"), "{why}");
}

#[test]
fn repetitions_and_warm_up() {
    let r = tput(&["--transport", "ud", "--bytes", "300000", "--threads", "3", "--iterations", "3", "--warm-up", "2"]);
    assert_eq!(r["iterations"], 3);
    assert_eq!((&r["recovered_chunks"], &r["digest_ok"]), (&0.into(), &true.into()), "{r}");
    assert_eq!(r["device"]["cqes"], 3 * 74, "warm-up is not counted: {r}");
}

#[test]
fn long_uc_messages() {
    let long = ["--bytes", "5000001", "--chunk", "1048576", "--threads", "2", "--slots", "16", "--batch", "2"];
    let r = tput(&[&["--transport", "uc-unicast"][..], &long].concat());
    assert_eq!((&r["chunks"], &r["recovered_chunks"], &r["digest_ok"]), (&5.into(), &0.into(), &true.into()), "{r}");
}

#[test]
fn deploy_prints_the_entries() {
    let text = String::from_utf8_lossy(&flexcast(&["deploy", &image("allgather.elf")]).stdout).into_owned();
    for word in ["uc_receive", "ud_receive", "bring_up", "prepare_receive", "activate", "bring-up"] {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn run_prints_device_logs_and_pings() {
    let text = String::from_utf8_lossy(&flexcast(&["run", &image("pingpong.elf")]).stdout).into_owned();
    assert!(text.contains("ping 0: answered after"), "{text}");
    assert!(text.contains("device: info"), "{text}");
}

#[test]
fn an_image_without_the_entries_is_refused_by_name() {
    let output = Command::new(env!("CARGO_BIN_EXE_flexcast"))
        .args(["tput", "--image", &image("pingpong.elf"), "--bytes", "4096"])
        .output()
        .expect("the tool starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(text.contains("ud_receive") || text.contains("prepare_receive"), "{text}");
}

#[test]
fn the_demo_sends_a_file_in_every_way() {
    let folder = images();
    let folder = folder.to_string_lossy();
    // Long enough to lose something of.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), made_up_bytes(4_000_003, 5).expect("memory")).unwrap();
    let file = file.path().to_string_lossy().into_owned();
    let demo = json(&["demo", "--json", "--images", &folder, "--file", &file]);
    let rows = demo["broadcast"].as_array().expect("an array");
    assert_eq!(rows.len(), 2 * 5 * 2, "transports, numbers of threads, without and with loss");
    for row in rows {
        assert_eq!(row["digest_ok"], true, "{row}");
        let keys =
            ["transport", "threads", "chunks", "instructions_per_cqe", "cycles_per_cqe", "goodput_gib_s", "wall_s"];
        assert!(keys.iter().all(|key| !row[key].is_null()), "{row}");
        assert!(row["loss_percent"] == 0.0 || row["recovered_chunks"].as_u64() > Some(0), "{row}");
    }
    let [dense, sparse] = &demo["sparse"].as_array().expect("an array")[..] else { panic!("{demo}") };
    assert!(dense["sums_ok"] == true && sparse["sums_ok"] == true, "{dense} {sparse}");
    let [dense, sparse] = [dense, sparse].map(|row| row["received_bytes"].as_u64().unwrap());
    // 2 (P - 1) of the array among P ranks by the ring, and a tenth of that, but for indices and votes.
    assert_eq!(dense, 6 * (32 << 20));
    assert!((dense / 10..dense / 10 + dense / 100).contains(&sparse), "{sparse} of {dense}");
    let [multicast, ring] = &demo["allgather"].as_array().expect("an array")[..] else { panic!("{demo}") };
    assert_eq!((&multicast["algorithm"], &ring["algorithm"]), (&"multicast".into(), &"ring".into()));
    let bytes = std::fs::metadata(&file).unwrap().len();
    for report in [multicast, ring] {
        assert_eq!(
            (&report["digest_ok"], &report["ranks"], &report["receive_bytes"]),
            (&true.into(), &8.into(), &bytes.into())
        );
        assert!(report["lost_frames"].as_u64() > Some(0), "{report}");
    }
    assert_eq!(multicast["sha256"], ring["sha256"]);
    assert!(multicast["recovered_chunks"].as_u64() > Some(0), "{multicast}");
    let [multicast, ring] = [multicast, ring].map(|report| report["switch_bytes_total"].as_u64().unwrap());
    assert_eq!(multicast, 8 * bytes);
    assert!(ring >= 14 * bytes, "{ring} of {bytes}");
    // Hosts that compute have nothing left to do where the protocol runs on the card, and nearly everything where it is
    // theirs.
    let rows = demo["overlap"].as_array().expect("an array");
    let overlap = |row: &Value| row["overlap_percent"].as_f64().expect("a number");
    let [hosts, dpa, device, staged, keys] = &rows[..] else { panic!("{demo}") };
    assert!(rows.iter().all(|row| row["digest_ok"] == true), "{demo}");
    for row in [hosts, dpa] {
        assert!(overlap(row) < 50.0 && row["host_calls"].as_f64() > Some(1.0), "{row}");
    }
    for row in [device, staged, keys] {
        assert!(overlap(row) > 99.0 && row["host_calls"] == 0.0, "{row}");
    }
}

#[test]
fn a_capture_holds_every_packet_and_changes_nothing() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tput.pcapng");
    let file = path.to_string_lossy();
    let run = ["--transport", "ud", "--bytes", "100000", "--loss", "5", "--threads", "2"];
    let mut captured = tput(&[&run[..], &["--pcap", &file]].concat());
    let mut plain = tput(&run);
    for report in [&mut captured, &mut plain] {
        report["wall_s"] = Value::Null;
    }
    assert_eq!(captured, plain);
    let bytes = std::fs::read(&path).expect("the capture");
    assert_eq!(bytes[..4], [0x0A, 0x0D, 0x0D, 0x0A], "a pcapng section header");
    // 25 datagrams: 100000 bytes of payload and, in each block, 66 bytes of headers and some of the format; barrier,
    // fetches and release.
    assert!((100_000 + 25 * 66..140_000).contains(&bytes.len()), "{} bytes", bytes.len());
}

#[test]
fn a_topology_is_named_in_the_report() {
    let r = tput(&["--topology", "fat-tree-188", "--cards", "0,h187", "--bytes", "100000", "--detect-races"]);
    assert_eq!((&r["recovered_chunks"], &r["digest_ok"]), (&Value::from(0), &Value::from(true)), "{r}");
    let machine = &r["machine"];
    assert_eq!(machine["topology"], "fat-tree-188");
    assert_eq!(machine["cards"], serde_json::json!(["h0", "h187"]));
    assert_eq!((&machine["memory"], &machine["races"]), (&Value::from("strong"), &Value::from(0)));
    let output = flexcast(&["tput", "--image", &image("allgather.elf"), "--bytes", "100000", "--topology", "switch-3"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("switch-3: h1 to h0; 0 frames lost"), "{text}");
}

/// The files of examples/ that the commands of docs/simulate.md name.
#[test]
fn examples_of_faults_and_topologies_run() {
    let example = |name: &str| {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name).to_string_lossy().into_owned()
    };
    let r = tput(&["--topology", "switch-4", "--faults", &example("bad-day.toml"), "--seed", "7"]);
    assert_eq!((&r["digest_ok"], &r["machine"]["faults"]), (&true.into(), &2.into()), "{r}");
    let (lossy, allgather) = (example("lossy.toml"), image("allgather.elf"));
    let sim = |more: &[&str]| {
        let options =
            ["sim", "--json", "--image", &allgather, "--ranks", "8", "--bytes", "262144", "--topology", &lossy];
        json(&[&options[..], more].concat())
    };
    let paced = sim(&["--chains", "4", "--pacing", "50"]);
    assert_eq!((&paced["digest_ok"], &paced["lost_frames"]), (&true.into(), &0.into()), "{paced}");
    // Four roots at the whole rate of a link are more than a port has room for.
    let fast = sim(&["--chains", "4"]);
    assert_eq!(fast["digest_ok"], true, "{fast}");
    assert!(fast["lost_frames"].as_u64() > Some(0), "{fast}");
}

#[test]
fn a_machine_file_says_what_options_say_and_options_stand_above_it() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/machine.toml").to_string_lossy().into_owned();
    let run = |more: &[&str]| {
        let mut report = tput(&[&["--bytes", "1000000"], more].concat());
        report["wall_s"] = Value::Null;
        report
    };
    let of_file = run(&["--machine", &file]);
    let options = ["--topology", "switch-8", "--loss", "2", "--memory", "weak", "--seed", "7"];
    assert_eq!(of_file, run(&options));
    let machine = &of_file["machine"];
    assert_eq!((&machine["topology"], &machine["memory"]), (&"switch-8".into(), &"weak".into()), "{of_file}");
    assert_eq!(machine["seed"], 7, "{of_file}");
    assert!(machine["lost_frames"].as_u64() > Some(0), "{of_file}");
    let above = run(&["--machine", &file, "--loss", "0", "--memory", "strong", "--topology", "back-to-back"]);
    let machine = &above["machine"];
    assert_eq!((&machine["topology"], &machine["memory"]), (&"back-to-back".into(), &"strong".into()), "{above}");
    assert_eq!(machine["lost_frames"], 0, "{above}");
    let allgather = image("allgather.elf");
    let sim = json(&["sim", "--json", "--image", &allgather, "--ranks", "4", "--bytes", "8192", "--machine", &file]);
    let machine = &sim["machine"];
    assert_eq!((&machine["topology"], &machine["cards"]), (&"switch-8".into(), &4.into()), "{sim}");
    assert_eq!((&machine["seed"], &sim["digest_ok"]), (&7.into(), &true.into()), "{sim}");
}

#[test]
fn where_a_run_is_driven_from_is_reported() {
    let run = ["--bytes", "100000", "--model", "m2"];
    let (host, arm) = (tput(&run), tput(&[&run[..], &["--driven-from", "arm"]].concat()));
    assert_eq!((&host["machine"]["driven_from"], &arm["machine"]["driven_from"]), (&"host".into(), &"arm".into()));
    // The firmware stores through its windows and never loads; stores are posted, to either memory alike.
    assert_eq!((&host["accesses"], &host["cycles_per_cqe"]), (&arm["accesses"], &arm["cycles_per_cqe"]));
    let image = image("allgather.elf");
    let printed = |more: &[&str]| {
        let output = flexcast(&[&["tput", "--image", &image, "--bytes", "100000"], more].concat());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(printed(&["--driven-from", "arm"]).contains("cable: 1 to 0; 0 frames lost; driven from the Arm cores"));
    assert!(!printed(&[]).contains("driven from"));
    let allgather = self::image("allgather.elf");
    let run = ["sim", "--image", &allgather, "--ranks", "2", "--bytes", "4096", "--driven-from", "arm"];
    let simulated = String::from_utf8_lossy(&flexcast(&run).stdout).into_owned();
    assert!(simulated.contains("switch-2, 2 cards, driven from the Arm cores"), "{simulated}");
    let on_cards = ["tput", "--driven-from", "arm", "--provider", "system"];
    let refused = Command::new(env!("CARGO_BIN_EXE_flexcast")).args(on_cards).output().expect("the tool starts");
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && why.contains("--driven-from is for the emulated machine"), "{why}");
}

/// The image without one of its fences, on weak memory: for some fence nothing but the detector sees it.
#[test]
fn races_fail_the_run_and_are_reported() {
    let elf = std::fs::read(image("allgather.elf")).unwrap();
    let fence = |at: &usize| {
        let word = u32::from_le_bytes(elf[*at..at + 4].try_into().unwrap());
        // Anything before, anything after; a 15 in the data has neither.
        word & 0xF00F_FFFF == 0xF && word >> 24 & 0xF != 0 && word >> 20 & 0xF != 0
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_string_lossy().into_owned();
    for at in (0..elf.len() - 4).step_by(2).filter(fence) {
        let mut lacking = elf.clone();
        lacking[at..at + 4].copy_from_slice(&0x0000_0013_u32.to_le_bytes());
        std::fs::write(file.path(), lacking).unwrap();
        let options = ["tput", "--json", "--image", &path, "--transport", "ud", "--bytes", "200000"];
        let weak = ["--memory", "weak", "--detect-races"];
        let output =
            Command::new(env!("CARGO_BIN_EXE_flexcast")).args(options).args(weak).output().expect("the tool starts");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let Some((races, error)) = text.split_once("error: races for memory: ") else { continue };
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(races.starts_with("race: ") && error.contains("is missing"), "{text}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("the report, nevertheless");
        let count = error.split_once(',').expect("a number").0;
        assert_eq!(report["machine"]["races"].to_string(), count, "{text}");
        return;
    }
    panic!("no fence is missed");
}

#[test]
fn probes_run_on_the_emulator_and_the_report_says_so() {
    let folder = image("pingpong.elf").replace("/pingpong.elf", "");
    let text = String::from_utf8_lossy(&flexcast(&["probe", "--images", &folder]).stdout).into_owned();
    for part in ["emulated card mlx5_0", "nothing here says anything of a card", "0 failed", "build "] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    let json: serde_json::Value =
        serde_json::from_slice(&flexcast(&["probe", "--images", &folder, "--json"]).stdout).expect("an object");
    assert_eq!((&json["card"], &json["mode"]), (&"emulated".into(), &"emulated".into()));
    let rows = json["rows"].as_array().expect("rows");
    // The units of the emulated card that a process may ask for.
    assert!(rows.iter().any(|row| row["finding"] == "0-254: 255 of them"), "{json}");
    let finding = |question: u64| {
        let row = rows.iter().find(|row| row["questions"].as_array().is_some_and(|all| all.contains(&question.into())));
        let row = row.expect("a row");
        assert_eq!(row["outcome"], "answered", "{row}");
        row["finding"].as_str().expect("text").to_owned()
    };
    // 16 KiB of stack, of which the call has some, above a guard.
    let stack = finding(5);
    assert!(stack.starts_with("16") && stack.contains("end the process: it is guarded"), "{stack}");
    assert!(finding(6).contains("a call of 8 ms ends well"));
    let loads = finding(16);
    assert!(loads.contains("cycles aligned") && loads.contains("at offset 60 of a line"), "{loads}");
    assert!(finding(17).starts_with("the record is not needed: 512 answers came, 8 at once"));
}
