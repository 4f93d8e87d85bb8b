//! The interpreter's loop.
//!
//! Design, in the order of what it brought: the loop follows a pointer through decoded slots, one per two bytes of
//! code, and the distance to the next slot is a constant of the operation's kind, so that the processor can run ahead
//! of the operands; registers are numbered by an enum, so that the register file is accessed without bounds checks; the
//! limits on instructions and on cycles are folded into one comparison per instruction.

use crate::alu::{self, sext};
use crate::bus::{Before, Bus, Cause, Fault, Width};
use crate::hart::{Class, Hart, Limits, RunAhead, Step, Stop};
use crate::op::{Kind, Op};
use crate::text::Text;
use crate::{atomic, csr};

/// Why the loop over one range was left. The position is in the instruction pointer, except where an address is given.
enum Exit {
    /// A limit is reached.
    Limit,
    /// To be decoded first.
    Decode,
    /// Execution goes on outside the range.
    Far(u64),
    /// The instruction just retired stored into the text.
    Stored {
        addr: u64,
        width: Width,
    },
    /// `fence.i`, retired.
    FenceI,
    Stop(Stop),
}

/// A cycle that is not reached, low enough that a latency can be added to it.
const NEVER: u64 = u64::MAX >> 1;

pub(crate) fn run<B: Bus>(hart: &mut Hart, text: &mut Text, bus: &mut B, limits: &Limits) -> Stop {
    hart.x[0] = 0;
    let gap = limits.gap_cycles.max(1);
    let first = hart.instret;
    loop {
        let done = hart.instret.wrapping_sub(first);
        if done >= limits.instructions {
            return Stop::Instructions;
        }
        if hart.cycles >= limits.cycles {
            return Stop::Cycles;
        }
        // The instructions left end at this cycle if no access takes time; each access moves it by what it takes.
        let last_cycle = limits.cycles.min(NEVER);
        let all_retired_at = hart.cycles.saturating_add((limits.instructions - done).saturating_mul(gap));
        let stop_at = last_cycle.min(all_retired_at);

        let Some(range) = text.find(hart.pc) else {
            return Stop::Fault(Fault::instruction_access(hart.pc));
        };
        match run_range::<B, RUN>(hart, text, range, bus, &Course { gap, stop_at, last_cycle, ..Course::default() })
            .exit
        {
            Exit::Limit | Exit::Far(_) => {}
            Exit::Decode => {
                if let Err(fault) = text.decode(range, hart.pc, bus) {
                    return Stop::Fault(fault);
                }
            }
            Exit::Stored { addr, width } => {
                text.invalidate(addr, width.bytes());
                if bus.should_stop() {
                    return Stop::Requested;
                }
            }
            Exit::FenceI => text.invalidate_all(),
            Exit::Stop(stop) => return stop,
        }
    }
}

/// Executes one instruction, and up to `most_ahead` after it that may be executed ahead of their issue; `hart.cycles`
/// moves by what the first one's accesses take and no more. See [`Hart::burst`].
#[inline(always)]
pub(crate) fn burst<B: Bus>(
    hart: &mut Hart,
    text: &mut Text,
    bus: &mut B,
    most_ahead: u32,
    block_bytes: u64,
) -> (Step, RunAhead) {
    hart.x[0] = 0;
    // Nearly always the first range, and nothing to decode.
    let range = match text.ranges.first() {
        Some(range) if hart.pc.wrapping_sub(range.base) < range.len => 0,
        _ => match text.find(hart.pc) {
            Some(found) => found,
            None => return (Step::Stopped(Stop::Fault(Fault::instruction_access(hart.pc))), RunAhead::default()),
        },
    };
    let begins = hart.pc;
    let Ran { exit, kind, .. } = run_range::<B, ONE>(hart, text, range, bus, &Course::default());
    match exit {
        Exit::Limit => {}
        Exit::Stop(Stop::Requested) => return (Step::Retired(class(kind)), RunAhead::default()),
        Exit::Far(_) if kind != Kind::End => return (Step::Retired(class(kind)), RunAhead::default()),
        Exit::Stop(stop) => return (Step::Stopped(stop), RunAhead::default()),
        Exit::Stored { addr, width } => {
            text.invalidate(addr, width.bytes());
            return (Step::Retired(class(kind)), RunAhead::default());
        }
        Exit::FenceI => {
            text.invalidate_all();
            return (Step::Retired(class(kind)), RunAhead::default());
        }
        // Nothing has been executed: here goes on another range, or none.
        Exit::Far(_) => return burst_again(hart, text, bus, most_ahead, block_bytes),
        Exit::Decode => {
            if let Err(fault) = text.decode(range, hart.pc, bus) {
                return (Step::Stopped(Stop::Fault(fault)), RunAhead::default());
            }
            return burst_again(hart, text, bus, most_ahead, block_bytes);
        }
    }
    if most_ahead == 0 {
        return (Step::Retired(class(kind)), RunAhead::default());
    }
    let course = Course { begins, block_bytes, most: most_ahead.min(RunAhead::MOST), ..Course::default() };
    let Ran { ahead, .. } = run_range::<B, AHEAD>(hart, text, range, bus, &course);
    (Step::Retired(class(kind)), ahead)
}

/// A burst whose first instruction had to be decoded, or found in another range.
#[cold]
#[inline(never)]
fn burst_again<B: Bus>(
    hart: &mut Hart,
    text: &mut Text,
    bus: &mut B,
    most_ahead: u32,
    block_bytes: u64,
) -> (Step, RunAhead) {
    burst(hart, text, bus, most_ahead, block_bytes)
}

/// Executes up to `most` instructions that may be executed ahead of their issue, and none other; returns how many.
pub(crate) fn replay<B: Bus>(hart: &mut Hart, text: &mut Text, bus: &mut B, most: u32) -> u32 {
    let Some(range) = text.find(hart.pc) else { return 0 };
    let course = Course { begins: hart.pc, block_bytes: WHOLE, most: most.min(RunAhead::MOST), ..Course::default() };
    run_range::<B, AHEAD>(hart, text, range, bus, &course).ahead.count
}

/// The class of a kind, for those that cost something of their own.
#[inline(always)]
fn class(kind: Kind) -> Class {
    match kind {
        Kind::Mul | Kind::Mulh | Kind::Mulhsu | Kind::Mulhu | Kind::Mulw => Class::Multiply,
        Kind::Div | Kind::Divu | Kind::Rem | Kind::Remu => Class::Divide,
        Kind::Divw | Kind::Divuw | Kind::Remw | Kind::Remuw => Class::Divide,
        _ => Class::Other,
    }
}

/// How [`run_range`] runs: until a limit, one instruction, or those that may be executed ahead of their issue.
const RUN: u8 = 0;
const ONE: u8 = 1;
const AHEAD: u8 = 2;

/// Bytes of a block that holds all code.
const WHOLE: u64 = 1 << 58;

/// Limits of [`run_range`].
#[derive(Clone, Copy, Debug, Default)]
struct Course {
    /// Cycles that each instruction adds.
    gap: u64,
    /// Cycle at which it ends if no access takes time, and the one at which it ends at the latest.
    stop_at: u64,
    last_cycle: u64,
    /// Of `AHEAD`: an address in the block of code where it begins, the bytes of a block, and the most instructions.
    begins: u64,
    block_bytes: u64,
    most: u32,
}

/// What has become of it.
struct Ran {
    exit: Exit,
    /// The kind of the instruction, if it was one.
    kind: Kind,
    ahead: RunAhead,
}

/// Runs within one range of the text. On return the hart is up to date.
#[inline(always)]
fn run_range<B: Bus, const MODE: u8>(
    hart: &mut Hart,
    text: &mut Text,
    range: usize,
    bus: &mut B,
    course: &Course,
) -> Ran {
    let Course { gap, mut stop_at, last_cycle, begins, block_bytes, most } = *course;
    let text: &Text = text;
    // An access of up to eight bytes that begins up to seven bytes before the text touches it.
    let (mut guard_base, mut guard_len) = (0, 0);
    if MODE == RUN {
        (guard_base, guard_len) = text.hull.guard();
    }

    let range = &text.ranges[range];
    let base = range.base;
    let len = range.len;
    let slots: *const Op = range.slots.as_ptr();
    #[cfg(debug_assertions)]
    let slots_end = slots.wrapping_add(range.slots.len());

    // Slot offsets fit in `usize`: the slots exist.
    let mut ip: *const Op = slots.wrapping_add(((hart.pc - base) / 2) as usize);
    let mut cycles = hart.cycles;
    let mut instret = hart.instret;
    let x = &mut hart.x;
    let reservation = &mut hart.reservation;

    let kind = if MODE == ONE { range.slots[((hart.pc - base) / 2) as usize].kind } else { Kind::Undecoded };
    // The slots of the block of code that it is in, from the address of the first.
    let slots_of = |bytes: u64| bytes as usize / 2 * size_of::<Op>();
    let block_len = slots_of(block_bytes);
    let mut block_slots = 0;
    if MODE == AHEAD {
        let at = slots.addr().wrapping_add(slots_of(begins.wrapping_sub(base)));
        block_slots = at.wrapping_sub(slots_of(begins & (block_bytes - 1)));
    }
    let mut count = 0;
    let mut accesses = 0;

    macro_rules! pc {
        () => {
            base.wrapping_add((ip.addr() - slots.addr()) as u64 / size_of::<Op>() as u64 * 2)
        };
    }
    // An access has taken until cycle $after. The minimum keeps `stop_at` what it was if it is the limit on cycles.
    macro_rules! charge {
        ($after:ident) => {
            if MODE == RUN {
                stop_at = stop_at.wrapping_add($after.wrapping_sub(cycles)).min(last_cycle);
            }
            cycles = $after;
        };
    }
    macro_rules! is_guarded {
        ($addr:ident) => {{
            // For few accesses it is not worth having these at hand.
            let (guard_base, guard_len) = if MODE == RUN { (guard_base, guard_len) } else { text.hull.guard() };
            $addr.wrapping_sub(guard_base) < guard_len
        }};
    }
    macro_rules! retire {
        () => {
            instret = instret.wrapping_add(1);
            if MODE == RUN {
                cycles = cycles.wrapping_add(gap);
            }
            if MODE == AHEAD {
                count += 1;
            }
        };
    }
    macro_rules! before {
        () => {
            Before { x: &*x, pc: pc!(), count }
        };
    }

    let exit = loop {
        if MODE == AHEAD {
            if count >= most {
                break Exit::Limit;
            }
            if ip.addr().wrapping_sub(block_slots) >= block_len {
                let before = before!();
                if !bus.enter_ahead(&before) {
                    break Exit::Limit;
                }
                block_slots = ip.addr().wrapping_sub(slots_of(pc!() & (block_bytes - 1)));
            }
        }
        #[cfg(debug_assertions)]
        assert!(ip >= slots && ip < slots_end, "the instruction pointer left its range");
        // SAFETY: `ip` points to an element of `range.slots`, which is borrowed, and so neither moved nor written, for
        // the whole loop. It begins at a slot of the range because `find` has found `pc` in it. It moves in three ways
        // only: by one or two slots past an instruction, whose slot is not one of the two `End` slots behind the range
        // (those leave the loop); by a branch distance, which the decoder has checked to end inside the range it
        // decoded for, this one; and to a computed address after comparing it with the range's length.
        let op: &Op = unsafe { &*ip };

        macro_rules! fault {
            ($fault:expr) => {
                break Exit::Stop(Stop::Fault($fault))
            };
        }
        macro_rules! rs1 {
            () => {
                x[op.rs1 as usize]
            };
        }
        macro_rules! rs2 {
            () => {
                x[op.rs2 as usize]
            };
        }
        macro_rules! imm {
            () => {
                i64::from(op.imm).cast_unsigned()
            };
        }
        // Instructions of $slots slots: write rd and go on.
        macro_rules! set {
            ($slots:literal, $value:expr) => {{
                x[op.rd as usize] = $value;
                ip = ip.wrapping_add($slots);
            }};
        }
        macro_rules! jump {
            ($link_bytes:literal) => {{
                let target = rs1!().wrapping_add(imm!()) & !1;
                if $link_bytes != 0 {
                    x[op.rd as usize] = pc!().wrapping_add($link_bytes);
                }
                let offset = target.wrapping_sub(base);
                if offset >= len {
                    retire!();
                    break Exit::Far(target);
                }
                ip = slots.wrapping_add((offset / 2) as usize);
            }};
        }
        macro_rules! branch {
            ($slots:literal, $taken:expr) => {{
                if $taken {
                    ip = ip.wrapping_offset(op.imm as isize);
                } else {
                    ip = ip.wrapping_add($slots);
                }
            }};
        }
        macro_rules! bus_touched {
            () => {
                if bus.should_stop() {
                    retire!();
                    break Exit::Stop(Stop::Requested);
                }
            };
        }
        macro_rules! load {
            ($slots:literal, $width:expr, $extend:expr) => {{
                let addr = rs1!().wrapping_add(imm!());
                if addr & ($width.bytes() - 1) != 0 {
                    // Faults are of those that are at their issue.
                    if MODE == AHEAD {
                        break Exit::Limit;
                    }
                    let mut after = cycles;
                    match bus.load_misaligned(addr, $width, &mut after) {
                        Ok(value) => x[op.rd as usize] = $extend(value),
                        Err(fault) => fault!(fault),
                    }
                    charge!(after);
                    ip = ip.wrapping_add($slots);
                    bus_touched!();
                } else {
                    if MODE == AHEAD {
                        let before = before!();
                        let Some(value) = bus.load_ahead(addr, $width, &before) else { break Exit::Limit };
                        x[op.rd as usize] = $extend(value);
                        accesses |= RunAhead::LOAD << (2 * count);
                        ip = ip.wrapping_add($slots);
                        retire!();
                        continue;
                    }
                    // A copy, so that `cycles` itself needs no address and stays in a register.
                    let mut after = cycles;
                    match bus.load(addr, $width, &mut after) {
                        Ok(value) => x[op.rd as usize] = $extend(value),
                        Err(fault) => fault!(fault),
                    }
                    charge!(after);
                    ip = ip.wrapping_add($slots);
                    bus_touched!();
                }
            }};
        }
        macro_rules! store {
            ($slots:literal, $width:expr) => {{
                let addr = rs1!().wrapping_add(imm!());
                if addr & ($width.bytes() - 1) != 0 {
                    if MODE == AHEAD {
                        break Exit::Limit;
                    }
                    // Code is not stored to so.
                    let last = addr.wrapping_add($width.bytes() - 1);
                    if is_guarded!(addr) || is_guarded!(last) {
                        fault!(Fault::new(Cause::StoreMisaligned, addr));
                    }
                    let mut after = cycles;
                    if let Err(fault) = bus.store_misaligned(addr, $width, rs2!(), &mut after) {
                        fault!(fault);
                    }
                    charge!(after);
                    ip = ip.wrapping_add($slots);
                    bus_touched!();
                } else {
                    if MODE == AHEAD {
                        let before = before!();
                        if is_guarded!(addr) || !bus.store_ahead(addr, $width, rs2!(), &before) {
                            break Exit::Limit;
                        }
                        accesses |= RunAhead::STORE << (2 * count);
                        ip = ip.wrapping_add($slots);
                        retire!();
                        continue;
                    }
                    let mut after = cycles;
                    if let Err(fault) = bus.store(addr, $width, rs2!(), &mut after) {
                        fault!(fault);
                    }
                    charge!(after);
                    ip = ip.wrapping_add($slots);
                    if is_guarded!(addr) {
                        retire!();
                        break Exit::Stored { addr, width: $width };
                    }
                    bus_touched!();
                }
            }};
        }

        if MODE == AHEAD && (op.kind as u8) < Kind::FIRST_AHEAD as u8 {
            break Exit::Limit;
        }
        match op.kind {
            Kind::Undecoded => break Exit::Decode,
            Kind::End => break Exit::Far(pc!()),
            Kind::Illegal => fault!(Fault::illegal_instruction(op.bits())),

            Kind::Nop => ip = ip.wrapping_add(2),
            Kind::CNop => ip = ip.wrapping_add(1),
            Kind::Li => set!(2, imm!()),
            Kind::CLi => set!(1, imm!()),
            Kind::Mv => set!(2, rs1!()),
            Kind::CMv => set!(1, rs1!()),
            Kind::Auipc => set!(2, pc!().wrapping_add(imm!())),
            Kind::Jal => {
                x[op.rd as usize] = pc!().wrapping_add(4);
                ip = ip.wrapping_offset(op.imm as isize);
            }
            Kind::J => ip = ip.wrapping_offset(op.imm as isize),
            Kind::Jalr => jump!(4),
            Kind::CJalr => jump!(2),
            Kind::Jr | Kind::CJr => jump!(0),
            Kind::JalFar => {
                let pc = pc!();
                x[op.rd as usize] = pc.wrapping_add(4);
                x[0] = 0;
                retire!();
                break Exit::Far(pc.wrapping_add(imm!()));
            }
            Kind::BranchFar => {
                let pc = pc!();
                let (condition, bytes) = (op.rd as u32 & 7, if op.rd as u32 & 8 == 0 { 4 } else { 2 });
                retire!();
                let taken = far_branch_taken(condition, rs1!(), rs2!());
                break Exit::Far(pc.wrapping_add(if taken { imm!() } else { bytes }));
            }

            Kind::Beq => branch!(2, rs1!() == rs2!()),
            Kind::Bne => branch!(2, rs1!() != rs2!()),
            Kind::CBeq => branch!(1, rs1!() == 0),
            Kind::CBne => branch!(1, rs1!() != 0),
            Kind::Blt => branch!(2, rs1!().cast_signed() < rs2!().cast_signed()),
            Kind::Bge => branch!(2, rs1!().cast_signed() >= rs2!().cast_signed()),
            Kind::Bltu => branch!(2, rs1!() < rs2!()),
            Kind::Bgeu => branch!(2, rs1!() >= rs2!()),

            Kind::Lb => load!(2, Width::B1, |value: u64| i64::from(value as i8).cast_unsigned()),
            Kind::Lh => load!(2, Width::B2, |value: u64| i64::from(value as i16).cast_unsigned()),
            Kind::Lw => load!(2, Width::B4, |value: u64| sext(value as u32)),
            Kind::CLw => load!(1, Width::B4, |value: u64| sext(value as u32)),
            Kind::Ld => load!(2, Width::B8, |value: u64| value),
            Kind::CLd => load!(1, Width::B8, |value: u64| value),
            Kind::Lbu => load!(2, Width::B1, |value: u64| value),
            Kind::Lhu => load!(2, Width::B2, |value: u64| value),
            Kind::Lwu => load!(2, Width::B4, |value: u64| value),
            Kind::LoadNothing => {
                let width = [Width::B1, Width::B2, Width::B4, Width::B8][op.rs2 as usize & 3];
                load!(2, width, |_| 0);
            }
            Kind::Sb => store!(2, Width::B1),
            Kind::Sh => store!(2, Width::B2),
            Kind::Sw => store!(2, Width::B4),
            Kind::CSw => store!(1, Width::B4),
            Kind::Sd => store!(2, Width::B8),
            Kind::CSd => store!(1, Width::B8),

            Kind::Addi => set!(2, rs1!().wrapping_add(imm!())),
            Kind::CAddi => set!(1, rs1!().wrapping_add(imm!())),
            Kind::Slti => set!(2, u64::from(rs1!().cast_signed() < i64::from(op.imm))),
            Kind::Sltiu => set!(2, u64::from(rs1!() < imm!())),
            Kind::Xori => set!(2, rs1!() ^ imm!()),
            Kind::Ori => set!(2, rs1!() | imm!()),
            Kind::Andi => set!(2, rs1!() & imm!()),
            Kind::CAndi => set!(1, rs1!() & imm!()),
            Kind::Slli => set!(2, rs1!() << (op.imm & 63)),
            Kind::CSlli => set!(1, rs1!() << (op.imm & 63)),
            Kind::Srli => set!(2, rs1!() >> (op.imm & 63)),
            Kind::CSrli => set!(1, rs1!() >> (op.imm & 63)),
            Kind::Srai => set!(2, (rs1!().cast_signed() >> (op.imm & 63)).cast_unsigned()),
            Kind::CSrai => set!(1, (rs1!().cast_signed() >> (op.imm & 63)).cast_unsigned()),
            Kind::Addiw => set!(2, sext((rs1!() as u32).wrapping_add_signed(op.imm))),
            Kind::CAddiw => set!(1, sext((rs1!() as u32).wrapping_add_signed(op.imm))),
            Kind::Slliw => set!(2, sext((rs1!() as u32) << (op.imm & 31))),
            Kind::Srliw => set!(2, sext(rs1!() as u32 >> (op.imm & 31))),
            Kind::Sraiw => set!(2, i64::from(rs1!() as i32 >> (op.imm & 31)).cast_unsigned()),

            Kind::Add => set!(2, rs1!().wrapping_add(rs2!())),
            Kind::CAdd => set!(1, rs1!().wrapping_add(rs2!())),
            Kind::Sub => set!(2, rs1!().wrapping_sub(rs2!())),
            Kind::CSub => set!(1, rs1!().wrapping_sub(rs2!())),
            Kind::Sll => set!(2, rs1!() << (rs2!() & 63)),
            Kind::Slt => set!(2, u64::from(rs1!().cast_signed() < rs2!().cast_signed())),
            Kind::Sltu => set!(2, u64::from(rs1!() < rs2!())),
            Kind::Xor => set!(2, rs1!() ^ rs2!()),
            Kind::CXor => set!(1, rs1!() ^ rs2!()),
            Kind::Srl => set!(2, rs1!() >> (rs2!() & 63)),
            Kind::Sra => set!(2, (rs1!().cast_signed() >> (rs2!() & 63)).cast_unsigned()),
            Kind::Or => set!(2, rs1!() | rs2!()),
            Kind::COr => set!(1, rs1!() | rs2!()),
            Kind::And => set!(2, rs1!() & rs2!()),
            Kind::CAnd => set!(1, rs1!() & rs2!()),
            Kind::Addw => set!(2, sext((rs1!() as u32).wrapping_add(rs2!() as u32))),
            Kind::CAddw => set!(1, sext((rs1!() as u32).wrapping_add(rs2!() as u32))),
            Kind::Subw => set!(2, sext((rs1!() as u32).wrapping_sub(rs2!() as u32))),
            Kind::CSubw => set!(1, sext((rs1!() as u32).wrapping_sub(rs2!() as u32))),
            Kind::Sllw => set!(2, sext((rs1!() as u32) << (rs2!() & 31))),
            Kind::Srlw => set!(2, sext(rs1!() as u32 >> (rs2!() & 31))),
            Kind::Sraw => set!(2, i64::from(rs1!() as i32 >> (rs2!() & 31)).cast_unsigned()),

            Kind::Mul => set!(2, rs1!().wrapping_mul(rs2!())),
            Kind::Mulh => set!(2, alu::mulh(rs1!(), rs2!())),
            Kind::Mulhsu => set!(2, alu::mulhsu(rs1!(), rs2!())),
            Kind::Mulhu => set!(2, alu::mulhu(rs1!(), rs2!())),
            Kind::Div => set!(2, alu::div(rs1!(), rs2!())),
            Kind::Divu => set!(2, alu::divu(rs1!(), rs2!())),
            Kind::Rem => set!(2, alu::rem(rs1!(), rs2!())),
            Kind::Remu => set!(2, alu::remu(rs1!(), rs2!())),
            Kind::Mulw => set!(2, sext((rs1!() as u32).wrapping_mul(rs2!() as u32))),
            Kind::Divw => set!(2, alu::divw(rs1!(), rs2!())),
            Kind::Divuw => set!(2, alu::divuw(rs1!(), rs2!())),
            Kind::Remw => set!(2, alu::remw(rs1!(), rs2!())),
            Kind::Remuw => set!(2, alu::remuw(rs1!(), rs2!())),

            Kind::Sh1add => set!(2, (rs1!() << 1).wrapping_add(rs2!())),
            Kind::Sh2add => set!(2, (rs1!() << 2).wrapping_add(rs2!())),
            Kind::Sh3add => set!(2, (rs1!() << 3).wrapping_add(rs2!())),
            Kind::AddUw => set!(2, u64::from(rs1!() as u32).wrapping_add(rs2!())),
            Kind::Sh1addUw => set!(2, (u64::from(rs1!() as u32) << 1).wrapping_add(rs2!())),
            Kind::Sh2addUw => set!(2, (u64::from(rs1!() as u32) << 2).wrapping_add(rs2!())),
            Kind::Sh3addUw => set!(2, (u64::from(rs1!() as u32) << 3).wrapping_add(rs2!())),
            Kind::SlliUw => set!(2, u64::from(rs1!() as u32) << (op.imm & 63)),

            Kind::Andn => set!(2, rs1!() & !rs2!()),
            Kind::Orn => set!(2, rs1!() | !rs2!()),
            Kind::Xnor => set!(2, !(rs1!() ^ rs2!())),
            Kind::Clz => set!(2, u64::from(rs1!().leading_zeros())),
            Kind::Ctz => set!(2, u64::from(rs1!().trailing_zeros())),
            Kind::Cpop => set!(2, u64::from(rs1!().count_ones())),
            Kind::Clzw => set!(2, u64::from((rs1!() as u32).leading_zeros())),
            Kind::Ctzw => set!(2, u64::from((rs1!() as u32).trailing_zeros())),
            Kind::Cpopw => set!(2, u64::from((rs1!() as u32).count_ones())),
            Kind::Max => set!(2, rs1!().cast_signed().max(rs2!().cast_signed()).cast_unsigned()),
            Kind::Maxu => set!(2, rs1!().max(rs2!())),
            Kind::Min => set!(2, rs1!().cast_signed().min(rs2!().cast_signed()).cast_unsigned()),
            Kind::Minu => set!(2, rs1!().min(rs2!())),
            Kind::SextB => set!(2, i64::from(rs1!() as i8).cast_unsigned()),
            Kind::SextH => set!(2, i64::from(rs1!() as i16).cast_unsigned()),
            Kind::ZextH => set!(2, rs1!() & 0xffff),
            Kind::Rol => set!(2, rs1!().rotate_left(rs2!() as u32 & 63)),
            Kind::Ror => set!(2, rs1!().rotate_right(rs2!() as u32 & 63)),
            Kind::Rori => set!(2, rs1!().rotate_right(op.bits() & 63)),
            Kind::Rolw => set!(2, sext((rs1!() as u32).rotate_left(rs2!() as u32 & 31))),
            Kind::Rorw => set!(2, sext((rs1!() as u32).rotate_right(rs2!() as u32 & 31))),
            Kind::Roriw => set!(2, sext((rs1!() as u32).rotate_right(op.bits() & 31))),
            Kind::OrcB => set!(2, alu::orc_b(rs1!())),
            Kind::Rev8 => set!(2, rs1!().swap_bytes()),
            Kind::Bclr => set!(2, rs1!() & !(1 << (rs2!() & 63))),
            Kind::Bclri => set!(2, rs1!() & !(1 << (op.imm & 63))),
            Kind::Bext => set!(2, rs1!() >> (rs2!() & 63) & 1),
            Kind::Bexti => set!(2, rs1!() >> (op.imm & 63) & 1),
            Kind::Binv => set!(2, rs1!() ^ (1 << (rs2!() & 63))),
            Kind::Binvi => set!(2, rs1!() ^ (1 << (op.imm & 63))),
            Kind::Bset => set!(2, rs1!() | (1 << (rs2!() & 63))),
            Kind::Bseti => set!(2, rs1!() | (1 << (op.imm & 63))),

            Kind::Fence => {
                let mut after = cycles;
                bus.fence((op.imm >> 4) as u8 & 15, op.imm as u8 & 15, &mut after);
                charge!(after);
                ip = ip.wrapping_add(2);
                bus_touched!();
            }
            Kind::FenceI => {
                ip = ip.wrapping_add(2);
                retire!();
                break Exit::FenceI;
            }
            Kind::Ecall => break Exit::Stop(Stop::Ecall),
            Kind::Ebreak => break Exit::Stop(Stop::Ebreak),
            Kind::Wfi => {
                ip = ip.wrapping_add(2);
                retire!();
                break Exit::Stop(Stop::Wfi);
            }
            Kind::Mret => match bus.machine_return() {
                Some(target) => {
                    retire!();
                    break Exit::Far(target);
                }
                None => fault!(Fault::illegal_instruction(MRET)),
            },
            Kind::Csr | Kind::Draft => {
                if let Err(fault) = csr::execute(*op, x, bus, cycles, instret) {
                    fault!(fault);
                }
                ip = ip.wrapping_add(2);
                bus_touched!();
            }
            Kind::Atomic => {
                let mut after = cycles;
                let addr = rs1!();
                if let Err(fault) = atomic::execute(*op, x, reservation, bus, &mut after) {
                    fault!(fault);
                }
                charge!(after);
                ip = ip.wrapping_add(2);
                if is_guarded!(addr) {
                    retire!();
                    break Exit::Stored { addr, width: Width::B8 };
                }
                bus_touched!();
            }
            Kind::Custom => {
                let mut after = cycles;
                if let Err(fault) = bus.custom(op.bits(), x, &mut after) {
                    x[0] = 0;
                    fault!(fault);
                }
                x[0] = 0;
                charge!(after);
                ip = ip.wrapping_add(2);
                bus_touched!();
            }
        }

        retire!();
        if MODE == ONE || MODE == RUN && cycles >= stop_at {
            break Exit::Limit;
        }
    };

    hart.pc = if let Exit::Far(pc) = exit { pc } else { pc!() };
    hart.cycles = cycles;
    hart.instret = instret;
    Ran { exit, kind, ahead: RunAhead { count, accesses } }
}

const MRET: u32 = 0x3020_0073;

/// Whether a branch with this `funct3` is taken.
fn far_branch_taken(funct3: u32, a: u64, b: u64) -> bool {
    match funct3 {
        0 => a == b,
        1 => a != b,
        4 => a.cast_signed() < b.cast_signed(),
        5 => a.cast_signed() >= b.cast_signed(),
        6 => a < b,
        _ => a >= b,
    }
}
