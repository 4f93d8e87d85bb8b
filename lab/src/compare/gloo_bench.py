"""One rank of `flexcast compare`: collectives of torch.distributed, by gloo or the backend that BACKEND names.

    gloo_bench.py OP REPETITIONS WARM_UP INTERFACE SIZE...

Per repetition: a barrier, the operation, which every rank times, and another barrier: with fewer cores than ranks, whoever compares its
buffer would take the core of one that is not done yet. The largest time over the ranks counts. Every buffer is compared byte by byte,
outside of what is timed. The bytes that crossed INTERFACE are those of the repetitions less those of as many barriers alone. Rank 0
prints one JSON object a size. The variables are those of torchrun.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

SHIFTS = 4096


def count_bytes(interface):
    """Bytes received and sent over the interface, of this network namespace."""
    with open("/proc/self/net/dev", encoding="ascii") as lines:
        for line in lines:
            name, _, fields = line.partition(":")
            if name.strip() == interface:
                numbers = [int(field) for field in fields.split()]
                return numbers[0], numbers[8]
    raise SystemExit(f"rank {dist.get_rank()}: no interface {interface} in /proc/self/net/dev")


class Bench:
    """Buffers of one operation and size."""

    def __init__(self, op, size):
        self.op, self.size = op, size
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        generator = torch.Generator().manual_seed(1)
        self.pattern = torch.randint(0, 256, (size + SHIFTS,), dtype=torch.uint8, generator=generator)
        if op == "allreduce":
            self.buffer = torch.zeros(size // 4, dtype=torch.float32)
        else:
            self.buffer = torch.zeros(size, dtype=torch.uint8)
        self.received = torch.zeros(size * self.ranks if op == "allgather" else size, dtype=torch.uint8)

    def bytes_of(self, sender, receiver, repetition, size):
        """Bytes that a rank has for another: a part of one table, which starts elsewhere each time."""
        start = (sender * 1031 + receiver * 257 + repetition * 17) % SHIFTS
        return self.pattern[start : start + size]

    def root_of(self, repetition):
        """Roots take turns, so that no repetition is under way before the last one is over."""
        return repetition % self.ranks

    def fill(self, repetition):
        block = self.size // self.ranks
        if self.op == "allgather" or (self.op == "bcast" and self.rank == self.root_of(repetition)):
            self.buffer.copy_(self.bytes_of(self.rank, 0, repetition, self.size))
        elif self.op == "allreduce":
            self.buffer.copy_(self.bytes_of(self.rank, 0, repetition, self.size // 4))
        elif self.op == "alltoall":
            for receiver in range(self.ranks):
                own = self.buffer[receiver * block : (receiver + 1) * block]
                own.copy_(self.bytes_of(self.rank, receiver, repetition, block))

    def run(self, repetition):
        if self.op == "allgather":
            # The older name and the newer one.
            gather = getattr(dist, "all_gather_into_tensor", None) or dist.all_gather_single
            gather(self.received, self.buffer)
        elif self.op == "bcast":
            dist.broadcast(self.buffer, self.root_of(repetition))
        elif self.op == "allreduce":
            dist.all_reduce(self.buffer)
        else:
            dist.all_to_all_single(self.received, self.buffer)

    def check(self, repetition):
        block = self.size // self.ranks
        if self.op == "bcast":
            right = torch.equal(self.buffer, self.bytes_of(self.root_of(repetition), 0, repetition, self.size))
        elif self.op == "allreduce":
            # Sums of small whole numbers, which are exact in any order.
            parts = [self.bytes_of(sender, 0, repetition, self.size // 4) for sender in range(self.ranks)]
            right = torch.equal(self.buffer, sum(part.to(torch.float32) for part in parts))
        else:
            size, receiver = (self.size, 0) if self.op == "allgather" else (block, self.rank)
            right = all(
                torch.equal(self.received[sender * size : (sender + 1) * size], self.bytes_of(sender, receiver, repetition, size))
                for sender in range(self.ranks)
            )
        if not right:
            raise SystemExit(f"rank {self.rank}: the received bytes are not those sent")


def measure(op, size, repetitions, warm_up, interface):
    bench = Bench(op, size)
    times, cpu, before = [], 0.0, (0, 0)
    for repetition in range(warm_up + repetitions):
        bench.fill(repetition)
        if repetition == warm_up:
            dist.barrier()
            before = count_bytes(interface)
        dist.barrier()
        cpu_before, begin = time.process_time(), time.perf_counter()
        bench.run(repetition)
        end, cpu_after = time.perf_counter(), time.process_time()
        dist.barrier()
        bench.check(repetition)
        if repetition >= warm_up:
            times.append(1e6 * (end - begin))
            cpu += cpu_after - cpu_before
    dist.barrier()
    after = count_bytes(interface)
    for _ in range(2 * repetitions):
        dist.barrier()
    dist.barrier()
    alone = count_bytes(interface)
    received, sent = ((after[i] - before[i] - (alone[i] - after[i])) / repetitions for i in (0, 1))
    sums = torch.tensor([sent, sent + received, cpu / repetitions], dtype=torch.float64)
    largest = torch.tensor(times, dtype=torch.float64)
    dist.reduce(sums, 0, op=dist.ReduceOp.SUM)
    dist.reduce(largest, 0, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        switch_bytes, port_bytes, cpu_s = sums.tolist()
        row = {"bytes": size, "switch_bytes": switch_bytes, "port_bytes": port_bytes, "cpu_s": cpu_s}
        print(json.dumps({**row, "samples_us": largest.tolist()}), flush=True)


def main():
    # An allreduce is in place in any case.
    op, repetitions, warm_up, interface = sys.argv[1].removesuffix("-in-place"), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    # More processes than cores.
    torch.set_num_threads(1)
    backend = os.environ.get("BACKEND", "gloo")
    if backend == "flexcast":
        # Registers it.
        import flexcast.torch  # noqa: F401
    dist.init_process_group(backend)
    for size in sys.argv[5:]:
        measure(op, int(size), repetitions, warm_up, interface)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
