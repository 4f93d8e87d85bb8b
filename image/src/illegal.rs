//! Reasons why a processor finds an instruction illegal, in words.

use flexcast_isa::{Extension, Instruction, Isa, Mnemonic};

/// What is wrong with an instruction that a processor of the set `isa` found illegal at `addr`: its text, and
/// the extension that the processor lacks or what else it is. `bits` are the instruction's, as the trap value has them.
#[must_use]
pub fn why(bits: u32, addr: u64, isa: Isa) -> String {
    let instruction = Instruction::new(addr, bits);
    let text = &instruction;
    match instruction.extension() {
        Extension::Unknown => format!("{} is no instruction that is known", instruction.hex()),
        _ if instruction.is_compressed() && !isa.has(Extension::C) => {
            format!("`{text}` in two bytes is of the extension C, which {isa} lacks")
        }
        _ if instruction.mnemonic() == Mnemonic::Unimp => "`unimp` traps on purpose".to_owned(),
        Extension::Custom => format!("{} is of {text}, whose instructions are the vendor's", instruction.hex()),
        Extension::Privileged => format!("`{text}` is privileged: this mode has no such instruction"),
        extension if !isa.includes(&instruction) => {
            format!("`{text}` is of the extension {}, which {isa} lacks", title(extension))
        }
        Extension::Zicsr => format!("`{text}`: this mode has no such register, or it is read-only"),
        extension => format!("`{text}` of {} is illegal here", title(extension)),
    }
}

/// The name as it stands in text: `M`, `Zba`.
fn title(extension: Extension) -> String {
    let mut name = extension.name().to_owned();
    if let Some(first) = name.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_that_lacks_is_named() {
        let set = |text| Isa::parse(text).expect("an ISA string");
        let isa = set("rv64imac_zicsr_zbb_zbs");
        for (bits, expected) in [
            (0x20c5_a533, "`sh1add a0, a1, a2` is of the extension Zba, which rv64imac_zicsr_zbb_zbs lacks"),
            (0x68c5_d533, "`grev a0, a1, a2` is of the extension Zbp, which rv64imac_zicsr_zbb_zbs lacks"),
            (0x0000_100f, "`fence.i` is of the extension Zifencei, which rv64imac_zicsr_zbb_zbs lacks"),
            (0x3020_2573, "`csrr a0, 0x302`: this mode has no such register, or it is read-only"),
            (0x3020_0073, "`mret` is privileged: this mode has no such instruction"),
            (0xc000_1073, "`unimp` traps on purpose"),
            (0, "`unimp` traps on purpose"),
            (0x0000_000b, "0000000b is of custom-0, whose instructions are the vendor's"),
            (0xffff_ffff, "ffffffff is no instruction that is known"),
            (0x8008, "8008 is no instruction that is known"),
        ] {
            assert_eq!(why(bits, 0x1000, isa), expected, "{bits:#x}");
        }
        assert!(why(0x02c5_8533, 0, Isa::RV64I).contains("`mul a0, a1, a2` is of the extension M, which rv64i lacks"));
        assert!(why(0x952e, 0, set("rv64im")).contains("`add a0, a0, a1` in two bytes is of the extension C"));
        // An instruction of two extensions that lack both.
        assert!(why(0x40c5_f533, 0, set("rv64i_zba")).contains("`andn a0, a1, a2` is of the extension Zbb"));
    }
}
