//! Errors of machine descriptions.

use std::io;
use std::path::PathBuf;

use emu_fabric::{FaultError, TopologyError};
use emu_machine::MachineError;

use crate::machine::{MOST_COMMAND_PS, MOST_HEAP_MIB, MOST_STUCK_MS};
use crate::share::MOST_CLIENTS;
use crate::timing::TimingError;

/// A description of a machine that cannot be. Values are named by what they are, which is both their key in a machine
/// file and their option.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The machine file cannot be read.
    #[error("the machine file {} cannot be read: {source}", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The machine file is not what it should be.
    #[error("the machine file{}: {source}", path.as_ref().map_or(String::new(), |path| format!(" {}", path.display())))]
    Parse {
        /// Its path, if it has one.
        path: Option<PathBuf>,
        /// Where and what.
        source: toml::de::Error,
    },
    /// A file that the description names cannot be read.
    #[error("{what} `{}` cannot be read: {source}", path.display())]
    File {
        /// What it is.
        what: &'static str,
        /// Where it should be.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no such topology.
    #[error("topology {given}: {source}")]
    Topology {
        /// What was given.
        given: String,
        /// Why not.
        source: TopologyError,
    },
    /// The fault script is none, or does not fit the topology.
    #[error("fault script {}: {source}", path.display())]
    Faults {
        /// The script.
        path: PathBuf,
        /// Why not.
        source: FaultError,
    },
    /// A generator that cannot be.
    #[error("generator or reflector: {0}")]
    Generator(String),
    /// A tap that cannot be.
    #[error("tap: {0}")]
    Tap(String),
    /// A heap that cannot be.
    #[error("heap_mib is {mib}: 1 to {MOST_HEAP_MIB} are possible")]
    Heap {
        /// What was given.
        mib: u64,
    },
    /// More than one thing at the free end.
    #[error("generator, reflector, replay, tap and bridge: the cable has one free end, so give one of them")]
    Ends,
    /// More is lost than there is.
    #[error("loss of {percent} %: must be 0 to 100")]
    Loss {
        /// What was given, in percent.
        percent: f64,
    },
    /// Commands that take time on a machine that shares its time with others.
    #[error(
        "command_ps = {command_ps} with [bridge] or [share]: their machines follow the wall clock, so leave it out or \
         join and share none"
    )]
    CommandTime {
        /// What was given, in picoseconds.
        command_ps: u64,
    },
    /// Commands that take longer than any card's.
    #[error(
        "command_ps = {command_ps}: a control operation takes at most {MOST_COMMAND_PS} (1 s): give fewer picoseconds"
    )]
    CommandTooLong {
        /// What was given, in picoseconds.
        command_ps: u64,
    },
    /// A time after which nothing is stuck, or the watchdog has ended it.
    #[error(
        "stuck_ms = {stuck_ms}: a program is stuck after 1 to {MOST_STUCK_MS} ms of card time; 1000 is the default"
    )]
    Stuck {
        /// What was given, in milliseconds.
        stuck_ms: u64,
    },
    /// Two answers to one question.
    #[error(
        "[link] and a topology exclude one another: [link] is the cable of two cards, and the links of a topology are \
         in its description"
    )]
    LinkAndTopology,
    /// Hosts are named for other than all cards.
    #[error("{hosts} hosts are named for {cards} cards: name one for each, such as 0,5 for two")]
    HostCount {
        /// Hosts named.
        hosts: usize,
        /// Cards there are.
        cards: usize,
    },
    /// More cards than hosts.
    #[error(
        "{cards} cards, but {topology:?} has {hosts} hosts for them: choose a larger topology, or fewer cards or ranks"
    )]
    Hosts {
        /// Name of the topology.
        topology: String,
        /// Its hosts.
        hosts: usize,
        /// Cards asked for.
        cards: usize,
    },
    /// Fewer cards than a run needs.
    #[error("the machine has {cards} cards, but {needed} are needed: give it more, or leave the key cards out")]
    Cards {
        /// Cards that the description says.
        cards: usize,
        /// Cards that the run needs.
        needed: usize,
    },
    /// No such host.
    #[error(
        "the topology {topology:?} has no host {host:?} for a card: give a number from 0 to {last}, or a name such as \
         {example:?}"
    )]
    Host {
        /// What was given.
        host: String,
        /// Name of the topology.
        topology: String,
        /// The last host.
        last: usize,
        /// Name of the last host.
        example: String,
    },
    /// A cable has no other hosts.
    #[error("hosts {0} are named for the cards, but a cable has no others: name a topology, too")]
    HostsWithoutTopology(String),
    /// A joined machine where one is to run by itself.
    #[error(
        "[bridge] joins the machines of several programs, and [share] lets them use one (flexcast emu exec); a run \
         that has all its cards in one machine and process has neither: leave it out"
    )]
    Bridged,
    /// A process without cards where a machine is to be made.
    #[error(
        "[attach] uses the cards of another process, so nothing else is said of cards here, and no machine is made: \
         leave out either [attach] or all other keys"
    )]
    Attached,
    /// A machine of a process without a rank.
    #[error(
        "[job] is of a process that a launcher has started, or flexcast emu exec with --rank and --of: FLEXCAST_RANK \
         and FLEXCAST_SIZE, or the variables of torchrun, mpirun, mpiexec or srun, have to give its rank; a run that \
         has all its cards in one process leaves [job] out"
    )]
    NotPlaced,
    /// No such process.
    #[error("rank {rank} of {of} processes: ranks are 0 to {}", of.saturating_sub(1))]
    Rank {
        /// What was given.
        rank: usize,
        /// Number of processes.
        of: usize,
    },
    /// Two answers to one question.
    #[error(
        "first_card, [bridge], [share] and [attach] say where one process is, and [job] says it of all: leave them \
         out, or [job]"
    )]
    JobAndPlace,
    /// Ports end.
    #[error("the last of {of} processes would have port {last}: choose a lower first port than {first}")]
    Port {
        /// Of the first process.
        first: u16,
        /// Of the last one.
        last: usize,
        /// Number of processes.
        of: usize,
    },
    /// Cards are numbered.
    #[error("{cards} cards for each of {of} processes: they may have 65535 cards together, and at least one each")]
    JobCards {
        /// Of each process.
        cards: usize,
        /// Number of processes.
        of: usize,
    },
    /// As many processes are never there.
    #[error("share.clients is {clients}, but must be 1 to {MOST_CLIENTS}")]
    Clients {
        /// What was given.
        clients: usize,
    },
    /// Observers see one process.
    #[error(
        "detect_races and weak memory observe the accesses of one process: leave them out with [share], or let one \
         process have all cards"
    )]
    SharedWatched,
    /// No such timing model.
    #[error(transparent)]
    Timing(#[from] TimingError),
    /// What the machine itself refuses.
    #[error(transparent)]
    Machine(#[from] MachineError),
}
