//! Elements as they lie in memory, and what operators do with two of them.

use half::{bf16, f16};

/// How an element of `N` bytes lies in memory. Half-precision numbers are computed with in single precision, so that
/// the value has a type of its own; storing it rounds, once for each operation.
pub(super) trait Element<const N: usize> {
    type Value;

    fn load(bytes: [u8; N]) -> Self::Value;

    fn store(value: Self::Value) -> [u8; N];
}

macro_rules! plain {
    ($($type:ty: $bytes:literal),*) => {$(
        impl Element<$bytes> for $type {
            type Value = Self;

            fn load(bytes: [u8; $bytes]) -> Self {
                Self::from_ne_bytes(bytes)
            }

            fn store(value: Self) -> [u8; $bytes] {
                value.to_ne_bytes()
            }
        }
    )*};
}

plain!(i8: 1, u8: 1, i16: 2, u16: 2, i32: 4, u32: 4, i64: 8, u64: 8, f32: 4, f64: 8);

macro_rules! half_precision {
    ($($type:ty),*) => {$(
        impl Element<2> for $type {
            type Value = f32;

            fn load(bytes: [u8; 2]) -> f32 {
                Self::from_ne_bytes(bytes).to_f32()
            }

            fn store(value: f32) -> [u8; 2] {
                Self::from_f32(value).to_ne_bytes()
            }
        }
    )*};
}

half_precision!(f16, bf16);

/// A complex number.
#[derive(Clone, Copy)]
pub(super) struct Complex<F> {
    real: F,
    imaginary: F,
}

macro_rules! complex {
    ($($type:ty: $part:literal, $bytes:literal),*) => {$(
        impl Element<$bytes> for Complex<$type> {
            type Value = Self;

            fn load(bytes: [u8; $bytes]) -> Self {
                let part = |at| <$type>::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
                Self { real: part(0), imaginary: part($part) }
            }

            fn store(Self { real, imaginary }: Self) -> [u8; $bytes] {
                let parts = [real.to_ne_bytes(), imaginary.to_ne_bytes()];
                std::array::from_fn(|byte| parts[byte / $part][byte % $part])
            }
        }

        impl std::ops::Mul for Complex<$type> {
            type Output = Self;

            fn mul(self, other: Self) -> Self {
                Self {
                    real: self.real * other.real - self.imaginary * other.imaginary,
                    imaginary: self.real * other.imaginary + self.imaginary * other.real,
                }
            }
        }
    )*};
}

complex!(f32: 4, 8, f64: 8, 16);

/// A value and where it is.
#[derive(Clone, Copy)]
pub(super) struct Pair<V> {
    value: V,
    index: i32,
}

/// `$value` bytes of a value at the start, an index at byte `$index`, and padding, which is stored as zeros, so that
/// equal pairs are equal bytes.
macro_rules! pairs {
    ($($name:ident: $type:ty, $value:literal, $index:literal, $bytes:literal;)*) => {$(
        pub(super) struct $name;

        impl Element<$bytes> for $name {
            type Value = Pair<$type>;

            fn load(bytes: [u8; $bytes]) -> Pair<$type> {
                Pair {
                    value: <$type>::from_ne_bytes(std::array::from_fn(|byte| bytes[byte])),
                    index: i32::from_ne_bytes(std::array::from_fn(|byte| bytes[$index + byte])),
                }
            }

            fn store(Pair { value, index }: Pair<$type>) -> [u8; $bytes] {
                let mut bytes = [0; $bytes];
                bytes[..$value].copy_from_slice(&value.to_ne_bytes());
                bytes[$index..$index + 4].copy_from_slice(&index.to_ne_bytes());
                bytes
            }
        }
    )*};
}

pairs! {
    FloatInt: f32, 4, 4, 8;
    DoubleInt: f64, 8, 8, 16;
    LongInt: i64, 8, 8, 16;
    TwoInt: i32, 4, 4, 8;
    ShortInt: i16, 2, 4, 8;
}

/// Values that have a least and a greatest, whatever the order in which they are compared.
pub(super) trait Ordered: Copy {
    fn lesser(self, other: Self) -> Self;

    fn greater(self, other: Self) -> Self;

    /// Whether both are the same to MINLOC and MAXLOC: zeros of both signs are, and all NaNs.
    fn is_same(self, other: Self) -> bool;
}

macro_rules! ordered_integers {
    ($($type:ty),*) => {$(
        impl Ordered for $type {
            fn lesser(self, other: Self) -> Self {
                self.min(other)
            }

            fn greater(self, other: Self) -> Self {
                self.max(other)
            }

            fn is_same(self, other: Self) -> bool {
                self == other
            }
        }
    )*};
}

ordered_integers!(i8, u8, i16, u16, i32, u32, i64, u64);

/// Without a jump, so that the loops are vectorised. Numbers that are equal have the same bits, but for the zeros,
/// which differ in the sign: that of the lesser is set if either is, that of the greater if both are.
macro_rules! ordered_floats {
    ($($type:ty),*) => {$(
        impl Ordered for $type {
            fn lesser(self, other: Self) -> Self {
                if self < other {
                    self
                } else if other < self {
                    other
                } else if self == other {
                    Self::from_bits(self.to_bits() | other.to_bits())
                } else {
                    Self::NAN
                }
            }

            fn greater(self, other: Self) -> Self {
                if self > other {
                    self
                } else if other > self {
                    other
                } else if self == other {
                    Self::from_bits(self.to_bits() & other.to_bits())
                } else {
                    Self::NAN
                }
            }

            fn is_same(self, other: Self) -> bool {
                self == other || self.is_nan() && other.is_nan()
            }
        }
    )*};
}

ordered_floats!(f32, f64);

impl<V: Ordered> Pair<V> {
    /// The pair with the lesser value.
    pub(super) fn lesser(self, other: Self) -> Self {
        self.located(self.value.lesser(other.value), other)
    }

    /// The pair with the greater value.
    pub(super) fn greater(self, other: Self) -> Self {
        self.located(self.value.greater(other.value), other)
    }

    /// A value of two pairs, with the lower index of those that have it.
    fn located(self, value: V, other: Self) -> Self {
        let index = match (self.value.is_same(value), other.value.is_same(value)) {
            (true, true) => self.index.min(other.index),
            (true, false) => self.index,
            (false, _) => other.index,
        };
        Self { value, index }
    }
}
