/* phi(x, xi) and its derivatives on one vector: the paper's formulas for all C kernels.
 *
 * ../activation/README.md derives them. They must equal noisyact/equations.py. The notation is the paper's.
 */
#ifndef NOISYACT_PHI_H
#define NOISYACT_PHI_H

#include "vector_math.h"

enum scheme { NAN_SCHEME, NAH, NANI, NANIL, NANIS };
enum function { PIECEWISE, SIGMOID, TANH }; /* PIECEWISE: u clipped to low and high; the others are soft */

/* One noisy function. */
typedef struct {
    int32_t scheme;
    int32_t stochastic; /* 0: epsilon is `expectation` and no noise is drawn */
    int32_t clip;
    int32_t one_sided; /* whether a limit is infinite */
    int32_t function;  /* h */
    float expectation;
    float alpha;
    float scale; /* c, or sigma for NANI and NANIS */
    float slope, offset, low, high;
} unit;

/* The piecewise linear h; the result is NaN where u is NaN. */
INLINE floats hard(const unit *a, floats u) { return at_most(at_least(u, every(a->low)), every(a->high)); }

/* u - h; 0 where both are the same infinity, which only a one-sided function allows. */
INLINE floats gap_of(const unit *a, floats h, floats u) {
    floats gap = u - h, zero = every(0.0f);
    return a->one_sided ? pick(above(absolute(gap), zero), gap, zero) : gap;
}

/* |Delta|, clamped to a finite value so that p = 0 times an infinite saturation is 0 and not NaN. */
INLINE floats depth_of(const unit *a, floats h, floats u) {
    return at_most(absolute(gap_of(a, h, u)), every(3.0e38f));
}

/* alpha h + (1 - alpha) u without a branch. For alpha = 1 the mask removes an infinite u. */
INLINE floats leaky(const unit *a, floats h, floats u) {
    const int32_t leaks = a->alpha == 1.0f ? 0 : -1;
    return h + (floats)((ints)((1.0f - a->alpha) * gap_of(a, h, u)) & leaks);
}

/* g where v lies in the closed range of h, else 0: the kinks count as linear. */
INLINE floats inside(const unit *a, floats v, floats g) {
    floats zero = every(0.0f);
    return pick(above(v, every(a->high)), zero, pick(above(every(a->low), v), zero, g));
}

/* The sign of d(x) = -sgn(x) sgn(1 - alpha), with sgn(0) = +1 (x + 0 turns -0 into +0). */
INLINE ints direction(const unit *a, floats x) {
    const int32_t turn = a->alpha <= 1.0f ? (int32_t)0x80000000 : 0;
    return sign_bit(x + 0.0f) ^ turn;
}

/* The fixed sigma of NANI and NANIS. The noise of NANIS begins at the threshold itself. */
INLINE floats fixed_sigma(const unit *a, floats u) {
    floats sigma = every(a->scale);
    if (a->scheme == NANI) return sigma;
    floats below_high = pick(above(every(a->high), u), every(0.0f), sigma);
    return pick(above(u, every(a->low)), below_high, sigma);
}

/* Whether all of u lies strictly inside the linear part, where phi = u. NANI is noisy everywhere, and a soft function
 * has no linear part. */
INLINE int linear(const unit *a, floats u) {
    return (a->function == PIECEWISE) & (a->scheme != NANI) & all(above(every(a->high), u)) & all(above(u, every(a->low)));
}

/* xi, or |xi| for NAH. An expectation, which is not negative, stays unchanged. */
INLINE floats epsilon_of(const unit *a, floats xi) { return a->scheme == NAH ? absolute(xi) : xi; }

/* The soft h and its slope. */
INLINE floats soft(const unit *a, floats x) { return a->function == TANH ? hyperbolic_tangent(x) : sigmoid(x); }
INLINE floats soft_slope(const unit *a, floats h) { return a->function == TANH ? 1.0f - h * h : h * (1.0f - h); }

/* fixed_sigma for a soft h: the thresholds are compared with x, because the rounding of u could move them. */
INLINE floats soft_fixed_sigma(const unit *a, floats x) {
    floats sigma = every(a->scale);
    if (a->scheme == NANI) return sigma;
    const float low = (a->low - a->offset) / a->slope, high = (a->high - a->offset) / a->slope;
    floats below_high = pick(above(every(high), x), every(0.0f), sigma);
    return pick(above(x, every(low)), below_high, sigma);
}

INLINE floats soft_forward(const unit *a, floats x, floats p, floats xi) {
    floats epsilon = epsilon_of(a, xi);
    if (a->scheme == NANI || a->scheme == NANIS) return soft(a, x + soft_fixed_sigma(a, x) * epsilon);
    floats h = soft(a, x), u = x * a->slope + a->offset, t = half_tanh(absolute(p) * depth_of(a, h, u));
    floats noise = (0.25f * a->scale) * t * t * epsilon;
    if (a->scheme == NANIL) return soft(a, x + noise);
    floats phi = leaky(a, h, u) + flip(noise, direction(a, x));
    return a->clip ? hard(a, phi) : phi;
}

INLINE void soft_derivatives(const unit *a, floats x, floats p, floats xi, floats *phi, floats *dx, floats *dp) {
    floats epsilon = epsilon_of(a, xi);
    if (a->scheme == NANI || a->scheme == NANIS) {
        *phi = soft(a, x + soft_fixed_sigma(a, x) * epsilon);
        *dx = soft_slope(a, *phi);
        *dp = every(0.0f);
        return;
    }
    floats h = soft(a, x), u = x * a->slope + a->offset, slope = soft_slope(a, h);
    floats depth = depth_of(a, h, u), t = half_tanh(absolute(p) * depth);
    floats noise = (0.25f * a->scale) * t * epsilon;
    floats rate = noise * (1.0f - t * t); /* d (sigma epsilon) / d |p Delta| */
    /* d |p Delta| / dx = |p| sgn(Delta) (h' - u') and d |p Delta| / dp = sgn(p) |Delta|. */
    floats through_x = rate * absolute(p) * flip(slope - a->slope, sign_bit(h - u));
    floats through_p = flip(rate * depth, sign_bit(p));
    if (a->scheme == NANIL) {
        *phi = soft(a, x + noise * t);
        floats moved_slope = soft_slope(a, *phi);
        *dx = moved_slope * (1.0f + through_x);
        *dp = moved_slope * through_p;
        return;
    }
    ints d = direction(a, x);
    *phi = leaky(a, h, u) + flip(noise * t, d);
    *dx = (1.0f - a->alpha) * a->slope + a->alpha * slope + flip(through_x, d);
    *dp = flip(through_p, d);
    if (a->clip) {
        *dx = inside(a, *phi, *dx);
        *dp = inside(a, *phi, *dp);
        *phi = hard(a, *phi);
    }
}

INLINE floats phi_forward(const unit *a, floats x, floats p, floats xi) {
    if (a->function != PIECEWISE) return soft_forward(a, x, p, xi);
    floats u = x * a->slope + a->offset, epsilon = epsilon_of(a, xi), sigma;
    if (a->scheme == NANI || a->scheme == NANIS) {
        sigma = fixed_sigma(a, u);
    } else {
        floats h = hard(a, u), t = half_tanh(absolute(p) * depth_of(a, h, u));
        sigma = (0.25f * a->scale) * t * t;
        if (a->scheme <= NAH) {
            floats phi = leaky(a, h, u) + flip(sigma * epsilon, direction(a, x));
            return a->clip ? hard(a, phi) : phi;
        }
    }
    return hard(a, (x + sigma * epsilon) * a->slope + a->offset);
}

/* phi, dphi/dx and dphi/dp. */
INLINE void phi_derivatives(const unit *a, floats x, floats p, floats xi, floats *phi, floats *dx, floats *dp) {
    if (a->function != PIECEWISE) {
        soft_derivatives(a, x, p, xi, phi, dx, dp);
        return;
    }
    floats u = x * a->slope + a->offset, epsilon = epsilon_of(a, xi), zero = every(0.0f);
    if (a->scheme == NANI || a->scheme == NANIS) {
        floats moved = (x + fixed_sigma(a, u) * epsilon) * a->slope + a->offset;
        *phi = hard(a, moved);
        *dx = inside(a, moved, every(a->slope));
        *dp = zero;
        return;
    }
    floats h = hard(a, u), depth = depth_of(a, h, u), t = half_tanh(absolute(p) * depth);
    floats noise = (0.25f * a->scale) * t * epsilon;
    floats rate = noise * (1.0f - t * t); /* d (sigma epsilon) / d |p Delta| */
    mask saturated = above(depth, zero);
    if (a->scheme <= NAH) {
        ints d = direction(a, x);
        /* Moving x outwards increases |Delta| at the rate u'. d points outwards for alpha > 1, else inwards. */
        const float out = a->alpha > 1.0f ? a->slope : -a->slope;
        floats outward = out * absolute(p);
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
    floats moved = (x + noise * t) * a->slope + a->offset, open = inside(a, moved, every(a->slope));
    floats deeper = flip(every(a->slope), sign_bit(u - h));
    *phi = hard(a, moved);
    *dx = open * pick(saturated, 1.0f + rate * absolute(p) * deeper, every(1.0f));
    *dp = open * flip(rate * depth, sign_bit(p));
}

/* gx = g dphi/dx; gp = g dphi/dp. */
INLINE void phi_backward(const unit *a, floats g, floats x, floats p, floats xi, floats *gx, floats *gp) {
    floats phi, dx, dp;
    phi_derivatives(a, x, p, xi, &phi, &dx, &dp);
    *gx = g * dx;
    *gp = g * dp;
}

#endif
