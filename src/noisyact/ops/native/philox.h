/* Standard normal noise from a counter. The xi of an element depends only on the seed and the element's index, not on
 * threads, blocks or order, so backward recomputes the noise of forward and nothing is stored.
 *
 * Philox4x32 with 7 rounds, key = the 64-bit seed, counter = (k, k >> 32, 0, 0). One counter gives four words, and
 * Box-Muller turns them into four normals. A group of 64 elements uses 16 counters: element 64 g + 16 l + j uses normal
 * l of counter 16 g + j, so that vector loads and stores are contiguous. noisyact/noise.py computes the same in torch.
 */
#ifndef NOISYACT_PHILOX_H
#define NOISYACT_PHILOX_H

#include "vector_math.h"

#define PHILOX_ROUNDS 7
#define COUNTERS 16               /* of a group */
#define GROUP (4 * COUNTERS)
#define BLOCK (2 * GROUP)         /* elements that the kernels process at a time */
#define STREAMS 2                 /* vectors of counters at a time: a single one would wait for its own results */

INLINE words lane_numbers(void) {
    words lane;
    for (int j = 0; j < LANES; j++) lane[j] = (uint32_t)j;
    return lane;
}

/* The four words of each counter (first, c1, c2, c3), for several vectors of counters at once. Only `first` differs
 * between lanes, and each vector has its own c1.
 *
 * A product of two words needs a lane of 64 bits, so even and odd lanes are processed separately, each word in the low
 * half of a wide lane. The high halves are never cleared, because they never affect a low half. The first two rounds
 * are written out, because one of their two products is still the same for all lanes. */
INLINE void philox(uint64_t seed, const words *first, const uint32_t *c1, uint32_t c2, uint32_t c3, words (*out)[4],
                   const int streams) {
    const uint32_t a = 0xD2511F53u, b = 0xCD9E8D57u;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    const uint64_t same_b = (uint64_t)c2 * b;
    uint64_t same_a[STREAMS];
    wide c[2 * STREAMS][4];
    for (int s = 0; s < streams; s++) same_a[s] = (uint64_t)((uint32_t)(same_b >> 32) ^ c1[s] ^ k0) * a;
    for (int s = 0; s < 2 * streams; s++) {
        wide counters = (wide)first[s / 2];
        c[s][3] = products(s % 2 ? counters >> 32 : counters, a);
        c[s][2] = c[s][3] >> 32 ^ (uint64_t)(c3 ^ k1);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
    for (int s = 0; s < 2 * streams; s++) {
        c[s][1] = products(c[s][2], b);
        c[s][0] = c[s][1] >> 32 ^ (uint64_t)((uint32_t)same_b ^ k0);
        c[s][2] = c[s][3] ^ (uint64_t)((uint32_t)(same_a[s / 2] >> 32) ^ k1);
        c[s][3] = (wide){0} + same_a[s / 2];
    }
    for (int round = 2; round < PHILOX_ROUNDS; round++) {
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
        for (int s = 0; s < 2 * streams; s++) {
            wide from_a = products(c[s][0], a), from_b = products(c[s][2], b);
            c[s][0] = from_b >> 32 ^ c[s][1] ^ (uint64_t)k0;
            c[s][1] = from_b;
            c[s][2] = from_a >> 32 ^ c[s][3] ^ (uint64_t)k1;
            c[s][3] = from_a;
        }
    }
    for (int s = 0; s < streams; s++)
        for (int n = 0; n < 4; n++) out[s][n] = (words)((c[2 * s][n] & 0xffffffffu) | c[2 * s + 1][n] << 32);
}

/* Box-Muller. (w0 / 2 + 1/2) 2^-31 is never 0, so the radius is at most 6.66. The angle is w1 / 2^32 turns. */
INLINE floats radius_of(words w0) {
    return square_root(minus_two_log(__builtin_convertvector((ints)(w0 >> 1), floats) + 0.5f));
}

INLINE void normal_pair(words w0, words w1, floats *n0, floats *n1) {
    floats radius = radius_of(w0), cosine, sine;
    cosine_sine(w1, &cosine, &sine);
    *n0 = radius * cosine;
    *n1 = radius * sine;
}

/* The words of STREAMS vectors of the counters of a block, from counter `part` of the block on. */
INLINE void block_words(uint64_t seed, uint64_t block, int part, words w[STREAMS][4]) {
    uint64_t begin = block * (BLOCK / 4) + (uint64_t)part; /* a multiple of the vector size: lanes never carry */
    words first[STREAMS];
    uint32_t high[STREAMS];
    for (int s = 0; s < STREAMS; s++) {
        first[s] = lane_numbers() + (uint32_t)begin + (uint32_t)(s * LANES);
        high[s] = (uint32_t)(begin >> 32);
    }
    philox(seed, first, high, 0, 0, w, STREAMS);
}

/* The 128 normals of the groups 2 b and 2 b + 1. */
INLINE void normal_block(uint64_t seed, uint64_t block, float xi[BLOCK]) {
    for (int part = 0; part < BLOCK / 4; part += STREAMS * LANES) {
        words w[STREAMS][4];
        block_words(seed, block, part, w);
        for (int s = 0; s < STREAMS; s++) {
            int place = part + s * LANES;
            float *to = xi + place / COUNTERS * GROUP + place % COUNTERS;
            for (int l = 0; l < 4; l += 2) {
                floats n0, n1;
                normal_pair(w[s][l], w[s][l + 1], &n0, &n1);
                store(to + l * COUNTERS, n0);
                store(to + (l + 1) * COUNTERS, n1);
            }
        }
    }
}

#endif
