# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer by FSDP2 on 4 processes, with the backends flexcast and gloo, and prints losses, times and bytes side by side.

    python train.py                      all processes on this computer: shared memory and the loopback interface
    python train.py --netns              each in a network namespace of its own at one bridge (needs root and iproute2)
    python train.py --backends flexcast --steps 20

Losses are compared to the last bit, times are wall times of this computer, and bytes are what the kernel counted at the interfaces.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import steps
from launch import differences, launch
from steps import WARM_UP

BACKENDS = ("flexcast", "gloo")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default=",".join(BACKENDS), help="backends, with commas between them")
    parser.add_argument("--ranks", type=int, default=4, help="processes")
    parser.add_argument("--steps", type=int, default=8, help=f"steps after the first {WARM_UP}, which are not timed")
    parser.add_argument("--layers", type=int, default=4, help="layers of the transformer")
    parser.add_argument("--width", type=int, default=256, help="its width")
    parser.add_argument("--netns", action="store_true", help="each process in a network namespace of its own")
    parser.add_argument("--reproducible", action="store_true", help="flexcast reduces in the order of ranks (its parameter `reproducible`)")
    parser.add_argument("--limit", type=float, default=300.0, help="longest time of one training in seconds")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def train(options: argparse.Namespace) -> dict[str, Any]:
    """One rank: losses, seconds of each step, and bytes at the interface."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    backend = options.backends
    if backend == "flexcast":
        import flexcast.torch  # noqa: F401
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group(backend)
    words, length = 512, 64
    model = transformer(words, length, options)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    for block in model.blocks.layers:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # Words that follow one another by a rule, other ones on every rank.
    generator = torch.Generator().manual_seed(1000 + options.rank)

    def loss() -> torch.Tensor:
        first = torch.randint(words, (2, 1), generator=generator)
        text = (first + 7 * torch.arange(length + 1)) % words
        return torch.nn.functional.cross_entropy(model(text[:, :-1]).reshape(-1, words), text[:, 1:].reshape(-1))

    every = steps.run(options, optimizer, loss)
    return {"parameters": parameters, "ranks": every, "torch": torch.__version__}


def transformer(words: int, length: int, options: argparse.Namespace) -> Any:
    """A model that tells the next word."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = options.width
            self.embedding = torch.nn.Embedding(words, width)
            block = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            self.blocks = torch.nn.TransformerEncoder(block, options.layers, enable_nested_tensor=False)
            self.head = torch.nn.Linear(width, words)
            self.register_buffer("mask", torch.nn.Transformer.generate_square_subsequent_mask(length))

        def forward(self, text: torch.Tensor) -> torch.Tensor:
            return self.head(self.blocks(self.embedding(text), mask=self.mask, is_causal=True))

    return Model()


def main() -> None:
    options = arguments()
    if options.rank is not None:
        result = train(options)
        if options.rank == 0:
            print(json.dumps(result))
        return
    backends = options.backends.split(",")
    results = {}
    for backend in backends:
        print(f"training with {backend} ...", file=sys.stderr)
        given = ["--backends", backend]
        for name in ("ranks", "steps", "layers", "width"):
            given += [f"--{name}", str(getattr(options, name))]
        variables = {"FLEXCAST_REPRODUCIBLE": "1"} if options.reproducible else {}
        results[backend] = launch(f"the backend {backend}", __file__, given, options.ranks, options.limit, options.netns, variables)
    show(options, results)


def show(options: argparse.Namespace, results: dict[str, Any]) -> None:
    """What is printed of all trainings."""
    one = next(iter(results.values()))
    where = "network namespaces at one bridge" if options.netns else "processes of one computer"
    print(f"{one['parameters']:,} parameters, {options.ranks} {where}, torch {one['torch']}")
    losses = {backend: [sum(step) / options.ranks for step in zip(*(rank[0] for rank in result["ranks"]))] for backend, result in results.items()}
    width = max(24, *(len(backend) for backend in results))
    print("loss (mean of ranks) ".ljust(28) + "".join(backend.rjust(width) for backend in results))
    for step in range(len(next(iter(losses.values())))):
        print(f"step {step}".ljust(28) + "".join(f"{losses[backend][step]:.9f}".rjust(width) for backend in results))
    times = {backend: sorted(max(step) for step in zip(*(rank[1] for rank in result["ranks"]))) for backend, result in results.items()}
    middle = {backend: f"{1e3 * values[len(values) // 2]:.1f} ms" for backend, values in times.items()}
    print("step, median (measured)".ljust(28) + "".join(middle[backend].rjust(width) for backend in results))
    # On one computer all ranks see the same loopback interface, and what goes by shared memory is in no counter.
    total = sum if options.netns else max
    sent = [total(rank[2] for rank in result["ranks"]) / options.steps / 1e6 for result in results.values()]
    name = "sent a step, all hosts" if options.netns else "sent a step by lo"
    print(f"{name} (MB)".ljust(28) + "".join(f"{number:.2f}".rjust(width) for number in sent))
    if len(results) == 2:
        print("losses of all ranks: " + differences(list(results.values())))


if __name__ == "__main__":
    main()
