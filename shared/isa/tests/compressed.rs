//! Expansion of two-byte instructions.

use flexcast_isa::{Extension, Instruction, Isa, Mnemonic, expand};

/// Pairs from the tables of the unprivileged architecture ("C" extension) and as GNU as assembles them.
#[test]
fn expands_one_of_each_form() {
    let pairs: [(u16, u32); 38] = [
        (0x0808, 0x0101_0513), // c.addi4spn a0, sp, 16
        (0x1ffc, 0x3fc1_0793), // c.addi4spn a5, sp, 1020
        (0x2588, 0x0085_b507), // c.fld fa0, 8(a1)
        (0x41c8, 0x0045_a503), // c.lw a0, 4(a1)
        (0x5dfc, 0x07c5_a783), // c.lw a5, 124(a1)
        (0x6588, 0x0085_b503), // c.ld a0, 8(a1)
        (0x7dfc, 0x0f85_b783), // c.ld a5, 248(a1)
        (0xa588, 0x00a5_b427), // c.fsd fa0, 8(a1)
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
        (0x2542, 0x0101_3507), // c.fldsp fa0, 16
        (0x4542, 0x0101_2503), // c.lwsp a0, 16
        (0x8082, 0x0000_8067), // c.jr ra
        (0x852e, 0x00b0_0533), // c.mv a0, a1
        (0x9502, 0x0005_00e7), // c.jalr a0
        (0xbc2a, 0x02a1_3c27), // c.fsdsp fa0, 56
        (0xfc2a, 0x02a1_3c23), // c.sdsp a0, 56
    ];
    for (short, long) in pairs {
        assert_eq!(expand(short), Some(long), "{short:#06x}: {:#010x?}", expand(short));
    }
}

#[test]
fn rejects_the_reserved() {
    let illegal: [u16; 10] = [
        0x0000, // defined illegal
        0x0008, // c.addi4spn with immediate zero
        0x8188, // reserved (Zcb loads)
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
        assert!(!Isa::ALL.includes(&Instruction::new(0, u32::from(half))) || half == 0, "{half:#06x}");
    }
    assert_eq!(Instruction::new(0, 0).mnemonic(), Mnemonic::Unimp);
}

#[test]
fn every_half_word_decodes_as_its_expansion() {
    for half in (0..=u16::MAX).filter(|half| half & 3 != 3) {
        let instruction = Instruction::new(0x1000, u32::from(half));
        let Some(word) = expand(half) else {
            let expected = if half == 0 { Mnemonic::Unimp } else { Mnemonic::Unknown };
            assert_eq!((instruction.mnemonic(), instruction.word()), (expected, 0), "{half:#06x}");
            continue;
        };
        let long = Instruction::new(0x1000, word);
        assert_ne!(long.mnemonic(), Mnemonic::Unknown, "{half:#06x} expands to no instruction");
        assert!(matches!(long.extension(), Extension::I | Extension::D), "{half:#06x}");
        assert_eq!((instruction.mnemonic(), instruction.word()), (long.mnemonic(), word));
        assert_eq!(instruction.immediate(), long.immediate());
        assert_eq!((instruction.size_bytes(), long.size_bytes()), (2, 4));
    }
}
