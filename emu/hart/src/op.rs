//! A decoded instruction as the interpreter executes it.

use crate::isa::Isa;

/// What becomes of the register that an operation's `rd` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rd {
    /// Nothing that is known: `rd` names none, or (custom instructions) the bus decides.
    Leaves,
    /// It is written, and that is not all: a jump, an access.
    Writes,
    /// It is written, and nothing else happens. The interpreter writes `rd` unconditionally; such an operation on `x0`
    /// is a no-op.
    Computes,
}

/// When an operation may be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// At its issue: it has a cost of its own, or somebody else can tell.
    AtIssue,
    /// Ahead of it: it is plain, which is to touch registers and the program counter only and to cost what any
    /// instruction does, or an access that the bus can take back. See [`crate::Hart::burst`].
    Ahead,
}

/// Declares [`Kind`], with what is to be known of each kind at its definition: `rd`, when, and which extensions have
/// it.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident: $rd:ident $when:ident $($extension:ident)|+;)*) => {
        /// What to do. Names follow the mnemonics; `C…` is the two-byte form of the same.
        ///
        /// The length is part of the kind because the interpreter must know how far to move before it has loaded an
        /// operand: a length field would put a memory load between every two instructions.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Kind { $($(#[$doc])* $name),* }

        impl Kind {
            /// In the order of their numbers.
            const ALL: &[Kind] = &[$(Kind::$name),*];

            /// What becomes of the register that `rd` names.
            pub(crate) const fn rd(self) -> Rd {
                match self { $(Kind::$name => Rd::$rd),* }
            }

            const fn when(self) -> When {
                match self { $(Kind::$name => When::$when),* }
            }

            /// The extensions that have the instruction; one of them suffices.
            pub(crate) const fn extensions(self) -> Isa {
                match self { $(Kind::$name => Isa::I$(.with(Isa::$extension))+),* }
            }
        }
    };
}

#[rustfmt::skip]
kinds! {
    /// Not decoded yet.
    Undecoded: Leaves AtIssue I;
    /// Behind the last slot of a range.
    End: Leaves AtIssue I;
    /// Not an instruction; `imm` holds its bits.
    Illegal: Leaves AtIssue I;

    /// `imm` holds the predecessor set in bits 7:4 and the successor set in bits 3:0.
    Fence: Leaves AtIssue I;
    FenceI: Leaves AtIssue ZIFENCEI;
    Ecall: Leaves AtIssue I;
    Ebreak: Leaves AtIssue I;
    Mret: Leaves AtIssue I;
    Wfi: Leaves AtIssue I;

    // The bits of these are in `imm`. One arm of the loop serves the first two, which are rare.
    Csr: Writes AtIssue ZICSR;
    /// Bit manipulation of the drafts.
    Draft: Computes AtIssue ZBP | ZBR;
    Atomic: Writes AtIssue A;
    Custom: Leaves AtIssue I;

    Mul: Computes AtIssue M;
    Mulh: Computes AtIssue M;
    Mulhsu: Computes AtIssue M;
    Mulhu: Computes AtIssue M;
    Div: Computes AtIssue M;
    Divu: Computes AtIssue M;
    Rem: Computes AtIssue M;
    Remu: Computes AtIssue M;
    Mulw: Computes AtIssue M;
    Divw: Computes AtIssue M;
    Divuw: Computes AtIssue M;
    Remw: Computes AtIssue M;
    Remuw: Computes AtIssue M;

    // Those that may be executed ahead of their issue stand together, see `FIRST_AHEAD`: accesses,
    Lb: Writes Ahead I;
    Lh: Writes Ahead I;
    Lw: Writes Ahead I;
    Ld: Writes Ahead I;
    Lbu: Writes Ahead I;
    Lhu: Writes Ahead I;
    Lwu: Writes Ahead I;
    CLw: Writes Ahead I;
    CLd: Writes Ahead I;
    /// A load into `x0`; `rs2` holds the logarithm of the width.
    LoadNothing: Leaves Ahead I;
    Sb: Leaves Ahead I;
    Sh: Leaves Ahead I;
    Sw: Leaves Ahead I;
    Sd: Leaves Ahead I;
    CSw: Leaves Ahead I;
    CSd: Leaves Ahead I;

    // and plain ones.
    Nop: Leaves Ahead I;
    CNop: Leaves Ahead I;
    /// `addi` from `x0`, and `lui`: `imm` is the value.
    Li: Computes Ahead I;
    CLi: Computes Ahead I;
    /// `addi` of zero.
    Mv: Computes Ahead I;
    CMv: Computes Ahead I;
    Auipc: Computes Ahead I;
    Jal: Writes Ahead I;
    /// `jal` that links nothing.
    J: Leaves Ahead I;
    Jalr: Writes Ahead I;
    CJalr: Writes Ahead I;
    /// `jalr` that links nothing.
    Jr: Leaves Ahead I;
    CJr: Leaves Ahead I;
    /// `jal` out of its text range: `imm` is the distance in bytes.
    JalFar: Writes Ahead I;
    /// A branch out of its text range: `imm` is the distance in bytes, `rd` the condition, plus 8 when it is two bytes long.
    BranchFar: Leaves Ahead I;

    // Branches within the text range: `imm` is the distance in slots.
    Beq: Leaves Ahead I;
    CBeq: Leaves Ahead I;
    Bne: Leaves Ahead I;
    CBne: Leaves Ahead I;
    Blt: Leaves Ahead I;
    Bge: Leaves Ahead I;
    Bltu: Leaves Ahead I;
    Bgeu: Leaves Ahead I;

    Addi: Computes Ahead I;
    CAddi: Computes Ahead I;
    Slti: Computes Ahead I;
    Sltiu: Computes Ahead I;
    Xori: Computes Ahead I;
    Ori: Computes Ahead I;
    Andi: Computes Ahead I;
    CAndi: Computes Ahead I;
    Slli: Computes Ahead I;
    CSlli: Computes Ahead I;
    Srli: Computes Ahead I;
    CSrli: Computes Ahead I;
    Srai: Computes Ahead I;
    CSrai: Computes Ahead I;
    Addiw: Computes Ahead I;
    CAddiw: Computes Ahead I;
    Slliw: Computes Ahead I;
    Srliw: Computes Ahead I;
    Sraiw: Computes Ahead I;

    Add: Computes Ahead I;
    CAdd: Computes Ahead I;
    Sub: Computes Ahead I;
    CSub: Computes Ahead I;
    Sll: Computes Ahead I;
    Slt: Computes Ahead I;
    Sltu: Computes Ahead I;
    Xor: Computes Ahead I;
    CXor: Computes Ahead I;
    Srl: Computes Ahead I;
    Sra: Computes Ahead I;
    Or: Computes Ahead I;
    COr: Computes Ahead I;
    And: Computes Ahead I;
    CAnd: Computes Ahead I;
    Addw: Computes Ahead I;
    CAddw: Computes Ahead I;
    Subw: Computes Ahead I;
    CSubw: Computes Ahead I;
    Sllw: Computes Ahead I;
    Srlw: Computes Ahead I;
    Sraw: Computes Ahead I;

    Sh1add: Computes Ahead ZBA;
    Sh2add: Computes Ahead ZBA;
    Sh3add: Computes Ahead ZBA;
    AddUw: Computes Ahead ZBA;
    Sh1addUw: Computes Ahead ZBA;
    Sh2addUw: Computes Ahead ZBA;
    Sh3addUw: Computes Ahead ZBA;
    SlliUw: Computes Ahead ZBA;

    Andn: Computes Ahead ZBB | ZBP;
    Orn: Computes Ahead ZBB | ZBP;
    Xnor: Computes Ahead ZBB | ZBP;
    Clz: Computes Ahead ZBB;
    Ctz: Computes Ahead ZBB;
    Cpop: Computes Ahead ZBB;
    Clzw: Computes Ahead ZBB;
    Ctzw: Computes Ahead ZBB;
    Cpopw: Computes Ahead ZBB;
    Max: Computes Ahead ZBB;
    Maxu: Computes Ahead ZBB;
    Min: Computes Ahead ZBB;
    Minu: Computes Ahead ZBB;
    SextB: Computes Ahead ZBB;
    SextH: Computes Ahead ZBB;
    ZextH: Computes Ahead ZBB | ZBP;
    Rol: Computes Ahead ZBB | ZBP;
    Ror: Computes Ahead ZBB | ZBP;
    Rori: Computes Ahead ZBB | ZBP;
    Rolw: Computes Ahead ZBB | ZBP;
    Rorw: Computes Ahead ZBB | ZBP;
    Roriw: Computes Ahead ZBB | ZBP;
    OrcB: Computes Ahead ZBB | ZBP;
    Rev8: Computes Ahead ZBB | ZBP;
    Bclr: Computes Ahead ZBS;
    Bclri: Computes Ahead ZBS;
    Bext: Computes Ahead ZBS;
    Bexti: Computes Ahead ZBS;
    Binv: Computes Ahead ZBS;
    Binvi: Computes Ahead ZBS;
    Bset: Computes Ahead ZBS;
    Bseti: Computes Ahead ZBS;
}

impl Kind {
    /// The first of those that may be executed ahead of their issue. All that follow it are such, so that the
    /// interpreter tells them by one comparison.
    pub(crate) const FIRST_AHEAD: Kind = {
        let mut first = 0;
        while matches!(Kind::ALL[first].when(), When::AtIssue) {
            first += 1;
        }
        Kind::ALL[first]
    };

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

const _: () = {
    let mut at = 0;
    while at < Kind::ALL.len() {
        let is_ahead = matches!(Kind::ALL[at].when(), When::Ahead);
        assert!(
            is_ahead == (Kind::ALL[at] as u8 >= Kind::FIRST_AHEAD as u8),
            "the kinds that may be executed ahead of their issue stand behind all others"
        );
        at += 1;
    }
};

impl Op {
    pub(crate) const UNDECODED: Op = Op::bare(Kind::Undecoded, 0);
    pub(crate) const END: Op = Op::bare(Kind::End, 0);

    /// An operation without registers.
    pub(crate) const fn bare(kind: Kind, imm: i32) -> Op {
        Op { kind, rd: Reg::X0, rs1: Reg::X0, rs2: Reg::X0, imm }
    }

    /// The register that the instruction writes, other than `x0`. Not known for custom instructions.
    pub(crate) fn destination(self) -> Option<Reg> {
        (self.kind.rd() != Rd::Leaves && self.rd != Reg::X0).then_some(self.rd)
    }

    /// The instruction bits of a kind that keeps them in `imm`.
    pub(crate) const fn bits(self) -> u32 {
        self.imm.cast_unsigned()
    }
}
