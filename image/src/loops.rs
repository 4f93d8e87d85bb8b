//! Loops of a function, from its instructions.

use std::collections::{BTreeMap, BTreeSet};

use flexcast_isa::{Flow, Instruction};

use crate::Image;

/// A loop: all instructions from which its head is reached again without leaving through the head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loop {
    /// Address that every round passes.
    pub head: u64,
    /// Addresses of its instructions, the head included.
    pub body: BTreeSet<u64>,
}

impl Loop {
    /// Whether another loop lies within this one.
    #[must_use]
    pub fn encloses(&self, other: &Self) -> bool {
        self.head != other.head && other.body.is_subset(&self.body)
    }
}

/// All loops of the code at `start..end`, by the address of their head.
///
/// Calls are taken to return. A jump through a register ends a path: what it leads to is not known here.
#[must_use]
pub fn loops(image: &Image, start: u64, end: u64) -> Vec<Loop> {
    let code: BTreeMap<u64, Instruction> = image.instructions(start, end).map(|i| (i.addr(), i)).collect();
    let mut before: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut back_edges = Vec::new();
    for instruction in code.values() {
        for next in successors(instruction).into_iter().filter(|next| code.contains_key(next)) {
            before.entry(next).or_default().push(instruction.addr());
            if next <= instruction.addr() {
                back_edges.push((instruction.addr(), next));
            }
        }
    }
    let mut found: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for (tail, head) in back_edges {
        let mut body = BTreeSet::from([head]);
        let mut todo = vec![tail];
        while let Some(addr) = todo.pop() {
            if body.insert(addr) {
                todo.extend(before.get(&addr).into_iter().flatten());
            }
        }
        // A jump backwards that can be reached round its target closes no loop: code was only placed in another order.
        if head == start || !body.contains(&start) {
            found.entry(head).or_default().extend(body);
        }
    }
    found.into_iter().map(|(head, body)| Loop { head, body }).collect()
}

fn successors(instruction: &Instruction) -> Vec<u64> {
    match instruction.flow() {
        Flow::Next | Flow::Call(_) | Flow::IndirectCall => vec![instruction.next()],
        Flow::Branch(to) => vec![instruction.next(), to],
        Flow::Jump(to) => vec![to],
        Flow::IndirectJump | Flow::Return | Flow::Stop => vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TEXT, TestElf};

    const NOP: u32 = 0x0001;
    const C_RET: u32 = 0x8082;

    /// `bnez a0, offset`
    fn bnez(offset: i32) -> u32 {
        let imm = offset as u32;
        (imm >> 12 & 1) << 31
            | (imm >> 5 & 63) << 25
            | 10 << 15
            | 1 << 12
            | (imm >> 1 & 15) << 8
            | (imm >> 11 & 1) << 7
            | 0x63
    }

    /// `j offset`
    fn jump(offset: i32) -> u32 {
        let imm = offset as u32;
        (imm >> 20 & 1) << 31 | (imm >> 1 & 0x3ff) << 21 | (imm >> 11 & 1) << 20 | (imm >> 12 & 0xff) << 12 | 0x6f
    }

    fn find(code: &[u32]) -> Vec<(u64, Vec<u64>)> {
        let elf = TestElf::image(&[("handler", code), ("ping", &[C_RET]), ("ping__unpack", &[C_RET])]);
        let image = Image::parse(&elf.bytes()).expect("parses");
        let end = TEXT + elf.symbols[0].2;
        let relative = |body: BTreeSet<u64>| body.into_iter().map(|addr| addr - TEXT).collect();
        loops(&image, TEXT, end).into_iter().map(|l| (l.head - TEXT, relative(l.body))).collect()
    }

    #[test]
    fn a_simple_loop() {
        assert_eq!(find(&[NOP, NOP, bnez(-2), C_RET]), [(2, vec![2, 4])]);
        assert_eq!(find(&[NOP, C_RET]), []);
    }

    #[test]
    fn a_cold_part_that_is_placed_behind_belongs_to_the_loop() {
        // 0: nop; 2: bnez +12 (to 14); 6: nop; 8: bnez -8 (to 0); 12: ret; 14: nop; 16: j -10 (to 6)
        let code = [NOP, bnez(12), NOP, bnez(-8), C_RET, NOP, jump(-10)];
        assert_eq!(find(&code), [(0, vec![0, 2, 6, 8, 14, 16])]);
    }

    #[test]
    fn nested_loops_know_one_another() {
        // 0: nop; 2: nop; 4: bnez -2; 8: bnez -8; 12: ret
        let elf = TestElf::image(&[
            ("handler", &[NOP, NOP, bnez(-2), bnez(-8), C_RET]),
            ("ping", &[C_RET]),
            ("ping__unpack", &[C_RET]),
        ]);
        let image = Image::parse(&elf.bytes()).expect("parses");
        let loops = loops(&image, TEXT, TEXT + 14);
        assert_eq!(loops.len(), 2);
        assert!(loops[0].encloses(&loops[1]) && !loops[1].encloses(&loops[0]) && !loops[0].encloses(&loops[0]));
    }
}
