//! `flexcast report`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use flexcast_cli::out;
use flexcast_lab::evaluate::calibration::Calibration;
use flexcast_lab::evaluate::expect::Ending;
use flexcast_lab::evaluate::page::{self, Head};
use flexcast_lab::evaluate::run::{self, Options};
use flexcast_lab::evaluate::{output, spec, summary};
use flexcast_lab::jobs;

use super::report_progress::Progress;
use crate::report_args::ReportArgs;

pub(super) fn run(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let jobs = args.jobs.unwrap_or_else(cores);
    let folder =
        args.experiments.clone().or_else(|| Some(PathBuf::from(spec::FOLDER)).filter(|folder| folder.is_dir()));
    let experiments = match &folder {
        Some(folder) => spec::read_folder(folder, args.reduced)?,
        None => spec::held(&args.out, args.reduced)?,
    };
    let mut experiments = spec::choose(experiments, &args.only)?;
    if let Some(shard) = args.shard {
        let mut position = 0..;
        experiments.retain(|_| position.next().is_some_and(|position| shard.has(position)));
    }
    if args.list {
        let width = experiments.iter().map(|experiment| experiment.id.chars().count()).max().unwrap_or(0);
        for experiment in &experiments {
            out!("{:<width$}  {}", experiment.id, experiment.title)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let calibration = args.calibration.as_deref().map(Calibration::read).transpose()?;
    let model = args.model.timing();
    let name = model.parameters()?.map_or_else(|| args.model.model.clone(), |parameters| parameters.name);
    let options = Options { images: args.images.source(), model, jobs, memory_bytes: jobs::memory_limit_bytes() };
    // Hours of runs are not lost for a place that cannot be written.
    output::attempt(&args.out, &experiments)?;
    if let Some(path) = &args.summary {
        output::attempt_file(path)?;
    }
    if folder.is_none() {
        spec::write_scripts(&args.out, &experiments)?;
    }
    let mut display = Progress::new();
    let outcomes = run::run(experiments, &options, &mut |progress| display.show(progress));
    display.end();
    let head = Head { model: name, calibration, reduced: args.reduced, commit: args.commit.clone() };
    for outcome in &outcomes {
        output::write(&args.out, outcome)?;
    }
    output::write_file(&args.out.join(output::TIMES), &output::times(&outcomes))?;
    let index = args.out.join(output::PAGE);
    output::write_file(&index, &page::page(&head, &outcomes))?;
    if let Some(path) = &args.summary {
        output::write_file(path, &summary::summary(&head, &outcomes))?;
    }
    out!("{}", page::holdouts(&head))?;
    for outcome in &outcomes {
        out!("{}: {}", outcome.experiment.id, outcome.experiment.title)?;
        for verdict in &outcome.verdicts {
            let value = verdict.value_text().unwrap_or_else(|| "-".to_owned());
            out!("  {:<8} {} ({}): {value}", verdict.verdict.name(), verdict.what, verdict.limits())?;
        }
        for (run, reason) in &outcome.failures {
            out!("  a run has failed: {reason}\n    {run}")?;
        }
    }
    let shown = std::path::absolute(&index).context("the page's path")?;
    out!("page: {}", shown.display())?;
    let broken = outcomes.iter().any(|outcome| {
        use flexcast_lab::evaluate::spec::Class;
        let exact = |verdict: &flexcast_lab::evaluate::expect::Verdict| {
            verdict.class == Class::Exact && verdict.verdict == Ending::Failed
        };
        !outcome.failures.is_empty() || outcome.verdicts.iter().any(exact)
    });
    // What the papers' figures and our goals have come to is a result, whatever it is.
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
