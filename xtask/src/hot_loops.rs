//! Listing of the hot loops with a reason for each instruction, and the check that they are the reviewed ones.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use flexcast_image::Image;
use flexcast_image::callgraph::CallGraph;
use flexcast_image::loops::{Loop, loops};
use flexcast_isa::{Flow, Instruction};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::toolchain::Toolchain;
use crate::{build, new_file, page, status, workspace};

/// Write target/docs/hot-loops.md from the images and the reasons of docs/hot-loops.toml.
#[derive(clap::Args)]
pub(crate) struct HotLoops {
    /// Write no page; fail where an instruction of the images has no reason, or a loop is not the one in
    /// docs/hot-loops.lock.
    #[arg(long)]
    check: bool,
    /// Print the loops as entries for docs/hot-loops.toml, with the reasons that still fit.
    #[arg(long, conflicts_with = "check")]
    entries: bool,
    /// Accept the loops of the images as reviewed: write docs/hot-loops.lock.
    #[arg(long, conflicts_with_all = ["check", "entries"])]
    accept: bool,
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

/// One loop of the page.
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
                "the images are built by rustc {other}: the reasons of docs/hot-loops.toml, docs/hot-loops.lock and \
                 the exact figures of the tests are for {}; change `compiler` in docs/hot-loops.toml and update them",
                table.compiler
            );
        }
        let loops = loops_with_reasons(&table, &images)?;
        if self.accept {
            return accept(&loops);
        }
        page::write("hot-loops.md", render(&table, &loops))
    }
}

/// Fails where an instruction of a loop has no reason, a loop exceeds the instruction cache, or a loop is not the one
/// that was reviewed.
pub(crate) fn check() -> Result<()> {
    let table = table()?;
    let images = built_images(&table)?;
    if let Some(other) = other_compiler(&table, &images) {
        status::warn(format_args!(
            "the hot loops are not checked: docs/hot-loops.toml is for rustc {}, the images are built by {other}",
            table.compiler
        ));
        return Ok(());
    }
    let loops = loops_with_reasons(&table, &images)?;
    let path = workspace::root().join(LOCK);
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let reviewed = toml::from_str(&text).with_context(|| path.display().to_string())?;
    let findings = unreviewed(&reviewed, &summaries(&loops));
    if findings.is_empty() {
        return Ok(());
    }
    bail!(
        "{}\n`cargo xtask hot-loops` writes the listing to target/docs/hot-loops.md; `cargo xtask hot-loops --accept` \
         accepts the loops of the images",
        findings.join("\n")
    )
}

/// The loops that were reviewed: for each title the [`summary`] of its loop.
const LOCK: &str = "docs/hot-loops.lock";

/// Writes the loops of the images to the file of the reviewed ones.
fn accept(loops: &[(&Entry, Found)]) -> Result<()> {
    let path = workspace::root().join(LOCK);
    new_file::write(&path, lock(&summaries(loops))).with_context(|| format!("writing {}", path.display()))?;
    status::say("Wrote", path.display());
    Ok(())
}

/// Text of the file of the reviewed loops.
fn lock(summaries: &[(&str, String)]) -> String {
    let mut out = String::from(
        "# The reviewed loops of docs/hot-loops.toml: size, and the first 8 bytes of the SHA-256 of the listing.\n\
         # Written by `cargo xtask hot-loops --accept`.\n",
    );
    for (title, summary) in summaries {
        let _ = writeln!(out, "{title:?} = {summary:?}");
    }
    out
}

/// Title and [`summary`] of each loop.
fn summaries<'t>(loops: &[(&'t Entry, Found)]) -> Vec<(&'t str, String)> {
    loops.iter().map(|(entry, found)| (entry.title.as_str(), summary(found))).collect()
}

/// Size and digest of a loop. The digest covers offset and text of each instruction.
fn summary(found: &Found) -> String {
    let mut hash = Sha256::new();
    for instruction in &found.code {
        hash.update(format!("{:x} {}\n", instruction.addr() - found.start, relative_text(instruction, found)));
    }
    let hex: String = hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{} instructions, {} bytes, {hex}", found.code.len(), found.size_bytes())
}

/// Loops that differ from the reviewed ones, one line each, and reviewed ones that are no longer there.
fn unreviewed(reviewed: &BTreeMap<String, String>, summaries: &[(&str, String)]) -> Vec<String> {
    let changed = summaries.iter().filter_map(|(title, is)| match reviewed.get(*title) {
        Some(was) if was == is => None,
        Some(was) => Some(format!("loop {title}: the image has {is}; {LOCK} has {was}")),
        None => Some(format!("loop {title}: the image has {is}; {LOCK} does not list it")),
    });
    let gone = reviewed.keys().filter(|title| summaries.iter().all(|(other, _)| other != title));
    changed.chain(gone.map(|title| format!("loop {title}: {LOCK} lists it, docs/hot-loops.toml does not"))).collect()
}

/// Titles and sizes in bytes of the loops that the page shows of this image.
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

/// The version of the compiler that built the images, where it is not the one that the reasons are for.
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

/// The loops of the table in their images. Fails where one has an instruction without a reason, exceeds the instruction
/// cache of a core, or has the title of another one.
fn loops_with_reasons<'t>(table: &'t Table, images: &BTreeMap<String, Image>) -> Result<Vec<(&'t Entry, Found)>> {
    let cache_bytes = Toolchain::load("emu")?.code_cache_bytes;
    let mut loops: Vec<(&Entry, Found)> = Vec::new();
    for entry in &table.loops {
        let found = find(entry, &images[&entry.image])?;
        compare(entry, &found)?;
        if found.size_bytes() > cache_bytes {
            bail!("loop {}: {} bytes exceed the instruction cache of {cache_bytes}", entry.title, found.size_bytes());
        }
        if loops.iter().any(|(other, _)| other.title == entry.title) {
            bail!("docs/hot-loops.toml: two loops have the title `{}`", entry.title);
        }
        loops.push((entry, found));
    }
    Ok(loops)
}

fn render(table: &Table, loops: &[(&Entry, Found)]) -> String {
    let mut out = String::from(
        "# Hot loops, instruction by instruction\n\n<!-- Written by `cargo xtask hot-loops` from the images and \
         docs/hot-loops.toml; edit that. -->\n\n",
    );
    let _ = writeln!(out, "{}\n\nCompiled by rustc {}.", table.introduction.trim_end(), table.compiler);
    for (entry, found) in loops {
        render_loop(&mut out, entry, found);
    }
    out
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

fn render_loop(out: &mut String, entry: &Entry, found: &Found) {
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

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x4000_0000;
    const BYTES: [u8; 10] = [
        0x03, 0xb5, 0x05, 0x00, // ld a0, 0(a1)
        0x85, 0x05, // c.addi a1, 1
        0xe3, 0x1d, 0xb5, 0xfe, // bne a0, a1, -6
    ];

    fn found(start: u64, bytes: &[u8]) -> Found {
        let code: Vec<Instruction> = flexcast_isa::decode_all(start, bytes).collect();
        Found { title: "a loop".to_owned(), code, function: "f".to_owned(), start }
    }

    fn reviewed(summaries: &[(&str, String)]) -> BTreeMap<String, String> {
        toml::from_str(&lock(summaries)).expect("the file of the reviewed loops can be read")
    }

    #[test]
    fn a_loop_is_the_reviewed_one_wherever_it_lies() {
        let at_start = summary(&found(START, &BYTES));
        assert!(at_start.starts_with("3 instructions, 10 bytes, "), "{at_start}");
        let elsewhere = summary(&found(START + 0x1000, &BYTES));
        let reviewed = reviewed(&[("a \"loop\"", at_start)]);
        assert_eq!(unreviewed(&reviewed, &[("a \"loop\"", elsewhere)]), [""; 0]);
    }

    #[test]
    fn another_operand_is_named_with_its_loop() {
        let was = summary(&found(START, &BYTES));
        let mut bytes = BYTES;
        bytes[2] = 0x85; // 8(a1)
        let is = summary(&found(START, &bytes));
        assert_ne!(was, is);
        let findings = unreviewed(&reviewed(&[("a loop", was.clone())]), &[("a loop", is.clone())]);
        assert_eq!(findings, [format!("loop a loop: the image has {is}; docs/hot-loops.lock has {was}")]);
    }

    #[test]
    fn new_loops_and_former_ones_are_named() {
        let findings = unreviewed(&reviewed(&[("former", "x".to_owned())]), &[("new", "y".to_owned())]);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].starts_with("loop new: ") && findings[0].ends_with("does not list it"), "{findings:?}");
        assert!(findings[1].starts_with("loop former: "), "{findings:?}");
    }
}
