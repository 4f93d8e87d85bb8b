//! Memory that this process can still get, and allocations whose size a user gives: refused in words where they do not
//! fit.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// What is taken to be there where the system reports nothing.
const FALLBACK_BYTES: u64 = 4 << 30;

/// What keeps a process from more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// What the machine has available.
    Machine,
    /// The limit of a control group (container, service).
    ControlGroup,
    /// `RLIMIT_AS`.
    AddressSpace,
    /// `RLIMIT_DATA`.
    Data,
    /// The system reports no limit.
    Unknown,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bound::Machine => "available on this machine",
            Bound::ControlGroup => "left within the limit of its control group",
            Bound::AddressSpace => "left within the limit of its address space (ulimit -v)",
            Bound::Data => "left within the limit of its data (ulimit -d)",
            Bound::Unknown => "assumed to be there",
        })
    }
}

/// How much memory a process can still get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Available {
    /// Bytes.
    pub bytes: u64,
    /// What would have to be raised for more.
    pub bound: Bound,
}

/// Memory that there is not.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// More than there is.
    #[error("{what} {value}: it takes {} of memory, and {} are {}; {next}", size(*needed), size(.available.bytes), .available.bound)]
    TooMuch {
        /// The option, or what else decides the size.
        what: &'static str,
        /// What was given.
        value: String,
        /// Bytes that it takes.
        needed: u64,
        /// Bytes that there are.
        available: Available,
        /// What would do.
        next: &'static str,
    },
    /// The system refuses an allocation.
    #[error("{} of memory for {what} cannot be had: choose smaller ones, or raise the limits of this process (ulimit \
        -v)", size(*bytes))]
    Refused {
        /// What it was for.
        what: &'static str,
        /// Bytes.
        bytes: u64,
    },
    /// A file cannot be read.
    #[error("{what} `{}` cannot be read: {source}", path.display())]
    File {
        /// What it is.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// A number of bytes for people: at least two digits of it.
#[must_use]
pub fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(shift, _)| bytes >= 1 << shift) {
        Some((shift, unit)) => format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes} bytes"),
    }
}

/// Memory that this process can get now: the least of what the machine has available, of what its control groups leave
/// and of what the limits of its address space and data leave.
#[must_use]
pub fn available() -> Available {
    available_by(&|path| std::fs::read_to_string(path).ok())
}

/// The same, by the files of a system.
fn available_by(read: &dyn Fn(&str) -> Option<String>) -> Available {
    let limits = read("/proc/self/limits").unwrap_or_default();
    let status = read("/proc/self/status").unwrap_or_default();
    let left = |limit: &str, used: &str| Some(soft_limit(&limits, limit)?.saturating_sub(kib(&status, used)?));
    let machine = read("/proc/meminfo").and_then(|text| kib(&text, "MemAvailable:"));
    let bounds = [
        (machine, Bound::Machine),
        (control_groups(read), Bound::ControlGroup),
        (left("Max address space", "VmSize:"), Bound::AddressSpace),
        (left("Max data size", "VmData:"), Bound::Data),
    ];
    let known = bounds.into_iter().filter_map(|(bytes, bound)| Some(Available { bytes: bytes?, bound }));
    known.min_by_key(|known| known.bytes).unwrap_or(Available { bytes: FALLBACK_BYTES, bound: Bound::Unknown })
}

/// `NAME  123 kB`, in bytes.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The soft limit of a line of `/proc/self/limits`; `None` for `unlimited`.
fn soft_limit(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// What the control groups of this process leave, the narrowest of them; page cache that they can drop counts as free.
fn control_groups(read: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    struct Names {
        root: &'static str,
        limit: &'static str,
        used: &'static str,
        cache: [&'static str; 2],
    }
    const V2: Names = Names {
        root: "/sys/fs/cgroup",
        limit: "memory.max",
        used: "memory.current",
        cache: ["inactive_file ", "active_file "],
    };
    const V1: Names = Names {
        root: "/sys/fs/cgroup/memory",
        limit: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        cache: ["total_inactive_file ", "total_active_file "],
    };
    let groups = read("/proc/self/cgroup")?;
    let mut least: Option<u64> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let names = match controllers {
            "" => V2,
            _ if controllers.split(',').any(|controller| controller == "memory") => V1,
            _ => continue,
        };
        // Limits of the groups above hold, too. In a container the path may be that of outside: then the root is its
        // own group.
        for path in Path::new(path).ancestors() {
            let folder = format!("{}{}", names.root, path.to_string_lossy().trim_end_matches('/'));
            let file = |name: &str| read(&format!("{folder}/{name}"));
            let number = |name: &str| file(name)?.trim().parse::<u64>().ok();
            let (Some(limit), Some(used)) = (number(names.limit), number(names.used)) else { continue };
            let statistics = file("memory.stat").unwrap_or_default();
            let of = |name: &str| statistics.lines().find_map(|line| line.strip_prefix(name)?.parse::<u64>().ok());
            let cache: u64 = names.cache.iter().filter_map(|name| of(name)).sum();
            let left = limit.saturating_sub(used.saturating_sub(cache));
            least = Some(least.map_or(left, |least| least.min(left)));
        }
    }
    least
}

/// Refuses what takes more memory than this process can get now.
///
/// # Errors
/// [`MemoryError::TooMuch`].
pub fn require(what: &'static str, value: impl ToString, needed: u64, next: &'static str) -> Result<(), MemoryError> {
    fits(available(), what, value, needed, next)
}

fn fits(
    available: Available,
    what: &'static str,
    value: impl ToString,
    needed: u64,
    next: &'static str,
) -> Result<(), MemoryError> {
    if needed <= available.bytes {
        return Ok(());
    }
    Err(MemoryError::TooMuch { what, value: value.to_string(), needed, available, next })
}

/// An empty vector with room for so many bytes.
///
/// # Errors
/// [`MemoryError::Refused`].
pub fn room(what: &'static str, bytes: u64) -> Result<Vec<u8>, MemoryError> {
    let mut room = Vec::new();
    let refused = || MemoryError::Refused { what, bytes };
    room.try_reserve_exact(usize::try_from(bytes).map_err(|_| refused())?).map_err(|_| refused())?;
    Ok(room)
}

/// So many zeroes.
///
/// # Errors
/// [`MemoryError::Refused`].
pub fn zeroes(what: &'static str, bytes: u64) -> Result<Vec<u8>, MemoryError> {
    let mut room = room(what, bytes)?;
    room.resize(bytes as usize, 0);
    Ok(room)
}

/// Reads a file of which `copies` will be in memory; one without an end is not read to it.
///
/// # Errors
/// [`MemoryError::TooMuch`] or [`MemoryError::File`].
pub fn read_file(what: &'static str, path: &Path, copies: u64) -> Result<Vec<u8>, MemoryError> {
    read_within(available(), what, path, copies)
}

/// Reads a regular file of `most` bytes at most, of which `copies` will be in memory.
///
/// # Errors
/// As [`read_file`].
pub fn read_regular(what: &'static str, path: &Path, (most, copies): (u64, u64)) -> Result<Vec<u8>, MemoryError> {
    let bytes = flexcast_files::bytes(path, most);
    let bytes = bytes.map_err(|source| MemoryError::File { what, path: path.to_owned(), source })?;
    let name = format!("`{}`", path.display());
    fits(available(), what, name, (bytes.len() as u64).saturating_mul(copies), "give a smaller file")?;
    Ok(bytes)
}

fn read_within(available: Available, what: &'static str, path: &Path, copies: u64) -> Result<Vec<u8>, MemoryError> {
    let failed = |source| MemoryError::File { what, path: path.to_owned(), source };
    let most = available.bytes / copies.max(1);
    let fits = |bytes: u64| {
        let name = format!("`{}`", path.display());
        fits(available, what, name, bytes.saturating_mul(copies.max(1)), "give a smaller file")
    };
    let file = File::open(path).map_err(failed)?;
    let reported = file.metadata().map_err(failed)?.len();
    fits(reported)?;
    let mut bytes = room(what, reported.saturating_add(1))?;
    // One byte more, so that a file that does not fit is distinguished from one that just does.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    fits(bytes.len() as u64)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(files: &[(&str, &str)]) -> Available {
        available_by(&|path| files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned()))
    }

    const MEMINFO: (&str, &str) = ("/proc/meminfo", "MemTotal: 9 kB\nMemAvailable:    8388608 kB\n");
    const STATUS: (&str, &str) = ("/proc/self/status", "VmSize:\t  1048576 kB\nVmData:\t 2048 kB\n");
    const GIB: u64 = 1 << 30;

    #[test]
    fn the_narrowest_bound_counts() {
        let is = |files: &[(&str, &str)], bytes, bound| assert_eq!(system(files), Available { bytes, bound });
        is(&[], FALLBACK_BYTES, Bound::Unknown);
        is(&[MEMINFO], 8 * GIB, Bound::Machine);
        let limits = |text| ("/proc/self/limits", text);
        let none = "Limit  Soft Limit  Hard Limit  Units\nMax data size  unlimited  unlimited  bytes\n\
                    Max address space         unlimited            unlimited            bytes\n";
        is(&[MEMINFO, STATUS, limits(none)], 8 * GIB, Bound::Machine);
        let space = "Max address space         4294967296           unlimited            bytes\n";
        is(&[MEMINFO, STATUS, limits(space)], 3 * GIB, Bound::AddressSpace);
        let data = "Max data size             1048576              unlimited            bytes\n";
        is(&[MEMINFO, STATUS, limits(data)], 0, Bound::Data);
    }

    #[test]
    fn control_groups_of_both_kinds_and_those_above_count() {
        let two = [
            MEMINFO,
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/b/memory.current", "5\n"),
            ("/sys/fs/cgroup/a/memory.max", "2147483648\n"),
            ("/sys/fs/cgroup/a/memory.current", "1610612736\n"),
            ("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 268435456\nactive_file 268435456\n"),
        ];
        assert_eq!(system(&two), Available { bytes: GIB, bound: Bound::ControlGroup });
        let one = [
            MEMINFO,
            ("/proc/self/cgroup", "4:cpu:/x\n3:memory:/of/the/host\n0::/\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741825\n"),
        ];
        assert_eq!(system(&one), Available { bytes: 0, bound: Bound::ControlGroup });
        // Without a limit version 1 says a number beyond all machines.
        let none = [one[0], one[1], ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"), one[3]];
        assert_eq!(system(&none).bound, Bound::Machine);
    }

    #[test]
    fn refusals_name_value_limit_and_next_step() {
        let available = Available { bytes: 3 * GIB, bound: Bound::AddressSpace };
        assert!(fits(available, "--bytes", 7, 3 * GIB, "").is_ok());
        let error = fits(available, "--bytes", 16_000_000_000_u64, 48_000_000_000, "give fewer").unwrap_err();
        assert_eq!(
            error.to_string(),
            "--bytes 16000000000: it takes 44.7 GiB of memory, and 3.0 GiB are left within the limit of its address \
             space (ulimit -v); give fewer"
        );
        let error = room("made-up bytes", u64::MAX).unwrap_err().to_string();
        assert!(error.contains("made-up bytes") && error.contains("ulimit"), "{error}");
        assert_eq!(zeroes("x", 3).unwrap(), [0; 3]);
        assert!(super::available().bytes > 0);
    }

    #[test]
    fn files_are_read_as_far_as_they_fit() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [7; 100]).unwrap();
        let within = |bytes, path: &Path| read_within(Available { bytes, bound: Bound::Machine }, "file", path, 4);
        assert_eq!(within(400, file.path()).unwrap(), [7; 100]);
        assert!(matches!(within(399, file.path()), Err(MemoryError::TooMuch { needed: 400, .. })));
        // It says that it is empty and has no end.
        let endless = within(4000, Path::new("/dev/zero"));
        assert!(matches!(endless, Err(MemoryError::TooMuch { needed: 4004, .. })), "{endless:?}");
        let error = within(4, Path::new("no/such/file")).unwrap_err().to_string();
        assert!(error.contains("file `no/such/file` cannot be read"), "{error}");
    }
}
