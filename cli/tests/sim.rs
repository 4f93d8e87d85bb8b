//! `flexcast sim`: collectives of many ranks with the real image, through the tool. `cargo xtask build` makes the
//! image; without it these tests fail and say so.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Ranks of the large network, and what its switches' ports count of a multicast.
const RANKS: u64 = 188;
const PORTS: u64 = 212;

fn image(name: &str) -> String {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/device/emu");
    let images = std::env::var_os("FLEXCAST_IMAGES").map_or(default, PathBuf::from);
    let image = images.join(name).with_extension("elf");
    assert!(image.exists(), "no image {}: run `cargo xtask build` first", image.display());
    image.to_string_lossy().into_owned()
}

fn tool(args: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flexcast"))
        .args(["sim", "--image", &image(if args.contains("--aggregators dpa") { "sparse" } else { "allgather" })])
        .args(args.split_whitespace())
        .output()
        .expect("the tool starts")
}

/// The report of a run in which every rank got every byte.
#[track_caller]
fn sim(args: &str) -> Value {
    let output = tool(&format!("--json {args}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args}: {text}{}", String::from_utf8_lossy(&output.stdout));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object on stdout");
    assert_eq!(report["digest_ok"], true, "{args}: {report}");
    report
}

fn number(report: &Value, key: &str) -> u64 {
    report[key].as_u64().unwrap_or_else(|| panic!("{key} of {report}"))
}

fn log2(ranks: u64) -> u64 {
    u64::from(ranks.next_power_of_two().ilog2())
}

/// Nothing but the barrier, activations and one final message of each rank.
#[track_caller]
fn assert_quiet(report: &Value, ranks: u64, activations: u64) {
    let control = serde_json::json!({
        "barrier": ranks * log2(ranks),
        "activation": activations,
        "fetch": 0,
        "acknowledgement": 0,
        "final": if ranks == 1 { 0 } else { ranks },
        "failure": 0,
        "announcement": 0,
    });
    assert_eq!(report["control"], control, "{report}");
    assert!(number(report, "control_messages_most") <= log2(ranks) + 2, "{report}");
    for key in ["recovered_chunks", "recovery_reads", "rnr_drops", "card_drops", "timeouts", "failures"] {
        assert_eq!(report[key], 0, "{key}: {report}");
    }
    // A multicast of one rank alone reaches nobody.
    assert_eq!(report["lost_frames"], 0, "{report}");
}

#[test]
fn an_allgather_of_188_loads_switches_as_published_and_the_ring_twice_as_much() {
    let bytes = 4096;
    let tree = format!("--topology fat-tree-188 --ranks {RANKS} --bytes {bytes} --warm-up 0");
    let multicast = sim(&tree);
    // As many chains as the library finds right: each rank is activated at most once.
    let activations = multicast["control"]["activation"].as_u64().expect("a number");
    assert!(activations < RANKS, "{multicast}");
    assert_quiet(&multicast, RANKS, activations);
    assert_eq!(number(&multicast, "switch_bytes_total"), RANKS * PORTS * bytes);
    assert_eq!(number(&multicast, "host_tx_bytes"), RANKS * bytes);
    assert_eq!(number(&multicast, "host_rx_bytes"), RANKS * (RANKS - 1) * bytes);
    let ring = sim(&format!("{tree} --algorithm ring"));
    assert_eq!(ring["sha256"], multicast["sha256"], "the same bytes");
    // Announcements of 48 bytes, in a class of their own.
    assert_eq!(number(&ring, "host_tx_control_bytes"), RANKS * 48);
    assert_eq!(number(&ring, "host_tx_bytes"), RANKS * (RANKS - 1) * bytes);
    // 2 - 2/P, with nothing rounded.
    let [ring_bytes, bytes] = [&ring, &multicast].map(|report| number(report, "switch_bytes_total"));
    assert_eq!(ring_bytes * RANKS, bytes * (2 * RANKS - 2));
    assert_eq!(format!("{:.3}", ring_bytes as f64 / bytes as f64), "1.989");
}

#[test]
fn broadcasts_to_188_load_switches_as_published() {
    // About 64 KiB, in equal shares.
    let bytes = 348 * RANKS;
    let tree = format!("--topology fat-tree-188 --ranks {RANKS} --bytes {bytes} --warm-up 0 --op broadcast");
    let multicast = sim(&format!("{tree} --subgroups 1"));
    assert_quiet(&multicast, RANKS, 0);
    let multicast = number(&multicast, "switch_bytes_total");
    assert_eq!(multicast, PORTS * bytes);
    for (algorithm, published) in [
        ("chain", "1.97"),
        ("scatter-allgather", "2.06"),
        ("binomial", "2.20"),
        ("k-nomial --radix 4", "2.31"),
        ("in-order", "2.31"),
        ("heap", "5.01"),
    ] {
        let report = sim(&format!("{tree} --algorithm {algorithm}"));
        let ratio = number(&report, "switch_bytes_total") as f64 / multicast as f64;
        assert_eq!(format!("{ratio:.2}"), published, "{report}");
    }
}

#[test]
fn without_loss_there_is_nothing_but_barrier_activations_and_finals() {
    for ranks in [1, 2, 3, 5, 8, 17] {
        for bytes in [0, 1, 4095, 4097] {
            let report = sim(&format!("--ranks {ranks} --bytes {bytes} --chains 1 --eager 0"));
            assert_quiet(&report, ranks, ranks - 1);
            // All ports of one switch: each block comes in once and goes out to all others. One rank alone sends
            // nothing.
            let blocks = if ranks == 1 { 0 } else { ranks * ranks };
            assert_eq!(number(&report, "switch_bytes_total"), blocks * bytes, "{report}");
            assert_eq!(number(&report, "receive_bytes"), ranks * bytes);
        }
    }
}

#[test]
fn a_broadcast_comes_from_every_root() {
    for root in 0..5 {
        let report = sim(&format!("--ranks 5 --op broadcast --root {root} --bytes 10007 --eager 0"));
        assert_quiet(&report, 5, 0);
        assert_eq!(number(&report, "host_tx_bytes"), 10007);
        assert_eq!(number(&report, "host_rx_bytes"), 4 * 10007);
        let report =
            sim(&format!("--ranks 5 --op broadcast --root {root} --bytes 10007 --algorithm binomial --segment 3000"));
        assert_eq!(number(&report, "host_tx_bytes"), 4 * 10007);
    }
}

#[test]
fn contributions_may_differ() {
    for ranks in [1, 2, 3, 17] {
        let report = sim(&format!("--ranks {ranks} --op allgatherv --bytes 5000 --chains 1 --eager 0"));
        assert_quiet(&report, ranks, ranks - 1);
        let digest = report["sha256"].clone();
        for algorithm in ["ring", "pipelined-ring --segments 3", "linear", "recursive-doubling", "bruck"] {
            let report = sim(&format!("--ranks {ranks} --op allgatherv --bytes 5000 --algorithm {algorithm}"));
            assert_eq!(report["sha256"], digest, "{report}");
            let sent = number(&report, "receive_bytes") * (ranks - 1);
            assert_eq!(number(&report, "host_tx_bytes"), sent, "{report}");
        }
    }
}

#[test]
fn ranks_share_a_card() {
    for (ranks, per_card, cards) in [(4, 2, 2), (6, 3, 2), (7, 3, 3)] {
        let shape = format!("--ranks {ranks} --ranks-per-card {per_card} --bytes 9000");
        let report = sim(&format!("{shape} --warm-up 2 --chains 1"));
        assert_quiet(&report, ranks, ranks - 1);
        assert_eq!(report["machine"]["cards"], cards);
        let ring = sim(&format!("{shape} --algorithm ring"));
        assert_eq!(ring["sha256"], report["sha256"]);
    }
}

/// What a root multicasts comes back to its card for the other rank there, and is not written over what is being sent.
#[test]
fn ranks_that_share_a_card_do_not_race_for_the_roots_buffer() {
    let shape = "--ranks 8 --ranks-per-card 2 --transport uc --chunk 65536 --detect-races --topology switch-8";
    for operation in ["broadcast --bytes 1048576", "broadcast --root 3 --bytes 65536", "allgather --bytes 131072"] {
        let report = sim(&format!("{shape} --op {operation}"));
        assert_eq!(number(&report["machine"], "races"), 0, "{operation}");
    }
}

#[test]
fn operations_are_counted_without_the_warm_up() {
    let one = sim("--ranks 4 --bytes 30000 --chains 1");
    let report = sim(
        "--ranks 4 --bytes 30000 --iterations 5 --warm-up 2 --chains 2 --subgroups 2 --threads 1 --send-threads 2 \
         --spread",
    );
    assert_eq!((number(&report, "iterations"), number(&report, "warm_up")), (5, 2));
    assert_eq!(number(&report, "switch_bytes_total"), 5 * number(&one, "switch_bytes_total"));
    assert_eq!(number(&report, "control_messages"), 5 * (4 * 2 + 2 + 4));
    let ring = sim("--ranks 4 --bytes 30000 --iterations 5 --warm-up 2 --algorithm ring");
    assert_eq!(number(&ring, "host_tx_bytes"), 5 * 4 * 3 * 30000);
}

/// Losses, late stores, and every access watched.
#[test]
fn losses_cost_time_and_no_bytes() {
    let mut recovered = 0;
    for (loss, seed) in [("0.1", 1), ("1", 1), ("1", 2), ("10", 1), ("10", 2)] {
        for shape in ["--ranks 4 --bytes 40000", "--ranks 3 --bytes 10007 --op broadcast --root 2"] {
            let chaos = format!("{shape} --loss {loss} --seed {seed} --detect-races --memory weak");
            let report = sim(&chaos);
            assert_eq!(report["machine"]["races"], 0, "{report}");
            assert_eq!(report["machine"]["memory"], "weak", "{report}");
            assert_eq!((&report["failures"], &report["errors"]), (&0.into(), &serde_json::json!([])), "{report}");
            recovered += number(&report, "recovered_chunks");
            let again = sim(&chaos);
            for key in ["virtual_time_us", "switch_bytes_total", "recovered_chunks", "control", "workers", "sha256"] {
                assert_eq!(report[key], again[key], "the same seed gives the same run");
            }
        }
    }
    assert!(recovered > 10, "{recovered} chunks");
    for algorithm in ["ring", "linear"] {
        let report = sim(&format!("--ranks 4 --bytes 40000 --loss 3 --algorithm {algorithm}"));
        assert!(number(&report, "lost_frames") > 0, "{report}");
    }
}

/// What the algorithms send by their definitions, over all ranks: P(P - 1) blocks; N(P - 1); 2N(P - 1), around the ring
/// and by a tree.
#[test]
fn exchanges_and_reductions_give_every_rank_its_own() {
    for ranks in [1, 5, 8] {
        for (op, algorithms, bytes, sent) in [
            (
                "alltoall",
                &["", "--algorithm pairwise", "--algorithm ring", "--algorithm linear"][..],
                5003,
                ranks * 5003,
            ),
            ("reduce-scatter", &["", "--algorithm ring", "--algorithm exchange"], 40_000, 40_000),
            (
                "allreduce",
                &["", "--algorithm ring", "--algorithm tree", "--algorithm tree --segments 3", "--algorithm exchange"],
                40_000,
                80_000,
            ),
        ] {
            let reports: Vec<Value> = algorithms
                .iter()
                .map(|algorithm| sim(&format!("--op {op} --ranks {ranks} --bytes {bytes} --iterations 2 {algorithm}")))
                .collect();
            for report in &reports {
                assert_eq!(report["op"], op);
                assert_eq!(number(report, "host_tx_bytes"), 2 * sent * (ranks - 1), "{report}");
                assert_eq!(number(report, "failures"), 0, "{report}");
                // Which algorithm it was changes no byte.
                assert_eq!(report["sha256"], reports[0]["sha256"], "{report}");
            }
            let kept = match op {
                "alltoall" => ranks * bytes,
                "reduce-scatter" => (bytes / 4).div_ceil(ranks) * 4,
                _ => bytes,
            };
            assert_eq!(number(&reports[0], "receive_bytes"), kept);
            assert_eq!(number(&reports[0], "contributed_bytes"), ranks * if op == "alltoall" { kept } else { bytes });
        }
    }
    // By recursive doubling every rank sends all it has in each round.
    let doubling = sim("--op allreduce --ranks 8 --bytes 40000 --iterations 1 --algorithm recursive-doubling");
    assert_eq!((number(&doubling, "host_tx_bytes"), number(&doubling, "failures")), (8 * 3 * 40_000, 0));
    // Without a name: the first there is.
    assert_eq!(sim("--op alltoall --ranks 3 --bytes 100")["algorithm"], "pairwise");
    assert_eq!(sim("--op allreduce --ranks 3 --bytes 100")["algorithm"], "ring");
    let lossy = sim("--op allreduce --ranks 4 --bytes 400000 --loss 1");
    assert!(number(&lossy, "lost_frames") > 0 && number(&lossy, "host_tx_bytes") > 800_000 * 3, "{lossy}");
    let text = String::from_utf8(tool("--op reduce-scatter --ranks 3 --bytes 4000").stdout).expect("text");
    for line in [
        "reduce-scatter by ring: 1000 integers of each of 3 ranks",
        "of each rank reduced",
        "every rank has every byte",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

/// Ranks of both datapaths, separate aggregators, and on the DPA of every card: every sum, and as many messages as the
/// closed form says.
#[test]
fn a_sparse_allreduce_is_exact() {
    for aggregators in ["ranks", "ranks --datapath verbs", "cpu:2,arm:1 --processor-times", "dpa --shards 2"] {
        let args =
            format!("--op sparse-allreduce --workers 3 --bytes 200004 --sparsity 0.9 --aggregators {aggregators}");
        let output = tool(&format!("--json {args}"));
        assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object on stdout");
        assert_eq!((&report["sums_ok"], &report["messages_ok"]), (&true.into(), &true.into()), "{report}");
        assert_eq!(report["messages"], report["expected_messages"], "{report}");
        let of = |key: &str| report[key].as_f64().expect("a number");
        assert!(of("sent_bytes") > 0.0 && of("sent_bytes") < of("dense_ring_bytes") / 3.0, "{report}");
        let text = String::from_utf8(tool(&args).stdout).expect("text");
        for line in ["every sum on every worker", "by the closed form", "a ring of the dense array (computed)"] {
            assert!(text.contains(line), "{text}");
        }
    }
}

#[test]
fn a_file_is_gathered_and_broadcast() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_string_lossy().into_owned();
    // SHA-256 of bytes 0 to 250 over and over, by Python's hashlib.
    for (len, sha256) in [
        (12_000_usize, "72358792780d82707ad3857175ecd81ce4c97cf7cd3df9467475e33f57a1731e"),
        (12_001, "8b62409e667042d32148ec606eafa6c73c16a97af60f413e4637079ce332203a"),
        (0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
    ] {
        let bytes: Vec<u8> = (0..len).map(|index| (index % 251) as u8).collect();
        std::fs::write(file.path(), bytes).unwrap();
        for algorithm in ["multicast", "ring"] {
            let report = sim(&format!("--ranks 6 --file {path} --algorithm {algorithm}"));
            assert_eq!(report["op"], if len % 6 == 0 { "allgather" } else { "allgatherv" });
            assert_eq!((number(&report, "receive_bytes"), number(&report, "bytes")), (len as u64, len as u64 / 6));
            assert_eq!(report["sha256"], sha256, "{len} bytes");
        }
        let report = sim(&format!("--ranks 3 --file {path} --op broadcast"));
        assert_eq!(report["sha256"], sha256, "{len} bytes");
    }
}

/// Ranks that post at times of their own: drawn from the seed, reported, and with every byte on every rank, by whatever
/// algorithm.
#[test]
fn with_skew_a_rank_has_a_time_of_its_own_and_the_operation_runs_from_the_first_post() {
    let us = |report: &Value, pointer: &str| report.pointer(pointer).and_then(Value::as_f64).expect(pointer);
    for how in
        ["", "--control device", "--algorithm ring", "--op broadcast --root 2", "--op broadcast --algorithm k-nomial"]
    {
        let run = |skew: &str| sim(&format!("--ranks 8 --bytes 20000 --iterations 3 {how} {skew}"));
        let (together, skewed) = (run(""), run("--skew-us 400"));
        // Where the card runs the protocol a post hands it the operation, which takes each host a moment.
        assert!(number(&together, "skew_us") == 0 && us(&together, "/last_post_us") < 1.0, "{how}: {together}");
        let (last_post, all) = (us(&skewed, "/last_post_us"), us(&skewed, "/virtual_time_us"));
        assert!(number(&skewed, "skew_us") == 400 && (100.0..=400.0).contains(&last_post), "{how}: {last_post}");
        // The operation cannot end before its last rank has begun; who posts late has less of it.
        assert!(last_post < all && all < 400.0 + 2.0 * us(&together, "/virtual_time_us"), "{how}: {all}");
        assert!(us(&skewed, "/rank_time/least_us") < us(&skewed, "/rank_time/most_us") - 50.0, "{how}: {skewed}");
        assert!(us(&skewed, "/rank_time/mean_us") < all, "{how}: {skewed}");
        let same = |report: &Value| ["last_post_us", "virtual_time_us", "rank_time"].map(|key| report[key].clone());
        assert_eq!(same(&skewed), same(&run("--skew-us 400")), "{how}");
        assert_ne!(same(&skewed), same(&run("--skew-us 400 --seed 2")), "{how}");
    }
    let text = String::from_utf8_lossy(&tool("--ranks 3 --bytes 5000 --skew-us 50").stdout).into_owned();
    assert!(text.contains("posts within 50 us, the last ") && text.contains("from its own post to its end"), "{text}");
}

#[test]
fn the_report_has_the_promised_keys_and_people_have_lines() {
    let report = sim("--ranks 3 --bytes 5000");
    for key in [
        "op",
        "algorithm",
        "switch_bytes_total",
        "host_tx_bytes",
        "host_rx_bytes",
        "virtual_time_us",
        "rank_time",
        "skew_us",
        "last_post_us",
        "goodput_gbit_s",
        "wall_s",
        "digest_ok",
        "recovered_chunks",
        "kind",
        "model",
        "sha256",
    ] {
        assert!(!report[key].is_null(), "no {key}: {report}");
    }
    // Enough to run it again: what is configured, not what is built in.
    let settings = &report["settings"];
    assert_eq!((&settings["chunk_bytes"], &settings["subgroups"]), (&4096.into(), &4.into()), "{report}");
    assert_eq!((&settings["send_batch"], &settings["spread"]), (&16.into(), &false.into()), "{report}");
    let ring = sim("--ranks 3 --bytes 5000 --algorithm pipelined-ring --segments 3");
    assert_eq!((&ring["segments"], &ring["settings"]["writes"]), (&3.into(), &16.into()), "{ring}");
    assert_eq!((&ring["settings"]["write_bytes"], &ring["settings"]["retry_count"]), (&(1 << 20).into(), &7.into()));
    assert_eq!((&report["kind"], &report["model"]), (&"emulated".into(), &"uncalibrated-1".into()));
    let output = tool("--ranks 3 --bytes 5000 --chains 1 --eager 0");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for words in [
        "allgather by multicast: 5000 bytes from each of 3 ranks, 1 operation counted after 1 other",
        "switch-3, 3 cards",
        "received and sent by switch ports",
        "45000",
        "(emulated, cost model uncalibrated-1)",
        "data: armed to the last chunk",
        "instructions per CQE",
        "control: 11 messages (6 barrier, 2 activation, 3 final); 4 of one rank at most",
        "every rank has every byte; SHA-256",
    ] {
        assert!(text.contains(words), "{words:?} is missing: {text}");
    }
    let output = tool("--ranks 3 --op broadcast --bytes 5000 --algorithm k-nomial --radix 3 --segment 1000");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.starts_with("broadcast by k-nomial of radix 3 in segments of 1000 bytes: 5000 bytes to 3 ranks"),
        "{text}"
    );
}

#[test]
fn roots_that_are_paced_lose_nothing_where_switches_drop() {
    let file = tempfile::Builder::new().suffix(".toml").tempfile().expect("a file");
    let text = r#"
        name = "lossy"
        [switching]
        flow_control = "tail-drop"
        buffer_bytes = 65536
        [[switch]]
        name = "s"
        ports = 16
        [[host]]
        name = "h"
        count = 8
        to = "s"
    "#;
    std::fs::write(file.path(), text).expect("a description");
    let run = |pacing: &str| {
        sim(&format!("--topology {} --ranks 8 --bytes 131072 --chains 4 {pacing}", file.path().display()))
    };
    // Four roots at a time send to every link what four links carry.
    let fast = run("");
    assert!(number(&fast, "recovered_chunks") > 100, "{fast}");
    // A fifth each, so that there is room for a root that begins while the one before it sends its last chunks.
    let paced = run("--pacing 40");
    assert_eq!((number(&paced, "recovered_chunks"), number(&paced, "lost_frames")), (0, 0), "{paced}");
    // And no more comes to a rank than four roots at that rate send: payload bits over the time from the first to the
    // last.
    let us = paced["phases"]["receiving"]["least_us"].as_f64().expect("a time");
    let gbit_s = 7.0 * 131_072.0 * 8.0 / us / 1000.0;
    assert!(gbit_s < 4.0 * 40.0, "{gbit_s} Gbit/s into a rank");
}
