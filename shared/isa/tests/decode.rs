//! Decoding and text, against what LLVM's disassembler writes.

use flexcast_isa::{Extension, Flow, Instruction, Isa, Mnemonic, decode_all};
use proptest::prelude::*;

fn decode(bits: u32) -> Instruction {
    Instruction::new(0x1000, bits)
}

#[test]
fn every_mnemonic_reads_as_llvm_writes_it() {
    let mut lines = 0;
    for line in include_str!("llvm.txt").lines().filter(|line| !line.starts_with('#')) {
        let (code, expected) = line.split_once(": ").expect("colon");
        let [word, addr, extension] = code.split(' ').collect::<Vec<_>>()[..] else { panic!("three fields: {line}") };
        let bytes = u32::from_str_radix(word, 16).expect("word").to_le_bytes();
        let addr = u64::from_str_radix(addr, 16).expect("address");
        let instruction = Instruction::decode(addr, &bytes).expect("four bytes");
        assert_eq!(instruction.to_string(), expected, "{line}");
        assert_eq!(instruction.extension().name(), extension, "{line}");
        assert_eq!(instruction.hex().to_string(), word, "{line}");
        assert_eq!(usize::from(instruction.size_bytes()) * 2, word.len(), "{line}");
        lines += 1;
    }
    assert!(lines > 200, "the table was read: {lines} lines");
}

#[test]
fn control_flow_is_reported() {
    assert_eq!(decode(0x0000_8067).flow(), Flow::Return);
    assert_eq!(decode(0x8082).flow(), Flow::Return);
    assert_eq!(decode(0x0005_0067).flow(), Flow::IndirectJump);
    assert_eq!(decode(0x9502).flow(), Flow::IndirectCall);
    assert_eq!(decode(0x0080_00ef).flow(), Flow::Call(0x1008));
    assert_eq!(decode(0xffdf_f06f).flow(), Flow::Jump(0xffc));
    assert_eq!(decode(0xfe05_1ee3).flow(), Flow::Branch(0xffc));
    assert_eq!(decode(0xc000_1073).flow(), Flow::Stop);
    assert_eq!(decode(0x0000_0073).flow(), Flow::Next);
}

#[test]
fn a_cut_instruction_ends_the_walk() {
    let code: Vec<_> = decode_all(0, &[0x01, 0x00, 0x13, 0x05]).collect();
    assert_eq!(code.len(), 1);
    assert_eq!(Instruction::decode(0, &[1]).map(|i| i.bits()), None);
}

#[test]
fn the_draft_keeps_what_a_later_extension_took_over_from_it() {
    let with = |extensions: &str| Isa::parse(&format!("rv64i{extensions}")).expect("an ISA string");
    for (bits, name) in [
        (0x40c5_f533, "andn"),
        (0x40c5_e533, "orn"),
        (0x40c5_c533, "xnor"),
        (0x60c5_9533, "rol"),
        (0x60c5_d533, "ror"),
        (0x60c5_953b, "rolw"),
        (0x60c5_d53b, "rorw"),
        (0x6075_d513, "rori"),
        (0x6075_d51b, "roriw"),
        (0x2875_d513, "orc.b"),
        (0x6b85_d513, "rev8"),
        (0x0805_c53b, "zext.h"),
    ] {
        let instruction = decode(bits);
        assert_eq!(instruction.mnemonic().name(), name);
        assert_eq!(instruction.extension(), Extension::Zbb, "{name}");
        assert!(with("_zbb").includes(&instruction) && with("_zbp").includes(&instruction), "{name}");
        assert!(!with("mac_zba_zbs_zbr").includes(&instruction), "{name}");
    }
    let (clz, grev) = (decode(0x6005_9513), decode(0x68c5_d533));
    assert!(with("_zbb").includes(&clz) && !with("_zbp").includes(&clz));
    assert!(!with("_zbb").includes(&grev) && with("_zbp").includes(&grev));
}

#[test]
fn two_bytes_need_their_extension_and_that_of_what_they_stand_for() {
    let isa = |text| Isa::parse(text).expect("an ISA string");
    assert!(isa("rv64ic").includes(&decode(0x852e)) && !isa("rv64im").includes(&decode(0x852e)));
    // c.fld
    assert_eq!(decode(0x2188).extension(), Extension::D);
    assert!(!Isa::ALL.includes(&decode(0x2188)));
}

#[test]
fn registers_that_are_written_are_reported() {
    for (bits, expected) in [
        (0x00c5_8533, Some(10)), // add a0, a1, a2
        (0x852e, Some(10)),      // c.mv a0, a1
        (0x9502, Some(1)),       // c.jalr a0
        (0x0000_0013, None),     // nop
        (0x00c5_a023, None),     // sw a2, 0(a1)
        (0x00b5_0463, None),     // beq a0, a1, 8
        (0x18c5_a52f, Some(10)), // sc.w a0, a2, (a1)
        (0xc000_2573, Some(10)), // rdcycle a0
        (0x0000_050b, None),     // custom-0
        (0x0ff0_000f, None),     // fence
    ] {
        assert_eq!(decode(bits).destination(), expected, "{bits:#x}");
    }
}

#[test]
fn mnemonics_are_numbered_and_named() {
    for (number, mnemonic) in Mnemonic::ALL.into_iter().enumerate() {
        assert_eq!(mnemonic as usize, number);
        assert!(!mnemonic.name().is_empty());
    }
}

proptest! {
    #[test]
    fn any_word_decodes_and_prints(bits in any::<u32>(), addr in any::<u64>()) {
        let instruction = Instruction::decode(addr, &bits.to_le_bytes()).expect("four bytes");
        prop_assert!(!instruction.to_string().is_empty());
        prop_assert_eq!(instruction.is_compressed(), bits & 3 != 3);
        prop_assert_eq!(instruction, Instruction::new(addr, bits));
        if instruction.mnemonic() == Mnemonic::Unknown {
            prop_assert_eq!(instruction.flow(), Flow::Stop);
        }
    }
}
