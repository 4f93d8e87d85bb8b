//! Extensions of the instruction set: every encoding of one is executed on a hart that has it, and illegal on others.

use emu_hart::{Cause, Fault, Isa, Stop, Text};
use flexcast_isa::Extension;

use crate::{asm, bus, machine, model, random};
use asm::*;
use bus::{CODE, DATA, REGISTER};
use machine::{COMPUTING, Machine, Mode, encodings, registers};
use model::{accessed, rows_of};
use random::Random;

#[test]
fn what_an_extension_has_is_executed_with_it_and_illegal_without_it() {
    let mut random = Random(6);
    let extensions = [
        ("m", Extension::M),
        ("a", Extension::A),
        ("zicsr", Extension::Zicsr),
        ("zifencei", Extension::Zifencei),
        ("zba", Extension::Zba),
        ("zbb", Extension::Zbb),
        ("zbs", Extension::Zbs),
        ("zbp", Extension::Zbp),
        ("zbr", Extension::Zbr),
    ];
    for (name, extension) in extensions {
        for isa in [Isa::RV64I.with(extension), Isa::ALL.without(extension)] {
            let has = |name: &str| name == "i" || extensions.iter().any(|(other, set)| *other == name && isa.has(*set));
            let mut machine = Machine::new();
            machine.text = Text::new(CODE, 8).with_isa(isa);
            let opcodes = COMPUTING.into_iter().chain([0x03, 0x0f, 0x23, 0x2f]);
            for bits in encodings(opcodes, A0, A1).chain(encodings([0x73].into_iter(), A0, ZERO)) {
                let (opcode, funct3) = (bits & 0x7f, bits >> 12 & 7);
                let legal = match opcode {
                    0x03 => funct3 <= 6,
                    0x0f => funct3 == 0 || funct3 == 1 && has("zifencei"),
                    0x23 => funct3 <= 3,
                    0x2f => has("a") && accessed(bits, DATA, 0, 0).is_some(),
                    // Neither `ecall` nor what returns from traps.
                    0x73 => {
                        let (number, writes) = (bits >> 20, !matches!(funct3, 2 | 3 | 6 | 7));
                        let reads = matches!(number, 0xc00..=0xc02) && !writes;
                        has("zicsr") && !matches!(funct3, 0 | 4) && (reads || number == u32::from(REGISTER))
                    }
                    _ => rows_of(bits).any(|row| has(row.extension)),
                };
                let mut x = registers(&mut random);
                x[A1 as usize] = DATA;
                let result = machine.execute(bits, x, Mode::Step);
                let illegal = Err(Stop::Fault(Fault::new(Cause::IllegalInstruction, u64::from(bits))));
                assert_eq!(result != illegal, legal, "{bits:#010x} on {isa}, about {name}");
            }
        }
    }
}
