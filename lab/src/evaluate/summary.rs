//! The short form: a document with the figures of the last run.

use super::page::{Head, holdouts, tally};
use super::row::Kind;
use super::run::Outcome;

/// The document, in Markdown.
#[must_use]
pub fn summary(head: &Head, outcomes: &[Outcome]) -> String {
    let [passed, failed, not_run] = tally(outcomes.iter().flat_map(|outcome| &outcome.verdicts));
    let mut text = String::from(
        "# Evaluation\n\nWritten by `cargo xtask evaluate`; the page with plots is `target/evaluation/index.html`. Not \
         to be edited.\n\n",
    );
    text.push_str(&format!("**{}.**\n\n", holdouts(head)));
    text.push_str(&format!(
        "Expectations: {passed} passed, {failed} failed, {not_run} not run. *Emulated* figures are virtual time of \
         emulated cards under model {}; *computed* ones are closed forms. Nothing was measured on a card. UD figures \
         carry −0/+22 %.\n",
        head.model
    ));
    if let Some(commit) = &head.commit {
        text.push_str(&format!("\nMade as a whole from commit `{commit}`.\n"));
    }
    if head.reduced {
        text.push_str("\nReduced sweeps: for checks that nothing has drifted, not for reading.\n");
    }
    for outcome in outcomes {
        let spec = &outcome.experiment;
        text.push_str(&format!(
            "\n## {}\n\n{}\n\n{}. `flexcast report --only {}`\n\n",
            spec.title, spec.question, spec.paper, spec.id
        ));
        text.push_str(
            "| Expected | Of | Published | Limits | Came out | Kind | Verdict |\n|---|---|---|---|---|---|---|\n",
        );
        for verdict in &outcome.verdicts {
            text.push_str(&format!(
                "| {} | {} | {} | {} | {} | {} | {} |\n",
                verdict.what,
                format!("{:?}", verdict.class).to_lowercase(),
                verdict.published.as_deref().unwrap_or("–"),
                verdict.limits(),
                verdict.value_text().unwrap_or_else(|| "–".to_owned()),
                verdict.kind.map_or("", Kind::name),
                verdict.verdict.name()
            ));
        }
        for (run, reason) in &outcome.failures {
            text.push_str(&format!("\nA run has failed, and no figure of it is shown: {reason} (`{run}`)\n"));
        }
        for note in &spec.notes {
            text.push_str(&format!("\n{note}\n"));
        }
    }
    text
}
