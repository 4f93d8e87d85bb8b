//! A simulation's report for people.

use std::fmt;

use comfy_table::{CellAlignment, Table, presets};
use emu_config::{DrivenFrom, Memory};

use super::algorithm::Parameters;
use super::counts::ratio;
use super::params::Operation;
use super::report::{PhaseTime, Report};

/// A table whose columns behind the first are numbers.
#[must_use]
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(header);
    for column in 1..header.len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn count(value: u64, what: &str) -> String {
    format!("{value} {what}{}", if value == 1 { "" } else { "s" })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.what())?;
        writeln!(f, "{}", self.traffic_table())?;
        let Self { virtual_time_us, goodput_gbit_s, model, .. } = self;
        let what = if self.op.reduces() { "of each rank reduced" } else { "into each rank" };
        let mean = if self.iterations > 1 { ", mean of the operations" } else { "" };
        writeln!(
            f,
            "{virtual_time_us:.1} us from the first post to the last end{mean}; {goodput_gbit_s:.1} Gbit/s {what} \
             (emulated, cost model {model})"
        )?;
        if let Some(line) = self.choice_line() {
            writeln!(f, "{line}")?;
        }
        if let Some(overlap) = &self.overlap {
            writeln!(f, "{overlap}")?;
        }
        if let Some(line) = self.skew_line() {
            writeln!(f, "{line}")?;
        }
        if let Some(phases) = self.phase_table() {
            writeln!(f, "{phases}")?;
        }
        let accesses = self.accesses.as_ref().map(ToString::to_string);
        for line in
            [self.work_line(), self.workers_line(), accesses, Some(self.control_line()), Some(self.recovery_line())]
                .into_iter()
                .flatten()
        {
            writeln!(f, "{line}")?;
        }
        let memory = self
            .peak_memory_bytes
            .map(|bytes| format!("; at most {:.0} MiB resident", bytes as f64 / f64::from(1 << 20)));
        writeln!(
            f,
            "wall time {:.2} s, and {:.2} s of setting up{} (measured)",
            self.wall_s,
            self.set_up_s,
            memory.unwrap_or_default()
        )?;
        f.write_str(&self.verdict())
    }
}

/// A table of simulations of the same bytes by several algorithms.
#[must_use]
pub fn comparison(reports: &[Report]) -> Table {
    let mut table = table(&[
        "algorithm",
        "data at switch ports",
        "control, recovery",
        "lost",
        "recovered",
        "us (emulated)",
        "every rank",
        "wall s",
    ]);
    for report in reports {
        table.add_row([
            report.algorithm.to_owned(),
            report.traffic.switch_bytes_total.to_string(),
            report.traffic.switch_control_bytes.to_string(),
            report.traffic.lost_frames.to_string(),
            report.recovered_chunks.to_string(),
            format!("{:.1}", report.virtual_time_us),
            if report.digest_ok { "equal".to_owned() } else { "DIFFERS".to_owned() },
            format!("{:.2}", report.wall_s),
        ]);
    }
    table
}

impl Report {
    /// What ran, on what.
    fn what(&self) -> String {
        let Self { op, algorithm, ranks, ranks_per_card, bytes, receive_bytes, machine, .. } = self;
        let size = match op {
            Operation::Broadcast => format!("{bytes} bytes to {}", count(u64::from(*ranks), "rank")),
            Operation::Allgather => format!("{bytes} bytes from each of {}", count(u64::from(*ranks), "rank")),
            Operation::Allgatherv => {
                format!("{receive_bytes} bytes, about {bytes} from each of {}", count(u64::from(*ranks), "rank"))
            }
            Operation::Alltoall => format!("{bytes} bytes from each of {} to each", count(u64::from(*ranks), "rank")),
            Operation::ReduceScatter | Operation::Allreduce | Operation::SparseAllreduce => {
                format!("{} of each of {}", count(bytes / 4, "integer"), count(u64::from(*ranks), "rank"))
            }
        };
        let mut text = format!("{} by {algorithm}", op.name());
        let Parameters { segments, radix, segment_bytes } = self.parameters;
        let parameters = [
            segments.map(|segments| format!(" in {}", count(u64::from(segments), "segment"))),
            radix.map(|radix| format!(" of radix {radix}")),
            segment_bytes.map(|bytes| format!(" in segments of {}", count(bytes, "byte"))),
        ];
        text.extend(parameters.into_iter().flatten());
        if let Some(datapath) = self.datapath {
            text += &format!(" (datapath {datapath}");
            text += &match self.chunk_ns {
                Some(ns) => format!(", {ns} ns of a processor for each chunk received)"),
                None => ", whose processors take no virtual time)".to_owned(),
            };
        }
        text += &format!(": {size}, {} counted", count(u64::from(self.iterations), "operation"));
        if self.warm_up > 0 {
            text += &format!(" after {}", count(u64::from(self.warm_up), "other"));
        }
        text += &format!("\n{}, {}", machine.topology, count(machine.cards as u64, "card"));
        if *ranks_per_card > 1 {
            text += &format!(" of {ranks_per_card} ranks");
        }
        if machine.faults > 0 {
            text += &format!("; {} (seed {})", count(machine.faults as u64, "fault"), machine.seed);
        }
        if machine.driven_from == DrivenFrom::Arm {
            text += ", driven from the Arm cores";
        }
        if machine.memory == Memory::Weak {
            text += "; weak memory";
        }
        match machine.races {
            None => {}
            Some(0) => text += "; no races",
            Some(races) => text += &format!("; {}", count(races, "race")),
        }
        text
    }

    fn traffic_table(&self) -> Table {
        let traffic = &self.traffic;
        let mut table = table(&["payload in bytes", "data", "per byte contributed", "control and recovery"]);
        let contributed = self.contributed_bytes * u64::from(self.iterations);
        for (what, data, control) in [
            ("received and sent by switch ports", traffic.switch_bytes_total, traffic.switch_control_bytes),
            ("sent by cards", traffic.host_tx_bytes, traffic.host_tx_control_bytes),
            ("received by cards", traffic.host_rx_bytes, traffic.host_rx_control_bytes),
        ] {
            let per_byte = ratio(data, contributed).map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
            table.add_row([what.to_owned(), data.to_string(), per_byte, control.to_string()]);
        }
        table
    }

    /// What the library chose, and what it expected of each algorithm.
    fn choice_line(&self) -> Option<String> {
        let choice = self.choice.as_ref()?;
        let expected: Vec<String> =
            choice.predicted_us.iter().map(|(algorithm, us)| format!("{algorithm} {us:.1}")).collect();
        Some(format!("chosen: {} (expected, in us: {})", choice.algorithm, expected.join(", ")))
    }

    /// What ranks' own times are where they do not post at once.
    fn skew_line(&self) -> Option<String> {
        let PhaseTime { least_us, mean_us, most_us, .. } = self.rank_time;
        (self.skew.skew_us > 0).then(|| {
            format!(
                "posts within {} us, the last {:.1} us after the first; a rank, from its own post to its end: \
                 {least_us:.1} to {most_us:.1} us, mean {mean_us:.1}",
                self.skew.skew_us, self.last_post_us
            )
        })
    }

    fn phase_table(&self) -> Option<Table> {
        let phases = self.phases.as_ref()?;
        let mut table = table(&["phase, us (emulated)", "least", "mean", "most"]);
        for (name, phase) in [
            ("arming: post to armed workers", &phases.arming),
            ("waiting for the own turn", &phases.waiting),
            ("sending the own block", &phases.sending),
            ("data: armed to the last chunk", &phases.receiving),
            ("recovering: cutoff to the last byte", &phases.recovering),
            ("closing: last byte to release", &phases.closing),
        ] {
            let PhaseTime { least_us, mean_us, most_us, .. } = phase;
            if phase.happened() {
                table.add_row([
                    name.to_owned(),
                    format!("{least_us:.1}"),
                    format!("{mean_us:.1}"),
                    format!("{most_us:.1}"),
                ]);
            }
        }
        Some(table)
    }

    /// What the card of a rank executed in each phase; phases in which it did nothing are left out.
    fn work_line(&self) -> Option<String> {
        let phases = self.dpa_work.as_ref()?.phases();
        let worked = phases.iter().filter(|(_, work)| work.cycles.most > 0);
        let parts: Vec<String> = worked
            .map(|(name, work)| format!("{name} {:.0} ({:.0})", work.instructions.mean, work.cycles.mean))
            .collect();
        Some(format!("DPA instructions (cycles) of a rank, mean: {}", parts.join(", ")))
    }

    fn workers_line(&self) -> Option<String> {
        // Processors of hosts count no instructions here.
        let workers = self.workers.as_ref().filter(|_| self.datapath.is_none())?;
        let of = |value: Option<f64>| value.map_or("no".to_owned(), |value| format!("{value:.1}"));
        Some(format!(
            "workers: {} instructions per CQE in drain loops ({}), {} per post ({}); exact counts of the DPA's counter",
            of(workers.instructions_per_cqe()),
            count(workers.loop_cqes, "CQE"),
            of(workers.instructions_per_post()),
            count(workers.posted, "chunk"),
        ))
    }

    fn control_line(&self) -> String {
        let control = &self.control;
        let kinds = [
            (control.barrier, "barrier"),
            (control.activation, "activation"),
            (control.last, "final"),
            (control.fetch, "fetch"),
            (control.acknowledgement, "acknowledgement"),
            (control.failure, "failure"),
            (control.announcement, "announcement"),
        ];
        let kinds: Vec<String> =
            kinds.iter().filter(|(count, _)| *count > 0).map(|(count, kind)| format!("{count} {kind}")).collect();
        let list = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
        format!(
            "control: {}{list}; {} of one rank at most",
            count(self.control_messages, "message"),
            self.control_messages_most
        )
    }

    fn recovery_line(&self) -> String {
        let traffic = &self.traffic;
        let mut text = format!("lost: {}", count(traffic.lost_frames, "frame"));
        if traffic.rnr_drops > 0 {
            text += &format!(", {} for want of a receive", count(traffic.rnr_drops, "datagram"));
        }
        if traffic.card_drops > 0 {
            text += &format!(", {} dropped by cards", count(traffic.card_drops, "packet"));
        }
        if traffic.timeouts > 0 {
            text += &format!(", {} of connections", count(traffic.timeouts, "timeout"));
        }
        if self.phases.is_some() {
            text += &format!(
                "; recovered from neighbours: {} ({} bytes) in {}",
                count(self.recovered_chunks, "chunk"),
                self.recovered_bytes,
                count(self.recovery_reads, "read")
            );
        }
        text
    }

    fn verdict(&self) -> String {
        let digest = self.sha256.as_ref().map(|sha256| format!("; SHA-256 {sha256}")).unwrap_or_default();
        if self.digest_ok {
            return format!("every rank has every byte{digest}");
        }
        let bytes = if self.bytes_ok { "no byte is wrong" } else { "BYTES DIFFER" };
        format!("FAILED: {}, {bytes}: {}", count(self.failures, "failure"), self.errors.join("; "))
    }
}
