/* phi(x, xi) and its derivatives on one vector: the paper's formulas for all C kernels, and those of the estimators.
 *
 * ../activation/README.md derives them. They must equal noisyact/equations.py. The notation is the paper's.
 */
#ifndef NOISYACT_PHI_H
#define NOISYACT_PHI_H

#include "real.h"

enum scheme {
    NAN_SCHEME, NAH, NANI, NANIL, NANIS, NANI_MEAN, NANIL_MEAN, NANIS_MEAN, /* _MEAN: draw="mean" */
    STRAIGHT_THROUGH = 11, SLOPE, LOGISTIC_GATE, NORMAL_GATE /* the estimators; a gate has noise of a distribution */
};
enum function { PIECEWISE, SIGMOID, TANH }; /* PIECEWISE: u clipped to low and high; the others are soft */

/* One noisy function. */
typedef struct {
    int32_t scheme;
    int32_t stochastic; /* 0: epsilon is `expectation` and no noise is drawn */
    int32_t clip;
    int32_t one_sided; /* whether a limit is infinite */
    int32_t function;  /* h */
    int32_t binary;    /* an estimator's: whether the value is rounded to a limit */
    real expectation;
    real shift; /* the mean of |xi| if NAH is centred, else 0 */
    real alpha;
    real scale; /* c, sigma, or an estimator's width, slope or temperature */
    real stretch; /* how far a gate's sigmoid is stretched beyond its limits */
    real slope, offset, low, high;
} unit;

/* The piecewise linear h; the result is NaN where u is NaN. */
INLINE reals hard(const unit *a, reals u) { return at_most(at_least(u, every(a->low)), every(a->high)); }

/* u - h; 0 where both are the same infinity, which only a one-sided function allows. */
INLINE reals gap_of(const unit *a, reals h, reals u) {
    reals gap = u - h, zero = every(0.0f);
    return a->one_sided ? pick(above(absolute(gap), zero), gap, zero) : gap;
}

/* |Delta|, clamped to a finite value so that p = 0 times an infinite saturation is 0 and not NaN. */
INLINE reals depth_of(const unit *a, reals h, reals u) {
    return at_most(absolute(gap_of(a, h, u)), every(3.0e38f));
}

/* alpha h + (1 - alpha) u without a branch. For alpha = 1 the mask removes an infinite u. */
INLINE reals leaky(const unit *a, reals h, reals u) {
    const int32_t leaks = a->alpha == 1.0f ? 0 : -1;
    return h + (reals)((bits)((1.0f - a->alpha) * gap_of(a, h, u)) & leaks);
}

/* g where v lies in the closed range of h, else 0: the kinks count as linear. */
INLINE reals inside(const unit *a, reals v, reals g) {
    reals zero = every(0.0f);
    return pick(above(v, every(a->high)), zero, pick(above(every(a->low), v), zero, g));
}

/* The sign of d(x) = -sgn(x) sgn(1 - alpha), with sgn(0) = +1 (x + 0 turns -0 into +0). */
INLINE bits direction(const unit *a, reals x) {
    return sign_bit(x + 0.0f) ^ sign_bit(every(a->alpha <= 1.0f ? -1.0f : 1.0f));
}

/* The fixed sigma of NANI and NANIS. The noise of NANIS begins at the threshold itself. */
INLINE reals fixed_sigma(const unit *a, reals u) {
    reals sigma = every(a->scale);
    if (a->scheme == NANI || a->scheme == NANI_MEAN) return sigma;
    reals below_high = pick(above(every(a->high), u), every(0.0f), sigma);
    return pick(above(u, every(a->low)), below_high, sigma);
}

/* Whether all of u lies strictly inside the linear part, where phi = u. NANI is noisy everywhere, a soft function has no
 * linear part, and of the estimators only the straight-through one without rounding has it. */
INLINE int linear(const unit *a, reals u) {
    const int everywhere = (a->scheme == NANI) | (a->scheme == NANI_MEAN) | (a->scheme >= SLOPE) | a->binary;
    return (a->function == PIECEWISE) & !everywhere & all(above(every(a->high), u)) & all(above(u, every(a->low)));
}

/* xi, or |xi| less the shift for NAH. An expectation is not negative, so its absolute value is the same. */
INLINE reals epsilon_of(const unit *a, reals xi) { return a->scheme == NAH ? absolute(xi) - a->shift : xi; }

/* The soft h and its slope. */
INLINE reals soft(const unit *a, reals x) { return a->function == TANH ? hyperbolic_tangent(x) : sigmoid(x); }
INLINE reals soft_slope(const unit *a, reals h) { return a->function == TANH ? 1.0f - h * h : h * (1.0f - h); }

/* fixed_sigma for a soft h: the thresholds are compared with x, because the rounding of u could move them. */
INLINE reals soft_fixed_sigma(const unit *a, reals x) {
    reals sigma = every(a->scale);
    if (a->scheme == NANI) return sigma;
    const real low = (a->low - a->offset) / a->slope, high = (a->high - a->offset) / a->slope;
    reals below_high = pick(above(every(high), x), every(0.0f), sigma);
    return pick(above(x, every(low)), below_high, sigma);
}

INLINE reals soft_forward(const unit *a, reals x, reals p, reals xi) {
    reals epsilon = epsilon_of(a, xi);
    if (a->scheme == NANI || a->scheme == NANIS) return soft(a, x + soft_fixed_sigma(a, x) * epsilon);
    reals h = soft(a, x), u = x * a->slope + a->offset, t = half_tanh(absolute(p) * depth_of(a, h, u));
    reals noise = (0.25f * a->scale) * t * t * epsilon;
    if (a->scheme == NANIL) return soft(a, x + noise);
    reals phi = leaky(a, h, u) + flip(noise, direction(a, x));
    return a->clip ? hard(a, phi) : phi;
}

INLINE void soft_derivatives(const unit *a, reals x, reals p, reals xi, reals *phi, reals *dx, reals *dp) {
    reals epsilon = epsilon_of(a, xi);
    if (a->scheme == NANI || a->scheme == NANIS) {
        *phi = soft(a, x + soft_fixed_sigma(a, x) * epsilon);
        *dx = soft_slope(a, *phi);
        *dp = every(0.0f);
        return;
    }
    reals h = soft(a, x), u = x * a->slope + a->offset, slope = soft_slope(a, h);
    reals depth = depth_of(a, h, u), t = half_tanh(absolute(p) * depth);
    reals noise = (0.25f * a->scale) * t * epsilon;
    reals rate = noise * (1.0f - t * t); /* d (sigma epsilon) / d |p Delta| */
    /* d |p Delta| / dx = |p| sgn(Delta) (h' - u') and d |p Delta| / dp = sgn(p) |Delta|. */
    reals through_x = rate * absolute(p) * flip(slope - a->slope, sign_bit(h - u));
    reals through_p = flip(rate * depth, sign_bit(p));
    if (a->scheme == NANIL) {
        *phi = soft(a, x + noise * t);
        reals moved_slope = soft_slope(a, *phi);
        *dx = moved_slope * (1.0f + through_x);
        *dp = moved_slope * through_p;
        return;
    }
    bits d = direction(a, x);
    *phi = leaky(a, h, u) + flip(noise * t, d);
    *dx = (1.0f - a->alpha) * a->slope + a->alpha * slope + flip(through_x, d);
    *dp = flip(through_p, d);
    if (a->clip) {
        *dx = inside(a, *phi, *dx);
        *dp = inside(a, *phi, *dp);
        *phi = hard(a, *phi);
    }
}

/* Of h smoothed at one of its limits: what smoothing adds there, in units of s, and the normal distribution and density
 * at z = (u - limit) / s. An infinite limit adds nothing. */
typedef struct {
    reals added, below, density;
} edge;

INLINE edge edge_at(real limit, reals u, reals s) {
    const reals zero = every(0.0f);
    edge e = {zero, every(limit < 0.0f ? 1.0f : 0.0f), zero};
    if (limit > 3.0e38f || limit < -3.0e38f) return e;
    reals z = (u - limit) / s, tail;
    normal_tail(z, &e.density, &tail);
    e.added = e.density - at_most(absolute(z), every(30.0f)) * tail; /* E[max(z + xi, 0)] - max(z, 0) */
    e.below = pick(above(zero, z), tail, 1.0f - tail);
    return e;
}

/* E[h(x + sigma xi)] and its derivatives by u and by slope sigma; where sigma is 0, h. */
INLINE void smooth(const unit *a, reals u, reals sigma, reals *phi, reals *by_u, reals *by_s) {
    reals s = a->slope * sigma, h = hard(a, u), zero = every(0.0f);
    edge low = edge_at(a->low, u, s), high = edge_at(a->high, u, s);
    mask noisy = above(sigma, zero);
    *phi = pick(noisy, h + s * (low.added - high.added), h);
    *by_u = pick(noisy, low.below - high.below, inside(a, u, every(1.0f)));
    *by_s = pick(noisy, low.density - high.density, zero);
}

INLINE void mean_derivatives(const unit *a, reals x, reals p, reals *phi, reals *dx, reals *dp) {
    reals u = x * a->slope + a->offset, by_u, by_s;
    if (a->scheme != NANIL_MEAN) {
        smooth(a, u, fixed_sigma(a, u), phi, &by_u, &by_s);
        *dx = a->slope * by_u;
        *dp = every(0.0f);
        return;
    }
    reals h = hard(a, u), depth = depth_of(a, h, u), t = half_tanh(absolute(p) * depth);
    smooth(a, u, (0.25f * a->scale) * t * t, phi, &by_u, &by_s);
    reals rate = (0.25f * a->scale) * t * (1.0f - t * t) * by_s * a->slope; /* d phi / d |p Delta|, through sigma */
    *dx = a->slope * by_u + rate * absolute(p) * flip(every(a->slope), sign_bit(u - h));
    *dp = flip(rate * depth, sign_bit(p));
}

/* The limit on the side of a vector of signs: low where `w` is negative; NaN where the value, which is finite, is NaN. */
INLINE reals rounded(const unit *a, reals w, reals value) {
    return pick(above(every(0.0f), w), every(a->low), every(a->high)) + (value - value);
}

/* The noise of a gate's logit: sigma xi, or the logistic noise logit(Phi(xi)) = sgn(xi) ln((1 - t) / t) with the normal
 * distribution t at -|xi|. */
INLINE reals gate_noise(const unit *a, reals xi) {
    if (a->scheme == NORMAL_GATE) return a->scale * xi;
    reals density, tail;
    normal_tail(xi, &density, &tail);
    return flip(logarithm((1.0f - tail) / tail), sign_bit(xi));
}

/* phi and dphi/dx of an estimator; dphi/dp is 0. Not inlined: it would make the kernels of all schemes larger. */
OUTLINE void estimate(const unit *a, const reals *at, const reals *xi, reals *phi, reals *dx) {
    const real middle = 0.5f * (a->low + a->high), range = a->high - a->low;
    reals x = *at, zero = every(0.0f);
    if (a->scheme == STRAIGHT_THROUGH) {
        reals u = x * a->slope + a->offset, h = a->function == PIECEWISE ? hard(a, u) : soft(a, x);
        mask far = above(absolute(gap_of(a, h, u)), every(a->scale)), finite = above(every(INFINITY), absolute(u));
        *dx = pick(far, zero, pick(finite, every(a->slope), zero));
        *phi = a->binary ? rounded(a, h - middle, h) : h;
        return;
    }
    if (a->scheme == SLOPE) {
        reals v = a->scale * x, u = v * a->slope + a->offset, h = a->function == PIECEWISE ? hard(a, u) : soft(a, v);
        *dx = a->function == PIECEWISE ? inside(a, u, every(a->scale * a->slope)) : a->scale * soft_slope(a, h);
        *phi = a->binary ? rounded(a, h - middle, h) : h;
        return;
    }
    const real steepness = 4.0f / range, rate = a->scheme == LOGISTIC_GATE ? 1.0f / a->scale : 1.0f;
    const real wide = 1.0f + 2.0f * a->stretch;
    reals w = (x * (steepness * a->slope) + steepness * (a->offset - middle) + gate_noise(a, *xi)) * rate;
    reals s = sigmoid(w), value = (range * wide) * s + (a->low - range * a->stretch);
    *dx = inside(a, value, (4.0f * a->slope * wide * rate) * s * sigmoid(0.0f - w));
    *phi = a->binary ? rounded(a, w, value) : hard(a, value);
}

INLINE reals phi_forward(const unit *a, reals x, reals p, reals xi) {
    if (a->scheme >= STRAIGHT_THROUGH) {
        reals phi, dx;
        estimate(a, &x, &xi, &phi, &dx);
        return phi;
    }
    if (a->function != PIECEWISE) return soft_forward(a, x, p, xi);
    if (a->scheme >= NANI_MEAN) {
        reals phi, dx, dp;
        mean_derivatives(a, x, p, &phi, &dx, &dp);
        return phi;
    }
    reals u = x * a->slope + a->offset, epsilon = epsilon_of(a, xi), sigma;
    if (a->scheme == NANI || a->scheme == NANIS) {
        sigma = fixed_sigma(a, u);
    } else {
        reals h = hard(a, u), t = half_tanh(absolute(p) * depth_of(a, h, u));
        sigma = (0.25f * a->scale) * t * t;
        if (a->scheme <= NAH) {
            reals phi = leaky(a, h, u) + flip(sigma * epsilon, direction(a, x));
            return a->clip ? hard(a, phi) : phi;
        }
    }
    return hard(a, (x + sigma * epsilon) * a->slope + a->offset);
}

/* phi, dphi/dx and dphi/dp. */
INLINE void phi_derivatives(const unit *a, reals x, reals p, reals xi, reals *phi, reals *dx, reals *dp) {
    if (a->scheme >= STRAIGHT_THROUGH) {
        estimate(a, &x, &xi, phi, dx);
        *dp = every(0.0f);
        return;
    }
    if (a->function != PIECEWISE) {
        soft_derivatives(a, x, p, xi, phi, dx, dp);
        return;
    }
    if (a->scheme >= NANI_MEAN) {
        mean_derivatives(a, x, p, phi, dx, dp);
        return;
    }
    reals u = x * a->slope + a->offset, epsilon = epsilon_of(a, xi), zero = every(0.0f);
    if (a->scheme == NANI || a->scheme == NANIS) {
        reals moved = (x + fixed_sigma(a, u) * epsilon) * a->slope + a->offset;
        *phi = hard(a, moved);
        *dx = inside(a, moved, every(a->slope));
        *dp = zero;
        return;
    }
    reals h = hard(a, u), depth = depth_of(a, h, u), t = half_tanh(absolute(p) * depth);
    reals noise = (0.25f * a->scale) * t * epsilon;
    reals rate = noise * (1.0f - t * t); /* d (sigma epsilon) / d |p Delta| */
    mask saturated = above(depth, zero);
    if (a->scheme <= NAH) {
        bits d = direction(a, x);
        /* Moving x outwards increases |Delta| at the rate u'. d points outwards for alpha > 1, else inwards. */
        const real out = a->alpha > 1.0f ? a->slope : -a->slope;
        reals outward = out * absolute(p);
        *phi = leaky(a, h, u) + flip(noise * t, d);
        *dx = pick(saturated, (1.0f - a->alpha) * a->slope + rate * outward, every(a->slope));
        *dp = flip(rate * depth, d ^ sign_bit(p));
        if (a->clip) {
            *dx = inside(a, *phi, *dx);
            *dp = inside(a, *phi, *dp);
            *phi = hard(a, *phi);
        }
        return;
    }
    reals moved = (x + noise * t) * a->slope + a->offset, open = inside(a, moved, every(a->slope));
    reals deeper = flip(every(a->slope), sign_bit(u - h));
    *phi = hard(a, moved);
    *dx = open * pick(saturated, 1.0f + rate * absolute(p) * deeper, every(1.0f));
    *dp = open * flip(rate * depth, sign_bit(p));
}

/* gx = g dphi/dx; gp = g dphi/dp. */
INLINE void phi_backward(const unit *a, reals g, reals x, reals p, reals xi, reals *gx, reals *gp) {
    reals phi, dx, dp;
    phi_derivatives(a, x, p, xi, &phi, &dx, &dp);
    *gx = g * dx;
    *gp = g * dp;
}

#endif
