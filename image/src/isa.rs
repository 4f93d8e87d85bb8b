//! Extensions of RV64 and sets of them.

use std::collections::BTreeSet;
use std::fmt;

/// The extension that an instruction belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Extension {
    /// Base integer instructions.
    I,
    /// Multiplication and division.
    M,
    /// Atomics.
    A,
    /// Compressed instructions (in addition to the extension of what they stand for).
    C,
    /// Control and status registers, the counters among them.
    Zicsr,
    /// `fence.i`.
    Zifencei,
    /// Address generation (not on BlueField-3).
    Zba,
    /// Basic bit manipulation.
    Zbb,
    /// Single-bit instructions.
    Zbs,
    /// Generalised permutations, draft 0.93 (on ConnectX-7, BlueField-3 and ConnectX-8).
    Zbp,
    /// Cyclic redundancy checks, draft 0.93 (as Zbp).
    Zbr,
    /// Single-precision floating point.
    F,
    /// Double-precision floating point.
    D,
    /// Vectors.
    V,
    /// Privileged instructions (`mret`, `wfi`).
    Privileged,
    /// The opcode spaces custom-0 to custom-3.
    Custom,
    /// No instruction that this crate knows.
    Unknown,
}

impl Extension {
    /// The name as it stands in an ISA string, in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::I => "i",
            Self::M => "m",
            Self::A => "a",
            Self::C => "c",
            Self::Zicsr => "zicsr",
            Self::Zifencei => "zifencei",
            Self::Zba => "zba",
            Self::Zbb => "zbb",
            Self::Zbs => "zbs",
            Self::Zbp => "zbp",
            Self::Zbr => "zbr",
            Self::F => "f",
            Self::D => "d",
            Self::V => "v",
            Self::Privileged => "privileged",
            Self::Custom => "custom",
            Self::Unknown => "unknown",
        }
    }

    /// The name as it stands in text: `M`, `Zba`.
    #[must_use]
    pub fn title(self) -> String {
        let mut name = self.name().to_owned();
        if let Some(first) = name.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        name
    }
}

impl fmt::Display for Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a processor offers, by extension name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Isa {
    names: BTreeSet<String>,
}

/// An ISA string that does not start with `rv64`.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("ISA string `{0}` does not start with rv64; write it as in `rv64imac_zbb_zbs`")]
pub struct IsaError(String);

flexcast_error::debug_as_display!(IsaError);

impl Isa {
    /// Parses an ISA string, with or without versions, in any case: `rv64imac_zbb_zbs` or `rv64i2p1_m2p0_zbb1p0`.
    ///
    /// # Errors
    /// [`IsaError`] for anything but a 64-bit ISA string.
    pub fn parse(text: &str) -> Result<Self, IsaError> {
        Ok(Self { names: split(text).ok_or_else(|| IsaError(text.to_owned()))? })
    }

    /// The names of the extensions, sorted, in lower case and without versions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Whether instructions of this extension run.
    #[must_use]
    pub fn has(&self, extension: Extension) -> bool {
        self.names.contains(extension.name())
    }

    /// Whether this ISA runs code whose attributes name the extension `name`.
    #[must_use]
    pub fn has_named(&self, name: &str) -> bool {
        // Extensions that later specifications split off from the lettered ones.
        let whole = match name {
            "zmmul" => "m",
            "zaamo" | "zalrsc" => "a",
            "zca" => "c",
            other => other,
        };
        self.names.contains(name) || self.names.contains(whole)
    }

    /// The extensions of the ISA string `arch` that this ISA lacks, sorted; `None` where `arch` is no 64-bit ISA string.
    #[must_use]
    pub fn lacks(&self, arch: &str) -> Option<Vec<String>> {
        Some(split(arch)?.into_iter().filter(|name| !self.has_named(name)).collect())
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        write!(f, "rv64 {}", names.join(" "))
    }
}

fn split(text: &str) -> Option<BTreeSet<String>> {
    let text = text.to_ascii_lowercase();
    let rest = text.strip_prefix("rv64")?;
    let mut names = BTreeSet::new();
    for part in rest.split('_').filter(|part| !part.is_empty()) {
        let name = without_version(part);
        if name.len() > 1 && !name.starts_with(['z', 's', 'x']) {
            names.extend(name.chars().filter(|letter| !letter.is_ascii_digit()).map(String::from));
        } else {
            names.insert(name.to_owned());
        }
    }
    Some(names)
}

/// `zbb1p0` is `zbb`; `zbp0p93` is `zbp`. A name may itself end in `p`, so only `<digits>p<digits>` is a version.
fn without_version(part: &str) -> &str {
    let major_minor = part.trim_end_matches(|c: char| c.is_ascii_digit());
    let Some(before_p) = major_minor.strip_suffix('p') else {
        return part;
    };
    let name = before_p.trim_end_matches(|c: char| c.is_ascii_digit());
    if name.len() == before_p.len() || major_minor.len() == part.len() { part } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_are_the_same_set() {
        let short = Isa::parse("rv64imac_zicsr_zbb_zbs").expect("short");
        let long = Isa::parse("rv64i2p1_m2p0_a2p1_c2p0_zicsr2p0_zbb1p0_zbs1p0").expect("long");
        assert_eq!(short, long);
        assert!(short.has(Extension::Zbb) && !short.has(Extension::Zba) && !short.has(Extension::D));
        assert_eq!(Isa::parse("RV64IMAC_Zicsr_Zbb_Zbs"), Ok(short));
        assert!(Isa::parse("rv32imac").is_err());
    }

    #[test]
    fn what_rustc_writes_is_within_imac_zbb_zbs() {
        let isa = Isa::parse("rv64imac_zbb_zbs").expect("isa");
        let rustc = "rv64i2p1_m2p0_a2p1_c2p0_zmmul1p0_zaamo1p0_zalrsc1p0_zca1p0_zbb1p0_zbs1p0";
        assert_eq!(isa.lacks(rustc), Some(vec![]));
        let card = "rv64i2p0_m2p0_a2p0_c2p0_zbb1p0_zbp0p93_zbr0p93_zbs1p0_xfenceheap1p0";
        assert_eq!(isa.lacks(card), Some(vec!["xfenceheap".into(), "zbp".into(), "zbr".into()]));
        assert_eq!(isa.lacks("rv64gc"), Some(vec!["g".into()]));
        assert_eq!(isa.lacks("rv32i"), None);
    }
}
