//! A decoded instruction as the interpreter executes it.

/// What to do. Names follow the mnemonics; `C…` is the two-byte form of the same.
///
/// The length is part of the kind because the interpreter must know how far to move before it has loaded an operand:
/// a length field would put a memory load between every two instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Not decoded yet.
    Undecoded,
    /// Behind the last slot of a range.
    End,
    /// Not an instruction; `imm` holds its bits.
    Illegal,

    /// `imm` holds the predecessor set in bits 7:4 and the successor set in bits 3:0.
    Fence,
    FenceI,
    Ecall,
    Ebreak,
    Mret,
    Wfi,
    // The bits of these are in `imm`.
    /// On control and status registers, and draft bit manipulation: what is so rare that one arm of the loop serves all of it.
    Rare,
    Atomic,
    Custom,

    Mul,
    Mulh,
    Mulhsu,
    Mulhu,
    Div,
    Divu,
    Rem,
    Remu,
    Mulw,
    Divw,
    Divuw,
    Remw,
    Remuw,

    // From here on those that may be executed ahead of their issue, see `FIRST_AHEAD`: accesses that the bus can take back,
    Lb,
    Lh,
    Lw,
    Ld,
    Lbu,
    Lhu,
    Lwu,
    CLw,
    CLd,
    /// A load into `x0`; `rs2` holds the logarithm of the width.
    LoadNothing,
    Sb,
    Sh,
    Sw,
    Sd,
    CSw,
    CSd,

    // and plain ones, which touch registers and the program counter only and cost what any instruction does: nobody but their hart can
    // tell when they are executed.
    Nop,
    CNop,
    /// `addi` from `x0`, and `lui`: `imm` is the value.
    Li,
    CLi,
    /// `addi` of zero.
    Mv,
    CMv,
    Auipc,
    Jal,
    /// `jal` that links nothing.
    J,
    Jalr,
    CJalr,
    /// `jalr` that links nothing.
    Jr,
    CJr,
    /// `jal` out of its text range: `imm` is the distance in bytes.
    JalFar,
    /// A branch out of its text range: `imm` is the distance in bytes, `rd` the condition, plus 8 when it is two bytes long.
    BranchFar,

    // Branches within the text range: `imm` is the distance in slots.
    Beq,
    CBeq,
    Bne,
    CBne,
    Blt,
    Bge,
    Bltu,
    Bgeu,

    Addi,
    CAddi,
    Slti,
    Sltiu,
    Xori,
    Ori,
    Andi,
    CAndi,
    Slli,
    CSlli,
    Srli,
    CSrli,
    Srai,
    CSrai,
    Addiw,
    CAddiw,
    Slliw,
    Srliw,
    Sraiw,

    Add,
    CAdd,
    Sub,
    CSub,
    Sll,
    Slt,
    Sltu,
    Xor,
    CXor,
    Srl,
    Sra,
    Or,
    COr,
    And,
    CAnd,
    Addw,
    CAddw,
    Subw,
    CSubw,
    Sllw,
    Srlw,
    Sraw,

    Andn,
    Orn,
    Xnor,
    Clz,
    Ctz,
    Cpop,
    Clzw,
    Ctzw,
    Cpopw,
    Max,
    Maxu,
    Min,
    Minu,
    SextB,
    SextH,
    ZextH,
    Rol,
    Ror,
    Rori,
    Rolw,
    Rorw,
    Roriw,
    OrcB,
    Rev8,
    Bclr,
    Bclri,
    Bext,
    Bexti,
    Binv,
    Binvi,
    Bset,
    Bseti,
}

impl Kind {
    /// The first of those that a burst may have behind its first instruction; see [`crate::Hart::burst`].
    pub(crate) const FIRST_AHEAD: Kind = Kind::Lb;

    /// The two-byte form of a four-byte kind, for every kind that a compressed instruction can expand to.
    pub(crate) fn compressed(self) -> Kind {
        match self {
            Kind::Nop => Kind::CNop,
            Kind::Li => Kind::CLi,
            Kind::Mv => Kind::CMv,
            Kind::Jr => Kind::CJr,
            Kind::Jalr => Kind::CJalr,
            Kind::Beq => Kind::CBeq,
            Kind::Bne => Kind::CBne,
            Kind::Lw => Kind::CLw,
            Kind::Ld => Kind::CLd,
            Kind::Sw => Kind::CSw,
            Kind::Sd => Kind::CSd,
            Kind::Addi => Kind::CAddi,
            Kind::Andi => Kind::CAndi,
            Kind::Slli => Kind::CSlli,
            Kind::Srli => Kind::CSrli,
            Kind::Srai => Kind::CSrai,
            Kind::Addiw => Kind::CAddiw,
            Kind::Add => Kind::CAdd,
            Kind::Sub => Kind::CSub,
            Kind::Xor => Kind::CXor,
            Kind::Or => Kind::COr,
            Kind::And => Kind::CAnd,
            Kind::Addw => Kind::CAddw,
            Kind::Subw => Kind::CSubw,
            // Neither goes on behind itself, so the length does not matter.
            Kind::J | Kind::Ebreak => self,
            other => unreachable!("no compressed instruction expands to {other:?}"),
        }
    }
}

macro_rules! registers {
    ($($name:ident)*) => {
        /// A register number. An enum and not an integer: the compiler knows that it is below 32, and an access to the
        /// register file needs no bounds check.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Reg { $($name),* }

        const ALL: [Reg; 32] = [$(Reg::$name),*];
    };
}
registers! {
    X0 X1 X2 X3 X4 X5 X6 X7 X8 X9 X10 X11 X12 X13 X14 X15
    X16 X17 X18 X19 X20 X21 X22 X23 X24 X25 X26 X27 X28 X29 X30 X31
}

impl Reg {
    /// The register named by the low five bits of `field`.
    pub(crate) const fn new(field: u32) -> Reg {
        ALL[(field & 31) as usize]
    }
}

/// One decoded instruction. Eight bytes, so that one cache line holds eight slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) kind: Kind,
    pub(crate) rd: Reg,
    pub(crate) rs1: Reg,
    pub(crate) rs2: Reg,
    pub(crate) imm: i32,
}

const _: () = assert!(size_of::<Op>() == 8);

impl Op {
    pub(crate) const UNDECODED: Op = Op::bare(Kind::Undecoded, 0);
    pub(crate) const END: Op = Op::bare(Kind::End, 0);

    /// An operation without registers.
    pub(crate) const fn bare(kind: Kind, imm: i32) -> Op {
        Op { kind, rd: Reg::X0, rs1: Reg::X0, rs2: Reg::X0, imm }
    }

    /// The register that the instruction writes, other than `x0`. Not known for custom instructions.
    pub(crate) fn destination(self) -> Option<Reg> {
        #[rustfmt::skip]
        let writes = !matches!(
            self.kind,
            Kind::Undecoded | Kind::End | Kind::Illegal | Kind::Nop | Kind::CNop
                | Kind::J | Kind::Jr | Kind::CJr | Kind::BranchFar | Kind::LoadNothing
                | Kind::Beq | Kind::Bne | Kind::Blt | Kind::Bge | Kind::Bltu | Kind::Bgeu | Kind::CBeq | Kind::CBne
                | Kind::Sb | Kind::Sh | Kind::Sw | Kind::Sd | Kind::CSw | Kind::CSd
                | Kind::Fence | Kind::FenceI | Kind::Ecall | Kind::Ebreak | Kind::Mret | Kind::Wfi | Kind::Custom
        );
        (writes && self.rd != Reg::X0).then_some(self.rd)
    }

    /// The instruction bits of a kind that keeps them in `imm`.
    pub(crate) const fn bits(self) -> u32 {
        self.imm.cast_unsigned()
    }
}
