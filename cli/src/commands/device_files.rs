//! `/dev/infiniband` for a program on emulated cards: files that programs such as UCX want to find before they ask for
//! devices. They are in a mount namespace of the program's own, and stand for nothing: what opens one reads and writes
//! `/dev/null`.

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context as _, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};

const DEVICES: &str = "/dev";
const FOLDER: &str = "infiniband";
/// Backs each file: it may be read and written, and is a device.
const BACKING: &str = "/dev/null";

/// Gives this process, and the program that it becomes, a `/dev` with files for so many cards.
///
/// # Errors
/// The system permits no mount namespace, or there are such files already, of real cards.
pub(crate) fn offer(cards: usize) -> anyhow::Result<()> {
    if Path::new(DEVICES).join(FOLDER).exists() {
        bail!("--device-files: {DEVICES}/{FOLDER} is there already: programs find devices without the option");
    }
    enter().context("--device-files: this system permits no mount namespace, which the files are put into")?;
    // Nobody but this process sees what covers the folder, until it is uncovered again.
    let folder = env::temp_dir();
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some("tmpfs"), &folder, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))?;
    fill(&folder).context("--device-files: copying /dev")?;
    let files = folder.join(FOLDER);
    fs::create_dir(&files)?;
    // None for the connection manager: the system's library would take it for a kernel that has one.
    for card in 0..cards {
        bind(Path::new(BACKING), &files.join(format!("uverbs{card}")))?;
    }
    mount(Some(&folder), DEVICES, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)?;
    umount2(&folder, MntFlags::MNT_DETACH)?;
    Ok(())
}

/// A mount namespace: of its own for who may have one, and else within a user namespace with the same numbers of user
/// and group.
fn enter() -> nix::Result<()> {
    if unshare(CloneFlags::CLONE_NEWNS).is_ok() {
        return Ok(());
    }
    let (user, group) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
    let write = |file: &str, text: String| fs::write(file, text).map_err(|_| nix::errno::Errno::EPERM);
    write("/proc/self/setgroups", "deny".to_owned())?;
    write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// Everything that is in `/dev`.
fn fill(folder: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(DEVICES)? {
        let entry = entry?;
        let to = folder.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            symlink(fs::read_link(entry.path())?, to)?;
        } else if kind.is_dir() {
            fs::create_dir(&to)?;
            bind_onto(&entry.path(), &to)?;
        } else {
            bind(&entry.path(), &to)?;
        }
    }
    Ok(())
}

fn bind(from: &Path, to: &Path) -> anyhow::Result<()> {
    File::create(to)?;
    bind_onto(from, to)
}

fn bind_onto(from: &Path, to: &Path) -> anyhow::Result<()> {
    let none = None::<&str>;
    mount(Some(from), to, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)
        .with_context(|| format!("{} at {}", from.display(), to.display()))
}
