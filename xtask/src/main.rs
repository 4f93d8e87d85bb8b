//! `cargo xtask COMMAND`: everything that is done with this repository, one file per command.

// A result that cannot be printed is an error of the command: `status::print`.
#![deny(clippy::print_stdout)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod bindgen;
mod build;
mod ci;
mod compare;
mod coverage;
mod demo;
mod deny;
mod deploy;
mod doctor;
mod emu_libs;
mod evaluate;
mod example;
mod fuzz;
mod header;
mod hot_loops;
mod install;
mod link_map;
mod manifest;
mod miri;
mod mpi_check;
mod mutants;
mod new;
#[path = "../../emu/observe/src/new_file.rs"]
#[allow(dead_code, unreachable_pub, reason = "the emulator's, which this program does not depend on")]
mod new_file;
mod page;
mod process;
mod python_check;
mod remote;
mod reproducible;
mod run;
mod sim;
mod sizes;
mod status;
mod test;
mod test_programs;
mod tidy;
mod toolchain;
mod ucc;
mod vendor;
mod vendor_programs;
mod verify;
mod virt;
mod workspace;

/// Builds, verifies, runs, measures and checks Flexcast.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say what of the needed tools is installed, what is missing and how to get it.
    Doctor(doctor::Doctor),
    /// Build device images into `target/device/TOOLCHAIN/IMAGE.elf`.
    Build(build::Build),
    /// Build images and check them: ISA, relocations, entries, ABI, stack, panics, private paths.
    Verify(verify::Verify),
    /// Print what each image takes of each memory region.
    Sizes(sizes::Sizes),
    /// Build everything, send data through two emulated cards over UC and UD with 1 to 16 threads, gather data of eight
    /// ranks by multicast and by a ring, and time an operation while the hosts compute.
    Demo(demo::Demo),
    /// Build one image, load it into an emulated card and print what it answers and logs.
    Run(run::Run),
    /// Build and verify one image, load it and call its bring-up RPC: on this computer, or with --to on another one.
    Deploy(deploy::Deploy),
    /// Run collectives drawn from seeds: each must end well or in a typed error on every live rank.
    Sim(sim::Sim),
    /// Measure instructions per completion and the speed of the emulator.
    Bench(bench::Bench),
    /// Calibrate, run the experiments of lab/experiments/, and write the page and docs/evaluation.md.
    Evaluate(evaluate::Evaluate),
    /// Measure the collectives of other libraries and of Flexcast among network namespaces: options as
    /// `flexcast compare` has them.
    Compare(compare::Compare),
    /// Format check, images, lints and all tests.
    Test(test::Test),
    /// Take fences out of the firmware one at a time: for each a test must fail.
    Mutants(mutants::Mutants),
    /// Feed broken input to the emulator and the image reader.
    Fuzz(fuzz::Fuzz),
    /// Run tests under Miri, which sees undefined behaviour that a processor does not show.
    Miri(miri::Miri),
    /// Hold the crates of others to deny.toml with cargo-deny: licences, sources, doubled crates, advisories.
    Deny(deny::Deny),
    /// Make a new image from device/template.
    New(new::New),
    /// Regenerate the committed bindings of the -sys crates from their headers.
    Bindgen(bindgen::Bindgen),
    /// Build the emulator as libflexio.so and its neighbours, for programs in C.
    BuildEmuLibs(emu_libs::BuildEmuLibs),
    /// Write host/capi/include/flexcast.h, the C interface of the collective library.
    Header(header::Header),
    /// Install the C interface of the collective library below a folder.
    Install(install::Install),
    /// Build the Python package, install it into an environment of its own and run its tests; needs Python, and PyPI
    /// for numpy.
    PythonCheck(python_check::PythonCheck),
    /// Build the MPI adapter and run its test under the MPIs that are installed.
    MpiCheck(mpi_check::MpiCheck),
    /// Build the transport layer of UCC against the tree of a UCC release, and run UCC's own test over it.
    Ucc(ucc::Ucc),
    /// Build an example and start it as so many processes, each with an emulated card.
    Example(example::Example),
    /// Run the receive datapath on synthetic queues under this emulator's hart and under QEMU.
    Virt(virt::Virt),
    /// Write target/docs/hot-loops.md: the hot loops of the firmware, instruction by instruction.
    HotLoops(hot_loops::HotLoops),
    /// Write target/docs/coverage.md: what of the card is emulated, refused with an error, or not applicable.
    Coverage(coverage::Coverage),
    /// Compile device programs of others against the headers of the device library, and print which build.
    VendorPrograms(vendor_programs::VendorPrograms),
    /// Check dependency arrows, crates of others, file lengths, the list of unsafe files and what the documents
    /// promise.
    Tidy(tidy::Tidy),
    /// All that CI runs: tidy, test, documentation.
    Ci(ci::Ci),
}

fn main() -> ExitCode {
    if let Some(code) = reproducible::run() {
        return code;
    }
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(refused) => return report(&refused),
    };
    let result = match command {
        Command::Doctor(command) => command.run(),
        Command::Build(command) => command.run(),
        Command::Verify(command) => command.run(),
        Command::Sizes(command) => command.run(),
        Command::Demo(command) => command.run(),
        Command::Run(command) => command.run(),
        Command::Deploy(command) => command.run(),
        Command::Sim(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::Evaluate(command) => command.run(),
        Command::Compare(command) => command.run(),
        Command::Test(command) => command.run(),
        Command::Mutants(command) => command.run(),
        Command::Fuzz(command) => command.run(),
        Command::Miri(command) => command.run(),
        Command::Deny(command) => command.run(),
        Command::New(command) => command.run(),
        Command::Bindgen(command) => command.run(),
        Command::BuildEmuLibs(command) => command.run(),
        Command::Header(command) => command.run(),
        Command::Install(command) => command.run(),
        Command::PythonCheck(command) => command.run(),
        Command::MpiCheck(command) => command.run(),
        Command::Ucc(command) => command.run(),
        Command::Example(command) => command.run(),
        Command::Virt(command) => command.run(),
        Command::HotLoops(command) => command.run(),
        Command::Coverage(command) => command.run(),
        Command::VendorPrograms(command) => command.run(),
        Command::Tidy(command) => command.run(),
        Command::Ci(command) => command.run(),
    };
    match result.and_then(|()| status::flush()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of what is printed has seen enough, such as `head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::from(BROKEN_PIPE),
        Err(error) => {
            status::error(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// What shells expect of a program that SIGPIPE has ended.
const BROKEN_PIPE: u8 = 128 + 13;

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let of = |cause: &(dyn std::error::Error + 'static)| Some(cause.downcast_ref::<std::io::Error>()?.kind());
    error.chain().any(|cause| of(cause) == Some(std::io::ErrorKind::BrokenPipe))
}

/// Prints help, or what is wrong with the command line.
fn report(refused: &clap::Error) -> ExitCode {
    match refused.print().map_err(anyhow::Error::from).and_then(|()| status::flush()) {
        Err(error) if !refused.use_stderr() => {
            status::error(&format!("stdout cannot be written: {error:#}"));
            ExitCode::FAILURE
        }
        _ => u8::try_from(refused.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
