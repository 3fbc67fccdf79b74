"""Random calls with one thing wrong: each must raise ValueError, RuntimeError or TypeError, and none may crash.

Sizes, dtypes and devices of weights, biases, states, p, xi, seeds, resets and rows, and the batch sizes of
PackedSequences. Every call is first made with valid arguments, so that only the invalid one can raise.
``python tests/support/kernels/fuzz_invalid.py --seconds 60`` prints its seed; ``--seed 7 --case 123`` repeats a case.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from fuzz_kernels import LAYERS
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import noisyact as na
from noisyact import functional
from noisyact.ops import native
from noisyact.ops.matmul import matmul
from noisyact.ops.recurrent.types import GATES, NONLINEARITIES
from noisyact.recurrent import functional as recurrent_functional

Arguments = dict[str, Any]
Call = Callable[[Arguments], Any]


def resized(rng: random.Random, tensor: Tensor, dim: int | None = None) -> Tensor:
    """The tensor with one dimension longer or shorter."""
    shape = list(tensor.shape)
    dim = rng.randrange(len(shape)) if dim is None else dim
    shape[dim] = rng.choice([n for n in range(shape[dim] + 4) if n != shape[dim]])
    return torch.ones(shape, dtype=tensor.dtype)


def spoilt(rng: random.Random, tensor: Tensor) -> Tensor:
    """Another size, number of dimensions, dtype or device."""
    ways: dict[str, Callable[[], Tensor]] = {
        "size": lambda: resized(rng, tensor),
        "dimension more": lambda: tensor.detach()[None, None] if tensor.dim() > 1 else torch.ones(2, *tensor.shape),
        "dimensions": lambda: torch.ones(()) if tensor.dim() else torch.ones(2, 3),
        "integers": lambda: torch.ones(tensor.shape, dtype=torch.int64),
        "complex": lambda: torch.ones(tensor.shape, dtype=torch.complex64),
        "meta": lambda: tensor.detach().to("meta"),
    }
    return ways[rng.choice(list(ways))]()


def spoilt_seed(rng: random.Random) -> Any:
    return rng.choice(
        [torch.tensor(3.0), torch.tensor([3, 4]), torch.tensor(3).to("meta"), torch.tensor(3).int(), "text"]
    )


def functional_layer(rng: random.Random) -> tuple[Call, Arguments, Arguments]:
    """noisy_lstm, noisy_gru or noisy_rnn."""
    kind = rng.choice(list(GATES))
    steps, batch, hidden, inputs = rng.randint(1, 4), rng.randint(1, 5), rng.randint(2, 20), rng.randint(1, 9)
    gates, count = GATES[kind] * hidden, NONLINEARITIES[kind]
    right: Arguments = {
        "x": torch.randn(steps, batch, inputs), "w_ih": torch.randn(gates, inputs), "w_hh": torch.randn(gates, hidden),
        "b_ih": torch.randn(gates), "b_hh": torch.randn(gates), "h": torch.randn(batch, hidden),
        "p": torch.randn(count * hidden), "seed": torch.tensor(7), "backend": rng.choice(["auto", "cpu", "reference"]),
        "hard": rng.random() < 0.6,
    }  # fmt: skip
    if kind == "lstm":
        right["c"] = torch.randn(batch, hidden)
    if rng.random() < 0.2:
        del right["seed"]
        right |= {"xi": torch.randn(steps, batch, count, hidden), "backend": "auto"}
    elif rng.random() < 0.5:
        right |= {"reset": torch.rand(steps, batch) < 0.3, "rows": torch.arange(batch), "zoneout": 0.2}
        right |= {"anew_h": torch.randn(batch, hidden), "recurrent_dropout": 0.2}
        right |= {"anew_c": torch.randn(batch, hidden)} if kind == "lstm" else {}

    def call(given: Arguments) -> Any:
        given = dict(given)
        h, c, anew = given.pop("h"), given.pop("c", None), (given.pop("anew_h", None), given.pop("anew_c", None))
        if "reset" in given:
            given["reset_to"] = anew if kind == "lstm" else anew[0]
        if kind == "lstm":
            return recurrent_functional.noisy_lstm(hx=(h, c), **given)
        if kind == "gru":
            return recurrent_functional.noisy_gru(hx=h, **given)
        return recurrent_functional.noisy_rnn(hx=h, nonlinearity=kind[4:], **given)

    name = rng.choice([name for name in right if name not in ("backend", "hard")])
    if name in ("zoneout", "recurrent_dropout"):
        return call, right, {name: rng.choice([-0.1, 1.0, 2.0, "text", None, True])}
    wrong = spoilt_seed(rng) if name == "seed" else spoilt(rng, right[name])
    if name == "rows" and wrong.dtype == torch.int64 and wrong.shape == (batch,) and wrong.is_cpu:
        wrong = wrong.int()
    if name.startswith("anew") and wrong.dim() == 2 and wrong.shape[0] == 1:  # one state for all rows is no error
        wrong = resized(rng, right[name], 1)
    if name == "x" and wrong.dim() == 3:
        wrong = resized(rng, right["x"], 2) if wrong.dtype == torch.float32 and wrong.device.type == "cpu" else wrong
    return call, right, {name: wrong}


def wrong_sizes(rng: random.Random, sizes: list[int]) -> Tensor:
    """Batch sizes that no packing gives for so many rows."""
    at = rng.randrange(len(sizes))
    ways = [
        sorted([*sizes[:-1], sizes[-1] + 2]),  # rising, or more rows than there are
        [*sizes[:at], -sizes[at], *sizes[at + 1 :]],
        [*sizes[:at], sizes[at] + rng.choice([-1, 1]), *sizes[at + 1 :]],
        [sizes[0], sizes[0] + 5, *sizes[1:], -sizes[0] - 5],
        [2**62, *sizes],
        [],
    ]
    return torch.tensor(rng.choice(ways), dtype=torch.int64)


def layer_module(rng: random.Random) -> tuple[Call, Arguments, Arguments]:
    """A layer whose input, state, weights or packing are wrong."""
    kind = rng.choice(list(LAYERS))
    batch, hidden, inputs = rng.randint(1, 5), rng.randint(2, 20), rng.randint(1, 9)
    settings = {"backend": rng.choice(["auto", "cpu", "reference"]), "hard": rng.random() < 0.6, **LAYERS[kind][2]}
    projection = rng.randint(1, hidden - 1) if kind == "lstm" and rng.random() < 0.4 else 0
    module = LAYERS[kind][0](inputs, hidden, proj_size=projection, **settings)
    sizes = sorted((rng.randint(1, batch) for _ in range(rng.randint(0, 4))), reverse=True)
    right: Arguments = {name: p.detach() for name, p in module.named_parameters()}
    right |= {"data": torch.randn(sum([batch, *sizes]), inputs), "sizes": torch.tensor([batch, *sizes])}
    right["h"] = torch.randn(1, batch, projection or hidden)
    if kind == "lstm":
        right["c"] = torch.randn(1, batch, hidden)

    def call(given: Arguments) -> Any:
        own = with_parameters(module, given)
        hx = (given["h"], given["c"]) if kind == "lstm" else given["h"]
        return own(PackedSequence(given["data"], given["sizes"]), hx)

    name = rng.choice(list(right))
    wrong = wrong_sizes(rng, right["sizes"].tolist()) if name == "sizes" else spoilt(rng, right[name])
    return call, right, {name: wrong}


def with_parameters(module: nn.Module, given: Arguments) -> nn.Module:
    """The module with these in place of its parameters, as plain tensors or whatever they are."""
    own = copy.deepcopy(module)
    for name in dict(module.named_parameters()):
        holder, _, last = name.rpartition(".")
        part = own.get_submodule(holder)
        delattr(part, last)
        setattr(part, last, given[name])
    return own


def cell_module(rng: random.Random) -> tuple[Call, Arguments, Arguments]:
    """A cell with a wrong input, state, weight, p or xi."""
    kind = rng.choice(list(LAYERS))
    batch, hidden, inputs = rng.randint(1, 5), rng.randint(2, 20), rng.randint(1, 9)
    settings = {"backend": rng.choice(["auto", "cpu", "reference"]), "hard": rng.random() < 0.6, **LAYERS[kind][2]}
    module = LAYERS[kind][1](inputs, hidden, **settings)
    right: Arguments = {name: p.detach() for name, p in module.named_parameters()}
    right |= {"x": torch.randn(batch, inputs), "h": torch.randn(batch, hidden)}
    if kind == "lstm":
        right["c"] = torch.randn(batch, hidden)
    if rng.random() < 0.3:
        right["xi"] = torch.randn(batch, NONLINEARITIES[kind], hidden)

    def call(given: Arguments) -> Any:
        hx = (given["h"], given["c"]) if kind == "lstm" else given["h"]
        return with_parameters(module, given)(given["x"], hx, given.get("xi"))

    name = rng.choice([name for name in right if not name.startswith("bias")])  # F.linear broadcasts a bias of one
    return call, right, {name: spoilt(rng, right[name])}


def activation(rng: random.Random) -> tuple[Call, Arguments, Arguments]:
    """An activation whose x, p, xi or seed is wrong, as function and as operation."""
    features = rng.randint(2, 300)
    right: Arguments = {"x": torch.randn(rng.randint(1, 5), features), "p": torch.randn(features)}
    as_operation = rng.random() < 0.4
    noise = "seed" if as_operation or rng.random() < 0.6 else "xi"
    right[noise] = torch.tensor(7) if noise == "seed" else torch.randn(right["x"].shape)

    def call(given: Arguments) -> Any:
        if as_operation:
            numbers = (str(na.NAH()), [1.0, 0.0, -1.0, 1.0])
            return torch.ops.noisyact.activation(given["x"], given["p"], torch.tensor(0.5), given["seed"], *numbers)
        return functional.noisy_hard_tanh(given["x"], "nah", **{k: v for k, v in given.items() if k != "x"})

    name = rng.choice(list(right))
    wrong = spoilt_seed(rng) if name == "seed" else spoilt(rng, right[name])
    if as_operation and isinstance(wrong, Tensor) and wrong.device.type == "meta":
        wrong = torch.tensor([3, 4])  # torch gives such calls to the operation's shape function, not to the kernel
    if name == "x" and wrong.shape[-1:] == (features,) and wrong.is_floating_point():
        wrong = torch.ones(2, features + 1)  # another number of rows, or of dimensions, is no error
    if name == "p" and (wrong.numel() == 1 or wrong.dim() == 3):
        wrong = torch.ones(features + 1)  # one p for all is no error, nor are dimensions of 1 before the last
    return call, right, {name: wrong}


def matrix_product(rng: random.Random) -> tuple[Call, Arguments, Arguments]:
    """A product of matrices that do not fit each other."""
    rows, depth, columns = (rng.randint(2, 20) for _ in range(3))
    right: Arguments = {"left": torch.randn(rows, depth), "right": torch.randn(depth, columns)}
    name = rng.choice(list(right))
    wrong = spoilt(rng, right[name])
    if wrong.dim() == 2 and wrong.dtype == torch.float32:
        wrong = resized(rng, right[name], 1 if name == "left" else 0) if wrong.device.type == "cpu" else wrong
    return lambda given: matmul(**given), right, {name: wrong}


FUZZERS = [functional_layer, layer_module, cell_module, activation, matrix_product]


def described(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)} on {value.device}" if isinstance(value, Tensor) else repr(value)


def run_case(seed: int, index: int) -> None:
    """One case, which seed and index decide."""
    rng = random.Random(f"{seed}/{index}")
    torch.manual_seed(rng.getrandbits(32))
    fuzzer = rng.choice(FUZZERS)
    call, right, wrong = fuzzer(rng)
    call(right)
    changes = ", ".join(f"{name}: {described(value)} for {described(right[name])}" for name, value in wrong.items())
    text = f"--seed {seed} --case {index}: {fuzzer.__name__}, {right.get('backend', '')} {changes}"
    try:
        call(right | wrong)
    except Exception as error:
        if not isinstance(error, (ValueError, RuntimeError, TypeError)) or not str(error):
            raise AssertionError(f"{text}: {type(error).__name__}: {error}") from error
    else:
        raise AssertionError(f"{text}: no error")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    parser.add_argument("--case", type=int)
    parser.add_argument("--all", action="store_true", help="go on after a failure")
    options = parser.parse_args()
    print(f"{native.status()}; seed {options.seed}", flush=True)
    if options.case is not None:
        run_case(options.seed, options.case)
        return
    end, count, failures = time.monotonic() + options.seconds, 0, 0
    while time.monotonic() < end:
        try:
            run_case(options.seed, count)
        except AssertionError as error:
            if not options.all:
                raise
            failures += 1
            print(error, flush=True)
        count += 1
    print(f"{count} invalid calls, {count - failures} of them refused with an error")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
