use flexio::{Access, MemoryRegion, ProtectionDomain};

fn run(pd: &ProtectionDomain<'_>) {
    let mut buffer = vec![0u8; 4096];
    let region = unsafe { MemoryRegion::register_borrowed(pd, &mut buffer, Access::LOCAL_WRITE) }.unwrap();
    println!("{}", buffer[0]);
    drop(region);
}

fn main() {
    let _ = run;
}
