/* Standard normal noise from a counter: element i of a tensor gets the same xi for a seed whatever the threads, the
 * blocks or the order, so backward regenerates what forward used and nothing is stored.
 *
 * Philox4x32 with 7 rounds, key = the 64-bit seed, counter = (k, k >> 32, 0, 0). One counter gives four words, two
 * Box-Muller pairs, four normals. A group of 64 elements is served by 16 counters: element 64 g + 16 l + j takes normal
 * l of counter 16 g + j, which makes every load and store of a SIMD lane contiguous. noisyact/noise.py is the same in
 * torch.
 */
#ifndef NOISYACT_PHILOX_H
#define NOISYACT_PHILOX_H

#include "vector_math.h"

#define PHILOX_ROUNDS 7
#define COUNTERS 16               /* that serve a group */
#define GROUP (4 * COUNTERS)
#define BLOCK (2 * GROUP)         /* elements the kernels take at a time */
#define STREAMS 2                 /* vectors of counters in flight: one alone waits for its own results */

/* High and low halves of v * m in every lane. */
INLINE void multiply_wide(words v, uint32_t m, words *high, words *low) {
    const wide upper = (wide){0} + 0xffffffff00000000u;
    wide even = even_products(v, m), odd = even_products((words)((wide)v >> 32), m);
    *high = (words)((even >> 32) | (odd & upper));
    *low = v * m;
}

INLINE words lane_numbers(void) {
    words lane;
    for (int j = 0; j < LANES; j++) lane[j] = (uint32_t)j;
    return lane;
}

/* The rounds, on several vectors of counters at once. */
INLINE void philox(uint64_t seed, words (*c)[4], const int streams) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        for (int s = 0; s < streams; s++) {
            words high_a, low_a, high_b, low_b;
            multiply_wide(c[s][0], 0xD2511F53u, &high_a, &low_a);
            multiply_wide(c[s][2], 0xCD9E8D57u, &high_b, &low_b);
            c[s][0] = high_b ^ c[s][1] ^ k0;
            c[s][1] = low_b;
            c[s][2] = high_a ^ c[s][3] ^ k1;
            c[s][3] = low_a;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

INLINE void normal_pair(words w0, words w1, floats *n0, floats *n1) {
    /* (w0 / 2 + 1/2) 2^-31 is never 0: the radius ends at 6.66. The angle is w1 read as a signed part of a turn. */
    floats u = (__builtin_convertvector((ints)(w0 >> 1), floats) + 0.5f) * 4.656612873077393e-10f;
    floats radius = square_root(-2.0f * logarithm(u)), cosine, sine;
    cosine_sine(__builtin_convertvector((ints)w1, floats) * 2.3283064365386963e-10f, &cosine, &sine);
    *n0 = radius * cosine;
    *n1 = radius * sine;
}

/* The 128 normals of the groups 2 b and 2 b + 1. */
INLINE void normal_block(uint64_t seed, uint64_t block, float xi[BLOCK]) {
    const words lane = lane_numbers();
    for (int part = 0; part < BLOCK / 4; part += STREAMS * LANES) {
        words c[STREAMS][4];
        floats n[STREAMS][4];
        for (int s = 0; s < STREAMS; s++) {
            uint64_t first = block * (BLOCK / 4) + (uint64_t)(part + s * LANES); /* a multiple of LANES: never carries */
            c[s][0] = lane + (uint32_t)first;
            c[s][1] = (words){0} + (uint32_t)(first >> 32);
            c[s][2] = c[s][3] = (words){0};
        }
        philox(seed, c, STREAMS);
        for (int s = 0; s < STREAMS; s++) {
            normal_pair(c[s][0], c[s][1], &n[s][0], &n[s][1]);
            normal_pair(c[s][2], c[s][3], &n[s][2], &n[s][3]);
        }
        for (int s = 0; s < STREAMS; s++) {
            int place = part + s * LANES;
            float *to = xi + place / COUNTERS * GROUP + place % COUNTERS;
            for (int l = 0; l < 4; l++) store(to + l * COUNTERS, n[s][l]);
        }
    }
}

#endif
