//! A decoded instruction as the interpreter executes it.

use flexcast_isa::Mnemonic;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It writes `rd`, and nothing else happens. The interpreter writes `rd` unconditionally; such an operation on `x0`
    /// is a no-op.
    Computes,
    /// That is not all: a jump, an access; or it writes no register.
    Acts,
}

/// When an operation may be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// At its issue: it has a cost of its own, or others see when it is executed.
    AtIssue,
    /// Ahead of it: it is plain, which is to touch registers and the program counter only and to cost what any
    /// instruction does, or an access that the bus can take back. See [`crate::Hart::burst`].
    Ahead,
}

/// Declares [`Kind`], with what is to be known of each kind at its definition: effect, when, and which instructions are
/// decoded to it (before those that have a shorter form are distinguished).
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident: $effect:ident $when:ident $(= $($mnemonic:ident)|+)?;)*) => {
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

            pub(crate) const fn effect(self) -> Effect {
                match self { $(Kind::$name => Effect::$effect),* }
            }

            const fn when(self) -> When {
                match self { $(Kind::$name => When::$when),* }
            }

            /// What executes an instruction.
            pub(crate) const fn of(mnemonic: Mnemonic) -> Kind {
                match mnemonic { $($($(Mnemonic::$mnemonic)|+ => Kind::$name,)?)* }
            }
        }
    };
}

#[rustfmt::skip]
kinds! {
    /// Not decoded yet.
    Undecoded: Acts AtIssue;
    /// Behind the last slot of a range.
    End: Acts AtIssue;
    /// Not an instruction; `imm` holds its bits.
    Illegal: Acts AtIssue = Unknown | Unimp | Sret | Flw | Fld | Fsw | Fsd | FusedSingle | FusedDouble
        | FloatSingle | FloatDouble | Vector;

    /// `imm` holds the predecessor set in bits 7:4 and the successor set in bits 3:0.
    Fence: Acts AtIssue = Fence | FenceTso;
    FenceI: Acts AtIssue = FenceI;
    Ecall: Acts AtIssue = Ecall;
    Ebreak: Acts AtIssue = Ebreak;
    Mret: Acts AtIssue = Mret;
    Wfi: Acts AtIssue = Wfi;

    // One arm of the loop serves these two, which are rare.
    /// `imm` holds the bits.
    Csr: Acts AtIssue = Csrrw | Csrrs | Csrrc | Csrrwi | Csrrsi | Csrrci;
    /// Bit manipulation of the drafts; see [`crate::draft`] for `imm`.
    Draft: Computes AtIssue = Grev | Gorc | Shfl | Unshfl | Pack | Packu | Packh | XpermN | XpermB | XpermH | XpermW
        | Grevw | Gorcw | Shflw | Unshflw | Packw | Packuw | Grevi | Gorci | Shfli | Unshfli | Greviw | Gorciw
        | Crc32B | Crc32H | Crc32W | Crc32D | Crc32cB | Crc32cH | Crc32cW | Crc32cD;
    /// `imm` holds the bits.
    Atomic: Acts AtIssue = LrW | LrD | ScW | ScD | AmoswapW | AmoswapD | AmoaddW | AmoaddD | AmoxorW | AmoxorD
        | AmoandW | AmoandD | AmoorW | AmoorD | AmominW | AmominD | AmomaxW | AmomaxD | AmominuW | AmominuD | AmomaxuW | AmomaxuD;
    /// `imm` holds the bits.
    Custom: Acts AtIssue = Custom0 | Custom1 | Custom2 | Custom3;

    Mul: Computes AtIssue = Mul;
    Mulh: Computes AtIssue = Mulh;
    Mulhsu: Computes AtIssue = Mulhsu;
    Mulhu: Computes AtIssue = Mulhu;
    Div: Computes AtIssue = Div;
    Divu: Computes AtIssue = Divu;
    Rem: Computes AtIssue = Rem;
    Remu: Computes AtIssue = Remu;
    Mulw: Computes AtIssue = Mulw;
    Divw: Computes AtIssue = Divw;
    Divuw: Computes AtIssue = Divuw;
    Remw: Computes AtIssue = Remw;
    Remuw: Computes AtIssue = Remuw;

    // Those that may be executed ahead of their issue stand together, see `FIRST_AHEAD`: accesses,
    Lb: Acts Ahead = Lb;
    Lh: Acts Ahead = Lh;
    Lw: Acts Ahead = Lw;
    Ld: Acts Ahead = Ld;
    Lbu: Acts Ahead = Lbu;
    Lhu: Acts Ahead = Lhu;
    Lwu: Acts Ahead = Lwu;
    CLw: Acts Ahead;
    CLd: Acts Ahead;
    /// A load into `x0`; `rs2` holds the logarithm of the width.
    LoadNothing: Acts Ahead;
    Sb: Acts Ahead = Sb;
    Sh: Acts Ahead = Sh;
    Sw: Acts Ahead = Sw;
    Sd: Acts Ahead = Sd;
    CSw: Acts Ahead;
    CSd: Acts Ahead;

    // and plain ones.
    Nop: Acts Ahead;
    CNop: Acts Ahead;
    /// `addi` from `x0`, and `lui`: `imm` is the value.
    Li: Computes Ahead = Lui;
    CLi: Computes Ahead;
    /// `addi` of zero.
    Mv: Computes Ahead;
    CMv: Computes Ahead;
    Auipc: Computes Ahead = Auipc;
    Jal: Acts Ahead = Jal;
    /// `jal` that links nothing.
    J: Acts Ahead;
    Jalr: Acts Ahead = Jalr;
    CJalr: Acts Ahead;
    /// `jalr` that links nothing.
    Jr: Acts Ahead;
    CJr: Acts Ahead;
    /// `jal` out of its text range: `imm` is the distance in bytes.
    JalFar: Acts Ahead;
    /// A branch out of its text range: `imm` is the distance in bytes, `rd` the condition, plus 8 when it is two bytes
    /// long.
    BranchFar: Acts Ahead;

    // Branches within the text range: `imm` is the distance in slots.
    Beq: Acts Ahead = Beq;
    CBeq: Acts Ahead;
    Bne: Acts Ahead = Bne;
    CBne: Acts Ahead;
    Blt: Acts Ahead = Blt;
    Bge: Acts Ahead = Bge;
    Bltu: Acts Ahead = Bltu;
    Bgeu: Acts Ahead = Bgeu;

    Addi: Computes Ahead = Addi;
    CAddi: Computes Ahead;
    Slti: Computes Ahead = Slti;
    Sltiu: Computes Ahead = Sltiu;
    Xori: Computes Ahead = Xori;
    Ori: Computes Ahead = Ori;
    Andi: Computes Ahead = Andi;
    CAndi: Computes Ahead;
    Slli: Computes Ahead = Slli;
    CSlli: Computes Ahead;
    Srli: Computes Ahead = Srli;
    CSrli: Computes Ahead;
    Srai: Computes Ahead = Srai;
    CSrai: Computes Ahead;
    Addiw: Computes Ahead = Addiw;
    CAddiw: Computes Ahead;
    Slliw: Computes Ahead = Slliw;
    Srliw: Computes Ahead = Srliw;
    Sraiw: Computes Ahead = Sraiw;

    Add: Computes Ahead = Add;
    CAdd: Computes Ahead;
    Sub: Computes Ahead = Sub;
    CSub: Computes Ahead;
    Sll: Computes Ahead = Sll;
    Slt: Computes Ahead = Slt;
    Sltu: Computes Ahead = Sltu;
    Xor: Computes Ahead = Xor;
    CXor: Computes Ahead;
    Srl: Computes Ahead = Srl;
    Sra: Computes Ahead = Sra;
    Or: Computes Ahead = Or;
    COr: Computes Ahead;
    And: Computes Ahead = And;
    CAnd: Computes Ahead;
    Addw: Computes Ahead = Addw;
    CAddw: Computes Ahead;
    Subw: Computes Ahead = Subw;
    CSubw: Computes Ahead;
    Sllw: Computes Ahead = Sllw;
    Srlw: Computes Ahead = Srlw;
    Sraw: Computes Ahead = Sraw;

    Sh1add: Computes Ahead = Sh1add;
    Sh2add: Computes Ahead = Sh2add;
    Sh3add: Computes Ahead = Sh3add;
    AddUw: Computes Ahead = AddUw;
    Sh1addUw: Computes Ahead = Sh1addUw;
    Sh2addUw: Computes Ahead = Sh2addUw;
    Sh3addUw: Computes Ahead = Sh3addUw;
    SlliUw: Computes Ahead = SlliUw;

    Andn: Computes Ahead = Andn;
    Orn: Computes Ahead = Orn;
    Xnor: Computes Ahead = Xnor;
    Clz: Computes Ahead = Clz;
    Ctz: Computes Ahead = Ctz;
    Cpop: Computes Ahead = Cpop;
    Clzw: Computes Ahead = Clzw;
    Ctzw: Computes Ahead = Ctzw;
    Cpopw: Computes Ahead = Cpopw;
    Max: Computes Ahead = Max;
    Maxu: Computes Ahead = Maxu;
    Min: Computes Ahead = Min;
    Minu: Computes Ahead = Minu;
    SextB: Computes Ahead = SextB;
    SextH: Computes Ahead = SextH;
    ZextH: Computes Ahead = ZextH;
    Rol: Computes Ahead = Rol;
    Ror: Computes Ahead = Ror;
    Rori: Computes Ahead = Rori;
    Rolw: Computes Ahead = Rolw;
    Rorw: Computes Ahead = Rorw;
    Roriw: Computes Ahead = Roriw;
    OrcB: Computes Ahead = OrcB;
    Rev8: Computes Ahead = Rev8;
    Bclr: Computes Ahead = Bclr;
    Bclri: Computes Ahead = Bclri;
    Bext: Computes Ahead = Bext;
    Bexti: Computes Ahead = Bexti;
    Binv: Computes Ahead = Binv;
    Binvi: Computes Ahead = Binvi;
    Bset: Computes Ahead = Bset;
    Bseti: Computes Ahead = Bseti;
}

impl Kind {
    /// The first of those that may be executed ahead of their issue. All that follow it are such, so that the
    /// interpreter recognises them by one comparison.
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

    /// The instruction bits of a kind that keeps them in `imm`.
    pub(crate) const fn bits(self) -> u32 {
        self.imm.cast_unsigned()
    }
}
