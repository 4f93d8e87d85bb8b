use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use flexcast_image::Image;
use flexcast_image::callgraph::CallGraph;
use flexcast_image::loops::{Loop, loops};
use flexcast_isa::{Flow, Instruction};
use serde::Deserialize;

use crate::toolchain::Toolchain;
use crate::{build, new_file, status, workspace};

/// Write docs/hot-loops.md from the images and the reasons of docs/hot-loops.toml.
#[derive(clap::Args)]
pub(crate) struct HotLoops {
    /// Only compare; fail where the document differs from the images.
    #[arg(long)]
    check: bool,
    /// Print the loops as entries for docs/hot-loops.toml, with the reasons that still fit.
    #[arg(long, conflicts_with = "check")]
    entries: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// rustc MAJOR.MINOR that the loops are those of.
    compiler: String,
    introduction: String,
    #[serde(rename = "loop")]
    loops: Vec<Entry>,
}

/// One loop of the document.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    title: String,
    image: String,
    /// Demangled name of the function that holds it, or the end of that name.
    function: String,
    /// Which of the function's innermost loops, by address of the head, from 0.
    nth_loop: usize,
    text: String,
    /// How often `each` is there, one behind another, before `reasons`.
    #[serde(default)]
    times: usize,
    /// Mnemonics and reasons of what is unrolled, shown once.
    #[serde(default)]
    each: Vec<(String, String)>,
    /// Mnemonic and reason of each instruction, in order of address.
    reasons: Vec<(String, String)>,
}

impl Entry {
    /// Mnemonic and reason of each instruction of the loop.
    fn all(&self) -> impl Iterator<Item = &(String, String)> + Clone {
        std::iter::repeat_n(&self.each, self.times).flatten().chain(&self.reasons)
    }

    /// Instructions that are not shown: repetitions of the first ones.
    fn hidden(&self) -> std::ops::Range<usize> {
        self.each.len()..self.each.len() * self.times.max(1)
    }
}

/// A loop in its image.
struct Found {
    title: String,
    code: Vec<Instruction>,
    function: String,
    /// Address of its first instruction.
    start: u64,
}

impl Found {
    fn size_bytes(&self) -> u64 {
        self.code.iter().map(|instruction| u64::from(instruction.size_bytes())).sum()
    }
}

impl HotLoops {
    pub(crate) fn run(&self) -> Result<()> {
        if self.check {
            return check();
        }
        if self.entries {
            return print_entries();
        }
        let table = table()?;
        let images = built_images(&table)?;
        if let Some(other) = other_compiler(&table, &images) {
            bail!(
                "the images are built by rustc {other}: the reasons of docs/hot-loops.toml and the exact figures of \
                 the tests are for {}; change `compiler` there and bring both up to date",
                table.compiler
            );
        }
        let text = generate(&table, &images)?;
        new_file::write(document(), text).with_context(|| format!("writing {}", document().display()))?;
        status::say("Wrote", document().display());
        Ok(())
    }
}

/// Fails where docs/hot-loops.md is not what the images say.
pub(crate) fn check() -> Result<()> {
    let table = table()?;
    let images = built_images(&table)?;
    if let Some(other) = other_compiler(&table, &images) {
        status::warn(format_args!(
            "docs/hot-loops.md is not compared: it is for rustc {}, the images are built by {other}",
            table.compiler
        ));
        return Ok(());
    }
    let new = generate(&table, &images)?;
    let old = std::fs::read_to_string(document()).unwrap_or_default();
    if let Some((number, (was, is))) = old
        .lines()
        .map(Some)
        .chain(std::iter::repeat(None))
        .zip(new.lines())
        .enumerate()
        .find(|(_, (a, b))| *a != Some(*b))
    {
        bail!(
            "docs/hot-loops.md:{} differs from the images; run `cargo xtask hot-loops`\n    - {}\n    + {is}",
            number + 1,
            was.unwrap_or("(end of file)")
        );
    }
    if old.len() != new.len() {
        bail!("docs/hot-loops.md is longer than what the images say; run `cargo xtask hot-loops`");
    }
    Ok(())
}

/// Titles and sizes in bytes of the loops that the document shows of this image.
pub(crate) fn loop_sizes(name: &str, image: &Image) -> Result<Vec<(String, u64)>> {
    let table = table()?;
    let entries = table.loops.iter().filter(|entry| entry.image == name);
    entries
        .map(|entry| {
            let found = find(entry, image)?;
            let bytes = found.size_bytes();
            Ok((found.title, bytes))
        })
        .collect()
}

fn document() -> PathBuf {
    workspace::root().join("docs/hot-loops.md")
}

fn table() -> Result<Table> {
    let path = workspace::root().join("docs/hot-loops.toml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    toml::from_str(&text).with_context(|| path.display().to_string())
}

fn built_images(table: &Table) -> Result<BTreeMap<String, Image>> {
    let mut names: Vec<String> = table.loops.iter().map(|entry| entry.image.clone()).collect();
    names.sort();
    names.dedup();
    let files = build::build(&Toolchain::load("emu")?, &workspace::select_images(&names)?)?;
    let parse = |(name, file): (String, PathBuf)| {
        let bytes = std::fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        Ok((name, Image::parse(&bytes).with_context(|| file.display().to_string())?))
    };
    names.into_iter().zip(files).map(parse).collect()
}

/// The version of the compiler that built the images, where it is not the one that the document is for.
fn other_compiler<'i>(table: &Table, images: &'i BTreeMap<String, Image>) -> Option<&'i str> {
    let versions = images.values().map(|image| image.compiler().unwrap_or("an unknown compiler"));
    let same = |version: &str| version.strip_prefix(&table.compiler).is_some_and(|rest| rest.starts_with('.'));
    versions.into_iter().find(|version| !same(version))
}

fn find(entry: &Entry, image: &Image) -> Result<Found> {
    let graph = CallGraph::of(image);
    let named: Vec<_> = graph.functions().filter(|function| function.name.ends_with(&entry.function)).collect();
    let [function] = named[..] else {
        let names: Vec<&str> = graph.functions().map(|function| function.name.as_str()).collect();
        bail!(
            "image {} has {} functions named `{}`, one is wanted; it has: {}",
            entry.image,
            named.len(),
            entry.function,
            names.join(", ")
        );
    };
    let all = loops(image, function.addr, function.end);
    let innermost: Vec<&Loop> = all.iter().filter(|l| !all.iter().any(|other| l.encloses(other))).collect();
    let Some(chosen) = innermost.get(entry.nth_loop) else {
        bail!(
            "`{}` has {} loops, docs/hot-loops.toml asks for number {}",
            function.name,
            innermost.len(),
            entry.nth_loop
        );
    };
    let code: Vec<Instruction> =
        image.instructions(function.addr, function.end).filter(|i| chosen.body.contains(&i.addr())).collect();
    let start = code.first().map_or(function.addr, |instruction| instruction.addr());
    Ok(Found { title: entry.title.clone(), code, function: function.name.clone(), start })
}

fn generate(table: &Table, images: &BTreeMap<String, Image>) -> Result<String> {
    let cache_bytes = Toolchain::load("emu")?.code_cache_bytes;
    let mut out = String::from(
        "# Hot loops, instruction by instruction\n\n<!-- Written by `cargo xtask hot-loops` from the images and \
         docs/hot-loops.toml; do not edit. -->\n\n",
    );
    let _ = writeln!(out, "{}\n\nCompiled by rustc {}.", table.introduction.trim_end(), table.compiler);
    for entry in &table.loops {
        let found = find(entry, &images[&entry.image])?;
        compare(entry, &found)?;
        if found.size_bytes() > cache_bytes {
            bail!("loop {}: {} bytes exceed the instruction cache of {cache_bytes}", entry.title, found.size_bytes());
        }
        render(&mut out, entry, &found);
    }
    Ok(out)
}

/// Reasons must follow the code: one for each instruction, with the mnemonic it was written for.
fn compare(entry: &Entry, found: &Found) -> Result<()> {
    let words = found.code.iter().map(word);
    let wanted = entry.all().map(|(word, _)| word.as_str());
    if let Some(at) = words.clone().zip(wanted.clone()).position(|(is, was)| is != was) {
        bail!(
            "loop {}: instruction {at} is `{}`, the reason in docs/hot-loops.toml is for `{}`; `cargo xtask hot-loops \
             --entries` prints the loop anew",
            entry.title,
            found.code[at],
            entry.all().nth(at).map_or("", |(word, _)| word)
        );
    }
    if words.len() != wanted.clone().count() {
        bail!(
            "loop {} has {} instructions, docs/hot-loops.toml has {} reasons; `cargo xtask hot-loops --entries` prints \
             the loop anew",
            entry.title,
            words.len(),
            wanted.count()
        );
    }
    Ok(())
}

/// Mnemonic as the listing shows it.
fn word(instruction: &Instruction) -> String {
    instruction.to_string().split(' ').next().unwrap_or_default().to_owned()
}

fn render(out: &mut String, entry: &Entry, found: &Found) {
    let bytes = found.size_bytes();
    let _ = write!(
        out,
        "\n## {}\n\n{}\n\nImage `{}`, function `{}`: {} instructions, {bytes} bytes.\n\n| Offset | Instruction | Why \
         |\n|---:|---|---|\n",
        entry.title,
        entry.text.trim_end(),
        entry.image,
        found.function,
        found.code.len()
    );
    let hidden = entry.hidden();
    for (at, (instruction, (_, reason))) in found.code.iter().zip(entry.all()).enumerate() {
        if at == hidden.start && !hidden.is_empty() {
            let _ = writeln!(out, "| | … | the same {} times more |", entry.times - 1);
        }
        if hidden.contains(&at) {
            continue;
        }
        let _ = writeln!(
            out,
            "| {:x} | `{}` | {reason} |",
            instruction.addr() - found.start,
            relative_text(instruction, found)
        );
    }
}

/// Targets as offsets into the loop: addresses move whenever other code grows.
fn relative_text(instruction: &Instruction, found: &Found) -> String {
    let text = instruction.to_string();
    match instruction.flow() {
        Flow::Branch(to) | Flow::Jump(to) if found.code.iter().any(|i| i.addr() == to) => {
            text.replace(&format!("{to:#x}"), &format!("+{:x}", to - found.start))
        }
        Flow::Branch(to) | Flow::Jump(to) => text.replace(&format!("{to:#x}"), "exit"),
        Flow::Call(_) => word(instruction),
        _ => text,
    }
}

fn print_entries() -> Result<()> {
    let table = table()?;
    let images = built_images(&table)?;
    for entry in &table.loops {
        let found = find(entry, &images[&entry.image])?;
        status::print(format_args!("# {}: {} instructions\nreasons = [", entry.title, found.code.len()))?;
        for (at, instruction) in found.code.iter().enumerate() {
            let old = entry.all().nth(at).filter(|(was, _)| *was == word(instruction));
            let reason = old.map_or("", |(_, reason)| reason.as_str());
            status::print(format_args!(
                "    [{:?}, {reason:?}], # {:x}: {}",
                word(instruction),
                instruction.addr() - found.start,
                relative_text(instruction, &found)
            ))?;
        }
        status::print(format_args!("]"))?;
    }
    Ok(())
}
