//! Decodes RV64 instructions far enough to name them, to tell their extension and to follow their control flow.
//!
//! Encodings: RISC-V Unprivileged ISA, chapter "Instruction Set Listings"; bit manipulation 1.0.0, and 0.93 for the drafts Zbp and Zbr. The decoder is a table
//! of (mask, bits) rows; compressed instructions are first expanded to the instruction that they stand for.

use crate::compressed::expand;
use crate::isa::Extension::{
    self, A, Custom, D, F, I, M, Privileged, Unknown, V, Zba, Zbb, Zbp, Zbr, Zbs, Zicsr, Zifencei,
};

/// How operands lie in the instruction word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// rd, rs1, rs2
    R,
    /// rd, rs1
    Unary,
    /// rd, rs1, 12-bit immediate
    Imm,
    /// rd, rs1, shift of up to 6 bits
    Shift6,
    /// rd, rs1, shift of up to 5 bits
    Shift5,
    /// rd, immediate(rs1)
    Load,
    /// rs2, immediate(rs1)
    Store,
    /// rs1, rs2, target
    Branch,
    /// rd, upper 20 bits
    Upper,
    /// rd, target
    Jump,
    /// rd, CSR, rs1
    Csr,
    /// rd, CSR, 5-bit immediate
    CsrImm,
    /// rd, rs2, (rs1), with acquire and release bits
    Amo,
    /// rd, (rs1), with acquire and release bits
    LoadReserved,
    /// predecessor and successor sets
    Fence,
    /// no operand that is told
    Bare,
}

#[derive(Debug)]
pub(crate) struct Op {
    mask: u32,
    bits: u32,
    pub(crate) name: &'static str,
    pub(crate) format: Format,
    extension: Extension,
}

/// One decoded instruction.
#[derive(Debug, Clone, Copy)]
pub struct Instruction {
    /// Where it stands.
    pub addr: u64,
    /// Its bytes, little-endian; the upper half is 0 for a compressed one.
    pub raw: u32,
    /// 2 or 4.
    pub size_bytes: u8,
    /// The extension it needs; a compressed instruction needs C as well.
    pub extension: Extension,
    pub(crate) op: &'static Op,
    /// The 32-bit form that operands are read from.
    pub(crate) word: u32,
}

/// Where execution goes after an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// To the next instruction (a call of the runtime by `ecall` too).
    Next,
    /// To the next instruction or to this address.
    Branch(u64),
    /// To this address.
    Jump(u64),
    /// To this address, and back.
    Call(u64),
    /// To an address in a register.
    IndirectJump,
    /// To an address in a register, and back.
    IndirectCall,
    /// To the caller.
    Return,
    /// Nowhere: a trap on purpose (`unimp`, `ebreak`) or no instruction at all.
    Stop,
}

const fn row(mask: u32, bits: u32, name: &'static str, format: Format, extension: Extension) -> Op {
    Op { mask, bits, name, format, extension }
}

const fn imm(funct3: u32, opcode: u32, name: &'static str, format: Format, extension: Extension) -> Op {
    row(0x707f, funct3 << 12 | opcode, name, format, extension)
}

const fn reg(funct7: u32, funct3: u32, opcode: u32, name: &'static str, extension: Extension) -> Op {
    row(0xfe00_707f, funct7 << 25 | funct3 << 12 | opcode, name, Format::R, extension)
}

const fn shift6(funct6: u32, funct3: u32, opcode: u32, name: &'static str, extension: Extension) -> Op {
    row(0xfc00_707f, funct6 << 26 | funct3 << 12 | opcode, name, Format::Shift6, extension)
}

const fn shift5(funct7: u32, funct3: u32, name: &'static str, extension: Extension) -> Op {
    row(0xfe00_707f, funct7 << 25 | funct3 << 12 | 0x1b, name, Format::Shift5, extension)
}

const fn unary(imm12: u32, funct3: u32, opcode: u32, name: &'static str) -> Op {
    row(0xfff0_707f, imm12 << 20 | funct3 << 12 | opcode, name, Format::Unary, Zbb)
}

const fn checksum(imm12: u32, name: &'static str) -> Op {
    row(0xfff0_707f, imm12 << 20 | 1 << 12 | 0x13, name, Format::Unary, Zbr)
}

const fn amo(funct5: u32, funct3: u32, name: &'static str) -> Op {
    row(0xf800_707f, funct5 << 27 | funct3 << 12 | 0x2f, name, Format::Amo, A)
}

const fn lr(funct3: u32, name: &'static str) -> Op {
    row(0xf9f0_707f, 0x02 << 27 | funct3 << 12 | 0x2f, name, Format::LoadReserved, A)
}

const fn exact(bits: u32, name: &'static str, extension: Extension) -> Op {
    row(0xffff_ffff, bits, name, Format::Bare, extension)
}

const fn opcode(opcode: u32, name: &'static str, extension: Extension) -> Op {
    row(0x7f, opcode, name, Format::Bare, extension)
}

/// In order: the first row that matches wins.
static OPS: &[Op] = &[
    row(0x7f, 0x37, "lui", Format::Upper, I),
    row(0x7f, 0x17, "auipc", Format::Upper, I),
    row(0x7f, 0x6f, "jal", Format::Jump, I),
    imm(0, 0x67, "jalr", Format::Load, I),
    imm(0, 0x63, "beq", Format::Branch, I),
    imm(1, 0x63, "bne", Format::Branch, I),
    imm(4, 0x63, "blt", Format::Branch, I),
    imm(5, 0x63, "bge", Format::Branch, I),
    imm(6, 0x63, "bltu", Format::Branch, I),
    imm(7, 0x63, "bgeu", Format::Branch, I),
    imm(0, 0x03, "lb", Format::Load, I),
    imm(1, 0x03, "lh", Format::Load, I),
    imm(2, 0x03, "lw", Format::Load, I),
    imm(3, 0x03, "ld", Format::Load, I),
    imm(4, 0x03, "lbu", Format::Load, I),
    imm(5, 0x03, "lhu", Format::Load, I),
    imm(6, 0x03, "lwu", Format::Load, I),
    imm(0, 0x23, "sb", Format::Store, I),
    imm(1, 0x23, "sh", Format::Store, I),
    imm(2, 0x23, "sw", Format::Store, I),
    imm(3, 0x23, "sd", Format::Store, I),
    imm(0, 0x13, "addi", Format::Imm, I),
    imm(2, 0x13, "slti", Format::Imm, I),
    imm(3, 0x13, "sltiu", Format::Imm, I),
    imm(4, 0x13, "xori", Format::Imm, I),
    imm(6, 0x13, "ori", Format::Imm, I),
    imm(7, 0x13, "andi", Format::Imm, I),
    shift6(0x00, 1, 0x13, "slli", I),
    shift6(0x00, 5, 0x13, "srli", I),
    shift6(0x10, 5, 0x13, "srai", I),
    imm(0, 0x1b, "addiw", Format::Imm, I),
    shift5(0x00, 1, "slliw", I),
    shift5(0x00, 5, "srliw", I),
    shift5(0x20, 5, "sraiw", I),
    reg(0x00, 0, 0x33, "add", I),
    reg(0x20, 0, 0x33, "sub", I),
    reg(0x00, 1, 0x33, "sll", I),
    reg(0x00, 2, 0x33, "slt", I),
    reg(0x00, 3, 0x33, "sltu", I),
    reg(0x00, 4, 0x33, "xor", I),
    reg(0x00, 5, 0x33, "srl", I),
    reg(0x20, 5, 0x33, "sra", I),
    reg(0x00, 6, 0x33, "or", I),
    reg(0x00, 7, 0x33, "and", I),
    reg(0x00, 0, 0x3b, "addw", I),
    reg(0x20, 0, 0x3b, "subw", I),
    reg(0x00, 1, 0x3b, "sllw", I),
    reg(0x00, 5, 0x3b, "srlw", I),
    reg(0x20, 5, 0x3b, "sraw", I),
    exact(0x8330_000f, "fence.tso", I),
    imm(0, 0x0f, "fence", Format::Fence, I),
    imm(1, 0x0f, "fence.i", Format::Bare, Zifencei),
    exact(0x0000_0073, "ecall", I),
    exact(0x0010_0073, "ebreak", I),
    // Reserved by LLVM and binutils for "trap here": a write to the read-only counter `cycle`.
    exact(0xc000_1073, "unimp", I),
    exact(0x3020_0073, "mret", Privileged),
    exact(0x1020_0073, "sret", Privileged),
    exact(0x1050_0073, "wfi", Privileged),
    imm(1, 0x73, "csrrw", Format::Csr, Zicsr),
    imm(2, 0x73, "csrrs", Format::Csr, Zicsr),
    imm(3, 0x73, "csrrc", Format::Csr, Zicsr),
    imm(5, 0x73, "csrrwi", Format::CsrImm, Zicsr),
    imm(6, 0x73, "csrrsi", Format::CsrImm, Zicsr),
    imm(7, 0x73, "csrrci", Format::CsrImm, Zicsr),
    reg(0x01, 0, 0x33, "mul", M),
    reg(0x01, 1, 0x33, "mulh", M),
    reg(0x01, 2, 0x33, "mulhsu", M),
    reg(0x01, 3, 0x33, "mulhu", M),
    reg(0x01, 4, 0x33, "div", M),
    reg(0x01, 5, 0x33, "divu", M),
    reg(0x01, 6, 0x33, "rem", M),
    reg(0x01, 7, 0x33, "remu", M),
    reg(0x01, 0, 0x3b, "mulw", M),
    reg(0x01, 4, 0x3b, "divw", M),
    reg(0x01, 5, 0x3b, "divuw", M),
    reg(0x01, 6, 0x3b, "remw", M),
    reg(0x01, 7, 0x3b, "remuw", M),
    lr(2, "lr.w"),
    lr(3, "lr.d"),
    amo(0x03, 2, "sc.w"),
    amo(0x03, 3, "sc.d"),
    amo(0x01, 2, "amoswap.w"),
    amo(0x01, 3, "amoswap.d"),
    amo(0x00, 2, "amoadd.w"),
    amo(0x00, 3, "amoadd.d"),
    amo(0x04, 2, "amoxor.w"),
    amo(0x04, 3, "amoxor.d"),
    amo(0x0c, 2, "amoand.w"),
    amo(0x0c, 3, "amoand.d"),
    amo(0x08, 2, "amoor.w"),
    amo(0x08, 3, "amoor.d"),
    amo(0x10, 2, "amomin.w"),
    amo(0x10, 3, "amomin.d"),
    amo(0x14, 2, "amomax.w"),
    amo(0x14, 3, "amomax.d"),
    amo(0x18, 2, "amominu.w"),
    amo(0x18, 3, "amominu.d"),
    amo(0x1c, 2, "amomaxu.w"),
    amo(0x1c, 3, "amomaxu.d"),
    reg(0x20, 7, 0x33, "andn", Zbb),
    reg(0x20, 6, 0x33, "orn", Zbb),
    reg(0x20, 4, 0x33, "xnor", Zbb),
    reg(0x05, 4, 0x33, "min", Zbb),
    reg(0x05, 5, 0x33, "minu", Zbb),
    reg(0x05, 6, 0x33, "max", Zbb),
    reg(0x05, 7, 0x33, "maxu", Zbb),
    reg(0x30, 1, 0x33, "rol", Zbb),
    reg(0x30, 5, 0x33, "ror", Zbb),
    reg(0x30, 1, 0x3b, "rolw", Zbb),
    reg(0x30, 5, 0x3b, "rorw", Zbb),
    shift6(0x18, 5, 0x13, "rori", Zbb),
    shift5(0x30, 5, "roriw", Zbb),
    unary(0x600, 1, 0x13, "clz"),
    unary(0x601, 1, 0x13, "ctz"),
    unary(0x602, 1, 0x13, "cpop"),
    unary(0x604, 1, 0x13, "sext.b"),
    unary(0x605, 1, 0x13, "sext.h"),
    unary(0x287, 5, 0x13, "orc.b"),
    unary(0x6b8, 5, 0x13, "rev8"),
    unary(0x600, 1, 0x1b, "clzw"),
    unary(0x601, 1, 0x1b, "ctzw"),
    unary(0x602, 1, 0x1b, "cpopw"),
    unary(0x080, 4, 0x3b, "zext.h"),
    reg(0x24, 1, 0x33, "bclr", Zbs),
    reg(0x24, 5, 0x33, "bext", Zbs),
    reg(0x34, 1, 0x33, "binv", Zbs),
    reg(0x14, 1, 0x33, "bset", Zbs),
    shift6(0x12, 1, 0x13, "bclri", Zbs),
    shift6(0x12, 5, 0x13, "bexti", Zbs),
    shift6(0x1a, 1, 0x13, "binvi", Zbs),
    shift6(0x0a, 1, 0x13, "bseti", Zbs),
    reg(0x10, 2, 0x33, "sh1add", Zba),
    reg(0x10, 4, 0x33, "sh2add", Zba),
    reg(0x10, 6, 0x33, "sh3add", Zba),
    reg(0x04, 0, 0x3b, "add.uw", Zba),
    reg(0x10, 2, 0x3b, "sh1add.uw", Zba),
    reg(0x10, 4, 0x3b, "sh2add.uw", Zba),
    reg(0x10, 6, 0x3b, "sh3add.uw", Zba),
    shift6(0x02, 1, 0x1b, "slli.uw", Zba),
    // Behind what Zbb took over of them (rev8, orc.b, zext.h).
    reg(0x34, 5, 0x33, "grev", Zbp),
    reg(0x14, 5, 0x33, "gorc", Zbp),
    reg(0x04, 1, 0x33, "shfl", Zbp),
    reg(0x04, 5, 0x33, "unshfl", Zbp),
    reg(0x04, 4, 0x33, "pack", Zbp),
    reg(0x24, 4, 0x33, "packu", Zbp),
    reg(0x04, 7, 0x33, "packh", Zbp),
    reg(0x14, 2, 0x33, "xperm.n", Zbp),
    reg(0x14, 4, 0x33, "xperm.b", Zbp),
    reg(0x14, 6, 0x33, "xperm.h", Zbp),
    reg(0x14, 0, 0x33, "xperm.w", Zbp),
    reg(0x34, 5, 0x3b, "grevw", Zbp),
    reg(0x14, 5, 0x3b, "gorcw", Zbp),
    reg(0x04, 1, 0x3b, "shflw", Zbp),
    reg(0x04, 5, 0x3b, "unshflw", Zbp),
    reg(0x04, 4, 0x3b, "packw", Zbp),
    reg(0x24, 4, 0x3b, "packuw", Zbp),
    shift6(0x1a, 5, 0x13, "grevi", Zbp),
    shift6(0x0a, 5, 0x13, "gorci", Zbp),
    row(0xfe00_707f, 0x04 << 25 | 1 << 12 | 0x13, "shfli", Format::Shift5, Zbp),
    row(0xfe00_707f, 0x04 << 25 | 5 << 12 | 0x13, "unshfli", Format::Shift5, Zbp),
    shift5(0x34, 5, "greviw", Zbp),
    shift5(0x14, 5, "gorciw", Zbp),
    checksum(0x610, "crc32.b"),
    checksum(0x611, "crc32.h"),
    checksum(0x612, "crc32.w"),
    checksum(0x613, "crc32.d"),
    checksum(0x618, "crc32c.b"),
    checksum(0x619, "crc32c.h"),
    checksum(0x61a, "crc32c.w"),
    checksum(0x61b, "crc32c.d"),
    imm(2, 0x07, "flw", Format::Bare, F),
    imm(3, 0x07, "fld", Format::Bare, D),
    imm(2, 0x27, "fsw", Format::Bare, F),
    imm(3, 0x27, "fsd", Format::Bare, D),
    row(0x0600_0073, 0x43, "fused multiply-add, single", Format::Bare, F),
    row(0x0600_0073, 0x0200_0043, "fused multiply-add, double", Format::Bare, D),
    row(0x0600_007f, 0x53, "floating point, single", Format::Bare, F),
    row(0x0600_007f, 0x0200_0053, "floating point, double", Format::Bare, D),
    opcode(0x57, "vector", V),
    opcode(0x0b, "custom-0", Custom),
    opcode(0x2b, "custom-1", Custom),
    opcode(0x5b, "custom-2", Custom),
    opcode(0x7b, "custom-3", Custom),
];

static C_UNIMP: Op = exact(0, "unimp", I);
static NOT_AN_INSTRUCTION: Op = exact(0, ".insn", Unknown);

impl Instruction {
    /// Decodes the first instruction of `bytes`, which stands at `addr`; `None` where fewer bytes are left than it has.
    #[must_use]
    pub fn decode(addr: u64, bytes: &[u8]) -> Option<Self> {
        let low = u16::from_le_bytes([*bytes.first()?, *bytes.get(1)?]);
        if low & 3 != 3 {
            let (op, word) = match expand(low) {
                _ if low == 0 => (&C_UNIMP, 0),
                Some(word) => (lookup(word), word),
                None => (&NOT_AN_INSTRUCTION, 0),
            };
            return Some(Self { addr, raw: u32::from(low), size_bytes: 2, extension: op.extension, op, word });
        }
        let high = u16::from_le_bytes([*bytes.get(2)?, *bytes.get(3)?]);
        let word = u32::from(high) << 16 | u32::from(low);
        let op = lookup(word);
        Some(Self { addr, raw: word, size_bytes: 4, extension: op.extension, op, word })
    }

    /// Takes part of the C extension.
    #[must_use]
    pub fn is_compressed(&self) -> bool {
        self.size_bytes == 2
    }

    /// The mnemonic of the instruction it is or stands for, without aliases.
    #[must_use]
    pub fn mnemonic(&self) -> &'static str {
        self.op.name
    }

    /// Address of the instruction behind it.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.addr.wrapping_add(u64::from(self.size_bytes))
    }

    /// Where execution goes next.
    #[must_use]
    pub fn flow(&self) -> Flow {
        let target = || self.addr.wrapping_add_signed(self.immediate());
        match (self.op.format, self.op.name) {
            (Format::Branch, _) => Flow::Branch(target()),
            (Format::Jump, _) if self.rd() == 0 => Flow::Jump(target()),
            (Format::Jump, _) => Flow::Call(target()),
            // x1 and x5 are link registers (ISA manual, return-address stack hints).
            (_, "jalr") if self.rd() == 0 && matches!(self.rs1(), 1 | 5) => Flow::Return,
            (_, "jalr") if self.rd() == 0 => Flow::IndirectJump,
            (_, "jalr") => Flow::IndirectCall,
            (_, "unimp" | "ebreak" | "mret" | "sret") => Flow::Stop,
            _ if self.extension == Unknown => Flow::Stop,
            _ => Flow::Next,
        }
    }

    pub(crate) fn rd(&self) -> u8 {
        (self.word >> 7 & 31) as u8
    }

    pub(crate) fn rs1(&self) -> u8 {
        (self.word >> 15 & 31) as u8
    }

    pub(crate) fn rs2(&self) -> u8 {
        (self.word >> 20 & 31) as u8
    }

    /// The immediate of the instruction's format, sign-extended; a shift amount for shifts; 0 where there is none.
    pub(crate) fn immediate(&self) -> i64 {
        let word = self.word;
        let bits = |high: u32, low: u32| word >> low & ((1 << (high - low + 1)) - 1);
        let value = match self.op.format {
            Format::Imm | Format::Load => word as i32 >> 20,
            Format::Store => (word as i32 >> 25) << 5 | bits(11, 7) as i32,
            Format::Branch => {
                (word as i32 >> 31) << 12 | (bits(7, 7) << 11 | bits(30, 25) << 5 | bits(11, 8) << 1) as i32
            }
            Format::Jump => {
                (word as i32 >> 31) << 20 | (bits(19, 12) << 12 | bits(20, 20) << 11 | bits(30, 21) << 1) as i32
            }
            Format::Upper => (word & 0xffff_f000) as i32,
            Format::Shift6 => bits(25, 20) as i32,
            Format::Shift5 => bits(24, 20) as i32,
            _ => 0,
        };
        i64::from(value)
    }
}

fn lookup(word: u32) -> &'static Op {
    OPS.iter().find(|op| word & op.mask == op.bits).unwrap_or(&NOT_AN_INSTRUCTION)
}

/// Decodes all of `bytes`; a rest too short for its instruction ends the walk.
pub fn decode_all(addr: u64, bytes: &[u8]) -> impl Iterator<Item = Instruction> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let instruction = Instruction::decode(addr.wrapping_add(at as u64), bytes.get(at..)?)?;
        at += usize::from(instruction.size_bytes);
        Some(instruction)
    })
}
