"""One small case of every GPU kernel, for NVIDIA's compute-sanitizer.

Run it once without the tool, so that the kernels are compiled, then

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1
    compute-sanitizer --tool memcheck --error-exitcode 9 python tests/support/kernels/gpu_sanitized.py
    compute-sanitizer --tool racecheck --error-exitcode 9 python tests/support/kernels/gpu_sanitized.py

and likewise with --tool initcheck and synccheck. Without the variable torch hands out parts of large blocks, and the
tool does not see a read past the end of a tensor. ``-k packed`` runs the cases with that in their names; with
TRITON_INTERPRET=1 all run on a CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from cases import ESTIMATORS
from programs_in_turns import take_turns
from recurrent_cases import Case
from torch import Tensor

import noisyact as na
from noisyact.ops.activation import triton as activation
from noisyact.ops.attention import triton as attention
from noisyact.ops.recurrent.gpu import layers as gpu
from noisyact.ops.recurrent.gpu.plan import processors
from noisyact.ops.recurrent.gpu.steps import cell as step
from noisyact.ops.recurrent.types import GATES, LayerWeights
from noisyact_lab.models import ntm_kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROCESSORS = processors(torch.device(DEVICE)) if DEVICE == "cuda" else 132
SHORT = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter cannot multiply bfloat16
SEED = torch.tensor(2**61 + 12345, device=DEVICE)

Run = Callable[[], list[Tensor]]


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (2 * torch.randn(shape)).to(DEVICE, dtype)


def activations() -> Iterator[tuple[str, Run]]:
    """Forward and backward: all schemes and estimators, one p, a p for each feature or none, 16 bits, expectations."""
    schemes = [na.NAN(), na.NAH(clip=True), na.NANI(), na.NANIL(), na.NANIS(), *ESTIMATORS]
    cases = [(scheme, (7, 33), "features", torch.float32, SEED) for scheme in schemes]
    cases += [(na.NAH(), shape, "one", torch.float32, SEED) for shape in ((1,), (129,), (5, 2049))]
    cases += [(na.NAH(), (3, 65), "features", torch.bfloat16, SEED), (na.NAH(), (3, 65), "none", torch.float16, None)]
    for scheme, shape, p_kind, dtype, seed in cases:

        def run(scheme=scheme, shape=shape, p_kind=p_kind, dtype=dtype, seed=seed) -> list[Tensor]:
            x, g = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype)
            p = normal(shape[-1] if p_kind == "features" else 1) if scheme.learns_p and p_kind != "none" else None
            scale = torch.tensor(scheme.scale, device=DEVICE)
            arguments = (x, p, scale, seed, scheme, na.HARD_TANH)
            return [activation.forward(*arguments), *activation.backward(g, *arguments)]

        yield f"activation {scheme.name} {shape} p {p_kind} {dtype}", run


def cells() -> Iterator[tuple[str, Run]]:
    """The pointwise part of one step and its gradients."""
    for kind, noise, batch in (
        ("lstm", "nah", 11),
        ("gru", "nan", 11),
        ("rnn_tanh", "nani", 3),
        ("rnn_relu", "nah", 3),
    ):

        def run(kind=kind, noise=noise, batch=batch) -> list[Tensor]:
            case = Case(kind, 1, batch, 70, noise=noise, device=DEVICE)
            a, h, c, p = (
                None if t is None else t.detach() for t in (normal(batch, GATES[kind] * 70), case.h0, case.c0, case.p)
            )
            q = normal(batch, 210) if kind == "gru" else None
            h = h if kind == "gru" else None
            place = {"first_step": 7, "rows": torch.arange(batch, device=DEVICE)}
            new, extra, kept = step.cell_forward(kind, a, q, h, c, p, SEED, case.cell_noise, **place)
            dc = normal(batch, 70) if kind == "lstm" else None
            found = step.cell_backward(
                kind, normal(batch, 70), dc, kept, extra, h, c, p, SEED, case.cell_noise, **place
            )
            return [new, extra, kept, *(t for t in found if t is not None)]

        yield f"cell {kind} {noise}", run


def layers() -> Iterator[tuple[str, Run]]:
    """Forward and backward of layers: all steps in one launch, weights in registers or in parts, or step by step."""
    small, odd = {"hidden": 40, "inputs": 16}, {"hidden": 37, "inputs": 7}
    large = {"hidden": 300 if DEVICE == "cuda" else 270, "inputs": 9}
    wide, middle = {"hidden": 133, "inputs": 7}, {"hidden": 100, "inputs": 7}
    packed, reverse = {**odd, "packed": True}, {**odd, "reverse": True, "state": False}
    ruled = {"share": 0.3, "zoneout": (0.3, 0.2), "dropout": 0.4, "first_step": 7, "places": True}
    masked = {"zoneout": (0.3, 0.2), "dropout": 0.4, "packed": True}
    short, soft = {**small, "dtype": SHORT}, {**odd, "hard": False, "bias": False, "has_p": False}
    cases = [
        ("one launch, products in it", PROCESSORS, "lstm", "nah", small),
        ("one launch, products in it", PROCESSORS, "gru", "nan", odd),
        ("one launch, products in it", PROCESSORS, "rnn_tanh", "nani", odd),
        ("one launch, packed", PROCESSORS, "lstm", "nanil", packed),
        ("one launch, packed", PROCESSORS, "gru", "nanis", {**packed, "reverse": True}),
        ("one launch, reverse", PROCESSORS, "lstm", "nan", reverse),
        ("one launch, 16 bits", PROCESSORS, "lstm", "nah", short),
        ("one launch, soft", PROCESSORS, "lstm", "nah", soft),
        ("one launch, all rules", PROCESSORS, "lstm", "nah", {**odd, **ruled}),
        ("one launch, all rules", PROCESSORS, "gru", "nah", {**odd, **ruled, "reverse": True, "state": False}),
        ("one launch, masks, packed", PROCESSORS, "lstm", "nah", {**odd, **masked}),
        ("one launch, estimator", PROCESSORS, "lstm", ESTIMATORS[5], odd),
        ("step by step, estimator", 0, "gru", ESTIMATORS[-1], odd),
        ("step by step", 0, "lstm", "nah", odd),
        ("step by step", 0, "gru", "nah", packed),
        ("step by step", 0, "rnn_relu", "nah", odd),
        ("step by step", 0, "lstm", "nah", large),
        ("step by step", 0, "gru", "nan", {**large, "packed": True}),
        ("step by step", 0, "lstm", "nah", {**odd, "dtype": torch.float64}),
        ("step by step", 0, "gru", "nanil", {**odd, "dtype": torch.float64, "reverse": True}),
        ("step by step", 0, "lstm", "nah", {**odd, "projection": 11}),
        ("step by step", 0, "lstm", "nah", {**packed, "projection": 11, "dtype": torch.float64}),
        ("step by step", 0, "lstm", "nah", {**odd, **ruled}),
        ("step by step", 0, "gru", "nah", {**odd, **ruled, "reverse": True}),
        ("step by step", 0, "lstm", "nah", {**odd, **ruled, "projection": 11}),
    ]
    if DEVICE == "cuda":  # the interpreter takes minutes for these
        cases += [
            ("one launch, programs wait for values", PROCESSORS, "lstm", "nah", middle),
            ("one launch, programs wait for values", PROCESSORS, "gru", "nan", {**middle, "packed": True}),
            ("one launch, programs wait for values", PROCESSORS, "lstm", "nah", {**middle, **ruled}),
            ("one launch, programs wait for each other", PROCESSORS, "lstm", "nah", wide),
            ("one launch, programs wait for each other", PROCESSORS, "gru", "nan", {**wide, "packed": True}),
            ("one launch, programs wait for each other", PROCESSORS, "lstm", "nah", {**wide, **ruled}),
            ("one launch, weights in parts, teams", PROCESSORS, "lstm", "nah", large),
            ("one launch, weights in parts, teams", PROCESSORS, "gru", "nan", large),
            ("one launch, weights in parts, teams", PROCESSORS, "rnn_tanh", "nan", large),
            ("one launch, weights in parts, teams", PROCESSORS, "lstm", "nah", {**large, "dtype": SHORT}),
            ("one launch, weights in parts, teams", PROCESSORS, "lstm", "nah", {**large, "packed": True}),
            ("one launch, weights in parts, teams, all rules", PROCESSORS, "lstm", "nah", {**large, **ruled}),
            ("one launch, weights in parts, teams, all rules", PROCESSORS, "gru", "nah", {**large, **ruled}),
        ]
    for name, room, kind, noise, sizes in cases:

        def run(kind=kind, noise=noise, sizes=sizes, room=room) -> list[Tensor]:
            case = Case(kind, 3, 5, noise=noise, device=DEVICE, **sizes)
            with planned_for(room):
                outputs = case.by_kernels()
                gradients = case.gradients(outputs, case.leaves())
                with torch.no_grad():
                    outputs += case.by_kernels()
            return [*outputs, *gradients.values()]

        yield f"layer {kind} {noise}: {name} {sizes}", run


@contextlib.contextmanager
def planned_for(room: int) -> Iterator[None]:
    """A region in which layers are planned for this many processors; 0 means a product and a kernel for each step."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("forward_plan", "backward_plan"):
            chosen = getattr(gpu, name)
            patch.setattr(gpu, name, lambda *sizes, chosen=chosen: chosen(*sizes[:4], room))
        if DEVICE == "cpu" and room:
            take_turns(patch)
        yield


def stacked_layers() -> Iterator[tuple[str, Run]]:
    """Two layers in one operation, which share their room; step by step they overlap."""

    def run(room: int) -> list[Tensor]:
        cases = [Case("gru", 9, 5, 24, inputs=inputs, device=DEVICE) for inputs in (7, 24)]
        weights = [LayerWeights(case.w_ih, case.w_hh, case.b_ih, case.b_hh, case.p) for case in cases]
        h, first = normal(2, 5, 24).requires_grad_(), cases[0]
        with planned_for(room):
            results = gpu.layers("gru", first.sizes, first.x, h, None, weights, [SEED, SEED], first.cell_noise, False)
            outputs = [result for result in results if result is not None]
            leaves = {
                str(i): leaf for i, leaf in enumerate([first.x, h, *itertools.chain(*(own[:5] for own in weights))])
            }
            return outputs + list(first.gradients(outputs, leaves).values())

    yield "layers gru, two: one launch", lambda: run(PROCESSORS)
    yield "layers gru, two: step by step", lambda: run(0)


def attention_scores() -> Iterator[tuple[str, Run]]:
    """The scores and their gradients: noisy with p and with none, soft."""
    functions = [
        (na.NAH(), (2, 1, 5, 64), attention.Function(na.NAH(), na.HARD_TANH, True)),
        (na.NANI(), (1, 2, 18, 128), attention.Function(na.NANI(), na.HARD_TANH, True)),
        (None, (1, 3, 3, 192), attention.Function()),
    ]
    for scheme, (batch, width, places, size), function in functions:

        def run(scheme=scheme, batch=batch, width=width, places=places, size=size, function=function) -> list[Tensor]:
            keys, query = normal(batch, places, size), normal(batch, width, size)
            v, g = normal(size), normal(batch, width, places)
            p = normal(1) if scheme is not None and scheme.learns_p else None
            scale, seed = (None, None) if scheme is None else (torch.tensor(scheme.scale, device=DEVICE), SEED)
            e, sums = attention.scores(keys, query, v, p, scale, seed, function), attention.sums_for(keys, p)
            gq = attention.add_gradients(g, keys, query, v, p, scale, seed, function, sums)
            return [e, gq, *(part for part in sums if part is not None)]

        yield f"attention {scheme} {(batch, width, places, size)}", run


def turing_machine() -> Iterator[tuple[str, Run]]:
    """The heads of the Neural Turing Machine."""
    for batch, heads, rows, width in ((3, 4, 16, 20), (2, 3, 7, 5)):

        def run(batch=batch, heads=heads, rows=rows, width=width) -> list[Tensor]:
            inputs = [normal(batch, heads * (4 * width + 12)), normal(batch, rows, width)]
            inputs = [t.requires_grad_() for t in (*inputs, torch.softmax(normal(batch, 2 * heads, rows), dim=2))]
            results = ntm_kernels.turn(*inputs)
            return [*results, *torch.autograd.grad(results, inputs, [torch.ones_like(r) for r in results])]

        yield f"Turing machine {(batch, heads, rows, width)}", run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", default="", help="run the cases with this in their names")
    chosen = parser.parse_args().k
    start, count = time.monotonic(), 0
    for part in (activations, cells, layers, stacked_layers, attention_scores, turing_machine):
        for name, run in part():
            if chosen not in name:
                continue
            torch.manual_seed(0)
            print(f"{time.monotonic() - start:6.1f} s  {name}", flush=True)
            results = run()
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            assert all(result.isfinite().all() for result in results), name
            count += 1
    print(f"{count} cases in {time.monotonic() - start:.0f} s, all results finite")


if __name__ == "__main__":
    main()
