//! Device programs of others, compiled against our headers of the device library: which build, by which generation of
//! the interface, and what is wrong with the others.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use comfy_table::{Table, presets};

use crate::{process, status, workspace};

/// Compile the device programs in folders of sources against the project's headers, by each generation of the device
/// interface, and print which build.
///
/// A device program is a C file that names functions of the device library or marks entries of an image, in itself or
/// in a header of the folder. All folders with headers are searched for includes. Needs a RISC-V compiler (Debian:
/// gcc-riscv64-unknown-elf).
#[derive(clap::Args)]
pub(crate) struct VendorPrograms {
    /// Folder of sources, such as a clone of a repository; may be given several times.
    #[arg(long, value_name = "DIR", required = true)]
    source: Vec<PathBuf>,
    /// Print a JSON object for each file instead of a table.
    #[arg(long)]
    json: bool,
}

const COMPILER: &str = "riscv64-unknown-elf-gcc";
const FLAGS: [&str; 11] = [
    "-march=rv64imac_zicsr_zifencei_zbb_zbs",
    "-mabi=lp64",
    "-mcmodel=medany",
    "-std=gnu11",
    "-O2",
    "-ffreestanding",
    "-fsyntax-only",
    "-fmax-errors=1",
    "-fdiagnostics-plain-output",
    "-w",
    "-DFLEXIO_DEV_ALLOW_EXPERIMENTAL_API",
];

/// Generations of the device interface, as a program's build would choose them; the first is what the program asks for
/// itself, or the headers' own.
const GENERATIONS: [(&str, Option<&str>); 4] =
    [("its own", None), ("24.7", Some("0x18070000")), ("25.1", Some("0x19010000")), ("26.4", Some("0x1a040000"))];

/// What a device program is known by.
const MARKS: [&str; 4] = ["libflexio-dev/", "flexio_dev_", "__dpa_global__", "__dpa_rpc__"];
/// Largest file that is read.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// A file and the generation that it compiles by, or what the compiler says.
#[derive(serde::Serialize)]
struct Row {
    file: String,
    generation: Option<&'static str>,
    refused: Option<String>,
}

impl VendorPrograms {
    pub(crate) fn run(self) -> Result<()> {
        if process::find(COMPILER).is_none() {
            bail!("{COMPILER} is not installed (Debian: gcc-riscv64-unknown-elf)");
        }
        let mut rows = Vec::new();
        for source in &self.source {
            let sources = Sources::of(source)?;
            if sources.programs.is_empty() {
                bail!("{}: no C file in it names a function of the device library", source.display());
            }
            for program in &sources.programs {
                status::say("Compiling", program.display());
                rows.push(sources.compile(program)?);
            }
        }
        print(&rows, self.json)
    }
}

fn print(rows: &[Row], json: bool) -> Result<()> {
    if json {
        return rows.iter().try_for_each(|row| status::print(serde_json::to_string(row)?));
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["device program", "compiles by", "or is refused"]);
    for Row { file, generation, refused } in rows {
        table.add_row([file, generation.unwrap_or("none"), refused.as_deref().unwrap_or_default()]);
    }
    status::print(&table)?;
    let compiled = rows.iter().filter(|row| row.generation.is_some()).count();
    status::print(format_args!("{compiled} of {} compile", rows.len()))
}

/// A folder of sources.
struct Sources {
    root: PathBuf,
    programs: Vec<PathBuf>,
    /// Folders that have headers.
    include: BTreeSet<PathBuf>,
}

impl Sources {
    fn of(root: &Path) -> Result<Self> {
        let (mut files, mut include) = (Vec::new(), BTreeSet::new());
        collect(root, &mut files)?;
        let mut marked_headers = BTreeSet::new();
        for header in files.iter().filter(|file| file.extension().is_some_and(|is| is == "h")) {
            let text = read(header)?;
            if let Some(name) = header.file_name().filter(|_| is_marked(&text)) {
                marked_headers.insert(name.to_string_lossy().into_owned());
            }
            include.extend(header.parent().map(Path::to_path_buf));
        }
        include.insert(root.to_path_buf());
        let mut programs = Vec::new();
        for file in files.iter().filter(|file| file.extension().is_some_and(|is| is == "c")) {
            let text = read(file)?;
            let includes = |name: &String| text.contains(&format!("{name}\""));
            if is_marked(&text) || marked_headers.iter().any(includes) {
                programs.push(file.clone());
            }
        }
        programs.sort();
        Ok(Self { root: root.to_path_buf(), programs, include })
    }

    fn compile(&self, program: &Path) -> Result<Row> {
        let file = program.strip_prefix(&self.root).unwrap_or(program).display().to_string();
        let own = program.file_name().unwrap_or_default().to_string_lossy();
        let mut said = Vec::new();
        for (name, used) in GENERATIONS {
            match self.diagnostics(program, used)? {
                None => return Ok(Row { file, generation: Some(name), refused: None }),
                Some(line) => said.push(line),
            }
        }
        // Where the compiler gets to the program itself, the headers are of its generation.
        let refused = said.iter().find(|line| line.starts_with(&*own)).or(said.first()).cloned();
        Ok(Row { file, generation: None, refused })
    }

    /// The first line that the compiler says; `None` if it compiles.
    fn diagnostics(&self, program: &Path, used: Option<&str>) -> Result<Option<String>> {
        let headers = workspace::root().join("device/rt-emu/include");
        let mut command = Command::new(COMPILER);
        command.args(FLAGS).args(used.map(|used| format!("-DFLEXIO_DEV_VER_USED={used}")));
        // Those of DOCA include what both sides share.
        let shared = workspace::root().join("host/doca-sys/include");
        for folder in [headers.join("libflexio-dev"), headers, shared].iter().chain(&self.include) {
            command.arg("-I").arg(folder);
        }
        let output = command.arg(program).output().with_context(|| format!("starting {COMPILER}"))?;
        if output.status.success() {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().find(|line| line.contains("error: ")).unwrap_or("it fails without a word");
        let (place, what) = line.split_once("error: ").unwrap_or(("", line));
        let place = place.rsplit('/').next().unwrap_or(place).trim_end();
        Ok(Some(format!("{place} {what}").trim_start().to_owned()))
    }
}

fn is_marked(text: &str) -> bool {
    MARKS.iter().any(|mark| text.contains(mark))
}

/// The text of a file, or as much as is UTF-8; empty for one that is too large for a source.
fn read(file: &Path) -> Result<String> {
    let context = || format!("reading {}", file.display());
    if fs::metadata(file).with_context(context)?.len() > MAX_FILE_BYTES {
        return Ok(String::new());
    }
    Ok(String::from_utf8_lossy(&fs::read(file).with_context(context)?).into_owned())
}

/// The regular files below a folder; links are not followed, and `.git` is left out.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() && entry.file_name() != ".git" {
            collect(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_each_generation_are_found_and_compiled() {
        if process::find(COMPILER).is_none() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let old = "#include \"common.h\"\nvoid arm(struct flexio_dev_thread_ctx *dtctx)\n{\n\
                   \tflexio_dev_cq_arm(dtctx, 1, 2);\n}\n";
        write("shared/common.h", "#include <libflexio-dev/flexio_dev_queue_access.h>\n");
        write("old/device.c", old);
        write("new/device.c", "#include \"common.h\"\nvoid arm(void)\n{\n\tflexio_dev_cq_arm(1, 2);\n}\n");
        write("latest/device.c", "#include \"common.h\"\nint kind = FLEXIO_CTRL_SEG_TYPE_SEND_EN;\n");
        write("wrong/device.c", "#include \"common.h\"\nint kind = FLEXIO_CTRL_SEG_ROUND;\n");
        write("host.c", "int main(void)\n{\n\treturn 0;\n}\n");
        let sources = Sources::of(folder.path()).unwrap();
        let rows: Vec<Row> = sources.programs.iter().map(|program| sources.compile(program).unwrap()).collect();
        let found: Vec<_> = rows.iter().map(|row| (row.file.as_str(), row.generation)).collect();
        assert_eq!(
            found,
            [
                ("latest/device.c", Some("26.4")),
                ("new/device.c", Some("its own")),
                ("old/device.c", Some("24.7")),
                ("wrong/device.c", None)
            ]
        );
        let refused = rows[3].refused.as_deref().unwrap();
        assert!(refused.contains("device.c:2:") && refused.contains("FLEXIO_CTRL_SEG_ROUND"), "{refused}");
    }

    #[test]
    fn a_folder_without_device_programs_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Sources::of(folder.path()).unwrap().programs.is_empty());
        assert!(Sources::of(&folder.path().join("none")).is_err());
    }
}
