use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::toolchain::Toolchain;
use crate::{build, process, status, workspace};

/// Run the receive datapath on synthetic queues under this emulator's hart and under QEMU, and compare what they print.
#[derive(clap::Args)]
pub(crate) struct Virt {
    /// Only build the program; print where it is.
    #[arg(long)]
    build: bool,
}

/// How QEMU counts as real harts do: one instruction, one tick.
const QEMU: &str = "qemu-system-riscv64";
const QEMU_ARGS: [&str; 8] = ["-machine", "virt", "-bios", "none", "-nographic", "-icount", "shift=0", "-kernel"];

impl Virt {
    pub(crate) fn run(&self) -> Result<()> {
        let elf = build()?;
        if self.build {
            status::print(format_args!("{}", elf.display()))?;
            return Ok(());
        }
        let own = process::capture(
            Command::new(workspace::quick_cli()?).args(["emu", "run", "--machine", "virt"]).arg(&elf),
        )?;
        status::print(own.trim_end_matches('\n'))?;
        if process::find(QEMU).is_none() {
            status::warn(format_args!("{QEMU} is not installed (Debian: qemu-system-misc): nothing to compare with"));
            return Ok(());
        }
        let qemu = process::capture(Command::new(QEMU).args(QEMU_ARGS).arg(&elf))?;
        match own.lines().zip(qemu.lines()).find(|(own, qemu)| own != qemu) {
            Some((own, qemu)) => bail!("the executors differ:\n    emu-hart {own}\n    QEMU     {qemu}"),
            None if own.lines().count() != qemu.lines().count() => {
                bail!("one executor printed more lines than the other")
            }
            None => status::say("Compared", format_args!("{} lines with {QEMU}: equal", own.lines().count())),
        }
        Ok(())
    }
}

/// Builds device/virt and returns its ELF.
fn build() -> Result<PathBuf> {
    let toolchain = Toolchain::load("emu")?;
    build::ensure_target(&toolchain.rust.target)?;
    let mut cargo = workspace::device_cargo();
    cargo.args(["build", "--release", "--package", "virt", "--target", &toolchain.rust.target]);
    // Its own linker scripts come from its build script.
    process::run(cargo.args(["--config", &toolchain.cargo_config(&toolchain.rustflags()?)]))?;
    let built = workspace::device_target().join(&toolchain.rust.target).join("release/virt");
    let elf = workspace::image_dir("virt").join("virt.elf");
    std::fs::create_dir_all(workspace::image_dir("virt"))?;
    build::copy(&built, &elf).with_context(|| format!("writing {}", elf.display()))?;
    Ok(elf)
}
