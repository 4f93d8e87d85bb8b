//! The command line. Doc comments are the help text.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::calibrate_args::CalibrateArgs;
use crate::compare_args::CompareArgs;
use crate::flow_args::FlowArgs;
use crate::hosts_args::HostsArgs;
use crate::images_args::ImagesArgs;
use crate::inspect_args::{PsArgs, StatsArgs, TraceArgs};
use crate::observe_args::ObserveArgs;
use crate::pair_args::PairArgs;
use crate::perf_args::PerfArgs;
use crate::plan_args::PlanArgs;
use crate::provider_name::ProviderName;
use crate::reference_args::ReferenceArgs;
use crate::report_args::ReportArgs;
use crate::service_args::ServiceCommand;
use crate::sim_args::{SimArgs, SoakArgs};
use crate::tune_args::{InfoArgs, TuneArgs};
use emu_config::BridgeTable;
use emu_observe::gdb::DEFAULT_ADDRESS;
use flexcast_lab::compare::bound::{self, BoundArgs};
use flexcast_lab::machine_args::MachineArgs;
use flexcast_lab::options::{whole, whole_bytes};
use flexcast_lab::tput::spec::TputSpec;

/// Firmware for the DPA of a BlueField-3, run, measured and deployed: on the emulated card or on a real one.
#[derive(Debug, Parser)]
#[command(name = "flexcast", version, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the cards that there are: emulated ones, or with --provider system those of this computer.
    Devices(DevicesArgs),
    /// Broadcast a buffer from card 1 to the DPA of card 0, as a program of two ranks does, and report time, throughput
    /// and instructions per completion.
    Tput(Box<TputArgs>),
    /// Run the published receive kernels on the DPA of card 0, to measure for comparison.
    Reference(Box<ReferenceArgs>),
    /// Run a collective among many ranks, each on an emulated card with the real firmware, and check every buffer.
    Sim(Box<SimArgs>),
    /// Simulate collectives by service processes and by hosts at flow level: rates, latencies and queues of a published
    /// machine, no packets.
    Flow(Box<FlowArgs>),
    /// Measure collectives of real processes, one per rank, over this computer's network: time, bandwidth, every byte
    /// checked.
    Perf(PerfArgs),
    /// Measure which algorithms are fastest on this network, among the ranks of a job, and write the table that
    /// FLEXCAST_TUNING names.
    Tune(TuneArgs),
    /// Build the DPA's side of a FlexIO program for the emulated card, with the command line of the vendor's compiler
    /// driver; or write a folder that stands for the vendor's SDK.
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Dpacc(DpaccArgs),
    /// Say which interface carries collectives here, what the system gives it, and which algorithms are chosen.
    Info(InfoArgs),
    /// Run collectives drawn from seeds: any shape and size, lossy links, dead ranks, stalled threads. Each must end
    /// well or in a typed error on every live rank.
    Soak(SoakArgs),
    /// Run the whole sweep on two emulated cards (UC and UD, 1 to 16 threads, with and without loss), and an Allgather
    /// among eight by multicast and by the ring.
    Demo(DemoArgs),
    /// Load an image, call its bring-up RPC, print its entries.
    Deploy(ImageArgs),
    /// Deploy an image, call one of its RPCs if --call says so, and print what it logs; `pingpong` is also sent a ping.
    Run(RunArgs),
    /// Measure instructions per completion, next to those of the published kernels, and the speed of the emulator: one
    /// card, and 8 to 1024.
    Bench(BenchArgs),
    /// Fit the timing model's one free number, hold the model against every published point that it was not fitted to,
    /// and say which verdicts hang on assumptions.
    Calibrate(CalibrateArgs),
    /// Measure the collectives of Open MPI, MPICH, gloo and Flexcast among the same hosts: network namespaces at one
    /// bridge of this computer.
    Compare(CompareArgs),
    /// One rank of the bound of `flexcast compare`, which starts it.
    #[command(name = bound::COMMAND, hide = true)]
    MulticastBound(BoundArgs),
    /// Say what a link asks of the DPA: threads, staging, sequence numbers, cache, and the goodput to expect.
    Plan(PlanArgs),
    /// Settle what only a card can, as far as a program can do so, and print a report to send back.
    Probe(ProbeArgs),
    /// Run the experiments, compare them with what was published, and write one page with plots, tables and verdicts.
    Report(ReportArgs),
    /// Record a command's machine as a timeline for Perfetto: `flexcast trace tput ...`.
    Trace(TraceArgs),
    /// List the DPA processes of a running or finished emulated machine, as dpa-ps does.
    Ps(PsArgs),
    /// Show what each DPA thread has executed, as dpa-statistics does.
    Stats(StatsArgs),
    /// Ask the daemon of a card's service processes, or check its configuration.
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Use the emulator's parts directly.
    #[command(subcommand)]
    Emu(EmuCommand),
}

#[derive(Debug, Args)]
pub(crate) struct DevicesArgs {
    /// Who implements the vendor's libraries.
    #[arg(long, value_enum, default_value = "emu")]
    pub(crate) provider: ProviderName,
    /// Print one JSON array instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ProbeArgs {
    /// Who implements the vendor's libraries.
    #[arg(long, value_enum, default_value = "emu")]
    pub(crate) provider: ProviderName,
    /// Name of the card [default: the first].
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Folder of the images pingpong.elf and allgather.elf, for a card those that were linked for it [default: as other
    /// commands find them].
    #[arg(long, value_name = "DIR")]
    pub(crate) images: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TputArgs {
    #[command(flatten)]
    pub(crate) spec: TputSpec,
    /// Send this file instead of made-up bytes.
    #[arg(long, value_name = "FILE", conflicts_with = "bytes")]
    pub(crate) file: Option<PathBuf>,
    /// Device image: a file, or the name of an image, which is searched for in target/device/emu of this folder, where
    /// `cargo xtask build` leaves images, and then among those that this program holds.
    #[arg(long, value_name = "ELF|NAME", default_value = "allgather")]
    pub(crate) image: PathBuf,
    #[command(flatten)]
    pub(crate) pair: PairArgs,
    #[command(flatten)]
    pub(crate) hosts: HostsArgs,
    #[command(flatten)]
    pub(crate) observe: ObserveArgs,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    pub(crate) images: ImagesArgs,
    /// File to send [default: 8 MiB, made up from seed 1].
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    /// Device image: a file, or the name of an image, which is searched for in target/device/emu of this folder, where
    /// `cargo xtask build` leaves images, and then among those that this program holds.
    #[arg(value_name = "ELF|NAME")]
    pub(crate) image: PathBuf,
    /// Who implements the vendor's libraries.
    #[arg(long, value_enum, default_value = "emu")]
    pub(crate) provider: ProviderName,
    /// Name of the card [default: the first].
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    #[command(flatten)]
    pub(crate) observe: ObserveArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) deploy: ImageArgs,
    /// Call this RPC of the image, with this number (decimal, or 0x and hexadecimal; 0 if there is none), and print
    /// what it returns, on an emulated card with the instructions that it took.
    #[arg(long, num_args = 1..=2, value_names = ["RPC", "ARGUMENT"])]
    pub(crate) call: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) images: ImagesArgs,
    /// Bytes to send per run.
    #[arg(long, value_parser = whole_bytes::<u64>(1, u64::MAX), value_name = "BYTES", default_value_t = 4 << 20)]
    pub(crate) bytes: u64,
    /// Leave out the datapath of one card.
    #[arg(long)]
    pub(crate) no_datapath: bool,
    /// Leave out the collectives.
    #[arg(long)]
    pub(crate) no_collectives: bool,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EmuCommand {
    /// Execute a bare RISC-V program on one hart; exits with the program's own code.
    #[command(after_help = EMU_RUN_CODES)]
    Run(EmuRunArgs),
    /// Start an unmodified verbs or FlexIO program on emulated cards; such programs can be joined, two by a bridge or
    /// any number to one network.
    Exec(EmuExecArgs),
}

/// `flexcast dpacc`: its options are the vendor's, one dash or two.
#[derive(Debug, Args)]
pub(crate) struct DpaccArgs {
    /// Sources and options; `flexcast dpacc --help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<std::ffi::OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct EmuExecArgs {
    /// Machine file (TOML) [default: two cards back to back, or one card with --bridge]. With `detect_races = true` the
    /// exit code of a program that ends well on a machine with races is 66.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["card", "bridge", "rank"])]
    pub(crate) machine: Option<PathBuf>,
    /// Number of the first card, from 0, which its addresses follow from; joined programs need different ones.
    #[arg(long, value_parser = whole::<usize>(0, 65_534), value_name = "N")]
    pub(crate) card: Option<usize>,
    /// UDP addresses HOST:PORT that join the card to another program's: this end's and the other's.
    #[arg(long, value_name = "LISTEN,PEER", value_parser = bridge)]
    pub(crate) bridge: Option<emu_config::BridgeTable>,
    /// Number of this program, from 0, among those that form one network on this computer.
    #[arg(long, value_parser = whole::<usize>(0, 65_534), value_name = "I", requires = "of", conflicts_with_all = ["card", "bridge"])]
    pub(crate) rank: Option<usize>,
    /// How many programs form the network.
    #[arg(long, value_parser = whole::<usize>(1, 65_535), value_name = "N", requires = "rank")]
    pub(crate) of: Option<usize>,
    /// UDP port of program 0 on the loopback interface, which those of the others follow [default: 7471].
    #[arg(long, value_parser = whole::<u16>(1, u16::MAX), value_name = "PORT", requires = "rank")]
    pub(crate) port_base: Option<u16>,
    /// Cards of each of the programs, at a switch of their own if more than one [default: 1].
    #[arg(long, value_parser = whole::<usize>(1, 65_535), value_name = "N", requires = "rank")]
    pub(crate) cards: Option<usize>,
    /// Let other programs of this user use the program's cards, by a socket of the file system that is made here. Each
    /// card has a function for its Arm cores, too, which is the program's alone.
    #[arg(long, value_name = "SOCKET")]
    pub(crate) share: Option<PathBuf>,
    /// Have no cards, and use those of the program that shares them at this socket.
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["machine", "card", "bridge", "rank", "pcap", "share"])]
    pub(crate) attach: Option<PathBuf>,
    /// Write what crosses the card's link to this pcapng file.
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,
    /// Stop the program's firmware when its first event handler begins, and serve gdb-multiarch on this address (port
    /// 0: any) [default: 127.0.0.1:1981].
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, require_equals = true, default_missing_value = DEFAULT_ADDRESS)]
    pub(crate) gdb: Option<String>,
    /// Longest wait for gdb to connect, in seconds.
    #[arg(long, value_parser = whole::<u64>(0, u64::MAX), value_name = "S", default_value_t = 60, requires = "gdb")]
    pub(crate) gdb_wait: u64,
    /// Names of the cards in their order, separated by commas, for a program that names a device of its own, such as
    /// mlx5_bond_0 [default: mlx5_0, ...].
    #[arg(long, value_name = "NAMES")]
    pub(crate) device_names: Option<String>,
    /// Give the program a /dev with the files of its cards in /dev/infiniband, which programs such as UCX want to find:
    /// in a mount namespace, and a user namespace where needed.
    #[arg(long)]
    pub(crate) device_files: bool,
    /// Folder of the emulator's libraries [default: target/emu-libs, or where this program was installed].
    #[arg(long, value_name = "DIR")]
    pub(crate) libs: Option<PathBuf>,
    /// Print the cards' names and their IPv4 addresses, one card a line, and start nothing: programs that connect by
    /// `librdmacm` (rping, `ib_send_bw -R`) are given the other one's.
    #[arg(long, conflicts_with_all = ["attach", "command"])]
    pub(crate) addresses: bool,
    /// The program and its arguments.
    #[arg(last = true, required_unless_present = "addresses", value_name = "PROGRAM")]
    pub(crate) command: Vec<OsString>,
}

/// What `flexcast emu run` ends with.
const EMU_RUN_CODES: &str = "Exit codes:
  0-255  the program's own; of a larger one the low byte, or 255 where that would be 0
  1      the program or an option's value is refused and nothing was run, or what the run writes cannot be written
  2      the command line is refused
  124    the program has not ended within --limit instructions
  132    the program died of an exception for which it has no handler, or asked the host for a service";

#[derive(Debug, Args)]
pub(crate) struct EmuRunArgs {
    /// Program: a static RV64 ELF that ends by `tohost`, by `ecall` with a7 = 93, or by the machine's power switch.
    #[arg(value_name = "PROG.elf")]
    pub(crate) program: PathBuf,
    /// Arguments of the program.
    #[arg(trailing_var_arg = true)]
    pub(crate) args: Vec<String>,
    /// Instructions after which the program is stopped (exit code 124).
    #[arg(long, value_parser = whole::<u64>(0, u64::MAX), default_value_t = 1_000_000_000, value_name = "N")]
    pub(crate) limit: u64,
    /// What is around the hart.
    #[arg(long, value_enum, default_value = "flat")]
    pub(crate) machine: MachineName,
    /// What the hart executes, such as rv64imac_zicsr_zba; other instructions are illegal [default: what
    /// toolchains/emu.toml names].
    #[arg(long, value_name = "STRING")]
    pub(crate) isa: Option<String>,
    /// Take the hart's instruction set from this toolchain file (key `isa`).
    #[arg(long, value_name = "FILE", conflicts_with = "isa")]
    pub(crate) toolchain: Option<PathBuf>,
    /// When the program has ended, write the memory between two symbols to this file: 32-bit words in hexadecimal, one
    /// a line, as riscv-arch-test compares them.
    #[arg(long, value_name = "FILE")]
    pub(crate) signature: Option<PathBuf>,
    /// Symbol at the first byte of the signature.
    #[arg(long, value_name = "SYMBOL", requires = "signature", default_value = "begin_signature")]
    pub(crate) signature_from: String,
    /// Symbol behind the last byte of the signature.
    #[arg(long, value_name = "SYMBOL", requires = "signature", default_value = "end_signature")]
    pub(crate) signature_to: String,
    /// Print every instruction's address on stderr.
    #[arg(long)]
    pub(crate) trace: bool,
}

/// What is around the hart of a bare program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MachineName {
    /// The program's segments, a heap and a stack; system calls for output and exit.
    Flat,
    /// QEMU's `virt` machine: 128 MiB of RAM from 0x80000000, serial port and power switch.
    Virt,
}

/// `LISTEN,PEER`
pub(crate) fn bridge(text: &str) -> Result<BridgeTable, String> {
    match text.split_once(',') {
        Some((listen, peer)) if listen.contains(':') && peer.contains(':') => {
            Ok(BridgeTable { listen: listen.to_owned(), peer: Some(peer.to_owned()), ..BridgeTable::default() })
        }
        _ => Err("must be two addresses HOST:PORT with a comma between: this end's and the other's".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use emu_config::Timing;
    use flexcast_lab::evaluate::point::Point;
    use flexcast_lab::evaluate::spec::read_folder;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The command that a report prints with each of its runs does that run.
    #[test]
    fn commands_of_experiments_are_parsed_as_their_runs() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab/experiments");
        let model = Timing { model: Some("m2".to_owned()), set: vec!["loads.l3_cycles=115".to_owned()] };
        let mut runs = 0;
        for experiment in read_folder(&folder, false).unwrap() {
            for point in Point::all(&experiment) {
                let command = point.command(&model);
                let parsed = || {
                    let parsed = Cli::try_parse_from(command.split(' '));
                    parsed.unwrap_or_else(|error| panic!("{command}: {error}")).command
                };
                match point {
                    Point::Sim(point) => {
                        let Command::Sim(args) = parsed() else { panic!("{command}") };
                        let mut spec = point.spec;
                        spec.machine.model.clone_from(&model.model);
                        spec.machine.set.clone_from(&model.set);
                        assert_eq!((args.spec, args.json), (spec, true), "{command}");
                    }
                    Point::DpaSums(point) => {
                        let Command::Sim(args) = parsed() else { panic!("{command}") };
                        let mut spec = point.spec;
                        spec.machine.model.clone_from(&model.model);
                        spec.machine.set.clone_from(&model.set);
                        assert_eq!((args.spec, args.json), (spec, true), "{command}");
                    }
                    Point::Tput(point) => {
                        let Command::Tput(args) = parsed() else { panic!("{command}") };
                        assert_eq!((args.spec, args.pair.json), (point.spec, true), "{command}");
                        assert_eq!(args.machine.network.model, model.model, "{command}");
                    }
                    Point::Reference(point) => {
                        let Command::Reference(args) = parsed() else { panic!("{command}") };
                        assert_eq!((args.spec, args.pair.json), (point.spec, true), "{command}");
                        assert_eq!(args.machine.network.set, model.set, "{command}");
                    }
                    Point::Flow(point) => {
                        let Command::Flow(args) = parsed() else { panic!("{command}") };
                        assert_eq!(args.asked().unwrap(), point.parameters().unwrap(), "{command}");
                        assert!(args.json);
                    }
                    Point::Concurrent(_) | Point::Incast(_) | Point::Application(_) | Point::Sparse(_) => continue,
                }
                runs += 1;
            }
        }
        assert!(runs > 300, "{runs} runs: are the experiments still read?");
    }
}
