//! Extensions of RV64 and sets of them.

use core::fmt;

use crate::{Instruction, IsaError, string};

macro_rules! extensions {
    ($($(#[$doc:meta])* $name:ident $text:literal;)*) => {
        /// The extension that an instruction belongs to.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Extension { $($(#[$doc])* $name),* }

        impl Extension {
            /// In the order of an ISA string, those that stand in none behind.
            const LIST: &[Extension] = &[$(Extension::$name),*];

            /// The name as it stands in an ISA string, in lower case.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Extension::$name => $text),* }
            }
        }
    };
}

extensions! {
    /// Base integer instructions.
    I "i";
    /// Multiplication and division.
    M "m";
    /// Atomics.
    A "a";
    /// Compressed instructions (in addition to the extension of what they stand for).
    C "c";
    /// Control and status registers, the counters among them.
    Zicsr "zicsr";
    /// `fence.i`.
    Zifencei "zifencei";
    /// Address generation (not on BlueField-3).
    Zba "zba";
    /// Basic bit manipulation.
    Zbb "zbb";
    /// Single-bit instructions.
    Zbs "zbs";
    /// Generalised permutations, draft 0.93 (on ConnectX-7, BlueField-3 and ConnectX-8).
    Zbp "zbp";
    /// Cyclic redundancy checks, draft 0.93 (as Zbp).
    Zbr "zbr";
    /// Single-precision floating point. Its instructions are recognised, but not distinguished.
    F "f";
    /// Double-precision floating point (as F).
    D "d";
    /// Vectors (as F).
    V "v";
    /// Privileged instructions (`mret`, `wfi`).
    Privileged "privileged";
    /// The opcode spaces custom-0 to custom-3.
    Custom "custom";
    /// No instruction that this crate knows.
    Unknown "unknown";
}

/// Names of parts that later specifications split off, with the extension that has their instructions.
const PARTS: [(&str, Extension); 6] = [
    ("zmmul", Extension::M),
    ("zaamo", Extension::A),
    ("zalrsc", Extension::A),
    ("zca", Extension::C),
    ("zicntr", Extension::Zicsr),
    // `pause` is a `fence` that orders nothing.
    ("zihintpause", Extension::I),
];

impl Extension {
    /// The extension of this name, in any case, among those that an ISA string may name: [`Isa::ALL`].
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::LIST.iter().copied().find(|known| Isa::ALL.has(*known) && known.name().eq_ignore_ascii_case(name))
    }

    /// The extension of which `name` is a part.
    pub(crate) fn whole(name: &str) -> Option<Self> {
        PARTS.iter().find(|(part, _)| part.eq_ignore_ascii_case(name)).map(|(_, whole)| *whole)
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

impl fmt::Display for Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A set of extensions: what a processor executes. Every set holds the base, [`Isa::RV64I`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Isa(u32);

impl Isa {
    /// Base integer instructions alone.
    pub const RV64I: Isa = Isa(Extension::I.bit());

    /// What the processors of BlueField-3 and ConnectX-7 execute, except extensions whose encodings are not
    /// published.
    pub const BLUEFIELD_3: Isa = Isa::RV64I
        .with(Extension::M)
        .with(Extension::A)
        .with(Extension::C)
        .with(Extension::Zicsr)
        .with(Extension::Zifencei)
        .with(Extension::Zbb)
        .with(Extension::Zbs)
        .with(Extension::Zbp)
        .with(Extension::Zbr);
    /// The same of ConnectX-8.
    pub const CONNECTX_8: Isa = Isa::BLUEFIELD_3.with(Extension::Zba);
    /// Every extension that an ISA string may name: those whose instructions are all decoded.
    pub const ALL: Isa = Isa::CONNECTX_8;

    /// The set that an ISA string names, in any case, with or without versions: `rv64imac_zbb_zbs` or
    /// `rv64i2p1_m2p0_zbb1p0`.
    ///
    /// # Errors
    /// What does not start with `rv64`, a name that is not in [`Isa::ALL`], a part of an extension without the rest of
    /// it (`zmmul` without `m`), and no base `i`.
    pub fn parse(text: &str) -> Result<Isa, IsaError<'_>> {
        let (mut isa, mut has_base) = (Isa::RV64I, false);
        for name in string::names(text)? {
            match Extension::named(name) {
                Some(extension) => {
                    isa = isa.with(extension);
                    has_base |= extension == Extension::I;
                }
                None if Extension::whole(name).is_some() => {}
                None => return Err(IsaError::Unknown(name)),
            }
        }
        if !has_base {
            return Err(IsaError::NoBase);
        }
        match string::names(text)?.find(|name| !isa.runs(name)) {
            Some(part) => Err(IsaError::PartOnly { part, whole: Extension::whole(part).map_or("", Extension::name) }),
            None => Ok(isa),
        }
    }

    /// This set and one more.
    #[must_use]
    pub const fn with(self, extension: Extension) -> Isa {
        Isa(self.0 | extension.bit())
    }

    /// This set less one; the base stays.
    #[must_use]
    pub const fn without(self, extension: Extension) -> Isa {
        Isa(self.0 & !extension.bit() | Isa::RV64I.0)
    }

    /// Whether the extension is in this set.
    #[must_use]
    pub const fn has(self, extension: Extension) -> bool {
        self.0 & extension.bit() != 0
    }

    /// Whether a processor of this set executes the instruction: an extension that has it is in the set, and C if it
    /// has two bytes.
    #[must_use]
    pub fn includes(self, instruction: &Instruction) -> bool {
        let length_fits = !instruction.is_compressed() || self.has(Extension::C);
        length_fits && instruction.extensions().any(|extension| self.has(extension))
    }

    /// Whether a processor of this set runs code whose attributes name the extension `name`, in any case and without a
    /// version. A part of an extension (`zaamo` of `a`) runs where the whole does.
    #[must_use]
    pub fn runs(self, name: &str) -> bool {
        Extension::named(name).or_else(|| Extension::whole(name)).is_some_and(|extension| self.has(extension))
    }
}

impl Default for Isa {
    /// [`Isa::BLUEFIELD_3`].
    fn default() -> Self {
        Isa::BLUEFIELD_3
    }
}

impl fmt::Display for Isa {
    /// The ISA string, without versions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rv64")?;
        for name in Extension::LIST.iter().filter(|extension| self.has(**extension)).map(|extension| extension.name()) {
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
