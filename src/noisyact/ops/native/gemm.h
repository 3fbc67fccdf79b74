/* Products of a few rows with packed weights, with all results in registers.
 *
 * out[r][v] += sum over k of left[r][k * step] * packed[k][v] for up to ROWS rows and up to COLUMNS vectors v. The
 * weights of such a column block are packed as [k][columns][LANES], so that the inner loop reads them in order. Rows
 * are given by pointers and need not be adjacent. If all pointers are NULL, the rows are zeros.
 */
#ifndef NOISYACT_GEMM_H
#define NOISYACT_GEMM_H

#include <stddef.h>

#include "real.h"

#define COLUMNS 4
#define AHEAD 24 /* steps of k */
/* ROWS x COLUMNS sums, COLUMNS weights and one broadcast must fit the registers. */
#if defined(__AVX512F__) && defined(__AVX512DQ__)
#define ROWS 6
#else
#define ROWS 2
#endif

/* With 512-bit vectors a vector whose second half is empty takes half the time as a vector of 256 bits. */
#if defined(__AVX512F__) && defined(__AVX512DQ__)
#define HALF (LANES / 2)
#else
#define HALF 0
#endif
typedef real half_reals __attribute__((vector_size(sizeof(reals) / 2)));
INLINE half_reals load_half(const void *from) { half_reals v; memcpy(&v, from, sizeof v); return v; }

/* The last `halves` of the columns have at most HALF lanes in use. */
INLINE void multiply_fixed(const int rows, const int columns, const int halves, const real *const *left, int64_t step,
                           const real *packed, int64_t depth, reals out[ROWS][COLUMNS]) {
    const int whole = columns - halves;
    reals sum[ROWS][COLUMNS];
    half_reals half[ROWS][COLUMNS];
    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < whole; v++) sum[r][v] = out[r][v];
        for (int v = whole; v < columns; v++) half[r][v] = load_half(&out[r][v]);
    }
    for (int64_t k = 0; k < depth; k++) {
        reals w[COLUMNS];
        half_reals half_w[COLUMNS];
        for (int v = 0; v < columns; v++) {
            const real *from = packed + (k * columns + v) * LANES;
            if (v < whole) w[v] = load(from);
            else half_w[v] = load_half(from);
            /* The hardware prefetcher stops at page boundaries, which a block of weights crosses often. */
            __builtin_prefetch(packed + ((k + AHEAD) * columns + v) * LANES);
        }
        for (int r = 0; r < rows; r++) {
            const real x = left[r][k * step];
            for (int v = 0; v < whole; v++) sum[r][v] += every(x) * w[v];
            for (int v = whole; v < columns; v++) half[r][v] += (x - (half_reals){0}) * half_w[v];
        }
    }
    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < whole; v++) out[r][v] = sum[r][v];
        for (int v = whole; v < columns; v++) memcpy(&out[r][v], &half[r][v], sizeof(half_reals));
    }
}

/* One copy of the code for each number of rows, so that the sums stay in registers. */
INLINE void multiply_columns(int rows, const int columns, const int halves, const real *const *left, int64_t step,
                             const real *packed, int64_t depth, reals out[ROWS][COLUMNS]) {
    switch (rows) {
    case 1: multiply_fixed(1, columns, halves, left, step, packed, depth, out); break;
    case 2: multiply_fixed(2, columns, halves, left, step, packed, depth, out); break;
#if ROWS == 6
    case 3: multiply_fixed(3, columns, halves, left, step, packed, depth, out); break;
    case 4: multiply_fixed(4, columns, halves, left, step, packed, depth, out); break;
    case 5: multiply_fixed(5, columns, halves, left, step, packed, depth, out); break;
    case 6: multiply_fixed(6, columns, halves, left, step, packed, depth, out); break;
#endif
    }
}

/* halves: none of the columns, the last one, or all. */
static inline void multiply_rows(int rows, int columns, int halves, const real *const *left, int64_t step,
                                 const real *packed, int64_t depth, reals out[ROWS][COLUMNS]) {
    int nothing = 1;
    for (int r = 0; r < rows; r++) nothing &= left[r] == NULL;
    if (nothing) return;
#define COLUMNS_CASE(count)                                                                                            \
    case count:                                                                                                        \
        if (HALF && halves == count) multiply_columns(rows, count, count, left, step, packed, depth, out);             \
        else if (HALF && halves == 1) multiply_columns(rows, count, 1, left, step, packed, depth, out);                \
        else multiply_columns(rows, count, 0, left, step, packed, depth, out);                                         \
        break;
    switch (columns) {
        COLUMNS_CASE(1)
        COLUMNS_CASE(2)
        COLUMNS_CASE(3)
        COLUMNS_CASE(4)
    }
#undef COLUMNS_CASE
}

/* One stage of the transposition of LANES vectors: it swaps off-diagonal blocks of s x s elements. */
INLINE void exchange(reals rows[LANES], const int s) {
#if defined(__GNUC__) && !defined(__clang__)
    bits low = {0}, high = {0};
    for (int j = 0; j < LANES; j++) {
        low[j] = j & s ? LANES + j - s : j;
        high[j] = j & s ? LANES + j : j + s;
    }
#endif
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        if (i & s) continue;
        reals a = rows[i], b = rows[i + s];
#if defined(__GNUC__) && !defined(__clang__)
        rows[i] = __builtin_shuffle(a, b, low);
        rows[i + s] = __builtin_shuffle(a, b, high);
#else
        for (int j = 0; j < LANES; j++) {
            rows[i][j] = j & s ? b[j - s] : a[j];
            rows[i + s][j] = j & s ? b[j] : a[j + s];
        }
#endif
    }
}

INLINE void transpose(reals rows[LANES]) {
    exchange(rows, 1);
    exchange(rows, 2);
    if (LANES > 4) exchange(rows, 4 % LANES);
    if (LANES > 8) exchange(rows, 8 % LANES);
}

/* Transpose up to LANES rows, from[row][k] with `from_row` between rows, to to[k][lane] with `to_k` between vectors. The
 * lanes of rows that are not present are zero. */
static inline void transpose_rows(const real *from, int64_t from_row, int present, int64_t depth, real *to,
                                  int64_t to_k) {
    for (int64_t k = 0; k < depth; k += LANES) {
        int64_t some = depth - k < LANES ? depth - k : LANES;
        reals square[LANES];
        if (present == LANES && some == LANES) {
            for (int j = 0; j < LANES; j++) square[j] = load(from + j * from_row + k);
            transpose(square);
            for (int i = 0; i < LANES; i++) store(to + (k + i) * to_k, square[i]);
            continue;
        }
        for (int j = 0; j < LANES; j++)
            square[j] = j < present ? load_first(from + j * from_row + k, (int)some) : every(0.0f);
        transpose(square);
        for (int64_t i = 0; i < some; i++) store(to + (k + i) * to_k, square[i]);
    }
}

/* Group g of the vectors of columns. Groups have at most COLUMNS vectors and nearly equal sizes. The larger ones are
 * spread evenly, so that threads with equal numbers of consecutive groups have equal work. */
INLINE void group_vectors(int64_t vectors, int64_t groups, int64_t g, int *first, int *count) {
    *first = (int)(vectors * g / groups);
    *count = (int)(vectors * (g + 1) / groups) - *first;
}

#endif
