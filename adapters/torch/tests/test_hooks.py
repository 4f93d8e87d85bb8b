# SPDX-License-Identifier: Apache-2.0
"""Communication hooks of DistributedDataParallel, with torch itself."""

from __future__ import annotations

import importlib.util
import unittest
from collections.abc import Callable
from typing import Any

import ranks

HAS_TORCH = importlib.util.find_spec("torch") is not None

if HAS_TORCH:
    import torch
    import torch.distributed as dist
    from test_torch import _begin
    from torch.nn.parallel import DistributedDataParallel

WORDS, WIDTH = 400, 64


class Model(torch.nn.Module if HAS_TORCH else object):  # type: ignore[misc]
    """An embedding, most of whose rows no step uses, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.hidden, self.head = torch.nn.Linear(WIDTH, 33), torch.nn.Linear(33, 7)

    def forward(self, words: Any) -> Any:
        return self.head(torch.relu(self.hidden(self.embedding(words).mean(1))))


def _train(rank: int, register: Callable[[Any], None], steps: int = 6, again: bool = False) -> tuple[list[float], list[Any]]:
    """Losses and parameters after some steps of DDP with several buckets, with other data in each step or the same `again`."""
    torch.manual_seed(3)
    model = DistributedDataParallel(Model(), bucket_cap_mb=0.02)
    register(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.0 if again else 0.9)
    generator = torch.Generator().manual_seed(100 + rank)
    losses = []
    for _ in range(steps):
        if again:
            generator.manual_seed(100 + rank)
        words, target = torch.randint(WORDS, (4, 5), generator=generator), torch.randint(7, (4,), generator=generator)
        loss = torch.nn.functional.cross_entropy(model(words), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


def training(rank: int, size: int) -> int:
    """With everything sent, training is that of DDP without a hook; with a part of it, it learns."""
    _begin()
    from flexcast.torch import hooks

    count = 0
    plain, weights = _train(rank, lambda model: None)
    registers: dict[str, Callable[[Any], None]] = {
        "sparse": lambda model: model.register_comm_hook(None, hooks.sparse_hook),
        "sparse, small blocks": lambda model: model.register_comm_hook(hooks.Sparse(block_bytes=256, blocks_per_message=4), hooks.sparse_hook),
        "all": lambda model: model.register_comm_hook(hooks.TopK(1.0), hooks.topk_hook),
        "all, without feedback": lambda model: model.register_comm_hook(hooks.TopK(1.0, error_feedback=False), hooks.topk_hook),
    }
    for name, register in registers.items():
        losses, parameters = _train(rank, register)
        for one, other in zip(parameters, weights):
            same = torch.equal(one, other) if size == 2 else torch.allclose(one, other, rtol=1e-5, atol=1e-6)
            assert same, f"{name}: {(one - other).abs().max()}"
            count += 1
        assert size > 2 or losses == plain, (name, losses, plain)
    few, parameters = _train(rank, lambda model: model.register_comm_hook(hooks.TopK(0.1), hooks.topk_hook), 30, again=True)
    assert few[-1] < few[0] and not torch.equal(parameters[0], weights[0]), few
    # Whatever was sent, all ranks have the same weights.
    for parameter in parameters:
        every = [torch.empty_like(parameter) for _ in range(size)]
        dist.all_gather(every, parameter)
        assert all(torch.equal(one, parameter) for one in every)
        count += 1
    dist.destroy_process_group()
    return count


class Bucket:
    """A bucket of DDP, as hooks see it, with a gradient for each parameter."""

    def __init__(self, index: int, parameters: list[Any], buffer: Any) -> None:
        self._index, self._parameters, self._buffer = index, parameters, buffer

    def index(self) -> int:
        return self._index

    def parameters(self) -> list[Any]:
        return self._parameters

    def buffer(self) -> Any:
        return self._buffer

    def gradients(self) -> list[Any]:
        parts = torch.split(self._buffer, [parameter.numel() for parameter in self._parameters])
        return [part.view(parameter.shape) for part, parameter in zip(parts, self._parameters)]


def nothing_is_lost(rank: int, size: int) -> int:
    """Sums of what was sent and what was not yet are the sums of the gradients, exactly, also when DDP changes its buckets."""
    _begin()
    from flexcast.torch import hooks

    # Whole numbers, and a power of two of ranks: every sum and quotient is exact.
    assert size & (size - 1) == 0
    count = 0
    for fraction in (0.01, 0.3, 1.0):
        for block_bytes in (256, 1024):
            state = hooks.TopK(fraction, block_bytes=block_bytes)
            parameters = [torch.zeros(shape) for shape in ((50, 16), (1,), (700,), (3, 5, 7))]
            sums = [torch.zeros_like(parameter) for parameter in parameters]
            got = [torch.zeros_like(parameter) for parameter in parameters]
            generator = torch.Generator().manual_seed(17 * rank + 1)
            sent = 0
            for step in range(12):
                # From the third step on in another order and other buckets.
                buckets = [[0, 1], [2, 3]] if step < 3 else [[3, 2, 1], [0]]
                for index, members in enumerate(buckets):
                    own = [parameters[member] for member in members]
                    gradients = [torch.randint(-50, 51, parameter.shape, generator=generator).float() for parameter in own]
                    bucket = Bucket(index, own, torch.cat([gradient.reshape(-1) for gradient in gradients]))
                    for member, gradient in zip(members, gradients):
                        sums[member] += gradient
                    result = hooks.topk_hook(state, bucket).wait()
                    blocks = -(-result.numel() * 4 // block_bytes)
                    assert step > 0 or len({at // (block_bytes // 4) for at in result.nonzero().flatten().tolist()}) <= size * max(1, -(-blocks * fraction // 1))
                    sent += int(result.count_nonzero())
                    for member, part in zip(members, torch.split(result, [parameter.numel() for parameter in own])):
                        got[member] += size * part.view(parameters[member].shape)
            for member, parameter in enumerate(parameters):
                left = state.residual(parameter)
                assert left is not None and (fraction < 1.0 or not left.any())
                total, rest = sums[member].clone(), left.clone()
                dist.all_reduce(total)
                dist.all_reduce(rest)
                assert torch.equal(got[member] + rest, total), (fraction, block_bytes, member)
                count += 1
            assert sent > 0
    # Without feedback the rest is gone.
    state = hooks.TopK(0.01, error_feedback=False)
    bucket = Bucket(0, [torch.zeros(1000)], torch.ones(1000))
    result = hooks.topk_hook(state, bucket).wait()
    assert 0 < int(result.count_nonzero()) <= 256 * size and state.residual(bucket.parameters()[0]) is None
    # Of one block's size: the block with the largest norm is the one that is sent.
    buffer = torch.ones(1024)
    buffer[512 + rank] = 100.0
    result = hooks.topk_hook(hooks.TopK(0.25), Bucket(0, [torch.zeros(1024)], buffer)).wait()
    assert torch.equal(result.nonzero().flatten(), torch.arange(512, 768)) and result[512] == (100.0 + size - 1) / size
    count += 4
    dist.destroy_process_group()
    return count


def types_and_refusals(rank: int, size: int) -> int:
    """Element types, a datapath or group that carries no sparse sums, wrong arguments."""
    _begin()
    from flexcast.torch import hooks

    count = 0
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int32):
        tensor = torch.zeros(3000, dtype=dtype)
        tensor[700:900] = rank + 1
        backend.allreduce_zeros(tensor).wait()
        expected = torch.zeros(3000, dtype=dtype)
        expected[700:900] = size * (size + 1) // 2
        assert torch.equal(tensor, expected), dtype
        if dtype.is_floating_point or dtype.is_complex:
            state = hooks.TopK(0.1)
            half = hooks.topk_hook(state, Bucket(0, [torch.zeros(3000, dtype=dtype)], expected.clone())).wait()
            assert half.dtype == dtype and half.any(), dtype
        count += 1
    # Not contiguous; nothing; a type that gloo sums.
    wide = torch.ones(2000)[::2]
    backend.allreduce_zeros(wide).wait()
    assert torch.equal(wide, torch.full((1000,), float(size)))
    backend.allreduce_zeros(torch.zeros(0)).wait()
    other = dist.new_group(backend="gloo")
    wrong: list[tuple[str, Callable[[], Any]]] = [
        ("backend gloo", lambda: hooks.sparse_hook(other, Bucket(0, [torch.zeros(3)], torch.ones(3)))),
        ("fraction = 0.0", lambda: hooks.TopK(0.0)),
        ("fraction = 1.5", lambda: hooks.TopK(1.5)),
        ("block_bytes = 100", lambda: hooks.Sparse(block_bytes=100)),
        ("blocks_per_message = 0", lambda: hooks.Sparse(blocks_per_message=0)),
    ]
    for said, call in wrong:
        try:
            call()
        except ValueError as error:
            assert said in str(error), error
        else:
            raise AssertionError(f"{said} was taken")
        count += 1
    part = dist.new_group([0, 1], backend="flexcast")
    if rank < 2:
        result = hooks.sparse_hook(part, Bucket(0, [torch.zeros(3)], torch.full((3,), 2.0 * rank))).wait()
        assert torch.equal(result, torch.ones(3))
    dist.destroy_process_group()
    return count


@unittest.skipUnless(HAS_TORCH, "no torch: pip install torch")
class Hooks(unittest.TestCase):
    """Hooks among processes over the datapath `udp` on the loopback interface."""

    def test_training_2(self) -> None:
        ranks.run("test_hooks:training", 2)

    def test_training_3(self) -> None:
        ranks.run("test_hooks:training", 3)

    def test_nothing_is_lost_2(self) -> None:
        ranks.run("test_hooks:nothing_is_lost", 2)

    def test_nothing_is_lost_4(self) -> None:
        ranks.run("test_hooks:nothing_is_lost", 4)

    def test_types_and_refusals(self) -> None:
        ranks.run("test_hooks:types_and_refusals", 3)


if __name__ == "__main__":
    unittest.main()
