//! From instruction bits to an [`Op`]: what the shared decoder says of them, in the form in which the interpreter
//! executes it.

use flexcast_isa::{Extension, Instruction, Isa};

use crate::draft;
use crate::op::{Effect, Kind, Op, Reg};

/// Where an instruction sits in its text range, so that a jump can be resolved to a distance in slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The instruction's distance from the start of the range in bytes.
    pub(crate) offset: u64,
    /// The length of the range in bytes.
    pub(crate) len: u64,
}

impl Place {
    /// The distance in slots to the target `distance` bytes away, if that lies in the same range.
    fn slots(self, distance: i32) -> Option<i32> {
        let target = self.offset.wrapping_add_signed(i64::from(distance));
        (target < self.len).then_some(distance / 2)
    }
}

/// The operation of an instruction on a hart with these extensions. Of an instruction of two bytes the upper half of
/// `bits` is not read.
pub(crate) fn decode(bits: u32, place: Place, isa: Isa) -> Op {
    let instruction = Instruction::new(0, bits);
    // What privileged and custom instructions do is the bus's affair.
    let is_of_bus = matches!(instruction.extension(), Extension::Privileged | Extension::Custom);
    let kind = Kind::of(instruction.mnemonic());
    if kind == Kind::Illegal || !(is_of_bus || isa.includes(&instruction)) {
        return Op::bare(Kind::Illegal, instruction.bits().cast_signed());
    }
    let word = instruction.word();
    let (rd, rs1, rs2) = (Reg::new(word >> 7), Reg::new(word >> 15), Reg::new(word >> 20));
    let mut op = special(Op { kind, rd, rs1, rs2, imm: instruction.immediate() }, &instruction, place);
    if op.kind.effect() == Effect::Computes && op.rd == Reg::X0 {
        op = Op::bare(Kind::Nop, 0);
    }
    if instruction.is_compressed() {
        match op.kind {
            Kind::BranchFar => op.rd = Reg::new(op.rd as u32 | 8),
            Kind::JalFar => {}
            kind => op.kind = kind.compressed(),
        }
    }
    op
}

/// Shorter forms of what is frequent, distances in slots, and what else a kind keeps in its fields.
fn special(op: Op, instruction: &Instruction, place: Place) -> Op {
    let word = instruction.word();
    match op.kind {
        Kind::Addi if op.rs1 == Reg::X0 => Op { kind: Kind::Li, ..op },
        Kind::Addi if op.imm == 0 => Op { kind: Kind::Mv, ..op },
        // what c.mv expands to
        Kind::Add if op.rs1 == Reg::X0 => Op { kind: Kind::Mv, rs1: op.rs2, ..op },
        Kind::Jalr if op.rd == Reg::X0 => Op { kind: Kind::Jr, ..op },
        Kind::Jal => match place.slots(op.imm) {
            Some(slots) => Op { kind: if op.rd == Reg::X0 { Kind::J } else { Kind::Jal }, imm: slots, ..op },
            None => Op { kind: Kind::JalFar, ..op },
        },
        Kind::Beq | Kind::Bne | Kind::Blt | Kind::Bge | Kind::Bltu | Kind::Bgeu => match place.slots(op.imm) {
            Some(slots) => Op { imm: slots, ..op },
            None => Op { kind: Kind::BranchFar, rd: Reg::new(funct3(word)), ..op },
        },
        Kind::Lb | Kind::Lh | Kind::Lw | Kind::Ld | Kind::Lbu | Kind::Lhu | Kind::Lwu if op.rd == Reg::X0 => {
            Op { kind: Kind::LoadNothing, rs2: Reg::new(funct3(word) & 3), ..op }
        }
        Kind::Fence => Op { imm: (word >> 20 & 0xff).cast_signed(), ..op },
        Kind::Draft => Op { imm: draft::immediate(instruction), ..op },
        Kind::Csr | Kind::Atomic | Kind::Custom => Op { imm: word.cast_signed(), ..op },
        _ => op,
    }
}

/// The field that distinguishes branches and widths.
const fn funct3(word: u32) -> u32 {
    word >> 12 & 7
}
