//! The table of operations: what each of `FLEXCAST_OPERATION_*` takes, how long its buffers are, and which call of the
//! library in Rust it is.

use flexcast_rust as rust;
use flexcast_rust::{Buffer, Shape};

use crate::call::Call;
use crate::collective::*;
use crate::fault::Fault;

/// How a call is made of an operation's arguments and its two buffers.
type Make = for<'c> fn(&'c Call, Option<Buffer>, Option<Buffer>) -> Result<rust::Call<'c>, Fault>;

/// The shape of a call, by the bytes of its receive buffer and the number of ranks.
type ShapeOf = for<'c> fn(&'c Call, u64, u64) -> Result<Shape<'c>, Fault>;

/// An operation.
pub(crate) struct Row {
    /// One of `FLEXCAST_OPERATION_*`.
    pub(crate) operation: u32,
    /// For errors and the log.
    pub(crate) name: &'static str,
    /// Whether elements are reduced: `count` and lists are in elements then.
    pub(crate) reduces: bool,
    pub(crate) has_root: bool,
    /// Who gives the lists of `send` and of `receive`.
    pub(crate) sent: Lists,
    pub(crate) received: Lists,
    /// Lengths of both buffers.
    pub(crate) send: Extent,
    pub(crate) receive: Extent,
    /// What in place means.
    pub(crate) in_place: InPlace,
    /// As the communicator is asked for it; none: as any other.
    pub(crate) shape: Option<ShapeOf>,
    pub(crate) make: Make,
}

/// Lists of blocks that an operation takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lists {
    None,
    All,
    Root,
    /// Lengths alone: the blocks lie one after another.
    Counts,
}

/// Length of a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    None,
    /// `count`.
    One,
    /// `count` for each rank.
    All,
    /// The same on the root, 0 elsewhere.
    RootOne,
    RootAll,
    /// As far as the lists reach.
    Listed,
    /// The own block of the lists of `receive`.
    Own,
    /// As far as the lists of `receive` reach, for what is sent.
    Received,
}

/// What an operation does in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum InPlace {
    /// It has one buffer anyway.
    Never,
    /// `receive` has what is sent; its length stays.
    Receive,
    /// The same, and it is as long as `send` would be.
    AsSent,
    /// `send` keeps the own block.
    Send,
}

/// A row with what most operations have.
const fn row(operation: u32, name: &'static str, lengths: (Extent, Extent), make: Make) -> Row {
    let (send, receive) = lengths;
    let (sent, received) = (Lists::None, Lists::None);
    let in_place = InPlace::Receive;
    Row { operation, name, reduces: false, has_root: false, sent, received, send, receive, in_place, shape: None, make }
}

/// All operations, in the order of their numbers, which begin with 1.
pub(crate) static OPERATIONS: [Row; FLEXCAST_OPERATION_SPARSE_ALLREDUCE as usize] = [
    Row {
        in_place: InPlace::Never,
        ..row(FLEXCAST_OPERATION_BARRIER, "barrier", (Extent::None, Extent::None), |_, _, _| Ok(rust::Barrier.into()))
    },
    Row {
        has_root: true,
        in_place: InPlace::Never,
        shape: Some(|_, bytes, _| Ok(Shape::Broadcast { bytes })),
        ..row(FLEXCAST_OPERATION_BROADCAST, "broadcast", (Extent::None, Extent::One), |call, _, receive| {
            Ok(rust::Broadcast::from(call.root).buffer(Call::found(receive)?))
        })
    },
    Row {
        shape: Some(|_, bytes, ranks| Ok(Shape::Allgather { bytes: bytes / ranks })),
        ..row(FLEXCAST_OPERATION_ALLGATHER, "allgather", (Extent::One, Extent::All), |_, send, receive| {
            Ok(rust::Allgather::new().with(send, Call::found(receive)?))
        })
    },
    Row {
        received: Lists::All,
        shape: Some(|call, _, _| Ok(Shape::Allgatherv { counts: &call.received.counts })),
        ..row(FLEXCAST_OPERATION_ALLGATHERV, "allgatherv", (Extent::Own, Extent::Listed), |call, send, receive| {
            let gather = rust::Allgather::counts(&call.received.counts);
            let displaced = call.received.displaced.then_some(&call.received.displacements);
            let gather = displaced.map_or(gather, |displacements| gather.displs(displacements));
            Ok(gather.with(send, Call::found(receive)?))
        })
    },
    Row {
        reduces: true,
        ..row(FLEXCAST_OPERATION_ALLREDUCE, "allreduce", (Extent::One, Extent::One), |call, send, receive| {
            Ok(rust::Allreduce::new(call.reduction()?).with(send, Call::found(receive)?))
        })
    },
    Row {
        reduces: true,
        has_root: true,
        ..row(FLEXCAST_OPERATION_REDUCE, "reduce", (Extent::One, Extent::RootOne), |call, send, receive| {
            Ok(rust::Reduce::to(call.root, call.reduction()?).with(send, Call::found(receive)?))
        })
    },
    Row {
        reduces: true,
        in_place: InPlace::AsSent,
        ..row(
            FLEXCAST_OPERATION_REDUCE_SCATTER_BLOCK,
            "reduce_scatter_block",
            (Extent::All, Extent::One),
            |call, send, receive| Ok(rust::ReduceScatter::new(call.reduction()?).with(send, Call::found(receive)?)),
        )
    },
    Row {
        reduces: true,
        received: Lists::Counts,
        in_place: InPlace::AsSent,
        ..row(
            FLEXCAST_OPERATION_REDUCE_SCATTER,
            "reduce_scatter",
            (Extent::Received, Extent::Own),
            |call, send, receive| {
                let scatter = rust::ReduceScatter::new(call.reduction()?).counts(&call.received.counts);
                Ok(scatter.with(send, Call::found(receive)?))
            },
        )
    },
    row(FLEXCAST_OPERATION_ALLTOALL, "alltoall", (Extent::All, Extent::All), |_, send, receive| {
        Ok(rust::Alltoall::new().with(send, Call::found(receive)?))
    }),
    Row {
        sent: Lists::All,
        received: Lists::All,
        ..row(FLEXCAST_OPERATION_ALLTOALLV, "alltoallv", (Extent::Listed, Extent::Listed), |call, send, receive| {
            let blocks = rust::Alltoall::blocks(call.sent.blocks(), call.received.blocks());
            Ok(blocks.with(send, Call::found(receive)?))
        })
    },
    Row {
        has_root: true,
        ..row(FLEXCAST_OPERATION_GATHER, "gather", (Extent::One, Extent::RootAll), |call, send, receive| {
            Ok(rust::Gather::to(call.root).with(send, Call::found(receive)?))
        })
    },
    Row {
        has_root: true,
        received: Lists::Root,
        ..row(FLEXCAST_OPERATION_GATHERV, "gatherv", (Extent::One, Extent::Listed), |call, send, receive| {
            let gather = rust::Gather::to(call.root).blocks(call.received.blocks());
            Ok(gather.with(send, Call::found(receive)?))
        })
    },
    Row {
        has_root: true,
        in_place: InPlace::Send,
        ..row(FLEXCAST_OPERATION_SCATTER, "scatter", (Extent::RootAll, Extent::One), |call, send, receive| {
            scattered(rust::Scatter::from(call.root), send, receive)
        })
    },
    Row {
        has_root: true,
        sent: Lists::Root,
        in_place: InPlace::Send,
        ..row(FLEXCAST_OPERATION_SCATTERV, "scatterv", (Extent::Listed, Extent::One), |call, send, receive| {
            scattered(rust::Scatter::from(call.root).blocks(call.sent.blocks()), send, receive)
        })
    },
    Row {
        reduces: true,
        shape: Some(|call, bytes, _| {
            Ok(Shape::SparseAllreduce { bytes, reduction: call.reduction()?, options: call.sparse()? })
        }),
        ..row(
            FLEXCAST_OPERATION_SPARSE_ALLREDUCE,
            "sparse_allreduce",
            (Extent::One, Extent::One),
            |call, send, receive| {
                let reduce = rust::Allreduce::new(call.reduction()?).sparse(call.sparse()?);
                Ok(reduce.with(send, Call::found(receive)?))
            },
        )
    },
];

fn scattered<'c>(
    scatter: rust::Scatter<'c>,
    send: Option<Buffer>,
    receive: Option<Buffer>,
) -> Result<rust::Call<'c>, Fault> {
    let send = Call::found(send)?;
    Ok(match receive {
        Some(receive) => scatter.buffers(send, receive),
        None => scatter.in_place(send),
    })
}

/// The row of an operation.
pub(crate) fn find(operation: u32) -> Option<&'static Row> {
    OPERATIONS.get((operation as usize).checked_sub(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_found_by_their_numbers() {
        for row in &OPERATIONS {
            assert_eq!(find(row.operation).map(|found| found.name), Some(row.name));
        }
        for none in [0, FLEXCAST_OPERATION_SPARSE_ALLREDUCE + 1, u32::MAX] {
            assert!(find(none).is_none(), "{none}");
        }
    }
}
