//! Runs at flow level: collectives and applications with service processes and without.

use flexcast_proto::service::Multicast;
use serde::Serialize;

use super::text;
use crate::evaluate::row::{Kind, Row};
use crate::evaluate::spec::{Application, ApplicationSweep, Carrier, FlowSweep};
use crate::flow::{
    Bench, FftProxy, FlowParams, Kind as Operation, Octopus, Placement, Preset, ProxyReport, Skew, Variant, bench,
};

/// A run of a collective.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowPoint {
    preset: Preset,
    operation: Operation,
    by: Carrier,
    hosts: u32,
    ranks_per_host: u32,
    /// 0: as many as the publication has.
    service_processes: u32,
    placement: Placement,
    bytes: u64,
    skew: String,
    iterations: u32,
    overlap: bool,
}

/// A run of an application.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ApplicationPoint {
    preset: Preset,
    application: Application,
    variant: Variant,
    hosts: u32,
    ranks_per_host: u32,
    steps: Option<u32>,
}

fn machine(preset: Preset, hosts: u32, ranks_per_host: u32, service_processes: u32) -> FlowParams {
    let params = preset.params();
    let processes = if service_processes == 0 { params.processes_per_host } else { service_processes };
    FlowParams { hosts, ranks_per_host, processes_per_host: processes.min(ranks_per_host), ..params }
}

/// Column of a part of an application. Its waits for neighbours are not all of its waits.
fn column_of(part: &str) -> String {
    if part == "wait" { "wait_part_s".to_owned() } else { format!("{part}_s") }
}

fn source(preset: Preset) -> String {
    format!("flow level, {preset}")
}

impl FlowPoint {
    /// All runs of a sweep.
    #[must_use]
    pub fn all(sweep: &FlowSweep) -> Vec<Self> {
        let mut points = Vec::new();
        for &hosts in &sweep.hosts {
            for &ranks_per_host in &sweep.ranks_per_host {
                for &service_processes in &sweep.service_processes {
                    for &placement in &sweep.placement {
                        for &bytes in &sweep.bytes {
                            for skew in &sweep.skew {
                                points.extend(sweep.by.iter().map(|&by| Self {
                                    preset: sweep.preset,
                                    operation: sweep.operation,
                                    by,
                                    hosts,
                                    ranks_per_host,
                                    service_processes,
                                    placement,
                                    bytes,
                                    skew: skew.clone(),
                                    iterations: sweep.iterations,
                                    overlap: sweep.overlap,
                                }));
                            }
                        }
                    }
                }
            }
        }
        points
    }

    /// The machine, and what is measured.
    ///
    /// # Errors
    /// A skew that cannot be.
    pub fn parameters(&self) -> Result<(FlowParams, Bench), String> {
        let params = self.params();
        let asked = Bench {
            kind: self.kind(),
            bytes: self.bytes,
            by: self.by.by(params.ranks()),
            turns: (0, self.iterations),
            skew: self.skew.parse::<Skew>().map_err(text)?,
            seed: 1,
            overlap: self.overlap,
        };
        Ok((params, asked))
    }

    /// From host memory to host memory an Allgather is an Allgatherv of equal blocks.
    const fn kind(&self) -> Operation {
        match (self.operation, self.by) {
            (Operation::Allgather, Carrier::Service | Carrier::ServiceCard) => Operation::Allgatherv,
            (operation, _) => operation,
        }
    }

    fn params(&self) -> FlowParams {
        let Self { preset, hosts, ranks_per_host, service_processes, placement, .. } = *self;
        let multicast_ahead_bytes = self.by.is_multicast().then_some(Multicast::default().ahead_bytes);
        FlowParams { placement, multicast_ahead_bytes, ..machine(preset, hosts, ranks_per_host, service_processes) }
    }

    /// Reads or messages of all calls.
    fn transfers(&self) -> u64 {
        let ranks = u64::from(self.hosts * self.ranks_per_host);
        ranks * ranks * u64::from(self.iterations) * if self.overlap { 2 } else { 1 }
    }

    pub(super) fn weight(&self) -> u64 {
        self.transfers()
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let ranks = u64::from(self.hosts * self.ranks_per_host);
        (64 << 20) + 1500 * ranks * ranks
    }

    pub(super) fn command(&self) -> String {
        let Self { preset, ranks_per_host, placement, bytes, ref skew, iterations, .. } = *self;
        let operation = self.kind();
        let params = self.params();
        let by = match self.by {
            Carrier::Service | Carrier::Flat => "service".to_owned(),
            Carrier::ServiceCard => "service --local-copies card".to_owned(),
            Carrier::FlatMulticast => "service --between multicast".to_owned(),
            Carrier::Hierarchical => "service --delivery hierarchical".to_owned(),
            Carrier::HierarchicalMulticast => "service --delivery hierarchical --between multicast".to_owned(),
            Carrier::Direct => "service --delivery direct".to_owned(),
            Carrier::Hosts => "hosts".to_owned(),
            Carrier::HostsAtOnce => format!("hosts --window {}", params.ranks()),
        };
        let mut text = format!(
            "flexcast flow --preset {preset} --op {operation} --by {by} --ranks {} --ranks-per-host {ranks_per_host} \
             --service-processes {} --placement {placement} --bytes {bytes} --skew {skew} --warm-up 0 --iterations \
             {iterations}",
            params.ranks(),
            params.processes_per_host
        );
        if self.overlap {
            text.push_str(" --overlap");
        }
        text + " --json"
    }

    pub(super) fn asked(&self) -> Row {
        let params = self.params();
        let row = Row::new(Kind::Emulated, &source(self.preset))
            .with("operation", self.operation.to_string().as_str())
            .with("by", self.by.to_string().as_str())
            .with("ranks", params.ranks())
            .with("hosts", self.hosts)
            .with("ranks_per_host", self.ranks_per_host)
            .with("service_processes", params.processes_per_host);
        row.with("placement", self.placement.to_string().as_str())
            .with("bytes", self.bytes)
            .with("skew", self.skew.as_str())
    }

    pub(super) fn run(&self) -> Result<Row, String> {
        let (params, asked) = self.parameters()?;
        let found = bench(params, &asked).map_err(text)?;
        let counts = found.counts;
        let mut row = self
            .asked()
            .with("latency_us", found.latency_us)
            .with("min_us", found.min_us)
            .with("max_us", found.max_us)
            .with("post_us", found.post_us)
            .with("crossings", counts.crossings)
            .with("writes", counts.writes)
            .with("host_copies", counts.copies)
            .with("port_mib", counts.port_bytes as f64 / f64::from(1 << 20))
            .with("arm_mib", counts.arm_bytes as f64 / f64::from(1 << 20))
            .with("most_active_reads", counts.most_active_reads);
        for (column, value) in [("overall_us", found.overall_us), ("overlap_percent", found.overlap_percent)] {
            if let Some(value) = value {
                row = row.with(column, value);
            }
        }
        if counts.announcements > 0 {
            row = row
                .with("late_percent", found.late_percent)
                .with("late_none_ready_percent", found.late_none_ready_percent)
                .with("rescued_percent", found.rescued_percent);
        }
        Ok(row)
    }
}

impl ApplicationPoint {
    /// All runs of a sweep.
    #[must_use]
    pub fn all(sweep: &ApplicationSweep) -> Vec<Self> {
        let mut points = Vec::new();
        for &hosts in &sweep.hosts {
            for &ranks_per_host in &sweep.ranks_per_host {
                points.extend(sweep.variants.iter().map(|&variant| Self {
                    preset: sweep.preset,
                    application: sweep.application,
                    variant,
                    hosts,
                    ranks_per_host,
                    steps: sweep.steps,
                }));
            }
        }
        points
    }

    fn calls(&self) -> u64 {
        let steps = u64::from(self.steps.unwrap_or(if self.application == Application::P3dfft { 10 } else { 100 }));
        match self.application {
            Application::P3dfft => steps * 8 * u64::from(self.hosts + self.ranks_per_host),
            Application::Octopus => steps * 4 * u64::from(self.hosts * self.ranks_per_host),
        }
    }

    pub(super) fn weight(&self) -> u64 {
        self.calls() * u64::from(self.hosts * self.ranks_per_host)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let ranks = u64::from(self.hosts * self.ranks_per_host);
        (64 << 20) + 1500 * ranks * ranks
    }

    pub(super) fn command(&self) -> String {
        "flexcast report --only applications".to_owned()
    }

    pub(super) fn asked(&self) -> Row {
        Row::new(Kind::Emulated, &source(self.preset))
            .with("application", self.application.to_string().as_str())
            .with("variant", self.variant.to_string().as_str())
            .with("ranks", self.hosts * self.ranks_per_host)
            .with("hosts", self.hosts)
            .with("ranks_per_host", self.ranks_per_host)
    }

    pub(super) fn run(&self) -> Result<Row, String> {
        let params = machine(self.preset, self.hosts, self.ranks_per_host, 0);
        let ProxyReport { total_s, compute_s, call_s, wait_s, parts_s, .. } = match self.application {
            Application::P3dfft => {
                let proxy = FftProxy::default();
                let repetitions = self.steps.unwrap_or(proxy.repetitions);
                FftProxy { repetitions, ..proxy }.run(params, self.variant)
            }
            Application::Octopus => {
                let proxy = Octopus::default();
                let steps = self.steps.unwrap_or(proxy.steps);
                Octopus { steps, ..proxy }.run(params, self.variant)
            }
        }
        .map_err(text)?;
        let row = self
            .asked()
            .with("total_s", total_s)
            .with("compute_s", compute_s)
            .with("communication_s", call_s + wait_s)
            .with("call_s", call_s)
            .with("wait_s", wait_s);
        Ok(parts_s.into_iter().fold(row, |row, (part, s)| row.with(&column_of(part), s)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(text: &str) -> FlowSweep {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn rows_say_what_was_run_and_commands_repeat_it() {
        let sweep = sweep(
            r#"
            preset = "graham"
            operation = "allgatherv"
            by = ["service", "hosts"]
            hosts = [2]
            ranks_per_host = [2, 4]
            placement = ["strided"]
            bytes = [100]
            overlap = true
            "#,
        );
        let points = FlowPoint::all(&sweep);
        assert_eq!(points.len(), 4);
        let row = points[0].run().unwrap();
        assert_eq!((row.get("by"), row.number("crossings")), (Some(&"service".into()), Some(4.0)));
        assert!(row.number("overlap_percent").is_some() && row.number("late_percent").is_some());
        assert!(points[3].run().unwrap().number("late_percent").is_none());
        assert!(
            points[2].command().contains("--ranks 8 --ranks-per-host 4 --service-processes 4"),
            "{}",
            points[2].command()
        );
        assert!(points[2].weight() > points[0].weight());
    }

    #[test]
    fn applications_have_a_row_for_each_variant() {
        let sweep: ApplicationSweep = toml::from_str(
            r#"
            preset = "graham"
            application = "octopus"
            variants = ["non-blocking", "service"]
            hosts = [2]
            ranks_per_host = [2]
            steps = 1
            "#,
        )
        .unwrap();
        let rows: Vec<Row> = ApplicationPoint::all(&sweep).iter().map(|point| point.run().unwrap()).collect();
        assert_eq!(rows.len(), 2);
        for row in rows {
            let parts: f64 = ["compute_s", "communication_s"].iter().filter_map(|column| row.number(column)).sum();
            let total = row.number("total_s").unwrap();
            assert!(parts > 0.5 * total && parts <= total * 1.001, "{row:?}");
        }
    }
}
