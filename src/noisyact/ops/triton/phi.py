"""phi(x, epsilon) and its derivatives in Triton: the paper's formulas for all GPU kernels, and the estimators'.

They must equal noisyact/equations.py. Compile-time constants describe a function: SCHEME (a scheme's code, or NONE),
LEAK (1 - alpha), CLIP, and the pair: SLOPE, OFFSET, LOW, HIGH and SOFT, which replaces the clipped line by the sigmoid
or the tanh itself. An estimator has its stretch in the place of LEAK, and in that of CLIP whether it rounds.

The formulas use ``T = tanh(|p| |Delta| / 2)``, in which the signs of Delta and x cancel or become one bit each.
ops/activation/README.md derives them. They hold because Delta has the sign of -x wherever it is not 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

from noisyact.ops.triton.instructions import exp2, flip_sign, log2, reciprocal

__all__ = ["HARD", "NONE", "SOFT_SIGMOID", "SOFT_TANH", "drawn_epsilon", "expected_epsilon", "phi", "phi_derivatives"]

NONE = tl.constexpr(-1)
NAN, NAH, NANI, NANIL, NANIS, NAH_CENTRED, NAH_MEAN, NAN_MEAN = (tl.constexpr(code) for code in range(8))
NANI_MEAN, NANIL_MEAN, NANIS_MEAN = (tl.constexpr(code) for code in range(8, 11))
STRAIGHT_THROUGH, STEEPER, LOGISTIC_GATE, NORMAL_GATE = (tl.constexpr(code) for code in range(11, 15))
ROOT_HALF = tl.constexpr(0.7071067811865476)
DENSITY_AT_0 = tl.constexpr(0.3989422804014327)
MEAN_HALF_NORMAL = tl.constexpr(0.7978845608028654)  # E|xi|
HARD, SOFT_SIGMOID, SOFT_TANH = (tl.constexpr(code) for code in range(3))
LOG2_E = tl.constexpr(1.4426950408889634)
LOG_2 = tl.constexpr(0.6931471805599453)
FRACTIONS = tl.constexpr(40)
LARGEST = tl.constexpr(3.4028234663852886e38)


@triton.jit
def expected_epsilon(like, SCHEME: tl.constexpr):
    """E[epsilon] of a scheme, in the shape of a tensor."""
    if SCHEME == NAH or SCHEME == NAH_MEAN:
        return tl.full(like.shape, MEAN_HALF_NORMAL, like.dtype)
    return tl.zeros_like(like)


@triton.jit
def drawn_epsilon(xi, SCHEME: tl.constexpr):
    """epsilon of a scheme for noise xi."""
    if SCHEME == NAH:
        return tl.abs(xi)
    elif SCHEME == NAH_CENTRED:
        return tl.abs(xi) - MEAN_HALF_NORMAL
    elif SCHEME == NAH_MEAN or SCHEME == NAN_MEAN:
        return expected_epsilon(xi, SCHEME)
    elif SCHEME == LOGISTIC_GATE:
        return _logistic(xi)
    return xi


@triton.jit
def _logistic(xi):
    """Logistic noise from normal noise, logit(Phi(xi)) = sgn(xi) ln((1 - t) / t) with t = Phi(-|xi|)."""
    tail = _normal_tail(tl.abs(xi))
    return _with_sign(log2((1.0 - tail) * reciprocal(tail)) * LOG_2, xi)


@triton.jit
def _normal_tail(z):
    """The normal distribution at -z for z >= 0, with a small relative error: float32 as in vector_math.h, float64 by
    the error function near 0 and by the continued fraction of Mills' ratio further out."""
    density = DENSITY_AT_0 * exp2(z * z * (-0.5 * LOG2_E))
    if z.dtype == tl.float64:
        far = tl.maximum(z, 3.0)
        fraction = far
        for k in tl.static_range(FRACTIONS):
            fraction = far + (FRACTIONS - k) / fraction
        return tl.where(z > 3.0, density / fraction, 0.5 - 0.5 * tl.erf(z * ROOT_HALF))
    else:
        k = reciprocal(1.0 + 0.28 * z)
        q = 0.1001131337 * k - 0.5440984985
        q = q * k + 0.9899928415
        q = q * k - 0.6147550443
        q = q * k + 0.6036828964
        q = q * k + 0.1401947232
        q = q * k + 0.2995314462
        q = q * k + 0.2786526393
        return density * k * q


@triton.jit
def _u(x, SLOPE: tl.constexpr, OFFSET: tl.constexpr):
    """The linearisation. An offset of 0 is not added: the compiler would keep the addition, which turns -0 into +0."""
    if OFFSET == 0.0:
        return x * SLOPE
    else:
        return x * SLOPE + OFFSET


@triton.jit
def _clip(u, LOW: tl.constexpr, HIGH: tl.constexpr):
    """u clipped to [LOW, HIGH]. NaN stays NaN, and a side without a limit needs no instruction."""
    if LOW > float("-inf"):
        u = tl.maximum(u, LOW, propagate_nan=tl.PropagateNan.ALL)
    if HIGH < float("inf"):
        u = tl.minimum(u, HIGH, propagate_nan=tl.PropagateNan.ALL)
    return u


@triton.jit
def _inside(u, LOW: tl.constexpr, HIGH: tl.constexpr):
    """Whether u lies in [LOW, HIGH]; False for NaN."""
    return _clip(u, LOW, HIGH) == u


@triton.jit
def _h(x, SLOPE: tl.constexpr, OFFSET: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, SOFT: tl.constexpr):
    """h(x)."""
    if SOFT == HARD:
        return _clip(_u(x, SLOPE, OFFSET), LOW, HIGH)
    elif SOFT == SOFT_SIGMOID:
        return reciprocal(1.0 + exp2(x * -LOG2_E))
    else:
        return 2.0 * reciprocal(1.0 + exp2(x * (-2.0 * LOG2_E))) - 1.0


@triton.jit
def _h_slope(
    x, h, SLOPE: tl.constexpr, OFFSET: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, SOFT: tl.constexpr
):
    """h'(x), given h = h(x). The kinks count as linear."""
    if SOFT == HARD:
        return tl.where(h == _u(x, SLOPE, OFFSET), SLOPE, 0.0)
    elif SOFT == SOFT_SIGMOID:
        return h * (1.0 - h)
    else:
        return 1.0 - h * h


@triton.jit
def _gap(h, u, LOW: tl.constexpr, HIGH: tl.constexpr):
    """Delta = h - u; 0 where both are the same infinity."""
    if LOW == float("-inf") or HIGH == float("inf"):
        return tl.where(h == u, 0.0, h - u)
    else:
        return h - u


@triton.jit
def _depth(gap):
    """|Delta|, clamped to a finite value so that p = 0 times it is 0."""
    return tl.minimum(tl.abs(gap), LARGEST, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _t(p, depth):
    """T = tanh(|p| |Delta| / 2); 0 for Delta = 0."""
    return 2.0 * reciprocal(1.0 + exp2(depth * (tl.abs(p) * -LOG2_E))) - 1.0


@triton.jit
def _with_sign(v, x):
    """sgn(x) v by the sign bit of x. At x = 0, where the sign bit may be wrong, v is 0."""
    if v.dtype == tl.float64:
        return tl.where(x < 0.0, -v, v)
    else:
        return flip_sign(v, x, True)


@triton.jit
def _directed(v, x, LEAK: tl.constexpr):
    """d(x) v with d(x) = -sgn(x) sgn(1 - alpha)."""
    if LEAK < 0.0:
        return _with_sign(v, x)
    elif v.dtype == tl.float64:
        return _with_sign(-v, x)
    else:
        return flip_sign(v, x, False)


@triton.jit
def _leaky(h, gap, LEAK: tl.constexpr):
    """alpha h + (1 - alpha) u. Without a leak the term is omitted, because 0 times an infinite Delta is NaN."""
    if LEAK == 0.0:
        return h
    else:
        return h - LEAK * gap


@triton.jit
def _noisy_input(x, epsilon, scale, SCHEME: tl.constexpr, SLOPE: tl.constexpr, OFFSET: tl.constexpr,
                 LOW: tl.constexpr, HIGH: tl.constexpr):  # fmt: skip
    """x + sigma epsilon for NANI and NANIS; the noise of NANIS begins at the threshold itself."""
    if SCHEME == NANI:
        return x + scale * epsilon
    else:
        u = _u(x, SLOPE, OFFSET)
        return tl.where((u <= LOW) | (u >= HIGH), x + scale * epsilon, x)


@triton.jit
def _edge(u, spread, LIMIT: tl.constexpr):
    """Of h smoothed at one of its limits, with z = (u - LIMIT) / spread: what smoothing adds there in units of the
    spread, E[max(z + xi, 0)] - max(z, 0), and the normal distribution and density at z. An infinite limit adds nothing.
    """
    zero = tl.zeros_like(u)
    if LIMIT == float("inf"):
        return zero, zero, zero
    elif LIMIT == float("-inf"):
        return zero, zero + 1.0, zero
    else:
        z = tl.minimum(tl.maximum((u - LIMIT) / spread, -30.0), 30.0)
        size = tl.abs(z)
        density = DENSITY_AT_0 * exp2(z * z * (-0.5 * LOG2_E))
        tail = 0.5 - 0.5 * tl.erf(size * ROOT_HALF)
        return density - size * tail, tl.where(z < 0.0, tail, 1.0 - tail), density


@triton.jit
def _smoothed(u, sigma, SLOPE: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr):
    """E[h(x + sigma xi)] of a hard h, and its derivatives by x and by sigma; h where sigma is 0."""
    h = _clip(u, LOW, HIGH)
    noisy = sigma > 0.0
    spread = tl.where(noisy, SLOPE * sigma, 1.0)
    low, below_low, density_low = _edge(u, spread, LOW)
    high, below_high, density_high = _edge(u, spread, HIGH)
    value = tl.where(noisy, h + spread * (low - high), h)
    by_x = tl.where(noisy, SLOPE * (below_low - below_high), tl.where(h == u, SLOPE, 0.0))
    return value, by_x, tl.where(noisy, SLOPE * (density_low - density_high), 0.0)


@triton.jit
def _mean(x, p, scale, SCHEME: tl.constexpr, SLOPE: tl.constexpr, OFFSET: tl.constexpr, LOW: tl.constexpr,
          HIGH: tl.constexpr):  # fmt: skip
    """The mean over xi of a scheme with noise at the input, dphi/dx and dphi/dp."""
    u = _u(x, SLOPE, OFFSET)
    zero = tl.zeros_like(x)
    if SCHEME == NANIL_MEAN:
        gap = _gap(_clip(u, LOW, HIGH), u, LOW, HIGH)
        depth = _depth(gap)
        t = _t(p, depth)
        value, by_x, by_sigma = _smoothed(u, (0.25 * scale) * t * t, SLOPE, LOW, HIGH)
        rate = (0.25 * scale) * (t - t * t * t) * by_sigma  # d phi / d (|p| |Delta|), through sigma
        deeper = _with_sign(zero + SLOPE, -gap)
        return value, by_x + tl.where(depth > 0.0, rate * tl.abs(p) * deeper, 0.0), _with_sign(rate * depth, p)
    elif SCHEME == NANIS_MEAN:
        value, by_x, _ = _smoothed(u, tl.where((u <= LOW) | (u >= HIGH), zero + scale, zero), SLOPE, LOW, HIGH)
        return value, by_x, zero
    else:
        value, by_x, _ = _smoothed(u, zero + scale, SLOPE, LOW, HIGH)
        return value, by_x, zero


@triton.jit
def _estimate(
    x, epsilon, scale, SCHEME: tl.constexpr, STRETCH: tl.constexpr, BINARY: tl.constexpr, SLOPE: tl.constexpr,
    OFFSET: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, SOFT: tl.constexpr,
):  # fmt: skip
    """phi and dphi/dx of an estimator. epsilon is the noise of a gate's logit, without sigma."""
    zero = tl.zeros_like(x)
    if SCHEME == STRAIGHT_THROUGH:
        u = _u(x, SLOPE, OFFSET)
        value = _h(x, SLOPE, OFFSET, LOW, HIGH, SOFT)
        passes = (tl.abs(_gap(value, u, LOW, HIGH)) <= scale) & (tl.abs(u) < float("inf"))
        slope = tl.where(passes, zero + SLOPE, zero)
        side = value - 0.5 * (LOW + HIGH) if BINARY else value
    elif SCHEME == STEEPER:
        v = scale * x
        value = _h(v, SLOPE, OFFSET, LOW, HIGH, SOFT)
        slope = scale * _h_slope(v, value, SLOPE, OFFSET, LOW, HIGH, SOFT)
        side = value - 0.5 * (LOW + HIGH) if BINARY else value
    else:
        steepness: tl.constexpr = 4.0 / (HIGH - LOW)
        wide: tl.constexpr = 1.0 + 2.0 * STRETCH
        shift: tl.constexpr = steepness * (OFFSET - 0.5 * (LOW + HIGH))
        z = x * (steepness * SLOPE) + shift
        if SCHEME == LOGISTIC_GATE:
            rate = 1.0 / scale
            side = (z + epsilon) * rate
        else:
            rate = zero + 1.0
            side = z + scale * epsilon
        e = exp2(tl.abs(side) * -LOG2_E)
        larger = reciprocal(1.0 + e)  # the sigmoid of |side|
        s = tl.where(side < 0.0, e * larger, larger)
        open_ = (HIGH - LOW) * wide * s + (LOW - (HIGH - LOW) * STRETCH)
        value = _clip(open_, LOW, HIGH)
        slope = tl.where(value == open_, (4.0 * SLOPE * wide) * rate * (e * larger * larger), zero)
    if BINARY:  # NaN stays NaN
        value = tl.where(side < 0.0, LOW, HIGH) + (value - value)
    return value, slope


@triton.jit
def phi(
    x, p, epsilon, scale, SCHEME: tl.constexpr, LEAK: tl.constexpr, CLIP: tl.constexpr, SLOPE: tl.constexpr,
    OFFSET: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, SOFT: tl.constexpr,
):  # fmt: skip
    """The noisy activation, float32 or float64; epsilon is xi, or |xi| for NAH, or its expectation."""
    if SCHEME >= STRAIGHT_THROUGH:
        return _estimate(x, epsilon, scale, SCHEME, LEAK, CLIP, SLOPE, OFFSET, LOW, HIGH, SOFT)[0]
    elif SCHEME == NONE:
        return _h(x, SLOPE, OFFSET, LOW, HIGH, SOFT)
    elif SCHEME == NANI or SCHEME == NANIS:
        return _h(_noisy_input(x, epsilon, scale, SCHEME, SLOPE, OFFSET, LOW, HIGH), SLOPE, OFFSET, LOW, HIGH, SOFT)
    elif SCHEME >= NANI_MEAN:
        return _mean(x, p, scale, SCHEME, SLOPE, OFFSET, LOW, HIGH)[0]
    else:
        h = _h(x, SLOPE, OFFSET, LOW, HIGH, SOFT)
        gap = _gap(h, _u(x, SLOPE, OFFSET), LOW, HIGH)
        t = _t(p, _depth(gap))
        noise = (t * t) * ((0.25 * scale) * epsilon)
        if SCHEME == NANIL:
            return _h(x + noise, SLOPE, OFFSET, LOW, HIGH, SOFT)
        else:
            value = _leaky(h, gap, LEAK) + _directed(noise, x, LEAK)
            if CLIP:
                value = _clip(value, LOW, HIGH)
            return value


@triton.jit
def phi_derivatives(
    x, p, epsilon, scale, SCHEME: tl.constexpr, LEAK: tl.constexpr, CLIP: tl.constexpr, SLOPE: tl.constexpr,
    OFFSET: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, SOFT: tl.constexpr,
):  # fmt: skip
    """phi, dphi/dx and dphi/dp."""
    h = _h(x, SLOPE, OFFSET, LOW, HIGH, SOFT)
    h_slope = _h_slope(x, h, SLOPE, OFFSET, LOW, HIGH, SOFT)
    zero = tl.zeros_like(x)
    if SCHEME >= STRAIGHT_THROUGH:
        value, slope = _estimate(x, epsilon, scale, SCHEME, LEAK, CLIP, SLOPE, OFFSET, LOW, HIGH, SOFT)
        return value, slope, zero
    elif SCHEME == NONE:
        return h, h_slope, zero
    elif SCHEME == NANI or SCHEME == NANIS:
        v = _noisy_input(x, epsilon, scale, SCHEME, SLOPE, OFFSET, LOW, HIGH)
        value = _h(v, SLOPE, OFFSET, LOW, HIGH, SOFT)
        return value, _h_slope(v, value, SLOPE, OFFSET, LOW, HIGH, SOFT), zero
    elif SCHEME >= NANI_MEAN:
        return _mean(x, p, scale, SCHEME, SLOPE, OFFSET, LOW, HIGH)
    else:
        gap = _gap(h, _u(x, SLOPE, OFFSET), LOW, HIGH)
        depth = _depth(gap)
        t = _t(p, depth)
        strength = t * ((0.25 * scale) * epsilon)
        rate = strength - strength * (t * t)  # d (sigma epsilon) / d (|p| |Delta|)
        through_gap = rate * tl.abs(p)
        through_p = _with_sign(rate * depth, p)
        if SCHEME == NANIL:
            v = x + strength * t
            value = _h(v, SLOPE, OFFSET, LOW, HIGH, SOFT)
            v_slope = _h_slope(v, value, SLOPE, OFFSET, LOW, HIGH, SOFT)
            through_x = _with_sign(through_gap * (h_slope - SLOPE), x)
            return value, v_slope - v_slope * through_x, v_slope * through_p
        else:
            value = _leaky(h, gap, LEAK) + _directed(strength * t, x, LEAK)
            if LEAK < 0.0:
                through_gap = -through_gap
            if SOFT == HARD:  # the same formula as below, but exactly SLOPE in the linear part
                gx = tl.where(h == _u(x, SLOPE, OFFSET), SLOPE, LEAK * SLOPE - SLOPE * through_gap)
            else:
                gx = LEAK * SLOPE + (1.0 - LEAK) * h_slope + through_gap * (h_slope - SLOPE)
            gp = _directed(through_p, x, LEAK)
            if CLIP:
                inside = _inside(value, LOW, HIGH)
                return _clip(value, LOW, HIGH), tl.where(inside, gx, 0.0), tl.where(inside, gp, 0.0)
            else:
                return value, gx, gp
