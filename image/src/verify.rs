//! Checks that an image can run on a given DPA, before it gets there.

use std::collections::BTreeMap;
use std::fmt;

use crate::callgraph::{CallGraph, StackBound};
use crate::elf::EF_RISCV_RVC;
use crate::isa::{Extension, Isa};
use crate::{Entry, EntryKind, Image};

/// Most findings that one check lists; the rest is counted.
const LISTED: usize = 12;

/// What an image is held against.
#[derive(Debug, Clone)]
pub struct Policy {
    /// What the target executes.
    pub isa: Isa,
    /// Version and hash of the ABI that the host was built with; `None` skips the comparison.
    pub abi: Option<(u32, u64)>,
    /// Stack of one DPA thread, in bytes.
    pub stack_bytes: u64,
    /// Path prefixes that must not be in the file, such as the home directory of who built it.
    pub private_prefixes: Vec<String>,
}

/// How a check ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Holds; says what was looked at.
    Passed(String),
    /// Does not hold; one finding per line.
    Failed(Vec<String>),
    /// Cannot be told from the file; one reason per line.
    Unknown(Vec<String>),
}

/// One check and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// How it ended.
    pub outcome: Outcome,
}

/// All checks of one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// In the order they were made.
    pub checks: Vec<Check>,
}

impl Report {
    /// No check failed. Unknowns do not fail an image: they are listed for a person to judge.
    #[must_use]
    pub fn passed(&self) -> bool {
        !self.checks.iter().any(|check| matches!(check.outcome, Outcome::Failed(_)))
    }

    /// How many checks passed, failed and could not be decided.
    #[must_use]
    pub fn counts(&self) -> (usize, usize, usize) {
        let count = |wanted: fn(&Outcome) -> bool| self.checks.iter().filter(|c| wanted(&c.outcome)).count();
        (
            count(|o| matches!(o, Outcome::Passed(_))),
            count(|o| matches!(o, Outcome::Failed(_))),
            count(|o| matches!(o, Outcome::Unknown(_))),
        )
    }

    /// The check of this name.
    #[must_use]
    pub fn check(&self, name: &str) -> Option<&Outcome> {
        self.checks.iter().find(|check| check.name == name).map(|check| &check.outcome)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in &self.checks {
            let (word, lines) = match &check.outcome {
                Outcome::Passed(detail) => ("ok", std::slice::from_ref(detail)),
                Outcome::Failed(lines) => ("FAILED", &lines[..]),
                Outcome::Unknown(lines) => ("unknown", &lines[..]),
            };
            writeln!(f, "{word:>12} {}: {}", check.name, lines.first().map_or("", String::as_str))?;
            for line in lines.iter().skip(1) {
                writeln!(f, "{:>12} {line}", "")?;
            }
        }
        Ok(())
    }
}

/// Makes all checks.
#[must_use]
pub fn verify(image: &Image, policy: &Policy) -> Report {
    let graph = CallGraph::of(image);
    let checks = vec![
        ("file header", header(image)),
        ("ISA attribute", attribute(image, &policy.isa)),
        ("instructions", instructions(image, &policy.isa)),
        ("undefined symbols", undefined(image)),
        ("relocations", relocations(image)),
        ("write xor execute", write_xor_execute(image)),
        ("entries", entries(image)),
        ("ABI note", abi(image, policy.abi)),
        ("stack", stack(image, &graph, policy.stack_bytes)),
        ("no panic in event handlers", panics(image, &graph)),
        ("private paths", private_paths(image, &policy.private_prefixes)),
    ];
    Report { checks: checks.into_iter().map(|(name, outcome)| Check { name, outcome }).collect() }
}

fn verdict(findings: Vec<String>, passed: impl FnOnce() -> String) -> Outcome {
    if findings.is_empty() { Outcome::Passed(passed()) } else { Outcome::Failed(shorten(findings)) }
}

fn shorten(mut findings: Vec<String>) -> Vec<String> {
    if findings.len() > LISTED {
        let rest = findings.len() - LISTED;
        findings.truncate(LISTED);
        findings.push(format!("… and {rest} more"));
    }
    findings
}

fn header(image: &Image) -> Outcome {
    // Class, byte order, machine and float ABI are settled by parsing; this repeats what was found.
    let kind = if image.is_position_independent() { "position-independent" } else { "fixed address" };
    Outcome::Passed(format!("64-bit little-endian RISC-V, soft float, flags {:#x}, {kind}", image.flags()))
}

fn attribute(image: &Image, isa: &Isa) -> Outcome {
    let Some(arch) = image.arch() else {
        return Outcome::Unknown(vec!["the image has no .riscv.attributes section".to_owned()]);
    };
    match isa.lacks(arch) {
        None => Outcome::Failed(vec![format!("`{arch}` is no 64-bit ISA string")]),
        Some(missing) => verdict(
            missing
                .iter()
                .map(|name| format!("the image needs `{name}`, the target has {isa} (image: {arch})"))
                .collect(),
            || arch.to_owned(),
        ),
    }
}

fn instructions(image: &Image, isa: &Isa) -> Outcome {
    let mut findings = Vec::new();
    let mut counts: BTreeMap<Extension, u64> = BTreeMap::new();
    let mut total = 0_u64;
    for section in image.sections().iter().filter(|section| section.execute && section.alloc) {
        for instruction in image.instructions(section.addr, section.addr + section.size) {
            total += 1;
            *counts.entry(instruction.extension).or_default() += 1;
            let compressed = instruction.is_compressed() && !isa.has(Extension::C);
            if isa.has(instruction.extension) && !compressed {
                continue;
            }
            let what = match instruction.extension {
                Extension::Unknown => format!("{} is no instruction that the target knows", instruction.hex()),
                _ if compressed => format!("compressed instruction {}", crate::disasm::text(&instruction)),
                extension => {
                    format!("{} instruction `{}`", extension.name().to_uppercase(), crate::disasm::text(&instruction))
                }
            };
            let place = image
                .symbolize(instruction.addr)
                .map_or_else(|| "no symbol".to_owned(), |(symbol, offset)| format!("{symbol}+{offset:#x}"));
            findings.push(format!("{what} at {:#x} in {place}", instruction.addr));
        }
    }
    if total == 0 {
        findings.push("no executable section holds an instruction".to_owned());
    }
    let compressed_in_use = image.flags() & EF_RISCV_RVC != 0;
    verdict(findings, || {
        let counts: Vec<String> = counts.iter().map(|(extension, count)| format!("{count} {extension}")).collect();
        let note = if compressed_in_use { "" } else { ", none compressed" };
        format!("{total} within {isa}: {}{note}", counts.join(", "))
    })
}

fn undefined(image: &Image) -> Outcome {
    let missing: Vec<String> = image.symbols().iter().filter(|s| !s.defined).map(crate::Symbol::demangled).collect();
    verdict(missing, || "none".to_owned())
}

fn relocations(image: &Image) -> Outcome {
    let mut findings: Vec<String> = image
        .sections()
        .iter()
        .filter(|section| section.relocations && section.size > 0)
        .map(|section| format!("{} bytes of relocations are left in {}", section.size, section.name))
        .collect();
    findings.extend(
        image.dynamic_headers().iter().map(|header| format!("program header {header}: nobody links on the DPA")),
    );
    verdict(findings, || "none left".to_owned())
}

fn write_xor_execute(image: &Image) -> Outcome {
    let findings = image
        .segments()
        .iter()
        .filter(|segment| segment.write && segment.execute)
        .map(|segment| format!("segment at {:#x} is writable and executable", segment.vaddr))
        .collect();
    verdict(findings, || format!("{} segments", image.segments().len()))
}

fn entries(image: &Image) -> Outcome {
    let mut findings = Vec::new();
    if image.entries().is_empty() {
        findings.push("no entry: mark functions with #[event_handler] or #[rpc] and keep .flexcast.entries".to_owned());
    }
    let in_text = |addr: u64| addr.is_multiple_of(2) && image.segments().iter().any(|s| s.execute && s.contains(addr));
    for entry in image.entries() {
        if !in_text(entry.addr) {
            findings.push(format!("`{}` at {:#x} is not in executable memory", entry.name, entry.addr));
        }
        if entry.kind == EntryKind::Rpc && !in_text(entry.unpack) {
            findings.push(format!(
                "unpack function of `{}` at {:#x} is not in executable memory",
                entry.name, entry.unpack
            ));
        }
        // The vendor loader knows functions by symbol, not by our table.
        match image.symbol(&entry.name) {
            Some(addr) if addr == entry.addr => {}
            Some(addr) => findings
                .push(format!("symbol `{}` is at {addr:#x}, its entry record says {:#x}", entry.name, entry.addr)),
            None => findings.push(format!("no symbol `{}`: the vendor loader could not find it", entry.name)),
        }
    }
    verdict(findings, || image.entries().iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(", "))
}

fn abi(image: &Image, expected: Option<(u32, u64)>) -> Outcome {
    let (Some((version, hash)), Some(note)) = (expected, image.abi()) else {
        return match image.abi() {
            Some(note) => Outcome::Passed(format!("version {}, not compared", note.version)),
            None => Outcome::Failed(vec![crate::ImageError::MissingAbiNote.to_string()]),
        };
    };
    match image.expect_abi(version, hash) {
        Ok(()) => Outcome::Passed(format!("version {}, hash {:#018x}", note.version, note.hash)),
        Err(error) => Outcome::Failed(vec![error.to_string()]),
    }
}

fn stack(image: &Image, graph: &CallGraph, limit_bytes: u64) -> Outcome {
    let mut failed = Vec::new();
    let mut unknown = Vec::new();
    let mut known = Vec::new();
    for entry in image.entries() {
        let mut needs = vec![(entry.name.clone(), graph.stack_bound(entry.addr))];
        if entry.unpack != 0 {
            needs.push((format!("{} (unpack)", entry.name), unpack_bound(graph, entry)));
        }
        for (name, bound) in needs {
            let Some(bound) = bound else {
                unknown.push(format!("{name}: no function symbol at its address"));
                continue;
            };
            if bound.bytes > limit_bytes {
                failed.push(format!(
                    "{name} takes {} of {limit_bytes} bytes: {}",
                    bound.bytes,
                    bound.deepest.join(" → ")
                ));
            } else if bound.unknown.is_empty() {
                known.push(format!("{name} {} B", bound.bytes));
            } else {
                let reasons = bound.unknown.join("; ");
                unknown.push(format!("{name}: at least {} bytes, {reasons}", bound.bytes));
            }
        }
    }
    match (failed.is_empty(), unknown.is_empty()) {
        (false, _) => Outcome::Failed(shorten(failed)),
        (true, false) => Outcome::Unknown(shorten(unknown)),
        (true, true) => Outcome::Passed(format!("{} of {limit_bytes} B per thread", known.join(", "))),
    }
}

/// An unpack function calls what it is given: by the calling convention of RPCs that is the entry itself.
fn unpack_bound(graph: &CallGraph, entry: &Entry) -> Option<StackBound> {
    let mut unpack = graph.stack_bound(entry.unpack)?;
    let name = &graph.function_at(entry.unpack)?.name;
    let inner = graph.stack_bound(entry.addr)?;
    unpack.unknown.retain(|reason| !reason.contains(&format!("through a register in {name} at ")));
    unpack.unknown.extend(inner.unknown);
    unpack.deepest.extend(inner.deepest);
    unpack.bytes = unpack.bytes.saturating_add(inner.bytes);
    Some(unpack)
}

/// Names by which core and the panic handler show in a symbol table.
fn is_panic(name: &str) -> bool {
    ["panicking", "rust_begin_unwind", "panic_fmt", "panic_handler"].iter().any(|part| name.contains(part))
}

fn panics(image: &Image, graph: &CallGraph) -> Outcome {
    let mut failed = Vec::new();
    let mut unknown = Vec::new();
    let mut handlers = 0;
    for entry in image.entries().iter().filter(|entry| entry.kind == EntryKind::EventHandler) {
        handlers += 1;
        if let Some(path) = graph.path(entry.addr, |function| is_panic(&function.name)) {
            let names: Vec<&str> = path.iter().map(|function| function.name.as_str()).collect();
            failed.push(names.join(" → "));
        }
        unknown
            .extend(graph.unknown_below(entry.addr).into_iter().filter(|reason| reason.contains("through a register")));
    }
    unknown.dedup();
    match (failed.is_empty(), unknown.is_empty()) {
        (false, _) => Outcome::Failed(shorten(failed)),
        (true, false) => Outcome::Unknown(shorten(unknown)),
        (true, true) => Outcome::Passed(format!("{handlers} handlers reach none")),
    }
}

fn private_paths(image: &Image, prefixes: &[String]) -> Outcome {
    let mut findings = Vec::new();
    let mut unknown = Vec::new();
    for section in image.sections() {
        if section.compressed {
            unknown.push(format!("section {} is compressed and was not searched", section.name));
            continue;
        }
        // A prefix of one character ("/") would accuse every path.
        for prefix in prefixes.iter().filter(|prefix| prefix.len() > 1) {
            let found = section.bytes.windows(prefix.len()).position(|window| window == prefix.as_bytes());
            if let Some(at) = found {
                let text: Vec<u8> =
                    section.bytes[at..].iter().take(100).take_while(|b| b.is_ascii_graphic()).copied().collect();
                findings.push(format!("{} in section {}", String::from_utf8_lossy(&text), section.name));
            }
        }
    }
    findings.sort();
    findings.dedup();
    if findings.is_empty() && !unknown.is_empty() {
        return Outcome::Unknown(shorten(unknown));
    }
    verdict(findings, || "none of the machine that built it".to_owned())
}
