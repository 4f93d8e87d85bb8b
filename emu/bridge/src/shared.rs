//! The machine of programs that cannot call Rust.

use std::ffi::OsString;
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use emu_config::{AttachTable, ConfigError, MOST_TIMEOUT_MS, Machine};
use emu_machine::{MachineError, Shared, World};

use crate::fault_sink::{Stderr, report_drops};
use crate::launcher;
use crate::limits::PEER_TIMEOUT_VARIABLE;
use crate::make;
use crate::share::{self, AGAIN, Lost, Remote};

/// The environment variable that names the machine file.
pub const VARIABLE: &str = "FLEXCAST_MACHINE";
/// A value that begins so is the text of the file itself.
pub const INLINE: &str = "toml:";

/// Between two polls of a program while its cards are another process's.
const BETWEEN_POLLS: Duration = Duration::from_micros(20);

/// As [`emu_machine::with_world`]; the shared machine is that of the file which [`VARIABLE`] names, or the default one.
///
/// # Errors
/// The shared machine cannot be made: the file is bad, or the bridge's address is taken. The reason is also printed on
/// stderr, once. [`MachineError::Elsewhere`]: the process has no machine, but uses the cards of another ([`attached`]).
pub fn with_world<R>(f: impl FnOnce(&mut World) -> R) -> Result<R, MachineError> {
    if let Some(remote) = attached()? {
        return Err(MachineError::Elsewhere(remote.socket().display().to_string()));
    }
    emu_machine::make_shared_with(from_environment);
    emu_machine::with_world(f)
}

/// As [`emu_machine::relax`], for the machine of [`with_world`].
///
/// # Errors
/// As there.
pub fn relax() -> Result<bool, MachineError> {
    if attached()?.is_some() {
        // The cards go on by themselves, and need the processor for it.
        std::thread::sleep(BETWEEN_POLLS);
        return Ok(true);
    }
    emu_machine::make_shared_with(from_environment);
    emu_machine::relax()
}

/// As [`emu_machine::is_driven`], for the machine of [`with_world`].
///
/// # Errors
/// As there.
pub fn is_driven() -> Result<bool, MachineError> {
    if attached()?.is_some() {
        return Ok(true);
    }
    emu_machine::make_shared_with(from_environment);
    emu_machine::is_driven()
}

/// As [`emu_machine::will_sleep`], for the machine of [`with_world`].
///
/// # Errors
/// As there.
pub fn will_sleep() -> Result<(), MachineError> {
    if attached()?.is_some() {
        return Ok(());
    }
    emu_machine::make_shared_with(from_environment);
    emu_machine::will_sleep()
}

/// Longest that a process that ends is kept for what its cards still have to send.
const LEAVING: Duration = Duration::from_secs(1);

/// Lets the cards send what is on its way, answers above all, before the process ends: real ones do so without their
/// program. Takes a second at most, and nothing if no machine runs by itself. Then says what the cards have dropped,
/// and takes the socket away at which they were shared.
pub fn leave() {
    let begun = Instant::now();
    while begun.elapsed() < LEAVING
        && let Some(wait) = emu_machine::run_out()
    {
        wait();
    }
    while !emu_machine::peek(report_drops) && begun.elapsed() < LEAVING {
        std::thread::yield_now();
    }
    share::withdraw();
}

/// The process whose cards this one uses, if the file which [`VARIABLE`] names says so: connected at the first call,
/// and for good. A thread that has a machine of its own uses that.
///
/// # Errors
/// [`MachineError::NotAttached`]: nobody is there, or refuses.
pub fn attached() -> Result<Option<&'static Remote>, MachineError> {
    static ATTACHED: OnceLock<Option<Result<Remote, String>>> = OnceLock::new();
    let attached = ATTACHED.get_or_init(|| {
        let described = described(&from_process);
        // Another error is reported when the machine is made.
        let machine = described.ok().filter(|machine| machine.attach.is_some())?;
        Some(attach(&machine).inspect_err(|error| eprintln!("flexcast: {VARIABLE}: {error}")))
    });
    match attached {
        None => Ok(None),
        Some(_) if emu_machine::has_own() => Ok(None),
        Some(Ok(remote)) => Ok(Some(remote)),
        Some(Err(reason)) => Err(MachineError::NotAttached(reason.clone())),
    }
}

/// How long the process that shares its cards may take to answer, unless said otherwise.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

fn attach(machine: &Machine) -> Result<Remote, String> {
    let Some(table) = machine.attach.as_ref().filter(|_| machine.only_attaches()) else {
        return Err(ConfigError::Attached.to_string());
    };
    Remote::attach(&table.socket, attach_timeout(table)?).map_err(|lost| lost.to_string())
}

fn attach_timeout(table: &AttachTable) -> Result<Duration, String> {
    match table.timeout_ms {
        None => Ok(ATTACH_TIMEOUT),
        Some(ms @ 1..=MOST_TIMEOUT_MS) => Ok(Duration::from_millis(ms)),
        Some(ms) => Err(format!("attach.timeout_ms is {ms}, but must be 1 to {MOST_TIMEOUT_MS} ms")),
    }
}

/// Waits for the socket of the process whose cards this machine uses, if it uses another's: as long as a program would
/// wait that this process becomes. Nobody is connected.
///
/// # Errors
/// The socket is not there in time.
pub fn await_socket(machine: &Machine) -> Result<(), String> {
    let mut machine = machine.clone();
    take_timeout(&mut machine, &from_process)?;
    let Some(table) = &machine.attach else { return Ok(()) };
    let (timeout, begun) = (attach_timeout(table)?, Instant::now());
    loop {
        match std::fs::metadata(&table.socket) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound && begun.elapsed() < timeout => {}
            Err(error) => {
                return Err(Lost::Nobody { socket: table.socket.clone(), why: error.to_string() }.to_string());
            }
        }
        std::thread::sleep(AGAIN);
    }
}

fn from_process(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

fn from_environment() -> Result<Shared, MachineError> {
    let made = made_from(&from_process);
    made.inspect_err(|error| eprintln!("flexcast: {VARIABLE}: {error}"))
}

/// The description that the environment names.
fn described(read: &impl Fn(&str) -> Option<OsString>) -> Result<Machine, MachineError> {
    let mut machine = match read(VARIABLE) {
        None => {
            // Cards of machines that are not joined have the same addresses: each rank would reach its own in the place
            // of another's.
            if let Some((rank, of)) = launcher::place(read).ok().flatten().filter(|(_, of)| *of > 1) {
                let text = format!(
                    "this process is rank {rank} of {of}, and nothing says how its emulated cards reach those of the \
                     others: set {VARIABLE} to toml:[job] for one network of all on this computer, or to {INLINE} for \
                     cards of its own"
                );
                return Err(MachineError::NotMade(text));
            }
            Machine::default()
        }
        Some(value) => match value.to_str().and_then(|text| text.strip_prefix(INLINE)) {
            Some(text) => Machine::parse(text),
            None => Machine::read(value.as_ref()),
        }
        .map_err(|error| MachineError::NotMade(error.to_string()))?,
    };
    if machine.job.is_some() {
        let place = launcher::place(read).map_err(MachineError::NotMade)?;
        let (rank, of) = place.ok_or_else(|| MachineError::NotMade(ConfigError::NotPlaced.to_string()))?;
        machine = machine.placed(rank, of).map_err(|error| MachineError::NotMade(error.to_string()))?;
    }
    take_timeout(&mut machine, read).map_err(MachineError::NotMade)?;
    Ok(machine)
}

/// Takes the time for peers that the environment names.
fn take_timeout(machine: &mut Machine, read: &impl Fn(&str) -> Option<OsString>) -> Result<(), String> {
    if let Some(timeout) = read(PEER_TIMEOUT_VARIABLE).filter(|_| machine.bridge.is_some() || machine.attach.is_some())
    {
        let number = timeout.to_str().and_then(|text| text.parse().ok());
        let wrong = || format!("{PEER_TIMEOUT_VARIABLE} is {timeout:?}, but must be a number of milliseconds");
        let number = Some(number.ok_or_else(wrong)?);
        if let Some(bridge) = &mut machine.bridge {
            bridge.peer_timeout_ms = number;
        }
        if let Some(attach) = &mut machine.attach {
            attach.timeout_ms = number;
        }
    }
    Ok(())
}

fn made_from(read: &impl Fn(&str) -> Option<OsString>) -> Result<Shared, MachineError> {
    let machine = described(read)?;
    let mut shared = make::make(&machine).map_err(|error| MachineError::NotMade(error.to_string()))?;
    let fault_sink = Stderr::new(shared.world.config().detect_races);
    shared.world.report_faults_to(Box::new(fault_sink));
    Ok(shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of an environment of one's own.
    fn made(variables: &[(&str, &str)]) -> Result<Shared, String> {
        let read = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        made_from(&read).map_err(|error| error.to_string())
    }

    #[test]
    fn the_variable_is_a_path_or_the_text_itself() {
        let shared = made(&[]).expect("the default machine");
        assert_eq!((shared.world.card_count(), shared.driver.is_none()), (2, true));
        let shared = made(&[(VARIABLE, "toml:cards = 1")]).expect("a machine of one card");
        assert_eq!(shared.world.card_count(), 1);
        let error = made(&[(VARIABLE, "/no/such/file.toml")]).map(drop).unwrap_err();
        assert!(error.contains("/no/such/file.toml"), "{error}");
        let error = made(&[(VARIABLE, "toml:cards = 7")]).map(drop).unwrap_err();
        assert!(error.contains('7'), "{error}");
        let bridged = "toml:[bridge]\nlisten = \"127.0.0.1:0\"\npeer = \"127.0.0.1:1\"\n";
        for (timeout, expected) in [("soon", "milliseconds"), ("0", "1 to 3600000")] {
            let error = made(&[(VARIABLE, bridged), (PEER_TIMEOUT_VARIABLE, timeout)]).map(drop).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_machine_of_a_job_is_placed_by_the_launcher() {
        let job = (VARIABLE, "toml:cards = 1\n[job]");
        let shared = made(&[job, ("PMI_RANK", "0"), ("PMI_SIZE", "1")]).expect("a job of one process");
        assert_eq!(shared.world.card_count(), 1);
        let shared = made(&[(VARIABLE, "toml:"), ("PMI_RANK", "1"), ("PMI_SIZE", "2")]).expect("cards of its own");
        assert_eq!(shared.world.card_count(), 2);
        for (variables, expected) in [
            (&[job][..], "FLEXCAST_RANK and FLEXCAST_SIZE"),
            (&[("PMI_RANK", "1"), ("PMI_SIZE", "2")], "rank 1 of 2, and nothing says how"),
            (&[job, ("PMI_RANK", "4"), ("PMI_SIZE", "4")], "ranks are 0 to 3"),
            (&[job, ("FLEXCAST_RANK", "first"), ("FLEXCAST_SIZE", "4")], "FLEXCAST_RANK is \"first\""),
            (&[(VARIABLE, "toml:first_card = 3\n[job]"), ("PMI_RANK", "0"), ("PMI_SIZE", "4")], "leave them out"),
        ] {
            let error = made(variables).map(drop).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
