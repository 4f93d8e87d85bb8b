//! A deployment on another computer: a folder that holds command, library and image, put in place as a whole.
//!
//! Each deployment has a folder of its own. Its files are compared with a list of digests on the other computer. Then
//! one rename replaces the link `current`, so an incomplete copy never becomes the deployment.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use crate::process::quote;
use crate::remote::{COMMAND_BOUND, Remote};
use crate::{build, install, process, status, workspace};

/// What is deployed, and where.
pub(super) struct Deployment {
    pub(super) remote: Remote,
    pub(super) folder: String,
    pub(super) image: String,
    pub(super) provider: &'static str,
    pub(super) device: Option<String>,
    pub(super) sign: Option<String>,
    /// How long to wait for processes that use the folder.
    pub(super) drain_s: u64,
    pub(super) replace_running: bool,
    pub(super) start_bound_s: u64,
    /// Folder here for what comes back.
    pub(super) brought: PathBuf,
}

/// Longest that a command which signs may take, as `timeout` has it.
const SIGN_BOUND: &str = "600s";
/// A file of this name in the folder there says that only signed images may be deployed.
const SIGNATURES: &str = "require-signatures";
/// How an ELF file begins.
const ELF_MAGIC: &[u8] = b"\x7fELF";
/// File with the digest of each file of a deployment, as sha256sum reads it.
const DIGESTS: &str = "SHA256SUMS";

impl Deployment {
    /// Asks the other computer whether it can take a deployment, and refuses what cannot work.
    pub(super) fn prepare(&self) -> Result<Host> {
        let said = self.remote.script("looking around", &self.prepare_script())?;
        let host = Host::read(&said)?;
        let own = std::env::consts::ARCH;
        if host.machine != own {
            bail!(
                "{} is {}, and what is built here is for {own}: run `cargo xtask deploy` on a computer like it, \
                 such as the card's own Arm cores",
                self.remote.address,
                host.machine
            );
        }
        if host.signatures && self.sign.is_none() {
            bail!(
                "{} takes signed images alone (there is {SIGNATURES} in {}), and this one is not signed: name the \
                 command that signs it with --sign",
                self.remote.address,
                self.folder
            );
        }
        Ok(host)
    }

    fn prepare_script(&self) -> String {
        format!(
            "set -eu\numask 022\nmkdir -p {folder}\ncd {folder}\n: >.flexcast-try\nrm -f .flexcast-try\n\
             find . -maxdepth 1 -name '.incoming-*' -mmin +60 -exec rm -rf {{}} +\n\
             echo \"machine $(uname -m)\"\n\
             echo \"free_kib $(df -Pk . | awk 'NR == 2 {{ print $4 }}')\"\n\
             if [ -e {SIGNATURES} ] || [ -L {SIGNATURES} ]; then echo signatures; fi\n\
             if [ -e current ] && [ ! -L current ]; then\n\
             echo \"current in $(pwd -P) is no link of a deployment: move it, or name another folder (--folder)\" >&2\n\
             exit 3\n\
             fi\n",
            folder = quote(&self.folder)
        )
    }

    /// Copies, puts in place, starts and brings back.
    pub(super) fn run(&self, host: &Host, elf: &Path, profile: &str) -> Result<()> {
        let scratch = workspace::root().join("target/tmp/deploy");
        fs::create_dir_all(&scratch).with_context(|| format!("creating {}", scratch.display()))?;
        let stage = scratch.join(std::process::id().to_string());
        let deployed = self.stage(&stage, elf, profile).and_then(|name| self.deploy(host, &stage, &name));
        let removed = fs::remove_dir_all(&stage);
        deployed.and(removed.with_context(|| format!("removing {}", stage.display())))
    }

    /// Gathers the files of the deployment and returns its name.
    fn stage(&self, stage: &Path, elf: &Path, profile: &str) -> Result<String> {
        let image = stage.join("share/flexcast").join(format!("{}.elf", self.image));
        for folder in ["bin", "lib", "share/flexcast"] {
            fs::create_dir_all(stage.join(folder)).with_context(|| format!("creating {}", stage.display()))?;
        }
        build::copy(elf, &image)?;
        if let Some(sign) = &self.sign {
            self::sign(sign, &image)?;
        }
        // Permissions come with a copy of the file.
        fs::copy(workspace::cli_of(profile)?, stage.join("bin/flexcast")).context("copying the command")?;
        install::shared_library(&stage.join("lib"), &workspace::c_library(profile)?)?;
        let digests = digests(stage)?;
        let digest = Sha256::digest(&digests);
        fs::write(stage.join(DIGESTS), digests).context("writing the list of digests")?;
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Ok(format!("{seconds}-{}", hex(&digest[..4])))
    }

    fn deploy(&self, host: &Host, stage: &Path, name: &str) -> Result<()> {
        let bytes = size(stage)?;
        if host.free_kib < bytes.div_ceil(1024) {
            bail!(
                "{}: {} KiB are free in {}, and the deployment has {} KiB: make room, or name a folder elsewhere with \
                 --folder",
                self.remote.address,
                host.free_kib,
                self.folder,
                bytes.div_ceil(1024)
            );
        }
        status::say("Copying", format_args!("{} KiB to {}", bytes.div_ceil(1024), self.remote.address));
        let incoming = format!("{}/.incoming-{name}", self.folder);
        let copied = self.remote.copy("copying", self.remote.copy_there(stage, &incoming));
        let in_place = copied.and_then(|()| {
            let bound = COMMAND_BOUND + Duration::from_secs(self.drain_s);
            self.remote.script_within("putting it in place", &self.place_script(name), bound)
        });
        if let Err(error) = in_place {
            // What had come takes room. If the computer cannot be reached, the next deployment removes it.
            let _ = self.remote.script("removing the copy", &format!("rm -rf {}\n", quote(&incoming)));
            return Err(error);
        }
        status::say("Starting", format_args!("{} at {}/{name}", self.image, self.folder));
        let bound = Duration::from_secs(self.start_bound_s + 30);
        let started = self.remote.script_within("the bring-up", &self.start_script(name), bound);
        // What happened matters most when something failed.
        let brought = self.bring(name);
        let code = started?;
        let (folder, outcome) = brought?;
        status::say("Brought", folder.display());
        status::print(outcome.trim_end())?;
        match code.trim() {
            "ended 0" => Ok(()),
            "ended 124" => {
                bail!("the bring-up has not ended within {} s; --start-bound gives it longer", self.start_bound_s)
            }
            other => bail!("the bring-up failed ({other}); its logs and crash records are in {}", folder.display()),
        }
    }

    /// Compares what has come, sees that it starts, that nobody uses what is there, and puts it in place. A line for
    /// each second of waiting ends the script when its connection is gone. Of older folders only those go which a
    /// deployment made.
    fn place_script(&self, name: &str) -> String {
        let refuse = if self.replace_running { "false" } else { "[ -n \"$holders\" ]" };
        format!(
            "set -eu\ncd {folder}\nfolder=$(pwd -P)\n\
             (cd .incoming-{name} && sha256sum --quiet -c {DIGESTS}) >&2\n\
             (cd .incoming-{name} && bin/flexcast --version) >/dev/null\n\
             ln -s libflexcast.so.1 .incoming-{name}/lib/libflexcast.so\n\
             left={drain}\n\
             while :; do\n\
             holders=\n\
             for process in /proc/[0-9]*; do\n\
             if readlink \"$process/exe\" 2>/dev/null | grep -qF \"$folder/\" ||\n\
             grep -qsF \"$folder/\" \"$process/maps\"; then\n\
             name=$(cat \"$process/comm\" 2>/dev/null || true)\n\
             holders=\"$holders ${{process#/proc/}} ($name)\"\n\
             fi\n\
             done\n\
             if [ -z \"$holders\" ] || [ \"$left\" -le 0 ]; then break; fi\n\
             if [ \"$left\" -eq {drain} ]; then echo \"waiting {drain} s for process$holders\" >&2; fi\n\
             left=$((left - 1))\n\
             sleep 1\n\
             echo waiting\n\
             done\n\
             if {refuse}; then\n\
             echo \"in use by process$holders: end it, give it time (--drain S), or take --replace-running\" >&2\n\
             exit 3\n\
             fi\n\
             exec 9<.\n\
             if command -v flock >/dev/null && ! flock -w 60 9; then\n\
             echo \"another deployment has been putting itself in place here for 60 s\" >&2\n\
             exit 4\n\
             fi\n\
             echo placing\n\
             previous=$(readlink current || true)\n\
             previous=${{previous##*/}}\n\
             mv .incoming-{name} {name}\n\
             ln -s {name} .current-{name}\n\
             mv -T .current-{name} current\n\
             for old in [0-9]*-????????; do\n\
             if [ \"$old\" = {name} ] || [ \"$old\" = \"$previous\" ]; then continue; fi\n\
             if [ -f \"$old/{DIGESTS}\" ] && [ -f \"$old/bin/flexcast\" ]; then rm -rf \"$old\"; fi\n\
             done\n",
            folder = quote(&self.folder),
            drain = self.drain_s
        )
    }

    /// Loads the image there, with its output in files of the deployment. Whatever a library writes of a crash goes to
    /// the working directory, which is that folder.
    fn start_script(&self, name: &str) -> String {
        let mut command = Command::new("../bin/flexcast");
        command.args(["deploy", &format!("../share/flexcast/{}.elf", self.image), "--provider", self.provider]);
        if self.provider == "emu" {
            command.args(["--core-dir", "."]);
        }
        if let Some(device) = &self.device {
            command.args(["--device", device]);
        }
        format!(
            "set -eu\ncd {folder}/{name}\nmkdir -p log\ncd log\n\
             LD_LIBRARY_PATH=$(cd ../lib && pwd)${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\nexport LD_LIBRARY_PATH\n\
             code=0\ntimeout -k 5 {bound} {line} >stdout 2>stderr </dev/null || code=$?\necho \"ended $code\"\n",
            folder = quote(&self.folder),
            bound = self.start_bound_s,
            line = process::line(&command)
        )
    }

    /// Brings the folder of logs, and returns where it is and what the command said.
    fn bring(&self, name: &str) -> Result<(PathBuf, String)> {
        fs::create_dir_all(&self.brought).with_context(|| format!("creating {}", self.brought.display()))?;
        let folder = self.brought.join(name);
        let from = format!("{}/{name}/log", self.folder);
        self.remote.copy("bringing the logs", self.remote.copy_here(&from, &folder))?;
        let mut text = String::new();
        for file in ["stdout", "stderr"] {
            let path = folder.join(file);
            let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            text.push_str(&String::from_utf8_lossy(&bytes));
        }
        Ok((folder, text))
    }

    /// Prints what would be run, and runs nothing.
    pub(super) fn dry_run(&self) -> Result<()> {
        let name = "SECONDS-DIGEST";
        let stage = Path::new("target/tmp/deploy/PROCESS");
        let shell = process::line(&self.remote.shell());
        let incoming = format!("{}/.incoming-{name}", self.folder);
        let log = format!("{}/{name}/log", self.folder);
        let brought = self.brought.strip_prefix(workspace::root()).unwrap_or(&self.brought).join(name);
        let steps = [
            ("ask there what it has, by a script", format!("{shell} <<'END'\n{}END", self.prepare_script())),
            ("copy", process::line(&self.remote.copy_there(stage, &incoming))),
            ("compare, and put in place", format!("{shell} <<'END'\n{}END", self.place_script(name))),
            ("load and bring up", format!("{shell} <<'END'\n{}END", self.start_script(name))),
            ("bring logs and crash records", process::line(&self.remote.copy_here(&log, &brought))),
        ];
        status::print(format_args!(
            "# {} would have bin/flexcast, lib/libflexcast.so.1, share/flexcast/{}.elf{}, {DIGESTS}",
            stage.display(),
            self.image,
            if self.sign.is_some() { ", signed" } else { "" }
        ))?;
        if let Some(sign) = &self.sign {
            status::print(format_args!("# sign\n{sign} {}/share/flexcast/{}.elf", stage.display(), self.image))?;
        }
        for (what, step) in steps {
            status::print(format_args!("# {what}\n{step}"))?;
        }
        Ok(())
    }
}

/// What the other computer says of itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Host {
    machine: String,
    free_kib: u64,
    signatures: bool,
}

impl Host {
    fn read(said: &str) -> Result<Self> {
        let value = |name: &str| said.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let unread = || format!("what the other computer said was not understood: {said:?}");
        Ok(Self {
            machine: value("machine ").with_context(unread)?.to_owned(),
            free_kib: value("free_kib ").and_then(|kib| kib.parse().ok()).with_context(unread)?,
            signatures: said.lines().any(|line| line == "signatures"),
        })
    }
}

/// Has a command sign the image, and sees that it did.
fn sign(command: &str, image: &Path) -> Result<()> {
    status::say("Signing", format_args!("{command} {}", image.display()));
    let before = fs::read(image).with_context(|| format!("reading {}", image.display()))?;
    // In the foreground it may ask for a passphrase. Status 124 is that of the bound, which the error's command shows.
    let mut bounded = Command::new("timeout");
    bounded.args(["--foreground", "-k", "5", SIGN_BOUND, "sh", "-c", &format!("{command} \"$1\""), "sign"]).arg(image);
    process::run(&mut bounded)?;
    let after = fs::read(image).with_context(|| format!("reading {} after it was signed", image.display()))?;
    if before.starts_with(ELF_MAGIC) && !after.starts_with(ELF_MAGIC) {
        bail!("`{command}` left no ELF file at {}: nothing is deployed", image.display());
    }
    let mut next_to = image.as_os_str().to_owned();
    next_to.push(".sig");
    if before == after && !Path::new(&next_to).is_file() {
        bail!(
            "`{command}` ended well, but left the image as it was and wrote no {}: nothing is deployed",
            Path::new(&next_to).display()
        );
    }
    Ok(())
}

/// All files below a folder, as paths relative to it, sorted.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).with_context(|| format!("reading {}", next.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.push(path.strip_prefix(folder).unwrap_or(&path).to_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn digests(folder: &Path) -> Result<String> {
    let line = |file: PathBuf| {
        let bytes = fs::read(folder.join(&file)).with_context(|| format!("reading {}", file.display()))?;
        Ok(format!("{}  {}\n", hex(&Sha256::digest(bytes)), file.display()))
    };
    files(folder)?.into_iter().map(line).collect()
}

fn size(folder: &Path) -> Result<u64> {
    let bytes = |file: PathBuf| Ok(fs::metadata(folder.join(file))?.len());
    files(folder)?.into_iter().map(bytes).sum()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_is_not_understood_is_refused() {
        let host = Host::read("banner\nmachine aarch64\nfree_kib 12\nsignatures\n").expect("understood");
        assert_eq!(host, Host { machine: "aarch64".to_owned(), free_kib: 12, signatures: true });
        for said in ["", "machine x86_64\n", "machine x86_64\nfree_kib much\n"] {
            assert!(Host::read(said).expect_err(said).to_string().contains("not understood"));
        }
    }

    #[test]
    fn a_signature_must_be_seen() {
        let folder = tempfile::tempdir().expect("folder");
        let image = folder.path().join("a b.elf");
        let attempt = |command: &str| {
            fs::write(&image, "image").expect("written");
            sign(command, &image).map_err(|error| error.to_string())
        };
        assert!(attempt("true").expect_err("unsigned").contains("left the image as it was"));
        assert!(attempt("false").expect_err("failed").contains("exit status: 1"));
        assert_eq!(attempt("printf signed >>"), Ok(()));
        assert_eq!(attempt("sh -c 'cp \"$0\" \"$0.sig\"'"), Ok(()));
        fs::write(&image, "\x7fELF and more").expect("written");
        assert!(sign("echo hi >", &image).expect_err("destroyed").to_string().contains("left no ELF file"));
    }
}
