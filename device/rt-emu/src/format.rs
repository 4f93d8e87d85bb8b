//! The conversions of `flexio_dev_msg`: those of C's printf for integers, texts and pointers. There is no floating
//! point on the DPA.

/// Where the bytes of texts come from: an address of a byte in, the byte out.
pub(crate) trait Texts {
    /// The byte at `address`, of a text that has not ended before it.
    fn byte(&self, address: u64) -> u8;
}

/// A fixed buffer; what does not fit is dropped.
struct Output<'b> {
    bytes: &'b mut [u8],
    len: usize,
}

impl Output<'_> {
    fn push(&mut self, byte: u8) {
        if let Some(room) = self.bytes.get_mut(self.len) {
            *room = byte;
            self.len += 1;
        }
    }

    fn pad(&mut self, byte: u8, count: usize) {
        (0..count).for_each(|_| self.push(byte));
    }
}

/// What stands between `%` and the conversion.
#[derive(Default)]
struct Directive {
    left: bool,
    zero: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    width: usize,
    precision: Option<usize>,
    /// Bits of the argument: 8, 16, 32 or 64.
    bits: u32,
}

/// Widest field; wider ones are cut, so that no directive runs for long.
const WIDEST: usize = 255;
/// Digits of the longest number: 64 bits in octal.
const MOST_DIGITS: usize = 22;

/// Writes `format`, which begins at an address, with arguments from `next`, and returns the bytes written. Conversions
/// that do not exist are copied as they stand.
pub(crate) fn format(out: &mut [u8], texts: &impl Texts, format: u64, mut next: impl FnMut() -> u64) -> usize {
    let mut out = Output { bytes: out, len: 0 };
    let mut at = format;
    loop {
        let byte = texts.byte(at);
        at += 1;
        match byte {
            0 => return out.len,
            b'%' => at = directive(&mut out, texts, at, &mut next),
            other => out.push(other),
        }
        if out.len == out.bytes.len() {
            return out.len;
        }
    }
}

/// Reads and carries out the directive behind a `%`; returns the address behind it.
fn directive(out: &mut Output<'_>, texts: &impl Texts, start: u64, next: &mut impl FnMut() -> u64) -> u64 {
    let mut at = start;
    let mut directive = Directive { bits: 32, ..Directive::default() };
    loop {
        match texts.byte(at) {
            b'-' => directive.left = true,
            b'0' => directive.zero = true,
            b'+' => directive.plus = true,
            b' ' => directive.space = true,
            b'#' => directive.alternate = true,
            _ => break,
        }
        at += 1;
    }
    let mut number = |at: &mut u64| {
        if texts.byte(*at) == b'*' {
            *at += 1;
            return next() as i32 as i64;
        }
        let mut value = 0i64;
        while let digit @ b'0'..=b'9' = texts.byte(*at) {
            value = (value * 10 + i64::from(digit - b'0')).min(WIDEST as i64);
            *at += 1;
        }
        value
    };
    let width = number(&mut at);
    directive.left |= width < 0;
    directive.width = (width.unsigned_abs() as usize).min(WIDEST);
    if texts.byte(at) == b'.' {
        at += 1;
        directive.precision = usize::try_from(number(&mut at)).ok().map(|precision| precision.min(WIDEST));
    }
    loop {
        match texts.byte(at) {
            b'h' => directive.bits = (directive.bits / 2).max(8),
            b'l' | b'j' | b'z' | b't' => directive.bits = 64,
            _ => break,
        }
        at += 1;
    }
    match texts.byte(at) {
        // The text ends inside the directive.
        0 => return at,
        b'%' => out.push(b'%'),
        b'c' => field(out, &directive, 1, |out| out.push(next() as u8)),
        b's' => text(out, texts, &directive, next()),
        b'd' | b'i' => {
            let shift = 64 - directive.bits;
            let value = (next() << shift) as i64 >> shift;
            let sign = match (value < 0, directive.plus, directive.space) {
                (true, ..) => b"-".as_slice(),
                (false, true, _) => b"+",
                (false, false, true) => b" ",
                (false, false, false) => b"",
            };
            integer(out, &directive, value.unsigned_abs(), 10, false, sign);
        }
        letter @ (b'u' | b'x' | b'X' | b'o') => {
            let shift = 64 - directive.bits;
            let value = next() << shift >> shift;
            let (radix, prefix) = match letter {
                b'x' => (16, b"0x".as_slice()),
                b'X' => (16, b"0X".as_slice()),
                b'o' => (8, b"0".as_slice()),
                _ => (10, b"".as_slice()),
            };
            let prefix = if directive.alternate && value != 0 { prefix } else { b"" };
            integer(out, &directive, value, radix, letter == b'X', prefix);
        }
        b'p' => integer(out, &directive, next(), 16, false, b"0x"),
        _ => {
            out.push(b'%');
            return start;
        }
    }
    at + 1
}

/// `len` bytes by `body`, in a field.
fn field(out: &mut Output<'_>, directive: &Directive, len: usize, body: impl FnOnce(&mut Output<'_>)) {
    let padding = directive.width.saturating_sub(len);
    if !directive.left {
        out.pad(b' ', padding);
    }
    body(out);
    if directive.left {
        out.pad(b' ', padding);
    }
}

fn text(out: &mut Output<'_>, texts: &impl Texts, directive: &Directive, address: u64) {
    if address == 0 {
        return field(out, directive, 6, |out| b"(null)".iter().for_each(|byte| out.push(*byte)));
    }
    let most = directive.precision.unwrap_or(out.bytes.len());
    let len = (0..most).take_while(|at| texts.byte(address + *at as u64) != 0).count();
    field(out, directive, len, |out| (0..len).for_each(|at| out.push(texts.byte(address + at as u64))));
}

fn integer(out: &mut Output<'_>, directive: &Directive, value: u64, radix: u64, upper: bool, prefix: &[u8]) {
    let mut digits = [0u8; MOST_DIGITS];
    let mut count = 0;
    let mut rest = value;
    for place in digits.iter_mut().rev() {
        if rest == 0 {
            break;
        }
        let digit = (rest % radix) as u8;
        let letters = if upper { b'A' } else { b'a' };
        *place = if digit < 10 { b'0' + digit } else { letters + digit - 10 };
        rest /= radix;
        count += 1;
    }
    let least = match directive.precision {
        Some(precision) => precision,
        None if directive.zero && !directive.left => directive.width.saturating_sub(prefix.len()).max(1),
        None => 1,
    };
    let zeros = least.saturating_sub(count);
    field(out, directive, prefix.len() + zeros + count, |out| {
        prefix.iter().for_each(|byte| out.push(*byte));
        out.pad(b'0', zeros);
        digits.iter().skip(MOST_DIGITS - count).for_each(|byte| out.push(*byte));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts at addresses: each at a multiple of 256 from 256 on.
    struct Memory<'t>(&'t [&'t str]);

    impl Texts for Memory<'_> {
        fn byte(&self, address: u64) -> u8 {
            let text = self.0[address as usize / 256 - 1].as_bytes();
            text.get(address as usize % 256).copied().unwrap_or(0)
        }
    }

    fn printed(texts: &[&str], arguments: &[u64]) -> String {
        let mut out = [0; 64];
        let mut arguments = arguments.iter();
        let len = format(&mut out, &Memory(texts), 256, || *arguments.next().expect("an argument"));
        String::from_utf8(out[..len].to_vec()).expect("ASCII")
    }

    #[test]
    fn conversions_are_those_of_c() {
        let minus = (-5i64) as u64;
        for (format, arguments, wanted) in [
            ("plain", &[][..], "plain"),
            ("100 %%", &[], "100 %"),
            ("%d|%i|%u", &[minus, 7, minus], "-5|7|4294967291"),
            ("%ld|%lu|%lld", &[minus, minus, minus], "-5|18446744073709551611|-5"),
            ("%x|%X|%#x|%#o|%o", &[0xbeef, 0xbeef, 255, 8, 8], "beef|BEEF|0xff|010|10"),
            ("%lx|%zx|%p", &[u64::MAX, 1 << 40, 0x1000], "ffffffffffffffff|10000000000|0x1000"),
            ("%5d|%-5d|%05d|%+d|% d", &[42, 42, minus, 42, 42], "   42|42   |-0005|+42| 42"),
            ("%.3d|%8.3x|%08x", &[7, 0xab, 0xab], "007|     0ab|000000ab"),
            ("%hhd|%hd|%hhu", &[0x1FF, 0x18000, 0x1FF], "-1|-32768|255"),
            ("%c%c", &[u64::from(b'o'), u64::from(b'k')], "ok"),
            ("%*d|%-*d|%.*x", &[4, 1, 3, 2, 2, 10], "   1|2  |0a"),
            ("%d", &[0], "0"),
            ("%q %d", &[3], "%q 3"),
            ("end %", &[], "end "),
        ] {
            assert_eq!(printed(&[format], arguments), wanted, "{format}");
        }
    }

    #[test]
    fn texts_are_copied_cut_and_padded() {
        let texts = ["%s|%6s|%-6s|%.2s|%s", "abc", "xyz"];
        assert_eq!(printed(&texts, &[512, 768, 512, 512, 0]), "abc|   xyz|abc   |ab|(null)");
    }

    #[test]
    fn what_does_not_fit_is_dropped() {
        assert_eq!(printed(&["%200d"], &[1]).len(), 64);
        assert_eq!(printed(&["%s%s", "0123456789012345678901234567890123456789"], &[512, 512]).len(), 64);
    }
}
