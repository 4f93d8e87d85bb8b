//! Figures for people: few digits, and more where a value is so near a limit that few would contradict the verdict.

/// Digits that say everything of a number.
const MOST_DIGITS: i32 = 17;

/// A number with as many digits as say something: four significant ones, all of those before the point.
#[must_use]
pub fn short(number: f64) -> String {
    significant(number, 4)
}

fn significant(number: f64, digits: i32) -> String {
    if number == 0.0 || !number.is_finite() {
        return if number.is_finite() { "0".to_owned() } else { "-".to_owned() };
    }
    let before = number.abs().log10().floor() as i32;
    let decimals = (digits - 1 - before).clamp(0, digits + 2) as usize;
    trimmed(format!("{number:.decimals$}"))
}

/// Four significant digits, and no more than three behind the point.
#[must_use]
pub fn thousandths(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 1000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        _ => 3,
    };
    trimmed(format!("{value:.decimals$}"))
}

fn trimmed(text: String) -> String {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A value with its limits, as text that compares as the numbers do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithLimits {
    /// The value.
    pub value: String,
    /// The least that will do.
    pub least: Option<String>,
    /// The greatest.
    pub most: Option<String>,
}

impl WithLimits {
    /// Each number as `plain` has it, if that compares as the numbers do; else with as few digits more as it takes.
    #[must_use]
    pub fn new(value: f64, least: Option<f64>, most: Option<f64>, plain: fn(f64) -> String) -> Self {
        let with =
            |text: &dyn Fn(f64) -> String| Self { value: text(value), least: least.map(text), most: most.map(text) };
        let within = (least.is_none_or(|least| value >= least), most.is_none_or(|most| value <= most));
        let agrees = |texts: &Self| {
            let number = |text: &Option<String>| text.as_ref().and_then(|text| text.parse::<f64>().ok());
            let printed = texts.value.parse::<f64>().unwrap_or(f64::NAN);
            let least = least.is_none() || number(&texts.least).is_some_and(|least| printed >= least) == within.0;
            let most = most.is_none() || number(&texts.most).is_some_and(|most| printed <= most) == within.1;
            least && most
        };
        let longer = (5..=MOST_DIGITS).map(|digits| with(&|number| significant(number, digits)));
        let found = std::iter::once(with(&plain)).chain(longer).find(agrees);
        // Every digit there is.
        found.unwrap_or_else(|| with(&|number: f64| number.to_string()))
    }
}

/// A deviation in percent, with its sign, to compare with the deviation that is allowed both ways; with more than one
/// decimal only where fewer would say something else.
#[must_use]
pub fn deviation(percent: f64, allowed: f64) -> String {
    let agrees = |text: &String| {
        text.parse::<f64>().is_ok_and(|printed| (printed.abs() <= allowed) == (percent.abs() <= allowed))
    };
    (1..=MOST_DIGITS as usize)
        .map(|decimals| format!("{percent:+.decimals$}"))
        .find(agrees)
        .unwrap_or_else(|| format!("{percent:+}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_short() {
        for (number, text) in [
            (0.0, "0"),
            (11.9, "11.9"),
            (0.97, "0.97"),
            (598.0, "598"),
            (48_828_125.0, "48828125"),
            (1.98936, "1.989"),
            (f64::NAN, "-"),
            (f64::INFINITY, "-"),
            (0.000_012_3, "0.000012"),
            (-2.5, "-2.5"),
        ] {
            assert_eq!(short(number), text);
        }
        assert_eq!([0.83124, 12.3456, 1084.4].map(thousandths), ["0.831", "12.35", "1084"]);
    }

    #[test]
    fn a_value_near_its_limit_has_the_digits_that_distinguish_them() {
        let texts = |value, least, most| {
            let WithLimits { value, least, most } = WithLimits::new(value, least, most, short);
            [Some(value), least, most].map(Option::unwrap_or_default)
        };
        assert_eq!(texts(96.9958, Some(97.0), None), ["96.996", "97", ""]);
        assert_eq!(texts(97.0, Some(97.0), None), ["97", "97", ""]);
        assert_eq!(texts(97.000_01, None, Some(97.0)), ["97.00001", "", "97"]);
        // Passed, and so near does not matter.
        assert_eq!(texts(97.000_01, Some(97.0), None), ["97", "97", ""]);
        // Limits are rounded, too.
        assert_eq!(texts(1.9893, Some(1.98936), None), ["1.9893", "1.9894", ""]);
        assert_eq!(texts(104.0, Some(1.98936), None), ["104", "1.989", ""]);
        assert_eq!([deviation(20.04, 20.0), deviation(-3.21, 20.0)], ["+20.04", "-3.2"]);
    }

    /// Numbers as close to one another as numbers can be, and others.
    fn near() -> impl Strategy<Value = (f64, f64)> {
        let distance = prop_oneof![Just(0.0), Just(f64::EPSILON), 1e-16..1e-3_f64, 1e-3..2.0_f64];
        (
            prop_oneof![-1e9..1e9_f64, -1e-3..1e-3_f64, (-4000..4000_i32).prop_map(|whole| f64::from(whole) / 8.0)],
            distance,
            any::<bool>(),
        )
            .prop_map(|(limit, distance, below)| (limit * if below { 1.0 - distance } else { 1.0 + distance }, limit))
    }

    proptest! {
        #[test]
        fn what_is_printed_agrees_with_the_verdict((value, limit) in near(), width in 0.0..2.0_f64) {
            let (least, most) = (limit, limit + width * limit.abs());
            for (least, most) in [(Some(least), None), (None, Some(most)), (Some(least), Some(most))] {
                for plain in [short, thousandths] {
                    let printed = WithLimits::new(value, least, most, plain);
                    let number = |text: &str| text.parse::<f64>().unwrap();
                    let by_text = printed.least.as_ref().is_none_or(|least| number(&printed.value) >= number(least))
                        && printed.most.as_ref().is_none_or(|most| number(&printed.value) <= number(most));
                    let is = least.is_none_or(|least| value >= least) && most.is_none_or(|most| value <= most);
                    prop_assert_eq!(by_text, is, "{:?} for {} within {:?} to {:?}", printed, value, least, most);
                }
            }
            let printed: f64 = deviation(value, limit.abs()).parse().unwrap();
            prop_assert_eq!(printed.abs() <= limit.abs(), value.abs() <= limit.abs());
        }
    }
}
