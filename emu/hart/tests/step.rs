//! One instruction at a time does what running does.

use emu_hart::{Before, Bus, Cause, Class, Fault, Hart, Limits, RunAhead, Step, Stop, Width};
use proptest::prelude::*;

use crate::{asm, bus};
use asm::*;
use bus::{CODE, DATA, DOORBELL, Fixture, TestBus};

/// Steps until something other than a retired instruction, at most `most` times.
fn step_all(fixture: &mut Fixture, most: u64) -> (Option<Stop>, Vec<Class>) {
    let mut classes = Vec::new();
    for _ in 0..most {
        match fixture.hart.step(&mut fixture.text, &mut fixture.bus) {
            Step::Retired(class) => classes.push(class),
            Step::Stopped(stop) => return (Some(stop), classes),
        }
    }
    (None, classes)
}

#[test]
fn classes_and_accesses_are_reported() {
    let mut fixture = Fixture::new(&[
        r(0x33, 0, 1, A1, A2, A3),
        r(0x33, 4, 1, A1, A2, A3),
        r(0x3b, 7, 1, A1, A2, A3),
        ld(A1, A0, 0),
        add(A1, A1, A1),
        ECALL,
    ]);
    fixture.bus.load_cycles = 9;
    fixture.hart.x[10] = DATA;
    let (stop, classes) = step_all(&mut fixture, 100);
    assert_eq!(stop, Some(Stop::Ecall));
    assert_eq!(classes, [Class::Multiply, Class::Divide, Class::Divide, Class::Other, Class::Other]);
    assert_eq!((fixture.hart.cycles, fixture.hart.instret), (9, 5), "what the access took, and nothing else");
}

#[test]
fn a_doorbell_retires_and_the_bus_reports_it() {
    let mut fixture = Fixture::new(&[s(3, A0, A1, 0), ECALL]);
    fixture.hart.x[10] = DOORBELL;
    assert_eq!(fixture.hart.step(&mut fixture.text, &mut fixture.bus), Step::Retired(Class::Other));
    assert!(fixture.bus.stop);
    assert_eq!(fixture.hart.pc, CODE + 4);
}

#[test]
fn leaving_the_text_is_a_fault_at_the_end_and_by_a_jump() {
    let mut fixture = Fixture::new(&[add(A1, A1, A1)]);
    let fault = |addr| Some(Stop::Fault(Fault { cause: Cause::InstructionAccess, tval: addr }));
    assert_eq!(step_all(&mut fixture, 5), (fault(CODE + 4), vec![Class::Other]));
    let mut fixture = Fixture::new(&[i(0x67, 0, 0, A0, 0)]);
    fixture.hart.x[10] = 0x4000;
    assert_eq!(step_all(&mut fixture, 5), (fault(0x4000), vec![Class::Other]));
}

#[test]
fn code_that_is_stored_over_is_decoded_again() {
    // Stores `addi a2, a2, 5` over the instruction behind the store.
    let new = i(0x13, 0, A2, A2, 5);
    let mut fixture = Fixture::new(&[s(2, A0, A1, 4), i(0x13, 0, A2, A2, 1), ECALL]);
    assert_eq!(step_all(&mut Fixture::new(&[i(0x13, 0, A2, A2, 1), ECALL]), 9).0, Some(Stop::Ecall));
    (fixture.hart.x[10], fixture.hart.x[11]) = (CODE, u64::from(new));
    assert_eq!(step_all(&mut fixture, 9).0, Some(Stop::Ecall));
    assert_eq!(fixture.hart.x[12], 5);
}

/// Words that are mostly instructions: arithmetic, loads, stores, short branches, or anything.
fn word() -> impl Strategy<Value = u32> {
    let opcodes = prop::sample::select(vec![0x13u32, 0x33, 0x1b, 0x3b, 0x37, 0x17, 0x03, 0x23, 0x63, 0x2f, 0x0f]);
    prop_oneof![
        8 => (any::<u32>(), opcodes).prop_map(|(bits, opcode)| bits & 0x01ff_8f80 & !(7 << 12) | bits & (7 << 12) | opcode),
        1 => any::<u32>(),
    ]
}

/// Takes accesses ahead as configured, one bit for each, and can be asked for them again.
struct Leading<'a> {
    bus: &'a mut TestBus,
    takes: u64,
    /// The hart before the first, and how many instructions ahead that was.
    from: Option<(Hart, u32)>,
    /// Loads with what they gave; `None` is a store.
    done: Vec<Option<u64>>,
    again: std::vec::IntoIter<Option<u64>>,
}

impl<'a> Leading<'a> {
    fn new(bus: &'a mut TestBus, takes: u64) -> Self {
        Leading { bus, takes, from: None, done: Vec::new(), again: Vec::new().into_iter() }
    }

    fn takes(&mut self, before: &Before<'_>) -> bool {
        let takes = self.takes & 1 != 0;
        self.takes >>= 1;
        if takes && self.from.is_none() {
            let mut hart = Hart::new(before.pc);
            hart.x = *before.x;
            self.from = Some((hart, before.count));
        }
        takes
    }
}

impl Bus for Leading<'_> {
    fn load(&mut self, addr: u64, width: Width, cycles: &mut u64) -> Result<u64, Fault> {
        self.bus.load(addr, width, cycles)
    }

    fn store(&mut self, addr: u64, width: Width, value: u64, cycles: &mut u64) -> Result<(), Fault> {
        self.bus.store(addr, width, value, cycles)
    }

    fn load_ahead(&mut self, addr: u64, width: Width, before: &Before<'_>) -> Option<u64> {
        if let Some(done) = self.again.next() {
            return Some(done.expect("a load was a load"));
        }
        let value = self.bus.load(addr, width, &mut 0).ok()?;
        let takes = self.takes(before);
        self.done.extend(takes.then_some(Some(value)));
        takes.then_some(value)
    }

    fn store_ahead(&mut self, addr: u64, width: Width, value: u64, before: &Before<'_>) -> bool {
        if let Some(done) = self.again.next() {
            assert_eq!(done, None, "a store was a store");
            return true;
        }
        if addr == DOORBELL || !self.takes(before) || self.bus.store(addr, width, value, &mut 0).is_err() {
            return false;
        }
        self.done.push(None);
        true
    }

    fn enter_ahead(&mut self, before: &Before<'_>) -> bool {
        self.takes(before)
    }

    fn fetch16(&mut self, addr: u64) -> Result<u16, Fault> {
        self.bus.fetch16(addr)
    }

    fn csr_time(&mut self, cycles_now: u64) -> u64 {
        self.bus.csr_time(cycles_now)
    }

    fn fence(&mut self, predecessor: u8, successor: u8, cycles: &mut u64) {
        self.bus.fence(predecessor, successor, cycles);
    }

    fn should_stop(&self) -> bool {
        self.bus.stop
    }

    fn custom(&mut self, insn: u32, x: &mut [u64; 32], cycles: &mut u64) -> Result<(), Fault> {
        self.bus.custom(insn, x, cycles)
    }

    fn csr_read(&mut self, csr: u16, cycles: u64, instret: u64) -> Option<u64> {
        self.bus.csr_read(csr, cycles, instret)
    }

    fn csr_write(&mut self, csr: u16, value: u64, cycles: u64, instret: u64) -> Option<()> {
        self.bus.csr_write(csr, value, cycles, instret)
    }
}

/// With a bus that takes accesses ahead, too: bursts execute what steps do, report which are loads and which stores,
/// and execute any part again with what had been loaded.
fn check_accesses_ahead(words: &[u32], near: &[u64], takes: &[u64], kept: u32) -> Result<(), TestCaseError> {
    let mut stepped = Fixture::new(words);
    for (register, offset) in near.iter().enumerate() {
        stepped.hart.x[10 + register] = DATA + 8 * offset;
    }
    let mut fixture = Fixture::new(words);
    fixture.hart = stepped.hart.clone();
    for takes in takes {
        let mut bus = Leading::new(&mut fixture.bus, takes | takes << 7);
        let (first, ahead) = fixture.hart.burst(&mut fixture.text, &mut bus, 99, 16);
        let Leading { from, done, .. } = bus;
        prop_assert!(ahead.count <= RunAhead::MOST);
        prop_assert_eq!(stepped.hart.step(&mut stepped.text, &mut stepped.bus), first);
        let mut kinds = ahead.accesses;
        let mut states = vec![stepped.hart.clone()];
        let mut accesses = Vec::new();
        for _ in 0..ahead.count {
            let opcode = stepped.bus.memory[stepped.hart.pc as usize] & 0x7f;
            // Compressed ones are not distinguished here.
            if opcode & 3 == 3 {
                let expected = match opcode {
                    0x03 => RunAhead::LOAD,
                    0x23 => RunAhead::STORE,
                    _ => 0,
                };
                prop_assert_eq!(kinds & 3, expected);
            }
            accesses.extend((kinds & 3 != 0).then_some(states.len() as u32 - 1));
            kinds >>= 2;
            prop_assert_eq!(stepped.hart.step(&mut stepped.text, &mut stepped.bus), Step::Retired(Class::Other));
            states.push(stepped.hart.clone());
        }
        prop_assert_eq!(accesses.len(), done.len());
        prop_assert!(fixture.bus.memory == stepped.bus.memory);
        prop_assert_eq!(&fixture.hart, &stepped.hart);
        if let Some((mut hart, before)) = from.filter(|(_, before)| kept.min(ahead.count) >= *before) {
            let kept = kept.min(ahead.count);
            let mut bus = Leading::new(&mut fixture.bus, 0);
            bus.again = done.into_iter();
            prop_assert_eq!(hart.replay(&mut fixture.text, &mut bus, kept - before), kept - before);
            let left = accesses.iter().filter(|at| **at >= kept).count();
            prop_assert_eq!(bus.again.len(), left);
            let state = &states[kept as usize];
            prop_assert_eq!((hart.x, hart.pc, hart.instret), (state.x, state.pc, u64::from(kept - before)));
        }
        if matches!(first, Step::Stopped(_)) {
            break;
        }
    }
    Ok(())
}

#[test]
fn a_register_of_the_bus_behind_a_compressed_store_is_a_step_by_itself() {
    check_accesses_ahead(&[0xaaf3_d88e, 0x00d5_8c0f], &[0; 8], &[0; 60], 0).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn accesses_ahead_are_steps_and_can_be_replayed(
        words in proptest::collection::vec(word(), 1..40),
        near in proptest::collection::vec(0u64..0x100, 8),
        takes in proptest::collection::vec(any::<u64>(), 60),
        kept in 0u32..33,
    ) {
        check_accesses_ahead(&words, &near, &takes, kept)?;
    }

    /// Bursts execute what steps do. What runs ahead touches no memory, lies in one block, and is no more than asked
    /// for.
    #[test]
    fn bursts_are_steps(words in proptest::collection::vec(word(), 1..40), start: [u64; 8], most in 0u32..9) {
        let mut stepped = Fixture::new(&words);
        for (register, value) in start.into_iter().enumerate() {
            stepped.hart.x[10 + register] = value;
        }
        let mut fixture = Fixture::new(&words);
        fixture.hart = stepped.hart.clone();
        loop {
            let pc = fixture.hart.pc;
            let (first, ahead) = fixture.hart.burst(&mut fixture.text, &mut fixture.bus, most, 16);
            prop_assert!(ahead.count <= most && ahead.accesses == 0);
            prop_assert_eq!(stepped.hart.step(&mut stepped.text, &mut stepped.bus), first);
            let (memory, cycles) = (stepped.bus.memory.clone(), stepped.hart.cycles);
            for _ in 0..ahead.count {
                prop_assert!(stepped.hart.pc / 16 == pc / 16, "{:#x} is not in the block of {pc:#x}", stepped.hart.pc);
                prop_assert_eq!(stepped.hart.step(&mut stepped.text, &mut stepped.bus), Step::Retired(Class::Other));
            }
            prop_assert!(memory == stepped.bus.memory && cycles == stepped.hart.cycles);
            prop_assert!(fixture.bus.memory == stepped.bus.memory);
            prop_assert_eq!(&fixture.hart, &stepped.hart);
            if matches!(first, Step::Stopped(_)) || fixture.hart.instret > 200 {
                break;
            }
        }
    }

    /// Any words as code: the same registers, memory and end, whether stepped or run.
    #[test]
    fn stepping_is_running(words in proptest::collection::vec(word(), 1..40), start: [u64; 8]) {
        let mut run = Fixture::new(&words);
        for (register, value) in start.into_iter().enumerate() {
            run.hart.x[10 + register] = value;
        }
        let mut stepped = Fixture::new(&words);
        stepped.hart = run.hart.clone();
        let limits = Limits { instructions: 200, cycles: u64::MAX, gap_cycles: 1 };
        let mut stop = run.run(&limits);
        while stop == Stop::Requested {
            run.bus.stop = false;
            stop = run.run(&Limits { instructions: 200 - run.hart.instret, ..limits });
        }
        let (ended, _) = step_all(&mut stepped, run.hart.instret + u64::from(stop != Stop::Instructions && stop != Stop::Wfi));
        match stop {
            Stop::Instructions => prop_assert_eq!(ended, None),
            other => prop_assert_eq!(ended, Some(other)),
        }
        prop_assert_eq!(run.hart.cycles - run.hart.instret, stepped.hart.cycles);
        prop_assert!(run.bus.memory == stepped.bus.memory);
        run.hart.cycles = stepped.hart.cycles;
        prop_assert_eq!(run.hart, stepped.hart);
    }
}
