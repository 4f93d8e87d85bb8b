use flexio::{Affinity, Application, EventHandler, Process, ProtectionDomain};

fn run(application: &Application<'_>, pd: &ProtectionDomain<'_>) {
    let process = Process::new(application, pd).unwrap();
    let handler = EventHandler::new(&process, "uc_receive", 0, Affinity::Unit(1)).unwrap();
    drop(process);
    handler.run(0).unwrap();
}

fn main() {
    let _ = run;
}
