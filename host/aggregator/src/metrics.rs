//! The status as metrics, in the text format of Prometheus.

use crate::server::Status;

/// The text.
#[must_use]
pub fn text(status: &Status) -> String {
    let mut text = String::new();
    let mut add = |name: &str, kind: &str, help: &str, value: u64| {
        text += &format!(
            "# HELP flexcast_aggregator_{name} {help}\n# TYPE flexcast_aggregator_{name} \
             {kind}\nflexcast_aggregator_{name} {value}\n"
        );
    };
    let jobs = &status.jobs;
    add("jobs", "gauge", "Jobs that are served, once for each of their aggregators here.", jobs.len() as u64);
    add("workers", "gauge", "Connected workers.", status.connected.into());
    add("reserved_bytes", "gauge", "Memory for sums that jobs have taken.", status.reserved_bytes);
    add("memory_bytes", "gauge", "Memory for sums that there is.", status.memory_bytes);
    add("accepted_total", "counter", "Connections that were taken.", status.accepted);
    add("refused_total", "counter", "Workers that were refused.", status.refused);
    add("strangers_total", "counter", "Connections of others than workers.", status.strangers);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_kind_and_its_value() {
        let text = text(&Status { connected: 7, refused: 2, ..Status::default() });
        assert!(text.contains("# TYPE flexcast_aggregator_workers gauge\nflexcast_aggregator_workers 7\n"), "{text}");
        assert!(text.ends_with("\n") && text.contains("flexcast_aggregator_refused_total 2\n"));
    }
}
