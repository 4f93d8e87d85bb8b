//! The C extension: every two-byte instruction is a four-byte instruction written shorter.

const ZERO: u32 = 0;
const RA: u32 = 1;
const SP: u32 = 2;

/// `value[high:low]`, moved down to bit 0.
const fn field(value: u32, high: u32, low: u32) -> u32 {
    (value >> low) & ((1 << (high - low + 1)) - 1)
}

/// The low `bits` bits of `value` as a signed number.
const fn sign_extend(value: u32, bits: u32) -> u32 {
    let shift = 32 - bits;
    ((value << shift).cast_signed() >> shift).cast_unsigned()
}

const fn r_type(opcode: u32, funct3: u32, funct7: u32, rd: u32, rs1: u32, rs2: u32) -> u32 {
    funct7 << 25 | rs2 << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode
}

const fn i_type(opcode: u32, funct3: u32, rd: u32, rs1: u32, imm: u32) -> u32 {
    (imm & 0xfff) << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode
}

const fn s_type(funct3: u32, rs1: u32, rs2: u32, imm: u32) -> u32 {
    field(imm, 11, 5) << 25 | rs2 << 20 | rs1 << 15 | funct3 << 12 | field(imm, 4, 0) << 7 | 0x23
}

const fn b_type(funct3: u32, rs1: u32, imm: u32) -> u32 {
    field(imm, 12, 12) << 31
        | field(imm, 10, 5) << 25
        | ZERO << 20
        | rs1 << 15
        | funct3 << 12
        | field(imm, 4, 1) << 8
        | field(imm, 11, 11) << 7
        | 0x63
}

const fn j_type(rd: u32, imm: u32) -> u32 {
    field(imm, 20, 20) << 31
        | field(imm, 10, 1) << 21
        | field(imm, 11, 11) << 20
        | field(imm, 19, 12) << 12
        | rd << 7
        | 0x6f
}

const OP_IMM: u32 = 0x13;
const OP_IMM_32: u32 = 0x1b;
const OP: u32 = 0x33;
const OP_32: u32 = 0x3b;
const LOAD: u32 = 0x03;

/// The four-byte instruction that `half` stands for; `None` if it is illegal or reserved, or belongs to an extension
/// that this hart lacks (floating point).
pub(crate) fn expand(half: u16) -> Option<u32> {
    let c = u32::from(half);
    let funct3 = field(c, 15, 13);
    match c & 3 {
        0 => quadrant0(c, funct3),
        1 => quadrant1(c, funct3),
        2 => quadrant2(c, funct3),
        _ => None,
    }
}

fn quadrant0(c: u32, funct3: u32) -> Option<u32> {
    let low = 8 + field(c, 4, 2);
    let base = 8 + field(c, 9, 7);
    let word = field(c, 12, 10) << 3 | field(c, 6, 6) << 2 | field(c, 5, 5) << 6;
    let double = field(c, 12, 10) << 3 | field(c, 6, 5) << 6;
    match funct3 {
        // c.addi4spn; the immediate zero is reserved, and all zeroes is defined to be illegal
        0 => {
            let imm = field(c, 12, 11) << 4 | field(c, 10, 7) << 6 | field(c, 6, 6) << 2 | field(c, 5, 5) << 3;
            (imm != 0).then(|| i_type(OP_IMM, 0, low, SP, imm))
        }
        2 => Some(i_type(LOAD, 2, low, base, word)),
        3 => Some(i_type(LOAD, 3, low, base, double)),
        6 => Some(s_type(2, base, low, word)),
        7 => Some(s_type(3, base, low, double)),
        _ => None,
    }
}

fn quadrant1(c: u32, funct3: u32) -> Option<u32> {
    let rd = field(c, 11, 7);
    let unsigned6 = field(c, 12, 12) << 5 | field(c, 6, 2);
    let imm6 = sign_extend(unsigned6, 6);
    match funct3 {
        // c.addi, c.nop
        0 => Some(i_type(OP_IMM, 0, rd, rd, imm6)),
        // c.addiw; rd = x0 is reserved
        1 => (rd != 0).then(|| i_type(OP_IMM_32, 0, rd, rd, imm6)),
        // c.li
        2 => Some(i_type(OP_IMM, 0, rd, ZERO, imm6)),
        3 if rd == SP => {
            let imm = field(c, 12, 12) << 9
                | field(c, 6, 6) << 4
                | field(c, 5, 5) << 6
                | field(c, 4, 3) << 7
                | field(c, 2, 2) << 5;
            // c.addi16sp
            (imm != 0).then(|| i_type(OP_IMM, 0, SP, SP, sign_extend(imm, 10)))
        }
        // c.lui
        3 => (unsigned6 != 0).then_some((imm6 << 12) | rd << 7 | 0x37),
        4 => arithmetic(c, unsigned6, imm6),
        5 => Some(j_type(ZERO, jump_offset(c))),
        6 => Some(b_type(0, 8 + field(c, 9, 7), branch_offset(c))),
        _ => Some(b_type(1, 8 + field(c, 9, 7), branch_offset(c))),
    }
}

fn arithmetic(c: u32, unsigned6: u32, imm6: u32) -> Option<u32> {
    let rd = 8 + field(c, 9, 7);
    let rs2 = 8 + field(c, 4, 2);
    Some(match (field(c, 11, 10), field(c, 12, 12), field(c, 6, 5)) {
        (0, ..) => i_type(OP_IMM, 5, rd, rd, unsigned6),
        (1, ..) => i_type(OP_IMM, 5, rd, rd, 0x400 | unsigned6),
        (2, ..) => i_type(OP_IMM, 7, rd, rd, imm6),
        (3, 0, 0) => r_type(OP, 0, 0x20, rd, rd, rs2),
        (3, 0, 1) => r_type(OP, 4, 0, rd, rd, rs2),
        (3, 0, 2) => r_type(OP, 6, 0, rd, rd, rs2),
        (3, 0, 3) => r_type(OP, 7, 0, rd, rd, rs2),
        (3, 1, 0) => r_type(OP_32, 0, 0x20, rd, rd, rs2),
        (3, 1, 1) => r_type(OP_32, 0, 0, rd, rd, rs2),
        _ => return None,
    })
}

const fn jump_offset(c: u32) -> u32 {
    let imm = field(c, 12, 12) << 11
        | field(c, 11, 11) << 4
        | field(c, 10, 9) << 8
        | field(c, 8, 8) << 10
        | field(c, 7, 7) << 6
        | field(c, 6, 6) << 7
        | field(c, 5, 3) << 1
        | field(c, 2, 2) << 5;
    sign_extend(imm, 12)
}

const fn branch_offset(c: u32) -> u32 {
    let imm =
        field(c, 12, 12) << 8 | field(c, 11, 10) << 3 | field(c, 6, 5) << 6 | field(c, 4, 3) << 1 | field(c, 2, 2) << 5;
    sign_extend(imm, 9)
}

fn quadrant2(c: u32, funct3: u32) -> Option<u32> {
    let rd = field(c, 11, 7);
    let rs2 = field(c, 6, 2);
    match funct3 {
        // c.slli
        0 => Some(i_type(OP_IMM, 1, rd, rd, field(c, 12, 12) << 5 | rs2)),
        // c.lwsp and c.ldsp; rd = x0 is reserved
        2 => {
            let imm = field(c, 12, 12) << 5 | field(c, 6, 4) << 2 | field(c, 3, 2) << 6;
            (rd != 0).then(|| i_type(LOAD, 2, rd, SP, imm))
        }
        3 => {
            let imm = field(c, 12, 12) << 5 | field(c, 6, 5) << 3 | field(c, 4, 2) << 6;
            (rd != 0).then(|| i_type(LOAD, 3, rd, SP, imm))
        }
        4 => match (field(c, 12, 12), rd, rs2) {
            (0, 0, 0) => None,
            (0, _, 0) => Some(i_type(0x67, 0, ZERO, rd, 0)),
            (0, ..) => Some(r_type(OP, 0, 0, rd, ZERO, rs2)),
            (_, 0, 0) => Some(0x0010_0073),
            (_, _, 0) => Some(i_type(0x67, 0, RA, rd, 0)),
            _ => Some(r_type(OP, 0, 0, rd, rd, rs2)),
        },
        6 => Some(s_type(2, SP, rs2, field(c, 12, 9) << 2 | field(c, 8, 7) << 6)),
        7 => Some(s_type(3, SP, rs2, field(c, 12, 10) << 3 | field(c, 9, 7) << 6)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::expand;
    use crate::bus::{Bus, Fault, Width};
    use crate::decode::{Place, decode16, decode32};
    use crate::hart::{Hart, Limits, Stop};
    use crate::isa::Isa;
    use crate::op::Kind;
    use crate::text::Text;

    /// Pairs from the tables of the unprivileged architecture ("C" extension) and as GNU as assembles them.
    #[test]
    fn expands_one_of_each_form() {
        let pairs: [(u16, u32); 34] = [
            (0x0808, 0x0101_0513), // c.addi4spn a0, sp, 16
            (0x1ffc, 0x3fc1_0793), // c.addi4spn a5, sp, 1020
            (0x41c8, 0x0045_a503), // c.lw a0, 4(a1)
            (0x5dfc, 0x07c5_a783), // c.lw a5, 124(a1)
            (0x6588, 0x0085_b503), // c.ld a0, 8(a1)
            (0x7dfc, 0x0f85_b783), // c.ld a5, 248(a1)
            (0xc1c8, 0x00a5_a223), // c.sw a0, 4(a1)
            (0xe588, 0x00a5_b423), // c.sd a0, 8(a1)
            (0x0001, 0x0000_0013), // c.nop
            (0x157d, 0xfff5_0513), // c.addi a0, -1
            (0x257d, 0x01f5_051b), // c.addiw a0, 31
            (0x5501, 0xfe00_0513), // c.li a0, -32
            (0x6105, 0x0201_0113), // c.addi16sp 32
            (0x7101, 0xe001_0113), // c.addi16sp -512
            (0x6505, 0x0000_1537), // c.lui a0, 1
            (0x757d, 0xffff_f537), // c.lui a0, -1
            (0x9101, 0x0205_5513), // c.srli a0, 32
            (0x957d, 0x43f5_5513), // c.srai a0, 63
            (0x9971, 0xffc5_7513), // c.andi a0, -4
            (0x8d0d, 0x40b5_0533), // c.sub a0, a1
            (0x8d2d, 0x00b5_4533), // c.xor a0, a1
            (0x8d4d, 0x00b5_6533), // c.or a0, a1
            (0x8d6d, 0x00b5_7533), // c.and a0, a1
            (0x9d0d, 0x40b5_053b), // c.subw a0, a1
            (0x9d2d, 0x00b5_053b), // c.addw a0, a1
            (0xa001, 0x0000_006f), // c.j .
            (0xdd7d, 0xfe05_0fe3), // c.beqz a0, .-2
            (0xe109, 0x0005_1163), // c.bnez a0, .+2
            (0x1502, 0x0205_1513), // c.slli a0, 32
            (0x4542, 0x0101_2503), // c.lwsp a0, 16
            (0x8082, 0x0000_8067), // c.jr ra
            (0x852e, 0x00b0_0533), // c.mv a0, a1
            (0x9502, 0x0005_00e7), // c.jalr a0
            (0xfc2a, 0x02a1_3c23), // c.sdsp a0, 56
        ];
        for (short, long) in pairs {
            assert_eq!(expand(short), Some(long), "{short:#06x}: {:#010x?}", expand(short));
        }
    }

    #[test]
    fn rejects_the_reserved_and_the_floating_point() {
        let illegal: [u16; 12] = [
            0x0000, // defined illegal
            0x0008, // c.addi4spn with immediate zero
            0x2188, // c.fld
            0x8188, // reserved (Zcb loads)
            0xa188, // c.fsd
            0x2005, // c.addiw to x0
            0x6101, // c.addi16sp zero
            0x6501, // c.lui zero
            0x9d4d, // reserved (Zcb)
            0x4002, // c.lwsp to x0
            0x6002, // c.ldsp to x0
            0x8002, // c.jr x0
        ];
        for half in illegal {
            assert_eq!(expand(half), None, "{half:#06x}");
        }
    }

    #[test]
    fn every_half_word_decodes_as_its_expansion() {
        let place = Place { offset: 0x1_0000, len: 0x2_0000 };
        for half in (0..=u16::MAX).filter(|half| half & 3 != 3) {
            let op = decode16(half, place, Isa::ALL);
            match expand(half) {
                None => assert_eq!((op.kind, op.bits()), (Kind::Illegal, u32::from(half))),
                Some(bits) => {
                    let long = decode32(bits, place, Isa::ALL);
                    assert_ne!(long.kind, Kind::Illegal, "{half:#06x} expands to an illegal instruction");
                    assert_eq!((op.rd, op.rs1, op.rs2, op.imm), (long.rd, long.rs1, long.rs2, long.imm));
                }
            }
        }
    }
    const AT: u64 = 0x1000;

    /// Two pages: code, and what accesses go to.
    struct Pages(Vec<u8>);

    impl Bus for Pages {
        fn load(&mut self, addr: u64, width: Width, _cycles: &mut u64) -> Result<u64, Fault> {
            let at = (addr & 0x1fff) as usize;
            Ok((0..width.bytes() as usize).rev().fold(0, |value, byte| value << 8 | u64::from(self.0[at + byte])))
        }

        fn store(&mut self, addr: u64, width: Width, value: u64, _cycles: &mut u64) -> Result<(), Fault> {
            let at = (addr & 0x1fff) as usize;
            self.0[at..at + width.bytes() as usize].copy_from_slice(&value.to_le_bytes()[..width.bytes() as usize]);
            Ok(())
        }

        fn fetch16(&mut self, addr: u64) -> Result<u16, Fault> {
            let at = (addr & 0x1fff) as usize;
            Ok(u16::from_le_bytes([self.0[at], self.0[at + 1]]))
        }

        fn csr_time(&mut self, cycles_now: u64) -> u64 {
            cycles_now
        }
    }

    /// Registers, program counter and memory after one instruction of these bytes, which lie behind zeroes.
    fn executed(code: &[u8], x: [u64; 32]) -> (Stop, [u64; 32], u64, Vec<u8>) {
        let mut bus = Pages((0..0x2000_u32).map(|at| (at * 7) as u8).collect());
        bus.0[AT as usize..AT as usize + code.len()].copy_from_slice(code);
        let mut hart = Hart::new(AT);
        hart.x = x;
        let stop = hart.run(&mut Text::new(AT, 8), &mut bus, &Limits::instructions(1));
        bus.0[AT as usize..AT as usize + 4].fill(0);
        (stop, hart.x, hart.pc, bus.0)
    }

    #[test]
    fn every_half_word_does_what_its_expansion_does() {
        let mut seed = 1_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed ^ seed >> 29
        };
        for half in (0..=u16::MAX).filter(|half| half & 3 != 3) {
            let Some(long) = expand(half) else { continue };
            let mut x: [u64; 32] = std::array::from_fn(|_| random());
            x[0] = 0;
            // Accesses are aligned, and those of the code's page end behind the code.
            let accesses = matches!(long & 0x7f, 0x03 | 0x23);
            if accesses {
                x = x.map(|value| value & 0x7f8);
            }
            if half & 1 == 1 && random() & 1 == 1 {
                x[8..16].fill(0);
            }
            let (stop, short_x, short_pc, short_memory) = executed(&half.to_le_bytes(), x);
            let (long_stop, mut long_x, mut long_pc, long_memory) = executed(&long.to_le_bytes(), x);
            // What follows, and what is linked, is two bytes nearer.
            if long_pc == AT + 4 && !matches!(long & 0x7f, 0x67 | 0x6f) {
                long_pc = AT + 2;
            }
            if long & 0xfff == 0x0e7 {
                assert_eq!(long_x[1], AT + 4);
                long_x[1] = AT + 2;
            }
            assert_eq!((stop, short_x), (long_stop, long_x), "{half:#06x} with {x:x?}");
            let is_branch_to_next = long & 0x7f == 0x63 && short_pc == AT + 4;
            assert!(short_pc == long_pc || is_branch_to_next, "{half:#06x}: {short_pc:#x}, not {long_pc:#x}");
            assert!(short_memory == long_memory, "{half:#06x} stores otherwise");
        }
    }
}
