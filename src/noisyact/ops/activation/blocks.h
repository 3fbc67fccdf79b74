/* The settings of a call, and the parts of p and of its gradient that belong to a block of 128 elements. */
#ifndef NOISYACT_BLOCKS_H
#define NOISYACT_BLOCKS_H

#include <stddef.h>

#include "../native/phi.h"
#include "../native/philox.h"
#include "../native/sixteen_bits.h"

typedef struct {
    unit unit;
    int32_t dtype; /* of x, y and their gradients; p and its gradient are float32 */
    uint64_t seed;
    int64_t elements;
    int64_t p_size; /* 0: no p; 1: one p for all elements; else one for each element of the last dimension */
} activation;

/* The 128 values of p from `column` on, repeated cyclically: a pointer into p, or a copy in `buffer`. */
INLINE const float *p_of_block(const activation *a, const float *p, int64_t column, float *buffer) {
    if (column + BLOCK <= a->p_size) return p + column;
    for (int filled = 0; filled < BLOCK;) {
        int64_t left = a->p_size - column, run = left < BLOCK - filled ? left : BLOCK - filled;
        memcpy(buffer + filled, p + column, (size_t)run * sizeof(float));
        filled += (int)run;
        column = 0;
    }
    return buffer;
}

INLINE void add_gp(const activation *a, const float *gp, int64_t column, int count, float *partial) {
    for (int done = 0; done < count;) {
        int64_t left = a->p_size - column, run = left < count - done ? left : count - done;
        for (int64_t j = 0; j < run; j++) partial[column + j] += gp[done + j];
        done += (int)run;
        column = 0;
    }
}

INLINE int64_t next_column(const activation *a, int64_t column) {
    if (a->p_size <= 1) return 0;
    column += BLOCK;
    return column < a->p_size ? column : column % a->p_size;
}

#endif
