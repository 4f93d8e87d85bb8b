//! Placement of a receive context's chunks: runs, one per contributing rank.

use crate::layout::abi_struct;

abi_struct! {
    /// The runs of an operation, written by the host as one 64-byte line before the operation's.
    ///
    /// A receive context carries one *run* of chunks of each root, in the order of the roots: run r holds the PSNs of
    /// root r's chunks in this receive context.
    ///
    /// *Equal contributions* (`run_chunks` > 0, `rows` unused): every run has `run_chunks` chunks, root = PSN /
    /// `run_chunks`, and the chunk goes to `destination` + PSN x `chunk_bytes` + root x `run_gap`, modulo 2^64. So for
    /// contributions of N bytes, one after another in a buffer, of which the receive context carries the chunks from
    /// byte offset D on: `destination` = buffer + D, `run_gap` = N - `run_chunks` x `chunk_bytes`, which may be
    /// negative: it wraps.
    ///
    /// *Unequal contributions* (`run_chunks` = 0): run r is row r of the table [`crate::ReceiveContext::rows`], whose
    /// rows are then `roots`, with ascending PSNs from 0 to `chunks` - 1 without a gap.
    #[size = 64, align = 64]
    pub struct Placement {
        /// Chunks of each run; 0: as the rows say.
        pub run_chunks: u32,
        /// Number of runs: `chunks` / `run_chunks`, or rows of the table; at most the tail bitmap, and at most the rows
        /// there is memory for. 0 only if there are no chunks.
        pub roots: u32,
        /// Bytes between the end of a run, as if its last chunk were full, and the start of the next, modulo 2^64 (UD
        /// and the progress thread).
        pub run_gap: u64,
        /// First PSN of the own rank. Own PSNs are not expected; a chunk that comes for one counts as a duplicate and
        /// touches nothing.
        pub own_first: u32,
        /// Number of own PSNs; 0: none. `own_first` + `own_chunks` is at most `chunks`.
        pub own_chunks: u32,
        /// Position of run 0's root among the roots (progress thread alone, as the next two).
        pub first_root: u32,
        /// With equal contributions: chunks of each piece of a block, at least 1.
        pub piece_chunks: u32,
        /// Likewise: number of the first chunk of a run within its root's block.
        pub first_chunk: u64,
        /// Zero.
        pub reserved: [u64; 3],
    }
}

abi_struct! {
    /// One root's run in a receive context with unequal contributions.
    #[size = 32, align = 32]
    pub struct RunRow {
        /// Where its first chunk goes: virtual address under the operation's `rkey`. The others follow without a gap.
        /// (UD and the progress thread.)
        pub destination: u64,
        /// PSN of its first chunk: the sum of `chunks` of the rows before.
        pub first_psn: u32,
        /// Number of its chunks; may be 0.
        pub chunks: u32,
        /// Bytes of its last chunk, 1 to `chunk_bytes`; unused if it has none.
        pub last_chunk_bytes: u32,
        /// Chunks of each piece of the root's block, at least 1 (progress thread alone, as the next).
        pub piece_chunks: u32,
        /// Number of its first chunk within that block.
        pub first_chunk: u64,
    }
}
