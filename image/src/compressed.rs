//! Compressed instructions, expanded to what they stand for (RISC-V Unprivileged ISA, chapter "C", RV64 columns).

/// The 32-bit equivalent; `None` for a reserved encoding and for those of Zcb, Zcmp and Zcmt, which the DPA has not.
pub(crate) fn expand(half: u16) -> Option<u32> {
    let word = u32::from(half);
    let bits = |high: u32, low: u32| word >> low & ((1 << (high - low + 1)) - 1);
    let signed = |value: u32, width: u32| (value << (32 - width)) as i32 >> (32 - width);
    let rd = bits(11, 7);
    let rs2 = bits(6, 2);
    // Three-bit register fields name x8 to x15.
    let short_high = bits(9, 7) + 8;
    let short_low = bits(4, 2) + 8;
    let imm6 = signed(bits(12, 12) << 5 | bits(6, 2), 6);
    let shift = bits(12, 12) << 5 | bits(6, 2);
    let word_offset = bits(5, 5) << 6 | bits(12, 10) << 3 | bits(6, 6) << 2;
    let double_offset = bits(6, 5) << 6 | bits(12, 10) << 3;
    let word_sp = bits(3, 2) << 6 | bits(12, 12) << 5 | bits(6, 4) << 2;
    let double_sp = bits(4, 2) << 6 | bits(12, 12) << 5 | bits(6, 5) << 3;
    let store_word_sp = bits(8, 7) << 6 | bits(12, 9) << 2;
    let store_double_sp = bits(9, 7) << 6 | bits(12, 10) << 3;
    Some(match (bits(1, 0), bits(15, 13)) {
        (0, 0) => {
            let offset = bits(10, 7) << 6 | bits(12, 11) << 4 | bits(5, 5) << 3 | bits(6, 6) << 2;
            if offset == 0 {
                return None;
            }
            i_type(0x13, 0, short_low, 2, offset as i32)
        }
        (0, 1) => i_type(0x07, 3, short_low, short_high, double_offset as i32),
        (0, 2) => i_type(0x03, 2, short_low, short_high, word_offset as i32),
        (0, 3) => i_type(0x03, 3, short_low, short_high, double_offset as i32),
        (0, 5) => s_type(0x27, 3, short_high, short_low, double_offset),
        (0, 6) => s_type(0x23, 2, short_high, short_low, word_offset),
        (0, 7) => s_type(0x23, 3, short_high, short_low, double_offset),
        (1, 0) => i_type(0x13, 0, rd, rd, imm6),
        (1, 1) if rd != 0 => i_type(0x1b, 0, rd, rd, imm6),
        (1, 2) => i_type(0x13, 0, rd, 0, imm6),
        (1, 3) if imm6 == 0 => return None,
        (1, 3) if rd == 2 => {
            let offset = bits(12, 12) << 9 | bits(4, 3) << 7 | bits(5, 5) << 6 | bits(2, 2) << 5 | bits(6, 6) << 4;
            i_type(0x13, 0, 2, 2, signed(offset, 10))
        }
        (1, 3) => (imm6 as u32) << 12 | rd << 7 | 0x37,
        (1, 4) => match (bits(11, 10), bits(12, 12), bits(6, 5)) {
            (0, ..) => i_type(0x13, 5, short_high, short_high, shift as i32),
            (1, ..) => i_type(0x13, 5, short_high, short_high, shift as i32 | 0x400),
            (2, ..) => i_type(0x13, 7, short_high, short_high, imm6),
            (_, 0, 0) => r_type(0x33, 0, 0x20, short_high, short_low),
            (_, 0, 1) => r_type(0x33, 4, 0, short_high, short_low),
            (_, 0, 2) => r_type(0x33, 6, 0, short_high, short_low),
            (_, 0, _) => r_type(0x33, 7, 0, short_high, short_low),
            (_, _, 0) => r_type(0x3b, 0, 0x20, short_high, short_low),
            (_, _, 1) => r_type(0x3b, 0, 0, short_high, short_low),
            _ => return None,
        },
        (1, 5) => {
            let offset = bits(12, 12) << 11
                | bits(8, 8) << 10
                | bits(10, 9) << 8
                | bits(6, 6) << 7
                | bits(7, 7) << 6
                | bits(2, 2) << 5
                | bits(11, 11) << 4
                | bits(5, 3) << 1;
            let offset = signed(offset, 12) as u32;
            (offset >> 20 & 1) << 31
                | (offset >> 1 & 0x3ff) << 21
                | (offset >> 11 & 1) << 20
                | (offset >> 12 & 0xff) << 12
                | 0x6f
        }
        (1, funct3 @ (6 | 7)) => {
            let offset = bits(12, 12) << 8 | bits(6, 5) << 6 | bits(2, 2) << 5 | bits(11, 10) << 3 | bits(4, 3) << 1;
            let offset = signed(offset, 9) as u32;
            (offset >> 12 & 1) << 31
                | (offset >> 5 & 0x3f) << 25
                | short_high << 15
                | (funct3 - 6) << 12
                | (offset >> 1 & 0xf) << 8
                | (offset >> 11 & 1) << 7
                | 0x63
        }
        (2, 0) => i_type(0x13, 1, rd, rd, shift as i32),
        (2, 1) => i_type(0x07, 3, rd, 2, double_sp as i32),
        (2, 2) if rd != 0 => i_type(0x03, 2, rd, 2, word_sp as i32),
        (2, 3) if rd != 0 => i_type(0x03, 3, rd, 2, double_sp as i32),
        (2, 4) => match (bits(12, 12), rd, rs2) {
            (0, 0, 0) => return None,
            (0, _, 0) => i_type(0x67, 0, 0, rd, 0),
            (0, ..) => rs2 << 20 | rd << 7 | 0x33,
            (_, 0, 0) => 0x0010_0073,
            (_, _, 0) => i_type(0x67, 0, 1, rd, 0),
            _ => r_type(0x33, 0, 0, rd, rs2),
        },
        (2, 5) => s_type(0x27, 3, 2, rs2, store_double_sp),
        (2, 6) => s_type(0x23, 2, 2, rs2, store_word_sp),
        (2, 7) => s_type(0x23, 3, 2, rs2, store_double_sp),
        _ => return None,
    })
}

fn i_type(opcode: u32, funct3: u32, rd: u32, rs1: u32, imm: i32) -> u32 {
    (imm as u32) << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode
}

fn s_type(opcode: u32, funct3: u32, rs1: u32, rs2: u32, imm: u32) -> u32 {
    (imm >> 5 & 0x7f) << 25 | rs2 << 20 | rs1 << 15 | funct3 << 12 | (imm & 31) << 7 | opcode
}

/// `rd` is also the first source, as in every compressed register-register operation.
fn r_type(opcode: u32, funct3: u32, funct7: u32, rd: u32, rs2: u32) -> u32 {
    funct7 << 25 | rs2 << 20 | rd << 15 | funct3 << 12 | rd << 7 | opcode
}
