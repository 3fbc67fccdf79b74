/* Elementary functions on vectors. libm's functions branch and cannot be vectorised.
 *
 * The coefficients are fits on Chebyshev nodes, and each comment states the largest error. The functions are valid only
 * for the inputs that their callers produce.
 */
#ifndef NOISYACT_VECTOR_MATH_H
#define NOISYACT_VECTOR_MATH_H

#include "simd.h"

/* Adding 1.5 * 2^23 to a small float rounds it to an integer and puts the integer in the low bits. */
#define ROUNDER 12582912.0f

/* -2 ln(v / 2^31) for v from 1/2 to 2^31, with a relative error of 2e-7.
 * v / 2^31 = 2^e (1 + m) with 1 + m in [sqrt(1/2), sqrt(2)), and ln(1 + m) = 2 artanh(m / (2 + m)). */
INLINE floats minus_two_log(floats v) {
    const int32_t root = 0x3f3504f3; /* sqrt(1/2), the smallest value of 1 + m */
    ints bits = (ints)v - (root + (31 << 23));
    floats e = __builtin_convertvector(bits >> 23, floats);
    floats m = (floats)((bits & 0x007fffff) + root) - 1.0f;
    floats s = m / (m + 2.0f), ss = s * s;
    floats q = every(-0.82593012f);
    q = q * ss - 1.33304442f;
    q = q * ss - 4.00000047f;
    return e * -1.38629436112f + s * q;
}

/* ln(v) for v from 1 to 2^60, with an absolute error of 3e-7 (1 + ln v). */
INLINE floats logarithm(floats v) { return minus_two_log(v * 0x1p31f) * -0.5f; }

/* 2^f - 1 for |f| <= 1/2, with a relative error of 2e-7 even near zero. */
INLINE floats power_minus_one(floats f) {
    floats q = every(1.54011262597e-4f);
    q = q * f + 1.33963020407e-3f;
    q = q * f + 9.61827072202e-3f;
    q = q * f + 5.55034472734e-2f;
    q = q * f + 2.40226493276e-1f;
    q = q * f + 6.93147191337e-1f;
    return f * q;
}

/* 2^n for the integer n that the low bits of `rounded` = n + ROUNDER contain, -126 <= n <= 127. */
INLINE floats power_of(floats rounded) { return (floats)(((words)rounded << 23) + 0x3f800000u); }

/* tanh(z / 2) for z >= 0, with a relative error of 3e-7 even near zero, because sigma is its square. NaN gives NaN.
 * With e^-z = s (1 + r), s a power of two and r small, w = 1 - e^-z = (1 - s) - s r has no cancellation, and
 * tanh(z / 2) = w / (2 - w). */
INLINE floats half_tanh(floats z) {
    floats t = at_least(z * -1.44269504089f, every(-40.0f)), rounded = t + ROUNDER;
    floats s = power_of(rounded), r = power_minus_one(t - (rounded - ROUNDER)), w = (1.0f - s) - s * r;
    return w / (2.0f - w);
}

/* tanh(x) with a relative error of 3e-7. Infinities give -1 and 1, NaN gives NaN, and zero keeps its sign. */
INLINE floats hyperbolic_tangent(floats x) { return flip(half_tanh(2.0f * absolute(x)), sign_bit(x)); }

/* 1 / (1 + e^-x) with a relative error of 4e-7; 0 where e^x < 2^-126. Infinities give 0 and 1, and NaN gives NaN.
 * The remainder of |x| / ln 2 is computed with ln 2 in two parts, because its absolute error is the result's relative
 * error. n times the first part is exact. */
INLINE floats sigmoid(floats x) {
    const floats least = every(-126.0f), zero = every(0.0f), one = every(1.0f);
    floats z = absolute(x), t = z * -1.44269504089f, rounded = at_least(t, least) + ROUNDER, n = rounded - ROUNDER;
    floats r = power_minus_one(((-z - n * 0.693359375f) + n * 2.12194440e-4f) * 1.44269504089f), s = power_of(rounded);
    floats e = pick(above(least, t), zero, s + s * r);
    return pick(above(zero, x), e, one) / (one + e);
}

/* The normal density at z, and the normal distribution at -|z|, with errors of 1e-7 and 3e-7; 0 for |z| > 30. The
 * distribution is the density times k times a polynomial of k = 1 / (1 + 0.28 |z|). NaN gives NaN. */
INLINE void normal_tail(floats z, floats *density, floats *tail) {
    floats size = at_most(absolute(z), every(30.0f)), t = at_least(size * size * -0.72134752044f, every(-126.0f));
    floats rounded = t + ROUNDER, s = power_of(rounded);
    floats k = 1.0f / (1.0f + 0.28f * size), q = every(0.1001131337f);
    q = q * k - 0.5440984985f;
    q = q * k + 0.9899928415f;
    q = q * k - 0.6147550443f;
    q = q * k + 0.6036828964f;
    q = q * k + 0.1401947232f;
    q = q * k + 0.2995314462f;
    q = q * k + 0.2786526393f;
    *density = 0.39894228040f * (s + s * power_minus_one(t - (rounded - ROUNDER)));
    *tail = *density * k * q;
}

/* Cosine and sine of w / 2^32 turns with an error of 1e-7: polynomials of the distance to the nearest quarter turn. */
INLINE void cosine_sine(words w, floats *cosine, floats *sine) {
    words quarters = w + 0x20000000u; /* rounded, in the two high bits */
    floats r = __builtin_convertvector((ints)(w << 2), floats) * 0x1p-34f;
    floats rr = r * r;
    floats a = every(-75.3939276874f);
    a = a * rr + 81.5927841121f;
    a = a * rr - 41.3416681973f;
    a = a * rr + 6.2831853035f;
    a = a * r;
    floats b = every(-83.5545690164f);
    b = b * rr + 64.9209564733f;
    b = b * rr - 19.7391567645f;
    b = b * rr + 0.9999999941f;
    mask odd = has_bit(quarters, 30);
    *cosine = flip(pick(odd, a, b), sign_bit((floats)(quarters + 0x40000000u)));
    *sine = flip(pick(odd, b, a), sign_bit((floats)quarters));
}

/* The sine of cosine_sine alone. The cosine of w is the sine of w + QUARTER_TURN, bit for bit. */
#define QUARTER_TURN 0x40000000u
INLINE floats sine_of(words w) {
    words quarters = w + 0x20000000u;
    floats r = __builtin_convertvector((ints)(w << 2), floats) * 0x1p-34f;
    floats rr = r * r;
    mask odd = has_bit(quarters, 30);
    floats q = pick(odd, every(-83.5545690164f), every(-75.3939276874f));
    q = q * rr + pick(odd, every(64.9209564733f), every(81.5927841121f));
    q = q * rr + pick(odd, every(-19.7391567645f), every(-41.3416681973f));
    q = q * rr + pick(odd, every(0.9999999941f), every(6.2831853035f));
    return flip(pick(odd, q, q * r), sign_bit((floats)quarters));
}

#endif
