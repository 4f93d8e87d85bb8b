//! Messages of the C libraries on stderr: reasons of refused calls, and events of the machine.
//!
//! Programs in C have no subscriber for events, and see an `errno` at most. So the libraries print lines, those of the
//! level that the environment variable [`VARIABLE`] names and of more severe ones. The same line is printed once, and
//! of lines that begin alike a few are, so that a loop cannot flood the terminal; `debug` prints all. Hosts in Rust
//! that take the functions from [`crate::api`] have subscribers of their own: for them nothing is printed here.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The environment variable: `off`, `error`, `warn` (also if it is not set), `info` or `debug`.
pub const VARIABLE: &str = "FLEXCAST_LOG";
/// Lines of one kind that are printed. What comes before the first colon is the kind, the name of a call mostly.
const ALIKE: usize = 10;
/// Kinds that are distinguished; the others count as one.
const KINDS: usize = 256;

/// A host in Rust has taken the functions.
static HOST: AtomicBool = AtomicBool::new(false);
static STARTED: AtomicBool = AtomicBool::new(false);
static LEVEL: OnceLock<Option<Level>> = OnceLock::new();
static PRINTED: Mutex<BTreeMap<String, Vec<String>>> = Mutex::new(BTreeMap::new());

/// Leaves messages to the subscriber of a host in Rust.
pub fn leave_to_host() {
    HOST.store(true, Ordering::Relaxed);
}

fn parse(value: Option<&str>) -> Result<Option<Level>, String> {
    match value {
        None | Some("" | "warn") => Ok(Some(Level::WARN)),
        Some("off") => Ok(None),
        Some("error") => Ok(Some(Level::ERROR)),
        Some("info") => Ok(Some(Level::INFO)),
        Some("debug") => Ok(Some(Level::DEBUG)),
        Some(other) => Err(format!("{VARIABLE} is `{other}`, but must be off, error, warn, info or debug")),
    }
}

/// The level up to which lines are printed; none: nothing is.
fn level() -> Option<Level> {
    *LEVEL.get_or_init(|| {
        parse(std::env::var(VARIABLE).ok().as_deref()).unwrap_or_else(|wrong| {
            write(&wrong);
            Some(Level::WARN)
        })
    })
}

fn prints(at: Level) -> bool {
    !HOST.load(Ordering::Relaxed) && level().is_some_and(|level| at <= level)
}

/// Begins to print what the machine reports. Called by every call; does something once.
pub fn start() {
    if !crate::fork::is_child()
        && !HOST.load(Ordering::Relaxed)
        && !STARTED.swap(true, Ordering::Relaxed)
        && level().is_some()
    {
        // There is another one if the program is in Rust and has this library in it: then that one receives the events.
        let _ = tracing::subscriber::set_global_default(Lines);
    }
}

/// Says why a call was refused, unless that is left to a host in Rust: then false is returned. `mild` is for what
/// programs expect, such as that nothing has come yet.
pub fn refused(call: &str, reason: &dyn fmt::Display, mild: bool) -> bool {
    if HOST.load(Ordering::Relaxed) {
        // In a child its subscriber is as little to be relied on as the rest.
        return crate::fork::is_child();
    }
    let at = if mild { Level::DEBUG } else { Level::ERROR };
    if crate::fork::is_child() {
        // Its locks may be held by threads that are not here, and what it has to say is the same every time.
        static REPORTED: AtomicBool = AtomicBool::new(false);
        let level = LEVEL.get().copied().unwrap_or(Some(Level::WARN));
        if level.is_some() && !REPORTED.swap(true, Ordering::Relaxed) {
            write(&format!("{call}: {reason}"));
        }
    } else if prints(at) {
        print(format!("{call}: {reason}"));
    }
    true
}

/// How often a line was to be printed decides whether it is: none if not, or what is printed.
fn choose(printed: &mut BTreeMap<String, Vec<String>>, line: String) -> Option<String> {
    let kind = line.split_once(": ").map_or(&*line, |(kind, _)| kind);
    let kind = if printed.len() < KINDS || printed.contains_key(kind) { kind.to_owned() } else { String::new() };
    let alike = printed.entry(kind).or_default();
    if alike.len() >= ALIKE || alike.contains(&line) {
        return None;
    }
    alike.push(line.clone());
    let last = alike.len() == ALIKE;
    Some(if last { format!("{line} (more like this is not shown; {VARIABLE}=debug shows all)") } else { line })
}

fn print(line: String) {
    if level() == Some(Level::DEBUG) {
        return write(&line);
    }
    let chosen = choose(&mut PRINTED.lock().unwrap_or_else(PoisonError::into_inner), line);
    if let Some(line) = chosen {
        write(&line);
    }
}

/// One line to stderr, in one piece, and without a lock that a child could find held.
fn write(line: &str) {
    let line = format!("flexcast-emu: {line}\n");
    // SAFETY: the bytes live during the call. A closed stderr has no reader.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// A subscriber that prints events as lines.
struct Lines;

/// The message of an event, then its other fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // What the machine announces is on stderr already.
        metadata.target() != emu_machine::ANNOUNCED && prints(*metadata.level())
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        print(text.message + &text.fields);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_names_a_level() {
        assert_eq!(parse(None), Ok(Some(Level::WARN)));
        assert_eq!(parse(Some("off")), Ok(None));
        assert_eq!(parse(Some("debug")), Ok(Some(Level::DEBUG)));
        assert!(parse(Some("loud")).is_err_and(|text| text.contains("`loud`")));
    }

    #[test]
    fn a_loop_does_not_flood_the_terminal() {
        let mut printed = BTreeMap::new();
        let mut shown = Vec::new();
        for round in 0..1_000 {
            shown.extend(choose(&mut printed, "ibv_reg_mr: addr is null".to_owned()));
            shown.extend(choose(&mut printed, format!("ibv_create_qp: max_send_wr {round}, at most 0")));
        }
        assert_eq!(shown.iter().filter(|line| line.starts_with("ibv_reg_mr")).count(), 1);
        assert_eq!(shown.len(), 1 + ALIKE);
        assert!(
            shown[ALIKE].starts_with("ibv_create_qp: max_send_wr 9,") && shown[ALIKE].contains("FLEXCAST_LOG=debug")
        );
        // Nor does it fill the memory, whatever the lines are.
        let other = |round: u32| format!("queue failure {round}");
        let shown: Vec<String> = (0..1_000).filter_map(|round| choose(&mut printed, other(round))).collect();
        assert!(shown.len() <= KINDS + ALIKE && printed.len() <= KINDS + 1);
    }
}
