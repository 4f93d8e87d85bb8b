//! Writes instructions as LLVM's disassembler does, with its aliases.

use std::fmt::Write as _;

use crate::Image;
use crate::decode::{Flow, Format, Instruction};

const REGISTERS: [&str; 32] = [
    "zero", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1", "a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "s2",
    "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "t3", "t4", "t5", "t6",
];

/// ABI name of register `index`.
fn name(index: u8) -> &'static str {
    REGISTERS[usize::from(index & 31)]
}

/// The text of one instruction, such as `addi a0, a0, 8` or `bnez a1, 0x40000010`.
#[must_use]
pub fn text(instruction: &Instruction) -> String {
    let op = instruction.mnemonic();
    let (rd, rs1, rs2) = (name(instruction.rd()), name(instruction.rs1()), name(instruction.rs2()));
    let imm = instruction.immediate();
    if let Some(alias) = alias(instruction) {
        return alias;
    }
    match instruction.op.format {
        Format::R => format!("{op} {rd}, {rs1}, {rs2}"),
        Format::Unary => format!("{op} {rd}, {rs1}"),
        Format::Imm | Format::Shift5 | Format::Shift6 => {
            format!("{op} {rd}, {rs1}, {}", imm)
        }
        Format::Load => format!("{op} {rd}, {}({rs1})", imm),
        Format::Store => format!("{op} {rs2}, {}({rs1})", imm),
        Format::Branch => format!("{op} {rs1}, {rs2}, {}", target(instruction)),
        Format::Upper => format!("{op} {rd}, {:#x}", instruction.word >> 12),
        Format::Jump => format!("{op} {rd}, {}", target(instruction)),
        Format::Csr => format!("{op} {rd}, {}, {rs1}", csr(instruction.word >> 20)),
        Format::CsrImm => format!("{op} {rd}, {}, {}", csr(instruction.word >> 20), instruction.rs1()),
        Format::Amo => format!("{op}{} {rd}, {rs2}, ({rs1})", ordering(instruction.word)),
        Format::LoadReserved => format!("{op}{} {rd}, ({rs1})", ordering(instruction.word)),
        Format::Fence => {
            format!("fence {}, {}", order_set(instruction.word >> 24), order_set(instruction.word >> 20))
        }
        Format::Bare if op == ".insn" => {
            format!("<unknown {:#0width$x}>", instruction.raw, width = instruction.hex_width())
        }
        Format::Bare => op.to_owned(),
    }
}

impl Instruction {
    fn hex_width(&self) -> usize {
        2 + 2 * usize::from(self.size_bytes)
    }

    /// The bytes as one number in hexadecimal, four or eight digits.
    #[must_use]
    pub fn hex(&self) -> String {
        format!("{:0width$x}", self.raw, width = self.hex_width() - 2)
    }
}

fn target(instruction: &Instruction) -> String {
    match instruction.flow() {
        Flow::Branch(to) | Flow::Jump(to) | Flow::Call(to) => format!("{to:#x}"),
        _ => String::new(),
    }
}

fn ordering(word: u32) -> &'static str {
    match word >> 25 & 3 {
        0 => "",
        1 => ".rl",
        2 => ".aq",
        _ => ".aqrl",
    }
}

fn order_set(bits: u32) -> String {
    let set: String =
        [(8, 'i'), (4, 'o'), (2, 'r'), (1, 'w')].iter().filter(|(bit, _)| bits & bit != 0).map(|(_, c)| c).collect();
    if set.is_empty() { "0".to_owned() } else { set }
}

fn csr(number: u32) -> String {
    match number {
        0xc00 => "cycle".to_owned(),
        0xc01 => "time".to_owned(),
        0xc02 => "instret".to_owned(),
        other => format!("{other:#x}"),
    }
}

/// The shorter names that every RISC-V assembler knows.
fn alias(instruction: &Instruction) -> Option<String> {
    let (rd, rs1, rs2) = (instruction.rd(), instruction.rs1(), instruction.rs2());
    let (d, s, t) = (name(rd), name(rs1), name(rs2));
    let imm = instruction.immediate();
    let to = || target(instruction);
    Some(match instruction.mnemonic() {
        "addi" if rd == 0 && rs1 == 0 && imm == 0 => "nop".to_owned(),
        "addi" if rs1 == 0 => format!("li {d}, {}", imm),
        "addi" if imm == 0 => format!("mv {d}, {s}"),
        "add" if rs1 == 0 && instruction.is_compressed() => format!("mv {d}, {t}"),
        "addiw" if imm == 0 => format!("sext.w {d}, {s}"),
        "xori" if imm == -1 => format!("not {d}, {s}"),
        "andi" if imm == 255 => format!("zext.b {d}, {s}"),
        "sub" if rs1 == 0 => format!("neg {d}, {t}"),
        "subw" if rs1 == 0 => format!("negw {d}, {t}"),
        "sltiu" if imm == 1 => format!("seqz {d}, {s}"),
        "sltu" if rs1 == 0 => format!("snez {d}, {t}"),
        "slt" if rs2 == 0 => format!("sltz {d}, {s}"),
        "slt" if rs1 == 0 => format!("sgtz {d}, {t}"),
        "beq" if rs2 == 0 => format!("beqz {s}, {}", to()),
        "bne" if rs2 == 0 => format!("bnez {s}, {}", to()),
        "bge" if rs1 == 0 => format!("blez {t}, {}", to()),
        "bge" if rs2 == 0 => format!("bgez {s}, {}", to()),
        "blt" if rs2 == 0 => format!("bltz {s}, {}", to()),
        "blt" if rs1 == 0 => format!("bgtz {t}, {}", to()),
        "jal" if rd == 0 => format!("j {}", to()),
        "jal" if rd == 1 => format!("jal {}", to()),
        "jalr" if rd == 0 && rs1 == 1 && imm == 0 => "ret".to_owned(),
        "jalr" if rd == 0 && imm == 0 => format!("jr {s}"),
        "jalr" if rd == 0 => format!("jr {}({s})", imm),
        "jalr" if rd == 1 && imm == 0 => format!("jalr {s}"),
        "jalr" if rd == 1 => format!("jalr {}({s})", imm),
        "fence" if instruction.word >> 20 == 0xff => "fence".to_owned(),
        "csrrs" if rs1 == 0 => match instruction.word >> 20 {
            0xc00 => format!("rdcycle {d}"),
            0xc01 => format!("rdtime {d}"),
            0xc02 => format!("rdinstret {d}"),
            other => format!("csrr {d}, {}", csr(other)),
        },
        "csrrw" if rd == 0 => format!("csrw {}, {s}", csr(instruction.word >> 20)),
        _ => return None,
    })
}

/// One line per instruction of `start..end`: address, bytes, text; branch targets carry the name they lie in.
#[must_use]
pub fn listing(image: &Image, start: u64, end: u64) -> String {
    let mut out = String::new();
    for instruction in image.instructions(start, end) {
        let _ = write!(out, "{:8x}: {:<8}  {}", instruction.addr, instruction.hex(), text(&instruction));
        if let Flow::Branch(to) | Flow::Jump(to) | Flow::Call(to) = instruction.flow()
            && let Some((symbol, offset)) = image.symbolize(to)
        {
            let _ = write!(out, " <{symbol}+{offset:#x}>");
        }
        out.push('\n');
    }
    out
}
