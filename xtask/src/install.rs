use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::toolchain::Toolchain;
use crate::{build, emu_libs, header, process, status, workspace};

/// Install the collective library for programs in C: header, shared and static library, files for pkg-config and
/// CMake, and the firmware; with --all also the programs, the emulator's libraries and the objects for MPI programs.
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
    /// Install flexcast, flexcast-service and flexcast-aggregator into bin, the emulator's libraries into
    /// lib/flexcast/emu-libs, and into lib the preload object of each MPI whose compiler is found, too.
    #[arg(long)]
    all: bool,
}

/// Programs, each with its package.
const PROGRAMS: [(&str, &str); 3] = [
    ("flexcast-cli", "flexcast"),
    ("flexcast-service", "flexcast-service"),
    ("flexcast-aggregator", "flexcast-aggregator"),
];
/// Compilers of MPI libraries; the object is named after the MPI that one compiles for.
const MPI_COMPILERS: [&str; 4] = ["mpicc.openmpi", "mpicc.mpich", "mpicc", "mpicc_abi"];

/// Name that programs link with.
const LIBRARY: &str = "libflexcast.so";
/// First version of the interface whose programs the library serves.
const SERVES_FROM: u32 = 1;
/// Images that the library needs: the datapath on the DPA, and aggregators of sparse AllReduce there.
const IMAGES: [&str; 2] = ["allgather", "sparse"];

impl Install {
    pub(crate) fn run(&self) -> Result<()> {
        let toolchain = Toolchain::load(&self.toolchain)?;
        install(&self.prefix, &self.profile, &toolchain)?;
        if self.all {
            programs(&self.prefix, &self.profile)?;
            emulator(&self.prefix, &self.profile)?;
            mpi(&self.prefix)?;
        }
        status::print(std::path::absolute(&self.prefix)?.join("lib/pkgconfig").display())?;
        Ok(())
    }
}

/// Puts the programs below a folder.
fn programs(prefix: &Path, profile: &str) -> Result<()> {
    let bin = prefix.join("bin");
    std::fs::create_dir_all(&bin).with_context(|| format!("creating {}", bin.display()))?;
    for (package, name) in PROGRAMS {
        status::say("Building", name);
        let built = workspace::program(package, name, profile, None)?;
        emu_libs::replace(&bin.join(name), |new| {
            std::fs::copy(&built, new).map(drop).with_context(|| format!("copying {}", built.display()))
        })?;
    }
    Ok(())
}

/// Puts the emulator's libraries below a folder, where `flexcast emu exec` finds them.
fn emulator(prefix: &Path, profile: &str) -> Result<()> {
    let built = emu_libs::build(profile)?;
    let folder = prefix.join("lib/flexcast/emu-libs");
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    emu_libs::copy(&built, &folder)
}

/// Builds the preload object of each MPI whose compiler is there; without any, a line says what is missing.
fn mpi(prefix: &Path) -> Result<()> {
    let found: Vec<&str> = MPI_COMPILERS.into_iter().filter(|name| process::find(name).is_some()).collect();
    let Some(make) = process::find("make").filter(|_| !found.is_empty()) else {
        status::say(
            "Skipped",
            format_args!("objects for MPI programs: `make` and one of {}", MPI_COMPILERS.join(", ")),
        );
        return Ok(());
    };
    let prefix = std::path::absolute(prefix)?;
    let scratch = workspace::target_dir()?.join("mpi");
    for compiler in found {
        let mut command = Command::new(&make);
        command.arg("-C").arg(workspace::root().join("adapters/mpi"));
        command.arg(format!("MPICC={compiler}")).arg(format!("FLEXCAST={}", prefix.display()));
        command.arg(format!("OUT={}", scratch.display()));
        process::run(&mut command)?;
    }
    for entry in std::fs::read_dir(&scratch).with_context(|| format!("reading {}", scratch.display()))? {
        let path = entry?.path();
        if let Some(name) = path.file_name().filter(|_| path.extension().is_some_and(|end| end == "so")) {
            build::copy(&path, &prefix.join("lib").join(name))?;
        }
    }
    Ok(())
}

/// Builds everything and puts it below a folder.
pub(crate) fn install(prefix: &Path, profile: &str, toolchain: &Toolchain) -> Result<()> {
    // What links the library is asked for before anything takes time.
    emu_libs::compiler(LIBRARY, process::find)?;
    let images = build::build(toolchain, &IMAGES.map(str::to_owned))?;
    status::say("Building", format_args!("{LIBRARY} from flexcast-capi"));
    let built = workspace::c_library(profile)?;

    let [package, share] = ["lib/pkgconfig", "share/flexcast"].map(|name| prefix.join(name));
    for folder in [&package, &share] {
        std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    for (name, image) in IMAGES.iter().zip(images) {
        build::copy(&image, &share.join(format!("{name}.elf")))?;
    }
    let soname = library(prefix, &built)?;
    let description = package.join("flexcast.pc");
    std::fs::write(&description, pkg_config()).with_context(|| format!("writing {}", description.display()))?;
    let cmake = prefix.join("lib/cmake/Flexcast");
    std::fs::create_dir_all(&cmake).with_context(|| format!("creating {}", cmake.display()))?;
    for (name, text) in
        [("FlexcastConfig.cmake", cmake_config(&soname)), ("FlexcastConfigVersion.cmake", cmake_version())]
    {
        std::fs::write(cmake.join(name), text).with_context(|| format!("writing {}", cmake.join(name).display()))?;
    }
    status::say("Installed", prefix.display());
    Ok(())
}

/// Puts header, static and shared library below a folder, of what cargo has built; returns the shared library's name.
pub(crate) fn library(prefix: &Path, built: &Path) -> Result<String> {
    let include = prefix.join("include");
    std::fs::create_dir_all(&include).with_context(|| format!("creating {}", include.display()))?;
    build::copy(&workspace::root().join(header::PATH), &include.join("flexcast.h"))?;
    let lib = prefix.join("lib");
    let soname = shared_library(&lib, built)?;
    build::copy(built, &lib.join("libflexcast.a"))?;
    emu_libs::name_too(&lib.join(LIBRARY), &soname)?;
    Ok(soname)
}

/// Puts the shared library alone into a folder, of what cargo has built; returns its name.
pub(crate) fn shared_library(folder: &Path, built: &Path) -> Result<String> {
    let compiler = emu_libs::compiler(LIBRARY, process::find)?;
    std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let soname = format!("{LIBRARY}.{SERVES_FROM}");
    emu_libs::link(
        &compiler,
        built,
        &folder.join(&soname),
        &soname,
        &workspace::own_root().join("host/capi/link.map"),
    )?;
    Ok(soname)
}

/// What pkg-config reads. The prefix is where the file is found, so that a finished folder can be packed and moved.
fn pkg_config() -> String {
    format!(
        "prefix=${{pcfiledir}}/../..\n\
         includedir=${{prefix}}/include\n\
         libdir=${{prefix}}/lib\n\
         firmware=${{prefix}}/share/flexcast/{image}.elf\n\
         sparse_firmware=${{prefix}}/share/flexcast/{sparse}.elf\n\
         \n\
         Name: Flexcast\n\
         Description: Collective operations over multicast, by the DPA of network cards, over RDMA cards or over \
         Ethernet\n\
         Version: {version}\n\
         Cflags: -I${{includedir}}\n\
         Libs: -L${{libdir}} -lflexcast\n\
         Libs.private: {system}\n",
        image = IMAGES[0],
        sparse = IMAGES[1],
        version = env!("CARGO_PKG_VERSION"),
        system = emu_libs::SYSTEM_LIBRARIES.join(" "),
    )
}

/// What `find_package(Flexcast)` of CMake reads: the targets Flexcast::flexcast and Flexcast::flexcast-static.
fn cmake_config(soname: &str) -> String {
    format!(
        "get_filename_component(_flexcast_prefix \"${{CMAKE_CURRENT_LIST_DIR}}/../../..\" ABSOLUTE)\n\
         set(Flexcast_FIRMWARE \"${{_flexcast_prefix}}/share/flexcast/{image}.elf\")\n\
         set(Flexcast_SPARSE_FIRMWARE \"${{_flexcast_prefix}}/share/flexcast/{sparse}.elf\")\n\
         if(NOT TARGET Flexcast::flexcast)\n  \
           add_library(Flexcast::flexcast SHARED IMPORTED)\n  \
           set_target_properties(Flexcast::flexcast PROPERTIES\n    \
             IMPORTED_LOCATION \"${{_flexcast_prefix}}/lib/{soname}\"\n    \
             IMPORTED_SONAME \"{soname}\"\n    \
             INTERFACE_INCLUDE_DIRECTORIES \"${{_flexcast_prefix}}/include\")\n  \
           add_library(Flexcast::flexcast-static STATIC IMPORTED)\n  \
           set_target_properties(Flexcast::flexcast-static PROPERTIES\n    \
             IMPORTED_LOCATION \"${{_flexcast_prefix}}/lib/libflexcast.a\"\n    \
             INTERFACE_LINK_LIBRARIES \"{system}\"\n    \
             INTERFACE_INCLUDE_DIRECTORIES \"${{_flexcast_prefix}}/include\")\n\
         endif()\n\
         unset(_flexcast_prefix)\n",
        image = IMAGES[0],
        sparse = IMAGES[1],
        system = emu_libs::SYSTEM_LIBRARIES.join(";"),
    )
}

/// Which versions a program may ask CMake for: this release, and none before it that is not compatible.
fn cmake_version() -> String {
    format!(
        "set(PACKAGE_VERSION \"{version}\")\n\
         if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)\n  \
           set(PACKAGE_VERSION_COMPATIBLE FALSE)\n\
         else()\n  \
           set(PACKAGE_VERSION_COMPATIBLE TRUE)\n  \
           if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)\n    \
             set(PACKAGE_VERSION_EXACT TRUE)\n  \
           endif()\n\
         endif()\n",
        version = env!("CARGO_PKG_VERSION"),
    )
}
