//! Operations as calls of a service process.

use flexcast_proto::service::{Blocks, ContextId, Datatype, LocalCopies, Region};
use flexcast_service::{Client, Error, MemoryId, StagedCall};

use super::settings::Way;
use crate::engine::Task;
use crate::op::collective::{Collective, Places};
use crate::plan::{Kind, Plan};

/// Counts and displacements are in bytes.
const BYTE: Datatype = Datatype { size_bytes: 1, extent_bytes: 1 };

/// What the service process carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// By alias keys.
    Keys(ContextId),
    /// Through staging memory.
    Staged(StagedCall),
}

/// Whether service processes take an operation; alike on all ranks. `staging`: as far as is known they have staging
/// memory.
pub(super) fn takes(task: &Task, staging: bool) -> bool {
    match task {
        Task::Collective(Collective::Alltoall { .. } | Collective::Alltoallv { .. }) => true,
        Task::Collective(_) => false,
        Task::Blocks(plan) => match plan.kind {
            Kind::Broadcast { bytes, .. } => staging && bytes > 0,
            Kind::Allgather { .. } | Kind::Allgatherv { .. } => true,
        },
    }
}

/// Whether it needs the send buffer, beyond the own block, which is in its place.
pub(super) const fn reads_send(task: &Task) -> bool {
    matches!(task, Task::Collective(_))
}

/// Bytes that come from other ranks.
pub(super) fn foreign_bytes(task: &Task, own: u32, ranks: u32) -> u64 {
    match task {
        Task::Blocks(plan) => plan.foreign_bytes(),
        Task::Collective(Collective::Alltoall { bytes }) => bytes * u64::from(ranks.saturating_sub(1)),
        Task::Collective(Collective::Alltoallv { receive, .. }) => {
            (0..ranks).filter(|rank| *rank != own).map(|rank| receive.bytes_of(rank)).sum()
        }
        Task::Collective(_) => 0,
    }
}

/// Lengths and offsets of blocks, by rank.
struct Lists {
    counts: Vec<u64>,
    displs: Vec<u64>,
}

impl Lists {
    fn of(places: &Places, ranks: u32) -> Self {
        let (displs, counts) = (0..ranks).map(|rank| places.place(rank)).unzip();
        Self { counts, displs }
    }

    /// Of an Allgatherv: where the block of each rank lies at the end.
    fn of_plan(plan: &Plan) -> Self {
        let place = |rank| (plan.block(rank).offset, plan.block(rank).bytes);
        let (displs, counts) = (0..plan.ranks()).map(place).unzip();
        Self { counts, displs }
    }

    fn blocks(&self, memory: Region) -> Blocks<'_> {
        let Self { counts, displs } = self;
        Blocks { address: memory.address, key: memory.key, datatype: BYTE, counts, displs }
    }
}

/// Posts an operation of which the memory can be used: `send` of those that need it.
///
/// Allgathers by keys are in place, since the own block is there. The card copies inside a host: ranks may be programs
/// of their own, and do not have to call anything.
pub(super) fn post(
    client: &mut Client,
    (group, rank, ranks): (u32, u32, u32),
    task: &Task,
    (send, receive): (Region, Region),
    (way, segment): (Way, Option<MemoryId>),
) -> Result<Call, Error> {
    let mut alltoallv = |send: &Lists, from: Region, into: &Lists| {
        client.alltoallv(group, rank, &send.blocks(from), &into.blocks(receive)).map(Call::Keys)
    };
    match task {
        Task::Collective(Collective::Alltoall { bytes }) => {
            let lists = Lists::of(&Places::equal(*bytes, ranks), ranks);
            alltoallv(&lists, send, &lists)
        }
        Task::Collective(Collective::Alltoallv { send: from, receive: into }) => {
            alltoallv(&Lists::of(from, ranks), send, &Lists::of(into, ranks))
        }
        Task::Collective(_) => unreachable!("`takes` has said no"),
        Task::Blocks(plan) => match (&plan.kind, way) {
            (Kind::Broadcast { root, bytes }, Way::Staged(delivery)) => {
                let buffer = Region { bytes: *bytes, ..receive };
                client.broadcast((group, rank), *root, delivery, buffer, segment).map(Call::Staged)
            }
            (Kind::Allgather { bytes }, Way::Staged(delivery)) => {
                let own = plan.block(rank);
                let from = Region { address: receive.address + own.offset, bytes: *bytes, ..receive };
                let into = Region { bytes: plan.receive_bytes(), ..receive };
                client.allgather((group, rank), delivery, from, into, segment).map(Call::Staged)
            }
            _ => {
                let lists = Lists::of_plan(plan);
                let places = lists.blocks(receive);
                client.allgatherv(group, rank, None, &places, LocalCopies::Card).map(Call::Keys)
            }
        },
    }
}
