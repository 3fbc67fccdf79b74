"""The measurement of one case: results are checked, then ours and torch's take turns."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable

import torch

from noisyact_lab.bench.grid.cases import Case
from noisyact_lab.bench.grid.check import check
from noisyact_lab.bench.grid.layers import Layers, build, forward_and_backward, inference, products_of
from noisyact_lab.bench.grid.peak import peak_megabytes
from noisyact_lab.bench.recurrent_gpu import graph, least_ms, peak_mib
from noisyact_lab.bench.timing import least_times

__all__ = ["COLUMNS", "Effort", "Refused", "Row", "checked", "measure"]

COLUMNS = ("both_ms", "graph_ms", "inference_ms", "memory_mib")
"""Forward and backward, the same as a CUDA graph, inference, and the peak memory of forward and backward."""

Call = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Row:
    """What was measured of one case. A column maps the names of the layers to milliseconds or MiB.

    A layer that could not be measured is missing in the column; `notes` has the reason.
    """

    case: Case
    checked: str
    both_ms: dict[str, float]
    graph_ms: dict[str, float]
    inference_ms: dict[str, float]
    memory_mib: dict[str, float]
    notes: list[str]


class Refused(Exception):
    """A case is not measured: its results are wrong, or it does not run. The message names the case and the reason."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is measured: turns of ten calls on a GPU; seconds for each column, and threads, on a CPU.

    With one thread, times are the thread's CPU time, which does not count the time that other programs take.
    """

    repeats: int = 8
    seconds: float = 1.0
    threads: int = 1
    memory: bool = True


def checked(case: Case, device: str) -> str | None:
    """Check a case and return how, or None if its results are wrong or it does not run.

    All kernels that :func:`measure` needs are in Triton's cache afterwards.
    """
    try:
        layers = build(case, device)
        found = check(case, layers)
        with products_of(case.dtype):
            for layer in layers.by_name.values():
                forward_and_backward(layer, layers)()
                inference(layer.eval(), layers)()
        return found
    except (AssertionError, RuntimeError, MemoryError):  # measure() says why
        return None
    finally:
        _free(device)


def measure(case: Case, device: str, effort: Effort, checked: str | None = None) -> Row:
    """Measure a case, and check it unless `checked` says how that was done.

    Raises: Refused, if its results are wrong or it does not run.
    """
    try:
        layers = build(case, device)
        checked = checked or check(case, layers)
        with products_of(case.dtype):
            return _measured(case, device, effort, layers, checked)
    except AssertionError as error:
        raise Refused(f"{case.name}: not measured, its results are wrong: {error}") from None
    except (RuntimeError, MemoryError) as error:  # such as torch.OutOfMemoryError
        raise Refused(f"{case.name}: does not run: {str(error).splitlines()[0][:200]}") from None
    finally:
        _free(device)


def _free(device: str) -> None:
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()


def _measured(case: Case, device: str, effort: Effort, layers: Layers, checked: str) -> Row:
    on_gpu, notes = torch.device(device).type == "cuda", []
    both = {name: forward_and_backward(layer, layers) for name, layer in layers.by_name.items()}
    both_ms = _times(both, on_gpu, effort)
    graph_ms: dict[str, float] = {}
    if on_gpu:
        recorded = {name: found for name, run in both.items() if (found := _recorded(name, run, notes)) is not None}
        graph_ms = _times(recorded, on_gpu, effort) if recorded else {}
        memory = {name: peak_mib(run) for name, run in both.items()}
    else:
        memory = peak_megabytes(case, list(both), effort.threads) if effort.memory else {}
    for layer in layers.by_name.values():
        layer.eval()
    inferences = {name: inference(layer, layers) for name, layer in layers.by_name.items()}
    return Row(case, checked, both_ms, graph_ms, _times(inferences, on_gpu, effort), memory, notes)


def _times(runs: dict[str, Call], on_gpu: bool, effort: Effort) -> dict[str, float]:
    """The milliseconds of each function. The functions take turns."""
    functions = list(runs.values())
    if on_gpu:
        found = least_ms(functions, effort.repeats)
    else:
        found = [1e3 * seconds for seconds in least_times(functions, effort.seconds, effort.threads)]
    return dict(zip(runs, found, strict=True))


def _recorded(name: str, run: Call, notes: list[str]) -> Call | None:
    """The function as a CUDA graph; None, with a note, if it cannot be recorded."""
    try:
        return graph(run)
    except RuntimeError as error:
        notes.append(f"{name}: not recorded as a CUDA graph: {str(error).splitlines()[0][:200]}")
        torch.cuda.synchronize()
        return None
