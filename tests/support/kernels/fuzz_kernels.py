"""Random calls of the CPU kernels, compared with the plain torch reference: outputs and every gradient.

``python tests/support/kernels/fuzz_kernels.py --seconds 60`` runs until the time is over and prints its seed;
``--seed 7 --case 123`` runs one case again. `make sanitize` runs it against kernels that were compiled with sanitizers.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import time
from collections.abc import Callable

import torch
from cases import ALL, allowed
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import noisyact as na
from noisyact.ops import native
from noisyact.ops.activation import noisy_activation, reference
from noisyact.ops.matmul import matmul

LAYERS = {
    "lstm": (na.NoisyLSTM, na.NoisyLSTMCell, {}),
    "gru": (na.NoisyGRU, na.NoisyGRUCell, {}),
    "rnn_tanh": (na.NoisyRNN, na.NoisyRNNCell, {"nonlinearity": "tanh"}),
    "rnn_relu": (na.NoisyRNN, na.NoisyRNNCell, {"nonlinearity": "relu"}),
}
NOISE = [
    "nan",
    "nah",
    "nani",
    "nanil",
    "nanis",
    "nah:clip=True",
    "nan:alpha=0.9",
    "nah:draw=centred",
    "nah:draw=mean",
    None,
]
ESTIMATORS = [
    "straight-through:width=0.5", "slope:slope=2", "gumbel", "hard-concrete", "saturating-sigmoid",
    "straight-through:binary=True", "gumbel:binary=True",
]  # fmt: skip
# The largest error of an element, as a share of its tensor's largest one; results are rounded to the dtype.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 3e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
# How far inputs are moved to see whether a derivative jumps: a few roundings of the dtype.
NUDGE = {torch.float64: 1e-13, torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

Named = dict[str, Tensor]
Run = Callable[[Named], Named]


def any_size(rng: random.Random, low: int, high: int) -> int:
    """A size; every other one beside a multiple of the vectors' 4, 8 or 16 places, where rows end differently."""
    size = rng.randint(low, high)
    if rng.random() < 0.5:
        size = size // 16 * 16 + rng.choice([-1, 0, 1])
    return min(max(size, low), high)


def laid_out(rng: random.Random, values: Tensor) -> Tensor:
    """The same shape in some layout: contiguous, transposed, with gaps, at an offset, or broadcast."""
    kind = rng.choice(["contiguous", "transposed", "gaps", "offset", "expanded"]) if values.dim() else "contiguous"
    unused = float("nan") if values.is_floating_point() else True
    if kind == "transposed":
        return values.transpose(0, -1).contiguous().transpose(0, -1)
    if kind == "gaps":
        wide = torch.full((*values.shape[:-1], 2 * values.shape[-1] + 1), unused, dtype=values.dtype)
        wide[..., 1::2] = values
        return wide[..., 1::2]
    if kind == "offset":
        return torch.cat([values.new_full((1,), unused), values.reshape(-1)])[1:].reshape(values.shape)
    if kind == "expanded":
        dim = rng.randrange(values.dim())
        return values.narrow(dim, 0, min(1, values.shape[dim])).expand(values.shape)
    return values


def gradients(outputs: Named, leaves: Named) -> Named:
    """The gradients of a sum in which every element of the outputs has its own weight."""
    total = sum(
        (y * torch.linspace(0.5, 7, y.numel()).reshape(y.shape).cos().to(y.dtype)).sum() for y in outputs.values()
    )
    if not leaves or not isinstance(total, Tensor) or not total.requires_grad:
        return {}
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return {f"gradient of {name}": g for name, g in zip(leaves, found, strict=True)}


def difference(found: Named, expected: Named, tolerance: float) -> str | None:
    """What differs by more than the tolerance, if anything does."""
    if found.keys() != expected.keys():
        return f"results {sorted(found)}, expected {sorted(expected)}"
    for name, right in expected.items():
        mine = found[name]
        if mine.shape != right.shape or mine.dtype != right.dtype:
            return f"{name} is {mine.dtype} {tuple(mine.shape)}, expected {right.dtype} {tuple(right.shape)}"
        if not mine.isfinite().all():
            return f"{name} is not finite"
        if right.numel():
            error, size = (mine.double() - right.double()).abs().max().item(), right.double().abs().max().item()
            if error > tolerance * max(size, 1e-2):
                return f"{name} is off by {error:.3g} of {size:.3g}"
    return None


def compare(
    kernel: Callable[[Named], Named], right: Callable[[Named], Named], leaves: Named, dtype: torch.dtype
) -> bool:
    """Whether the kernel agrees; False where the reference itself jumps, as derivatives do at a kink.

    Rounding may then decide on which side of the kink a value lies. To tell, the reference is run with inputs that are
    moved by a few roundings.
    """
    expected = right(leaves)
    problem = difference(kernel(leaves), expected, TOLERANCE[dtype])
    if problem is None:
        return True
    for attempt in range(8):
        generator = torch.Generator().manual_seed(attempt)
        moved = {
            name: (t.detach() * (1 + NUDGE[dtype] * (2 * torch.rand(t.shape, generator=generator) - 1).to(t.dtype)))
            .to(t.dtype).requires_grad_(t.requires_grad)
            for name, t in leaves.items()
        }  # fmt: skip
        if difference(right(moved), expected, TOLERANCE[dtype] / 2) is not None:
            return False
    raise AssertionError(problem)


def recurrent_module(rng: random.Random, cell: bool, hidden: int, inputs: int, dtype: torch.dtype) -> tuple:
    """A layer or cell, its description, and how many first states it takes."""
    kind = rng.choice(list(LAYERS))
    noise = [*NOISE, *(ESTIMATORS[:2] if kind == "rnn_relu" else ESTIMATORS)]
    settings = {"noise": rng.choice(noise), "bias": rng.random() < 0.7, "dtype": dtype, **LAYERS[kind][2]}
    rules = ["expectation", "hard", "sample"]
    if kind in ("lstm", "gru"):
        rules += ["binary"] * 2
        if rng.random() < 0.4:
            settings["gate_noise"] = rng.choice(noise)
    settings |= {"eval_noise": rng.choice(rules), "hard": rng.random() < 0.6}
    if rng.random() < 0.3:
        settings["zoneout"] = rng.choice([0.3, (0.0, 0.5), (0.4, 0.0)] if kind == "lstm" else [0.3])
    if rng.random() < 0.3:
        settings["recurrent_dropout"] = 0.4
    if not cell:
        settings |= {"num_layers": rng.randint(1, 3), "bidirectional": rng.random() < 0.3}
        if kind == "lstm" and hidden > 1 and rng.random() < 0.4:
            settings["proj_size"] = any_size(rng, 1, hidden - 1)
    module = LAYERS[kind][cell](inputs, hidden, backend="cpu", **settings)
    module.train(rng.random() < 0.8)
    for parameter in module.parameters():
        parameter.requires_grad_(rng.random() < 0.8)
    return module, f"{kind} {hidden=} {inputs=} {settings}", 2 if kind == "lstm" else 1


def position(rng: random.Random, batch: int, first: str) -> dict:
    """A seed, and perhaps the place of the call in that seed's noise; `first` is the name of the step's argument."""
    if rng.random() < 0.5:
        return {}
    found: dict = {"seed": rng.getrandbits(62)}
    if rng.random() < 0.5:
        found[first] = rng.choice([1, 1000, 2**31 - 20])
    if rng.random() < 0.5:
        found["rows"] = laid_out(rng, torch.randint(-(2**40), 2**40, (batch,)))
    return found


def run_module(module: torch.nn.Module, leaves: Named, call: Run, grad: bool) -> Named:
    """The outputs and gradients of a call with the leaves; parameters are among them."""
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(leaves[name])
    torch.manual_seed(5)
    with torch.set_grad_enabled(grad):
        outputs = call(leaves)
    wanted = {name: t for name, t in {**leaves, **parameters}.items() if t.requires_grad}
    return {name: y.detach() for name, y in outputs.items()} | gradients(outputs, wanted)


def compare_modules(
    rng: random.Random, module: torch.nn.Module, given: Named, call: Callable[[torch.nn.Module, Named], Named]
) -> bool:
    twin = copy.deepcopy(module)
    twin.backend = "reference"
    leaves = {name: t.requires_grad_(rng.random() < 0.7) for name, t in given.items()}
    leaves |= {name: p.detach().clone().requires_grad_(p.requires_grad) for name, p in module.named_parameters()}
    grad = rng.random() < 0.9
    runs = [
        lambda leaves, m=m: run_module(m, leaves, lambda leaves: call(m, leaves), grad) for m in (module, twin)
    ]  # fmt: skip
    return compare(*runs, leaves, next(iter(given.values())).dtype)


def fuzz_layer(rng: random.Random) -> tuple[str, Callable[[], bool]]:
    """A layer over a batch, one sequence or a PackedSequence."""
    large = rng.random() < 0.1  # weights that do not fit the caches take other ways through the kernel
    hidden, inputs = any_size(rng, 130, 300) if large else any_size(rng, 1, 70), any_size(rng, 1, 300 if large else 40)
    steps, batch = (rng.randint(1, 3), rng.randint(1, 7)) if large else (rng.randint(1, 9), rng.randint(1, 9))
    dtype = rng.choice([torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16])
    module, text, states = recurrent_module(rng, False, hidden, inputs, dtype)
    form = rng.choice(["batch", "packed", "unsorted", "one sequence"])
    batch = 1 if form == "one sequence" else batch
    scale = rng.choice([0.1, 1.0, 3.0]) * hidden**0.5
    lengths = [rng.randint(1, steps) for _ in range(batch)]
    if form == "packed":
        lengths.sort(reverse=True)
    shape = {"batch": (steps, batch, inputs), "one sequence": (steps, inputs)}.get(form, (sum(lengths), inputs))
    given = {"x": laid_out(rng, (scale * torch.randn(shape)).to(dtype)).detach()}
    if rng.random() < 0.6:
        count = module.num_layers * (2 if module.bidirectional else 1)
        for i, width in enumerate([module.proj_size or hidden, hidden][:states]):
            shape = (count, width) if form == "one sequence" else (count, batch, width)
            given[f"state{i}"] = laid_out(rng, torch.randn(shape).to(dtype)).detach()
    used, named = rng.choice(["all", "y", "state0"]), position(rng, batch, "first_step")
    if form in ("batch", "one sequence") and rng.random() < 0.5:
        named["reset"] = laid_out(rng, torch.rand(given["x"].shape[:-1]) < rng.choice([0.1, 0.5, 1.0]))
        count = module.num_layers * (2 if module.bidirectional else 1)
        for i, width in enumerate([module.proj_size or hidden, hidden][:states] if rng.random() < 0.6 else []):
            shape = (count, width) if form == "one sequence" else (count, rng.choice([1, batch]), width)
            given[f"anew{i}"] = laid_out(rng, torch.randn(shape).to(dtype)).detach()

    def call(module: torch.nn.Module, leaves: Named) -> Named:
        hx = [leaves[f"state{i}"] for i in range(states) if f"state{i}" in leaves]
        x: Tensor | PackedSequence = leaves["x"]
        if form in ("packed", "unsorted"):
            x = pack_sequence(list(leaves["x"].split(lengths)), enforce_sorted=form == "packed")
        anew = [leaves[f"anew{i}"] for i in range(states) if f"anew{i}" in leaves]
        reset_to = {"reset_to": tuple(anew) if states == 2 else anew[0]} if anew else {}
        y, last = module(x, None if not hx else tuple(hx) if states == 2 else hx[0], **named, **reset_to)
        results = {"y": y.data if isinstance(y, PackedSequence) else y}
        results |= {f"state{i}": s for i, s in enumerate(last if states == 2 else [last])}
        return results if used == "all" else {used: results[used]}

    text = f"{text} {steps=} {batch=} {form} {lengths=} {dtype} {used=} {sorted(given)} {sorted(named)}"
    return text, lambda: compare_modules(rng, module, given, call)


def fuzz_cell(rng: random.Random) -> tuple[str, Callable[[], bool]]:
    """One step of a cell."""
    batch, hidden, inputs = rng.randint(0, 9), any_size(rng, 1, 70), any_size(rng, 1, 40)
    if rng.random() < 0.1:
        batch, hidden = rng.randint(9, 40), rng.randint(300, 600)
    dtype = rng.choice([torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16])
    module, text, states = recurrent_module(rng, True, hidden, inputs, dtype)
    rows = () if rng.random() < 0.2 else (batch,)
    given = {"x": laid_out(rng, (hidden**0.5 * torch.randn(*rows, inputs)).to(dtype)).detach()}
    if rng.random() < 0.7:
        shape = (*rows, hidden)
        given |= {f"state{i}": laid_out(rng, torch.randn(shape).to(dtype)).detach() for i in range(states)}
    named = position(rng, rows[0] if rows else 1, "step")
    if rng.random() < 0.3:
        named["reset"] = torch.rand(rows) < 0.5

    def call(module: torch.nn.Module, leaves: Named) -> Named:
        hx = [leaves[f"state{i}"] for i in range(states) if f"state{i}" in leaves]
        new = module(leaves["x"], None if not hx else tuple(hx) if states == 2 else hx[0], **named)
        return {f"new{i}": s for i, s in enumerate(new if states == 2 else [new])}

    text = f"{text} rows={rows} {dtype} {sorted(given)} {sorted(named)}"
    return text, lambda: compare_modules(rng, module, given, call)


def fuzz_activation(rng: random.Random) -> tuple[str, Callable[[], bool]]:
    """An activation of any shape, empty ones among them."""
    shape = tuple(rng.randint(0, 9) for _ in range(rng.randint(0, 4)))
    if rng.random() < 0.3:
        shape = (rng.randint(1, 9), any_size(rng, 1, rng.choice([300, 9000])))
    dtype, scheme = rng.choice([torch.float32, torch.float16, torch.bfloat16]), rng.choice(ALL)
    pair = rng.choice(list(allowed(scheme).values()))
    seed = torch.tensor(rng.getrandbits(63)) if rng.random() < 0.7 else None
    leaves = {"x": laid_out(rng, (3 * torch.randn(shape)).to(dtype)).detach().requires_grad_()}
    if scheme.learns_p and rng.random() < 0.8:
        size = shape[-1] if shape and rng.random() < 0.6 else 1
        leaves["p"] = laid_out(rng, 2 * torch.randn(size)).detach().requires_grad_(rng.random() < 0.7)
    scale, g = torch.tensor(scheme.scale), torch.randn(shape).to(dtype)

    def by_kernel(leaves: Named) -> Named:
        y = noisy_activation(leaves["x"], leaves.get("p"), scale, seed, scheme, pair)
        wanted = {name: t for name, t in leaves.items() if t.requires_grad}
        found = torch.autograd.grad(y, list(wanted.values()), g)
        return {"y": y.detach()} | dict(zip(wanted, found, strict=True))

    def right(leaves: Named) -> Named:
        arguments = (leaves["x"].detach(), leaves.get("p"), scale, seed, scheme, pair)
        found = dict(zip(("x", "p"), reference.backward(g, *arguments), strict=True))
        found = {name: found[name].detach() for name, t in leaves.items() if t.requires_grad}
        return {"y": reference.forward(*arguments).detach(), **found}

    text = f"activation {shape} {dtype} {scheme} {pair} {seed} p: {leaves['p'].shape if 'p' in leaves else None}"
    return text, lambda: compare(by_kernel, right, leaves, dtype)


def fuzz_matmul(rng: random.Random) -> tuple[str, Callable[[], bool]]:
    """A product of matrices in any layout, broadcast and empty ones among them."""
    rows, depth, columns = (any_size(rng, 0, 70) for _ in range(3))
    if rng.random() < 0.2:
        rows, depth = rng.choice([rng.randint(1, 400), 256]), rng.choice([1, 70, 767, 768, 769, 1600])
        columns = any_size(rng, 1, 200)
    leaves = {"left": laid_out(rng, torch.randn(rows, depth)), "right": laid_out(rng, torch.randn(depth, columns))}

    def exact(leaves: Named) -> Named:
        return {"product": (leaves["left"].double() @ leaves["right"].double()).float()}

    def by_kernel(leaves: Named) -> Named:
        return {"product": matmul(leaves["left"], leaves["right"])}

    text = f"product {[(tuple(t.shape), t.stride()) for t in leaves.values()]}"
    return text, lambda: compare(by_kernel, exact, leaves, torch.float32)


FUZZERS = {"layer": fuzz_layer, "cell": fuzz_cell, "activation": fuzz_activation, "product": fuzz_matmul}


def run_case(seed: int, index: int) -> bool:
    """One case, which seed and index decide. Raises with its description if it fails."""
    rng = random.Random(f"{seed}/{index}")
    torch.manual_seed(rng.getrandbits(32))
    name, threads, before = rng.choice(list(FUZZERS)), rng.randint(1, 4), torch.get_num_threads()
    text, run = FUZZERS[name](rng)
    torch.set_num_threads(threads)
    try:
        return run()
    except Exception as error:
        raise AssertionError(f"--seed {seed} --case {index}: {text} {threads=}: {error}") from error
    finally:
        torch.set_num_threads(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    parser.add_argument("--case", type=int)
    options = parser.parse_args()
    print(f"{native.status()}; seed {options.seed}", flush=True)
    if native.library() is None:
        sys.exit("there are no kernels to test")
    if options.case is not None:
        run_case(options.seed, options.case)
        return
    end, count, kinks = time.monotonic() + options.seconds, 0, 0
    while time.monotonic() < end:
        kinks += not run_case(options.seed, count)
        count += 1
    print(f"{count} cases agree with the reference, {kinks} of them except at a kink")
    if kinks > 0.1 * count:
        sys.exit("too many cases at a kink: these compare nothing")


if __name__ == "__main__":
    main()
