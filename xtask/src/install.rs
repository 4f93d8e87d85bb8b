use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::toolchain::Toolchain;
use crate::{build, emu_libs, header, process, status, workspace};

/// Install the collective library for programs in C: header, shared and static library, pkg-config file, and the firmware.
#[derive(clap::Args)]
pub(crate) struct Install {
    /// Folder below which include, lib and share are.
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
    /// Cargo profile.
    #[arg(long, default_value = "release")]
    profile: String,
    /// What the firmware is for: a file of toolchains/.
    #[arg(long, default_value = "emu")]
    toolchain: String,
}

/// Name that programs link with.
const LIBRARY: &str = "libflexcast.so";
/// Images that the library needs.
const IMAGES: [&str; 1] = ["allgather"];

impl Install {
    pub(crate) fn run(&self) -> Result<()> {
        let toolchain = Toolchain::load(&self.toolchain)?;
        install(&self.prefix, &self.profile, &toolchain)?;
        status::print(std::path::absolute(&self.prefix)?.join("lib/pkgconfig").display())?;
        Ok(())
    }
}

/// Builds everything and puts it below a folder.
pub(crate) fn install(prefix: &Path, profile: &str, toolchain: &Toolchain) -> Result<()> {
    let root = workspace::root();
    let compiler = emu_libs::compiler(LIBRARY, process::find)?;
    let images = build::build(toolchain, &IMAGES.map(str::to_owned))?;
    status::say("Building", format_args!("{LIBRARY} from flexcast-capi"));
    process::run(&mut workspace::cargo_build(profile, "flexcast-capi", &["--lib"]))?;
    let built = workspace::target_dir()?.join(emu_libs::profile_folder(profile)).join("libflexcast.a");

    let [include, lib, package, share] =
        ["include", "lib", "lib/pkgconfig", "share/flexcast"].map(|name| prefix.join(name));
    for folder in [&include, &lib, &package, &share] {
        std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    build::copy(&root.join(header::PATH), &include.join("flexcast.h"))?;
    build::copy(&built, &lib.join("libflexcast.a"))?;
    for (name, image) in IMAGES.iter().zip(images) {
        build::copy(&image, &share.join(format!("{name}.elf")))?;
    }
    let soname = format!("{LIBRARY}.{}", header::abi_version()?);
    emu_libs::link(&compiler, &built, &lib.join(&soname), &soname, &root.join("host/capi/link.map"))?;
    emu_libs::name_too(&lib.join(LIBRARY), &soname)?;
    let description = package.join("flexcast.pc");
    std::fs::write(&description, pkg_config()).with_context(|| format!("writing {}", description.display()))?;
    status::say("Installed", prefix.display());
    Ok(())
}

/// What pkg-config reads. The prefix is where the file is found, so that a finished folder can be packed and moved.
fn pkg_config() -> String {
    format!(
        "prefix=${{pcfiledir}}/../..\n\
         includedir=${{prefix}}/include\n\
         libdir=${{prefix}}/lib\n\
         firmware=${{prefix}}/share/flexcast/{image}.elf\n\
         \n\
         Name: Flexcast\n\
         Description: Non-blocking Broadcast and Allgather with the datapath on the DPA of the network card\n\
         Version: {version}\n\
         Cflags: -I${{includedir}}\n\
         Libs: -L${{libdir}} -lflexcast\n\
         Libs.private: {system}\n",
        image = IMAGES[0],
        version = env!("CARGO_PKG_VERSION"),
        system = emu_libs::SYSTEM_LIBRARIES.join(" "),
    )
}
