//! Devices of the `virt` machine.

use crate::bus::Width;

/// 16550 serial port: transmitter at 0, line status at 5.
const SERIAL: u64 = 0x1000_0000;
const SERIAL_REGISTERS: u64 = 8;
const LINE_STATUS: u64 = 5;
/// Transmitter empty, holding register empty.
const IDLE: u64 = 0x60;
/// SiFive test finisher.
const FINISHER: u64 = 0x0010_0000;
const PASS: u64 = 0x5555;
const FAIL: u64 = 0x3333;

/// RAM of the machine.
pub(super) const RAM: u64 = 0x8000_0000;
pub(super) const RAM_BYTES: u64 = 128 << 20;

/// Serial port and finisher.
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// Bytes sent and not yet printed.
    pub(super) sent: Vec<u8>,
    /// Exit code, once the program has ended.
    pub(super) ended: Option<u64>,
}

impl Devices {
    /// The value of a register; `None` where there is none.
    pub(super) fn load(&self, addr: u64) -> Option<u64> {
        let register = addr.checked_sub(SERIAL).filter(|register| *register < SERIAL_REGISTERS)?;
        Some(if register == LINE_STATUS { IDLE } else { 0 })
    }

    /// Stores to a register; `None` where there is none.
    pub(super) fn store(&mut self, addr: u64, width: Width, value: u64) -> Option<()> {
        if addr == FINISHER && width.bytes() == 4 {
            match value & 0xFFFF {
                PASS => self.ended = Some(0),
                FAIL => self.ended = Some(value >> 16 & 0xFFFF),
                _ => {}
            }
            return Some(());
        }
        let register = addr.checked_sub(SERIAL).filter(|register| *register < SERIAL_REGISTERS)?;
        if register == 0 {
            self.sent.push(value as u8);
        }
        Some(())
    }

    /// Whether the run must stop: to print a line, or for good.
    pub(super) fn calls(&self) -> bool {
        self.ended.is_some() || self.sent.last() == Some(&b'\n')
    }
}
