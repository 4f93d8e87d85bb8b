//! From bytes to operations and back.
//!
//! Structured inputs are read front to back with [`arbitrary::Unstructured`]: one byte names an operation, its operands
//! follow as little-endian integers; past the end everything reads as zero. So a mutation of one byte changes one
//! thing, and seeds can be written by hand with [`Script`].

use arbitrary::Unstructured;

/// Reads operands.
pub struct Input<'a>(Unstructured<'a>);

macro_rules! integers {
    ($($name:ident: $type:ty),*) => {$(
        /// The next integer; zero past the end.
        pub fn $name(&mut self) -> $type {
            self.0.arbitrary().unwrap_or_default()
        }
    )*};
}

impl<'a> Input<'a> {
    /// Starts at the front.
    #[must_use]
    pub fn new(data: &'a [u8]) -> Self {
        Input(Unstructured::new(data))
    }

    integers!(u8: u8, u16: u16, u32: u32, u64: u64);

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next bytes, or those that are left.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let count = count.min(self.0.len());
        self.0.bytes(count).unwrap_or_default()
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        self.bytes(usize::MAX)
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.u8()) % choices.len()]
    }

    /// A 64-bit number that is often one at which something changes: the first byte chooses between an edge and a
    /// number of 1, 2, 4 or 8 bytes.
    pub fn number(&mut self) -> u64 {
        const EDGES: [u64; 12] =
            [0, 1, 63, 64, 4096, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 1 << 32, i64::MAX as u64, 1 << 63, u64::MAX];
        match self.u8() {
            0x80 => u64::from(self.u8()),
            0x81 => u64::from(self.u16()),
            0x82 => u64::from(self.u32()),
            0x83 => self.u64(),
            code if code & 0x80 == 0 => code.into(),
            code => EDGES[usize::from(code) % EDGES.len()],
        }
    }
}

/// Writes what [`Input`] reads, for seeds.
#[derive(Clone, Debug, Default)]
pub struct Script(Vec<u8>);

impl Script {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Script::default()
    }

    /// Appends bytes: operations and operands of one byte each.
    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends an operand of two bytes.
    #[must_use]
    pub fn u16(self, value: u16) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends an operand of four bytes.
    #[must_use]
    pub fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends an operand of eight bytes.
    #[must_use]
    pub fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    /// The input.
    #[must_use]
    pub fn done(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let bytes = Script::new().bytes(&[7, 1, 2]).u16(0x1234).u32(0x5678_9ABC).u64(u64::MAX - 1).done();
        let mut input = Input::new(&bytes);
        assert_eq!((input.u8(), input.bytes(2)), (7, &[1, 2][..]));
        assert_eq!((input.u16(), input.u32(), input.u64()), (0x1234, 0x5678_9ABC, u64::MAX - 1));
        assert!(input.is_empty() && input.rest().is_empty());
        assert_eq!((input.u8(), input.u64(), input.bytes(3)), (0, 0, &[][..]));
    }

    #[test]
    fn numbers_are_short_or_edges() {
        let read = |bytes: &[u8]| Input::new(bytes).number();
        assert_eq!(read(&[5]), 5);
        assert_eq!(read(&[0x81, 1, 2]), 0x0201);
        assert_eq!(read(&[0x83, 1, 0, 0, 0, 0, 0, 0, 0x80]), 0x8000_0000_0000_0001);
        assert!((0x84..=0xFF).map(|code| read(&[code])).any(|number| number == u64::MAX));
    }
}
