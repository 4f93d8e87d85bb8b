//! The command line of the vendor's compiler driver, as build files of DPA programs call it.
//!
//! Options have one dash or two, and a value behind `=` or as the next argument. Lists within a value are separated by
//! commas (`-devicecc-options`) or spaces (`-device-libs`); both are taken in both.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context as _, bail};

/// What a call asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Sources in C for the DPA.
    pub(crate) sources: Vec<PathBuf>,
    /// Objects that an earlier call with `-c` has made of sources.
    pub(crate) objects: Vec<PathBuf>,
    /// Each source becomes an object, and nothing is linked.
    pub(crate) compile_only: bool,
    /// Archive that the host program links; with `-c` the object.
    pub(crate) output: Option<PathBuf>,
    /// The host's compiler.
    pub(crate) host_compiler: Option<String>,
    pub(crate) host_options: Vec<String>,
    pub(crate) device_options: Vec<String>,
    /// `-l` and `-L` of the device.
    pub(crate) device_libraries: Vec<String>,
    /// Name of the application: that of the `struct flexio_app *` that the host program names.
    pub(crate) app_name: Option<String>,
    /// Files on the way are left in the folder of the output.
    pub(crate) keep: bool,
    /// Options that have no meaning here, to be named.
    pub(crate) ignored: Vec<String>,
    /// Version of the device interface for programs that name none.
    pub(crate) device_version: Option<DeviceVersion>,
    /// Folder for an emulated SDK: nothing is compiled.
    pub(crate) sdk: Option<PathBuf>,
    /// The emulator's libraries.
    pub(crate) libraries: Option<PathBuf>,
    pub(crate) help: bool,
    pub(crate) version: bool,
}

/// A version of the device interface, as its headers count: the last two digits of the year, month, patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceVersion([u8; 3]);

impl DeviceVersion {
    /// Reads `24.7` or `24.7.0`.
    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut parts = [0; 3];
        let mut given = text.split('.');
        for (place, part) in parts.iter_mut().zip(given.by_ref()) {
            *place = part.parse().ok().with_context(|| format!("--dev-ver is {text:?}: a version is as 24.7"))?;
        }
        // FlexIO counts by year since DOCA 2.6; releases before it have the interface of 24.1.
        if given.next().is_some() || !(1..=12).contains(&parts[1]) || !(24..=26).contains(&parts[0]) {
            bail!("--dev-ver is {text:?}: 24.1 to 26.12 are possible, the year and the month of a release");
        }
        Ok(Self(parts))
    }

    /// The option by which the headers learn of it.
    pub(crate) fn define(self) -> String {
        let [major, minor, patch] = self.0;
        format!("-DFLEXCAST_DEV_VER={:#x}", u32::from_be_bytes([major, minor, patch, 0]))
    }
}

impl std::fmt::Display for DeviceVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// Values of options that hold options: separated by commas or spaces.
fn list(value: &str) -> impl Iterator<Item = String> + '_ {
    value.split([',', ' ', '\t', '\n']).filter(|part| !part.is_empty()).map(str::to_owned)
}

/// Options without a value that nothing follows from.
const IGNORED_FLAGS: [&str; 4] = ["flto", "disable-asm-checks", "verbose", "no-fatbin"];
/// The same with a value.
const IGNORED_VALUES: [&str; 4] = ["mcpu", "keep-dir", "devicelink-options", "dpa-proc-attr"];

impl Options {
    /// Reads arguments.
    ///
    /// # Errors
    /// An option that the driver does not have, or without its value.
    pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> anyhow::Result<Self> {
        let mut options = Self::default();
        let mut rest = arguments.into_iter();
        while let Some(argument) = rest.next() {
            let text = argument.to_str().with_context(|| format!("{} is not UTF-8", argument.display()))?;
            let Some(option) = text.strip_prefix("--").or_else(|| text.strip_prefix('-')) else {
                options.input(argument.into())?;
                continue;
            };
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (option, None),
            };
            let mut next = || -> anyhow::Result<String> {
                let next = || rest.next().and_then(|next| next.into_string().ok());
                value.clone().or_else(next).with_context(|| format!("-{name} has no value"))
            };
            match name {
                "o" | "output-file" => options.output = Some(next()?.into()),
                "hostcc" => options.host_compiler = Some(next()?),
                "hostcc-options" => options.host_options.extend(list(&next()?)),
                "devicecc-options" => options.device_options.extend(list(&next()?)),
                "device-libs" => options.device_libraries.extend(list(&next()?)),
                "app-name" => options.app_name = Some(next()?),
                "I" | "D" | "U" | "include-path" => {
                    let letter = if name == "include-path" { "I" } else { name };
                    options.device_options.push(format!("-{letter}{}", next()?));
                }
                "l" | "L" => options.device_libraries.push(format!("-{name}{}", next()?)),
                "keepflexio" | "keep" => options.keep = true,
                "dev-ver" => options.device_version = Some(DeviceVersion::parse(&next()?)?),
                "sdk" => options.sdk = Some(next()?.into()),
                "emu-libs" => options.libraries = Some(next()?.into()),
                "h" | "help" => options.help = true,
                "V" | "version" => options.version = true,
                "c" | "compile" => options.compile_only = true,
                "gen-libs" | "dpa-lib" => {
                    bail!("-{name}: libraries are not made: compile with -c, and give the objects to the last call")
                }
                _ if IGNORED_FLAGS.contains(&name) => options.ignored.push(text.to_owned()),
                _ if IGNORED_VALUES.contains(&name) => {
                    next()?;
                    options.ignored.push(text.to_owned());
                }
                _ => match option.split_at_checked(1) {
                    Some(("I" | "D" | "U" | "O" | "W" | "g" | "f", _)) => options.device_options.push(text.to_owned()),
                    Some(("l" | "L", _)) => options.device_libraries.push(text.to_owned()),
                    _ => bail!("-{name}: no option of this driver; `flexcast dpacc --help` lists them"),
                },
            }
        }
        Ok(options)
    }

    /// Takes a file by its name: a source in C, or an object.
    fn input(&mut self, file: PathBuf) -> anyhow::Result<()> {
        match file.extension().and_then(std::ffi::OsStr::to_str) {
            Some("c") => self.sources.push(file),
            Some("o") => self.objects.push(file),
            _ => bail!("{}: inputs are sources in C (NAME.c) and objects of -c (NAME.o)", file.display()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &[&str]) -> anyhow::Result<Options> {
        Options::parse(line.iter().map(OsString::from))
    }

    #[test]
    fn lines_of_build_files_are_read() {
        let options = parse(&[
            "device.c",
            "other.c",
            "third.dpa.o",
            "-o",
            "build/app.a",
            "-hostcc=gcc",
            "-hostcc-options=-Wno-deprecated-declarations -O3",
            "--devicecc-options=-Wall,-O3,-DE_MODE_LE,-I/opt/include",
            "--device-libs=-L/opt/lib -lflexio_dev",
            "--app-name=app",
            "-flto",
            "-mcpu=nv-dpa-bf3",
            "-DX=1",
            "-I",
            "inc",
            "-O2",
            "--keepflexio",
            "--dev-ver=24.7",
        ])
        .unwrap();
        let strings = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            options,
            Options {
                sources: vec!["device.c".into(), "other.c".into()],
                objects: vec!["third.dpa.o".into()],
                output: Some("build/app.a".into()),
                host_compiler: Some("gcc".to_owned()),
                host_options: strings(&["-Wno-deprecated-declarations", "-O3"]),
                device_options: strings(&["-Wall", "-O3", "-DE_MODE_LE", "-I/opt/include", "-DX=1", "-Iinc", "-O2"]),
                device_libraries: strings(&["-L/opt/lib", "-lflexio_dev"]),
                app_name: Some("app".to_owned()),
                keep: true,
                device_version: Some(DeviceVersion([24, 7, 0])),
                ignored: strings(&["-flto", "-mcpu=nv-dpa-bf3"]),
                ..Options::default()
            }
        );
    }

    #[test]
    fn what_it_does_not_have_is_named() {
        for (line, named) in [
            (&["-nonsense"][..], "-nonsense: no option"),
            (&["a.c", "-o"], "-o has no value"),
            (&["-gen-libs", "a.o"], "-gen-libs: libraries are not made"),
            (&["-dev-ver", "2.7"], "24.1 to 26.12 are possible"),
            (&["-dev-ver=24.7.0.1"], "24.1 to 26.12 are possible"),
            (&["--dev-ver", "24.x"], "a version is as 24.7"),
            (&["a.cpp"], "a.cpp: inputs are sources in C"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
