//! Communicators of a simulation: who is in each, and what it does.

use std::borrow::Cow;

use flexcast::{Allgather, Communicator, Config, Endpoint, Pending};

use super::SimError;
use super::buffers::{Buffers, Contents, Places};
use super::group::at;
use super::params::{HostFault, Operation, SimParams};
use super::side::Layout;
use super::turns::in_turns;
use crate::tput::run::made_up_bytes;

/// A communicator and its operations.
pub(super) struct Party<'s> {
    /// What it does: as the simulation, with ranks, root and bytes of its own.
    pub(super) params: SimParams,
    /// The ranks of the simulation that are in it, by their ranks here.
    pub(super) members: Vec<u32>,
    /// Their communicators, in the same order.
    pub(super) ranks: Vec<Communicator>,
    /// What all of them contribute.
    pub(super) source: Cow<'s, [u8]>,
    /// Where that is to be in the end.
    pub(super) layout: Layout,
    /// Buffers, while no operation has them.
    pub(super) buffers: Vec<Option<Buffers>>,
    /// Dropped behind the communicators and the buffers.
    places: Vec<Places>,
}

impl<'s> Party<'s> {
    /// `number`: 0 for the one that the simulation is about; only to it happens what happens to calls.
    fn new(
        params: &SimParams,
        number: u32,
        members: Vec<u32>,
        (cards, ranks): (&[Endpoint], Vec<Communicator>),
        source: &'s [u8],
    ) -> Result<Self, SimError> {
        let own = members.len() as u32;
        let mut params = SimParams {
            ranks: own,
            root: (params.root + number) % own,
            seed: params.seed.wrapping_add(u64::from(number)),
            ..params.clone()
        };
        if number > 0 {
            params.host_faults.clear();
        }
        // A file is the same for all.
        let source = match number == 0 || params.source_bytes() == source.len() as u64 && params.total_bytes.is_some() {
            true => Cow::Borrowed(source),
            false => Cow::Owned(made_up_bytes(params.source_bytes(), params.seed)?),
        };
        let layout = Layout::new(&params, &source);
        let is_user_memory = params.side.user_memory;
        let places = members.iter().map(|rank| Places::new(&cards[params.card_of(*rank)], is_user_memory)).collect();
        let buffers = members.iter().map(|_| None).collect();
        Ok(Self { params, members, ranks, source, layout, buffers, places })
    }

    /// Makes the buffers of an operation, or takes those of the last: own bytes in their place, nothing right
    /// elsewhere.
    pub(super) fn fill(&mut self) -> Result<(), SimError> {
        let Self { params, layout, source, .. } = self;
        let operation = params.operation;
        for (rank, (slot, places)) in (0u32..).zip(self.buffers.iter_mut().zip(&mut self.places)) {
            let own = layout.own(source, rank as usize);
            let gathers = operation != Operation::Broadcast;
            let in_place = if gathers { params.side.in_place } else { rank == params.root };
            let disagrees = params.host_faults.contains(&HostFault::Disagree { rank });
            let contents = Contents {
                send: (gathers && !in_place).then_some(own),
                receive_bytes: layout.bytes + usize::from(disagrees && !gathers),
                filler: layout.filler,
                placed: in_place.then_some((layout.starts[rank as usize] as usize, own)),
            };
            *slot = Some(places.buffers(slot.take(), &contents).map_err(at(rank))?);
        }
        Ok(())
    }

    /// Posts one operation on a rank.
    pub(super) fn post(&self, rank: u32, buffers: Buffers) -> Result<flexcast::Request, SimError> {
        let Self { params, layout, .. } = self;
        let communicator = &self.ranks[rank as usize];
        let disagrees = params.host_faults.contains(&HostFault::Disagree { rank });
        let Buffers { send, receive } = buffers;
        let Layout { counts, starts, is_displaced, .. } = layout;
        let posted = match (params.operation, send) {
            (Operation::Broadcast, _) => communicator.broadcast(receive, params.root),
            (_, send) if disagrees => communicator.broadcast(send.unwrap_or(receive), 0),
            (Operation::Allgatherv, Some(send)) if *is_displaced => {
                communicator.post(Allgather::counts(counts).displs(starts).buffers(send, receive))
            }
            (Operation::Allgatherv, None) if *is_displaced => {
                communicator.post(Allgather::counts(counts).displs(starts).in_place(receive))
            }
            (Operation::Allgatherv, Some(send)) => communicator.post(Allgather::counts(counts).buffers(send, receive)),
            (Operation::Allgatherv, None) => communicator.post(Allgather::counts(counts).in_place(receive)),
            (_, Some(send)) => communicator.allgather(send, receive),
            (_, None) => communicator.post(Allgather::new().in_place(receive)),
        };
        posted.map_err(|refused| at(rank)(refused.error))
    }
}

/// Makes the communicators: the first, further ones of all ranks, and the parts of the first.
pub(super) fn parties<'s>(
    cards: &[Endpoint],
    params: &SimParams,
    source: &'s [u8],
) -> Result<Vec<Party<'s>>, SimError> {
    let mut parties = Vec::new();
    let all = || (0..params.ranks).collect::<Vec<_>>();
    for number in 0..params.side.communicators {
        let ranks = communicators(cards, params, &params.config)?;
        parties.push(Party::new(params, number, all(), (cards, ranks), source)?);
    }
    let Some(colours) = params.side.split else { return Ok(parties) };
    let whole = &parties[0].ranks;
    let split = in_turns(whole.len(), |rank, exchange| {
        whole[rank].split(exchange, Some(rank as u32 % colours), -(rank as i64))
    });
    let mut parts: Vec<Vec<(u32, u32, Communicator)>> = (0..colours).map(|_| Vec::new()).collect();
    for (rank, split) in (0..).zip(split) {
        if let Some(part) = split.map_err(at(rank))? {
            parts[(rank % colours) as usize].push((part.rank(), rank, part));
        }
    }
    for (number, mut part) in (params.side.communicators..).zip(parts) {
        part.sort_unstable_by_key(|(rank, ..)| *rank);
        let (members, ranks) = part.into_iter().map(|(_, member, part)| (member, part)).unzip();
        parties.push(Party::new(params, number, members, (cards, ranks), source)?);
    }
    Ok(parties)
}

/// Makes a communicator of all ranks, rank 0's card first.
fn communicators(cards: &[Endpoint], params: &SimParams, config: &Config) -> Result<Vec<Communicator>, SimError> {
    let ranks = params.ranks;
    let pending = (0..ranks)
        .map(|rank| Pending::new(&cards[params.card_of(rank)], rank, ranks, config.clone()).map_err(at(rank)))
        .collect::<Result<Vec<_>, _>>()?;
    let infos: Vec<Vec<u8>> = pending.iter().map(Pending::connect_info).collect();
    (0..).zip(pending).map(|(rank, pending)| pending.connect(&infos).map_err(at(rank))).collect()
}
