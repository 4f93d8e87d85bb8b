//! The command-line tool, run as a program.

mod bad_input;
mod calibrate;
mod compare;
mod dpa_programs;
mod emu_run;
mod emulated;
mod evaluation;
mod gdb;
#[allow(dead_code, unreachable_pub, reason = "shared with tests/, which uses all of it")]
#[path = "../../tests/src/harness.rs"]
mod harness;
mod observation;
mod outputs;
#[allow(dead_code, unreachable_pub, reason = "shared with tests/, which uses all of it")]
#[path = "../../tests/src/processes.rs"]
mod processes;
mod service;
mod service_processes;
mod sim;
mod sim_bad_input;
mod sim_work;
mod soak;
mod two_hosts;
