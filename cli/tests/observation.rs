//! Timeline, state file and statistics of runs on emulated cards with the real images.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn image(name: &str) -> String {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/device/emu");
    let path = std::env::var_os("FLEXCAST_IMAGES").map_or(default, PathBuf::from).join(name);
    assert!(path.exists(), "no image {}: run `cargo xtask build` first", path.display());
    path.to_string_lossy().into_owned()
}

fn flexcast(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flexcast")).args(args).output().expect("the tool starts")
}

fn good(args: &[&str]) -> String {
    let output = flexcast(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("the file")).expect("one JSON value")
}

/// A run with everything on: its timeline, its last state, its report.
fn run(extra: &[&str]) -> (Value, Value, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let (trace, state) = (folder.path().join("trace.json"), folder.path().join("state.json"));
    let (image, trace_name, state_name) = (image("allgather.elf"), trace.to_string_lossy(), state.to_string_lossy());
    let mut args = vec!["trace", "-o", &trace_name, "tput", "--json", "--image", &image, "--state", &state_name];
    args.extend_from_slice(extra);
    let report = serde_json::from_str(&good(&args)).expect("one JSON value on stdout");
    (read(&trace), read(&state), report)
}

fn events(trace: &Value) -> &Vec<Value> {
    trace["traceEvents"].as_array().expect("an array of events")
}

fn track(event: &Value) -> (u64, u64) {
    (event["pid"].as_u64().expect("a process"), event["tid"].as_u64().expect("a track"))
}

/// What a viewer relies on: times in order, begins and ends that match on each track, arrows that begin before they end
/// and lie on spans, and a name for everything that is drawn.
fn check_form(trace: &Value) {
    let mut last = 0.0;
    let mut open: BTreeMap<(u64, u64), &str> = BTreeMap::new();
    let mut named = BTreeSet::new();
    let mut flows: BTreeMap<u64, (char, f64)> = BTreeMap::new();
    let mut spans = 0;
    for event in events(trace) {
        let at = track(event);
        let phase = event["ph"].as_str().expect("a phase");
        if phase == "M" {
            named.insert((event["name"].as_str().expect("a name").to_owned(), at));
            continue;
        }
        assert!(named.contains(&("process_name".to_owned(), (at.0, 0))), "{event}");
        assert!(named.contains(&("thread_name".to_owned(), at)), "{event}");
        let ts = event["ts"].as_f64().expect("a time");
        assert!(ts >= last, "times go back to {ts} after {last}: {event}");
        last = ts;
        match phase {
            "B" => {
                let name = event["name"].as_str().expect("a name");
                assert!(!name.is_empty());
                assert_eq!(open.insert(at, name), None, "spans of one track do not nest: {event}");
                spans += 1;
            }
            "E" => assert!(open.remove(&at).is_some(), "an end without a begin: {event}"),
            "i" => {}
            "s" | "t" | "f" => {
                assert!(open.contains_key(&at), "an arrow off its span: {event}");
                let id = event["id"].as_u64().expect("an id");
                let before = flows.insert(id, (phase.chars().next().unwrap(), ts));
                match (phase, before) {
                    ("s", None) | ("t" | "f", Some(('s' | 't', _))) => {}
                    _ => panic!("a flow out of order, {before:?} before {event}"),
                }
            }
            other => panic!("phase {other}"),
        }
    }
    assert!(open.is_empty(), "never ended: {open:?}");
    assert!(spans > 0);
    assert!(flows.values().all(|(phase, _)| *phase == 'f'), "every arrow arrives");
}

fn count(trace: &Value, phase: &str, wanted: impl Fn(&Value) -> bool) -> u64 {
    events(trace).iter().filter(|event| event["ph"] == phase && wanted(event)).count() as u64
}

/// Names of tracks.
fn tracks(trace: &Value) -> BTreeMap<(u64, u64), String> {
    let names = events(trace).iter().filter(|event| event["ph"] == "M" && event["name"] == "thread_name");
    names.map(|event| (track(event), event["args"]["name"].as_str().expect("a name").to_owned())).collect()
}

/// Everything the timeline shows is what the card and the threads have counted themselves.
fn check_counts(trace: &Value, state: &Value) {
    let diagnoses = events(trace).iter().filter(|event| event["cat"] == "diagnosis");
    let texts: Vec<&Value> = diagnoses.map(|event| &event["args"]["text"]).collect();
    assert!(texts.is_empty(), "our own firmware and library make no mistakes: {texts:?}");
    let names = tracks(trace);
    for (index, card) in state["cards"].as_array().expect("cards").iter().enumerate() {
        let own = |event: &Value, name: &str| {
            event["pid"] == index as u64 + 1 && names.get(&track(event)).is_some_and(|track| track == name)
        };
        let counted = |key: &str| card[key].as_u64().expect("a counter");
        assert_eq!(count(trace, "B", |event| own(event, "port, sent")), counted("tx_packets"));
        assert_eq!(count(trace, "B", |event| own(event, "port, arrived")), counted("rx_packets"));
        let cqe = |event: &Value| event["cat"] == "cqe" || event["cat"] == "error";
        assert_eq!(count(trace, "B", |event| event["pid"] == index as u64 + 1 && cqe(event)), counted("cqes"));
        for thread in card["processes"].as_array().unwrap().iter().flat_map(|p| p["threads"].as_array().unwrap()) {
            let name = thread["name"].as_str().unwrap();
            let begun = count(trace, "B", |event| own(event, name));
            assert_eq!(begun, thread["executions"].as_u64().unwrap(), "{thread}");
            let sum = |key: &str| -> u64 {
                let ends = events(trace).iter().filter(|event| event["ph"] == "E" && own(event, name));
                ends.map(|event| event["args"][key].as_u64().expect("a number")).sum()
            };
            assert_eq!(sum("instructions"), thread["instructions"].as_u64().unwrap(), "{thread}");
            assert_eq!(sum("cycles"), thread["cycles"].as_u64().unwrap(), "{thread}");
        }
    }
}

/// No completion comes from nothing: a packet arrived before it, or a doorbell was rung for it.
fn check_causes(trace: &Value) {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut completions = 0;
    for event in events(trace) {
        if event["cat"] == "doorbell" || (event["cat"] == "packet" && event["ph"] == "B") {
            seen.insert(event["cat"].as_str().unwrap());
        }
        if event["cat"] == "cqe" && event["ph"] == "B" {
            completions += 1;
            let needed = if event["args"]["opcode"] == 0 { "doorbell" } else { "packet" };
            assert!(seen.contains(needed), "{event}");
        }
    }
    assert!(completions > 0);
    // Every entry for something that arrived has its arrow from the packet.
    let arrived = count(trace, "B", |event| event["cat"] == "cqe" && event["args"]["opcode"] != 0);
    let cqs: BTreeSet<_> = tracks(trace).into_iter().filter(|(_, name)| name.starts_with("CQ ")).map(|t| t.0).collect();
    let arrows = events(trace)
        .iter()
        .filter(|event| event["cat"] == "flow" && event["ph"] != "s" && cqs.contains(&track(event)));
    assert_eq!(arrows.count() as u64, arrived);
}

#[test]
fn timelines_are_well_formed_and_agree_with_the_counters() {
    for (transport, packets) in [("uc-unicast", 135), ("ud", 131)] {
        let (trace, state, report) = run(&["--transport", transport, "--threads", "3", "--bytes", "500000"]);
        check_form(&trace);
        check_counts(&trace, &state);
        check_causes(&trace);
        assert_eq!(report["digest_ok"], true);
        let counts = &trace["otherData"]["summary"]["counts"];
        // Chunks, and the messages of the protocol.
        assert_eq!(counts["packets arrived"], packets, "{counts}");
        assert!(counts["packets not seen to arrive"].is_null(), "{counts}");
        assert_eq!(trace["otherData"]["time"], "emulated");
    }
}

#[test]
fn losses_show() {
    let (trace, state, report) = run(&["--transport", "ud", "--bytes", "2000000", "--loss", "5", "--threads", "2"]);
    check_form(&trace);
    check_counts(&trace, &state);
    let lost = count(&trace, "i", |event| event["cat"] == "drop" && event["name"] == "not seen to arrive");
    assert_eq!(lost, report["machine"]["lost_frames"].as_u64().unwrap(), "{report}");
    assert!(lost > 0);
}

#[test]
fn a_full_recording_counts_what_it_leaves_out() {
    let (trace, _, _) = run(&["--bytes", "500000", "--trace-limit", "200"]);
    check_form(&trace);
    let summary = &trace["otherData"]["summary"];
    assert!(summary["left_out"].as_u64().unwrap() > 100, "{summary}");
}

#[test]
fn observation_changes_nothing() {
    let args = ["tput", "--json", "--transport", "ud", "--threads", "4", "--bytes", "1000000", "--loss", "1"];
    let image = image("allgather.elf");
    let plain: Value = serde_json::from_str(&good(&[&args[..], &["--image", &image]].concat())).expect("JSON");
    let (_, _, mut watched) = run(&[&args[2..], &["--stats"]].concat());
    let threads = &watched["stats"]["cards"][0]["processes"][0]["threads"];
    // The host's calls, four receive contexts, a send worker.
    assert_eq!(threads.as_array().map(Vec::len), Some(6), "{threads}");
    for key in watched.as_object().expect("an object").keys().filter(|key| !["wall_s", "stats"].contains(&key.as_str()))
    {
        assert_eq!(watched[key], plain[key], "{key}");
    }
    watched["stats"] = Value::Null;
}

#[test]
fn a_run_of_another_image_is_traced_with_its_messages() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.json");
    let text = good(&["trace", "-o", &path.to_string_lossy(), "run", &image("pingpong.elf")]);
    assert!(text.contains("ui.perfetto.dev") && text.contains("activations"), "{text}");
    let trace = read(&path);
    check_form(&trace);
    let message = events(&trace).iter().find(|event| event["cat"] == "log").expect("a message");
    assert!(message["args"]["text"].as_str().unwrap().starts_with("info"), "decoded: {message}");
    assert!(events(&trace).iter().any(|event| event["ph"] == "B" && event["name"] == "pong"));
    assert!(events(&trace).iter().any(|event| event["ph"] == "B" && event["name"] == "bring_up"));
}

#[test]
fn ps_and_stats_show_the_state_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state.json");
    let file = path.to_string_lossy();
    let table = good(&[
        "tput",
        "--image",
        &image("allgather.elf"),
        "--bytes",
        "100000",
        "--threads",
        "2",
        "--stats",
        "--state",
        &file,
    ]);
    assert!(table.contains("EH_1_2_2") && table.contains("ud_receive"), "{table}");
    let ps = good(&["ps", &file]);
    assert!(ps.contains("PROCESS_1") && ps.contains("mlx5_0") && !ps.contains("EH_1"), "{ps}");
    let threads = good(&["ps", &file, "-t", "-p", "1"]);
    assert!(threads.contains("EH_1_2_2") && threads.contains("RPC_1_1_1"), "{threads}");
    let stats = good(&["stats", &file, "-t", "3"]);
    assert!(stats.contains("EH_1_3_3") && !stats.contains("EH_1_2_2"), "{stats}");
    let json: Value = serde_json::from_str(&good(&["stats", &file, "--json", "-p", "0x1"])).expect("JSON");
    let thread = &json["cards"][0]["processes"][0]["threads"][1];
    for key in ["cycles", "instructions", "time_ticks", "executions"] {
        assert!(thread[key].as_u64().unwrap() > 0, "{key}: {thread}");
    }
    assert!(!good(&["ps", &file, "-p", "ff"]).contains("PROCESS_1"));
}

#[test]
fn what_cannot_be_observed_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state.json");
    let state = path.to_string_lossy();
    let receive = image("allgather.elf");
    std::fs::write(&path, r#"{"format":"flexcast-state","version":9}"#).expect("written");
    for (args, part) in [
        (vec!["ps", "/no/such/file"], "--state FILE"),
        (vec!["stats", &state], "version 9"),
        (vec!["ps", &state, "-p", "xyz"], "hexadecimal"),
        (vec!["tput", "--image", &receive, "--trace", "/no/such/folder/t.json"], "/no/such/folder/t.json"),
        (vec!["tput", "--image", &receive, "--state", "/no/such/folder/s.json"], "/no/such/folder/s.json"),
        (vec!["trace", "tput", "--provider", "system"], "DOCA"),
    ] {
        let output = flexcast(&args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(part), "{args:?}: {error}");
    }
}

/// The image `allgather` with an illegal instruction at the start of a function.
fn broken(function: &str, folder: &Path) -> String {
    let mut elf = std::fs::read(image("allgather.elf")).expect("the image");
    let parsed = flexcast_image::Image::parse(&elf).expect("a valid image");
    let addr = parsed.symbol(function).expect("the function");
    // Enough of its code to be found in the file only there.
    let code = parsed.bytes_at(addr, 64).expect("its code").to_vec();
    let at = elf.windows(64).position(|window| window == code).expect("it is in the file");
    elf[at..at + 4].fill(0xFF);
    let path = folder.join("broken.elf");
    std::fs::write(&path, elf).expect("written");
    path.to_string_lossy().into_owned()
}

#[test]
fn a_crash_is_reported_by_error_dump_report_and_timeline() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = broken("ud_receive", folder.path());
    let [cores, trace, state] = ["made/cores", "trace.json", "state.json"].map(|name| folder.path().join(name));
    let [cores_name, trace_name, state_name] = [&cores, &trace, &state].map(|path| path.to_string_lossy());
    let mut args = vec!["tput", "--transport", "ud", "--threads", "2", "--bytes", "100000", "--image", &image];
    args.extend_from_slice(&["--core-dir", &cores_name, "--trace", &trace_name, "--state", &state_name, "--stats"]);
    let output = flexcast(&args);
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!output.status.success() && error.contains("illegal instruction"), "{error}");
    let core = cores.join("mlx5_0.001.core");
    assert!(text.contains(&format!("written: {}", core.display())), "{text}");
    assert_eq!(std::fs::read(core).expect("a dump")[..4], *b"\x7FELF");
    let report = std::fs::read_to_string(cores.join("mlx5_0.001.crash")).expect("a report");
    assert!(report.contains("cause     illegal instruction"), "{report}");
    let trace = read(&trace);
    check_form(&trace);
    assert_eq!(count(&trace, "i", |event| event["cat"] == "crash"), 1);
    assert_eq!(count(&trace, "E", |event| event["args"]["ended"] == "crash"), 1);
    let process = &read(&state)["cards"][0]["processes"][0];
    assert_eq!((&process["status"], &process["program"]), (&"crashed".into(), &"broken".into()), "{process}");
    assert!(process["cause"].as_str().unwrap().contains("illegal instruction"));
    // The same without observation: the same error.
    let plain = flexcast(&args[..9]);
    assert_eq!(String::from_utf8_lossy(&plain.stderr), error);
}
