use proptest::prelude::*;

use crate::decode::{Flow, Instruction, decode_all};
use crate::disasm::text;
use crate::isa::Extension;

fn decode(word: u32) -> Instruction {
    Instruction::decode(0x1000, &word.to_le_bytes()).expect("four bytes")
}

#[test]
fn every_mnemonic_reads_as_llvm_writes_it() {
    let mut lines = 0;
    for line in include_str!("decode_golden.txt").lines().filter(|line| !line.starts_with('#')) {
        let (code, expected) = line.split_once(": ").expect("colon");
        let [word, addr, extension] = code.split(' ').collect::<Vec<_>>()[..] else { panic!("three fields: {line}") };
        let bytes = u32::from_str_radix(word, 16).expect("word").to_le_bytes();
        let addr = u64::from_str_radix(addr, 16).expect("address");
        let instruction = Instruction::decode(addr, &bytes).expect("four bytes");
        assert_eq!(text(&instruction), expected, "{line}");
        assert_eq!(instruction.extension.name(), extension, "{line}");
        assert_eq!(instruction.hex(), word, "{line}");
        assert_eq!(usize::from(instruction.size_bytes) * 2, word.len(), "{line}");
        lines += 1;
    }
    assert!(lines > 200, "the table was read: {lines} lines");
}

#[test]
fn control_flow_is_told() {
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
    assert_eq!(Instruction::decode(0, &[1]).map(|i| i.raw), None);
}

proptest! {
    #[test]
    fn any_word_decodes_and_prints(word in any::<u32>(), addr in any::<u64>()) {
        let instruction = Instruction::decode(addr, &word.to_le_bytes()).expect("four bytes");
        prop_assert!(!text(&instruction).is_empty());
        prop_assert_eq!(instruction.is_compressed(), word & 3 != 3);
        if instruction.extension == Extension::Unknown {
            prop_assert_eq!(instruction.flow(), Flow::Stop);
        }
    }
}
