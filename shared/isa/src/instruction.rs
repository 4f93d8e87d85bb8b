//! A decoded instruction: operands and control flow.

use crate::table::{Format, Row};
use crate::{Extension, Hex, Mnemonic, expand};

/// One decoded instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    addr: u64,
    bits: u32,
    word: u32,
    mnemonic: Mnemonic,
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

impl Flow {
    /// The address that the instruction names as its target.
    #[must_use]
    pub const fn target(self) -> Option<u64> {
        match self {
            Self::Branch(to) | Self::Jump(to) | Self::Call(to) => Some(to),
            _ => None,
        }
    }
}

impl Instruction {
    /// The instruction of these bits at `addr`: four bytes, little-endian, or two if the low two bits are not both
    /// ones; the upper half is not read then. What is no instruction is [`Mnemonic::Unknown`].
    #[must_use]
    pub fn new(addr: u64, bits: u32) -> Self {
        if bits & 3 == 3 {
            return Self { addr, bits, word: bits, mnemonic: Mnemonic::of_word(bits) };
        }
        let half = bits as u16;
        let (word, mnemonic) = match expand(half) {
            Some(word) => (word, Mnemonic::of_word(word)),
            None if half == 0 => (0, Mnemonic::Unimp),
            None => (0, Mnemonic::Unknown),
        };
        Self { addr, bits: u32::from(half), word, mnemonic }
    }

    /// Decodes the first instruction of `bytes`, which stands at `addr`; `None` where fewer bytes are left than it has.
    #[must_use]
    pub fn decode(addr: u64, bytes: &[u8]) -> Option<Self> {
        let low = u16::from_le_bytes([*bytes.first()?, *bytes.get(1)?]);
        let high = if low & 3 == 3 { u16::from_le_bytes([*bytes.get(2)?, *bytes.get(3)?]) } else { 0 };
        Some(Self::new(addr, u32::from(high) << 16 | u32::from(low)))
    }

    fn row(&self) -> &'static Row {
        self.mnemonic.row()
    }

    pub(crate) fn format(&self) -> Format {
        self.row().format()
    }

    /// Where it stands.
    #[must_use]
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// Its bytes, little-endian; the upper half is 0 for a compressed one.
    #[must_use]
    pub const fn bits(&self) -> u32 {
        self.bits
    }

    /// The bits of the four-byte form, which operands are read from; 0 for two bytes that stand for none.
    #[must_use]
    pub const fn word(&self) -> u32 {
        self.word
    }

    /// What it is or, compressed, stands for. Aliases (`mv`) are not distinguished.
    #[must_use]
    pub const fn mnemonic(&self) -> Mnemonic {
        self.mnemonic
    }

    /// Takes part of the C extension.
    #[must_use]
    pub const fn is_compressed(&self) -> bool {
        self.bits & 3 != 3
    }

    /// 2 or 4.
    #[must_use]
    pub const fn size_bytes(&self) -> u8 {
        if self.is_compressed() { 2 } else { 4 }
    }

    /// The extension it needs; a compressed instruction needs C as well. See [`Instruction::extensions`].
    #[must_use]
    pub fn extension(&self) -> Extension {
        self.row().extension
    }

    /// The extensions that have it, C aside: one of them suffices. Those of Zbb that come from the draft Zbp are of
    /// both.
    pub fn extensions(&self) -> impl Iterator<Item = Extension> {
        let row = self.row();
        core::iter::once(row.extension).chain(row.draft)
    }

    /// The bytes as one number in hexadecimal, four or eight digits.
    #[must_use]
    pub const fn hex(&self) -> Hex {
        Hex { bits: self.bits, digits: 2 * self.size_bytes() as usize }
    }

    /// Address of the instruction behind it.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.addr.wrapping_add(self.size_bytes() as u64)
    }

    /// Where execution goes next.
    #[must_use]
    pub fn flow(&self) -> Flow {
        match self.mnemonic {
            Mnemonic::Jal if self.rd() == 0 => Flow::Jump(self.target()),
            Mnemonic::Jal => Flow::Call(self.target()),
            // x1 and x5 are link registers (ISA manual, return-address stack hints).
            Mnemonic::Jalr if self.rd() == 0 && matches!(self.rs1(), 1 | 5) => Flow::Return,
            Mnemonic::Jalr if self.rd() == 0 => Flow::IndirectJump,
            Mnemonic::Jalr => Flow::IndirectCall,
            Mnemonic::Unimp | Mnemonic::Ebreak | Mnemonic::Mret | Mnemonic::Sret | Mnemonic::Unknown => Flow::Stop,
            _ if self.format() == Format::Branch => Flow::Branch(self.target()),
            _ => Flow::Next,
        }
    }

    /// Target of a branch or a jump.
    pub(crate) fn target(&self) -> u64 {
        self.addr.wrapping_add_signed(i64::from(self.immediate()))
    }

    /// The field `rd`, 0 to 31. Not every instruction has it: see [`Instruction::destination`].
    #[must_use]
    pub const fn rd(&self) -> u8 {
        (self.word >> 7 & 31) as u8
    }

    /// The field `rs1`, 0 to 31, where the instruction has it.
    #[must_use]
    pub const fn rs1(&self) -> u8 {
        (self.word >> 15 & 31) as u8
    }

    /// The field `rs2`, 0 to 31, where the instruction has it.
    #[must_use]
    pub const fn rs2(&self) -> u8 {
        (self.word >> 20 & 31) as u8
    }

    /// The integer register that it writes, other than `x0`. Not known of custom instructions and of groups.
    #[must_use]
    pub fn destination(&self) -> Option<u8> {
        let writes = !matches!(self.format(), Format::Branch | Format::Store | Format::Fence | Format::Bare);
        Some(self.rd()).filter(|rd| writes && *rd != 0)
    }

    /// The immediate of the instruction's format, sign-extended: in bytes for offsets, moved to its place for `lui` and
    /// `auipc`, a shift amount for shifts; 0 where there is none.
    #[must_use]
    pub fn immediate(&self) -> i32 {
        let word = self.word;
        let bits = |high: u32, low: u32| (word >> low & ((1 << (high - low + 1)) - 1)).cast_signed();
        let signed = word.cast_signed();
        match self.format() {
            Format::Imm | Format::Load => signed >> 20,
            Format::Store => signed >> 25 << 5 | bits(11, 7),
            Format::Branch => signed >> 31 << 12 | bits(7, 7) << 11 | bits(30, 25) << 5 | bits(11, 8) << 1,
            Format::Jump => signed >> 31 << 20 | bits(19, 12) << 12 | bits(20, 20) << 11 | bits(30, 21) << 1,
            Format::Upper => signed & !0xfff,
            Format::Shift6 => bits(25, 20),
            Format::Shift5 => bits(24, 20),
            _ => 0,
        }
    }
}

/// Decodes all of `bytes`; a rest too short for its instruction ends the walk.
pub fn decode_all(addr: u64, bytes: &[u8]) -> impl Iterator<Item = Instruction> {
    let mut at = 0;
    core::iter::from_fn(move || {
        let instruction = Instruction::decode(addr.wrapping_add(at as u64), bytes.get(at..)?)?;
        at += usize::from(instruction.size_bytes());
        Some(instruction)
    })
}
