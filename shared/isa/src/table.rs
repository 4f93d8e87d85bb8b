//! The instruction table: encoding, operands and extension of every instruction.
//!
//! Encodings: RISC-V Unprivileged ISA, chapter "Instruction Set Listings"; bit manipulation 1.0.0, and 0.93 for the
//! drafts Zbp and Zbr. A row is the bits that are fixed (a mask) and their values. The first row that fits decides.

use crate::Extension;

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
    /// no operand that is given
    Bare,
}

/// Major opcodes: the low seven bits of an instruction of four bytes.
pub(crate) mod opcode {
    pub(crate) const LOAD: u32 = 0x03;
    pub(crate) const LOAD_FP: u32 = 0x07;
    pub(crate) const MISC_MEM: u32 = 0x0f;
    pub(crate) const OP_IMM: u32 = 0x13;
    pub(crate) const AUIPC: u32 = 0x17;
    pub(crate) const OP_IMM_32: u32 = 0x1b;
    pub(crate) const STORE: u32 = 0x23;
    pub(crate) const STORE_FP: u32 = 0x27;
    pub(crate) const AMO: u32 = 0x2f;
    pub(crate) const OP: u32 = 0x33;
    pub(crate) const LUI: u32 = 0x37;
    pub(crate) const OP_32: u32 = 0x3b;
    pub(crate) const MADD: u32 = 0x43;
    pub(crate) const OP_FP: u32 = 0x53;
    pub(crate) const OP_V: u32 = 0x57;
    pub(crate) const BRANCH: u32 = 0x63;
    pub(crate) const JALR: u32 = 0x67;
    pub(crate) const JAL: u32 = 0x6f;
    pub(crate) const SYSTEM: u32 = 0x73;
}
use opcode::*;

/// Fixed bits of an instruction, and what the others mean.
#[derive(Debug, Clone, Copy)]
struct Encoding {
    mask: u32,
    bits: u32,
    format: Format,
}

/// One instruction.
#[derive(Debug)]
pub(crate) struct Row {
    encoding: Encoding,
    mnemonic: Mnemonic,
    pub(crate) name: &'static str,
    pub(crate) extension: Extension,
    /// The draft that had the instruction before `extension` took it over, and has it still.
    pub(crate) draft: Option<Extension>,
}

impl Row {
    pub(crate) const fn format(&self) -> Format {
        self.encoding.format
    }
}

const fn encoding(mask: u32, bits: u32, format: Format) -> Encoding {
    Encoding { mask, bits, format }
}

/// Of an opcode, all that there is.
const fn all(opcode: u32, format: Format) -> Encoding {
    encoding(0x7f, opcode, format)
}

const fn exact(bits: u32) -> Encoding {
    encoding(0xffff_ffff, bits, Format::Bare)
}

/// By `funct3`.
const fn f3(funct3: u32, opcode: u32, format: Format) -> Encoding {
    encoding(0x707f, funct3 << 12 | opcode, format)
}

const fn imm(funct3: u32, opcode: u32) -> Encoding {
    f3(funct3, opcode, Format::Imm)
}

const fn load(funct3: u32) -> Encoding {
    f3(funct3, LOAD, Format::Load)
}

const fn store(funct3: u32) -> Encoding {
    f3(funct3, STORE, Format::Store)
}

const fn branch(funct3: u32) -> Encoding {
    f3(funct3, BRANCH, Format::Branch)
}

const fn reg(funct7: u32, funct3: u32, opcode: u32) -> Encoding {
    encoding(0xfe00_707f, funct7 << 25 | funct3 << 12 | opcode, Format::R)
}

const fn shift6(funct6: u32, funct3: u32, opcode: u32) -> Encoding {
    encoding(0xfc00_707f, funct6 << 26 | funct3 << 12 | opcode, Format::Shift6)
}

const fn shift5(funct7: u32, funct3: u32, opcode: u32) -> Encoding {
    encoding(0xfe00_707f, funct7 << 25 | funct3 << 12 | opcode, Format::Shift5)
}

const fn unary(funct12: u32, funct3: u32, opcode: u32) -> Encoding {
    encoding(0xfff0_707f, funct12 << 20 | funct3 << 12 | opcode, Format::Unary)
}

const fn lr(funct3: u32) -> Encoding {
    encoding(0xf9f0_707f, 0x02 << 27 | funct3 << 12 | AMO, Format::LoadReserved)
}

const fn amo(funct5: u32, funct3: u32) -> Encoding {
    encoding(0xf800_707f, funct5 << 27 | funct3 << 12 | AMO, Format::Amo)
}

/// Floating point by the format of its numbers: 0 single, 1 double.
const fn float(fmt: u32, opcode: u32) -> Encoding {
    encoding(0x0600_007f, fmt << 25 | opcode, Format::Bare)
}

/// The four opcodes of fused multiplication and addition.
const fn fused(fmt: u32) -> Encoding {
    encoding(0x0600_0073, fmt << 25 | MADD, Format::Bare)
}

/// No word of four bytes: the low two bits of those are ones.
const NONE: Encoding = encoding(3, 0, Format::Bare);

macro_rules! instructions {
    ($($mnemonic:ident $name:literal $encoding:expr, $extension:ident $(or $draft:ident)?;)*) => {
        /// What an instruction is, whatever its operands and its length. Floating point, vectors and custom opcodes are
        /// one for each group.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Mnemonic { $(#[doc = concat!("`", $name, "`")] $mnemonic),* }

        impl Mnemonic {
            /// In the order of their numbers (`as u8`).
            pub const ALL: [Mnemonic; [$(Mnemonic::$mnemonic),*].len()] = [$(Mnemonic::$mnemonic),*];
        }

        /// In the order of [`Mnemonic`].
        static ROWS: [Row; Mnemonic::ALL.len()] = [$(Row {
            encoding: $encoding,
            mnemonic: Mnemonic::$mnemonic,
            name: $name,
            extension: Extension::$extension,
            draft: const {
                #[allow(unused_mut, unused_assignments, reason = "most rows have no draft")]
                let mut draft = None;
                $(draft = Some(Extension::$draft);)?
                draft
            },
        }),*];
    };
}

instructions! {
    Lui "lui" all(LUI, Format::Upper), I;
    Auipc "auipc" all(AUIPC, Format::Upper), I;
    Jal "jal" all(JAL, Format::Jump), I;
    Jalr "jalr" f3(0, JALR, Format::Load), I;
    Beq "beq" branch(0), I;
    Bne "bne" branch(1), I;
    Blt "blt" branch(4), I;
    Bge "bge" branch(5), I;
    Bltu "bltu" branch(6), I;
    Bgeu "bgeu" branch(7), I;
    Lb "lb" load(0), I;
    Lh "lh" load(1), I;
    Lw "lw" load(2), I;
    Ld "ld" load(3), I;
    Lbu "lbu" load(4), I;
    Lhu "lhu" load(5), I;
    Lwu "lwu" load(6), I;
    Sb "sb" store(0), I;
    Sh "sh" store(1), I;
    Sw "sw" store(2), I;
    Sd "sd" store(3), I;
    Addi "addi" imm(0, OP_IMM), I;
    Slti "slti" imm(2, OP_IMM), I;
    Sltiu "sltiu" imm(3, OP_IMM), I;
    Xori "xori" imm(4, OP_IMM), I;
    Ori "ori" imm(6, OP_IMM), I;
    Andi "andi" imm(7, OP_IMM), I;
    Slli "slli" shift6(0x00, 1, OP_IMM), I;
    Srli "srli" shift6(0x00, 5, OP_IMM), I;
    Srai "srai" shift6(0x10, 5, OP_IMM), I;
    Addiw "addiw" imm(0, OP_IMM_32), I;
    Slliw "slliw" shift5(0x00, 1, OP_IMM_32), I;
    Srliw "srliw" shift5(0x00, 5, OP_IMM_32), I;
    Sraiw "sraiw" shift5(0x20, 5, OP_IMM_32), I;
    Add "add" reg(0x00, 0, OP), I;
    Sub "sub" reg(0x20, 0, OP), I;
    Sll "sll" reg(0x00, 1, OP), I;
    Slt "slt" reg(0x00, 2, OP), I;
    Sltu "sltu" reg(0x00, 3, OP), I;
    Xor "xor" reg(0x00, 4, OP), I;
    Srl "srl" reg(0x00, 5, OP), I;
    Sra "sra" reg(0x20, 5, OP), I;
    Or "or" reg(0x00, 6, OP), I;
    And "and" reg(0x00, 7, OP), I;
    Addw "addw" reg(0x00, 0, OP_32), I;
    Subw "subw" reg(0x20, 0, OP_32), I;
    Sllw "sllw" reg(0x00, 1, OP_32), I;
    Srlw "srlw" reg(0x00, 5, OP_32), I;
    Sraw "sraw" reg(0x20, 5, OP_32), I;
    FenceTso "fence.tso" exact(0x8330_000f), I;
    Fence "fence" f3(0, MISC_MEM, Format::Fence), I;
    FenceI "fence.i" f3(1, MISC_MEM, Format::Bare), Zifencei;
    Ecall "ecall" exact(0x0000_0073), I;
    Ebreak "ebreak" exact(0x0010_0073), I;
    // Reserved by LLVM and binutils for "trap here": a write to the read-only counter `cycle`. Two bytes of zeroes are
    // one, too.
    Unimp "unimp" exact(0xc000_1073), I;
    Mret "mret" exact(0x3020_0073), Privileged;
    Sret "sret" exact(0x1020_0073), Privileged;
    Wfi "wfi" exact(0x1050_0073), Privileged;
    Csrrw "csrrw" f3(1, SYSTEM, Format::Csr), Zicsr;
    Csrrs "csrrs" f3(2, SYSTEM, Format::Csr), Zicsr;
    Csrrc "csrrc" f3(3, SYSTEM, Format::Csr), Zicsr;
    Csrrwi "csrrwi" f3(5, SYSTEM, Format::CsrImm), Zicsr;
    Csrrsi "csrrsi" f3(6, SYSTEM, Format::CsrImm), Zicsr;
    Csrrci "csrrci" f3(7, SYSTEM, Format::CsrImm), Zicsr;

    Mul "mul" reg(0x01, 0, OP), M;
    Mulh "mulh" reg(0x01, 1, OP), M;
    Mulhsu "mulhsu" reg(0x01, 2, OP), M;
    Mulhu "mulhu" reg(0x01, 3, OP), M;
    Div "div" reg(0x01, 4, OP), M;
    Divu "divu" reg(0x01, 5, OP), M;
    Rem "rem" reg(0x01, 6, OP), M;
    Remu "remu" reg(0x01, 7, OP), M;
    Mulw "mulw" reg(0x01, 0, OP_32), M;
    Divw "divw" reg(0x01, 4, OP_32), M;
    Divuw "divuw" reg(0x01, 5, OP_32), M;
    Remw "remw" reg(0x01, 6, OP_32), M;
    Remuw "remuw" reg(0x01, 7, OP_32), M;

    LrW "lr.w" lr(2), A;
    LrD "lr.d" lr(3), A;
    ScW "sc.w" amo(0x03, 2), A;
    ScD "sc.d" amo(0x03, 3), A;
    AmoswapW "amoswap.w" amo(0x01, 2), A;
    AmoswapD "amoswap.d" amo(0x01, 3), A;
    AmoaddW "amoadd.w" amo(0x00, 2), A;
    AmoaddD "amoadd.d" amo(0x00, 3), A;
    AmoxorW "amoxor.w" amo(0x04, 2), A;
    AmoxorD "amoxor.d" amo(0x04, 3), A;
    AmoandW "amoand.w" amo(0x0c, 2), A;
    AmoandD "amoand.d" amo(0x0c, 3), A;
    AmoorW "amoor.w" amo(0x08, 2), A;
    AmoorD "amoor.d" amo(0x08, 3), A;
    AmominW "amomin.w" amo(0x10, 2), A;
    AmominD "amomin.d" amo(0x10, 3), A;
    AmomaxW "amomax.w" amo(0x14, 2), A;
    AmomaxD "amomax.d" amo(0x14, 3), A;
    AmominuW "amominu.w" amo(0x18, 2), A;
    AmominuD "amominu.d" amo(0x18, 3), A;
    AmomaxuW "amomaxu.w" amo(0x1c, 2), A;
    AmomaxuD "amomaxu.d" amo(0x1c, 3), A;

    // Zbb has taken over instructions of the draft Zbp, some of them as single cases (rev8, orc.b, zext.h): these stand
    // before the rows of the general ones.
    Andn "andn" reg(0x20, 7, OP), Zbb or Zbp;
    Orn "orn" reg(0x20, 6, OP), Zbb or Zbp;
    Xnor "xnor" reg(0x20, 4, OP), Zbb or Zbp;
    Min "min" reg(0x05, 4, OP), Zbb;
    Minu "minu" reg(0x05, 5, OP), Zbb;
    Max "max" reg(0x05, 6, OP), Zbb;
    Maxu "maxu" reg(0x05, 7, OP), Zbb;
    Rol "rol" reg(0x30, 1, OP), Zbb or Zbp;
    Ror "ror" reg(0x30, 5, OP), Zbb or Zbp;
    Rolw "rolw" reg(0x30, 1, OP_32), Zbb or Zbp;
    Rorw "rorw" reg(0x30, 5, OP_32), Zbb or Zbp;
    Rori "rori" shift6(0x18, 5, OP_IMM), Zbb or Zbp;
    Roriw "roriw" shift5(0x30, 5, OP_IMM_32), Zbb or Zbp;
    Clz "clz" unary(0x600, 1, OP_IMM), Zbb;
    Ctz "ctz" unary(0x601, 1, OP_IMM), Zbb;
    Cpop "cpop" unary(0x602, 1, OP_IMM), Zbb;
    SextB "sext.b" unary(0x604, 1, OP_IMM), Zbb;
    SextH "sext.h" unary(0x605, 1, OP_IMM), Zbb;
    OrcB "orc.b" unary(0x287, 5, OP_IMM), Zbb or Zbp;
    Rev8 "rev8" unary(0x6b8, 5, OP_IMM), Zbb or Zbp;
    Clzw "clzw" unary(0x600, 1, OP_IMM_32), Zbb;
    Ctzw "ctzw" unary(0x601, 1, OP_IMM_32), Zbb;
    Cpopw "cpopw" unary(0x602, 1, OP_IMM_32), Zbb;
    ZextH "zext.h" unary(0x080, 4, OP_32), Zbb or Zbp;
    Bclr "bclr" reg(0x24, 1, OP), Zbs;
    Bext "bext" reg(0x24, 5, OP), Zbs;
    Binv "binv" reg(0x34, 1, OP), Zbs;
    Bset "bset" reg(0x14, 1, OP), Zbs;
    Bclri "bclri" shift6(0x12, 1, OP_IMM), Zbs;
    Bexti "bexti" shift6(0x12, 5, OP_IMM), Zbs;
    Binvi "binvi" shift6(0x1a, 1, OP_IMM), Zbs;
    Bseti "bseti" shift6(0x0a, 1, OP_IMM), Zbs;
    Sh1add "sh1add" reg(0x10, 2, OP), Zba;
    Sh2add "sh2add" reg(0x10, 4, OP), Zba;
    Sh3add "sh3add" reg(0x10, 6, OP), Zba;
    AddUw "add.uw" reg(0x04, 0, OP_32), Zba;
    Sh1addUw "sh1add.uw" reg(0x10, 2, OP_32), Zba;
    Sh2addUw "sh2add.uw" reg(0x10, 4, OP_32), Zba;
    Sh3addUw "sh3add.uw" reg(0x10, 6, OP_32), Zba;
    SlliUw "slli.uw" shift6(0x02, 1, OP_IMM_32), Zba;

    Grev "grev" reg(0x34, 5, OP), Zbp;
    Gorc "gorc" reg(0x14, 5, OP), Zbp;
    Shfl "shfl" reg(0x04, 1, OP), Zbp;
    Unshfl "unshfl" reg(0x04, 5, OP), Zbp;
    Pack "pack" reg(0x04, 4, OP), Zbp;
    Packu "packu" reg(0x24, 4, OP), Zbp;
    Packh "packh" reg(0x04, 7, OP), Zbp;
    XpermN "xperm.n" reg(0x14, 2, OP), Zbp;
    XpermB "xperm.b" reg(0x14, 4, OP), Zbp;
    XpermH "xperm.h" reg(0x14, 6, OP), Zbp;
    XpermW "xperm.w" reg(0x14, 0, OP), Zbp;
    Grevw "grevw" reg(0x34, 5, OP_32), Zbp;
    Gorcw "gorcw" reg(0x14, 5, OP_32), Zbp;
    Shflw "shflw" reg(0x04, 1, OP_32), Zbp;
    Unshflw "unshflw" reg(0x04, 5, OP_32), Zbp;
    Packw "packw" reg(0x04, 4, OP_32), Zbp;
    Packuw "packuw" reg(0x24, 4, OP_32), Zbp;
    Grevi "grevi" shift6(0x1a, 5, OP_IMM), Zbp;
    Gorci "gorci" shift6(0x0a, 5, OP_IMM), Zbp;
    Shfli "shfli" shift5(0x04, 1, OP_IMM), Zbp;
    Unshfli "unshfli" shift5(0x04, 5, OP_IMM), Zbp;
    Greviw "greviw" shift5(0x34, 5, OP_IMM_32), Zbp;
    Gorciw "gorciw" shift5(0x14, 5, OP_IMM_32), Zbp;
    Crc32B "crc32.b" unary(0x610, 1, OP_IMM), Zbr;
    Crc32H "crc32.h" unary(0x611, 1, OP_IMM), Zbr;
    Crc32W "crc32.w" unary(0x612, 1, OP_IMM), Zbr;
    Crc32D "crc32.d" unary(0x613, 1, OP_IMM), Zbr;
    Crc32cB "crc32c.b" unary(0x618, 1, OP_IMM), Zbr;
    Crc32cH "crc32c.h" unary(0x619, 1, OP_IMM), Zbr;
    Crc32cW "crc32c.w" unary(0x61a, 1, OP_IMM), Zbr;
    Crc32cD "crc32c.d" unary(0x61b, 1, OP_IMM), Zbr;

    Flw "flw" f3(2, LOAD_FP, Format::Bare), F;
    Fld "fld" f3(3, LOAD_FP, Format::Bare), D;
    Fsw "fsw" f3(2, STORE_FP, Format::Bare), F;
    Fsd "fsd" f3(3, STORE_FP, Format::Bare), D;
    FusedSingle "fused multiply-add, single" fused(0), F;
    FusedDouble "fused multiply-add, double" fused(1), D;
    FloatSingle "floating point, single" float(0, OP_FP), F;
    FloatDouble "floating point, double" float(1, OP_FP), D;
    Vector "vector" all(OP_V, Format::Bare), V;
    Custom0 "custom-0" all(0x0b, Format::Bare), Custom;
    Custom1 "custom-1" all(0x2b, Format::Bare), Custom;
    Custom2 "custom-2" all(0x5b, Format::Bare), Custom;
    Custom3 "custom-3" all(0x7b, Format::Bare), Custom;
    Unknown "unknown" NONE, Unknown;
}

impl Mnemonic {
    /// The mnemonic as an assembler writes it, such as `amoadd.w`; for a group, a phrase.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    pub(crate) fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The instruction that a word of four bytes is.
    pub(crate) fn of_word(word: u32) -> Self {
        let place = (word >> 2 & 31 | word >> 7 & 7 << 5) as usize;
        let rows = &INDEX.rows[usize::from(INDEX.starts[place])..usize::from(INDEX.starts[place + 1])];
        rows.iter()
            .map(|row| &ROWS[usize::from(*row)])
            .find(|row| word & row.encoding.mask == row.encoding.bits)
            .map_or(Self::Unknown, |row| row.mnemonic)
    }
}

/// Rows by major opcode and `funct3` (bits 6:2 and 14:12), so that few have to be compared; made when this crate is
/// compiled.
struct Index {
    /// Where the rows of a place begin in `rows`; they end where those of the next begin.
    starts: [u16; 257],
    rows: [u8; 400],
}

static INDEX: Index = {
    let (mut starts, mut rows) = ([0; 257], [0; 400]);
    let (mut place, mut len) = (0, 0);
    while place < 256 {
        // The low two bits are ones in every instruction of four bytes.
        let word = (place & 31) << 2 | (place >> 5) << 12 | 3;
        let mut row = 0;
        while row < ROWS.len() {
            let Encoding { mask, bits, .. } = ROWS[row].encoding;
            if (word ^ bits) & mask & 0x707f == 0 {
                rows[len] = row as u8;
                len += 1;
            }
            row += 1;
        }
        place += 1;
        starts[place as usize] = len as u16;
    }
    Index { starts, rows }
};

/// Numbers of rows fit in a byte.
const _: () = assert!(Mnemonic::ALL.len() <= 256);
