//! `flexcast campaign`.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use flexcast_cli::sim::campaign::{self, Tally, Wrong};
use flexcast_cli::sim::random::Case;
use flexcast_cli::tput::run::ImageFile;

use super::{progress_bar, read_image};
use crate::sim_args::CampaignArgs;

pub(super) fn run(args: &CampaignArgs) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(args.seeds > 0, "--seeds 0: give at least 1");
    anyhow::ensure!(args.jobs > 0, "--jobs 0: give at least 1");
    let image = read_image(&args.image)?;
    if args.show {
        for seed in args.first..args.first.saturating_add(args.seeds) {
            println!("{:#?}", Case::new(seed));
        }
    }
    let started = Instant::now();
    let bar = progress_bar();
    bar.set_prefix("seeds");
    bar.set_length(args.seeds);
    let (tally, wrong) = all(args, &image, &|tally| {
        bar.set_position(tally.cases);
        bar.set_message(format!("{} right, {} failed as they should", tally.right, tally.failed));
    });
    bar.finish_and_clear();
    let wall_s = started.elapsed().as_secs_f64();
    if args.json {
        let mut value = serde_json::to_value(tally)?;
        value["wall_s"] = wall_s.into();
        value["wrong"] =
            wrong.as_ref().map(|wrong| serde_json::json!({"seed": wrong.seed, "reason": wrong.reason})).into();
        println!("{value}");
    } else {
        let Tally { cases, right, failed, recovered_chunks, lost_frames, weak, raced } = tally;
        println!(
            "{cases} cases in {wall_s:.1} s (measured): {right} with every byte on every rank, {failed} in which ranks failed as they should, each \
             with a typed error;\n{lost_frames} frames lost, {recovered_chunks} chunks recovered; {weak} under weak memory, {raced} watched \
             for races"
        );
    }
    let Some(Wrong { seed, reason }) = wrong else { return Ok(ExitCode::SUCCESS) };
    anyhow::bail!("seed {seed}: {reason}\n  run it again with: cargo xtask sim --first {seed} --seeds 1 --show");
}

/// Runs all seeds on several threads, each with a machine of its own; ends early after a wrong one.
fn all(args: &CampaignArgs, image: &ImageFile, tell: &(dyn Fn(Tally) + Sync)) -> (Tally, Option<Wrong>) {
    let next = AtomicU64::new(0);
    let state = Mutex::new((Tally::default(), None::<Wrong>));
    let lock = || state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    std::thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= args.seeds || lock().1.is_some() {
                        return;
                    }
                    let result = campaign::run_seed(args.first.saturating_add(number), image);
                    let mut state = lock();
                    match result {
                        Ok(tally) => state.0 += tally,
                        // The smallest seed is told, whichever thread was first.
                        Err(wrong) if state.1.as_ref().is_none_or(|known| wrong.seed < known.seed) => {
                            state.1 = Some(wrong)
                        }
                        Err(_) => {}
                    }
                    tell(state.0);
                }
            });
        }
    });
    state.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}
