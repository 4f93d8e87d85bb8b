//! Checks that an image can run on a given DPA, before it gets there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use flexcast_isa::{Extension, Isa};

use crate::callgraph::{CallGraph, Foreign};
use crate::elf::EF_RISCV_RVC;
use crate::{EntryKind, Image, Unserved};

mod calls;

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
    /// Names of the sections that may be loaded.
    pub sections: Vec<String>,
    /// Stack of entries whose bound the instructions do not show, by name of the entry.
    pub declared_stacks: BTreeMap<String, DeclaredStack>,
    /// What of the image is its vendor's.
    pub vendor: Vendor,
}

/// A stack bound that a person answers for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredStack {
    /// Most that a call of the entry takes, in bytes.
    pub bytes: u64,
    /// Why it is a bound.
    pub reason: String,
}

/// What the maker of the card links to an image, and what is accepted of it unread. Empty where nothing is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vendor {
    /// Extensions that the ISA attribute may name beyond [`Policy::isa`]; only the vendor's code may use them.
    pub extensions: Vec<String>,
    /// Where its code lies, and the stack that a call into it may take.
    pub code: Foreign,
    /// Loaded sections beyond [`Policy::sections`] that hold nothing but the vendor's.
    pub sections: Vec<String>,
    /// Files that its code comes from, for the report.
    pub files: Vec<String>,
}

/// How a check ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Holds; says what was checked.
    Passed(String),
    /// Does not hold; one finding per line.
    Failed(Vec<String>),
    /// The file does not show it; one reason per line.
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
    /// No check failed. What stays unknown and does not fail an image (it has no ISA attribute, it was linked without a
    /// map) is listed for a person to judge; that a stack is bounded and that a handler cannot panic must be known.
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
    let graph = CallGraph::with_foreign(image, &policy.vendor.code);
    let checks = vec![
        ("file header", header(image)),
        ("ISA attribute", attribute(image, policy.isa, &policy.vendor)),
        ("instructions", instructions(image, policy.isa, &policy.vendor)),
        ("undefined symbols", undefined(image)),
        ("relocations", relocations(image)),
        ("start-up code", start_up(image, &policy.vendor)),
        ("write xor execute", write_xor_execute(image)),
        ("loaded sections", loaded_sections(image, policy)),
        ("log strings", log_strings(image)),
        ("entries", entries(image)),
        ("ABI note", abi(image, policy.abi)),
        ("build id", build_id(image)),
        ("stack", calls::stack(image, &graph, policy)),
        ("no panic in event handlers", calls::panics(image, &graph)),
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

fn attribute(image: &Image, isa: Isa, vendor: &Vendor) -> Outcome {
    let Some(arch) = image.arch() else {
        return Outcome::Unknown(vec!["the image has no .riscv.attributes section".to_owned()]);
    };
    let Ok(names) = flexcast_isa::names(arch) else {
        return Outcome::Failed(vec![format!("`{arch}` is no 64-bit ISA string")]);
    };
    let missing: BTreeSet<String> = names.filter(|name| !isa.runs(name)).map(str::to_lowercase).collect();
    verdict(
        missing
            .iter()
            .filter(|name| !vendor.extensions.contains(name))
            .map(|name| format!("the image needs `{name}`, the target has {isa} (image: {arch})"))
            .collect(),
        || arch.to_owned(),
    )
}

fn instructions(image: &Image, isa: Isa, vendor: &Vendor) -> Outcome {
    let mut findings = Vec::new();
    let mut counts: BTreeMap<Extension, u64> = BTreeMap::new();
    let mut total = 0_u64;
    let mut foreign_bytes = 0;
    for section in image.sections().iter().filter(|section| section.execute && section.alloc) {
        let own = vendor.code.outside(section.addr, section.addr + section.size);
        foreign_bytes += section.size - own.iter().map(|range| range.end - range.start).sum::<u64>();
        for instruction in own.iter().flat_map(|range| image.instructions(range.start, range.end)) {
            total += 1;
            *counts.entry(instruction.extension()).or_default() += 1;
            if isa.includes(&instruction) {
                continue;
            }
            let what = match instruction.extension() {
                Extension::Unknown => format!("{} is no instruction that the target knows", instruction.hex()),
                _ if instruction.is_compressed() && !isa.has(Extension::C) => {
                    format!("compressed instruction {instruction}")
                }
                extension => format!("{} instruction `{instruction}`", extension.name().to_uppercase()),
            };
            let place = image
                .symbolize(instruction.addr())
                .map_or_else(|| "no symbol".to_owned(), |(symbol, offset)| format!("{symbol}+{offset:#x}"));
            findings.push(format!("{what} at {:#x} in {place}", instruction.addr()));
        }
    }
    if total == 0 {
        findings.push("no executable section holds an instruction".to_owned());
    }
    let compressed_in_use = image.flags() & EF_RISCV_RVC != 0;
    verdict(findings, || {
        let counts: Vec<String> = counts.iter().map(|(extension, count)| format!("{count} {extension}")).collect();
        let note = if compressed_in_use { "" } else { ", none compressed" };
        let foreign = match foreign_bytes {
            0 => String::new(),
            bytes => format!("; not read: {bytes} bytes of the vendor's ({})", vendor.files.join(", ")),
        };
        format!("{total} within {isa}: {}{note}{foreign}", counts.join(", "))
    })
}

fn undefined(image: &Image) -> Outcome {
    let missing: Vec<String> =
        image.symbols().iter().filter(|s| !s.defined && !s.weak).map(crate::Symbol::demangled).collect();
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

/// Thread-local variables and functions that start-up code would call. What the vendor brings is the affair of its own
/// runtime.
fn start_up(image: &Image, vendor: &Vendor) -> Outcome {
    let own = |part: Unserved| match part {
        Unserved::ThreadLocal { section, variables } => {
            (!vendor.sections.contains(&section)).then_some(Unserved::ThreadLocal { section, variables })
        }
        Unserved::Functions { section, phase, mut functions } => {
            functions.retain(|(addr, _)| !vendor.code.contains(*addr));
            (!functions.is_empty()).then_some(Unserved::Functions { section, phase, functions })
        }
        // Another check has them.
        Unserved::Relocations { .. } | Unserved::Dynamic { .. } => None,
    };
    let findings = image.unserved().into_iter().filter_map(own).map(|part| part.to_string()).collect();
    verdict(findings, || "none needed".to_owned())
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

fn loaded_sections(image: &Image, policy: &Policy) -> Outcome {
    let loaded: Vec<_> = image.sections().iter().filter(|section| section.alloc && section.size > 0).collect();
    let expected = |name: &String| policy.sections.contains(name) || policy.vendor.sections.contains(name);
    let findings = loaded.iter().filter(|section| !expected(&section.name)).map(|section| {
        let (name, size, addr) = (&section.name, section.size, section.addr);
        format!("{name}: {size} bytes at {addr:#x}; may be loaded: {}", policy.sections.join(", "))
    });
    verdict(findings.collect(), || {
        let names: Vec<&str> = loaded.iter().map(|section| section.name.as_str()).collect();
        names.join(", ")
    })
}

/// Log strings are the names of symbols, and the address of such a symbol is its index in a frame: 16 bits, 0 reserved.
fn log_strings(image: &Image) -> Outcome {
    const INDICES: std::ops::Range<u64> = 1..0xfffe;
    let mut findings: Vec<String> = image
        .sections()
        .iter()
        .filter(|section| section.alloc && section.name.starts_with(".defmt"))
        .map(|section| format!("{} is loaded: it takes memory and its strings have no index", section.name))
        .collect();
    let strings: Vec<_> = image.symbols().iter().filter(|s| s.defined && s.name.starts_with("{\"package\":")).collect();
    let misplaced = strings.iter().filter(|symbol| !INDICES.contains(&symbol.addr));
    findings.extend(misplaced.map(|symbol| format!("index {:#x} of {} is not of 16 bits", symbol.addr, symbol.name)));
    // Sorted by address.
    let doubled = strings.windows(2).filter(|pair| pair[0].addr == pair[1].addr);
    findings.extend(doubled.map(|pair| format!("{} and {} have one index", pair[0].name, pair[1].name)));
    if findings.is_empty() && image.is_position_independent() && !strings.is_empty() {
        let text = "the image is position-independent: a loader that moves it moves the indices, which code computes \
            from its own address";
        return Outcome::Unknown(vec![text.to_owned()]);
    }
    verdict(findings, || format!("{}, none loaded", strings.len()))
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

fn build_id(image: &Image) -> Outcome {
    match image.build_id() {
        Some(id) => Outcome::Passed(id),
        None => Outcome::Unknown(vec!["the image has none: it was linked without --build-id".to_owned()]),
    }
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

fn private_paths(image: &Image, prefixes: &[String]) -> Outcome {
    let mut findings = Vec::new();
    for section in image.sections() {
        if section.compressed {
            findings.push(format!("section {} is compressed and was not searched; link it as it is", section.name));
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
    verdict(findings, || "none of the machine that built it".to_owned())
}
