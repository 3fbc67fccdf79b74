"""The choice of backend for recurrent layers and cells, and a report that explains the choice."""

from __future__ import annotations

import functools
from typing import Any

import torch

from noisyact.compiling import constant
from noisyact.ops import native, triton
from noisyact.ops.dispatch import transformed
from noisyact.ops.recurrent.gpu.plan import processors
from noisyact.pairs import HardPair, Pair
from noisyact.recurrent import routing

__all__ = [
    "BACKENDS",
    "backend_info",
    "choose",
    "choose_uncached",
    "tf32",
    "why_never",
    "why_torch",
    "why_torch_uncached",
]

BACKENDS = ("auto", "reference", "cpu", "triton")


def check(backend: str) -> str:
    """Return the backend's name, or raise a ValueError if it is unknown."""
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r}: allowed are {', '.join(map(repr, BACKENDS))}")
    return backend


def choose_uncached(backend: str, device: torch.device, xi: bool, is_transformed: bool = False) -> str:
    """Choose "cpu", "triton" or "reference" for a layer or cell. A forced backend that cannot run raises an error.

    Code traced by torch.compile, which warns about cached functions, calls this; all other code :data:`choose`.

    Args:
        backend: "auto", or the name of the backend to force.
        device: the input's device.
        xi: whether the caller gives xi rather than a seed.
        is_transformed: whether a torch.func transform or forward-mode differentiation is active.
    """
    name = _of_device(device) if backend == "auto" else check(backend)  # the attribute may have been set
    if name == "reference":
        return name
    obstacle = _obstacle(name, device, xi, is_transformed)
    if obstacle is None:
        return name
    if backend != "auto":
        raise RuntimeError(f"backend={name!r} cannot run this: {obstacle}")
    return "reference"


choose = functools.lru_cache(maxsize=256)(choose_uncached)
"""The same function as :func:`choose_uncached` with a cache, for less host overhead."""


def why_torch_uncached(
    kind: str, device: torch.device, dtype: torch.dtype, steps: int, batch: int, hidden: int, projection: bool,
    tf32: bool,
) -> str | None:  # fmt: skip
    """The reason why "auto" uses torch's own layer for a soft layer without noise; None if it uses a kernel.

    It uses a kernel if the kernel can run and is faster; see :mod:`noisyact.recurrent.routing`.
    """
    name = _of_device(device)
    why = _obstacle(name, device, False, False)
    if why is not None:
        return why
    if name == "cpu":
        return routing.why_torch_on_cpu(kind, dtype, steps, projection)
    return routing.why_torch_on_gpu(kind, dtype, steps, batch, hidden, tf32, _processors(device), projection)


why_torch = functools.lru_cache(maxsize=1024)(why_torch_uncached)
"""The same function as :func:`why_torch_uncached` with a cache, for less host overhead."""


def why_never(module: Any) -> str | None:
    """The reason why "auto" uses torch's own layer for every input of a soft layer without noise; None if not for all.

    Args:
        module: a recurrent layer of torch or noisyact.
    """
    weight = next(module.parameters())
    sizes = module.hidden_size, module.proj_size > 0, tf32()
    layer = module.mode.lower(), weight.device, weight.dtype, routing.MANY_STEPS
    found = [why_torch(*layer, batch, *sizes) for batch in routing.BATCHES]
    return None if None in found else found[0]


@constant
def tf32() -> bool:
    """Whether nn.LSTM may use TF32 for float32 on a GPU."""
    return torch._C._get_cudnn_allow_tf32()


@constant
def _processors(device: torch.device) -> int:
    return processors(device)


def _of_device(device: torch.device) -> str:
    """The name of the kernel backend for a device."""
    return "cpu" if device.type == "cpu" else "triton"


def _obstacle(name: str, device: torch.device, xi: bool, is_transformed: bool) -> str | None:
    """The reason why a kernel cannot run; None if it can."""
    if is_transformed:
        return "a torch.func transform or forward-mode differentiation is active, which the kernels do not support"
    if name == "triton":
        why = triton.obstacle(device)
    elif device.type != "cpu":
        why = f"the input is on {device}, and the kernel runs on a CPU"
    else:
        why = None if _kernels_present() else _why_no_kernels()
    if why is not None:
        return why
    return "xi is given, and the kernel takes a seed" if xi else None


@constant
def _kernels_present() -> bool:
    return native.library() is not None


@constant
def _why_no_kernels() -> str:
    return native.status()


def backend_info(module: torch.nn.Module | None = None) -> str:
    """Describe the kernels of this installation and, for a noisy layer, cell or activation, which path it uses and why.

    >>> print(backend_info().splitlines()[0].split(":")[0])
    cpu
    """
    lines = [f"cpu: {native.status()}", f"triton: {_gpu_status()}"]
    if module is not None:
        is_recurrent = all(hasattr(module, name) for name in ("backend", "hard"))
        if not is_recurrent and not isinstance(getattr(module, "pair", None), (HardPair, Pair)):
            raise TypeError(f"backend_info takes a noisy layer, cell or activation, not {type(module).__name__}")
        path = _path(module) if is_recurrent else _path_of_activation(module)
        lines.append(f"{type(module).__name__}: {path}")
    return "\n".join(lines)


def _gpu_status() -> str:
    if not torch.cuda.is_available():
        return "no CUDA device"
    why = triton.obstacle(torch.device("cuda", torch.cuda.current_device()))
    return "kernels for this GPU, compiled at their first use" if why is None else f"not used: {why}"


def _path(module: Any) -> str:
    weight = next(module.parameters())
    is_soft_layer = isinstance(module, torch.nn.RNNBase) and not module.hard and module.noise is None
    is_soft_layer = is_soft_layer and not module.rounds  # the C and Triton kernels round
    if is_soft_layer and module.backend == "auto" and not _has_masks(module):
        why = why_never(module)
        if why is not None:
            return f"torch's own layer, which computes the same function: {why}"
        kernels = "the C kernel" if weight.is_cpu else "the Triton kernels"
        return f"{kernels}, or torch's own layer for inputs for which that is faster"
    arguments = (weight.device, False, transformed())
    path = choose(str(module.backend), *arguments)
    if path == "cpu":
        return "the C kernel"
    if path == "triton":
        return "the Triton kernels" + ("" if isinstance(module, torch.nn.RNNCellBase) else _launches(module, weight))
    why = _obstacle(_of_device(weight.device), *arguments)
    return "torch operations, one step at a time: " + (why or "backend='reference'")


def _has_masks(layer: Any) -> bool:
    """Whether every call of a layer has zoneout or recurrent dropout, which torch's own layer does not have."""
    return bool(layer.zoneout or (layer.recurrent_dropout and layer.training))


def _path_of_activation(module: Any) -> str:
    """The path for input on the module's device and of p's dtype. An activation's path depends on its input."""
    device, dtype = module.scale.device, torch.float32 if module.p is None else module.p.dtype
    if not isinstance(module.pair, HardPair):
        return "torch operations: the kernels support only piecewise linear functions"
    if dtype == torch.float64:
        return "torch operations: the kernel computes in float32, and the input is float64"
    name = _of_device(device)
    why = _obstacle(name, device, False, transformed())
    if why is not None:
        return f"torch operations: {why}"
    return f"{'the C kernel' if name == 'cpu' else 'the Triton kernels'} for {str(dtype).removeprefix('torch.')} input"


def _launches(module: Any, weight: torch.Tensor) -> str:
    """How many launches the layer needs, and why."""
    by_steps = "two or more launches per step, a product and a pointwise kernel"
    if getattr(module, "proj_size", 0):
        return f", {by_steps}: the kernels with the whole time loop have no projection"
    if weight.dtype == torch.float64:
        return f", {by_steps}: the kernels with the whole time loop compute in float32"
    if not processors(weight.device):
        return f", {by_steps}: programs cannot wait for each other on this device"
    return f", one launch for all steps if the layer's programs fit the GPU at once, else {by_steps}"
