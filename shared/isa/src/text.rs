//! Instructions as LLVM's disassembler writes them, with its aliases.

use core::fmt;

use crate::table::Format;
use crate::{Instruction, Mnemonic};

const REGISTERS: [&str; 32] = [
    "zero", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1", "a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "s2",
    "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "t3", "t4", "t5", "t6",
];

/// ABI name of register `index`.
const fn register(index: u8) -> &'static str {
    REGISTERS[(index & 31) as usize]
}

/// See [`Instruction::hex`].
#[derive(Debug, Clone, Copy)]
pub struct Hex {
    pub(crate) bits: u32,
    pub(crate) digits: usize,
}

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0digits$x}", self.bits, digits = self.digits)
    }
}

impl fmt::Display for Instruction {
    /// The text of the instruction, such as `addi a0, a0, 8` or `bnez a1, 0x40000010`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(written) = alias(self, f) {
            return written;
        }
        let op = self.mnemonic().name();
        let (rd, rs1, rs2) = (register(self.rd()), register(self.rs1()), register(self.rs2()));
        let (word, imm) = (self.word(), self.immediate());
        match self.format() {
            Format::R => write!(f, "{op} {rd}, {rs1}, {rs2}"),
            Format::Unary => write!(f, "{op} {rd}, {rs1}"),
            Format::Imm | Format::Shift5 | Format::Shift6 => write!(f, "{op} {rd}, {rs1}, {imm}"),
            Format::Load => write!(f, "{op} {rd}, {imm}({rs1})"),
            Format::Store => write!(f, "{op} {rs2}, {imm}({rs1})"),
            Format::Branch => write!(f, "{op} {rs1}, {rs2}, {:#x}", self.target()),
            Format::Upper => write!(f, "{op} {rd}, {:#x}", word >> 12),
            Format::Jump => write!(f, "{op} {rd}, {:#x}", self.target()),
            Format::Csr => write!(f, "{op} {rd}, {}, {rs1}", Csr(word >> 20)),
            Format::CsrImm => write!(f, "{op} {rd}, {}, {}", Csr(word >> 20), self.rs1()),
            Format::Amo => write!(f, "{op}{} {rd}, {rs2}, ({rs1})", ordering(word)),
            Format::LoadReserved => write!(f, "{op}{} {rd}, ({rs1})", ordering(word)),
            Format::Fence => write!(f, "{op} {}, {}", OrderSet(word >> 24), OrderSet(word >> 20)),
            Format::Bare if self.mnemonic() == Mnemonic::Unknown => write!(f, "<unknown 0x{}>", self.hex()),
            Format::Bare => f.write_str(op),
        }
    }
}

const fn ordering(word: u32) -> &'static str {
    match word >> 25 & 3 {
        0 => "",
        1 => ".rl",
        2 => ".aq",
        _ => ".aqrl",
    }
}

/// What a fence orders: device input and output, memory reads and writes.
struct OrderSet(u32);

impl fmt::Display for OrderSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 & 15 == 0 {
            return f.write_str("0");
        }
        [(8, "i"), (4, "o"), (2, "r"), (1, "w")]
            .iter()
            .filter(|(bit, _)| self.0 & bit != 0)
            .try_for_each(|(_, letter)| f.write_str(letter))
    }
}

/// A control and status register: the counters by name, others by number.
struct Csr(u32);

impl Csr {
    const fn counter(&self) -> Option<&'static str> {
        match self.0 {
            0xc00 => Some("cycle"),
            0xc01 => Some("time"),
            0xc02 => Some("instret"),
            _ => None,
        }
    }
}

impl fmt::Display for Csr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.counter() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

/// Writes the shorter form that every RISC-V assembler knows; `None` where there is none.
fn alias(instruction: &Instruction, f: &mut fmt::Formatter<'_>) -> Option<fmt::Result> {
    let (rd, rs1, rs2) = (instruction.rd(), instruction.rs1(), instruction.rs2());
    let (d, s, t) = (register(rd), register(rs1), register(rs2));
    let imm = instruction.immediate();
    let to = || instruction.target();
    let csr = Csr(instruction.word() >> 20);
    Some(match instruction.mnemonic() {
        Mnemonic::Addi if rd == 0 && rs1 == 0 && imm == 0 => f.write_str("nop"),
        Mnemonic::Addi if rs1 == 0 => write!(f, "li {d}, {imm}"),
        Mnemonic::Addi if imm == 0 => write!(f, "mv {d}, {s}"),
        Mnemonic::Add if rs1 == 0 && instruction.is_compressed() => write!(f, "mv {d}, {t}"),
        Mnemonic::Addiw if imm == 0 => write!(f, "sext.w {d}, {s}"),
        Mnemonic::Xori if imm == -1 => write!(f, "not {d}, {s}"),
        Mnemonic::Andi if imm == 255 => write!(f, "zext.b {d}, {s}"),
        Mnemonic::AddUw if rs2 == 0 => write!(f, "zext.w {d}, {s}"),
        Mnemonic::Sub if rs1 == 0 => write!(f, "neg {d}, {t}"),
        Mnemonic::Subw if rs1 == 0 => write!(f, "negw {d}, {t}"),
        Mnemonic::Sltiu if imm == 1 => write!(f, "seqz {d}, {s}"),
        Mnemonic::Sltu if rs1 == 0 => write!(f, "snez {d}, {t}"),
        Mnemonic::Slt if rs2 == 0 => write!(f, "sltz {d}, {s}"),
        Mnemonic::Slt if rs1 == 0 => write!(f, "sgtz {d}, {t}"),
        Mnemonic::Beq if rs2 == 0 => write!(f, "beqz {s}, {:#x}", to()),
        Mnemonic::Bne if rs2 == 0 => write!(f, "bnez {s}, {:#x}", to()),
        Mnemonic::Bge if rs1 == 0 => write!(f, "blez {t}, {:#x}", to()),
        Mnemonic::Bge if rs2 == 0 => write!(f, "bgez {s}, {:#x}", to()),
        Mnemonic::Blt if rs2 == 0 => write!(f, "bltz {s}, {:#x}", to()),
        Mnemonic::Blt if rs1 == 0 => write!(f, "bgtz {t}, {:#x}", to()),
        Mnemonic::Jal if rd == 0 => write!(f, "j {:#x}", to()),
        Mnemonic::Jal if rd == 1 => write!(f, "jal {:#x}", to()),
        Mnemonic::Jalr if rd == 0 && rs1 == 1 && imm == 0 => f.write_str("ret"),
        Mnemonic::Jalr if rd == 0 && imm == 0 => write!(f, "jr {s}"),
        Mnemonic::Jalr if rd == 0 => write!(f, "jr {imm}({s})"),
        Mnemonic::Jalr if rd == 1 && imm == 0 => write!(f, "jalr {s}"),
        Mnemonic::Jalr if rd == 1 => write!(f, "jalr {imm}({s})"),
        Mnemonic::Jalr if imm == 0 => write!(f, "jalr {d}, {s}"),
        Mnemonic::Fence if instruction.word() >> 20 == 0xff => f.write_str("fence"),
        Mnemonic::Csrrs if rs1 == 0 => match csr.counter() {
            Some(name) => write!(f, "rd{name} {d}"),
            None => write!(f, "csrr {d}, {csr}"),
        },
        // `csrw` and the like: the name without its second `r`.
        op @ (Mnemonic::Csrrw | Mnemonic::Csrrs | Mnemonic::Csrrc) if rd == 0 => {
            write!(f, "csr{} {csr}, {s}", &op.name()[4..])
        }
        op @ (Mnemonic::Csrrwi | Mnemonic::Csrrsi | Mnemonic::Csrrci) if rd == 0 => {
            write!(f, "csr{} {csr}, {rs1}", &op.name()[4..])
        }
        _ => return None,
    })
}
