//! A model: its numbers as the machine uses them.

use crate::parameters::{Parameters, ParametersError};
use crate::unit::service;

/// The numbers of a model. Cycles are of the 1.8 GHz DPA clock. What each is and where it is from: [`Parameters`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Name and version.
    pub name: String,
    /// Instructions a core issues in one cycle.
    pub issues_per_cycle: u32,
    /// Thousandths of a cycle from an ordinary instruction of a thread to its next.
    pub gap_millicycles: u64,
    /// Cycles from a multiplication to the thread's next instruction.
    pub multiply_cycles: u64,
    /// Cycles from a division or remainder to the thread's next instruction.
    pub divide_cycles: u64,
    /// Cycles of loads that hit L1.
    pub l1_cycles: u64,
    /// Cycles of loads that miss L1 and hit L2.
    pub l2_cycles: u64,
    /// Cycles of loads that hit L3.
    pub l3_cycles: u64,
    /// Cycles of loads from the DPA's memory.
    pub dpa_memory_cycles: u64,
    /// Cycles of loads through a window to Arm memory.
    pub arm_window_cycles: u64,
    /// Cycles of loads through a window to host memory.
    pub host_window_cycles: u64,
    /// Cycles that a store to a line in L1 costs its thread.
    pub store_hit_cycles: u64,
    /// The same, a line not in L1.
    pub store_new_line_cycles: u64,
    /// Lines that a thread may have on their way out.
    pub buffer_lines: usize,
    /// Cycles of a fence besides the wait for the store buffer.
    pub fence_cycles: u64,
    /// Cycles of a window writeback besides the wait for the store buffer.
    pub window_writeback_cycles: u64,
    /// Size and ways of L1, code cache, L2 and L3.
    pub l1: (u64, usize),
    /// The code cache of one core.
    pub code: (u64, usize),
    /// The second level.
    pub l2: (u64, usize),
    /// The third level.
    pub l3: (u64, usize),
    /// [Units](crate::unit) per line through each shared path; 0 is without limit.
    pub service: Service,
    /// Cycles that a doorbell costs its thread.
    pub doorbell_cycles: u64,
    /// Picoseconds until the card sees a doorbell.
    pub doorbell_visible_ps: u64,
    /// The network card's engines.
    pub card: Card,
    /// Picoseconds from an event on an armed completion queue to the first instruction of its thread.
    pub activate_ps: u64,
    /// Picoseconds from a call of the host to the first instruction of its function, and again from its return to the
    /// host's knowing.
    pub rpc_ps: u64,
}

/// The network card's engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    /// Packets per second of the receive engine.
    pub receives_per_s: u64,
    /// Picoseconds from the last byte of a packet to its completion entry.
    pub receive_ps: u64,
    /// Packets per second of the send engine.
    pub sends_per_s: u64,
    /// Picoseconds of one access across PCIe.
    pub pcie_ps: u64,
    /// Payload bytes per second across PCIe, each way.
    pub pcie_bytes_per_s: u64,
    /// Payload bytes per second of the memory of the Arm cores, reads and writes together.
    pub arm_bytes_per_s: u64,
}

/// Units of time per line of each shared path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say which path")]
pub struct Service {
    pub l2: u64,
    pub l3: u64,
    pub dpa_memory_read: u64,
    pub dpa_memory_write: u64,
    pub arm_window_read: u64,
    pub arm_window_write: u64,
    pub host_window_read: u64,
    pub host_window_write: u64,
}

/// Most of anything that is counted in cycles: a second.
const MOST_CYCLES: u64 = 1_800_000_000;
/// The same in picoseconds.
const MOST_PS: u64 = 1_000_000_000_000;
/// Most of anything in a second.
const MOST_PER_S: u64 = 1_000_000_000_000;

impl Model {
    /// Takes the numbers out of their file.
    ///
    /// # Errors
    /// One is missing or impossible.
    pub fn new(all: &Parameters) -> Result<Self, ParametersError> {
        let number = |group: &str, name: &str, least: u64, greatest: u64, limit: &'static str| {
            let (group, name) = (group.to_owned(), name.to_owned());
            match all.get(&group, &name).map(|parameter| parameter.value) {
                None => Err(ParametersError::Missing { group, name }),
                Some(value) if value < least || value > greatest => {
                    Err(ParametersError::Value { group, name, value, limit })
                }
                Some(value) => Ok(value),
            }
        };
        let cycles = |group: &str, name: &str| number(group, name, 0, MOST_CYCLES, "0 to 1800000000 cycles");
        let load = |name: &str| number("loads", name, 1, MOST_CYCLES, "1 to 1800000000 cycles");
        let rate = |name: &str| Ok(service(number("lines_per_s", name, 0, u64::MAX, "")?));
        let cache = |name: &str, most_bytes: u64| {
            let limit = "64 bytes to 64 MiB";
            let bytes = number("caches", &format!("{name}_bytes"), crate::cache::LINE_BYTES, most_bytes, limit)?;
            Ok((bytes, number("caches", &format!("{name}_ways"), 1, 64, "1 to 64 ways")? as usize))
        };
        let ps = |group: &str, name: &str| number(group, name, 0, MOST_PS, "0 to 1000000000000 ps");
        let engine = |name: &str| number("card", name, 1, MOST_PER_S, "1 to 1000000000000 per second");
        number("cores", "cores", 16, 16, "16: the card's execution units are numbered by it")?;
        number("cores", "threads_per_core", 16, 16, "16: the card's execution units are numbered by it")?;
        number("cores", "usable_threads", 1, 256, "1 to 256")?;
        let gap = number("instructions", "gap_millicycles", 1000, 7000, "1000 to 7000 thousandths of a cycle")?;
        let chase = number("loads", "l1_chase_cycles", 3, 100, "3 to 100 cycles")?;
        Ok(Model {
            name: all.name.clone(),
            issues_per_cycle: number("cores", "issues_per_cycle", 1, 2, "1 or 2")? as u32,
            gap_millicycles: gap,
            multiply_cycles: number("instructions", "multiply_cycles", 1, 1000, "1 to 1000 cycles")?,
            divide_cycles: number("instructions", "divide_cycles", 1, 1000, "1 to 1000 cycles")?,
            l1_cycles: ((chase * 1000).saturating_sub(2 * gap).max(gap)).div_ceil(1000),
            l2_cycles: load("l2_cycles")?,
            l3_cycles: load("l3_cycles")?,
            dpa_memory_cycles: load("dpa_memory_cycles")?,
            arm_window_cycles: load("arm_window_cycles")?,
            host_window_cycles: load("host_window_cycles")?,
            store_hit_cycles: number("stores", "hit_cycles", 1, MOST_CYCLES, "1 to 1800000000 cycles")?,
            store_new_line_cycles: number("stores", "new_line_cycles", 1, MOST_CYCLES, "1 to 1800000000 cycles")?,
            buffer_lines: number("stores", "buffer_lines", 1, 1024, "1 to 1024 lines")? as usize,
            fence_cycles: cycles("order", "fence_cycles")?,
            window_writeback_cycles: cycles("order", "window_writeback_cycles")?,
            l1: cache("l1", 64 << 20)?,
            code: cache("code", 64 << 20)?,
            l2: cache("l2", 64 << 20)?,
            l3: cache("l3", 64 << 20)?,
            service: Service {
                l2: rate("l2")?,
                l3: rate("l3")?,
                dpa_memory_read: rate("dpa_memory_read")?,
                dpa_memory_write: rate("dpa_memory_write")?,
                arm_window_read: rate("arm_window_read")?,
                arm_window_write: rate("arm_window_write")?,
                host_window_read: rate("host_window_read")?,
                host_window_write: rate("host_window_write")?,
            },
            doorbell_cycles: cycles("doorbells", "store_cycles")?,
            doorbell_visible_ps: ps("doorbells", "visible_ps")?,
            card: Card {
                receives_per_s: engine("receives_per_s")?,
                receive_ps: ps("card", "receive_ps")?,
                sends_per_s: engine("sends_per_s")?,
                pcie_ps: ps("card", "pcie_ps")?,
                pcie_bytes_per_s: engine("pcie_bytes_per_s")?,
                arm_bytes_per_s: engine("arm_bytes_per_s")?,
            },
            activate_ps: ps("events", "activate_ps")?,
            rpc_ps: ps("events", "rpc_ps")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_l1_load_is_what_the_chase_leaves_it() {
        let all = Parameters::m2();
        for (gap, load) in [(1000, 21), (3500, 16), (4000, 15), (7000, 9)] {
            let swept = all.with("instructions", "gap_millicycles", gap).unwrap();
            assert_eq!(Model::new(&swept).unwrap().l1_cycles, load);
        }
    }

    #[test]
    fn line_rates_are_service_times() {
        let model = Model::new(&Parameters::m2()).unwrap();
        assert_eq!(model.service.l2, 0);
        assert_eq!(model.service.dpa_memory_read, 82_352, "11.8 cycles a line");
    }
}
