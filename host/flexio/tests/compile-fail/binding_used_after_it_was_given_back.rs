use flexio::{AliasPool, AliasQueue, Binding, BindingPool, Bound, BoundAlias, Grant, MemoryRegion, Released, SendKind};

fn host(pool: &BindingPool, region: MemoryRegion, binding: Binding, released: Released) {
    let _bound = pool.bind(region, Bound::millis(1));
    let _while_bound = pool.bind(region, Bound::millis(1));
    let _given_back = binding.release(released, Bound::millis(1));
    let _region = binding.region();
}

fn arm_cores(pool: &AliasPool, queue: &AliasQueue, grant: Grant, alias: BoundAlias) {
    let _alias = pool.accept(grant);
    let _another = pool.accept(grant);
    let _released = alias.release();
    let _posted = queue.post(1, SendKind::Send, &alias, 0, 8);
}

fn main() {
    let _ = (host, arm_cores);
}
