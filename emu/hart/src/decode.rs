//! From instruction bits to an [`Op`].

use crate::compressed;
use crate::draft;
use crate::isa::Isa;
use crate::op::{Kind, Op, Rd, Reg};

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

const fn funct3(bits: u32) -> u32 {
    bits >> 12 & 7
}

const fn funct7(bits: u32) -> u32 {
    bits >> 25
}

const fn i_imm(bits: u32) -> i32 {
    bits.cast_signed() >> 20
}

const fn s_imm(bits: u32) -> i32 {
    (bits.cast_signed() >> 25 << 5) | (bits >> 7 & 31).cast_signed()
}

const fn b_imm(bits: u32) -> i32 {
    (bits.cast_signed() >> 31 << 12)
        | ((bits >> 7 & 1) << 11 | (bits >> 25 & 63) << 5 | (bits >> 8 & 15) << 1).cast_signed()
}

const fn j_imm(bits: u32) -> i32 {
    (bits.cast_signed() >> 31 << 20)
        | ((bits >> 12 & 255) << 12 | (bits >> 20 & 1) << 11 | (bits >> 21 & 1023) << 1).cast_signed()
}

/// The register that an instruction writes, other than `x0`.
pub(crate) fn destination(bits: u32) -> Option<usize> {
    let (place, isa) = (Place { offset: 0, len: 0 }, Isa::ALL);
    let op = if bits & 3 == 3 { decode32(bits, place, isa) } else { decode16(bits as u16, place, isa) };
    op.destination().map(|register| register as usize)
}

/// The operation of a two-byte instruction on a hart with these extensions.
pub(crate) fn decode16(half: u16, place: Place, isa: Isa) -> Op {
    let Some(bits) = compressed::expand(half).filter(|_| isa.has(Isa::C)) else {
        return Op::bare(Kind::Illegal, i32::from(half));
    };
    // All that they stand for is of the base.
    let mut op = decode32(bits, place, isa);
    if op.kind == Kind::BranchFar {
        op.rd = Reg::new(op.rd as u32 | 8);
    } else if op.kind != Kind::JalFar {
        op.kind = op.kind.compressed();
    }
    op
}

/// The operation of a four-byte instruction on a hart with these extensions.
pub(crate) fn decode32(bits: u32, place: Place, isa: Isa) -> Op {
    let mut op = Op {
        kind: Kind::Illegal,
        rd: Reg::new(bits >> 7),
        rs1: Reg::new(bits >> 15),
        rs2: Reg::new(bits >> 20),
        imm: 0,
    };
    let kind = match bits & 0x7f {
        0x03 => load(&mut op, bits),
        0x0b | 0x2b | 0x5b | 0x7b => raw(&mut op, bits, Kind::Custom),
        0x0f => fence(&mut op, bits),
        0x13 => op_imm(&mut op, bits),
        0x17 => {
            op.imm = (bits & 0xffff_f000).cast_signed();
            Some(Kind::Auipc)
        }
        0x1b => op_imm_32(&mut op, bits),
        0x23 => store(&mut op, bits),
        0x2f => amo(&mut op, bits),
        0x33 => op_op(&mut op, bits),
        0x37 => {
            op.imm = (bits & 0xffff_f000).cast_signed();
            Some(Kind::Li)
        }
        0x3b => op_32(bits),
        0x63 => branch(&mut op, bits, place),
        0x67 => {
            op.imm = i_imm(bits);
            match (funct3(bits), op.rd) {
                (0, Reg::X0) => Some(Kind::Jr),
                (0, _) => Some(Kind::Jalr),
                _ => None,
            }
        }
        0x6f => jal(&mut op, bits, place),
        0x73 => system(&mut op, bits),
        _ => None,
    };
    // What became of the drafts in later extensions is decoded as those have it.
    let kind = kind.filter(|kind| isa.has_one_of(kind.extensions()));
    let draft =
        || draft::extension(bits).filter(|extension| isa.has(*extension)).and_then(|_| raw(&mut op, bits, Kind::Draft));
    match kind.or_else(draft) {
        None => Op::bare(Kind::Illegal, bits.cast_signed()),
        Some(kind) if op.rd == Reg::X0 && kind.rd() == Rd::Computes => Op::bare(Kind::Nop, 0),
        Some(kind) => Op { kind, ..op },
    }
}

/// Keeps the bits for a kind that is decoded further when it is executed.
#[expect(clippy::unnecessary_wraps, reason = "one arm among many that may find nothing")]
fn raw(op: &mut Op, bits: u32, kind: Kind) -> Option<Kind> {
    op.imm = bits.cast_signed();
    Some(kind)
}

fn load(op: &mut Op, bits: u32) -> Option<Kind> {
    op.imm = i_imm(bits);
    let kind = match funct3(bits) {
        0 => Kind::Lb,
        1 => Kind::Lh,
        2 => Kind::Lw,
        3 => Kind::Ld,
        4 => Kind::Lbu,
        5 => Kind::Lhu,
        6 => Kind::Lwu,
        _ => return None,
    };
    if op.rd == Reg::X0 {
        op.rs2 = Reg::new(funct3(bits) & 3);
        return Some(Kind::LoadNothing);
    }
    Some(kind)
}

fn store(op: &mut Op, bits: u32) -> Option<Kind> {
    op.imm = s_imm(bits);
    match funct3(bits) {
        0 => Some(Kind::Sb),
        1 => Some(Kind::Sh),
        2 => Some(Kind::Sw),
        3 => Some(Kind::Sd),
        _ => None,
    }
}

fn fence(op: &mut Op, bits: u32) -> Option<Kind> {
    match funct3(bits) {
        0 => {
            op.imm = (bits >> 20 & 0xff).cast_signed();
            Some(Kind::Fence)
        }
        1 => Some(Kind::FenceI),
        _ => None,
    }
}

fn op_imm(op: &mut Op, bits: u32) -> Option<Kind> {
    op.imm = i_imm(bits);
    let upper = bits >> 26;
    let shamt = (bits >> 20 & 63).cast_signed();
    Some(match funct3(bits) {
        0 if op.rs1 == Reg::X0 => Kind::Li,
        0 if op.imm == 0 => Kind::Mv,
        0 => Kind::Addi,
        2 => Kind::Slti,
        3 => Kind::Sltiu,
        4 => Kind::Xori,
        6 => Kind::Ori,
        7 => Kind::Andi,
        1 => {
            op.imm = shamt;
            match (upper, shamt) {
                (0x00, _) => Kind::Slli,
                (0x0a, _) => Kind::Bseti,
                (0x12, _) => Kind::Bclri,
                (0x1a, _) => Kind::Binvi,
                (0x18, 0) => Kind::Clz,
                (0x18, 1) => Kind::Ctz,
                (0x18, 2) => Kind::Cpop,
                (0x18, 4) => Kind::SextB,
                (0x18, 5) => Kind::SextH,
                _ => return None,
            }
        }
        _ => {
            op.imm = shamt;
            match (upper, shamt) {
                (0x00, _) => Kind::Srli,
                (0x10, _) => Kind::Srai,
                (0x12, _) => Kind::Bexti,
                (0x18, _) => Kind::Rori,
                (0x0a, 0x07) => Kind::OrcB,
                (0x1a, 0x38) => Kind::Rev8,
                _ => return None,
            }
        }
    })
}

fn op_imm_32(op: &mut Op, bits: u32) -> Option<Kind> {
    if funct3(bits) == 0 {
        op.imm = i_imm(bits);
        return Some(Kind::Addiw);
    }
    let shamt = bits >> 20 & 31;
    op.imm = shamt.cast_signed();
    Some(match (funct3(bits), funct7(bits), shamt) {
        (1, 0x04 | 0x05, _) => {
            op.imm = (bits >> 20 & 63).cast_signed();
            Kind::SlliUw
        }
        (1, 0x00, _) => Kind::Slliw,
        (1, 0x30, 0) => Kind::Clzw,
        (1, 0x30, 1) => Kind::Ctzw,
        (1, 0x30, 2) => Kind::Cpopw,
        (5, 0x00, _) => Kind::Srliw,
        (5, 0x20, _) => Kind::Sraiw,
        (5, 0x30, _) => Kind::Roriw,
        _ => return None,
    })
}

fn op_op(op: &mut Op, bits: u32) -> Option<Kind> {
    Some(match (funct7(bits), funct3(bits)) {
        // what c.mv expands to
        (0x00, 0) if op.rs1 == Reg::X0 => {
            op.rs1 = op.rs2;
            Kind::Mv
        }
        (0x00, 0) => Kind::Add,
        (0x00, 1) => Kind::Sll,
        (0x00, 2) => Kind::Slt,
        (0x00, 3) => Kind::Sltu,
        (0x00, 4) => Kind::Xor,
        (0x00, 5) => Kind::Srl,
        (0x00, 6) => Kind::Or,
        (0x00, 7) => Kind::And,
        (0x20, 0) => Kind::Sub,
        (0x20, 4) => Kind::Xnor,
        (0x20, 5) => Kind::Sra,
        (0x20, 6) => Kind::Orn,
        (0x10, 2) => Kind::Sh1add,
        (0x10, 4) => Kind::Sh2add,
        (0x10, 6) => Kind::Sh3add,
        (0x20, 7) => Kind::Andn,
        (0x01, 0) => Kind::Mul,
        (0x01, 1) => Kind::Mulh,
        (0x01, 2) => Kind::Mulhsu,
        (0x01, 3) => Kind::Mulhu,
        (0x01, 4) => Kind::Div,
        (0x01, 5) => Kind::Divu,
        (0x01, 6) => Kind::Rem,
        (0x01, 7) => Kind::Remu,
        (0x05, 4) => Kind::Min,
        (0x05, 5) => Kind::Minu,
        (0x05, 6) => Kind::Max,
        (0x05, 7) => Kind::Maxu,
        (0x14, 1) => Kind::Bset,
        (0x24, 1) => Kind::Bclr,
        (0x24, 5) => Kind::Bext,
        (0x30, 1) => Kind::Rol,
        (0x30, 5) => Kind::Ror,
        (0x34, 1) => Kind::Binv,
        _ => return None,
    })
}

fn op_32(bits: u32) -> Option<Kind> {
    Some(match (funct7(bits), funct3(bits)) {
        (0x00, 0) => Kind::Addw,
        (0x00, 1) => Kind::Sllw,
        (0x00, 5) => Kind::Srlw,
        (0x20, 0) => Kind::Subw,
        (0x20, 5) => Kind::Sraw,
        (0x01, 0) => Kind::Mulw,
        (0x01, 4) => Kind::Divw,
        (0x01, 5) => Kind::Divuw,
        (0x01, 6) => Kind::Remw,
        (0x01, 7) => Kind::Remuw,
        (0x04, 0) => Kind::AddUw,
        (0x10, 2) => Kind::Sh1addUw,
        (0x10, 4) => Kind::Sh2addUw,
        (0x10, 6) => Kind::Sh3addUw,
        (0x04, 4) if bits >> 20 & 31 == 0 => Kind::ZextH,
        (0x30, 1) => Kind::Rolw,
        (0x30, 5) => Kind::Rorw,
        _ => return None,
    })
}

fn branch(op: &mut Op, bits: u32, place: Place) -> Option<Kind> {
    let kind = match funct3(bits) {
        0 => Kind::Beq,
        1 => Kind::Bne,
        4 => Kind::Blt,
        5 => Kind::Bge,
        6 => Kind::Bltu,
        7 => Kind::Bgeu,
        _ => return None,
    };
    let distance = b_imm(bits);
    if let Some(slots) = place.slots(distance) {
        op.imm = slots;
        Some(kind)
    } else {
        op.imm = distance;
        op.rd = Reg::new(funct3(bits));
        Some(Kind::BranchFar)
    }
}

#[expect(clippy::unnecessary_wraps, reason = "one arm among many that may find nothing")]
fn jal(op: &mut Op, bits: u32, place: Place) -> Option<Kind> {
    let distance = j_imm(bits);
    if let Some(slots) = place.slots(distance) {
        op.imm = slots;
        Some(if op.rd == Reg::X0 { Kind::J } else { Kind::Jal })
    } else {
        op.imm = distance;
        Some(Kind::JalFar)
    }
}

fn system(op: &mut Op, bits: u32) -> Option<Kind> {
    match funct3(bits) {
        0 => match bits {
            0x0000_0073 => Some(Kind::Ecall),
            0x0010_0073 => Some(Kind::Ebreak),
            0x3020_0073 => Some(Kind::Mret),
            0x1050_0073 => Some(Kind::Wfi),
            _ => None,
        },
        4 => None,
        _ => raw(op, bits, Kind::Csr),
    }
}

fn amo(op: &mut Op, bits: u32) -> Option<Kind> {
    if !matches!(funct3(bits), 2 | 3) {
        return None;
    }
    match bits >> 27 {
        0x02 if bits >> 20 & 31 != 0 => None,
        0x00 | 0x01 | 0x02 | 0x03 | 0x04 | 0x08 | 0x0c | 0x10 | 0x14 | 0x18 | 0x1c => raw(op, bits, Kind::Atomic),
        _ => None,
    }
}
