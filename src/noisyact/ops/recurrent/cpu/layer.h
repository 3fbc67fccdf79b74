/* A layer, the groups in which its units are processed, and its weights packed for the products of a group. */
#ifndef NOISYACT_LAYER_H
#define NOISYACT_LAYER_H

#include "cells.h"

/* [gates][hidden][...]; the biases may be NULL. p: [nonlinearities][hidden]. w_hr: [output][hidden], the projection of
 * an LSTM's m = o tanh(c) to h, or NULL without a projection: then h is m. */
typedef struct {
    const real *w_ih, *w_hh, *b_ih, *b_hh, *p, *w_hr;
} weights;

/* The rules for the state between the steps: StateRules of types.py. Pointers are NULL for what is not in use. */
typedef struct {
    const uint8_t *reset;          /* [steps][batch] */
    const real *reset_h, *reset_c; /* [batch][output], [batch][hidden]; NULL for zeros */
    const int64_t *rows;           /* [batch] */
    int64_t first_step;
    uint64_t seed; /* of the masks */
    int32_t drawn; /* whether masks are drawn; if not, zoneout uses the expectation */
    uint32_t limit_h, limit_c, limit_dropout; /* a unit is chosen if its word is below */
    double zoneout_h, zoneout_c, rate;        /* rate: of the recurrent dropout */
    /* Recurrent dropout: d, [batch][output]; d h0, d reset_h, and a buffer for d h of all rows, [rows][output]. */
    const real *dropout, *seen_h0, *seen_reset;
    real *seen;
    /* Backward. held: [batch][output], zeros; receives h0's gradient that zoneout passed. reset_held, [batch][output],
     * and reset_carry, [batch][hidden]: zeros; receive what `held` and `carry` are at resets. */
    real *held, *reset_held, *reset_carry;
} rules;

typedef struct {
    cell cell;
    int32_t reverse;
    int64_t steps;
    int64_t batch;
    const int64_t *sizes;
    const int64_t *offsets;
    int32_t keep; /* whether backward follows; if not, `extra` is [batch][hidden] and holds the LSTM's current c */
    int32_t projected;
    int64_t output; /* the width of h: `hidden`, or the projection's */
    const rules *rules; /* NULL for none */
} layer;

/* A copy of the layer whose cell points to p and the bias, with its rules. */
static inline layer with_weights(const layer *l, const weights *w, const rules *s) {
    layer own = *l;
    own.rules = s;
    own.cell.rows = s ? s->rows : NULL;
    own.cell.first_step = s ? s->first_step : 0;
    own.projected = w->w_hr != NULL;
    own.cell.p = w->p;
    own.cell.bias = own.cell.kind == GRU && w->b_hh ? w->b_hh + 2 * own.cell.hidden : NULL;
    return own;
}

static inline int is_soft(const layer *l) { return l->cell.state.function != PIECEWISE; }

/* A copy of the layer for a tile. If the constant `ruled` is 0, it has no rules: a plain layer is compiled separately. */
INLINE layer layer_of(const layer *l, const int ruled) {
    layer own = *l;
    if (!ruled) own.rules = NULL;
    return own;
}

/* A copy of the cell that no store can alias, so that its fields stay in registers. Its functions are constants if
 * `soft` is: hard and soft functions are compiled separately, and no loop branches on them. */
INLINE cell cell_of(const layer *l, const int soft) {
    cell own = l->cell;
    own.gate.function = soft ? SIGMOID : PIECEWISE;
    own.state.function = soft ? TANH : PIECEWISE;
    return own;
}

static inline int vectors_of(const layer *l) { return (int)((l->cell.hidden + LANES - 1) / LANES); }
static inline int backward_groups(const layer *l) { return (vectors_of(l) + COLUMNS - 1) / COLUMNS; }
/* For an LSTM or GRU the columns of a group are the gates of one vector of units, for an RNN several such vectors. */
static inline int forward_groups(const layer *l) { return l->cell.gates == 1 ? backward_groups(l) : vectors_of(l); }

/* How many of the last columns of a group's products are half empty: with gates, those of one vector of units. */
static inline int forward_halves(const cell *c, int first, int count) {
    const int half = c->hidden - (int64_t)(first + (c->gates == 1 ? count : 1) - 1) * LANES <= HALF;
    return half ? (c->gates == 1 ? 1 : c->gates) : 0;
}
static inline int backward_halves(const cell *c, int first, int count) {
    return c->hidden - (int64_t)(first + count - 1) * LANES <= HALF;
}

static inline int64_t packed_size(const layer *l, int64_t depth) {
    return (int64_t)vectors_of(l) * LANES * l->cell.gates * depth;
}

/* Pack one group of W_ih or W_hh, [gates * hidden][depth], for the forward product: [k][gate or vector][lane]. */
static inline void pack_group(const layer *l, const real *weight, int64_t depth, int group, real *to) {
    const int64_t hidden = l->cell.hidden;
    const int gates = l->cell.gates;
    int first, count;
    group_vectors(vectors_of(l), forward_groups(l), group, &first, &count);
    int columns = gates == 1 ? count : gates;
    for (int v = 0; v < columns; v++) {
        int64_t unit = (int64_t)(gates == 1 ? first + v : first) * LANES;
        int present = hidden - unit < LANES ? (int)(hidden - unit) : LANES;
        const real *rows = weight + (gates == 1 ? unit : v * hidden + unit) * depth;
        transpose_rows(rows, depth, present, depth, to + v * LANES, (int64_t)columns * LANES);
    }
}

/* The offset of a group in the packed weight. */
static inline int64_t group_place(const layer *l, int64_t depth, int group) {
    int first, count;
    group_vectors(vectors_of(l), forward_groups(l), group, &first, &count);
    return (int64_t)first * LANES * l->cell.gates * depth;
}

/* A layer whose units are the elements of h, with one column for each: the products that result in h or dh. */
static inline layer output_of(const layer *l) {
    layer own = *l;
    own.cell.kind = RNN;
    own.cell.gates = 1;
    own.cell.hidden = l->output;
    return own;
}

/* Pack a weight, [depth][hidden], for the backward product. */
static inline void pack_backward(const layer *l, const real *weight, int64_t depth, real *packed, int threads) {
    const int64_t hidden = l->cell.hidden;
    const int groups = backward_groups(l), vectors = vectors_of(l);
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int g = 0; g < groups; g++) {
        int first, count;
        group_vectors(vectors, groups, g, &first, &count);
        real *to = packed + (int64_t)first * LANES * depth;
        int64_t begin = (int64_t)first * LANES, end = begin + (int64_t)count * LANES;
        int64_t present = (end < hidden ? end : hidden) - begin;
        for (int64_t k = 0; k < depth; k++, to += end - begin) {
            memcpy(to, weight + k * hidden + begin, (size_t)present * sizeof(real));
            memset(to + present, 0, (size_t)(end - begin - present) * sizeof(real));
        }
    }
}

#endif
