//! Trouble of a case, done when it is due.

use flexcast_proto::service::wire::{self, AccessKey, Body, KeyExport, KeyForm, KeyName, Packet, Rights};
use flexcast_proto::service::{ContextId, Message, Region};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::super::ServiceError;
use super::case::{Case, Garbage, Trouble};
use super::field::Field;
use super::job::Job;

/// What somebody learns of an end, after a while.
#[derive(Clone, Copy, Debug)]
enum Notice {
    /// A service process: that another one is gone.
    Process { of: usize, dead: usize },
    /// A program: that its service process is gone, or has cut it off.
    Client { program: usize, process: usize },
    /// A service process: that a program is gone.
    Program { process: usize, peer: flexcast_service::PeerId },
}

/// What goes wrong.
#[derive(Debug)]
pub(super) struct Troubles {
    trouble: Option<Trouble>,
    due_ps: u64,
    notices: Vec<(u64, Notice)>,
    /// Program that has said what it must not, its service process, and the number of wrong messages that it had
    /// counted before.
    faulty: Option<(usize, usize, u64)>,
    over_ps: u64,
}

/// Until then a service process has received what a program sends, also where it is lost on the way.
const RECEIVED_PS: u64 = 1_000_000_000;

impl Troubles {
    pub(super) const fn new(case: &Case, due_ps: u64) -> Self {
        Self { trouble: Some(case.trouble), due_ps, notices: Vec::new(), faulty: None, over_ps: due_ps }
    }

    /// Whether nothing more goes wrong.
    pub(super) const fn are_over(&self, now_ps: u64) -> bool {
        self.trouble.is_none() && self.notices.is_empty() && now_ps > self.over_ps
    }

    pub(super) fn go_on(
        &mut self,
        field: &mut Field,
        job: &mut Job,
        random: &mut ChaCha8Rng,
    ) -> Result<bool, ServiceError> {
        let now_ps = field.now_ps();
        let mut any = false;
        if let Some(trouble) = self.trouble.filter(|_| now_ps >= self.due_ps) {
            self.trouble = None;
            any = true;
            self.begin(trouble, now_ps, field, job, random)?;
        }
        let wrong =
            |process: usize, field: &Field| field.agents[process].as_ref().map_or(0, |agent| agent.counts().wrong);
        if let Some((program, process, before)) = self.faulty
            && wrong(process, field) > before
        {
            self.faulty = None;
            self.notices.push((now_ps, Notice::Client { program, process }));
        }
        let (due, later): (Vec<_>, Vec<_>) = self.notices.drain(..).partition(|(at_ps, _)| *at_ps <= now_ps);
        self.notices = later;
        for (_, notice) in due {
            any = true;
            match notice {
                Notice::Process { of, dead } => field.notice(of, dead),
                Notice::Client { program, process } => {
                    if let Some(client) = job.programs[program].clients.get_mut(&process) {
                        client.lose();
                    }
                }
                Notice::Program { process, peer } => {
                    if let Some(agent) = &mut field.agents[process] {
                        agent.lose(peer);
                    }
                }
            }
        }
        Ok(any)
    }

    fn begin(
        &mut self,
        trouble: Trouble,
        now_ps: u64,
        field: &mut Field,
        job: &mut Job,
        random: &mut ChaCha8Rng,
    ) -> Result<(), ServiceError> {
        match trouble {
            Trouble::None | Trouble::Exhausted => {}
            Trouble::Disagrees { .. } => {}
            Trouble::Rank { program, notice_ps } => {
                let program = &mut job.programs[program as usize];
                program.is_dead = true;
                program.clients.clear();
                for (process, peer) in std::mem::take(&mut program.peers) {
                    self.notices.push((now_ps + notice_ps, Notice::Program { process, peer }));
                }
            }
            Trouble::Process { process, notice_ps } => {
                field.agents[process] = None;
                let mut at_ps = || now_ps + random.random_range(0..=notice_ps);
                for of in (0..field.agents.len()).filter(|of| *of != process) {
                    self.notices.push((at_ps(), Notice::Process { of, dead: process }));
                }
                for (program, state) in job.programs.iter().enumerate() {
                    if state.clients.contains_key(&process) {
                        self.notices.push((at_ps(), Notice::Client { program, process }));
                    }
                }
            }
            Trouble::StallProcess { process, for_ps } => {
                field.stalled.insert(process, now_ps + for_ps);
                self.over_ps = now_ps + for_ps;
            }
            Trouble::StallRank { program, for_ps } => {
                job.programs[program as usize].stalled_ps = now_ps + for_ps;
                self.over_ps = now_ps + for_ps;
            }
            Trouble::TakeBack { group, rank, call, receives } => {
                let member = &job.groups[group].members[rank as usize];
                let buffers = member.buffers[call];
                if let Some(client) = job.programs[member.program as usize].clients.get_mut(&member.process) {
                    client.take_back(if receives { buffers.receive } else { buffers.send })?;
                }
            }
            Trouble::Garbage { program, what } => {
                let group = job.groups.iter().position(|group| group.plan.members.contains(&program));
                let context = ContextId { group: group.map_or(99, |group| job.number(group)), collective: 3 };
                let program = program as usize;
                self.over_ps = now_ps + RECEIVED_PS;
                if let Some((process, client)) = job.programs[program].clients.iter_mut().next() {
                    let before = field.agents[*process].as_ref().map_or(0, |agent| agent.counts().wrong);
                    self.faulty = Some((program, *process, before));
                    for message in garbage(what, context)? {
                        _ = client.say_bytes(message);
                    }
                }
            }
        }
        Ok(())
    }
}

fn garbage(what: Garbage, context: ContextId) -> Result<Vec<Vec<u8>>, ServiceError> {
    let encode = |context: ContextId, body: Body<'_>| -> Result<Vec<u8>, ServiceError> {
        let mut bytes = Vec::new();
        wire::encode(&Packet { context, body }, &mut bytes)?;
        Ok(bytes)
    };
    let nothing = ContextId { group: 0, collective: 0 };
    let group = ContextId { collective: 0, ..context };
    let region = Region { address: 0x1000, key: 0x1234, bytes: 64 };
    Ok(match what {
        Garbage::Version => {
            let mut bytes = encode(group, Body::GroupLeave { rank: 0 })?;
            bytes[4] = bytes[4].wrapping_add(1);
            vec![bytes]
        }
        Garbage::Noise => vec![(0..200u8).collect()],
        Garbage::Announcement => {
            let message = Message::Ready { source: 0, target: 1, region };
            let bytes = encode(context, Body::Process { from: 0, to: 1, message })?;
            vec![bytes.clone(), bytes]
        }
        Garbage::UnknownOperation => vec![encode(context, Body::LocalCopied { rank: 0, source: 0 })?],
        Garbage::Overflow => {
            let mut bytes = encode(nothing, Body::KeyExport(key(region)))?;
            // The length that the header announces.
            (bytes[6], bytes[7]) = (0xFF, 0xFF);
            vec![bytes]
        }
        Garbage::ForeignKey => vec![encode(nothing, Body::KeyExport(KeyExport { virtual_hca: 0x3FF, ..key(region) }))?],
        Garbage::UnknownKey => vec![encode(nothing, revoke(0x7777, 3))?],
        Garbage::UnknownBinding => {
            let bound = KeyExport { form: KeyForm::Bound, ..key(region) };
            [Body::KeyExport(bound), revoke(region.key, 1), Body::KeyExport(bound)]
                .into_iter()
                .map(|body| encode(nothing, body))
                .collect::<Result<_, _>>()?
        }
        Garbage::OthersLeave => {
            (0..16).map(|rank| encode(group, Body::GroupLeave { rank: 100 + rank })).collect::<Result<_, _>>()?
        }
    })
}

const fn revoke(key: u32, generation: u32) -> Body<'static> {
    Body::KeyRevoke { name: KeyName { key, generation }, is_idle: true }
}

const fn key(region: Region) -> KeyExport {
    let rights = Rights { local_write: true, remote_write: true, remote_read: true, remote_atomic: false };
    KeyExport { form: KeyForm::Memory, region, rights, virtual_hca: 0, generation: 1, access_key: AccessKey([7; 32]) }
}
