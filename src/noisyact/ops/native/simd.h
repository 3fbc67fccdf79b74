/* Vectors of floats. The compiler provides arithmetic on these types (`a * b + c`). Operations that it compiles badly,
 * such as selections and the widening multiplication, are written here once for each instruction set. The last variant
 * is plain C and runs on any processor.
 */
#ifndef NOISYACT_SIMD_H
#define NOISYACT_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* With doubles a vector of floats has half the width, so that a vector of as many doubles fits a register. */
#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#endif
#if defined(__AVX512F__) && defined(__AVX512DQ__) && !defined(NOISYACT_DOUBLE)
#define LANES 16
#elif defined(__AVX2__) && defined(__FMA__) && (defined(__AVX512F__) || !defined(NOISYACT_DOUBLE))
#define LANES 8
#else
#define LANES 4
#endif

/* A vector of doubles does not fit a register of the plain variant. There the compiler decides what to inline: with
 * everything inlined it takes four times as long. */
#if defined(NOISYACT_DOUBLE) && LANES == 4 && !defined(__AVX2__)
#define INLINE static inline
#else
#define INLINE static inline __attribute__((always_inline))
#endif

/* A large function that is seldom called. */
#define OUTLINE static __attribute__((noinline, unused))

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint64_t wide __attribute__((vector_size(4 * LANES))); /* half as many lanes */

INLINE floats every(float value) { return value - (floats){0}; }
INLINE floats load(const float *from) { floats v; memcpy(&v, from, sizeof v); return v; }
INLINE void store(float *to, floats v) { memcpy(to, &v, sizeof v); }
INLINE floats absolute(floats v) { return (floats)((ints)v & 0x7fffffff); }
INLINE ints sign_bit(floats v) { return (ints)v & (int32_t)0x80000000; }
INLINE floats flip(floats v, ints sign) { return (floats)((ints)v ^ sign); }

/* at_least(v, low) and at_most(v, high) are NaN where v is NaN.
 * has_bit(n, b) is true where bit b of n is set.
 * products(v, m) multiplies the low halves of 64-bit lanes by m and ignores the high halves.
 * Division and square root use the processor's slow instructions, because these run on other execution units than the
 * many multiplications. */
#if LANES == 16

typedef __mmask16 mask;
INLINE mask above(floats a, floats b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ); }
INLINE int all(mask m) { return m == 0xffff; }
INLINE int any(mask m) { return m != 0; }
INLINE floats pick(mask m, floats yes, floats no) { return (floats)_mm512_mask_blend_ps(m, (__m512)no, (__m512)yes); }
INLINE mask has_bit(words n, int b) { return _mm512_test_epi32_mask((__m512i)n, _mm512_set1_epi32(1 << b)); }
INLINE floats at_least(floats v, floats low) { return (floats)_mm512_max_ps((__m512)low, (__m512)v); }
INLINE floats at_most(floats v, floats high) { return (floats)_mm512_min_ps((__m512)high, (__m512)v); }
INLINE floats square_root(floats v) { return (floats)_mm512_sqrt_ps((__m512)v); }
INLINE wide products(wide v, uint32_t m) { return (wide)_mm512_mul_epu32((__m512i)v, _mm512_set1_epi64(m)); }
/* compress(m, v): the lanes of v where m is true, one after the other from lane 0 on; zeros in the lanes that are left.
 * expand(m, v, others): the reverse; the lanes of `others` where m is false. number(m): of lanes. */
#define HAS_COMPRESS
INLINE floats compress(mask m, floats v) { return (floats)_mm512_maskz_compress_ps(m, (__m512)v); }
INLINE floats expand(mask m, floats v, floats others) {
    return (floats)_mm512_mask_expand_ps((__m512)others, m, (__m512)v);
}
INLINE int number(mask m) { return __builtin_popcount(m); }
INLINE floats load_first(const float *from, int count) {
    return (floats)_mm512_maskz_loadu_ps((mask)((1u << count) - 1u), from);
}
INLINE void store_first(float *to, int count, floats v) {
    _mm512_mask_storeu_ps(to, (mask)((1u << count) - 1u), (__m512)v);
}

#elif LANES == 8

typedef __m256 mask;
INLINE mask above(floats a, floats b) { return _mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GT_OQ); }
INLINE int all(mask m) { return _mm256_movemask_ps(m) == 0xff; }
INLINE int any(mask m) { return _mm256_movemask_ps(m) != 0; }
INLINE floats pick(mask m, floats yes, floats no) { return (floats)_mm256_blendv_ps((__m256)no, (__m256)yes, m); }
INLINE mask has_bit(words n, int b) { return (__m256)(n << (31 - b)); }
INLINE floats at_least(floats v, floats low) { return (floats)_mm256_max_ps((__m256)low, (__m256)v); }
INLINE floats at_most(floats v, floats high) { return (floats)_mm256_min_ps((__m256)high, (__m256)v); }
INLINE floats square_root(floats v) { return (floats)_mm256_sqrt_ps((__m256)v); }
INLINE wide products(wide v, uint32_t m) { return (wide)_mm256_mul_epu32((__m256i)v, _mm256_set1_epi64x(m)); }

#else

typedef ints mask;
INLINE mask above(floats a, floats b) { return a > b; }
INLINE int all(mask m) { return (m[0] & m[1] & m[2] & m[3]) != 0; }
INLINE int any(mask m) { return (m[0] | m[1] | m[2] | m[3]) != 0; }
INLINE floats pick(mask m, floats yes, floats no) { return (floats)((m & (ints)yes) | (~m & (ints)no)); }
INLINE mask has_bit(words n, int b) { return (ints)(n << (31 - b)) >> 31; }
INLINE floats at_least(floats v, floats low) { return pick(low > v, low, v); }
INLINE floats at_most(floats v, floats high) { return pick(v > high, high, v); }
INLINE floats square_root(floats v) { return (floats){sqrtf(v[0]), sqrtf(v[1]), sqrtf(v[2]), sqrtf(v[3])}; }
INLINE wide products(wide v, uint32_t m) { return (v & 0xffffffffu) * (uint64_t)m; }

#endif

/* load_first(from, n): the first n lanes, with zeros in the others. store_first(to, n, v): only these. */
#if LANES != 16
INLINE floats load_first(const float *from, int count) {
    float padded[LANES] = {0};
    memcpy(padded, from, (size_t)count * sizeof(float));
    return load(padded);
}
INLINE void store_first(float *to, int count, floats v) {
    float padded[LANES];
    store(padded, v);
    memcpy(to, padded, (size_t)count * sizeof(float));
}
#endif
#endif
