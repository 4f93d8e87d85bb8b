//! Processes and threads as tables, with the columns of the vendor's `dpa-ps` and `dpa-statistics`.

use comfy_table::{CellAlignment, Table, presets};
use emu_observe::state::{Card, Process, State, Thread};

/// Which processes and threads to show; everything where nothing is said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Name of a card.
    pub device: Option<String>,
    /// Process id.
    pub process: Option<u32>,
    /// Thread id.
    pub thread: Option<u32>,
}

impl Filter {
    /// The state with only what the filter lets through; cards and processes without any of it are gone.
    #[must_use]
    pub fn apply(&self, mut state: State) -> State {
        let fits = |wanted: Option<u32>, id: u32| wanted.is_none_or(|wanted| wanted == id);
        state.cards.retain_mut(|card| {
            card.processes.retain_mut(|process| {
                process.threads.retain(|thread| fits(self.thread, thread.id));
                fits(self.process, process.id) && (self.thread.is_none() || !process.threads.is_empty())
            });
            self.device.as_ref().is_none_or(|name| *name == card.name)
        });
        state
    }
}

fn table(header: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(header);
    for &column in right {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn processes(state: &State) -> impl Iterator<Item = (&Card, &Process)> {
    state.cards.iter().flat_map(|card| card.processes.iter().map(move |process| (card, process)))
}

fn threads(state: &State) -> impl Iterator<Item = (&Card, &Process, &Thread)> {
    processes(state).flat_map(|(card, process)| process.threads.iter().map(move |thread| (card, process, thread)))
}

/// Digits of a build id in a table; `--json` and `cargo xtask verify` have all.
const BUILD_ID_DIGITS: usize = 12;

/// Processes, or each thread of them.
#[must_use]
pub fn ps(state: &State, with_threads: bool) -> Table {
    if with_threads {
        let header = ["Device", "ProcessID", "Process name", "ThreadID", "Thread name", "Entry", "EU", "Core", "State"]
            .into_iter()
            .chain(["Since (us)", "PC", "Symbol"]);
        let mut table = table(&header.collect::<Vec<_>>(), &[1, 3, 6, 7, 9]);
        for (card, process, thread) in threads(state) {
            table.add_row([
                card.name.clone(),
                format!("{:x}", process.id),
                process.name.clone(),
                format!("{:x}", thread.id),
                thread.name.clone(),
                thread.entry.clone(),
                thread.eu.to_string(),
                (thread.eu / 16).to_string(),
                thread.state.clone(),
                format!("{:.3}", thread.since_ps as f64 / 1e6),
                format!("{:#x}", thread.pc),
                thread.symbol.clone(),
            ]);
        }
        return table;
    }
    let mut table = table(
        &["Device", "ProcessID", "Process name", "Program", "Build", "Threads", "Heap bytes", "Status"],
        &[1, 5, 6],
    );
    for (card, process) in processes(state) {
        table.add_row([
            card.name.clone(),
            format!("{:x}", process.id),
            process.name.clone(),
            process.program.clone(),
            process.build_id.iter().flat_map(|id| id.chars()).take(BUILD_ID_DIGITS).collect(),
            (process.threads.len() as u64 + process.forgotten_threads).to_string(),
            process.heap_bytes.to_string(),
            process.status.clone(),
        ]);
    }
    table
}

/// What a table has no room for: why processes have ended by themselves, what is stuck and why, what cards have
/// dropped, and that there were races.
#[must_use]
pub fn remarks(state: &State) -> Vec<String> {
    let ended = processes(state).filter_map(|(card, process)| {
        let cause = process.cause.as_ref()?;
        Some(format!("{} of {}, {}: {cause}", process.name, card.name, process.status))
    });
    let dropped = state.cards.iter().filter(|card| card.steering_drops + card.rnr_drops > 0).map(|card| {
        format!(
            "{} has dropped {} frames that no steering rule led to a receive queue (steering_drops), and {} frames and \
             messages for which no receive was posted (rnr_drops)",
            card.name, card.steering_drops, card.rnr_drops
        )
    });
    let races = state.races.as_ref().filter(|races| races.count > 0);
    let races = races.map(|races| format!("{} races for memory (--json lists the accesses)", races.count));
    ended.chain(state.diagnoses.iter().cloned()).chain(dropped).chain(races).collect()
}

/// What each thread has executed.
#[must_use]
pub fn stats(state: &State) -> Table {
    let header = [
        "Device",
        "ProcessID",
        "ThreadID",
        "Cycles (emulated)",
        "Instructions",
        "Time ticks (ns, emulated)",
        "Executions",
        "Thread name",
        "Entry",
    ];
    let mut table = table(&header, &[1, 2, 3, 4, 5, 6]);
    for (card, process, thread) in threads(state) {
        table.add_row([
            card.name.clone(),
            format!("{:x}", process.id),
            format!("{:x}", thread.id),
            thread.cycles.to_string(),
            thread.instructions.to_string(),
            thread.time_ticks.to_string(),
            thread.executions.to_string(),
            thread.name.clone(),
            thread.entry.clone(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(process: u32, id: u32) -> Thread {
        Thread {
            id,
            name: format!("EH_{process}_{id}_{id}"),
            entry: "uc_receive".to_owned(),
            eu: 17,
            state: "waiting".to_owned(),
            since_ps: 2_500_000,
            pc: 0x4000_0010,
            symbol: "uc_receive+0x10".to_owned(),
            cycles: 900,
            instructions: 100,
            time_ticks: 500,
            executions: 3,
        }
    }

    fn state() -> State {
        let process = |id: u32, threads: Vec<Thread>| Process {
            id,
            name: format!("PROCESS_{id}"),
            program: "receive".to_owned(),
            build_id: Some("0123456789abcdef".to_owned()),
            status: "running".to_owned(),
            cause: None,
            heap_bytes: 4096,
            threads,
            forgotten_threads: 0,
        };
        let card = |name: &str, processes| Card {
            name: name.to_owned(),
            tx_packets: 1,
            rx_packets: 2,
            cqes: 3,
            steering_drops: 0,
            rnr_drops: 0,
            processes,
        };
        State {
            format: emu_observe::state::FORMAT.to_owned(),
            version: emu_observe::state::VERSION,
            model: "m".to_owned(),
            time_ps: 1,
            diagnoses: Vec::new(),
            races: None,
            cards: vec![
                card("mlx5_0", vec![process(10, vec![thread(10, 1), thread(10, 2)]), process(11, vec![thread(11, 3)])]),
                card("mlx5_1", vec![process(1, vec![])]),
            ],
        }
    }

    #[test]
    fn filters_narrow() {
        let count = |filter: Filter| {
            let state = filter.apply(state());
            (state.cards.len(), processes(&state).count(), threads(&state).count())
        };
        assert_eq!(count(Filter::default()), (2, 3, 3));
        assert_eq!(count(Filter { process: Some(10), ..Filter::default() }), (2, 1, 2));
        assert_eq!(count(Filter { thread: Some(3), ..Filter::default() }), (2, 1, 1));
        assert_eq!(count(Filter { device: Some("mlx5_1".to_owned()), ..Filter::default() }), (1, 1, 0));
        assert_eq!(count(Filter { process: Some(99), ..Filter::default() }), (2, 0, 0));
    }

    #[test]
    fn what_went_wrong_is_remarked() {
        let mut state = state();
        assert_eq!(remarks(&state), Vec::<String>::new());
        let process = &mut state.cards[0].processes[1];
        (process.status, process.cause) =
            ("crashed".to_owned(), Some("illegal instruction at pc 0x40000000".to_owned()));
        state.races =
            Some(emu_observe::state::Races { count: 3, reports: vec!["two owners wrote one line".to_owned()] });
        let lines = remarks(&state);
        assert_eq!(lines[0], "PROCESS_11 of mlx5_0, crashed: illegal instruction at pc 0x40000000");
        state.diagnoses = vec!["QP 0x1902: 2,170 RNR NAKs".to_owned()];
        assert!(remarks(&state).contains(&"QP 0x1902: 2,170 RNR NAKs".to_owned()));
        assert!(lines.len() == 2 && lines[1].starts_with("3 races for memory"), "{lines:?}");
        state.cards[1].rnr_drops = 7;
        let lines = remarks(&state);
        assert!(lines.iter().any(|line| line.starts_with("mlx5_1 has dropped 0 frames") && line.contains("7 frames")));
    }

    #[test]
    fn tables_have_the_vendors_columns_and_names() {
        let text = ps(&state(), true).to_string();
        assert!(text.contains("PROCESS_10") && text.contains("EH_10_2_2") && text.contains("uc_receive"), "{text}");
        assert!(text.contains("2.500") && text.contains("0x40000010") && text.contains("uc_receive+0x10"), "{text}");
        let row = stats(&state()).to_string().lines().find(|line| line.contains("EH_11_3_3")).map(str::to_owned);
        let cells: Vec<String> = row.expect("a row").split(['│', '┆']).map(|cell| cell.trim().to_owned()).collect();
        assert_eq!(cells[1..9], ["mlx5_0", "b", "3", "900", "100", "500", "3", "EH_11_3_3"]);
        let text = ps(&state(), false).to_string();
        assert!(text.contains("4096") && text.contains("0123456789ab") && !text.contains("abc"), "{text}");
    }
}
