//! The open questions of docs/card.md that a program can settle on a card: one probe each, and one report.

use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use flexcast::Transport;
use flexcast_abi::{ABI_HASH, ABI_VERSION};
use flexio::{AbiExpectation, Affinity, Application, CardKind, EventHandler, Process, ProtectionDomain, Provider};
use serde::Serialize;

use crate::pingpong;
use crate::tput::plan::{Params, Plan};
use crate::tput::run::{ImageFile, bring_up, made_up_bytes, run};

/// How a question ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The card, or the emulator in its stead, has answered.
    Answered,
    /// The probe failed, which is an answer, too: what was refused, and how.
    Failed,
    /// No program on one card settles it; the finding says what does.
    Elsewhere,
}

/// One question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Its numbers in docs/card.md.
    pub questions: Vec<u32>,
    /// What is asked.
    pub what: &'static str,
    /// How it ended.
    pub outcome: Outcome,
    /// What was found, in words.
    pub finding: String,
}

/// How the card is set up, as far as it can be seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// No card: the emulator.
    Emulated,
    /// The Arm cores own the card, and this is one of them.
    DpuOnArm,
    /// The Arm cores own the card, and this is its host.
    DpuOnHost,
    /// The card is its host's alone, and this is the host.
    Nic,
    /// A host; the configuration could not be read.
    HostUnknown,
}

impl Mode {
    /// What does not work there, or needs something first.
    #[must_use]
    pub const fn limits(self) -> &'static str {
        match self {
            Self::Emulated => "nothing here says anything of a card: behaviour and times are the emulator's",
            Self::DpuOnArm => {
                "DPU mode, on the Arm cores: windows of the firmware reach memory of the Arm cores; memory of the host \
                 needs keys that the host exports (service processes)"
            }
            Self::DpuOnHost => {
                "DPU mode, on the host: a DPA process needs a partition of execution units that somebody on the Arm \
                 cores has made for this function (dpaeumgmt partition create); windows reach memory of the host"
            }
            Self::Nic => {
                "NIC mode: there are no Arm cores to run service processes on; windows of the firmware reach memory of \
                 the host"
            }
            Self::HostUnknown => {
                "a host; whether in DPU or NIC mode could not be read: `mlxconfig -d PCI query \
                 INTERNAL_CPU_OFFLOAD_ENGINE` needs root and the vendor's tools. In DPU mode a DPA process needs a \
                 partition of execution units made on the Arm cores; in NIC mode there are no service processes"
            }
        }
    }
}

/// The report that is sent back.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Release of this program.
    pub version: &'static str,
    /// `emulated` or `real`.
    pub card: &'static str,
    /// Name of the card, and its PCI address where it has one.
    pub device: String,
    /// Its PCI address; may be empty.
    pub pci: String,
    /// How it is set up.
    pub mode: Mode,
    /// What does not work in this mode.
    pub limits: &'static str,
    /// Digits of the build ids of the images that were run, by name.
    pub images: Vec<(String, String)>,
    /// The questions.
    pub rows: Vec<Row>,
    /// Wall time in seconds.
    pub wall_s: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, card, device, pci, .. } = self;
        writeln!(f, "Flexcast {version}, {card} card {device} {pci}")?;
        for (name, id) in &self.images {
            writeln!(f, "image {name}, build {id}")?;
        }
        writeln!(f, "{}", self.limits)?;
        for row in &self.rows {
            let numbers: Vec<String> = row.questions.iter().map(|number| format!("#{number}")).collect();
            let outcome = match row.outcome {
                Outcome::Answered => "answered",
                Outcome::Failed => "FAILED",
                Outcome::Elsewhere => "elsewhere",
            };
            writeln!(f, "{outcome:>10}  {} ({})\n            {}", row.what, numbers.join(", "), row.finding)?;
        }
        let count = |outcome| self.rows.iter().filter(|row| row.outcome == outcome).count();
        write!(
            f,
            "{} answered, {} failed, {} to be settled elsewhere",
            count(Outcome::Answered),
            count(Outcome::Failed),
            count(Outcome::Elsewhere)
        )
    }
}

/// Questions that no program settles which has one card: what does.
const ELSEWHERE: [(&[u32], &str, &str); 7] = [
    (&[1, 12, 22], "the vendor's linker, its script and dpa-fatbin", "cargo xtask build --toolchain bf3, then verify"),
    (&[2, 3], "encodings of custom instructions and fences", "assemble and disassemble with the vendor's compiler"),
    (&[4], "ecall numbers", "not needed: the vendor's library is linked"),
    (
        &[7, 10, 11],
        "layouts and UD queue pairs of the installed FlexIO",
        "cargo xtask bindgen against the installed headers",
    ),
    (&[18], "windows of two entities with different keys", "there is no firmware for it yet"),
    (
        &[23],
        "a queue pair that begins again",
        "two hosts: flexcast tput --server and --client, with packets dropped between",
    ),
    (&[24, 25], "permissions for alias keys", "two functions of a card: flexcast-service on the Arm cores"),
];

/// Highest number of an execution unit, and one more.
const UNITS: u32 = 256;
/// Pings whose fastest is reported.
const PINGS: usize = 32;
/// Messages that are answered without the doorbell record, and how many are under way at once.
const LOADED: (usize, usize) = (512, pingpong::MOST_IN_FLIGHT);
/// Longest stack that is searched for, and to what precision, in bytes.
const STACK: (u64, u64) = (1 << 20, 64);
/// Loads that the firmware counts the cycles of.
const LOADS: u64 = 1024;
/// Longest run of a call in milliseconds: on a card, whose watchdog may end it, and on the emulator, which has one by
/// configuration.
const SPIN_MS: (u64, u64) = (16_000, 8);
/// Bytes of the Broadcast from the card to itself.
const BYTES: u64 = 256 << 10;

/// Runs all probes on a card, one after another; one that fails keeps no other from running. `progress` is given what
/// is about to be probed.
///
/// # Errors
/// The provider cannot list or open the card: then nothing can be probed.
pub fn probe(
    provider: &Provider,
    device: Option<&str>,
    pingpong: &ImageFile,
    allgather: &ImageFile,
    progress: &mut dyn FnMut(&str),
) -> flexio::Result<Report> {
    let started = Instant::now();
    let devices = provider.devices()?;
    let first = devices.first().map_or("mlx5_0", |device| device.name.as_str());
    let card = provider.open(device.unwrap_or(first))?;
    let (name, pci) = (card.info().name.clone(), card.info().pci.clone());
    let mode = mode(provider.kind(), &pci);
    let mut rows = Vec::new();
    let mut add = |questions: &[u32], what, found: Result<String, String>| {
        let (outcome, finding) = match found {
            Ok(finding) => (Outcome::Answered, finding),
            Err(reason) => (Outcome::Failed, reason),
        };
        rows.push(Row { questions: questions.to_vec(), what, outcome, finding });
    };
    let text = |error: flexio::Error| error.to_string();

    progress("loading an unsigned image");
    let loaded = || -> flexio::Result<Process> {
        let abi = AbiExpectation { version: ABI_VERSION, hash: ABI_HASH };
        let application = Application::load(provider, &pingpong.name, &pingpong.elf, Some(abi))?;
        Process::new(&application, &ProtectionDomain::new(&card)?)
    };
    let process = loaded().map_err(text);
    let begin = |process: &Process| {
        let image = process.application().image();
        image.segments().iter().map(|segment| segment.vaddr).min().unwrap_or_default()
    };
    let accepted = process.as_ref().map_err(Clone::clone).and_then(|process| {
        bring_up(process).map_err(|error| error.to_string())?;
        Ok(format!("an unsigned image, linked from {:#x} on, is loaded and its RPC answers", begin(process)))
    });
    add(&[13, 14, 21], "whether an unsigned image at addresses of our own is accepted", accepted);
    if let Ok(process) = &process {
        progress("heap and execution units");
        let heap = process.heap().map_err(text);
        let heap = heap.map(|heap| format!("{} bytes from {:#x} on", heap.size, heap.base.get()));
        add(&[15], "how large the heap of a process is", heap);
        let units = units(process);
        let found = if units.is_empty() {
            Err("no unit takes a thread of this process".to_owned())
        } else {
            Ok(ranges(&units))
        };
        add(&[15], "which execution units take threads of this process", found);
        progress("latency of a completion");
        add(&[19], "from a message to the answer of a DPA thread, and back", ping(provider, process, &name));
        progress("a send queue whose doorbell record is not kept");
        add(&[17], "sends without a doorbell record, under load", without_record(provider, process, &name));
        progress("loads that are not aligned");
        add(&[16], "cycles of loads that are not aligned", misaligned(process));
        progress("long runs of a call");
        let most_ms = if provider.kind() == CardKind::Emulated { SPIN_MS.1 } else { SPIN_MS.0 };
        add(&[6], "how long a call may run", long_run(process, most_ms));
    }
    drop(process);
    progress("the stack of a thread: processes end on purpose");
    add(&[5], "bytes of stack below a call, and what lies behind", stack(&|| loaded().map_err(text)));
    progress("a Broadcast from the card to itself");
    add(
        &[8, 9, 20],
        "multicast by UD into a queue in DPA memory, and the counters of instructions",
        broadcast(provider, &name, allgather),
    );
    rows.extend(ELSEWHERE.iter().map(|(questions, what, how)| Row {
        questions: questions.to_vec(),
        what,
        outcome: Outcome::Elsewhere,
        finding: (*how).to_owned(),
    }));
    let id = |image: &ImageFile| {
        let id = flexcast_image::Image::parse(&image.elf).ok().and_then(|image| image.build_id());
        (image.name.clone(), id.unwrap_or_else(|| "unknown".to_owned()))
    };
    Ok(Report {
        version: env!("CARGO_PKG_VERSION"),
        card: if provider.kind() == CardKind::Emulated { "emulated" } else { "real" },
        device: name,
        pci,
        mode,
        limits: mode.limits(),
        images: vec![id(pingpong), id(allgather)],
        rows,
        wall_s: started.elapsed().as_secs_f64(),
    })
}

/// Units on which a thread of the process can be made.
fn units(process: &Process) -> Vec<u32> {
    let takes = |unit: &u32| EventHandler::new(process, "pong", 0, Affinity::Unit(*unit)).is_ok();
    (0..UNITS).filter(takes).collect()
}

/// Sorted numbers as ranges: `1-189, 200`.
fn ranges(numbers: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let text = |(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    let list: Vec<String> = ranges.iter().map(text).collect();
    format!("{}: {} of them", list.join(", "), numbers.len())
}

/// What times by the provider's clock are.
fn kind(provider: &Provider) -> &'static str {
    if provider.relax().is_virtual() { "emulated" } else { "measured" }
}

fn ping(provider: &Provider, process: &Process, device: &str) -> Result<String, String> {
    let client = provider.open(device).map_err(|error| error.to_string())?;
    let messages = [&b"ping"[..]; PINGS];
    let pong = pingpong::ping(process, &client, &messages).map_err(|error| error.to_string())?;
    if !pong.equal {
        return Err("an answer differs from its message".to_owned());
    }
    let least = pong.round_trips_ps.iter().min().copied().unwrap_or_default();
    let most = pong.round_trips_ps.iter().max().copied().unwrap_or_default();
    Ok(format!(
        "{:.2} us at least, {:.2} us at most of {PINGS} ({})",
        least as f64 / 1e6,
        most as f64 / 1e6,
        kind(provider)
    ))
}

fn without_record(provider: &Provider, process: &Process, device: &str) -> Result<String, String> {
    let client = provider.open(device).map_err(|error| error.to_string())?;
    let (count, in_flight) = LOADED;
    let messages = vec![&[0xA5_u8; 64][..]; count];
    let pong = pingpong::ping_by(process, &client, "pong_without_record", &messages, in_flight);
    let pong = pong.map_err(|error| format!("without the record: {error}"))?;
    if !pong.equal {
        return Err("an answer differs from its message".to_owned());
    }
    let most = pong.round_trips_ps.iter().max().copied().unwrap_or_default();
    Ok(format!(
        "the record is not needed: {count} answers came, {in_flight} at once, by doorbells alone; {in_flight} took \
         {:.2} us at most ({})",
        most as f64 / 1e6,
        kind(provider)
    ))
}

fn misaligned(process: &Process) -> Result<String, String> {
    // Within half a word, a word and a line, and across a line.
    let cycles = |offset: u64| match process.call_by_name("probe_load", offset) {
        Ok(cycles) => Ok(cycles),
        Err(error) => Err(format!("a load {offset} bytes behind a line's begin ends the process: {error}")),
    };
    let aligned = cycles(0)?;
    let mut findings = vec![format!("{LOADS} loads of 8 bytes take {aligned} cycles aligned")];
    for offset in [1, 4, 60] {
        match cycles(offset) {
            Ok(cycles) => findings.push(format!("{cycles} at offset {offset} of a line")),
            // That is an answer.
            Err(ends) => {
                findings.push(ends);
                break;
            }
        }
    }
    Ok(findings.join(", "))
}

fn long_run(process: &Process, most_ms: u64) -> Result<String, String> {
    let mut ms = most_ms.min(1000);
    loop {
        let ran = process.call_by_name("probe_spin", ms * 1_000_000);
        match ran {
            Err(error) if ms == most_ms.min(1000) => return Err(format!("a call of {ms} ms: {error}")),
            Err(error) => return Ok(format!("a call of {} ms ends well, one of {ms} ms does not: {error}", ms / 2)),
            Ok(_) if ms >= most_ms => {
                return Ok(format!(
                    "a call of {ms} ms ends well; longer ones, and event handlers, which may run longer, are not tried"
                ));
            }
            Ok(_) => ms *= 2,
        }
    }
}

/// Searches for the most bytes below the stack pointer of a call that can be stored to. Each attempt that fails takes
/// its process along.
fn stack(make: &dyn Fn() -> Result<Process, String>) -> Result<String, String> {
    let (most, step) = STACK;
    let mut process = make()?;
    let mut refusal = String::new();
    let mut stores = |bytes: u64| -> Result<bool, String> {
        match process.call_by_name("probe_stack", bytes) {
            Ok(_) => Ok(true),
            Err(error) => {
                refusal = error.to_string();
                process = make()?;
                Ok(false)
            }
        }
    };
    let (mut fits, mut bytes) = (0, 1024);
    while bytes <= most && stores(bytes)? {
        (fits, bytes) = (bytes, 2 * bytes);
    }
    if bytes > most {
        return Ok(format!("{fits} bytes can be stored to without an error: it is longer, or has no guard"));
    }
    if fits == 0 {
        return Err(format!("1024 bytes: {refusal}"));
    }
    while bytes - fits > step {
        let middle = (fits + bytes) / 2 / step * step;
        if stores(middle)? {
            fits = middle;
        } else {
            bytes = middle;
        }
    }
    let why = refusal.lines().next().unwrap_or_default();
    Ok(format!("{fits} bytes can be stored to, and {bytes} end the process: it is guarded ({why})"))
}

fn broadcast(provider: &Provider, device: &str, image: &ImageFile) -> Result<String, String> {
    let params = Params { transport: Transport::Ud, iterations: 2, ..Params::default() };
    let plan = Plan::new(params, BYTES).map_err(|error| error.to_string())?;
    let source = made_up_bytes(BYTES, 1).map_err(|error| error.to_string())?;
    let names = [device.to_owned(), device.to_owned()];
    let report = run(provider, &names, image, &plan, &source, "", &mut |_| ()).map_err(|error| error.to_string())?;
    if !report.digest_ok {
        return Err("bytes differ from those sent".to_owned());
    }
    let all = plan.chunks * u64::from(report.iterations);
    let counters = match report.device.instructions {
        0 => "the counter of instructions reads 0".to_owned(),
        _ => format!(
            "{:.1} instructions and {:.0} cycles per completion",
            report.instructions_per_cqe, report.cycles_per_cqe
        ),
    };
    Ok(format!("of {all} chunks {} were received by multicast; {counters}", all - report.recovered_chunks.min(all)))
}

/// How the card is set up.
fn mode(kind: CardKind, pci: &str) -> Mode {
    if kind == CardKind::Emulated {
        return Mode::Emulated;
    }
    let product = std::fs::read_to_string("/sys/class/dmi/id/product_name").unwrap_or_default();
    if cfg!(target_arch = "aarch64") && product.contains("BlueField") {
        // In NIC mode the Arm cores have no function of the card.
        return Mode::DpuOnArm;
    }
    mode_of(&configuration(pci).unwrap_or_default())
}

/// The mode by what mlxconfig prints of INTERNAL_CPU_OFFLOAD_ENGINE: `ENABLED(0)` in DPU mode, `DISABLED(1)` in NIC
/// mode (BlueField documentation, modes of operation).
fn mode_of(printed: &str) -> Mode {
    let line = printed.lines().find(|line| line.contains("INTERNAL_CPU_OFFLOAD_ENGINE")).unwrap_or_default();
    match line.split_whitespace().last() {
        Some(value) if value.starts_with("ENABLED") => Mode::DpuOnHost,
        Some(value) if value.starts_with("DISABLED") => Mode::Nic,
        _ => Mode::HostUnknown,
    }
}

/// What mlxconfig prints, if it is there and ends within 10 s.
fn configuration(pci: &str) -> Option<String> {
    if pci.is_empty() || !Path::new("/sys/bus/pci/devices").join(pci).exists() {
        return None;
    }
    let mut command = Command::new("mlxconfig");
    command.args(["-d", pci, "query", "INTERNAL_CPU_OFFLOAD_ENGINE"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let started = Instant::now();
    while child.try_wait().ok()?.is_none() {
        if started.elapsed() > Duration::from_secs(10) {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_ranges() {
        assert_eq!(ranges(&[1, 2, 3, 7, 9, 10]), "1-3, 7, 9-10: 6 of them");
    }

    #[test]
    fn the_mode_is_read_from_the_vendors_tool() {
        let line = |value: &str| format!("Device #1:\n        INTERNAL_CPU_OFFLOAD_ENGINE             {value}\n");
        assert_eq!(mode_of(&line("ENABLED(0)")), Mode::DpuOnHost);
        assert_eq!(mode_of(&line("DISABLED(1)")), Mode::Nic);
        assert_eq!(mode_of("-E- cannot open"), Mode::HostUnknown);
    }

    #[test]
    fn every_open_question_has_a_row() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/card.md")).unwrap();
        let asked = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next()?.parse::<u32>().ok());
        let answered = [5, 6, 8, 9, 13, 14, 15, 16, 17, 19, 20, 21];
        let mut known: Vec<u32> = ELSEWHERE.iter().flat_map(|(numbers, ..)| numbers.iter().copied()).collect();
        known.extend(answered);
        known.sort_unstable();
        assert_eq!(asked.collect::<Vec<_>>(), known);
    }
}
