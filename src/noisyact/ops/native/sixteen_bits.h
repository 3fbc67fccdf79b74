/* 16-bit floats: widened to float32, which is exact, and rounded from it to nearest, ties to even, as torch does.
 *
 * Values beyond the largest finite one become infinite, and NaN stays NaN.
 */
#ifndef NOISYACT_SIXTEEN_BITS_H
#define NOISYACT_SIXTEEN_BITS_H

#include "simd.h"

enum dtype { FLOAT32, BFLOAT16, FLOAT16 };

typedef uint16_t halves __attribute__((vector_size(2 * LANES)));

INLINE halves load_halves(const uint16_t *from) { halves v; memcpy(&v, from, sizeof v); return v; }
INLINE void store_halves(uint16_t *to, halves v) { memcpy(to, &v, sizeof v); }
INLINE words choose(ints where, words yes, words no) { return ((words)where & yes) | (~(words)where & no); }

/* gcc 12 divides a conversion between 16 and 32 bits into vectors of half the width. */
#if LANES == 16
INLINE words widened(halves v) { return (words)_mm512_cvtepu16_epi32((__m256i)v); }
INLINE halves narrowed(words v) { return (halves)_mm512_cvtepi32_epi16((__m512i)v); }
INLINE words if_nan(floats v, words yes, words no) {
    return (words)_mm512_mask_mov_epi32((__m512i)no, _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q), (__m512i)yes);
}
#else
INLINE words widened(halves v) { return __builtin_convertvector(v, words); }
INLINE halves narrowed(words v) { return __builtin_convertvector(v, halves); }
INLINE words if_nan(floats v, words yes, words no) { return choose(v != v, yes, no); }
#endif

INLINE floats from_bfloat16(halves v) { return (floats)(widened(v) << 16); }

/* Just under half of the last place, plus one if the last place is odd, carries where the value must be rounded up. The
 * result is in the low half of each lane. */
INLINE words bfloat16_bits(floats v) {
    words bits = (words)v, rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return if_nan(v, (words){0} + 0x7fc0u, rounded);
}

INLINE halves to_bfloat16(floats v) { return narrowed(bfloat16_bits(v)); }

#if LANES == 16

INLINE floats from_float16(halves v) { return (floats)_mm512_cvtph_ps((__m256i)v); }
INLINE halves to_float16(floats v) { return (halves)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT); }

#elif LANES == 8 && defined(__F16C__)

INLINE floats from_float16(halves v) { return (floats)_mm256_cvtph_ps((__m128i)v); }
INLINE halves to_float16(floats v) { return (halves)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT); }

#else

#define BIAS (112u << 23) /* the difference between the biases of the exponents, 127 and 15 */

/* A denormal is a multiple of 2^-24. The exponent of infinity and NaN is the largest in both formats. */
INLINE floats from_float16(halves v) {
    words bits = __builtin_convertvector(v, words), sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;
    words normal = (size << 13) + choose((ints)size >= 0x7c00, (words){0} + 2 * BIAS, (words){0} + BIAS);
    floats denormal = __builtin_convertvector((ints)size, floats) * 0x1p-24f;
    return (floats)(choose((ints)size < 0x400, (words)denormal, normal) | sign);
}

/* Below 2^-14, adding 1/2 rounds to a multiple of 2^-24 and puts its count in the low bits. 2^16 gives infinity. */
INLINE halves to_float16(floats v) {
    words bits = (words)v, size = bits & 0x7fffffffu, most = (words){0} + (143u << 23);
    words capped = choose((ints)size < (ints)most, size, most);
    words normal = (capped - BIAS + 0xfffu + (capped >> 13 & 1u)) >> 13;
    words denormal = (words)((floats)size + 0.5f) - (126u << 23);
    words rounded = choose((ints)size < (113 << 23), denormal, normal);
    return __builtin_convertvector(choose(v != v, (words){0} + 0x7e00u, rounded) | (bits & 0x80000000u) >> 16, halves);
}

#endif

/* Convert `count` elements, a multiple of LANES. */
INLINE void widen(int dtype, const uint16_t *from, float *to, int count) {
    if (dtype == BFLOAT16)
        for (int j = 0; j < count; j += LANES) store(to + j, from_bfloat16(load_halves(from + j)));
    else
        for (int j = 0; j < count; j += LANES) store(to + j, from_float16(load_halves(from + j)));
}

INLINE void narrow(int dtype, const float *from, uint16_t *to, int count) {
    if (dtype == BFLOAT16)
        for (int j = 0; j < count; j += LANES) store_halves(to + j, to_bfloat16(load(from + j)));
    else
        for (int j = 0; j < count; j += LANES) store_halves(to + j, to_float16(load(from + j)));
}

#endif
