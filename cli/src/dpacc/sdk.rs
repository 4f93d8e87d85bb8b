//! The emulated SDK: headers of both sides, libraries, and a driver, in a folder laid out as the vendor's is.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, bail};

use super::options::DeviceVersion;

/// The linker script of programs in C.
const SCRIPT: &str = include_str!("../../../linker/emu-c.ld");

macro_rules! headers {
    ($folder:literal: $($name:literal),+) => {
        [$((concat!("include/", $name), include_str!(concat!("../../../", $folder, "/", $name)))),+]
    };
}

/// Headers, by their path in the folder.
const DEVICE: [(&str, &str); 15] = headers!(
    "device/rt-emu/include":
    "doca_dpa_dev.h",
    "doca_dpa_dev_buf.h",
    "doca_dpa_dev_rdma.h",
    "doca_dpa_dev_sync_event.h",
    "libflexio-dev/dpaintrin.h",
    "libflexio-dev/flexio_dev.h",
    "libflexio-dev/flexio_dev_debug.h",
    "libflexio-dev/flexio_dev_dpa_arch.h",
    "libflexio-dev/flexio_dev_endianity.h",
    "libflexio-dev/flexio_dev_err.h",
    "libflexio-dev/flexio_dev_queue_access.h",
    "libflexio-dev/flexio_dev_queue_types.h",
    "libflexio-dev/flexio_dev_ver.h",
    "libflexio-libc/stdio.h",
    "libflexio-libc/string.h"
);
const HOST: [(&str, &str); 2] = headers!("host/flexio-sys/include": "libflexio/flexio.h", "libflexio/flexio_ver.h");

/// Those that device programs include are among them.
const DOCA: [(&str, &str); 12] = headers!(
    "host/doca-sys/include":
    "doca_argp.h",
    "doca_compat.h",
    "doca_ctx.h",
    "doca_dev.h",
    "doca_dpa.h",
    "doca_error.h",
    "doca_log.h",
    "doca_mmap.h",
    "doca_rdma.h",
    "doca_sync_event.h",
    "doca_types.h",
    "doca_version.h"
);
/// Releases whose interface the headers have: build files ask for the least that they need.
const FLEXIO_RELEASE: &str = "26.4.0";
const DOCA_RELEASE: &str = "3.3.0";
/// What pkg-config knows of, of which release, and how each is linked.
const PACKAGES: [(&str, &str, &str); 5] = [
    ("libflexio", FLEXIO_RELEASE, "-lflexio"),
    ("doca-common", DOCA_RELEASE, "-ldoca_common"),
    ("doca-argp", DOCA_RELEASE, "-ldoca_argp"),
    ("doca-dpa", DOCA_RELEASE, "-ldoca_dpa"),
    ("doca-rdma", DOCA_RELEASE, "-ldoca_rdma"),
];

fn put(path: &Path, text: &str) -> anyhow::Result<()> {
    let context = || format!("writing {}", path.display());
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).with_context(context)?;
    std::fs::write(path, text).with_context(context)
}

/// A path in a pkg-config file, whose flags are read as a shell reads words.
fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for letter in path.display().to_string().chars() {
        match letter {
            '$' => text.push('$'),
            letter if letter.is_ascii() && !letter.is_ascii_alphanumeric() && !"/._-+".contains(letter) => {
                text.push('\\');
            }
            _ => {}
        }
        text.push(letter);
    }
    text
}

/// Writes the headers and the linker script below a folder.
pub(super) fn write_headers(folder: &Path) -> anyhow::Result<()> {
    put(&folder.join("emu-c.ld"), SCRIPT)?;
    DEVICE.iter().chain(&HOST).chain(&DOCA).try_for_each(|(name, text)| put(&folder.join(name), text))
}

/// Writes the whole SDK below a folder.
/// Its driver takes this version of the device interface.
pub(super) fn write(folder: &Path, libraries: &Path, version: Option<DeviceVersion>) -> anyhow::Result<()> {
    write_headers(folder)?;
    let folder = std::path::absolute(folder)?;
    let lib = folder.join("lib");
    std::fs::create_dir_all(&lib)?;
    if lib.canonicalize().ok() == libraries.canonicalize().ok() {
        bail!("{} has the libraries that would be copied: write the SDK into another folder", folder.display());
    }
    for entry in std::fs::read_dir(libraries).with_context(|| format!("reading {}", libraries.display()))? {
        let path = entry?.path();
        let to = lib.join(path.file_name().unwrap_or_default());
        // Programs that run keep the old file. The loader knows a library by its file: other names of it stay links.
        if path.is_file() {
            let new = to.with_extension("new");
            let context = || format!("writing {}", to.display());
            match std::fs::read_link(&path) {
                Ok(target) if target.parent() == Some(Path::new("")) => {
                    let _ = std::fs::remove_file(&new);
                    std::os::unix::fs::symlink(target, &new).with_context(context)?;
                }
                _ => _ = std::fs::copy(&path, &new).with_context(context)?,
            }
            std::fs::rename(&new, &to).with_context(context)?;
        }
    }
    for (name, release, libs) in PACKAGES {
        let text = format!(
            "prefix={}\nlibdir=${{prefix}}/lib\nName: {name}\nDescription: {name} of the emulated card\nVersion: \
             {release}\nCflags: -I${{prefix}}/include\nLibs: -L${{libdir}} {libs}\n",
            escaped(&folder)
        );
        put(&lib.join(format!("pkgconfig/{name}.pc")), &text)?;
    }
    let own = std::env::current_exe().context("the path of this program is not known")?;
    let version = version.map_or_else(String::new, |version| format!(" --dev-ver {version}"));
    let quoted = |path: &Path| path.display().to_string().replace('\'', "'\\''");
    let driver = format!("#!/bin/sh\nexec '{}' dpacc --emu-libs '{}'{version} \"$@\"\n", quoted(&own), quoted(&lib));
    // Attributes of an application are what it asks of a card's firmware; the driver takes them in any form.
    let attributes = "#!/bin/sh\nexec cp \"$1\" \"$2\"\n";
    for (name, text) in
        [("bin/dpacc", &*driver), ("tools/dpacc", &*driver), ("tools/dpa-app-attributes2blob", attributes)]
    {
        let program = folder.join(name);
        put(&program, text)?;
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}
