//! Networks and processes that are not as they should be: the result is right, or there is a typed error, in time.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use flexcast_tests::examples::{Rank, free_tcp_port};
use flexcast_tests::hosts::{Cut, Hosts, INTERFACE, address, address_v6};
use flexcast_tests::workspace_root;

use super::{BOUND, RANKS, clean, scratch, start};
use crate::rank::{BARRIER_TIMEOUT, PATIENCE, PATIENT, RECOVERY_TIMEOUT, STORE_TIMEOUT, TASK};

/// How long ranks call, where nothing ends them.
const CALLS: Duration = Duration::from_millis(1200);

/// Starts the ranks of a job on the loopback interface; `command` makes that of a rank.
fn near(name: &str, command: impl Fn(u32) -> Command) -> Vec<Rank> {
    let (folder, port) = (scratch(name), free_tcp_port());
    let of = |rank: u32| {
        let mut command = command(rank);
        command.args(["--exact", "a_rank_in_a_process_of_its_own", "--nocapture", "--test-threads", "1"]);
        command.env(TASK, format!("{rank},{RANKS},127.0.0.1:{port},7,{}", CALLS.as_millis()));
        Rank::start(command.env("FLEXCAST_INTERFACE", "lo"), &folder, &format!("rank-{rank}"))
    };
    (0..RANKS).map(of).collect()
}

fn this_program() -> std::path::PathBuf {
    std::env::current_exe().expect("the path of this program")
}

fn ends(ranks: &mut [Rank]) -> Vec<String> {
    ranks.iter_mut().map(|rank| rank.end(BOUND).1).collect()
}

/// All ranks have ended well, or all have failed with an error that has a type; nothing is left.
fn all_alike(texts: &[String]) {
    let well = texts.iter().filter(|text| text.contains("ended well")).count();
    let failed = texts.iter().filter(|text| text.contains("failed: ")).count();
    assert!(well == texts.len() || failed == texts.len(), "{texts:#?}");
    let is_clean =
        |text: &String| text.contains("left nothing") && !text.contains("WRONG") && !text.contains("panicked");
    assert!(texts.iter().all(is_clean), "{texts:#?}");
}

fn all_well(texts: &[String]) {
    all_alike(texts);
    assert!(texts[0].contains("ended well"), "{texts:#?}");
}

#[test]
fn without_a_route_for_multicast_the_result_is_right() {
    let Some(hosts) = Hosts::new(RANKS) else { return };
    for (port, route) in [(20_001, None), (20_002, Some("unreachable")), (20_003, Some("blackhole"))] {
        if let Some(route) = route {
            (0..RANKS).for_each(|host| _ = hosts.run(host, "ip", &["route", "replace", route, "224.0.0.0/4"]));
        }
        all_well(&ends(&mut start(&hosts, "route", 1, port, 7, CALLS)));
    }
    clean("route");
}

#[test]
fn an_interface_that_is_down_is_refused_and_its_rank_named() {
    let Some(hosts) = Hosts::new(1) else { return };
    hosts.cut(0, Cut::Interface);
    let folder = scratch("down");
    let of = |rank: u32| {
        let mut command = hosts.on(0, &this_program());
        command.args(["--exact", "a_rank_in_a_process_of_its_own", "--nocapture", "--test-threads", "1"]);
        command.env(TASK, format!("{rank},2,127.0.0.1:20000,7,1000"));
        command.env("FLEXCAST_INTERFACE", if rank == 1 { INTERFACE } else { "lo" });
        Rank::start(&mut command, &folder, &format!("rank-{rank}"))
    };
    let texts = ends(&mut [of(0), of(1)]);
    assert!(texts[1].contains("eth0") && texts[1].contains("is no interface that is up"), "{texts:#?}");
    assert!(texts[0].contains("failed: ") && texts[0].contains("rank 1"), "{texts:#?}");
    clean("down");
}

#[test]
fn addresses_of_two_families_are_refused_with_both() {
    let Some(hosts) = Hosts::new(RANKS) else { return };
    let folder = scratch("families");
    let of = |rank: u32| {
        let mut command = hosts.on(rank, &this_program());
        command.args(["--exact", "a_rank_in_a_process_of_its_own", "--nocapture", "--test-threads", "1"]);
        command.env(TASK, format!("{rank},{RANKS},{}:20000,7,1000", address(0)));
        command.env("FLEXCAST_INTERFACE", if rank == 2 { address_v6(rank) } else { address(rank) });
        Rank::start(&mut command, &folder, &format!("rank-{rank}"))
    };
    let mut ranks: Vec<Rank> = (0..RANKS).map(of).collect();
    let texts = ends(&mut ranks);
    let has_both =
        |text: &String| text.contains("rank 2") && text.contains("fd78::3") && text.contains("of one family");
    assert!(texts.iter().enumerate().all(|(rank, text)| rank == 2 || has_both(text)), "{texts:#?}");
    assert!(texts[2].contains("failed: ") && texts[2].contains("rank 0"), "{texts:#?}");
    clean("families");
}

#[test]
fn over_ipv6_all_is_the_same() {
    let Some(hosts) = Hosts::new(RANKS) else { return };
    let folder = scratch("ipv6");
    let of = |rank: u32| {
        let mut command = hosts.on(rank, &this_program());
        command.args(["--exact", "a_rank_in_a_process_of_its_own", "--nocapture", "--test-threads", "1"]);
        command.env(TASK, format!("{rank},{RANKS},[{}]:20000,7,{}", address_v6(0), CALLS.as_millis()));
        command.env("FLEXCAST_INTERFACE", address_v6(rank)).env(PATIENCE, PATIENT);
        Rank::start(&mut command, &folder, &format!("rank-{rank}"))
    };
    let mut ranks: Vec<Rank> = (0..RANKS).map(of).collect();
    all_well(&ends(&mut ranks));
    clean("ipv6");
}

#[test]
fn an_mtu_that_shrinks_meanwhile_costs_no_bytes_or_all_fail() {
    let Some(hosts) = Hosts::new(RANKS) else { return };
    // The whole network, as an administrator does it; then one host alone, which the others do not know of.
    for (port, hosts_changed, variables) in [(20_011, 0..RANKS, &[(PATIENCE, PATIENT)][..]), (20_012, 2..3, &[])] {
        // What the others do not know of may end in a bound, which is to be short.
        let mut ranks = super::start_with(&hosts, "mtu", 1, port, (7, CALLS * 2), variables);
        ranks.iter().for_each(|process| super::until_said(process, "begun"));
        std::thread::sleep(CALLS / 2);
        for host in hosts_changed.clone() {
            hosts.run(host, "ip", &["link", "set", INTERFACE, "mtu", "1300"]);
        }
        let texts = ends(&mut ranks);
        all_alike(&texts);
        // Where all know of it, nothing fails.
        assert!(hosts_changed.len() == 1 || texts[0].contains("ended well"), "{texts:#?}");
        for host in hosts_changed {
            hosts.run(host, "ip", &["link", "set", INTERFACE, "mtu", "1500"]);
        }
    }
    clean("mtu");
}

/// However few files a rank may open, it is refused with an error and its number, or works; the others end, too.
#[test]
fn ranks_that_may_open_few_files_end_in_time() {
    let limits = [6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 24, 40];
    let begun = Instant::now();
    let jobs = limits.map(|limit| {
        let ranks = near(&format!("files-{limit}"), |rank| {
            if rank != 2 {
                return Command::new(this_program());
            }
            let mut command = Command::new("sh");
            command.args(["-c", &format!("ulimit -n {limit} && exec \"$0\" \"$@\"")]).arg(this_program());
            command
        });
        (limit, ranks)
    });
    let bound = STORE_TIMEOUT * 2 + Duration::from_secs(5) + BARRIER_TIMEOUT * 5 / 4 + RECOVERY_TIMEOUT + BOUND / 4;
    for (limit, mut ranks) in jobs {
        let texts = ends(&mut ranks);
        assert!(begun.elapsed() < bound, "{limit}: {:?}", begun.elapsed());
        let well = texts.iter().all(|text| text.contains("ended well"));
        let failed = texts.iter().enumerate().all(|(rank, text)| {
            // Without files even a test program cannot begin.
            text.contains("failed: ") && !text.contains("panicked") || rank == 2 && limit < 8
        });
        assert!(well || failed, "{limit}: {texts:#?}");
        let names = |text: &String| text.lines().any(|line| line.starts_with("failed: ") && super::names(line, 2));
        let others = texts.iter().enumerate().filter(|(rank, _)| *rank != 2);
        assert!(well || others.into_iter().all(|(_, text)| names(text)), "{limit}: {texts:#?}");
        clean(&format!("files-{limit}"));
    }
}

/// A clock that is set changes no wait: what runs in a process of the user asks none but the one that only goes
/// forward.
#[test]
fn no_wait_follows_the_wall_clock() {
    fn sources(folder: &Path, all: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                sources(&path, all);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                all.push(path);
            }
        }
    }
    let mut all = Vec::new();
    for folder in ["host/flexcast/src", "host/bootstrap/src", "host/capi/src", "shared/proto/src"] {
        sources(&workspace_root().join(folder), &mut all);
    }
    assert!(all.len() > 50, "{}", all.len());
    for path in all {
        let text = std::fs::read_to_string(&path).expect("a source file");
        for word in ["SystemTime", "CLOCK_REALTIME", "gettimeofday"] {
            assert!(!text.contains(word), "{} uses {word}", path.display());
        }
    }
}
