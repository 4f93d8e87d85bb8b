//! Instruction sets of toolchain files against what the hart executes and what `verify` lets pass: every encoding of
//! four bytes and of two, by decoder, hart and file.

use emu_hart::{Bus, Cause, Fault, Hart, Limits, Stop, Text, Width};
use flexcast_isa::{Extension, Instruction, Isa, Mnemonic};
use flexcast_tests::workspace_root;

const CODE: u64 = 0x1000;

/// One instruction; memory that takes everything; every control register.
struct Any(u32);

impl Bus for Any {
    fn load(&mut self, _addr: u64, _width: Width, _cycles: &mut u64) -> Result<u64, Fault> {
        Ok(0)
    }

    fn store(&mut self, _addr: u64, _width: Width, _value: u64, _cycles: &mut u64) -> Result<(), Fault> {
        Ok(())
    }

    fn fetch16(&mut self, addr: u64) -> Result<u16, Fault> {
        Ok((self.0 >> (addr % 4 * 8)) as u16)
    }

    fn csr_time(&mut self, cycles_now: u64) -> u64 {
        cycles_now
    }

    fn csr_read(&mut self, _csr: u16, _cycles: u64, _instret: u64) -> Option<u64> {
        Some(0)
    }

    fn csr_write(&mut self, _csr: u16, _value: u64, _cycles: u64, _instret: u64) -> Option<()> {
        Some(())
    }
}

fn is_executed(bits: u32, isa: Isa) -> bool {
    let stop = Hart::new(CODE).run(&mut Text::new(CODE, 4).with_isa(isa), &mut Any(bits), &Limits::instructions(1));
    !matches!(stop, Stop::Fault(Fault { cause: Cause::IllegalInstruction, .. }))
}

/// Every half word that is an instruction of its own, and every word by opcode, `funct3` and the upper twelve bits.
fn encodings() -> impl Iterator<Item = u32> {
    let halves = (0..=u32::from(u16::MAX)).filter(|half| half & 3 != 3);
    let words = (3..128).step_by(4).flat_map(|opcode| {
        (0..8 << 12).map(move |rest| (rest >> 3) << 20 | 11 << 15 | (rest & 7) << 12 | 10 << 7 | opcode)
    });
    halves.chain(words)
}

/// Name and ISA string of every toolchain file.
fn toolchains() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(workspace_root().join("toolchains")).expect("toolchains") {
        let path = entry.expect("a file").path();
        let text = std::fs::read_to_string(&path).expect("text");
        let table: toml::Table = toml::from_str(&text).expect("TOML");
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        found.push((name, table["isa"].as_str().expect("an ISA string").to_owned()));
    }
    found.sort();
    found
}

#[test]
fn the_hart_executes_what_each_toolchain_names_and_nothing_else() {
    let toolchains = toolchains();
    assert_eq!(toolchains.len(), 4, "{toolchains:?}");
    let mut strings: Vec<&str> = toolchains.iter().map(|(_, isa)| isa.as_str()).collect();
    // Others, in which one extension is missing.
    strings.extend([
        "rv64i",
        "rv64im",
        "rv64ic",
        "rv64ima_zbs",
        "rv64imac_zba",
        "rv64i_zicsr_zbb",
        "rv64im_zifencei_zbr",
        // What Zbb took over from the draft Zbp, without it.
        "rv64imac_zbp",
    ]);
    strings.sort_unstable();
    strings.dedup();
    for text in strings {
        let isa = Isa::parse(text).expect(text);
        let mut legal = 0;
        for bits in encodings() {
            let instruction = Instruction::decode(CODE, &bits.to_le_bytes()).expect("four bytes");
            // What privileged and custom instructions do is the bus's affair, and a write to a read-only register
            // illegal by its number.
            let is_read_only = bits >> 30 == 3;
            match instruction.extension() {
                Extension::Privileged | Extension::Custom => continue,
                Extension::Zicsr if is_read_only => continue,
                _ => {}
            }
            let named = isa.includes(&instruction) && instruction.mnemonic() != Mnemonic::Unimp;
            assert_eq!(
                is_executed(bits, isa),
                named,
                "{text}: {} ({instruction}) of {}",
                instruction.hex(),
                instruction.extension()
            );
            legal += u32::from(named);
        }
        assert!(legal > 10_000, "{text}: {legal}");
    }
}

#[test]
fn the_emulated_dpa_executes_what_its_toolchain_names() {
    for (name, text) in toolchains() {
        let expected = if name == "cx8" { Isa::CONNECTX_8 } else { Isa::BLUEFIELD_3 };
        assert_eq!(Isa::parse(&text), Ok(expected), "{name}");
    }
    assert_eq!(emu_machine::Config::default().isa, Isa::BLUEFIELD_3);
}
