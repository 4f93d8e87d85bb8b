//! The gdb server, with gdb-multiarch where it is installed and by its protocol everywhere.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::installed;

/// Longest that any of these sessions may take; they need a second or two.
const BOUND: Duration = Duration::from_secs(120);

fn image(name: &str) -> String {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/device/emu");
    let path = std::env::var_os("FLEXCAST_IMAGES").map_or(default, PathBuf::from).join(name);
    assert!(path.exists(), "no image {}: run `cargo xtask build` first", path.display());
    path.to_string_lossy().into_owned()
}

/// A run that serves gdb, and where.
struct Run {
    child: Child,
    address: String,
    stderr: BufReader<std::process::ChildStderr>,
}

const TPUT: [&str; 8] = ["tput", "--json", "--transport", "ud", "--threads", "2", "--bytes", "200000"];

impl Run {
    fn start(args: &[&str], more: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_flexcast"))
            .args(args)
            .args(["--gdb=127.0.0.1:0"])
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the tool starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        stderr.read_line(&mut line).expect("a line");
        let address = line.strip_prefix("gdb server on ").and_then(|rest| rest.split_once(": ")).expect(&line).0;
        Run { address: address.to_owned(), child, stderr }
    }

    /// Waits for its end: the status, stdout, the rest of stderr.
    fn finish(mut self) -> (bool, String, String) {
        let deadline = Instant::now() + BOUND;
        while self.child.try_wait().expect("it can be waited for").is_none() {
            if Instant::now() > deadline {
                self.child.kill().expect("it can be ended");
                panic!("the run did not end within {BOUND:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let Output { status, stdout, .. } = self.child.wait_with_output().expect("its output");
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).expect("stderr");
        (status.success(), String::from_utf8_lossy(&stdout).into_owned(), rest)
    }

    /// It must have succeeded, with the report of a run that nobody observed.
    fn finish_as_if_alone(self, args: &[&str]) {
        let (success, stdout, stderr) = self.finish();
        assert!(success, "{stderr}");
        let plain = Command::new(env!("CARGO_BIN_EXE_flexcast")).args(args).output().expect("the tool starts");
        let report = |text: &[u8]| {
            let mut report: Value = serde_json::from_slice(text).expect("a report");
            report["wall_s"] = Value::Null;
            report
        };
        let watched = report(stdout.as_bytes());
        assert_eq!(watched["digest_ok"], true);
        assert_eq!(watched, report(&plain.stdout), "a debugger changes neither results nor virtual times");
    }
}

#[test]
fn gdb_breaks_steps_and_goes_on() {
    let image = image("allgather.elf");
    if !installed("gdb-multiarch", "gdb-multiarch") {
        return;
    }
    let args = [&TPUT[..], &["--image", &image]].concat();
    let run = Run::start(&args, &[]);
    let remote = format!("target remote {}", run.address);
    let commands = [
        "set language c",
        &remote,
        "info threads",
        "print/x $tp",
        "x/2i $pc",
        // The second worker's first activation: another thread than the one that stopped first.
        "break *ud_receive if $tp == 0xc0026000",
        "continue",
        "print $_thread",
        "print/x $tp",
        "backtrace 2",
        "print (long)$pc - (long)&ud_receive",
        "stepi",
        "stepi",
        "print (long)$pc > (long)&ud_receive",
        "x/8xb $sp - 8",
        "set var $t6 = 77",
        "print $t6",
        "delete",
        "step",
        "info threads",
        "continue",
    ];
    let mut gdb = Command::new("gdb-multiarch");
    gdb.args(["-nx", "-batch", &image]);
    for command in commands {
        gdb.args(["-ex", command]);
    }
    let output = gdb.output().expect("gdb starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let has = |part: &str| assert!(text.contains(part), "no {part:?} in:\n{text}");
    // Where it stopped: the first event handler, with all threads of the process.
    has("EH_1_2_2, Running");
    has("EH_1_3_3, Created");
    has("RPC_1_1_1");
    has("$1 = 0xc0016000");
    has("=> 0x");
    // At the breakpoint.
    has("Breakpoint 1, ");
    has("$3 = 0xc0026000");
    has("#0  allgather::entries::__event_handler_ud_receive::entry (argument=");
    has("$4 = 0");
    has("$5 = 1");
    has("$6 = 77");
    has("exited normally");
    run.finish_as_if_alone(&args);
}

/// One end of gdb's protocol.
struct Client(TcpStream);

impl Client {
    fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(BOUND)).expect("a bound");
        Client(stream)
    }

    fn send(&mut self, packet: &str) {
        let sum = packet.bytes().fold(0_u8, u8::wrapping_add);
        write!(self.0, "${packet}#{sum:02x}").expect("sent");
    }

    fn byte(&mut self) -> u8 {
        let mut byte = [0];
        self.0.read_exact(&mut byte).expect("an answer");
        byte[0]
    }

    /// The next packet, acknowledged.
    fn receive(&mut self) -> String {
        while self.byte() != b'$' {}
        let mut text = String::new();
        loop {
            match self.byte() {
                b'#' => break,
                // Run-length encoding: the character before, this many times more.
                b'*' => {
                    let count = usize::from(self.byte() - 29);
                    let last = text.chars().last().expect("something to repeat");
                    text.extend(std::iter::repeat_n(last, count));
                }
                byte => text.push(char::from(byte)),
            }
        }
        let _sum = [self.byte(), self.byte()];
        self.0.write_all(b"+").expect("acknowledged");
        text
    }

    fn ask(&mut self, packet: &str) -> String {
        self.send(packet);
        self.receive()
    }
}

#[test]
fn memory_is_read_and_written_and_bounds_are_kept() {
    let image = image("allgather.elf");
    let args = [&TPUT[..], &["--image", &image]].concat();
    let run = Run::start(&args, &[]);
    let mut gdb = Client::connect(&run.address);
    gdb.ask("qSupported:swbreak+;hwbreak+");
    assert!(gdb.ask("?").starts_with(['S', 'T']));
    // The last bytes of a stack: what lies behind it is no memory.
    let stack_end = 0xC001_5000_u64;
    assert_eq!(gdb.ask(&format!("M{:x},4:01020304", stack_end - 8)), "OK");
    assert_eq!(gdb.ask(&format!("m{:x},4", stack_end - 8)), "01020304");
    assert_eq!(gdb.ask(&format!("m{:x},10", stack_end - 8)).len(), 16, "as much as there is");
    assert!(gdb.ask(&format!("m{stack_end:x},4")).starts_with('E'));
    // Code cannot be written, and nowhere nothing can.
    assert!(gdb.ask("M40000000,2:0000").starts_with('E'));
    assert!(gdb.ask("m0,8").starts_with('E'));
    assert!(gdb.ask("mffffffffffffffff,8").starts_with('E'));
    assert_eq!(gdb.ask("D"), "OK");
    run.finish_as_if_alone(&args);
}

#[test]
fn a_running_machine_can_be_interrupted() {
    let image = image("allgather.elf");
    let args = ["tput", "--json", "--bytes", "80000000", "--image", &image];
    let run = Run::start(&args, &[]);
    let mut gdb = Client::connect(&run.address);
    gdb.ask("qSupported:vContSupported+");
    gdb.ask("?");
    gdb.send("c");
    // At once: it must still run when the interrupt comes.
    gdb.0.write_all(&[3]).expect("sent");
    let stop = gdb.receive();
    assert!(stop.starts_with("T02"), "SIGINT: {stop}");
    assert_eq!(gdb.ask("D"), "OK");
    let (success, stdout, stderr) = run.finish();
    assert!(success && stdout.contains("\"digest_ok\":true"), "{stdout}{stderr}");
}

#[test]
fn a_peer_that_goes_away_does_not_stop_the_run() {
    let image = image("allgather.elf");
    let args = [&TPUT[..], &["--image", &image]].concat();
    let run = Run::start(&args, &[]);
    let mut gdb = Client::connect(&run.address);
    gdb.ask("?");
    drop(gdb);
    let (success, _, stderr) = run.finish();
    assert!(!success && stderr.contains("gdb went away; the run went on without it"), "{stderr}");
}

#[test]
fn a_killed_process_ends_the_run_with_an_error() {
    let image = image("allgather.elf");
    let run = Run::start(&[&TPUT[..], &["--image", &image]].concat(), &[]);
    let mut gdb = Client::connect(&run.address);
    gdb.ask("?");
    gdb.send("k");
    let (success, _, stderr) = run.finish();
    assert!(!success && stderr.contains("finished"), "{stderr}");
}

#[test]
fn nobody_to_serve_and_nothing_to_debug_are_said() {
    let receive = image("allgather.elf");
    let run = Run::start(&[&TPUT[..], &["--image", &receive]].concat(), &["--gdb-wait", "0"]);
    let (success, _, stderr) = run.finish();
    assert!(!success && stderr.contains("nobody connected") && stderr.contains("--gdb-wait"), "{stderr}");

    let run = Run::start(&["run", &receive], &[]);
    let (success, _, stderr) = run.finish();
    assert!(!success && stderr.contains("no event handler began"), "{stderr}");

    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("--gdb={}", taken.local_addr().expect("an address"));
    let output = Command::new(env!("CARGO_BIN_EXE_flexcast"))
        .args(TPUT)
        .args(["--image", &receive, &address])
        .output()
        .expect("the tool starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("cannot be listened on"), "{error}");
}

/// A program that knows nothing of the emulator, here the tool itself on the libraries that it finds, is debugged by
/// its environment.
#[test]
fn an_unmodified_program_on_the_emulator_s_libraries_is_debugged() {
    let image = image("allgather.elf");
    let mut command = Command::new(env!("CARGO_BIN_EXE_flexcast"));
    command.args(["emu", "exec", "--gdb=127.0.0.1:0", "--libs"]).arg(crate::processes::libraries()).arg("--");
    command.arg(env!("CARGO_BIN_EXE_flexcast")).args(TPUT).args(["--provider", "system", "--image", &image]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the tool starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut line = String::new();
    stderr.read_line(&mut line).expect("a line");
    let address = line.strip_prefix("gdb server on ").and_then(|rest| rest.split_once(": ")).expect(&line).0;
    let run = Run { address: address.to_owned(), child, stderr };
    let mut gdb = Client::connect(&run.address);
    gdb.ask("qSupported:swbreak+;hwbreak+");
    let stop = gdb.ask("?");
    assert!(stop.starts_with('T'), "it has stopped: {stop}");
    // Its handler is stepped, instruction by instruction: the last of the registers is the program counter.
    let thread = stop.split_once("thread:").and_then(|(_, rest)| rest.split_once(';')).expect(&stop).0;
    let pc = |gdb: &mut Client| {
        gdb.ask(&format!("Hg{thread}"));
        let registers = gdb.ask("g");
        let digits = &registers[32 * 16..33 * 16];
        u64::from_str_radix(digits, 16).map(u64::swap_bytes).expect("a register")
    };
    let mut at = vec![pc(&mut gdb)];
    for _ in 0..3 {
        let stop = gdb.ask(&format!("vCont;s:{thread}"));
        assert!(stop.starts_with("T05") && stop.contains(thread), "{stop}");
        at.push(pc(&mut gdb));
    }
    assert!(at.windows(2).all(|pair| pair[0] != pair[1]) && at[0] >= 0x4000_0000, "{at:x?}");
    assert!(gdb.ask("qfThreadInfo").starts_with('m'), "at threads of the DPA");
    assert_eq!(gdb.ask("D"), "OK");
    let (success, stdout, stderr) = run.finish();
    assert!(success && stdout.contains("\"digest_ok\":true"), "{stdout}{stderr}");
}
