//! The A extension: load-reserved, store-conditional and the atomic memory operations.

use crate::alu::sext;
use crate::bus::{Atomic, Bus, Cause, Fault, Width};
use crate::hart::Reservation;
use crate::op::Op;

/// Executes the atomic instruction of `op`. On a fault nothing has changed.
///
/// Out of line: next to the memory access its call costs little, and the interpreter's loop stays small.
#[inline(never)]
pub(crate) fn execute<B: Bus>(
    op: Op,
    x: &mut [u64; 32],
    reservation: &mut Option<Reservation>,
    bus: &mut B,
    cycles: &mut u64,
) -> Result<(), Fault> {
    let bits = op.bits();
    let width = if bits >> 12 & 1 == 0 { Width::B4 } else { Width::B8 };
    let addr = x[op.rs1 as usize];
    let operand = x[op.rs2 as usize];
    let access = Atomic { addr, width, acquire: bits >> 26 & 1 == 1, release: bits >> 25 & 1 == 1 };
    let aligned = addr & (width.bytes() - 1) == 0;

    let result = match bits >> 27 {
        0x02 => {
            if !aligned {
                return Err(Fault::new(Cause::LoadMisaligned, addr));
            }
            let value = bus.atomic(access, cycles, |_| None)?;
            *reservation = Some(Reservation { addr, width });
            extend(value, width)
        }
        0x03 => {
            if !aligned {
                return Err(Fault::new(Cause::StoreMisaligned, addr));
            }
            // A failing store-conditional accesses no memory; either outcome ends the reservation.
            if *reservation == Some(Reservation { addr, width }) {
                bus.atomic(access, cycles, |_| Some(operand)).map_err(as_store_fault)?;
                *reservation = None;
                0
            } else {
                *reservation = None;
                1
            }
        }
        funct5 => {
            if !aligned {
                return Err(Fault::new(Cause::StoreMisaligned, addr));
            }
            let old = bus
                .atomic(access, cycles, |old| Some(combine(funct5, extend(old, width), extend(operand, width))))
                .map_err(as_store_fault)?;
            extend(old, width)
        }
    };
    x[op.rd as usize] = result;
    x[0] = 0;
    Ok(())
}

/// The new memory value; both operands sign-extended, which keeps the order of signed and of unsigned words.
fn combine(funct5: u32, old: u64, operand: u64) -> u64 {
    match funct5 {
        0x00 => old.wrapping_add(operand),
        0x01 => operand,
        0x04 => old ^ operand,
        0x08 => old | operand,
        0x0c => old & operand,
        0x10 => old.cast_signed().min(operand.cast_signed()).cast_unsigned(),
        0x14 => old.cast_signed().max(operand.cast_signed()).cast_unsigned(),
        0x18 => old.min(operand),
        0x1c => old.max(operand),
        _ => unreachable!("the decoder lets no other atomic operation through"),
    }
}

fn extend(value: u64, width: Width) -> u64 {
    if width == Width::B4 { sext(value as u32) } else { value }
}

/// Atomic memory operations report the faults of their load as those of a store.
fn as_store_fault(fault: Fault) -> Fault {
    let cause = match fault.cause {
        Cause::LoadMisaligned => Cause::StoreMisaligned,
        Cause::LoadAccess => Cause::StoreAccess,
        Cause::LoadPage => Cause::StorePage,
        other => other,
    };
    Fault { cause, ..fault }
}
