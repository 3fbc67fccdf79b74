/* The number type of the recurrent kernels and of the products: float, or double if NOISYACT_DOUBLE is defined. These
 * files are compiled once for each. Both draw their noise from the same words of the same counters.
 */
#ifndef NOISYACT_REAL_H
#define NOISYACT_REAL_H

#include "philox.h"

#ifndef NOISYACT_DOUBLE

#define EXPORTED(name) name
typedef float real;
typedef floats reals;
typedef ints bits;

#else

#define EXPORTED(name) name##_double
typedef double real;
typedef double reals __attribute__((vector_size(8 * LANES)));
typedef int64_t bits __attribute__((vector_size(8 * LANES)));

INLINE reals double_every(double value) { return value - (reals){0}; }
INLINE reals double_load(const double *from) { reals v; memcpy(&v, from, sizeof v); return v; }
INLINE void double_store(double *to, reals v) { memcpy(to, &v, sizeof v); }
INLINE reals double_absolute(reals v) { return (reals)((bits)v & INT64_MAX); }
INLINE bits double_sign_bit(reals v) { return (bits)v & INT64_MIN; }
INLINE reals double_flip(reals v, bits sign) { return (reals)((bits)v ^ sign); }

#if LANES == 8

typedef __mmask8 double_mask;
INLINE double_mask double_above(reals a, reals b) { return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_GT_OQ); }
INLINE int double_all(double_mask m) { return m == 0xff; }
INLINE reals double_pick(double_mask m, reals yes, reals no) {
    return (reals)_mm512_mask_blend_pd(m, (__m512d)no, (__m512d)yes);
}
INLINE reals double_load_first(const double *from, int count) {
    return (reals)_mm512_maskz_loadu_pd((__mmask8)((1u << count) - 1u), from);
}
INLINE void double_store_first(double *to, int count, reals v) {
    _mm512_mask_storeu_pd(to, (__mmask8)((1u << count) - 1u), (__m512d)v);
}
INLINE reals double_at_least(reals v, reals low) { return (reals)_mm512_max_pd((__m512d)low, (__m512d)v); }
INLINE reals double_at_most(reals v, reals high) { return (reals)_mm512_min_pd((__m512d)high, (__m512d)v); }

#else

typedef bits double_mask;
INLINE double_mask double_above(reals a, reals b) { return a > b; }
INLINE int double_all(double_mask m) { return (m[0] & m[1] & m[2] & m[3]) != 0; }
INLINE reals double_pick(double_mask m, reals yes, reals no) { return (reals)((m & (bits)yes) | (~m & (bits)no)); }
INLINE reals double_at_least(reals v, reals low) { return double_pick(low > v, low, v); }
INLINE reals double_at_most(reals v, reals high) { return double_pick(v > high, high, v); }
INLINE reals double_load_first(const double *from, int count) {
    double padded[LANES] = {0};
    memcpy(padded, from, (size_t)count * sizeof(double));
    return double_load(padded);
}
INLINE void double_store_first(double *to, int count, reals v) {
    double padded[LANES];
    double_store(padded, v);
    memcpy(to, padded, (size_t)count * sizeof(double));
}

#endif

/* Box-Muller by libm, lane by lane: noise is drawn only where a unit saturates. */
INLINE void double_normal_pair(words w0, words w1, reals *n0, reals *n1) {
    for (int j = 0; j < LANES; j++) {
        double radius = sqrt(-2.0 * log(((double)(w0[j] >> 1) + 0.5) * 0x1p-31));
        double angle = 6.283185307179586 * ((double)(int32_t)w1[j] * 0x1p-32);
        (*n0)[j] = radius * cos(angle);
        (*n1)[j] = radius * sin(angle);
    }
}

/* 2^f - 1 for |f| <= 1/2 by the Taylor series, whose remainder is below 1e-17 f. */
INLINE reals double_power_minus_one(reals f) {
    static const double c[] = {1.3691488853904124e-12, 2.5678435993488196e-11, 4.4455382718708101e-10,
                               7.0549116208011209e-09, 1.0178086009239696e-07, 1.3215486790144305e-06,
                               1.5252733804059838e-05, 1.5403530393381606e-04, 1.3333558146428441e-03,
                               9.6181291076284769e-03, 5.5504108664821576e-02, 2.4022650695910069e-01,
                               6.9314718055994529e-01};
    reals q = double_every(c[0]);
    for (int k = 1; k < 13; k++) q = q * f + c[k];
    return f * q;
}

/* Adding 1.5 * 2^52 rounds a small double to an integer, which is then in the low bits. */
#define DOUBLE_ROUNDER 6755399441055744.0
INLINE reals double_power_of(reals rounded) { return (reals)(((bits)rounded << 52) + 0x3ff0000000000000); }

/* The functions of vector_math.h, by the same formulas. */
INLINE reals double_half_tanh(reals z) {
    reals t = double_at_least(z * -1.4426950408889634, double_every(-64.0)), rounded = t + DOUBLE_ROUNDER;
    reals s = double_power_of(rounded), r = double_power_minus_one(t - (rounded - DOUBLE_ROUNDER));
    reals w = (1.0 - s) - s * r;
    return w / (2.0 - w);
}

INLINE reals double_hyperbolic_tangent(reals x) {
    return double_flip(double_half_tanh(2.0 * double_absolute(x)), double_sign_bit(x));
}

INLINE reals double_sigmoid(reals x) {
    const reals least = double_every(-1022.0), zero = double_every(0.0), one = double_every(1.0);
    reals z = double_absolute(x), t = z * -1.4426950408889634, rounded = double_at_least(t, least) + DOUBLE_ROUNDER;
    reals n = rounded - DOUBLE_ROUNDER, s = double_power_of(rounded);
    reals rest = ((-z - n * 0.69314718036912382) - n * 1.9082149292705877e-10) * 1.4426950408889634;
    reals e = double_pick(double_above(least, t), zero, s + s * double_power_minus_one(rest));
    return double_pick(double_above(zero, x), e, one) / (one + e);
}

/* The normal density at z, and the normal distribution at -|z|, by libm. */
INLINE void double_normal_tail(reals z, reals *density, reals *tail) {
    for (int j = 0; j < LANES; j++) {
        (*density)[j] = 0.3989422804014327 * exp(-0.5 * z[j] * z[j]);
        (*tail)[j] = 0.5 * erfc(fabs(z[j]) * 0.7071067811865476);
    }
}

INLINE reals double_logarithm(reals v) {
    for (int j = 0; j < LANES; j++) v[j] = log(v[j]);
    return v;
}

/* From here on the names of simd.h and vector_math.h mean the functions of doubles. */
#define mask double_mask
#define every double_every
#define load double_load
#define store double_store
#define load_first double_load_first
#define store_first double_store_first
#define absolute double_absolute
#define sign_bit double_sign_bit
#define flip double_flip
#define above double_above
#define all double_all
#define pick double_pick
#define at_least double_at_least
#define at_most double_at_most
#define normal_pair double_normal_pair
#define normal_tail double_normal_tail
#define logarithm double_logarithm
#define half_tanh double_half_tanh
#define hyperbolic_tangent double_hyperbolic_tangent
#define sigmoid double_sigmoid

#endif
#endif
