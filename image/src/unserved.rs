//! Parts of an image that start-up code or a dynamic linker would have to serve. A process on a DPA has neither: its
//! threads begin at the functions that the host names, in memory as the file has it.

use std::fmt;

use crate::{Image, ImageError};

/// When a function of an array is to be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Before everything else: `SHT_PREINIT_ARRAY`, `SHT_INIT_ARRAY`, `.ctors`.
    Start,
    /// Behind everything else: `SHT_FINI_ARRAY`, `.dtors`.
    End,
}

/// A part of an image that nothing serves on a DPA. A program that relies on it computes with wrong values.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unserved {
    /// Thread-local variables. Their accesses go through `tp`, which is the context of the DPA thread.
    ThreadLocal {
        /// The section that holds their initial values, or the program header where sections do not say.
        section: String,
        /// Names, as far as the symbol table has any.
        variables: Vec<String>,
    },
    /// Functions that start-up code calls.
    Functions {
        /// The section that lists them.
        section: String,
        /// When they are to be called.
        phase: Phase,
        /// Address of each, and its name or the address once more.
        functions: Vec<(u64, String)>,
    },
    /// Addresses that a dynamic linker fills in, those of indirect functions (`ifunc`) among them.
    Relocations {
        /// The section that lists them.
        section: String,
        /// Its length.
        bytes: u64,
    },
    /// A program header for a dynamic linker: an interpreter, or libraries to load.
    Dynamic {
        /// Its type.
        header: &'static str,
    },
}

impl fmt::Display for Unserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ThreadLocal { section, variables } => {
                let names = if variables.is_empty() { "no name".to_owned() } else { variables.join(", ") };
                write!(
                    f,
                    "thread-local variables in {section} ({names}): `tp` is the context of the DPA thread, not a block \
                     of them; keep what a thread needs where its argument or flexio_dev_get_thread_local_storage() \
                     points"
                )
            }
            Self::Functions { section, phase, functions } => {
                let names: Vec<&str> = functions.iter().map(|(_, name)| name.as_str()).collect();
                let (names, kind) =
                    (names.join(", "), if *phase == Phase::Start { "constructors" } else { "destructors" });
                write!(
                    f,
                    "{kind} in {section} ({names}): nothing calls them on a DPA; call them from an RPC, and link with \
                     -nostartfiles if they are the compiler's own"
                )
            }
            Self::Relocations { section, bytes } => {
                write!(
                    f,
                    "{bytes} bytes of relocations in {section}: nothing applies them on a DPA; link with -static and \
                     without -pie"
                )
            }
            Self::Dynamic { header } => {
                write!(
                    f,
                    "program header {header}: no dynamic linker runs on a DPA; link with -static and without -pie"
                )
            }
        }
    }
}

impl Image {
    /// What of the image nothing serves on a DPA; empty for a usable one.
    #[must_use]
    pub fn unserved(&self) -> Vec<Unserved> {
        let mut found: Vec<Unserved> = self.thread_local().into_iter().collect();
        found.extend(self.sections().iter().filter_map(|section| {
            let functions: Vec<_> = section.called_addresses().map(|addr| (addr, self.name_of(addr))).collect();
            let phase = section.calls.filter(|_| !functions.is_empty())?;
            Some(Unserved::Functions { section: section.name.clone(), phase, functions })
        }));
        let relocations =
            self.sections().iter().filter(|section| section.relocations && section.alloc && section.size > 0);
        found.extend(
            relocations.map(|section| Unserved::Relocations { section: section.name.clone(), bytes: section.size }),
        );
        found.extend(self.dynamic_headers().iter().map(|&header| Unserved::Dynamic { header }));
        found
    }

    /// Checks that nothing of the image is [`Unserved`].
    ///
    /// # Errors
    /// [`ImageError::Unserved`] with everything that is.
    pub fn expect_served(&self) -> Result<(), ImageError> {
        let parts = self.unserved();
        if parts.is_empty() { Ok(()) } else { Err(ImageError::Unserved { parts }) }
    }

    fn thread_local(&self) -> Option<Unserved> {
        let variables = self.symbols().iter().filter(|symbol| symbol.is_thread_local());
        let variables: Vec<String> = variables.map(crate::Symbol::demangled).collect();
        let mut sections = self.sections().iter().filter(|section| section.thread_local && section.size > 0);
        let section = match sections.next() {
            Some(section) => section.name.clone(),
            None if self.has_thread_local_header() => "PT_TLS".to_owned(),
            None if !variables.is_empty() => ".symtab".to_owned(),
            None => return None,
        };
        Some(Unserved::ThreadLocal { section, variables })
    }

    fn name_of(&self, addr: u64) -> String {
        match self.symbolize(addr) {
            Some((name, 0)) => name,
            _ => format!("{addr:#x}"),
        }
    }
}
