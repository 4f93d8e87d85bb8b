//! Text and numbers in a line. Not by `core::fmt`, which calls through pointers: how much stack that takes cannot be
//! known from the instructions.

use crate::Line;

/// Appends `text`. A line that is cut off differs from the others' and is noticed.
pub(crate) fn put(line: &mut Line, text: &str) {
    let _ = line.push_str(text);
}

/// Appends `value` in decimal digits.
pub(crate) fn put_decimal(line: &mut Line, value: u64) {
    let mut power = 1;
    while value / power >= 10 {
        power *= 10;
    }
    while power > 0 {
        put_digit(line, value / power % 10);
        power /= 10;
    }
}

/// Appends `value` in 16 hexadecimal digits.
pub(crate) fn put_hexadecimal(line: &mut Line, value: u64) {
    for place in (0..16).rev() {
        put_digit(line, value >> (4 * place) & 15);
    }
}

fn put_digit(line: &mut Line, digit: u64) {
    let _ = char::from_digit(digit as u32, 16).map(|digit| line.push(digit));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_by_the_standard_library() {
        for value in [0, 1, 9, 10, 99, 100, 1_000_000_007, u64::MAX / 10, u64::MAX - 1, u64::MAX] {
            let mut line = Line::new();
            put_decimal(&mut line, value);
            put(&mut line, " ");
            put_hexadecimal(&mut line, value);
            assert_eq!(line.as_str(), format!("{value} {value:016x}"));
        }
    }
}
