//! Options of a measurement that ranks must have alike.

use super::spec::Spec;
use crate::agreement::Options;

impl Spec {
    /// The options of `flexcast perf` that say what is measured.
    #[must_use]
    pub fn options(&self) -> Options {
        let Self { op, sizes, repetitions, warm_up, in_place, zeros } = self;
        let given = if *in_place { "given" } else { "not given" };
        [
            ("--op", op.to_string()),
            ("--sizes", sizes.to_string()),
            ("--repetitions", repetitions.to_string()),
            ("--warm-up", warm_up.to_string()),
            ("--in-place", given.to_owned()),
            ("--zeros", zeros.percent.to_string()),
            ("--pattern", zeros.pattern.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

#[cfg(test)]
mod tests {
    use flexcast::bootstrap::Exchange;

    use super::*;
    use crate::agreement::{AgreementError, agree};
    use crate::perf::op::Op;
    use crate::perf::spec::{Sizes, Zeros};
    use crate::sparse::PatternName;

    /// What rank 0 of two finds, which has `own`, where the other sends `theirs`.
    fn agree_with(own: &Options, theirs: &Options) -> Result<(), AgreementError> {
        agree(&mut Two { other: serde_json::to_vec(theirs).unwrap() }, own)
    }

    struct Two {
        other: Vec<u8>,
    }

    impl Exchange for Two {
        fn rank(&self) -> u32 {
            0
        }

        fn size(&self) -> u32 {
            2
        }

        fn exchange(&mut self, _: &str, own: &[u8]) -> Result<Vec<Vec<u8>>, flexcast::bootstrap::ExchangeError> {
            Ok(vec![own.to_vec(), self.other.clone()])
        }
    }

    #[test]
    fn every_option_that_differs_is_named_with_both_values() {
        let usual = Spec { sizes: Sizes::one(64), ..Spec::default() };
        agree_with(&usual.options(), &usual.options()).unwrap();
        let zeros = usual.zeros;
        for (spec, said) in [
            (Spec { op: Op::Alltoall, ..usual.clone() }, "--op alltoall, rank 0 allgather"),
            (Spec { sizes: "64,4K".parse().unwrap(), ..usual.clone() }, "--sizes 64,4096, rank 0 64"),
            (Spec { repetitions: 3, ..usual.clone() }, "--repetitions 3, rank 0 20"),
            (Spec { warm_up: 0, ..usual.clone() }, "--warm-up 0, rank 0 5"),
            (Spec { in_place: true, ..usual.clone() }, "--in-place given, rank 0 not given"),
            (Spec { zeros: Zeros { percent: 1, ..zeros }, ..usual.clone() }, "--zeros 1, rank 0 90"),
            (
                Spec { zeros: Zeros { pattern: PatternName::Powerlaw, ..zeros }, ..usual.clone() },
                "--pattern powerlaw, rank 0 identical",
            ),
        ] {
            let text = agree_with(&usual.options(), &spec.options()).unwrap_err().to_string();
            assert_eq!(text, format!("rank 1 has {said}: give all ranks the same options"));
        }
        let text = agree_with(&usual.options(), &Options::new()).unwrap_err().to_string();
        assert!(text.contains("rank 1") && text.contains("one build"), "{text}");
    }
}
