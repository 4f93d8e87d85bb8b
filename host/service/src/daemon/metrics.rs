//! Metrics in the text format that Prometheus reads (text format 0.0.4).

use std::fmt::Write as _;

use super::status::Status;
use crate::net::counts::Reason;
use crate::net::processes::ProcessStatus;

/// One metric of each service process.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name, without the common beginning.
    pub name: &'static str,
    /// Whether it only grows; else it is what there is now.
    pub is_counter: bool,
    /// What it is.
    pub help: &'static str,
    value: fn(&ProcessStatus) -> u64,
}

const fn now(name: &'static str, help: &'static str, value: fn(&ProcessStatus) -> u64) -> Metric {
    Metric { name, is_counter: false, help, value }
}

const fn so_far(name: &'static str, help: &'static str, value: fn(&ProcessStatus) -> u64) -> Metric {
    Metric { name, is_counter: true, help, value }
}

/// Beginning of all names.
pub const PREFIX: &str = "flexcast_service_";
/// Connections that were refused, by reason.
pub const REFUSED: (&str, &str) = ("greetings_refused_total", "Connections of others that were refused, by reason");
/// Seconds since the start.
pub const UPTIME: (&str, &str) = ("uptime_seconds", "Seconds since the daemon has started");

/// All metrics with a value of each process.
pub const METRICS: &[Metric] = &[
    now("programs", "Programs of ranks that are connected", |process| process.now.programs),
    now("processes", "Other service processes that are connected", |process| process.now.processes),
    now("half_open", "Connections whose greeting is not over", |process| process.half_open),
    now("groups", "Groups that are served", |process| process.now.groups),
    now("waiting_groups", "Groups that wait for connections to other service processes", |process| {
        process.now.waiting_groups
    }),
    now("multicast_groups", "Groups whose staged segments go between service processes by multicast", |process| {
        process.now.multicast_groups
    }),
    now("collectives", "Collectives that are not over", |process| process.now.collectives),
    now("active_reads", "Reads under way", |process| process.now.active_reads),
    now("waiting_reads", "Announcements and Reads that wait", |process| process.now.waiting_reads),
    now("keys", "Aliases of memory keys of ranks", |process| process.now.keys),
    now("bound_keys", "Aliases of keys that programs bind to their memory", |process| process.now.bound_keys),
    now("queue_pairs", "Queue pairs of connections and groups", |process| process.now.queue_pairs),
    so_far("process_messages_total", "Messages sent to other service processes", |process| {
        process.counts.process_messages
    }),
    so_far("rank_messages_total", "Messages sent to ranks", |process| process.counts.rank_messages),
    so_far("flags_total", "Flags written to memory of ranks", |process| process.counts.flags),
    so_far("reads_total", "Reads from host memory to host memory", |process| process.counts.reads),
    so_far("crossings_total", "Reads from another host, of all Reads", |process| process.counts.crossings),
    so_far("local_reads_total", "Reads from another rank of the same host, of all Reads", |process| {
        process.counts.local_reads
    }),
    so_far("read_bytes_total", "Bytes of all Reads", |process| process.counts.read_bytes),
    so_far("bindings_total", "Regions that programs have bound keys to, without a control operation here", |process| {
        process.counts.bindings
    }),
    so_far(
        "aliases_replaced_total",
        "Aliases of bound keys that gave way, as something might have used them",
        |process| process.counts.aliases_replaced,
    ),
    so_far("multicast_bytes_total", "Bytes of staged segments that were multicast", |process| {
        process.counts.multicast_bytes
    }),
    so_far("multicast_chunks_total", "Chunks of multicasts that have come to their place", |process| {
        process.counts.chunks
    }),
    so_far("fetched_bytes_total", "Bytes of staged segments read from other service processes", |process| {
        process.counts.fetched_bytes
    }),
    so_far("peers_cut_off_total", "Peers that were cut off, as they have broken the rules", |process| {
        process.counts.wrong
    }),
    so_far("connections_taken_total", "Connections that others have set up", |process| process.net.taken),
    so_far("connections_set_up_total", "Connections to other service processes that were set up", |process| {
        process.net.set_up
    }),
    so_far("set_ups_failed_total", "Service processes that could not be reached", |process| process.net.set_ups_failed),
    so_far("heartbeats_missed_total", "Heartbeats that have not come in time", |process| process.net.heartbeats_missed),
    so_far("deaths_total", "Connections that have ended without a goodbye", |process| process.net.deaths),
    so_far("goodbyes_total", "Connections that have ended in order", |process| process.net.goodbyes),
    so_far("connection_hits_total", "Uses of a connection to another process that found it", |process| {
        process.connections.hits
    }),
    so_far("connection_misses_total", "Uses of one that had to wait for its set-up", |process| {
        process.connections.misses
    }),
    so_far("connection_evictions_total", "Connections to other processes that gave way to others", |process| {
        process.connections.evictions
    }),
];

/// The text of all metrics.
#[must_use]
pub fn text(status: &Status) -> String {
    let mut text = String::new();
    let head = |text: &mut String, (name, help): (&str, &str), kind: &str| {
        _ = write!(text, "# HELP {PREFIX}{name} {help}.\n# TYPE {PREFIX}{name} {kind}\n");
    };
    head(&mut text, UPTIME, "gauge");
    _ = writeln!(text, "{PREFIX}{} {}", UPTIME.0, status.uptime_s);
    for metric in METRICS {
        head(&mut text, (metric.name, metric.help), if metric.is_counter { "counter" } else { "gauge" });
        for (number, process) in status.processes.iter().enumerate() {
            _ = writeln!(text, "{PREFIX}{}{{process=\"{number}\"}} {}", metric.name, (metric.value)(process));
        }
    }
    head(&mut text, REFUSED, "counter");
    for (number, process) in status.processes.iter().enumerate() {
        for reason in Reason::ALL {
            let value = process.net.refused_for(reason);
            _ = writeln!(text, "{PREFIX}{}{{process=\"{number}\",reason=\"{}\"}} {value}", REFUSED.0, reason.name());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_each_metric() {
        let mut process = ProcessStatus::default();
        process.counts.read_bytes = 77;
        process.net.refused[Reason::Deadline as usize] = 3;
        let status = Status { uptime_s: 5, processes: vec![ProcessStatus::default(), process], ..Status::default() };
        let text = text(&status);
        for line in [
            "flexcast_service_uptime_seconds 5",
            "# TYPE flexcast_service_read_bytes_total counter",
            "flexcast_service_read_bytes_total{process=\"0\"} 0",
            "flexcast_service_read_bytes_total{process=\"1\"} 77",
            "# TYPE flexcast_service_groups gauge",
            "flexcast_service_greetings_refused_total{process=\"1\",reason=\"deadline\"} 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        let samples = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(samples, 1 + 2 * METRICS.len() + 2 * Reason::ALL.len());
    }

    /// All metrics are in the table of docs/service.md.
    #[test]
    fn every_metric_is_documented() {
        let document = include_str!("../../../../docs/service.md");
        for (name, help) in METRICS.iter().map(|metric| (metric.name, metric.help)).chain([UPTIME, REFUSED]) {
            let row = format!("| `{PREFIX}{name}` | {help} |");
            assert!(document.contains(&row), "docs/service.md has no row {row}");
        }
        for reason in Reason::ALL {
            assert!(document.contains(&format!("| `{}` | ", reason.name())), "{reason:?}");
        }
    }
}
