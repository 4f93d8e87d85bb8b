//! The serial port and the power switch of the `virt` machine (QEMU, hw/riscv/virt.c).

/// 16550 serial port.
const SERIAL: *mut u8 = 0x1000_0000 as *mut u8;
/// Line status register: bit 5 says that the transmitter takes a byte.
const LINE_STATUS: usize = 5;
const TRANSMITTER_EMPTY: u8 = 1 << 5;
/// SiFive test finisher.
const FINISHER: *mut u32 = 0x0010_0000 as *mut u32;
const PASS: u32 = 0x5555;
const FAIL: u32 = 0x3333;

pub(crate) fn print(text: &str) {
    for byte in text.bytes() {
        // SAFETY: registers of this machine; no other code uses them.
        while unsafe { SERIAL.add(LINE_STATUS).read_volatile() } & TRANSMITTER_EMPTY == 0 {}
        // SAFETY: as above.
        unsafe { SERIAL.write_volatile(byte) };
    }
}

/// Ends the machine with this exit code.
pub(crate) fn exit(code: u8) -> ! {
    let value = if code == 0 { PASS } else { FAIL | u32::from(code) << 16 };
    // SAFETY: a register of this machine.
    unsafe { FINISHER.write_volatile(value) };
    loop {
        riscv::asm::wfi();
    }
}
