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
INLINE void multiply(words v, uint32_t m, words *high, words *low) {
    const wide upper = (wide){0} + 0xffffffff00000000u;
    wide even = even_products(v, m), odd = even_products((words)((wide)v >> 32), m);
    *high = (words)((even >> 32) | (odd & upper));
    *low = v * m;
}

INLINE void normal_pairs(const words w0[STREAMS], const words w1[STREAMS], float *n0[STREAMS], float *n1[STREAMS]) {
    floats radius[STREAMS], cosine[STREAMS], sine[STREAMS];
    for (int s = 0; s < STREAMS; s++) {
        /* (w0 / 2 + 1/2) 2^-31 is never 0: the radius ends at 6.66. The angle is w1 read as a signed part of a turn. */
        floats u = (__builtin_convertvector((ints)(w0[s] >> 1), floats) + 0.5f) * 4.656612873077393e-10f;
        radius[s] = square_root(-2.0f * logarithm(u));
        cosine_sine(__builtin_convertvector((ints)w1[s], floats) * 2.3283064365386963e-10f, &cosine[s], &sine[s]);
    }
    for (int s = 0; s < STREAMS; s++) {
        store(n0[s], radius[s] * cosine[s]);
        store(n1[s], radius[s] * sine[s]);
    }
}

/* The 128 normals of the groups 2 b and 2 b + 1. */
INLINE void normal_block(uint64_t seed, uint64_t block, float xi[BLOCK]) {
    words lane;
    for (int j = 0; j < LANES; j++) lane[j] = (uint32_t)j;
    for (int part = 0; part < BLOCK / 4; part += STREAMS * LANES) {
        words c0[STREAMS], c1[STREAMS], c2[STREAMS], c3[STREAMS];
        float *to[4][STREAMS];
        for (int s = 0; s < STREAMS; s++) {
            int place = part + s * LANES;
            uint64_t first = block * (BLOCK / 4) + (uint64_t)place; /* a multiple of LANES: a lane never carries */
            c0[s] = lane + (uint32_t)first;
            c1[s] = (words){0} + (uint32_t)(first >> 32);
            c2[s] = c3[s] = (words){0};
            for (int l = 0; l < 4; l++) to[l][s] = xi + place / COUNTERS * GROUP + l * COUNTERS + place % COUNTERS;
        }
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        for (int round = 0; round < PHILOX_ROUNDS; round++) {
            for (int s = 0; s < STREAMS; s++) {
                words high_a, low_a, high_b, low_b;
                multiply(c0[s], 0xD2511F53u, &high_a, &low_a);
                multiply(c2[s], 0xCD9E8D57u, &high_b, &low_b);
                c0[s] = high_b ^ c1[s] ^ k0;
                c1[s] = low_b;
                c2[s] = high_a ^ c3[s] ^ k1;
                c3[s] = low_a;
            }
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        normal_pairs(c0, c1, to[0], to[1]);
        normal_pairs(c2, c3, to[2], to[3]);
    }
}

#endif
