/* Elementary functions on vectors, without libm, whose functions branch and cannot be vectorised.
 *
 * The coefficients are least-squares fits on Chebyshev nodes; each function states its largest error. Inputs are those
 * the callers produce: no function here is general.
 */
#ifndef NOISYACT_VECTOR_MATH_H
#define NOISYACT_VECTOR_MATH_H

#include "simd.h"

/* Adding 1.5 * 2^23 to a small float rounds it to an integer, which then stands in its low bits. */
#define ROUNDER 12582912.0f

/* ln(u) for positive, normal u = 2^e (1 + m) with 1 + m in [sqrt(1/2), sqrt(2)); 2e-7 of max(1, |ln u|). */
INLINE floats logarithm(floats u) {
    ints bits = (ints)u - 0x3f3504f3; /* counted from sqrt(1/2) */
    floats e = __builtin_convertvector(bits >> 23, floats);
    floats m = (floats)((bits & 0x007fffff) + 0x3f3504f3) - 1.0f;
    floats q = every(0.09398661804f);
    q = q * m - 0.14310872578f;
    q = q * m + 0.14705244465f;
    q = q * m - 0.16571869498f;
    q = q * m + 0.19982064250f;
    q = q * m - 0.25001407978f;
    q = q * m + 0.33333439887f;
    floats mm = m * m;
    return e * 0.69314718056f + (m * mm * q + (m - 0.5f * mm));
}

/* tanh(z / 2) for z >= 0, with full relative precision near zero, where sigma is its square; 3e-7. NaN in, NaN out.
 * e^-z = s (1 + r), s a power of two and r small: 1 - e^-z = (1 - s) - s r loses nothing. */
INLINE floats half_tanh(floats z) {
    floats t = at_least(z * -1.44269504089f, every(-40.0f));
    floats rounded = t + ROUNDER;
    floats f = t - (rounded - ROUNDER);
    floats s = (floats)(((ints)rounded << 23) + 0x3f800000);
    floats q = every(1.54011262597e-4f);
    q = q * f + 1.33963020407e-3f;
    q = q * f + 9.61827072202e-3f;
    q = q * f + 5.55034472734e-2f;
    q = q * f + 2.40226493276e-1f;
    q = q * f + 6.93147191337e-1f;
    floats sr = s * f * q;
    return ((1.0f - s) - sr) * reciprocal((1.0f + s) + sr);
}

/* Cosine and sine of v turns, v in [-1/2, 1/2]: quarter turns by selection, the rest by polynomial; 1e-7. */
INLINE void cosine_sine(floats v, floats *cosine, floats *sine) {
    floats rounded = 4.0f * v + ROUNDER;
    floats r = v - 0.25f * (rounded - ROUNDER);
    ints n = (ints)rounded;
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
    mask quarter = odd(n);
    *cosine = flip(pick(quarter, a, b), sign_bit((floats)((n + 1) << 30)));
    *sine = flip(pick(quarter, b, a), sign_bit((floats)(n << 30)));
}

#endif
