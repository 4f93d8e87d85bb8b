//! The extensions of RV64 that a hart can execute, and sets of them.

use std::fmt;

/// A set of extensions: what a hart executes. Instructions of others are illegal.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Isa(u16);

impl Isa {
    /// Base integer instructions. Every set holds them.
    pub const I: Isa = Isa(1);
    /// Multiplication and division.
    pub const M: Isa = Isa(1 << 1 | 1);
    /// Atomics.
    pub const A: Isa = Isa(1 << 2 | 1);
    /// Two-byte forms.
    pub const C: Isa = Isa(1 << 3 | 1);
    /// Instructions on control and status registers, the user counters among these.
    pub const ZICSR: Isa = Isa(1 << 4 | 1);
    /// `fence.i`.
    pub const ZIFENCEI: Isa = Isa(1 << 5 | 1);
    /// Address generation.
    pub const ZBA: Isa = Isa(1 << 6 | 1);
    /// Basic bit manipulation.
    pub const ZBB: Isa = Isa(1 << 7 | 1);
    /// Single-bit instructions.
    pub const ZBS: Isa = Isa(1 << 8 | 1);
    /// Generalised permutations, draft 0.93.
    pub const ZBP: Isa = Isa(1 << 9 | 1);
    /// Cyclic redundancy checks, draft 0.93.
    pub const ZBR: Isa = Isa(1 << 10 | 1);

    /// What the processors of BlueField-3 and ConnectX-7 execute, apart from extensions whose encodings are not
    /// published.
    pub const BLUEFIELD_3: Isa = Isa::I
        .with(Isa::M)
        .with(Isa::A)
        .with(Isa::C)
        .with(Isa::ZICSR)
        .with(Isa::ZIFENCEI)
        .with(Isa::ZBB)
        .with(Isa::ZBS)
        .with(Isa::ZBP)
        .with(Isa::ZBR);
    /// The same of ConnectX-8.
    pub const CONNECTX_8: Isa = Isa::BLUEFIELD_3.with(Isa::ZBA);
    /// All that a hart can execute.
    pub const ALL: Isa = Isa::CONNECTX_8;

    /// Names as in an ISA string, in its order.
    const NAMES: [(&'static str, Isa); 11] = [
        ("i", Isa::I),
        ("m", Isa::M),
        ("a", Isa::A),
        ("c", Isa::C),
        ("zicsr", Isa::ZICSR),
        ("zifencei", Isa::ZIFENCEI),
        ("zba", Isa::ZBA),
        ("zbb", Isa::ZBB),
        ("zbs", Isa::ZBS),
        ("zbp", Isa::ZBP),
        ("zbr", Isa::ZBR),
    ];

    /// Names of parts that later specifications split off, with the extension that has them.
    const PARTS: [(&'static str, Isa); 6] = [
        ("zmmul", Isa::M),
        ("zaamo", Isa::A),
        ("zalrsc", Isa::A),
        ("zca", Isa::C),
        ("zicntr", Isa::ZICSR),
        // `pause` is a `fence` that orders nothing.
        ("zihintpause", Isa::I),
    ];

    /// The set of the extensions with these names, in lower case and without versions.
    ///
    /// # Errors
    /// A name that no hart executes, a part of an extension without the rest of it, or no base `i`.
    pub fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Isa, IsaError> {
        let (mut isa, mut has_base, mut parts) = (Isa::I, false, Vec::new());
        for name in names {
            let find = |table: &[(&str, Isa)]| table.iter().find(|(known, _)| *known == name).map(|(_, isa)| *isa);
            if let Some(extension) = find(&Isa::NAMES) {
                isa = isa.with(extension);
                has_base |= name == "i";
            } else if let Some(whole) = find(&Isa::PARTS) {
                parts.push((name, whole));
            } else {
                return Err(IsaError::Unknown(name.to_owned()));
            }
        }
        if !has_base {
            return Err(IsaError::NoBase);
        }
        match parts.into_iter().find(|(_, whole)| !isa.has(*whole)) {
            Some((part, whole)) => Err(IsaError::PartOnly { part: part.to_owned(), whole: whole.last_name() }),
            None => Ok(isa),
        }
    }

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Isa) -> Isa {
        Isa(self.0 | other.0)
    }

    /// This set less what is in the other; the base stays.
    #[must_use]
    pub const fn without(self, other: Isa) -> Isa {
        Isa(self.0 & !other.0 | Isa::I.0)
    }

    /// Whether all of these are in this set.
    #[must_use]
    pub const fn has(self, all: Isa) -> bool {
        self.0 & all.0 == all.0
    }

    /// Whether an instruction that each of these extensions has is in this set.
    pub(crate) const fn has_one_of(self, any: Isa) -> bool {
        any.0 == Isa::I.0 || self.0 & any.0 & !Isa::I.0 != 0
    }

    fn names(self) -> impl Iterator<Item = &'static str> {
        Isa::NAMES.into_iter().filter(move |(_, extension)| self.has(*extension)).map(|(name, _)| name)
    }

    fn last_name(self) -> &'static str {
        self.names().last().unwrap_or("i")
    }
}

impl Default for Isa {
    /// [`Isa::BLUEFIELD_3`].
    fn default() -> Self {
        Isa::BLUEFIELD_3
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rv64")?;
        for name in self.names() {
            write!(f, "{}{name}", if name.len() > 1 { "_" } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why there is no hart with an instruction set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// An extension that is not emulated.
    #[error("extension `{0}` is not emulated; a hart executes at most {all}", all = Isa::ALL)]
    Unknown(String),
    /// A part of an extension without the rest.
    #[error("`{part}` is emulated as a part of `{whole}` only; name `{whole}` too")]
    PartOnly {
        /// The part.
        part: String,
        /// The extension that has it.
        whole: &'static str,
    },
    /// No base instructions.
    #[error("the base `i` is missing; an instruction set begins with rv64i")]
    NoBase,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_make_sets_and_sets_print_as_isa_strings() {
        let isa = Isa::of(["i", "m", "a", "c", "zbb", "zmmul", "zaamo", "zalrsc", "zca"]).expect("an ISA");
        assert_eq!(isa.to_string(), "rv64imac_zbb");
        assert_eq!(Isa::of(["i"]), Ok(Isa::I));
        assert!(isa.has(Isa::M.with(Isa::ZBB)) && !isa.has(Isa::ZBA) && !Isa::BLUEFIELD_3.has(Isa::ZBA));
        assert_eq!(Isa::ALL.to_string(), "rv64imac_zicsr_zifencei_zba_zbb_zbs_zbp_zbr");
        assert_eq!(Isa::of(Isa::ALL.names()), Ok(Isa::ALL));
        assert_eq!(Isa::ALL.without(Isa::ZBA), Isa::BLUEFIELD_3);
    }

    #[test]
    fn what_is_not_emulated_is_named() {
        let error = |names: &[&str]| Isa::of(names.iter().copied()).expect_err("refused").to_string();
        assert!(error(&["i", "d"]).contains("`d` is not emulated; a hart executes at most rv64imac_zicsr"));
        assert!(error(&["i", "zmmul"]).contains("`zmmul` is emulated as a part of `m` only"));
        assert!(error(&["m"]).contains("rv64i"));
    }
}
