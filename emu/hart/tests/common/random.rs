//! Operands that are the same on every machine.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A corner of the arithmetic, or a number of any magnitude and sign.
    pub fn operand(&mut self) -> u64 {
        const CORNERS: [u64; 8] =
            [0, 1, u64::MAX, i64::MAX as u64, i64::MIN as u64, i32::MIN as i64 as u64, 0x8000_0000, 0xffff_ffff];
        let kind = self.next();
        match kind & 7 {
            0 => CORNERS[(kind >> 3 & 7) as usize],
            1 | 2 => self.next() >> (kind >> 3 & 63),
            3 | 4 => ((self.next() as i64) >> (kind >> 3 & 63)) as u64,
            _ => self.next(),
        }
    }

    /// The number of a register.
    pub fn register(&mut self) -> u32 {
        (self.next() & 31) as u32
    }

    pub fn one_of<const N: usize>(&mut self, values: [u32; N]) -> u32 {
        values[(self.next() % N as u64) as usize]
    }
}
