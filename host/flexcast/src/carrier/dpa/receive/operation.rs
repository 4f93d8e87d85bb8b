//! Commands to the receive contexts: a new operation, and the end of one.

use std::mem::size_of;

use flexcast_abi::{OPERATION_CLOSED, OPERATION_REPORTS, Operation, Placement, RunRow};
use flexio::{DevAddr, GroupKey, MemoryRegion};
use zerocopy::IntoBytes as _;

use super::LINES_BYTES;
use super::layout::ROW_BYTES;
use super::{Context, Receive};
use crate::carrier::dpa::mailbox::{DeviceRange, Line};
use crate::error::Result;
use crate::op::buffer::Buffer;
use crate::plan::Plan;

impl Receive {
    /// Number of the last operation.
    pub(crate) const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether the threads can be notified of something new.
    pub(crate) fn is_free(&mut self) -> Result<bool> {
        for thread in &mut self.threads {
            if !thread.mailbox.is_free()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a new operation can begin.
    pub(crate) fn is_ready(&mut self) -> Result<bool> {
        let reachable = match &mut self.targets {
            Some(targets) => targets.is_free()?,
            None => true,
        };
        Ok(reachable && self.is_free()?)
    }

    /// Whether it is known where all ranks want the bytes of an operation.
    pub(crate) fn are_targets_known(&self, operation: u32) -> Result<bool> {
        self.targets.as_ref().map_or(Ok(true), |targets| targets.are_known(operation))
    }

    /// Gives the receive contexts an operation that receives into `buffer`; `operation` is its number, alike on all
    /// ranks and never used again. Only when [`Receive::is_ready`].
    ///
    /// `reporting`: they report their bitmaps by themselves, not only when asked.
    ///
    /// Peers reach the buffer by a key of this operation alone, from now until [`Receive::disarm`].
    pub(crate) fn arm(
        &mut self,
        plan: &Plan,
        own: u32,
        buffer: &mut Buffer,
        (operation, collective_id): (u32, u32),
        (chunk_bytes, reporting): (u32, bool),
    ) -> Result<()> {
        self.sequence += 1;
        self.reporting = reporting;
        let region = buffer.region()?;
        for (member, context) in self.queue_pairs.iter().zip(&self.contexts).filter(|_| self.by_group_keys) {
            let space = plan.space(context.stream, &mut self.table)?;
            let (_, own_chunks) = plan.psns(own, context.stream, &space);
            // Without a key where nothing but the own bytes would come: what other ranks of the card make come back
            // would be written over what is being sent.
            if space.chunks() > own_chunks {
                let key = GroupKey::of_key(member, operation, region.rkey(), region.addr().get())?;
                self.keys.push(key);
            }
        }
        if let Some(targets) = &mut self.targets {
            let (address, rkey) = buffer.expose()?;
            targets.publish(operation, address, rkey)?;
        }
        self.write_lines(plan, own, buffer.region()?, (collective_id, chunk_bytes))?;
        let rows = if plan.is_equal() { 0 } else { plan.root_ranks().count() * ROW_BYTES as usize };
        self.notify(|context| {
            let by_rows = context.chunks > 0 && context.stream.peer.is_none();
            (if by_rows { rows } else { 0 }, LINES_BYTES as usize)
        })
    }

    /// Takes the keys back by which peers reach the buffer of the operation: whatever of its packets still comes is
    /// dropped by the card.
    pub(crate) fn disarm(&mut self, buffer: &mut Buffer) {
        self.keys.clear();
        buffer.hide();
    }

    /// Makes the receive contexts' lines, and writes their rows to the memory from which they get them.
    fn write_lines(
        &mut self,
        plan: &Plan,
        own: u32,
        region: &MemoryRegion,
        (collective_id, chunk_bytes): (u32, u32),
    ) -> Result<()> {
        let pieces = plan.pieces();
        // No bitmap has bits for more chunks than that.
        let piece_chunks = |root| u32::try_from(plan.piece_chunks(&pieces, root)).unwrap_or(u32::MAX);
        for index in 0..self.contexts.len() {
            let stream = self.contexts[index].stream;
            let space = plan.space(stream, &mut self.table)?;
            let (own_first, own_chunks) = plan.psns(own, stream, &space);
            let chunks = space.chunks();
            let first = plan.first_root(stream);
            let share = plan.share(first, stream.subgroup);
            let start = region.addr().get();
            // Packets of a single peer bring their addresses with them, rows have theirs.
            let before = if plan.is_equal() && stream.peer.is_none() { plan.block(first).offset } else { 0 };
            let context = &mut self.contexts[index];
            context.chunks = chunks;
            context.operation = Operation {
                sequence: self.sequence,
                destination: start + before + share.offset,
                rkey: region.rkey(),
                collective_id,
                chunks: chunks as u32,
                chunk_bytes,
                last_chunk_bytes: share.last_chunk_bytes.max(1),
                flags: if self.reporting { OPERATION_REPORTS } else { 0 },
                report_request: self.reports,
                reserved: 0,
                sequence_check: self.sequence,
            };
            let mut placement =
                Placement { own_first: own_first as u32, own_chunks: own_chunks as u32, ..Default::default() };
            if chunks > 0 {
                placement.roots = space.roots();
                placement.first_root = plan.first_position(stream);
                if plan.is_equal() || stream.peer.is_some() {
                    placement.run_chunks = share.chunks as u32;
                    let run_bytes = share.chunks * u64::from(chunk_bytes);
                    placement.run_gap = plan.block(first).bytes.wrapping_sub(run_bytes);
                    (placement.piece_chunks, placement.first_chunk) = (piece_chunks(first), share.first_chunk);
                } else {
                    let at = self.shared.rows(index);
                    for (row, root) in (0usize..).zip(plan.root_ranks()) {
                        let (first_psn, chunks) = plan.psns(root, stream, &space);
                        let share = plan.share(root, stream.subgroup);
                        let row_bytes = RunRow {
                            destination: start + plan.block(root).offset + share.offset,
                            first_psn: first_psn as u32,
                            chunks: chunks as u32,
                            last_chunk_bytes: share.last_chunk_bytes,
                            piece_chunks: piece_chunks(root),
                            first_chunk: share.first_chunk,
                        };
                        self.host.write(at + row * ROW_BYTES as usize, row_bytes.as_bytes())?;
                    }
                }
            }
            context.placement = placement;
        }
        Ok(())
    }

    /// Has the receive contexts report their bitmaps as they are, and go on. Only when [`Receive::is_free`].
    pub(crate) fn read_flags(&mut self) -> Result<()> {
        self.reports += 1;
        for context in &mut self.contexts {
            context.operation.report_request = self.reports;
        }
        self.notify(|_| (0, size_of::<Operation>()))
    }

    /// Closes the operation: receive contexts accept nothing more, finish their copies and report. Only when
    /// [`Receive::is_free`].
    pub(crate) fn close(&mut self) -> Result<()> {
        self.reports += 1;
        for context in &mut self.contexts {
            context.operation.flags = OPERATION_CLOSED;
            context.operation.report_request = self.reports;
        }
        self.notify(|_| (0, size_of::<Operation>()))
    }

    /// Writes so many bytes of their rows and of their lines (of an operation that they have, of the first alone) to
    /// all receive contexts and wakes their threads.
    fn notify(&mut self, lengths: impl Fn(&Context) -> (usize, usize)) -> Result<()> {
        for (number, thread) in self.threads.iter_mut().enumerate() {
            let rkey = thread.memory.id();
            let to = |address: DevAddr| DeviceRange { address: address.get(), rkey };
            for (index, context) in self.contexts.iter().enumerate().filter(|(_, context)| context.thread == number) {
                let (rows, len) = lengths(context);
                if rows > 0 {
                    let from = self.host.slice(self.shared.rows(index) as u64, rows as u32)?;
                    thread.mailbox.write_from(Line { from, to: to(context.rows) });
                }
                let mut line = [0; LINES_BYTES as usize];
                let (operation, placement) = line.split_at_mut(size_of::<Operation>());
                operation.copy_from_slice(context.operation.as_bytes());
                placement.copy_from_slice(context.placement.as_bytes());
                thread.mailbox.write(&line[..len], to(context.lines));
            }
            thread.mailbox.ring()?;
        }
        Ok(())
    }
}
