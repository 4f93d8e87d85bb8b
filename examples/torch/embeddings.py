# SPDX-License-Identifier: Apache-2.0
"""Trains a model whose gradients are mostly zero, rows of an embedding that no rank used, by DDP on flexcast: with its all_reduce, and with hooks that send what is not zero.

    python embeddings.py                    processes of this computer, over the loopback interface
    python embeddings.py --netns            each in a network namespace of its own at one bridge (needs root and iproute2)
    python embeddings.py --ranks 4 --reproducible --hooks allreduce,sparse

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

HOOKS = ("allreduce", "sparse", "topk")
CLASSES = 16


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hooks", default=",".join(HOOKS), help="how gradients are summed, with commas between: allreduce (no hook), sparse, topk")
    parser.add_argument("--fraction", type=float, default=0.01, help="fraction of the blocks that topk sends")
    parser.add_argument("--ranks", type=int, default=2, help="processes")
    parser.add_argument("--steps", type=int, default=10, help=f"steps after the first {WARM_UP}, which are not timed")
    parser.add_argument("--words", type=int, default=50_000, help="rows of the embedding")
    parser.add_argument("--width", type=int, default=64, help="numbers of a row")
    parser.add_argument("--batch", type=int, default=64, help="texts of a step on each rank, of 8 words each")
    parser.add_argument("--netns", action="store_true", help="each process in a network namespace of its own")
    parser.add_argument("--reproducible", action="store_true", help="sums are added in the order of ranks (the parameter `reproducible`)")
    parser.add_argument("--limit", type=float, default=300.0, help="longest time of one training in seconds")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = sorted(set(options.hooks.split(",")) - set(HOOKS))
    if unknown:
        parser.error(f"--hooks {options.hooks}: no {', '.join(unknown)}; there are {', '.join(HOOKS)}")
    return options


def train(options: argparse.Namespace) -> dict[str, Any]:
    """One rank: losses, seconds of each step, and bytes at the interface."""
    import torch
    import torch.distributed as dist
    from flexcast.torch.hooks import TopK, sparse_hook, topk_hook
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("flexcast")

    class Model(torch.nn.Module):
        """Tells the class of a text by the mean of its words."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(options.words, options.width)
            self.head = torch.nn.Linear(options.width, CLASSES)

        def forward(self, text: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.head(self.embedding(text).mean(1))
            return scores

    model = DistributedDataParallel(Model())
    if options.hooks == "sparse":
        model.register_comm_hook(None, sparse_hook)
    elif options.hooks == "topk":
        model.register_comm_hook(TopK(options.fraction), topk_hook)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
    # Words of one class each, some more frequent than others; other texts on every rank.
    generator = torch.Generator().manual_seed(1000 + options.rank)

    def loss() -> torch.Tensor:
        kind = torch.randint(CLASSES, (options.batch,), generator=generator)
        word = (torch.rand(options.batch, 8, generator=generator) ** 4 * (options.words // CLASSES)).long()
        text = word * CLASSES + kind.unsqueeze(1)
        return torch.nn.functional.cross_entropy(model(text), kind)

    every = steps.run(options, optimizer, loss)
    gradient = model.module.embedding.weight.grad
    assert gradient is not None
    zero = float((gradient == 0).all(1).float().mean())
    return {"parameters": parameters, "ranks": every, "torch": torch.__version__, "zero": zero}


def main() -> None:
    options = arguments()
    if options.rank is not None:
        result = train(options)
        if options.rank == 0:
            print(json.dumps(result))
        return
    results = {}
    for hook in options.hooks.split(","):
        print(f"training with {hook} ...", file=sys.stderr)
        given = ["--hooks", hook]
        for name in ("fraction", "ranks", "steps", "words", "width", "batch"):
            given += [f"--{name}", str(getattr(options, name))]
        # Without memory that ranks share, so that the interface counts what they send.
        variables = {"FLEXCAST_SHM": "0"} | ({"FLEXCAST_REPRODUCIBLE": "1"} if options.reproducible else {})
        results[hook] = launch(hook, __file__, given, options.ranks, options.limit, options.netns, variables)
    show(options, results)


def show(options: argparse.Namespace, results: dict[str, Any]) -> None:
    """What is printed of all trainings."""
    one = next(iter(results.values()))
    where = "network namespaces at one bridge" if options.netns else "processes of one computer"
    print(f"{one['parameters']:,} parameters, {options.ranks} {where}, torch {one['torch']}")
    print(f"rows of the embedding whose sum is zero, in the last step with {next(iter(results))}: {100 * one['zero']:.1f} %")
    print("loss (mean of ranks) ".ljust(28) + "".join(hook.rjust(16) for hook in results))
    losses = {hook: [sum(step) / options.ranks for step in zip(*(rank[0] for rank in result["ranks"]))] for hook, result in results.items()}
    for step in range(WARM_UP + options.steps):
        print(f"step {step}".ljust(28) + "".join(f"{losses[hook][step]:.9f}".rjust(16) for hook in results))
    medians = []
    for result in results.values():
        times = sorted(max(step) for step in zip(*(rank[1] for rank in result["ranks"])))
        medians.append(f"{1e3 * times[len(times) // 2]:.1f} ms")
    print("step, median (measured)".ljust(28) + "".join(text.rjust(16) for text in medians))
    # On one computer all ranks see the same loopback interface.
    total = sum if options.netns else max
    sent = [total(rank[2] for rank in result["ranks"]) / options.steps / 1e6 for result in results.values()]
    name = "sent a step, all hosts" if options.netns else "sent a step by lo"
    print(f"{name} (MB)".ljust(28) + "".join(f"{number:.3f}".rjust(16) for number in sent))
    if "allreduce" in results and "sparse" in results:
        print("losses of all ranks, sparse beside allreduce: " + differences([results["allreduce"], results["sparse"]]))


if __name__ == "__main__":
    main()
