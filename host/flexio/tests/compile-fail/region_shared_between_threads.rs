use flexio::MemoryRegion;

fn run(region: &MemoryRegion) {
    std::thread::scope(|scope| {
        scope.spawn(|| region.write(0, b"one"));
        scope.spawn(|| region.write(0, b"two"));
    });
}

fn main() {
    let _ = run;
}
