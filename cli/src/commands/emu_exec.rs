//! `flexcast emu exec`: an unmodified program on the emulator's libraries.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use emu_bridge::{INLINE, NAMES_VARIABLE, RACES_VARIABLE, VARIABLE};
use emu_config::{AttachTable, JobTable, Machine, ShareTable};
use emu_observe::new_file;
use flexcast_cli::{note, out};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::device_files;
use crate::args::EmuExecArgs;

/// What `cargo xtask build-emu-libs` makes; the others are links to it.
const LIBRARY: &str = "libflexio.so";
const LOADER_PATH: &str = "LD_LIBRARY_PATH";
/// Exit code of a program that ends well on a machine that has found races: that of ThreadSanitizer.
const RACES_CODE: u8 = 66;
/// Time between two checks whether the program has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Becomes the program; or, if there is something to do after it, runs it, and ends as it does unless its machine has
/// found races.
pub(crate) fn run(args: &EmuExecArgs) -> anyhow::Result<ExitCode> {
    if args.addresses {
        return print_addresses(&machine(args)?);
    }
    let libraries = libraries(args.libs.as_deref(), &places())?;
    // Passed as text: a bad file ends here, and not inside the program's first call of verbs.
    let machine = machine(args)?;
    attempt(&machine, args.attach.is_some())?;
    let names = args.device_names.as_deref().map(|names| check_names(names, &machine).map(|()| names)).transpose()?;
    let text = toml::to_string(&machine).context("writing the machine as text")?;
    let mut paths = vec![libraries];
    paths.extend(env::var_os(LOADER_PATH).iter().flat_map(env::split_paths));
    let Some((program, arguments)) = args.command.split_first() else { bail!("no program given") };
    let mut command = Command::new(program);
    command.args(arguments).env(LOADER_PATH, env::join_paths(paths)?);
    command.env(VARIABLE, OsString::from(format!("{INLINE}{text}")));
    if let Some(names) = names {
        command.env(NAMES_VARIABLE, names);
    }
    if let Some(address) = &args.gdb {
        command.env("FLEXCAST_GDB", address).env("FLEXCAST_GDB_WAIT", args.gdb_wait.to_string());
    }
    if args.device_files {
        // Those of another process, or of a job, are not known here.
        device_files::offer(machine.config().map_or(1, |config| config.cards))?;
    }
    if machine.detect_races {
        attempt_races()?;
        return watch(command).map_err(|error| not_started(program, error));
    }
    if let Some(share) = &machine.share {
        let code = supervise(&mut command).map_err(|error| not_started(program, error));
        // Of a program that was killed it is still there.
        emu_bridge::take_away(&share.socket);
        return code.map(ExitCode::from);
    }
    Err(not_started(program, command.exec().into()))
}

/// Prints where the cards of a machine are reached.
fn print_addresses(machine: &Machine) -> anyhow::Result<ExitCode> {
    let config = machine.config()?;
    for card in 0..config.cards {
        if let Some([a, b, c, d]) = emu_machine::address(config.first_card + card).gid.ipv4() {
            out!("mlx5_{card} {a}.{b}.{c}.{d}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Why a program has not been started, and what helps.
fn not_started(program: &OsStr, error: anyhow::Error) -> anyhow::Error {
    let name = program.display();
    let missing = error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::NotFound);
    if missing && !program.as_encoded_bytes().contains(&b'/') {
        return anyhow!("program `{name}` is in no folder of PATH: install it, or give its path, such as ./{name}");
    }
    error.context(format!(
        "program `{name}` cannot be started: give the path of a program that exists and may be executed"
    ))
}

/// Whether the cards of a machine can have these names.
fn check_names(names: &str, machine: &Machine) -> anyhow::Result<()> {
    // Those of another process, or of a job, are not known here.
    let cards = machine.config().ok().map(|config| config.cards);
    let names = emu_bridge::device_names(names, cards).map_err(|error| anyhow!("--device-names: {error}"))?;
    let named = names.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    if let Some(cards) = cards.filter(|cards| named > *cards) {
        bail!("--device-names: {named} names, and the machine has {cards} cards: give so many at most");
    }
    Ok(())
}

/// Tries what the program would fail at in its first call of verbs, which has few words for it: the machine as it is
/// described, the address that the bridge receives at, the socket of the process whose cards are used (`option`: it was
/// named by `--attach`), the capture's file and that of a generator's report.
fn attempt(machine: &Machine, option: bool) -> anyhow::Result<()> {
    emu_bridge::check(machine)?;
    if let Some(bridge) = &machine.bridge {
        emu_bridge::attempt(bridge)?;
    }
    // That of a machine file the message names by itself.
    let who = if option { "--attach: " } else { "" };
    emu_bridge::await_socket(machine).map_err(|error| anyhow!("{who}{error}"))?;
    let report = machine.generator.as_ref().and_then(|generator| generator.report.as_ref());
    for (what, path) in [("capture", machine.capture.as_ref()), ("the generator's report", report)] {
        if let Some(path) = path {
            new_file::attempt(path).with_context(|| format!("{what} `{}` cannot be written", path.display()))?;
        }
    }
    Ok(())
}

/// The file for races that the user has named.
fn races_file() -> Option<PathBuf> {
    env::var_os(RACES_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Tries whether the file for races can be written: without it the program would end here as one without races.
fn attempt_races() -> anyhow::Result<()> {
    let Some(path) = races_file() else { return Ok(()) };
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(&path);
    opened.map(drop).with_context(|| format!("{RACES_VARIABLE}: `{}` cannot be written", path.display()))
}

/// Runs a program whose machine writes the races that it finds to a file.
fn watch(mut command: Command) -> anyhow::Result<ExitCode> {
    let folder = tempfile::tempdir().context("a folder for the races")?;
    // A file that the user has named may have races of earlier runs in it.
    let races = races_file().unwrap_or_else(|| folder.path().join("races"));
    let length = || std::fs::metadata(&races).map_or(0, |file| file.len());
    let before = length();
    let own = supervise(command.env(RACES_VARIABLE, &races))?;
    if length() <= before {
        return Ok(ExitCode::from(own));
    }
    note!("flexcast: the machine has found races for memory; see above");
    Ok(ExitCode::from(if own == 0 { RACES_CODE } else { own }))
}

/// Runs a program to its end, and gives its exit code as a shell shows it. Requests to end go on to the program; those
/// of a terminal reach it by themselves.
fn supervise(command: &mut Command) -> anyhow::Result<u8> {
    let mut child = command.spawn()?;
    let asked = [SIGTERM, SIGHUP, SIGINT, SIGQUIT].map(|signal| (signal, Arc::new(AtomicBool::new(false))));
    for (signal, flag) in &asked {
        signal_hook::flag::register(*signal, Arc::clone(flag))?;
    }
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        for (signal, flag) in &asked {
            let of_terminal = matches!(*signal, SIGINT | SIGQUIT);
            if flag.swap(false, Ordering::Relaxed) && !of_terminal {
                // It may have ended just now: then it is found to have.
                let _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::try_from(*signal)?);
            }
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, signal) => 128 + signal.unwrap_or_default() as u8,
    })
}

/// The machine that the options describe.
fn machine(args: &EmuExecArgs) -> anyhow::Result<Machine> {
    let mut machine = match (&args.machine, args.rank.zip(args.of)) {
        (Some(path), _) => Machine::read(path)?,
        (None, Some((rank, of))) => {
            let job = args
                .port_base
                .map_or_else(JobTable::default, |first_port| JobTable { first_port, ..JobTable::default() });
            Machine { cards: args.cards, job: Some(job), ..Machine::default() }.placed(rank, of)?
        }
        (None, None) => Machine { first_card: args.card, ..Machine::default() },
    };
    if let Some(bridge) = &args.bridge {
        machine.bridge = Some(bridge.clone());
    }
    if let Some(pcap) = &args.pcap {
        machine.capture = Some(pcap.clone());
    }
    if let Some(socket) = &args.share {
        let cards = machine.cards.or_else(|| machine.network.is_none().then_some(1));
        (machine.arm_functions, machine.cards) = (true, cards);
        machine.share = Some(ShareTable::at(socket.clone()));
    }
    if let Some(socket) = &args.attach {
        machine.attach = Some(AttachTable { socket: socket.clone(), timeout_ms: None });
    }
    // The program may change its folder before it first uses a card.
    machine.capture = machine.capture.map(std::path::absolute).transpose()?;
    if let Some(share) = &mut machine.share {
        share.socket = std::path::absolute(&share.socket)?;
    }
    if let Some(attach) = &mut machine.attach {
        attach.socket = std::path::absolute(&attach.socket)?;
    }
    Ok(machine)
}

/// Where the libraries may lie: below the current folder, next to the folder of this program, and where `cargo xtask
/// install --all` puts them.
pub(super) fn places() -> Vec<PathBuf> {
    env::current_exe().map_or_else(|_| places_of(Path::new("flexcast")), |program| places_of(&program))
}

/// The same of a program at a place. In a folder of cargo's the libraries of its own profile come first: those of a
/// profile other than `release` have a folder of their own.
fn places_of(program: &Path) -> Vec<PathBuf> {
    let own = program.parent();
    let above = own.and_then(Path::parent).filter(|above| !above.as_os_str().is_empty()).map(Path::to_owned);
    let profile = match own.and_then(Path::file_name).and_then(OsStr::to_str) {
        // Cargo's name for the folder of its profile `dev`.
        Some("debug") => Some("dev"),
        Some("release" | "bin") | None => None,
        other => other,
    };
    let installed = above.as_ref().map(|prefix| prefix.join("lib/flexcast"));
    let of_build = above.as_ref().and_then(|above| Some(above.join("emu-libs").join(profile?)));
    let folders = [Some(PathBuf::from("target")), above, installed];
    of_build.into_iter().chain(folders.into_iter().flatten().map(|folder| folder.join("emu-libs"))).collect()
}

/// The first of these folders that has the libraries.
pub(super) fn found(places: &[PathBuf]) -> Option<PathBuf> {
    let folder = places.iter().find(|folder| folder.join(LIBRARY).exists())?;
    // The program may start in, or change to, another folder.
    std::path::absolute(folder).ok()
}

pub(super) fn libraries(given: Option<&Path>, places: &[PathBuf]) -> anyhow::Result<PathBuf> {
    let places = given.map_or_else(|| places.to_vec(), |given| vec![given.to_owned()]);
    found(&places).with_context(|| {
        format!(
            "the emulator's libraries are not in {}: in Flexcast's repository `cargo xtask build-emu-libs` builds \
             them, and `cargo xtask install --all --prefix DIR` installs them with this program; or name their folder \
             with --libs",
            places.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(" or ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_searched_for_and_missed_with_advice() {
        let folder = tempfile::tempdir().unwrap();
        let (there, elsewhere) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::create_dir(&there).unwrap();
        std::fs::write(there.join(LIBRARY), "").unwrap();
        let places = [elsewhere.clone(), there.clone()];
        assert_eq!(libraries(None, &places).unwrap(), there);
        assert_eq!(libraries(Some(&there), &[]).unwrap(), there);
        let error = libraries(Some(&elsewhere), &places).unwrap_err().to_string();
        assert!(error.contains("build-emu-libs") && error.contains(&*elsewhere.to_string_lossy()), "{error}");
    }

    #[test]
    fn a_program_of_a_build_finds_the_libraries_of_its_profile() {
        let of = |program: &str| -> Vec<String> {
            places_of(Path::new(program)).iter().map(|place| place.display().to_string()).collect()
        };
        let all = |first: &[&str], above: &str| -> Vec<String> {
            let installed = [format!("{above}/emu-libs"), format!("{above}/lib/flexcast/emu-libs")];
            let first = first.iter().map(|place| (*place).to_owned());
            first.chain(["target/emu-libs".to_owned()]).chain(installed).collect()
        };
        assert_eq!(of("/x/target/debug/flexcast"), all(&["/x/target/emu-libs/dev"], "/x/target"));
        assert_eq!(of("/x/target/fast/flexcast"), all(&["/x/target/emu-libs/fast"], "/x/target"));
        assert_eq!(of("/x/target/release/flexcast"), all(&[], "/x/target"));
        assert_eq!(of("/usr/bin/flexcast"), all(&[], "/usr"));
        assert_eq!(of("flexcast"), ["target/emu-libs"]);
    }

    #[test]
    fn options_share_cards_and_use_those_of_others() {
        let args = EmuExecArgs {
            machine: None,
            card: None,
            bridge: None,
            rank: None,
            of: None,
            port_base: None,
            cards: None,
            share: Some("card.sock".into()),
            attach: None,
            pcap: None,
            gdb: None,
            gdb_wait: 60,
            device_names: None,
            device_files: false,
            addresses: false,
            libs: None,
            command: vec![],
        };
        let made = machine(&args).unwrap();
        assert!(made.arm_functions && made.share.as_ref().is_some_and(|share| share.socket.is_absolute()), "{made:?}");
        assert_eq!(made.config().unwrap().cards, 1);
        let made = machine(&EmuExecArgs { share: None, attach: Some("card.sock".into()), ..args }).unwrap();
        assert!(made.only_attaches() && made.attach.as_ref().is_some_and(|attach| attach.socket.is_absolute()));
        assert_eq!(Machine::parse(&toml::to_string(&made).unwrap()).unwrap(), made);
    }

    #[test]
    fn options_describe_a_machine() {
        let bridge = crate::args::bridge("127.0.0.1:1,localhost:2").unwrap();
        assert_eq!((&*bridge.listen, bridge.peer.as_deref()), ("127.0.0.1:1", Some("localhost:2")));
        assert!(crate::args::bridge("127.0.0.1:1").unwrap_err().contains("comma"));
        assert!(crate::args::bridge("7471,7472").unwrap_err().contains("HOST:PORT"));
        let pcap = Some(PathBuf::from("x.pcapng"));
        let args = EmuExecArgs {
            machine: None,
            card: Some(3),
            bridge: Some(bridge),
            rank: None,
            of: None,
            port_base: None,
            cards: None,
            share: None,
            attach: None,
            pcap,
            gdb: None,
            gdb_wait: 60,
            device_names: None,
            device_files: false,
            addresses: false,
            libs: None,
            command: vec![],
        };
        let made = machine(&args).unwrap();
        assert_eq!((made.first_card, made.capture.as_ref().is_some_and(|path| path.is_absolute())), (Some(3), true));
        let text = toml::to_string(&made).unwrap();
        assert_eq!(Machine::parse(&text).unwrap(), made);
        let ranked = EmuExecArgs { card: None, bridge: None, rank: Some(2), of: Some(4), cards: Some(3), ..args };
        let made = machine(&ranked).unwrap();
        assert_eq!((made.cards, made.first_card), (Some(3), Some(6)));
        assert_eq!(made.network.as_ref().and_then(|network| network.topology.as_deref()), Some("switch-4"));
        let bridge = made.bridge.as_ref().unwrap();
        assert_eq!((&*bridge.listen, bridge.peers.len()), ("127.0.0.1:7473", 3));
        assert_eq!((&*bridge.peers[2].address, bridge.peers[2].first_card), ("127.0.0.1:7474", 9));
        assert_eq!(Machine::parse(&toml::to_string(&made).unwrap()).unwrap(), made);
        let args = EmuExecArgs { machine: Some("/no/such/file".into()), ..ranked };
        assert!(machine(&args).unwrap_err().to_string().contains("/no/such/file"));
    }
}
