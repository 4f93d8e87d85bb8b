//! Values of options: what is none, or cannot be one of the option, is refused with what it may be.

use std::fmt::Display;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Reads a whole number for an option that takes those from `least` to `most`; others that fit the type are left to later checks, which
/// know more of what would do.
pub fn whole<T: TryFrom<i128>>(
    least: impl Display,
    most: impl Display,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    let range = format!("give a whole number from {least} to {most}");
    move |text| {
        let number: Option<i128> = text.parse().ok();
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| range.clone())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_cannot_be_are_reported_the_range() {
        let threads = whole::<u32>(1, 190);
        assert_eq!((threads("190"), threads("4294967295")), (Ok(190), Ok(u32::MAX)), "later checks know more");
        for wrong in ["-1", "4294967296", "2.5", "", "many", "1e3"] {
            assert_eq!(threads(wrong), Err("give a whole number from 1 to 190".to_owned()), "{wrong:?}");
        }
        assert_eq!(whole::<u64>(0, u64::MAX)("18446744073709551615"), Ok(u64::MAX));
    }
}
