//! Two-byte instructions: every one does what the four-byte instruction does that it stands for.

use emu_hart::{Bus, Fault, Hart, Isa, Limits, Stop, Text, Width};
use flexcast_isa::{Instruction, expand};

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
        // Reserved, or of floating point.
        let Some(long) = expand(half).filter(|long| Isa::ALL.includes(&Instruction::new(AT, *long))) else {
            let (stop, ..) = executed(&half.to_le_bytes(), [0; 32]);
            assert_eq!(stop, Stop::Fault(Fault::illegal_instruction(u32::from(half))));
            continue;
        };
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
