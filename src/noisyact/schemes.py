"""The paper's five noise schemes as immutable values: which noise is drawn, where it is added, and its scale.

:mod:`noisyact.estimators` has the other ways to train hard functions, which are schemes too.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar

__all__ = ["DRAWS", "NAH", "NAN", "NANI", "NANIL", "NANIS", "Scheme", "scheme"]

DRAWS = ("sample", "mean", "centred")
"""The values of ``draw``, which says what training uses of the noise. Noise at the input has no "centred": there xi is
inside h and has mean 0, so there is no mean to subtract from it."""

_FLAGS = ("clip", "binary")
_NOT_NEGATIVE = ("c", "sigma", "width", "stretch")
_POSITIVE = ("slope", "tau", "beta")
_UNWRITTEN = (("draw", "sample"), ("binary", False), ("width", math.inf))
"""Settings that the text and the repr of a scheme leave out."""


@dataclasses.dataclass(frozen=True)
class Scheme:
    """Base class of the noise schemes NAN, NAH, NANI, NANIL and NANIS, and of the estimators.

    Schemes are values: two schemes of one class with equal settings are equal. They are hashable and picklable. ``str``
    converts a scheme to text and :func:`noisyact.scheme` parses the text.
    """

    name: ClassVar[str]
    code: ClassVar[int]
    """The integer that identifies the scheme in the kernels."""
    learns_p: ClassVar[bool]
    """Whether sigma depends on the learned parameter p."""
    at_input: ClassVar[bool]
    """Whether the noise is added to x, inside h, rather than to h(x)."""
    scale_name: ClassVar[str]
    if TYPE_CHECKING:
        _text: ClassVar[str]

    @property
    def scale(self) -> float:
        """What annealing changes: c, or sigma for schemes with a fixed sigma. Each estimator names its own."""
        return getattr(self, self.scale_name)

    @property
    def leak(self) -> float:
        """The weight ``1 - alpha`` of u in the output; 0 for noise at the input."""
        return 1.0 - getattr(self, "alpha", 1.0)

    @property
    def clips(self) -> bool:
        """Whether the output is clipped to the range of h."""
        return getattr(self, "clip", False)

    @property
    def draws(self) -> bool:
        """Whether training draws random numbers; False for ``draw="mean"``."""
        return getattr(self, "draw", "sample") != "mean"

    @property
    def smooths(self) -> bool:
        """Whether phi is the mean of h over noise at the input, ``E[h(x + sigma xi)]``: h smoothed by a Gaussian."""
        return self.at_input and not self.draws

    @property
    def centred(self) -> bool:
        """Whether the mean of epsilon is subtracted."""
        return getattr(self, "draw", "sample") == "centred"

    @property
    def needs_limits(self) -> bool:
        """Whether the scheme needs a function with two finite limits."""
        return False

    def with_scale(self, value: float) -> Scheme:
        """Return the same scheme with another scale.

        >>> NAH(c=30.0).with_scale(0.5)
        NAH(c=0.5, alpha=1.15, clip=False)
        """
        return dataclasses.replace(self, **{self.scale_name: value})

    def __str__(self) -> str:
        return self._text

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            where = f"{type(self).__name__}({field.name}={value!r})"
            if field.name in _FLAGS:
                if not isinstance(value, bool):
                    raise TypeError(f"{where}: {field.name} must be True or False")
                continue
            if field.name == "draw":
                allowed = DRAWS[:2] if self.at_input else DRAWS
                if value not in allowed:
                    raise ValueError(f"{where}: draw must be one of {', '.join(map(repr, allowed))}")
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{where}: {field.name} must be a number")
            if math.isnan(value) or (math.isinf(value) and field.name != "width"):
                raise ValueError(f"{where}: {field.name} must be finite")
            if field.name in _NOT_NEGATIVE and value < 0:
                raise ValueError(f"{where}: {field.name} must be at least 0")
            if field.name in _POSITIVE and value <= 0:
                raise ValueError(f"{where}: {field.name} must be above 0")
            object.__setattr__(self, field.name, float(value))
        settings = ",".join(f"{name}={value}" for name, value in self._settings())
        text = f"{self.name}:{settings}" if settings else self.name
        object.__setattr__(self, "_text", text)  # built once: every kernel call passes it

    def _settings(self) -> list[tuple[str, object]]:
        """The names and values of the settings, without those of :data:`_UNWRITTEN`."""
        settings = [(field.name, getattr(self, field.name)) for field in dataclasses.fields(self)]
        return [setting for setting in settings if setting not in _UNWRITTEN]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._settings())})"


@dataclasses.dataclass(frozen=True, repr=False)
class _OutputNoise(Scheme):
    c: float = 0.5
    alpha: float = 1.15
    clip: bool = False
    draw: str = "sample"

    learns_p = True
    at_input = False
    scale_name = "c"


@dataclasses.dataclass(frozen=True, repr=False)
class NAN(_OutputNoise):
    """Normal noise at the output that grows with the saturation.

    ``phi(x, xi) = alpha h(x) + (1 - alpha) u(x) + d(x) sigma(x) xi`` with ``sigma(x) = c (sigmoid(p Delta) - 1/2)^2``,
    ``Delta = h(x) - u(x)`` and ``d(x) = -sgn(x) sgn(1 - alpha)``.

    Args:
        c: the noise scale; sigma never exceeds c / 4.
        alpha: the weight of h; the leak u has weight 1 - alpha. The authors' code uses 1.15 for tanh.
        clip: clip the result to the range of h, as the authors' code did for tanh.
        draw: what replaces xi (for NAH: |xi|) in training. ``"sample"`` is a fresh draw, as in the paper. ``"mean"`` is
            its mean, which is 0 for NAN: training draws no random numbers, and phi is its own expectation.
            ``"centred"`` is the draw minus its mean, so that the expectation is ``alpha h + (1 - alpha) u``. Together
            they separate what the leak, the mean of the noise and its randomness contribute.

    >>> NAN(c=0.3)
    NAN(c=0.3, alpha=1.15, clip=False)
    """

    name = "nan"
    code = 0


@dataclasses.dataclass(frozen=True, repr=False)
class NAH(_OutputNoise):
    """Half-normal noise at the output: :class:`NAN` with |xi| instead of xi. The noise always points towards h.

    Its mean is sqrt(2 / pi) sigma, a leak of learned strength. ``draw="mean"`` trains with this mean and without
    randomness, ``draw="centred"`` with the randomness and without the mean.

    >>> str(NAH(alpha=1.0))
    'nah:c=0.5,alpha=1.0,clip=False'
    >>> NAH(draw="centred")
    NAH(c=0.5, alpha=1.15, clip=False, draw='centred')
    """

    name = "nah"
    code = 1


@dataclasses.dataclass(frozen=True, repr=False)
class NANI(Scheme):
    """Normal noise with fixed sigma at the input: ``phi(x, xi) = h(x + sigma xi)``.

    Args:
        sigma: the standard deviation of the noise.
        draw: ``"sample"`` trains with a fresh draw and tests with h(x), as the paper does. ``"mean"`` replaces phi by
            its mean over xi, ``E[h(x + sigma xi)]``, in training and in testing: h smoothed by a Gaussian, which has a
            slope everywhere and no randomness. It has a closed form for piecewise linear h, and is for these alone.

    >>> NANI()
    NANI(sigma=0.05)
    >>> NANI(draw="mean")
    NANI(sigma=0.05, draw='mean')
    """

    sigma: float = 0.05
    draw: str = "sample"

    name = "nani"
    code = 2
    learns_p = False
    at_input = True
    scale_name = "sigma"


@dataclasses.dataclass(frozen=True, repr=False)
class NANIL(Scheme):
    """Normal noise with learned sigma at the input: ``phi(x, xi) = h(x + sigma(x) xi)``, sigma as in :class:`NAN`.

    A saturated unit is noisy only if the noise moves x back across the threshold, a distance of |Delta| for tanh. For
    |p| <= 1, as at initialisation, ``|Delta| >= 13.7 sigma / c``. At c = 0.5 this takes 27 standard deviations, so in
    practice phi equals h and p gets no gradient. The scheme needs a c of several units, as at the start of annealing.

    draw is that of :class:`NANI`. The mean depends on p through sigma, and so gives p a gradient.

    >>> NANIL(c=0.25).learns_p
    True
    """

    c: float = 0.5
    draw: str = "sample"

    name = "nanil"
    code = 3
    learns_p = True
    at_input = True
    scale_name = "c"


@dataclasses.dataclass(frozen=True, repr=False)
class NANIS(Scheme):
    """Normal noise with fixed sigma at the input of saturated units: ``h(x + sigma xi)`` if |x| >= x_t, else ``h(x)``.

    draw is that of :class:`NANI`. The mean is the smoothed h where |x| >= x_t, and h elsewhere.

    >>> NANIS(sigma=0.1).scale
    0.1
    """

    sigma: float = 0.25
    draw: str = "sample"

    name = "nanis"
    code = 4
    learns_p = False
    at_input = True
    scale_name = "sigma"


_KINDS: dict[str, type[Scheme]] = {kind.name: kind for kind in (NAN, NAH, NANI, NANIL, NANIS)}
"""The schemes by name. :mod:`noisyact.estimators` adds its own."""


def scheme(description: Scheme | str) -> Scheme:
    """Parse a scheme from its text: a name, optionally followed by settings. A scheme is returned unchanged.

    The names are nan, nah, nani, nanil, nanis, and those of the estimators in :mod:`noisyact.estimators`.

    >>> scheme("nah")
    NAH(c=0.5, alpha=1.15, clip=False)
    >>> scheme("nah:c=0.3,alpha=1.0") == NAH(c=0.3, alpha=1.0)
    True
    >>> scheme(str(NANIS(sigma=0.1)))
    NANIS(sigma=0.1)
    """
    if isinstance(description, Scheme):
        known = [kind.__name__ for kind in _KINDS.values()]
        if type(description).__name__ not in known:
            raise TypeError(f"{description!r} is not a noise scheme; use one of {', '.join(known)}")
        return description
    if not isinstance(description, str):
        raise TypeError(f"noise must be a scheme or its text such as 'nah:c=0.3', not {description!r}")
    name, _, settings = description.partition(":")
    kind = _KINDS.get(name.strip().lower())
    if kind is None:
        raise ValueError(f"unknown noise scheme {name.strip()!r} in {description!r}; known are {', '.join(_KINDS)}")
    allowed = {field.name for field in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for setting in filter(None, (part.strip() for part in settings.split(","))):
        key, equals, text = (part.strip() for part in setting.partition("="))
        if not equals or key not in allowed:
            raise ValueError(
                f"{setting!r} in {description!r} is not a setting of {name}; allowed: {', '.join(sorted(allowed))}"
            )
        if key in values:
            raise ValueError(f"{key} is given twice in {description!r}")
        values[key] = _read(key, text, description)
    return kind(**values)


def _read(key: str, text: str, description: str) -> float | bool | str:
    if key == "draw":
        if text not in DRAWS:
            raise ValueError(f"draw={text!r} in {description!r}: draw must be one of {', '.join(DRAWS)}")
        return text
    if key in _FLAGS:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{key}={text!r} in {description!r}: {key} must be True or False")
        return text.lower() == "true"
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{key}={text!r} in {description!r}: {key} must be a number") from None
