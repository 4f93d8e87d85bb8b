//! Multicast of staged segments: who takes part, what is sent, and what has come.

use flexcast_proto::service::wire::MulticastEnd;
use flexcast_proto::service::{Between, Placed, Staged, StagedEvent, StagedProcess, Staging, Topology, Work};
use flexio::ProtectionDomain;

use super::Agent;
use super::staged::StagedGroup;
use crate::error::Result;
use crate::multicast::{Datagrams, Fate};

/// What a group's process has of the multicast.
#[derive(Debug, Default)]
pub(super) struct Member {
    /// None without multicast, before and after the processes have agreed.
    datagrams: Option<Datagrams>,
    /// By service process: its end, once it has announced that.
    ends: Vec<Option<MulticastEnd>>,
    /// Runs on their way: collective and work.
    sending: Vec<(u64, u32, Work)>,
    /// The machine has gone on since chunks that came early were checked.
    pub(super) has_moved: bool,
}

impl Member {
    pub(super) fn memory_bytes(&self) -> u64 {
        self.datagrams.as_ref().map_or(0, Datagrams::memory_bytes)
    }

    pub(super) fn queue_pairs(&self) -> u64 {
        if self.datagrams.is_some() { 2 } else { 0 }
    }

    /// How the others reach it, in the message by which it joins.
    pub(super) fn end(&self, pd: &ProtectionDomain) -> Option<MulticastEnd> {
        let datagrams = self.datagrams.as_ref()?;
        Some(MulticastEnd { queue_pair: datagrams.qpn(), chunk_bytes: Datagrams::chunk_bytes(pd) })
    }

    pub(super) fn receive_end(&mut self, process: u32, end: Option<MulticastEnd>) {
        if let Some(place) = self.ends.get_mut(process as usize) {
            *place = end;
        }
    }
}

/// Queue pairs and memory for the multicast of a group; none where this process is not to, cannot, or has no room.
pub(super) fn open(
    pd: &ProtectionDomain,
    (communicator, number): (u64, u32),
    topology: &Topology,
    own: u32,
    staging: &Staging,
    receives: u32,
) -> Member {
    let ends = vec![None; topology.processes() as usize];
    let none = Member { ends, ..Member::default() };
    if !StagedProcess::can_multicast(topology, staging, Datagrams::chunk_bytes(pd)) {
        return none;
    }
    let host = topology.host_of_process(own).unwrap_or(0);
    let alone = topology.processes_of(host).len() == 1;
    match Datagrams::open(pd, (communicator, number), receives, alone) {
        Ok(datagrams) => Member { datagrams: Some(datagrams), ..none },
        Err(error) => {
            tracing::info!(%error, group = number, "no multicast: segments go by messages");
            none
        }
    }
}

impl Agent {
    /// How staged data of a group goes between its processes.
    #[must_use]
    pub fn between(&self, group: u32) -> Between {
        self.staged.groups.get(&group).map_or(Between::Messages, |group| group.machine.between())
    }

    /// Queue pairs and memory, in bytes, for the multicast of all groups.
    #[must_use]
    pub fn multicast_held(&self) -> (u64, u64) {
        let members = self.staged.groups.values().map(|group| &group.multicast);
        members.fold((0, 0), |(pairs, bytes), member| (pairs + member.queue_pairs(), bytes + member.memory_bytes()))
    }

    /// All processes of a group have described themselves: they multicast if all can, with chunks of one length.
    pub(super) fn agree_on_multicast(&mut self, number: u32) {
        let Some(state) = self.groups.get(&number) else { return };
        let Some(group) = self.staged.groups.get_mut(&number) else { return };
        let own = group.multicast.end(&self.pd);
        let others = (0..).zip(&group.multicast.ends).filter(|(process, _)| *process != state.own);
        let alike =
            |(_, end): (u32, &Option<MulticastEnd>)| end.map(|end| end.chunk_bytes) == own.map(|own| own.chunk_bytes);
        let chunk_bytes = own.filter(|_| others.into_iter().all(alike)).map(|own| own.chunk_bytes);
        group.machine.agree(chunk_bytes);
        if group.machine.between() == Between::Messages {
            group.multicast.datagrams = None;
        }
        self.staged.events.push_back((number, StagedEvent::Time(0)));
    }

    pub(super) fn now_ps(&self) -> u64 {
        self.pd.device().provider().relax().now_ps()
    }

    /// Has the card send what a machine has to multicast.
    pub(super) fn multicast(
        &mut self,
        number: u32,
        (collective, work): (u32, Work),
        from: Staged,
        immediate: u32,
    ) -> Result<()> {
        let token = self.token();
        let Some(group) = self.staged.groups.get_mut(&number) else { return Ok(()) };
        let StagedGroup { memory, multicast, .. } = group;
        let Some(datagrams) = &mut multicast.datagrams else { return Ok(()) };
        self.counts.multicasts += 1;
        self.counts.multicast_bytes += from.bytes;
        multicast.sending.push((token, collective, work));
        datagrams.send(token, (memory.addr().get() + from.offset, memory.lkey()), from.bytes, immediate);
        Ok(())
    }

    /// Takes what has come by multicast, and passes the time to machines that wait for it. Returns whether there was
    /// anything.
    pub(super) fn poll_multicast(&mut self) -> Result<bool> {
        let mut any = false;
        let numbers: Vec<u32> = self
            .staged
            .groups
            .iter()
            .filter(|(_, group)| group.multicast.datagrams.is_some())
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            any |= self.poll_multicast_of(number)?;
            let wake_ps = self.staged.groups.get(&number).and_then(|group| group.machine.wake_ps());
            if let Some(wake_ps) = wake_ps {
                let now_ps = self.now_ps();
                if wake_ps <= now_ps {
                    any = true;
                    self.staged.events.push_back((number, StagedEvent::Time(now_ps)));
                }
            }
        }
        Ok(any)
    }

    fn poll_multicast_of(&mut self, number: u32) -> Result<bool> {
        let (Some(state), Some(group)) = (self.groups.get(&number), self.staged.groups.get_mut(&number)) else {
            return Ok(false);
        };
        let (own, counts) = (state.own, &mut self.counts);
        let StagedGroup { machine, memory, multicast, .. } = group;
        let Member { datagrams, ends, sending, has_moved } = multicast;
        let Some(datagrams) = datagrams else { return Ok(false) };
        let (mut actions, mut over) = (Vec::new(), Vec::new());
        let any = datagrams.poll(std::mem::take(has_moved), &mut over, |chunk, (ring, at)| {
            let source = machine.source_of(chunk.immediate);
            // What this process has sent comes back where others are on the card.
            let end = source.filter(|source| *source != own).and_then(|source| *ends.get(source as usize)?);
            if end.is_none_or(|end| end.queue_pair != chunk.source_qpn) {
                counts.chunks_dropped += u64::from(source != Some(own));
                return Ok(Fate::Over);
            }
            match machine.place(chunk.immediate, chunk.bytes.into()) {
                Placed::At(offset) => {
                    memory.copy_from(offset as usize, ring, at, chunk.bytes as usize)?;
                    counts.chunks += 1;
                    machine.take(chunk.immediate, &mut actions);
                }
                Placed::Early => return Ok(Fate::Early),
                Placed::Stale => counts.chunks_dropped += 1,
            }
            Ok(Fate::Over)
        })?;
        for token in over {
            if let Some(at) = sending.iter().position(|(of, ..)| *of == token) {
                let (_, collective, work) = sending.swap_remove(at);
                self.staged.events.push_back((number, StagedEvent::Done { collective, work, error: None }));
            }
        }
        actions.into_iter().try_for_each(|action| self.act_staged(number, action))?;
        Ok(any)
    }
}
