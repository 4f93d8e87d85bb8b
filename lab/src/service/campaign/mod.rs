//! Campaign: jobs drawn from seeds run on service processes of emulated cards, with loss of frames, skew, and one thing
//! that goes wrong. Each live rank ends each call with every byte or with an error that names the failed rank, within a
//! bound of virtual time; the service processes serve the next job, and nothing of the one before is left.

mod case;
mod field;
mod job;
mod trouble;
mod verdict;

use std::collections::BTreeMap;

use flexcast_proto::service::LocalCopies;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use thiserror::Error;

pub use case::{Case, CaseCall, CaseGroup, CaseOp, Garbage, Otherwise, Trouble};

use super::ServiceError;
use field::Field;
use job::Job;
use trouble::Troubles;

/// Longest virtual time from the first call, or the trouble, to the end of the last one, in picoseconds: four seconds.
/// A card gives up an acknowledgement after half a second, and several collectives may wait for some that are lost.
pub const BOUND_PS: u64 = 4_000_000_000_000;
/// Polls of the processes between two of the programs.
const PROGRAM_POLLS: u32 = 16;

/// What is wrong with a case.
#[derive(Debug, Error)]
pub enum Wrong {
    /// Something has failed that must not.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// Not over in time.
    #[error("{what}: not over after {after_ps} ps of virtual time")]
    Late {
        /// What was waited for.
        what: String,
        /// How long.
        after_ps: u64,
    },
    /// A rank has not ended as it must.
    #[error("{0}")]
    Ended(String),
    /// Something of a job that is over is left.
    #[error("{0}")]
    Leak(String),
}

/// What a case has given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcomes {
    /// Calls of live ranks that ended with every byte.
    pub right: u64,
    /// Typed errors, by kind.
    pub errors: BTreeMap<&'static str, u64>,
    /// Virtual time from the first call to the last end, in picoseconds.
    pub took_ps: u64,
}

impl std::ops::AddAssign<&Self> for Outcomes {
    /// The sums, and the longest time.
    fn add_assign(&mut self, other: &Self) {
        self.right += other.right;
        other.errors.iter().for_each(|(kind, count)| *self.errors.entry(kind).or_default() += count);
        self.took_ps = self.took_ps.max(other.took_ps);
    }
}

/// Runs a case: its job, with what goes wrong, and then another job of all ranks on the same service processes.
///
/// # Errors
/// [`Wrong`].
pub fn run(case: &Case) -> Result<Outcomes, Wrong> {
    let groups = case.groups.len() as u64;
    let most = if case.trouble == Trouble::Exhausted { groups - 1 } else { groups };
    let mut field = Field::new(case, most * case.staging.staging_bytes)?;
    let outcomes = run_job(&mut field, case, (0, 7))?;
    field.replace()?;
    let ranks = case.shape.ranks();
    let call = |op| CaseCall { op, bytes: 509, varies: false };
    let delivery = flexcast_proto::service::Delivery::Flat;
    let gathers = [LocalCopies::Host, LocalCopies::Card].map(|copies| call(CaseOp::Allgatherv { copies }));
    let mut calls = vec![call(CaseOp::Alltoallv), call(CaseOp::Allgather { delivery })];
    calls.extend(gathers);
    let all = CaseGroup { members: (0..ranks).collect(), calls, window: 2 };
    let next = Case { groups: vec![all], trouble: Trouble::None, skew_ps: 0, ..case.clone() };
    run_job(&mut field, &next, (1, 7))?;
    Ok(outcomes)
}

fn run_job(field: &mut Field, case: &Case, first: (u64, u32)) -> Result<Outcomes, Wrong> {
    let mut job = Job::new(field, case, &case.groups, first)?;
    drive(field, &mut job, "the ranks join", |_, job, _| job.has_joined())?;
    let random = &mut ChaCha8Rng::seed_from_u64(case.seed ^ 0x5EED);
    let since_ps = field.now_ps();
    for member in job.groups.iter_mut().flat_map(|group| &mut group.members) {
        member.due_ps = since_ps + random.random_range(0..=case.skew_ps);
    }
    let mut troubles = Troubles::new(case, since_ps + case.when_ps);
    drive(field, &mut job, "the calls end", |field, job, any| {
        let now_ps = field.now_ps();
        *any |= troubles.go_on(field, job, random)?;
        for group in 0..job.groups.len() {
            for rank in 0..job.groups[group].members.len() {
                if job.groups[group].members[rank].refused.is_some() {
                    continue;
                }
                *any |= job.poll((group, rank), now_ps)?;
                let pause_ps = if case.skew_ps > 0 { random.random_range(0..=case.skew_ps) } else { 0 };
                *any |= job.call_next((group, rank), now_ps, pause_ps)?;
            }
        }
        Ok(job.is_over())
    })?;
    let took_ps = field.now_ps() - since_ps;
    // What came too late for the calls comes now.
    drive(field, &mut job, "the trouble is over", |field, job, any| {
        *any |= troubles.go_on(field, job, random)?;
        Ok(troubles.are_over(field.now_ps()))
    })?;
    let mut outcomes = verdict::judge(case, &job)?;
    outcomes.took_ps = took_ps;
    end_job(field, &mut job)?;
    Ok(outcomes)
}

/// Lets all go on until something is over, and no longer than [`BOUND_PS`].
fn drive(
    field: &mut Field,
    job: &mut Job,
    what: &str,
    mut is_over: impl FnMut(&mut Field, &mut Job, &mut bool) -> Result<bool, ServiceError>,
) -> Result<(), Wrong> {
    let since_ps = field.now_ps();
    let mut polls = 0u32;
    loop {
        let any = field.go_on()?;
        polls += 1;
        // Programs poll at once where the processes have nothing to do.
        if any && !polls.is_multiple_of(PROGRAM_POLLS) {
            continue;
        }
        let now_ps = field.now_ps();
        let mut any = job.programs_go_on(now_ps)?;
        if is_over(field, job, &mut any)? {
            return Ok(());
        }
        if now_ps - since_ps > BOUND_PS {
            return Err(Wrong::Late { what: format!("{what}: {}", verdict::open(job)), after_ps: now_ps - since_ps });
        }
    }
}

/// All live ranks leave, take their memory back, and go; nothing may be left.
fn end_job(field: &mut Field, job: &mut Job) -> Result<(), Wrong> {
    let mut leaving = Vec::new();
    for group in 0..job.groups.len() {
        let number = job.number(group);
        for (rank, member) in (0..).zip(&job.groups[group].members) {
            let client = job.programs[member.program as usize].clients.get_mut(&member.process);
            if let Some(client) = client.filter(|_| member.refused.is_none())
                && client.leave(number, rank).is_ok()
            {
                leaving.push((member.program as usize, member.process, number, rank));
            }
        }
    }
    drive(field, job, "the ranks leave", |_, job, _| {
        let has_left = |(program, process, number, rank): &(usize, usize, u32, u32)| {
            job.programs[*program].clients.get(process).is_none_or(|client| client.has_left(*number, *rank))
        };
        Ok(leaving.iter().all(has_left))
    })?;
    let mut taking = Vec::new();
    for (program, process, number, rank) in leaving {
        let Some(client) = job.programs[program].clients.get_mut(&process) else { continue };
        client.forget(number, rank).map_err(ServiceError::from)?;
    }
    for group in &job.groups {
        for member in &group.members {
            let (program, process) = (member.program as usize, member.process);
            let Some(client) = job.programs[program].clients.get_mut(&process) else { continue };
            for memory in member.buffers.iter().flat_map(job::Buffers::memories) {
                client.take_back(memory).map_err(ServiceError::from)?;
                taking.push((program, process, memory));
            }
        }
    }
    drive(field, job, "memory comes back", |_, job, _| {
        taking.retain(|(program, process, memory)| {
            let client = job.programs[*program].clients.get_mut(process);
            client.is_some_and(|client| client.taken_back(*memory).is_none())
        });
        Ok(taking.is_empty())
    })?;
    for client in job.programs.iter_mut().flat_map(|program| program.clients.values_mut()) {
        _ = client.goodbye();
    }
    // Whose connection is cut off has nobody to say goodbye to.
    drive(field, job, "the service processes let all go", |field, _, _| Ok(field.leak().is_none())).map_err(
        |late| match (late, field.leak()) {
            (Wrong::Late { .. }, Some(leak)) => Wrong::Leak(leak),
            (late, _) => late,
        },
    )?;
    job.programs.clear();
    Ok(())
}
