//! Configuration of a machine. Every number has a unit, a default and a source.

pub(crate) mod wiring;

use std::ops::RangeInclusive;

use emu_hart::Isa;
use emu_timing::Parameters;
use serde::{Deserialize, Serialize};

use crate::dpa::layout::USER_EUS;
use crate::dpa::thread::ThreadKind;
use crate::time::PS_PER_S;
use wiring::Wiring;

/// The whole emulated installation: cards, and what joins them.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Number of cards: 1 or 2 with a cable, 1 to [`MAX_CARDS`](crate::MAX_CARDS) in a network. Default 2.
    pub cards: usize,
    /// Number of the first card, from which the cards' addresses follow (see [`address`](crate::address)): machines
    /// that are to be joined must not number alike. Default 0. Calls of [`World`](crate::World) count cards from 0
    /// whatever this is.
    pub first_card: usize,
    /// What joins the cards. Default a cable.
    pub wiring: Wiring,
    /// Where the processes run that drive the cards' DPAs. Default [`DrivenFrom::Host`].
    pub driven_from: DrivenFrom,
    /// What the DPA's processors execute; all else is an illegal instruction. Default [`Isa::BLUEFIELD_3`].
    pub isa: Isa,
    /// Costs of instructions and memory accesses on the DPA, without a timing model.
    pub cost: CostModel,
    /// The timing model of the card's cores, caches, paths and engines, which takes the place of `cost`. Default none:
    /// emulation is faster without. Not together with weak memory, a search for races, or a debugger.
    pub timing: Option<Parameters>,
    /// With a timing model: the most instructions that a thread executes before the cycle of their issue, 0 to 32 (more
    /// is 32). What the card reads and writes does not depend on it. Threads of different cores see each other's stores
    /// to the cycle with 0 only, by a burst's time later otherwise; emulation is slower with 0. Default 32.
    pub most_ahead: u32,
    /// Execution units that event handlers and workers of command queues may have, as a partition of a card gives them:
    /// a part of [`USER_EUS`](crate::USER_EUS), which is the default.
    pub units: RangeInclusive<u32>,
    /// Bytes of DPA heap each process may use. Default 256 MiB (the vendor's stress sample allocates as much).
    pub heap_bytes: u64,
    /// Virtual time between two polls of a host program (see [`World::relax`](crate::World::relax)). Default
    /// 50 000 ps: what reading one line that the card wrote to memory costs a host.
    pub host_poll_ps: u64,
    /// The same while nothing happens, when looking more often would show nothing. Default 1 000 000 ps.
    pub host_idle_ps: u64,
    /// Longest run of one event-handler activation in virtual time. Default 120 s, as seen on hardware.
    pub handler_watchdog_ps: u64,
    /// Longest run of one RPC in virtual time. Default 6 s, as documented.
    pub rpc_watchdog_ps: u64,
    /// Virtual time after which a program on the card is reported to be stuck ([`Diagnosis`](crate::Diagnosis)): an
    /// activation that has not ended, a message without a receive, a completion queue that nobody arms. Default 1 s.
    pub stuck_ps: u64,
    /// When stores are seen by others. Default [`MemoryModel::Strong`].
    pub memory: MemoryModel,
    /// Whether to detect races for memory between firmware, card and host; see [`Race`](crate::Race). Changes no time
    /// and no result. Default off: emulation takes up to three times as long.
    pub detect_races: bool,
    /// Whether UC queue pairs take part in multicast, which no card offers: hypothetical, for receive paths without a
    /// copy. See [`GroupKey`](emu_nic::GroupKey). Default off.
    pub uc_multicast: bool,
    /// Whether each card has a second function, that of its Arm cores, next to the host's: a device of its own, with
    /// own port addresses ([`arm_address`](crate::arm_address)), protection domains and memory. Not with
    /// [`DrivenFrom::Arm`]. Default off.
    pub arm_functions: bool,
    /// Virtual time that a control operation of verbs or DevX takes: making, changing or destroying a key, a queue, a
    /// domain, and every device command. The machine runs on meanwhile, and the operation takes effect at the end.
    /// Nobody has published what a card's firmware takes for one; default 0 ps. Not with an outer end, where time is
    /// the other machines' as well.
    pub command_ps: u64,
}

impl Config {
    /// Name of the model that times depend on, to stand with every one of them.
    #[must_use]
    pub fn model_name(&self) -> &str {
        self.timing.as_ref().map_or(CostModel::NAME, |timing| &timing.name)
    }

    /// Longest run of a thread of this kind in virtual time, and what such a run is called.
    pub(crate) fn watchdog(&self, kind: ThreadKind) -> (u64, &'static str) {
        match kind {
            ThreadKind::EventHandler => (self.handler_watchdog_ps, "event handler"),
            ThreadKind::Rpc => (self.rpc_watchdog_ps, "call"),
            ThreadKind::Worker => (self.rpc_watchdog_ps, "task of a command queue"),
        }
    }
}

/// Where the process that drives a card's DPA runs, and so what its windows reach: the memory of that process.
///
/// Only that part of the difference is emulated of which figures are published, the windows: loads take
/// [`CostModel::arm_window_load_cycles`], or with a timing model `loads.arm_window_cycles`, and lines take the paths
/// `lines_per_s.arm_window_read` and `arm_window_write`. The network card's own accesses to Arm memory do not cross
/// PCIe on a card, but nobody has published what they take: here they take what those to the host do, as window
/// writebacks do, and that is rather too long. What the driving process takes itself is as little part of the emulation
/// there as here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrivenFrom {
    /// On the server that the card is plugged into: windows reach host memory, across PCIe.
    #[default]
    Host,
    /// On the card's own Arm cores (DPU mode): windows reach their memory, and the DPA's.
    Arm,
}

impl DrivenFrom {
    /// Both, in the order of their declaration.
    pub const ALL: [Self; 2] = [Self::Host, Self::Arm];

    /// The name in files and options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Arm => "arm",
        }
    }
}

/// When what one agent has stored is seen by the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryModel {
    /// At once, and in order. The default: firmware is developed and measured with it, and virtual times depend on the
    /// cost model alone.
    #[default]
    Strong,
    /// As late and as much out of order as the RISC-V memory model and the non-coherent windows of the DPA allow, by
    /// seeded choices: firmware that lacks a fence fails for some seed. Instructions cost the same cycles; what another
    /// agent sees when is different, so virtual times of whole runs are, too. Emulation takes up to six times as long.
    Weak {
        /// Seed of the choices; each thread draws from a stream of its own.
        seed: u64,
        /// Longest time that a store stays invisible, in cycles. See [`MemoryModel::weak`].
        longest_delay_cycles: u64,
    },
}

impl MemoryModel {
    /// Weak memory with delays of up to 40 000 cycles (22 us): longer than the card needs to act on a doorbell, fetch
    /// what it announces and deliver, so that every window that a missing fence opens is wide enough to fall into.
    #[must_use]
    pub const fn weak(seed: u64) -> Self {
        MemoryModel::Weak { seed, longest_delay_cycles: 40_000 }
    }
}

/// The simple cost model: label [`CostModel::NAME`]. Defaults are those of the published-figures table for
/// BlueField-3's DPA; nothing here has been fitted to a measurement, so times are *uncalibrated*.
///
/// An instruction costs `gap_cycles`, or the number of threads running on its core if that is more (a core issues one
/// instruction per cycle). Loads and stores cost more as below. Each thread has a 1 KiB direct-mapped L1 of 64-byte
/// lines; what it misses is charged as an L2 hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// Cycles between two instructions of one thread (`k` of the timing model; published bound 1..=7).
    pub gap_cycles: u64,
    /// Further cycles of a load that hits L1 (23 - 2k).
    pub l1_load_cycles: u64,
    /// Further cycles of a load that misses L1.
    pub l2_load_cycles: u64,
    /// Further cycles of a store to a line in L1.
    pub store_hit_cycles: u64,
    /// Further cycles of a store to a line not in L1.
    pub store_new_line_cycles: u64,
    /// Further cycles of a fence.
    pub fence_cycles: u64,
    /// Further cycles of a load through a window (host memory behind PCIe, last-level cache).
    pub window_load_cycles: u64,
    /// The same of a card that is driven from its Arm cores (Arm memory, last-level cache).
    pub arm_window_load_cycles: u64,
    /// Further cycles of a store through a window (posted; one thread's published rate is the same to either memory).
    pub window_store_cycles: u64,
    /// Further cycles of a store to the outbox.
    pub outbox_store_cycles: u64,
    /// From an event on an armed completion queue to the first instruction of its thread.
    pub activate_ps: u64,
}

impl CostModel {
    /// The name printed with every figure that depends on this model.
    pub const NAME: &'static str = "uncalibrated-1";
}

impl Default for CostModel {
    fn default() -> Self {
        CostModel {
            gap_cycles: 4,
            l1_load_cycles: 15,
            l2_load_cycles: 64,
            store_hit_cycles: 19,
            store_new_line_cycles: 130,
            fence_cycles: 64,
            window_load_cycles: 1293,
            arm_window_load_cycles: 404,
            window_store_cycles: 19,
            outbox_store_cycles: 64,
            activate_ps: 0,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            cards: 2,
            first_card: 0,
            wiring: Wiring::default(),
            driven_from: DrivenFrom::Host,
            isa: Isa::BLUEFIELD_3,
            cost: CostModel::default(),
            timing: None,
            most_ahead: emu_timing::core::MOST_AHEAD,
            units: USER_EUS,
            heap_bytes: 256 << 20,
            host_poll_ps: 50_000,
            host_idle_ps: 1_000_000,
            handler_watchdog_ps: 120 * PS_PER_S,
            rpc_watchdog_ps: 6 * PS_PER_S,
            stuck_ps: PS_PER_S,
            memory: MemoryModel::Strong,
            detect_races: false,
            uc_multicast: false,
            arm_functions: false,
            command_ps: 0,
        }
    }
}
