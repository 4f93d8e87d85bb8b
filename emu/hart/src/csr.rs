//! Instructions on control and status registers.

use crate::bus::{Bus, Fault};
use crate::draft;
use crate::op::{Kind, Op};

/// `cycle`: cycles spent, read-only from user mode.
pub(crate) const CYCLE: u16 = 0xc00;
/// `time`: the wall clock of the machine.
pub(crate) const TIME: u16 = 0xc01;
/// `instret`: instructions retired before this one.
pub(crate) const INSTRET: u16 = 0xc02;

/// Executes `csrrw`, `csrrs`, `csrrc` or the immediate form of one, or an instruction of draft bit manipulation: a
/// branch of its own in the interpreter's loop would cost the others registers. On a fault nothing has changed.
#[inline(never)]
pub(crate) fn execute<B: Bus>(op: Op, x: &mut [u64; 32], bus: &mut B, cycles: u64, instret: u64) -> Result<(), Fault> {
    let bits = op.bits();
    if op.kind == Kind::Draft {
        draft::execute(op, x);
        return Ok(());
    }
    let csr = (bits >> 20) as u16;
    let funct3 = bits >> 12 & 7;
    let operand = if funct3 & 4 == 0 { x[op.rs1 as usize] } else { op.rs1 as u64 };
    // Setting or clearing the bits of `x0`, or of immediate zero, is a read.
    let writes = funct3 & 3 == 1 || op.rs1 as u8 != 0;
    let illegal = Fault::illegal_instruction(bits);

    // The top two address bits of read-only registers are ones.
    if writes && csr >> 10 == 3 {
        return Err(illegal);
    }
    let old = match csr {
        CYCLE => cycles.wrapping_add(bus.counter_offsets().0),
        TIME => bus.csr_time(cycles),
        INSTRET => instret.wrapping_add(bus.counter_offsets().1),
        _ => bus.csr_read(csr, cycles, instret).ok_or(illegal)?,
    };
    if writes {
        let new = match funct3 & 3 {
            1 => operand,
            2 => old | operand,
            _ => old & !operand,
        };
        bus.csr_write(csr, new, cycles, instret).ok_or(illegal)?;
    }
    x[op.rd as usize] = old;
    x[0] = 0;
    Ok(())
}
