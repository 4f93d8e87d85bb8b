//! Call graph and stack depth, from the instructions alone.
//!
//! Every bound is an upper one: all stack adjustments of a function are added up, as if one call took them all, and a
//! jump into another function counts as a call. What instructions alone do not show (a call through a register, a
//! frame of computed size, recursion) is listed, not guessed.
//!
//! Code of others, whose ISA may not be known, is not read: a call into it takes an allowance that somebody states.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use flexcast_isa::{Flow, Instruction, Mnemonic};

use crate::{Image, Symbol, SymbolKind};

const ZERO: u8 = 0;
const SP: u8 = 2;

/// A function of the image.
#[derive(Debug, Clone)]
pub struct Function {
    /// Demangled name.
    pub name: String,
    /// Address of its first instruction.
    pub addr: u64,
    /// First address behind it.
    pub end: u64,
    /// Stack it takes for itself, in bytes.
    pub frame_bytes: u64,
    /// What its instructions do not show, one sentence each.
    pub unknown: Vec<String>,
    /// Addresses of the functions that it calls or jumps to.
    pub calls: BTreeSet<u64>,
    /// Lies in code of others: what it calls is not known, and `frame_bytes` is the allowance for all of it.
    pub foreign: bool,
}

/// Code in an image that is not held to what its own code is, as its maker answers for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Foreign {
    /// Where it lies: ascending, without overlap.
    pub code: Vec<Range<u64>>,
    /// Stack that a call into it is taken to need, with all that it calls, in bytes.
    pub stack_bytes: u64,
}

impl Foreign {
    /// Whether `addr` lies in it.
    #[must_use]
    pub fn contains(&self, addr: u64) -> bool {
        let behind = self.code.partition_point(|range| range.start <= addr);
        behind > 0 && addr < self.code[behind - 1].end
    }

    /// What of `start..end` does not lie in it, ascending.
    #[must_use]
    pub fn outside(&self, start: u64, end: u64) -> Vec<Range<u64>> {
        let mut rest = Vec::new();
        let mut at = start;
        for range in self.code.iter().filter(|range| range.start < end && start < range.end) {
            if at < range.start {
                rest.push(at..range.start);
            }
            at = at.max(range.end);
        }
        if at < end {
            rest.push(at..end);
        }
        rest
    }
}

/// The functions of an image and their calls.
#[derive(Debug, Clone)]
pub struct CallGraph {
    functions: BTreeMap<u64, Function>,
}

/// How much stack a function needs at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackBound {
    /// Bytes of the deepest chain of calls that is known.
    pub bytes: u64,
    /// That chain, outermost function first.
    pub deepest: Vec<String>,
    /// Why the real need may be larger; empty where `bytes` is a bound.
    pub unknown: Vec<String>,
}

impl CallGraph {
    /// Reads all functions of the executable segments.
    #[must_use]
    pub fn of(image: &Image) -> Self {
        Self::with_foreign(image, &Foreign::default())
    }

    /// Like [`CallGraph::of`], without reading the code of others.
    #[must_use]
    pub fn with_foreign(image: &Image, foreign: &Foreign) -> Self {
        let mut functions = BTreeMap::new();
        for (symbol, end) in extents(image) {
            let function = Function {
                name: symbol.demangled(),
                addr: symbol.addr,
                end,
                frame_bytes: 0,
                unknown: Vec::new(),
                calls: BTreeSet::new(),
                foreign: foreign.contains(symbol.addr),
            };
            functions.insert(symbol.addr, function);
        }
        let starts: BTreeMap<u64, u64> = functions.values().map(|f| (f.addr, f.end)).collect();
        for function in functions.values_mut() {
            if function.foreign {
                function.frame_bytes = foreign.stack_bytes;
            } else {
                scan(image, function, &starts);
            }
        }
        Self { functions }
    }

    /// All functions by address.
    pub fn functions(&self) -> impl Iterator<Item = &Function> {
        self.functions.values()
    }

    /// The function that `addr` lies in.
    #[must_use]
    pub fn function_at(&self, addr: u64) -> Option<&Function> {
        let (_, function) = self.functions.range(..=addr).next_back()?;
        (addr < function.end).then_some(function)
    }

    /// The shortest chain of calls from `start` to a function that `wanted` accepts, both ends included.
    #[must_use]
    pub fn path(&self, start: u64, wanted: impl Fn(&Function) -> bool) -> Option<Vec<&Function>> {
        let first = self.function_at(start)?;
        let mut came_from = BTreeMap::from([(first.addr, first.addr)]);
        let mut queue = std::collections::VecDeque::from([first.addr]);
        while let Some(addr) = queue.pop_front() {
            let function = &self.functions[&addr];
            if wanted(function) {
                let mut chain = vec![function];
                let mut at = addr;
                while came_from[&at] != at {
                    at = came_from[&at];
                    chain.push(&self.functions[&at]);
                }
                chain.reverse();
                return Some(chain);
            }
            for &callee in &function.calls {
                came_from.entry(callee).or_insert_with(|| {
                    queue.push_back(callee);
                    addr
                });
            }
        }
        None
    }

    /// The function at `start` and all that it reaches by calls, by address.
    #[must_use]
    pub fn reachable(&self, start: u64) -> Vec<&Function> {
        let mut seen = BTreeSet::new();
        let mut todo: Vec<u64> = self.function_at(start).map(|f| f.addr).into_iter().collect();
        while let Some(addr) = todo.pop() {
            if seen.insert(addr) {
                todo.extend(&self.functions[&addr].calls);
            }
        }
        seen.iter().map(|addr| &self.functions[addr]).collect()
    }

    /// Everything that may hide a call below `start`: the unknowns of all functions it reaches, sorted.
    #[must_use]
    pub fn unknown_below(&self, start: u64) -> Vec<String> {
        let mut unknown: Vec<String> = self.reachable(start).iter().flat_map(|f| f.unknown.iter().cloned()).collect();
        unknown.sort();
        unknown
    }

    /// Stack need of a call of the function at `start`; `None` where no function is known there.
    #[must_use]
    pub fn stack_bound(&self, start: u64) -> Option<StackBound> {
        let first = self.function_at(start)?;
        let mut known = BTreeMap::new();
        let mut unknown = BTreeSet::from_iter(self.unknown_below(start));
        self.depth(first.addr, &mut Vec::new(), &mut known, &mut unknown);
        let mut deepest = Vec::new();
        let mut next = Some(first.addr);
        while let Some(addr) = next {
            deepest.push(self.functions[&addr].name.clone());
            next = known.get(&addr).and_then(|&(_, deeper): &(u64, Option<u64>)| deeper);
        }
        Some(StackBound { bytes: known[&first.addr].0, deepest, unknown: unknown.into_iter().collect() })
    }

    /// Depth-first; `known` holds (bytes, deepest callee) of finished functions. The depth of this recursion is that of
    /// the image's call graph, which its stack of 16 KiB keeps small.
    fn depth(
        &self,
        addr: u64,
        open: &mut Vec<u64>,
        known: &mut BTreeMap<u64, (u64, Option<u64>)>,
        unknown: &mut BTreeSet<String>,
    ) {
        let function = &self.functions[&addr];
        open.push(addr);
        let mut deepest = (0, None);
        for &callee in &function.calls {
            if open.contains(&callee) {
                unknown.insert(format!("recursion: {} calls {}", function.name, self.functions[&callee].name));
                continue;
            }
            if !known.contains_key(&callee) {
                self.depth(callee, open, known, unknown);
            }
            let bytes = known[&callee].0;
            if bytes > deepest.0 || deepest.1.is_none() {
                deepest = (bytes, Some(callee));
            }
        }
        open.pop();
        known.insert(addr, (function.frame_bytes.saturating_add(deepest.0), deepest.1));
    }
}

/// Functions with their ends. A label without a size (assembly) reaches to the next function.
fn extents(image: &Image) -> Vec<(&Symbol, u64)> {
    let executable = |addr: u64| image.segments().iter().find(|s| s.execute && s.contains(addr));
    let mut starts: BTreeMap<u64, &Symbol> = BTreeMap::new();
    let mut covered_to = 0;
    for symbol in image.symbols() {
        let code = symbol.defined && !symbol.is_marker() && executable(symbol.addr).is_some();
        let is_function = symbol.kind == SymbolKind::Function;
        let is_label = symbol.kind == SymbolKind::Label && symbol.global && symbol.addr >= covered_to;
        if !code || !(is_function || is_label) {
            continue;
        }
        let known = starts.entry(symbol.addr).or_insert(symbol);
        if is_function && (known.kind != SymbolKind::Function || known.size < symbol.size) {
            *known = symbol;
        }
        covered_to = covered_to.max(symbol.addr.saturating_add(symbol.size));
    }
    let addresses: Vec<u64> = starts.keys().copied().collect();
    let mut functions = Vec::new();
    for (index, symbol) in starts.values().enumerate() {
        let segment_end = executable(symbol.addr).map_or(symbol.addr, crate::Segment::end);
        let limit = addresses.get(index + 1).copied().unwrap_or(segment_end).min(segment_end);
        let end = if symbol.size == 0 { limit } else { symbol.addr.saturating_add(symbol.size).min(limit) };
        functions.push((*symbol, end));
    }
    functions
}

/// Fills in frame, calls and unknowns.
fn scan(image: &Image, function: &mut Function, starts: &BTreeMap<u64, u64>) {
    let mut constants = Constants::default();
    for instruction in image.instructions(function.addr, function.end) {
        let place = || format!("{} at {:#x}", function.name, instruction.addr());
        match stack_taken(&instruction, &constants) {
            Some(Ok(bytes)) => function.frame_bytes = function.frame_bytes.saturating_add(bytes),
            Some(Err(what)) => function.unknown.push(format!("{what} in {}", place())),
            None => {}
        }
        let resolved = constants.jump_target(&instruction);
        let mut leaves_to = match (instruction.flow(), resolved) {
            (Flow::Call(to), _) | (Flow::IndirectCall | Flow::IndirectJump, Some(to)) => Some((to, true)),
            (Flow::Branch(to) | Flow::Jump(to), _) => Some((to, false)),
            (Flow::IndirectCall, None) => {
                function.unknown.push(format!("call through a register in {}", place()));
                None
            }
            (Flow::IndirectJump, None) => {
                function.unknown.push(format!("jump through a register in {}", place()));
                None
            }
            _ => None,
        };
        // A branch within the function is no call.
        leaves_to = leaves_to.filter(|&(to, call)| call || !(function.addr..function.end).contains(&to));
        if let Some((to, _)) = leaves_to {
            match starts.range(..=to).next_back() {
                Some((&addr, &end)) if to < end => {
                    function.calls.insert(addr);
                }
                _ => function.unknown.push(format!("call of {to:#x}, which has no symbol, in {}", place())),
            }
        }
        constants.step(&instruction);
    }
}

/// Bytes by which an instruction lowers the stack pointer; an error where that is not a constant.
fn stack_taken(instruction: &Instruction, constants: &Constants) -> Option<Result<u64, &'static str>> {
    if instruction.destination() != Some(SP) {
        return None;
    }
    let imm = i64::from(instruction.immediate());
    match (instruction.mnemonic(), instruction.rs1(), instruction.rs2()) {
        (Mnemonic::Addi, SP, _) => Some(Ok(imm.min(0).unsigned_abs())),
        (Mnemonic::Sub, SP, by) => {
            Some(constants.get(by).map(|v| v.max(0).unsigned_abs()).ok_or("frame of computed size"))
        }
        (Mnemonic::Add, SP, by) | (Mnemonic::Add, by, SP) => {
            Some(constants.get(by).map(|v| v.min(0).unsigned_abs()).ok_or("frame of computed size"))
        }
        // Alignment beyond the 16 bytes that every caller keeps.
        (Mnemonic::Andi, SP, _) if imm < 0 => Some(Ok(imm.unsigned_abs().saturating_sub(16))),
        // Restoring from a frame pointer only raises it.
        (Mnemonic::Addi, 8, _) => None,
        _ => Some(Err("stack pointer set")),
    }
}

/// Registers whose value a straight run of `lui`, `auipc`, `addi` has made known.
#[derive(Default)]
struct Constants {
    values: BTreeMap<u8, i64>,
}

impl Constants {
    fn get(&self, register: u8) -> Option<i64> {
        if register == ZERO { Some(0) } else { self.values.get(&register).copied() }
    }

    fn jump_target(&self, instruction: &Instruction) -> Option<u64> {
        let base = self.values.get(&instruction.rs1())?;
        Some(base.wrapping_add(i64::from(instruction.immediate())).cast_unsigned())
    }

    fn step(&mut self, instruction: &Instruction) {
        let imm = i64::from(instruction.immediate());
        let source = self.get(instruction.rs1());
        let value = match instruction.mnemonic() {
            Mnemonic::Lui => Some(imm),
            Mnemonic::Auipc => Some(instruction.addr().cast_signed().wrapping_add(imm)),
            Mnemonic::Addi => source.map(|v| v.wrapping_add(imm)),
            Mnemonic::Addiw => source.map(|v| i64::from(v.wrapping_add(imm) as i32)),
            Mnemonic::Slli => source.map(|v| v << imm),
            _ => None,
        };
        if let Some(rd) = instruction.destination() {
            match value {
                Some(value) => self.values.insert(rd, value),
                None => self.values.remove(&rd),
            };
        }
        // Behind a branch or call the straight run is over: another path may lead here.
        if instruction.flow() != Flow::Next {
            self.values.clear();
        }
    }
}
