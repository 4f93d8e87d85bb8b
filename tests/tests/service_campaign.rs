//! Campaign of service processes: jobs drawn from seeds, with loss, skew, deaths, processes that stand still, memory that is taken back, calls that disagree and
//! garbage. Each live rank ends with every byte or learns who is at fault, in bounded virtual time; the processes serve the next job and keep nothing of this one.
//!
//! `FLEXCAST_SERVICE_SEED=7 cargo test -p flexcast-tests --test service_campaign` runs one seed alone.

use std::collections::BTreeMap;

use flexcast_lab::service::campaign::{Case, Outcomes, run};

#[test]
fn whatever_goes_wrong_is_named_and_nothing_is_left() {
    let is_short = std::env::var_os("FLEXCAST_SHORT_TESTS").is_some();
    let only = std::env::var("FLEXCAST_SERVICE_SEED").ok().map(|seed| seed.parse::<u64>().expect("a seed is a number"));
    let seeds = only.map_or(0..if is_short { 40 } else { 2000 }, |seed| seed..seed + 1);
    let mut by_trouble: BTreeMap<&'static str, (u64, u64, Outcomes)> = BTreeMap::new();
    let mut wrong = Vec::new();
    for seed in seeds {
        let case = Case::new(seed);
        match run(&case) {
            Ok(outcomes) => {
                let (cases, well, sum) = by_trouble.entry(case.trouble.name()).or_default();
                *cases += 1;
                *well += u64::from(outcomes.errors.is_empty());
                *sum += &outcomes;
            }
            Err(error) => {
                println!("seed {seed}: {error}\n  {:?}", case.trouble);
                wrong.push(seed);
            }
        }
    }
    for (trouble, (cases, well, Outcomes { right, errors, took_ps })) in &by_trouble {
        println!(
            "{trouble}: {cases} cases, {well} without an error; {right} calls right, errors {errors:?}; longest {} us of virtual time (emulated)",
            took_ps / 1_000_000
        );
    }
    let first = wrong.first();
    assert!(
        wrong.is_empty(),
        "{} seeds are wrong: {wrong:?}; run one alone: FLEXCAST_SERVICE_SEED={} cargo test -p flexcast-tests --test service_campaign -- --nocapture",
        wrong.len(),
        first.unwrap_or(&0)
    );
}
