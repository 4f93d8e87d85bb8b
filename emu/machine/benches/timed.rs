//! Instructions per second of processor time of a card whose threads all run: with the timing model and with the simple
//! cost model.
//!
//! `cargo bench -p emu-machine --bench timed -- [--json] [--quick] [PROGRAM/THREADS]`. Processor time, as Linux counts
//! it, leaves out what other programs take; each figure is the best of several runs, for what else a shared machine
//! does to a run only ever slows it down.

use std::process::ExitCode;

use emu_machine::timing::Parameters;
use emu_machine::{Config, World};

#[path = "../tests/support/mod.rs"]
mod support;
use support::*;

/// `beq a, b, offset`
fn bne(a: u32, b: u32, offset: i32) -> u32 {
    let o = offset as u32;
    (o >> 12 & 1) << 31
        | (o >> 5 & 63) << 25
        | b << 20
        | a << 15
        | 1 << 12
        | (o >> 1 & 15) << 8
        | (o >> 11 & 1) << 7
        | 0x63
}

/// What the threads do for ever, on the stack of each.
struct Program {
    name: &'static str,
    /// What is in the loop.
    what: &'static str,
    body: Vec<u32>,
}

/// One instruction in four touches memory that is in L1, as in loops over completion entries.
fn datapath() -> Program {
    let body = vec![
        ld(A1, SP, -64),
        add(A2, A1, A3),
        slli(A4, A2, 3),
        addi(A3, A3, 1),
        sd(A2, SP, -56),
        add(A4, A4, A1),
        addi(A2, A4, -5),
        add(A3, A3, A2),
        ld(A1, SP, -48),
        addi(A1, A1, 7),
        add(A2, A2, A1),
    ];
    let what = "a loop of 12 instructions, three of them accesses to the stack that hit L1 (two loads, a store)";
    Program { name: "datapath", what, body }
}

/// As loops over completion entries are: each round takes the next of 64 entries of a line, which comes from L2, sets a
/// bit of a word, and writes a line of its own.
fn completions() -> Program {
    let body = vec![
        add(A5, A3, S0),
        ld(A1, A5, 0),
        ld(A2, A5, 8),
        ld(A4, S0, -8),
        add(A1, A1, A2),
        addi(A4, A4, 1),
        slli(A2, A1, 3),
        sd(A4, S0, -8),
        add(A2, A2, A4),
        sd(A2, S0, -80),
        sd(A1, S0, -72),
        addi(A3, A3, 64),
        slli(A3, A3, 52),
        srli(A3, A3, 52),
    ];
    let what = "a loop of 15 instructions: a load from L2, two that hit L1, three stores to two lines in L1";
    Program { name: "completions", what, body }
}

/// `srli rd, rs, by`
fn srli(rd: u32, rs: u32, by: u32) -> u32 {
    by << 20 | rs << 15 | 5 << 12 | rd << 7 | 0x13
}

/// Registers only.
fn arithmetic() -> Program {
    let body =
        vec![add(A1, A1, A5), slli(A2, A1, 7), add(A4, A2, A1), addi(A3, A4, 1), add(A5, A3, A2), addi(A1, A1, 3)];
    Program { name: "arithmetic", what: "a loop of 7 instructions that touch registers only", body }
}

const A5: u32 = 15;
const S0: u32 = 8;

/// Bytes of heap of each thread, and where its entries begin there.
const BLOCK: u64 = 8192;
const ENTRIES: u64 = 1024;

/// Million instructions per second of `threads` threads.
fn mips(program: &Program, threads: u32, timing: Option<Parameters>, instructions: u64) -> f64 {
    let mut handler = vec![addi(S0, A0, 0)];
    handler.extend(&program.body);
    handler.push(bne(SP, 0, -4 * program.body.len() as i32));
    let elf = image(&handler, &[addi(A7, 0, 11), ECALL, RET]);
    let (mut world, process) = boot(&elf, Config { cards: 1, timing, ..Config::default() });
    let entry = world.card(0).unwrap().process(process).unwrap().image.symbol("handler").unwrap();
    let heap = world.heap_alloc(0, process, BLOCK * (u64::from(threads) + 1)).unwrap() & !63;
    for number in 0..u64::from(threads) {
        let block = heap + BLOCK * number + ENTRIES;
        let thread = world.create_thread(0, process, entry, block, 0, None).unwrap();
        world.run_event_handler(0, thread, block).unwrap();
        ping(&mut world, process, u64::from(thread)).unwrap();
    }
    let (before, began_ns) = (retired(&world, process), processor_ns());
    let mut done = before;
    while done - before < instructions {
        for _ in 0..2000 {
            assert!(world.step());
        }
        done = retired(&world, process);
    }
    (done - before) as f64 * 1e3 / (processor_ns() - began_ns) as f64
}

/// Nanoseconds that this thread has executed.
fn processor_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts processor time");
    text.split_whitespace().next().and_then(|ns| ns.parse().ok()).expect("the first number is nanoseconds")
}

fn retired(world: &World, process: u32) -> u64 {
    world.process(0, process).unwrap().threads.values().map(|thread| thread.hart.instret).sum()
}

fn main() -> ExitCode {
    let (mut json, mut instructions, mut repeats, mut only) = (false, 40_000_000, 5, String::new());
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--json" => json = true,
            "--quick" => (instructions, repeats) = (4_000_000, 2),
            // What cargo passes to every benchmark.
            "--bench" => {}
            name if !name.starts_with('-') => only = name.to_owned(),
            other => {
                eprintln!("unknown argument {other}; known are --json, --quick and a name such as datapath/16");
                return ExitCode::from(2);
            }
        }
    }
    let mut rows = Vec::new();
    let programs = [datapath(), completions(), arithmetic()];
    for program in &programs {
        for threads in [1, 16, 254] {
            if !format!("{}/{threads}", program.name).contains(&only) {
                continue;
            }
            let best = |timing: Option<Parameters>| {
                (0..repeats).map(|_| mips(program, threads, timing.clone(), instructions)).fold(0.0, f64::max)
            };
            rows.push((program.name, threads, best(None), best(Some(Parameters::m2()))));
        }
    }
    if json {
        let rows: Vec<String> = rows
            .iter()
            .map(|(program, threads, simple, timed)| {
                format!(
                    "  {{\"program\": \"{program}\", \"threads\": {threads}, \"simple_mips\": \
                     {simple:.1}, \"timed_mips\": {timed:.1}}}"
                )
            })
            .collect();
        println!("[\n{}\n]", rows.join(",\n"));
    } else {
        println!(
            "measured: million instructions per second of processor time, one thread of the host, best of {repeats}"
        );
        for Program { name, what, .. } in &programs {
            println!("{name}: {what}");
        }
        println!("{:<12} {:>8} {:>18} {:>10}", "program", "threads", "simple model, MIPS", "M.2, MIPS");
        for (program, threads, simple, timed) in rows {
            println!("{program:<12} {threads:>8} {simple:>18.1} {timed:>10.1}");
        }
    }
    ExitCode::SUCCESS
}
