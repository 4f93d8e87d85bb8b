//! Options of the command line: values that cannot be are refused with what may be, and a description of a run is
//! printed as the command that repeats it.

use std::fmt::Display;

use clap::Args;
use serde::{Serialize, Serializer};
use serde_json::Value;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Values of the command line are shown by the names that they are given by.
macro_rules! named {
    ($($kind:ty),+) => {
        $(impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let value = clap::ValueEnum::to_possible_value(self);
                f.write_str(value.as_ref().map_or("", clap::builder::PossibleValue::get_name))
            }
        })+
    };
}
pub(crate) use named;

/// A whole number that an option may take.
pub trait Whole: TryFrom<i128> + PartialOrd + Display + Copy + Send + Sync + 'static {}

impl<T: TryFrom<i128> + PartialOrd + Display + Copy + Send + Sync + 'static> Whole for T {}

/// Reads a whole number for an option that takes those from `least` to `most`.
pub fn whole<T: Whole>(least: T, most: T) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse::<i128>().ok().and_then(|number| T::try_from(number).ok());
        number
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| format!("give a whole number from {least} to {most}"))
    }
}

/// A number of bytes: digits, and behind them nothing, a unit of 1024 (K, M, G, also KiB and so on) or one of 1000
/// (KB, MB, GB), in letters of either case. None of anything else.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..].to_ascii_lowercase()[..] {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return None,
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(unit)
}

/// Reads a number of bytes ([`parse_bytes`]) for an option that takes those from `least` to `most`; `u64::MAX`: as many
/// as memory has room for, which shows later.
pub fn whole_bytes<T: Whole>(least: T, most: T) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let bytes = parse_bytes(text).and_then(|bytes| T::try_from(i128::from(bytes)).ok());
        bytes.filter(|bytes| (least..=most).contains(bytes)).ok_or_else(|| {
            let is_any = T::try_from(u64::MAX.into()).is_ok_and(|all| all == most);
            let most = if is_any { "what memory has room for".to_owned() } else { most.to_string() };
            format!("give a whole number of bytes from {least} to {most}, or one with a unit, such as 4K or 1MiB")
        })
    }
}

/// Reads one of these values by its name; help shows each name with what it is about.
pub fn one_of<T: Clone + Send + Sync + 'static>(
    values: Vec<(&'static str, &'static str, T)>,
) -> impl TypedValueParser<Value = T> {
    let names = values.iter().map(|(name, about, _)| PossibleValue::new(*name).help(*about));
    PossibleValuesParser::new(names.collect::<Vec<_>>()).try_map(move |given| {
        let known = values.iter().find(|(name, ..)| *name == given);
        known.map(|(.., value)| value.clone()).ok_or_else(|| format!("no such value: {given}"))
    })
}

/// Options and values that say the same as a description of a run, whose fields are its options: those that are not as
/// by default.
pub fn words<T: Args + Serialize>(own: &T, default: &T) -> Vec<String> {
    let (own, default) = (serde_json::json!(own), serde_json::json!(default));
    let mut words = Vec::new();
    for argument in T::augment_args(clap::Command::new("run")).get_arguments() {
        let (key, Some(option)) = (argument.get_id().as_str(), argument.get_long()) else { continue };
        if own[key] == default[key] {
            continue;
        }
        let values = match &own[key] {
            Value::Array(values) => values.as_slice(),
            value => std::slice::from_ref(value),
        };
        for value in values {
            words.push(format!("--{option}"));
            words.extend(text(value));
        }
    }
    words
}

/// The command line of a program with these options.
pub fn command(program: &str, words: Vec<String>) -> String {
    words.into_iter().fold(program.to_owned(), |command, word| command + " " + &quoted(word))
}

/// A value as an option takes it; none of a flag.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null | Value::Bool(_) => None,
        Value::String(text) => Some(text.clone()),
        Value::Number(number) if number.is_f64() => number.as_f64().map(|number| number.to_string()),
        other => Some(other.to_string()),
    }
}

/// A word as a shell takes it.
fn quoted(word: String) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,%+@".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) { word } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// A value by its name, in a description of a run.
pub(crate) fn by_name<S: Serializer>(value: &impl Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_cannot_be_are_reported_the_range() {
        let threads = whole::<u32>(1, 190);
        assert_eq!((threads("1"), threads("190")), (Ok(1), Ok(190)));
        for wrong in ["0", "191", "-1", "4294967296", "2.5", "", "many", "1e3"] {
            assert_eq!(threads(wrong), Err("give a whole number from 1 to 190".to_owned()), "{wrong:?}");
        }
        assert_eq!(whole::<u64>(0, u64::MAX)("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn bytes_have_units_of_1024_and_of_1000() {
        for (text, count) in [
            ("0", 0),
            ("64", 64),
            ("64B", 64),
            ("64K", 65_536),
            ("64k", 65_536),
            ("64KiB", 65_536),
            ("64KB", 64_000),
            ("8M", 8 << 20),
            ("8mib", 8 << 20),
            ("64MB", 64_000_000),
            ("2G", 2 << 30),
            ("2GiB", 2 << 30),
            ("2GB", 2_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Some(count), "{text}");
        }
        for wrong in ["", "K", "-1", "+1", "1.5M", "1 K", "1e3", "64T", "64Kib ", "64 ", "20000000000G", "٣"] {
            assert_eq!(parse_bytes(wrong), None, "{wrong:?}");
        }
        let chunk = whole_bytes::<u32>(64, 4096);
        assert_eq!((chunk("64"), chunk("4K")), (Ok(64), Ok(4096)));
        for wrong in ["63", "4097", "4G"] {
            assert!(chunk(wrong).unwrap_err().contains("give a whole number of bytes from 64 to 4096"), "{wrong}");
        }
    }
}
