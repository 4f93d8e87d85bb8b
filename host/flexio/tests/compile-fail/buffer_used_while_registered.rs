use flexio::{Access, HostBuffer, MemoryRegion, ProtectionDomain};

fn run(pd: &ProtectionDomain) {
    let mut buffer = HostBuffer::zeroed(4096).unwrap();
    let region = MemoryRegion::register(pd, buffer, Access::LOCAL_WRITE).unwrap();
    buffer.as_mut_slice()[0] = 1;
    drop(region);
}

fn main() {
    let _ = run;
}
