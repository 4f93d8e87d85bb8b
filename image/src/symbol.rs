//! Symbols and the way from an address to a name.

use rustc_demangle::demangle;

/// What a symbol names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SymbolKind {
    /// `STT_FUNC`.
    Function,
    /// `STT_OBJECT`.
    Data,
    /// `STT_TLS`: its address is an offset into the block of each thread.
    ThreadLocal,
    /// `STT_NOTYPE`: labels of assembly and of the linker script, mapping symbols.
    Label,
}

/// One named symbol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// Name as it stands in the file (mangled).
    pub name: String,
    /// Address.
    pub addr: u64,
    /// Size in bytes; 0 where the file does not say.
    pub size: u64,
    /// What it names.
    pub kind: SymbolKind,
    /// Has an address; otherwise it is a reference to something missing.
    pub defined: bool,
    /// Visible outside its object file (global or weak).
    pub global: bool,
    /// May stay without a definition, at address 0.
    pub weak: bool,
}

impl Symbol {
    /// The name without Rust's mangling and hash.
    #[must_use]
    pub fn demangled(&self) -> String {
        format!("{:#}", demangle(&self.name))
    }

    pub(crate) fn is_thread_local(&self) -> bool {
        self.defined && self.kind == SymbolKind::ThreadLocal
    }

    /// A mapping symbol (`$x`, `$d`) or an assembler-local label: no name a reader would want.
    pub(crate) fn is_marker(&self) -> bool {
        self.name.starts_with('$') || self.name.starts_with(".L")
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Symbols {
    all: Vec<Symbol>,
}

impl Symbols {
    pub(crate) fn new(mut all: Vec<Symbol>) -> Self {
        all.sort_by(|a, b| (a.defined, a.addr, b.global, &a.name).cmp(&(b.defined, b.addr, a.global, &b.name)));
        Self { all }
    }

    pub(crate) fn all(&self) -> &[Symbol] {
        &self.all
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn address_of(&self, name: &str) -> Option<u64> {
        let named = || self.all.iter().filter(|symbol| symbol.defined && symbol.name == name);
        named().find(|symbol| symbol.global).or_else(|| named().next()).map(|symbol| symbol.addr)
    }

    /// The sized function around `addr`; without one, the nearest unsized label below it.
    pub(crate) fn covering(&self, addr: u64) -> Option<&Symbol> {
        let end = self.all.partition_point(|symbol| !symbol.defined || symbol.addr <= addr);
        let is_code = |s: &&Symbol| matches!(s.kind, SymbolKind::Function | SymbolKind::Label);
        let below = || self.all[..end].iter().rev().filter(|s| s.defined && !s.is_marker() && is_code(s));
        below()
            .find(|symbol| symbol.kind == SymbolKind::Function && addr - symbol.addr < symbol.size)
            .or_else(|| below().find(|symbol| symbol.size == 0))
    }
}
