//! The address space of a DPA process and its call convention to the emulated RTOS.
//!
//! The vendor's own map is not public; these are this emulator's choices, and `device/rt-emu` states them again from
//! its own side. Only the *shape* (thread context in `tp`, outbox page, window base and configuration word) is that of
//! the hardware.

/// Lowest and first-too-high address at which an image may place a segment.
pub const IMAGE_RANGE: std::ops::Range<u64> = 0x1000_0000..0xC000_0000;
/// Base of the thread blocks; thread slot `t` owns the 64 KiB at `THREADS + t * THREAD_BLOCK`.
pub const THREADS: u64 = 0xC000_0000;
/// Bytes of one thread block.
pub const THREAD_BLOCK: u64 = 0x1_0000;
/// Offset of the stack in a thread block; the page below it is a guard.
pub const STACK_OFFSET: u64 = 0x1000;
/// Bytes of stack per thread.
pub const STACK_BYTES: u64 = 0x4000;
/// Offset of the thread context, to which `tp` points.
pub const CONTEXT_OFFSET: u64 = 0x6000;
/// Bytes of the page that holds the thread context.
pub const CONTEXT_BYTES: u64 = 0x1000;
/// Bytes of a thread block that are backed by memory.
pub const THREAD_BACKED: u64 = CONTEXT_OFFSET + CONTEXT_BYTES;
/// Base of the outbox pages, one page of 4 KiB per outbox id.
pub const OUTBOXES: u64 = 0xD000_0000;
/// Base of the window configuration words, one page per thread slot.
pub const WINDOW_CONFIG: u64 = 0xD800_0000;
/// A jump here ends a call: an RPC returns `a0`, an event handler has forgotten to reschedule.
pub const EXIT_GATE: u64 = 0xE000_0000;
/// Base of the heap.
pub const HEAP: u64 = 0x1_0000_0000;
/// Base of the window of entity 0; the host address is added.
pub const WINDOW_0: u64 = 0x8000_0000_0000_0000;
/// Base of the window of entity 1.
pub const WINDOW_1: u64 = 0xC000_0000_0000_0000;
/// Bytes of one page of MMIO.
pub const PAGE: u64 = 0x1000;

/// Hardware threads of a card and per core (BlueField-3: 16 x 16).
pub const EXECUTION_UNITS: usize = 256;
/// Hardware threads that share one core's issue port.
pub const EUS_PER_CORE: usize = 16;
/// Execution units an event handler may ask for.
pub const USER_EUS: std::ops::RangeInclusive<u32> = 0..=254;

/// Offsets in the thread context (layout read from tp on hardware; 0x30 bytes).
pub mod context {
    /// u32, 1.
    pub const VERSION: u64 = 0x00;
    /// u16, outbox selected by `outbox_config`.
    pub const OUTBOX_ID: u64 = 0x04;
    /// u16, window selected by `window_config`.
    pub const WINDOW_ID: u64 = 0x06;
    /// u64, address of the selected outbox page.
    pub const OUTBOX_BASE: u64 = 0x08;
    /// u64, address of window entity 0.
    pub const WINDOW_BASE: u64 = 0x10;
    /// u64, address of the window configuration words of this thread.
    pub const WINDOW_CONFIG_BASE: u64 = 0x18;
    /// u64, free for the library.
    pub const METADATA: u64 = 0x20;
    /// u32, error number.
    pub const ERRNO: u64 = 0x28;
    /// Behind the hardware's context: the thread's name, at most [`NAME_BYTES`] with its NUL.
    pub const NAME: u64 = 0x40;
    /// Room for the name.
    pub const NAME_BYTES: usize = 32;
}

/// Outbox registers (64-bit little-endian stores), as in the vendor's register map version 9.
pub mod outbox {
    /// Completion-queue doorbell: queue number in bits 23:0, consumer index in bits 55:32; updates and arms.
    pub const CQ_DB: u64 = 0x100;
    /// Send-queue doorbell: producer index in bits 15:0, queue-pair number in bits 55:32.
    pub const SXD_DB: u64 = 0x1C0;
    /// Posts an empty completion to a queue, which triggers its thread: queue number in bits 23:0.
    pub const RXT_DB: u64 = 0x280;
    /// Read: 0 when the unit has carried out what it was asked for, which here it always has.
    pub const UCTL: u64 = 0x000;
    /// Registers of what the emulated card does not have: offset, name, what is missing. A store ends the process.
    pub const REFUSED: [(u64, &str, &str); 12] = [
        (0x040, "BUFFER", QUEUE_CONTEXTS),
        (0x140, "EQ_DB_REARM", EVENT_QUEUES),
        (0x180, "EQ_DB_NO_REARM", EVENT_QUEUES),
        (0x200, "EMU_CAP", EMULATED_DEVICES),
        (0x240, "EMU_CAP_TRIGGER", EMULATED_DEVICES),
        (0x2C0, "RXT_DONE0", EMULATED_DEVICES),
        (0x2C8, "RXT_DONE1", EMULATED_DEVICES),
        (0x300, "RXC_RD", QUEUE_CONTEXTS),
        (0x340, "CC_DB", CONGESTION),
        (0x348, "CC_DB_MSB", CONGESTION),
        (0xFC0, "SW_RESERVE", "it is reserved"),
        (UCTL, "UCTL", "it is read-only"),
    ];
    const EVENT_QUEUES: &str = "event queues of device threads are not emulated; bind completion queues to threads";
    const CONGESTION: &str = "programmable congestion control is not emulated";
    const EMULATED_DEVICES: &str = "device emulation is not emulated";
    const QUEUE_CONTEXTS: &str = "reading queue contexts is not emulated";

    /// The name of the register at an offset; `none` where no register is known.
    pub(crate) fn name(offset: u64) -> &'static str {
        match offset {
            CQ_DB => "CQ_DB",
            SXD_DB => "SXD_DB",
            RXT_DB => "RXT_DB",
            _ => REFUSED.iter().find(|(at, ..)| *at == offset).map_or("none", |(_, name, _)| name),
        }
    }

    /// Whether there is a register at an offset that is stored to.
    pub(crate) fn is_register(offset: u64) -> bool {
        offset != UCTL && name(offset) != "none"
    }

    /// Why a store to a register that is not one of those above ends the process.
    #[must_use]
    pub fn refusal(offset: u64) -> String {
        match REFUSED.iter().find(|(at, ..)| *at == offset) {
            Some((_, name, why)) => format!("store to outbox register {name} ({offset:#x}): {why}"),
            None => format!("store to outbox offset {offset:#x}, where no register is known"),
        }
    }
}

/// RTOS calls: number in `a7`, arguments from `a0`, result in `a0`.
pub mod call {
    /// End the handler; it starts from the top at the next trigger.
    pub const RESCHEDULE: u64 = 1;
    /// End the handler for good.
    pub const FINISH: u64 = 2;
    /// End the handler and start it again at once.
    pub const RETRIGGER: u64 = 3;
    /// Stop every thread of the process.
    pub const PROCESS_FINISH: u64 = 4;
    /// Suspend the handler, if it is continuable: it goes on behind the call at the next trigger.
    pub const YIELD: u64 = 5;
    /// Select an outbox.
    pub const OUTBOX_CONFIG: u64 = 6;
    /// Bind a window and a memory key to an entity.
    pub const WINDOW_CONFIG: u64 = 7;
    /// Change an entity's memory key.
    pub const WINDOW_MKEY_CONFIG: u64 = 8;
    /// Send bytes to a message stream.
    pub const MSG: u64 = 9;
    /// End the process with an error code of the application.
    pub const ERROR: u64 = 10;
    /// Trigger another event handler.
    pub const EVENT_HANDLER_ACTIVATE: u64 = 11;
    /// The thread's id.
    pub const THREAD_ID: u64 = 12;
    /// The thread's local-storage address.
    pub const TLS: u64 = 13;
    /// Select an outbox of another virtual function: always refused here.
    pub const OUTBOX_CONFIG_UAR_EXTENSION: u64 = 14;
    /// Bytes that the card's port has received or sent. The process ends for a counter that the card has not.
    pub const NIC_COUNTER: u64 = 15;
    /// Counter of [`NIC_COUNTER`]: bytes received at port 0.
    pub const COUNTER_RX_BYTES: u64 = 0x10;
    /// Counter of [`NIC_COUNTER`]: bytes sent from port 0.
    pub const COUNTER_TX_BYTES: u64 = 0x20;
    /// Counter of [`NIC_COUNTER`]: none has been configured.
    pub const COUNTER_NONE: u64 = u64::MAX;
    /// As [`YIELD`], and the handler triggers itself.
    pub const YIELD_AND_RETRIGGER: u64 = 16;
}
