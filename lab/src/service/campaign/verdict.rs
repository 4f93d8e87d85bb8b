//! Verdict on a case: each live rank has ended as it may, or not.

use std::fmt::Write as _;

use flexcast_proto::service::wire::Refused;
use flexcast_proto::service::{FailedParty, StagedRefusal};

use super::case::{Case, Trouble};
use super::job::{Communicator, Job, Outcome};
use super::{Outcomes, Wrong};

/// Whether a call may fail like this.
fn may_fail(case: &Case, at: usize, group: &Communicator, (failed_rank, kind): (FailedParty, &str)) -> bool {
    let rank_of = |program: u32| group.members.iter().position(|member| member.program == program);
    let is_rank = |program: u32| rank_of(program).is_some_and(|rank| failed_rank == FailedParty::Rank(rank as u32));
    match case.trouble {
        Trouble::None | Trouble::StallProcess { .. } | Trouble::StallRank { .. } | Trouble::Exhausted => false,
        // Who is cut off loses its keys with its connection.
        Trouble::Rank { program, .. } | Trouble::Garbage { program, .. } => is_rank(program),
        Trouble::Process { process, .. } => {
            let rank = group.members.iter().position(|member| member.process == process);
            let number = rank.and_then(|rank| group.topology.process_of(rank as u32));
            number.is_some_and(|number| failed_rank == FailedParty::Process(number))
        }
        Trouble::TakeBack { group, rank, .. } => {
            group == at
                && failed_rank == FailedParty::Rank(rank)
                && ["memory that could not be read", "transfer failed"].contains(&kind)
        }
        Trouble::Disagrees { group, rank, .. } => {
            group == at
                && match kind {
                    "other lengths" => failed_rank == FailedParty::Rank(rank),
                    // Of two ranks, it is not known which one is the odd one out.
                    "another collective" | "another call" => matches!(failed_rank, FailedParty::Rank(_)),
                    _ => false,
                }
        }
    }
}

/// Judges all calls.
pub(super) fn judge(case: &Case, job: &Job) -> Result<Outcomes, Wrong> {
    let mut outcomes = Outcomes::default();
    for (at, group) in job.groups.iter().enumerate() {
        for (rank, member) in group.members.iter().enumerate() {
            if job.programs[member.program as usize].is_dead {
                continue;
            }
            if let Some(refused) = member.refused {
                let is_due = case.trouble == Trouble::Exhausted && at + 1 == job.groups.len();
                if !is_due && !matches!(refused, Refused::Staged(StagedRefusal::Exhausted { .. })) {
                    return Err(Wrong::Ended(format!("communicator {at} is refused to rank {rank}: {refused}")));
                }
                *outcomes.errors.entry("communicator refused").or_default() += 1;
                continue;
            }
            let may_be_gone = match case.trouble {
                Trouble::Process { process, .. } => member.process == process,
                Trouble::Garbage { program, .. } => member.program == program,
                _ => false,
            };
            for (call, outcome) in member.outcomes.iter().enumerate() {
                let Some(outcome) = outcome else { continue };
                let is_allowed = match outcome {
                    Outcome::Right => true,
                    Outcome::Gone => may_be_gone,
                    failed => failed.failure().is_some_and(|failure| may_fail(case, at, group, failure)),
                };
                if !is_allowed {
                    return Err(Wrong::Ended(format!(
                        "communicator {at}, rank {rank}, call {call} ({:?}): {outcome:?}",
                        group.plan.calls[call]
                    )));
                }
                match outcome {
                    Outcome::Right => outcomes.right += 1,
                    other => *outcomes.errors.entry(other.failure().map_or("gone", |(_, kind)| kind)).or_default() += 1,
                }
            }
        }
    }
    Ok(outcomes)
}

/// Calls that have not ended, in words.
pub(super) fn open(job: &Job) -> String {
    let mut text = String::new();
    for (at, group) in job.groups.iter().enumerate() {
        for (rank, member) in group.members.iter().enumerate() {
            if job.programs.get(member.program as usize).is_none_or(|program| program.is_dead)
                || member.refused.is_some()
            {
                continue;
            }
            for (call, _) in member.outcomes.iter().enumerate().filter(|(_, outcome)| outcome.is_none()) {
                _ = write!(text, " {at}.{rank}.{call}");
            }
        }
    }
    if text.is_empty() { "all calls have ended".to_owned() } else { format!("open (communicator.rank.call):{text}") }
}
