use flexio::{Access, DeviceBuffer, MemoryKey, Process};

fn run(process: &Process<'_>) {
    let buffer = DeviceBuffer::zeroed(process, 4096).unwrap();
    let key = MemoryKey::new(&buffer, Access::LOCAL_WRITE).unwrap();
    drop(buffer);
    println!("{}", key.id());
}

fn main() {
    let _ = run;
}
