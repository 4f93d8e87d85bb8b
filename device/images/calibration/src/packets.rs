//! A receive worker in the manner of SDR-RDMA (Khalilov et al.): one write with immediate for each packet, whose bit is
//! set in a bitmap of packets by an atomic operation; when all packets of a bitmap chunk are there, the chunk's bit is
//! set in host memory.
//!
//! The paper's host update is an atomic operation over PCIe. The window has none, so the words of the host's bitmap
//! belong to one worker each: it stores the word and writes it back.

use dpa::abi::calibration::{KernelContext, MessageRow};
use dpa::hw::CqeOpcode;
use dpa::microbench::SharedBits;
use dpa::{CompletionQueue, Next, ReceiveQueue, Table, error, fatal, fence};

use crate::slot::{Begin, Slot};

/// Bits of the immediate that number packets; those above name the message.
const PACKET_BITS: u32 = 22;

/// Polls until `count` packets have come.
pub(crate) fn run(context: &mut KernelContext) -> Next {
    let slot = Slot::take(context);
    let cq = CompletionQueue::attach(&context.receive_cq);
    let queue = ReceiveQueue::attach(&context.receive_queue);
    let packets = SharedBits::attach(&context.packet_bits);
    let messages = Table::<MessageRow>::attach(&context.messages);
    let words = (context.count / 64 + 1) as usize;
    let Ok(chunks) = slot.window.words(context.chunk_bits_host, words) else { fatal(error::NO_RESOURCE) };
    let (count, depth) = (context.count, queue.depth());
    let (mut consumed, mut errors) = (0, 0);
    // The word of the chunk bitmap that is being filled.
    let (mut chunk_word, mut chunk_bits) = (0, 0);
    while !cq.is_ready(0) {}
    let begin = Begin::now();
    while consumed != count {
        if !cq.is_ready(consumed) {
            continue;
        }
        fence::memory_read();
        let entry = cq.entry(consumed);
        let immediate = entry.user_index_and_immediate() as u32;
        let packet = u64::from(immediate & ((1 << PACKET_BITS) - 1));
        if entry.op_own() >> 4 != CqeOpcode::WriteImmediate as u64 {
            errors += 1;
        } else if let Some(message) = messages.get(immediate >> PACKET_BITS) {
            let bit = 1u64 << (packet & 63);
            match packets.set(message.first_word + packet / 64, bit) {
                None => errors += 1,
                Some(before) => {
                    let log_chunk = message.log_chunk.min(6);
                    let chunk = packet >> log_chunk;
                    let in_chunk = u64::MAX >> (64 - (1 << log_chunk)) << (packet & 63 & !((1 << log_chunk) - 1));
                    if (before | bit) & in_chunk == in_chunk && before & bit == 0 {
                        if chunk / 64 != chunk_word {
                            (chunk_word, chunk_bits) = (chunk / 64, 0);
                        }
                        chunk_bits |= 1 << (chunk & 63);
                        chunks.store(chunk_word as usize, chunk_bits);
                        fence::window_writeback();
                    }
                }
            }
        } else {
            errors += 1;
        }
        consumed += 1;
        cq.set_consumer(consumed);
        queue.set_producer(consumed + depth);
    }
    let span = begin.end();
    slot.report(context, &span, errors, consumed);
    Next::Finish
}
