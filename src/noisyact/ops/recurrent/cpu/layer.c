/* A noisy LSTM, GRU or RNN layer in one direction on a CPU in float32: the whole time loop in one call.
 *
 * ../README.md gives the formulas; the results must equal ../reference.py. The recurrent product, the noise and the
 * cell are computed together for a tile of rows and a vector of units, while the sums are in registers. The tiles
 * depend only on the batch, and the gradients of p are added in a fixed order of tiles and steps, so the results are
 * bit-identical for every number of threads.
 *
 * Step t has sizes[t] rows that begin at offsets[t], longest sequence first, as in a PackedSequence. In a rectangular
 * batch all sizes are equal. Row b of a step follows row b of the previous step, or of the next step in reverse.
 */
#include <stdlib.h>

#include "rounds.h"

/* Whether the input is projected step by step. If both weights fit the cache, the input is projected when it is needed,
 * and the result is still in registers. Larger weights would be loaded again at every step, so all rows are multiplied
 * beforehand and the results are stored in `gates`. */
int noisyact_recurrent_together(const layer *l, int64_t size) {
    return 4 * packed_size(l, size + l->output) <= (1 << 19);
}

/* The number of floats in a packed weight of the given depth. */
int64_t noisyact_recurrent_packed_size(const layer *l, int64_t depth) { return packed_size(l, depth); }

/* The input and its weight in a forward pass. */
typedef struct {
    const float *x, *weight;   /* [rows][size]; W_ih, packed or not */
    const float *b_ih, *b_hh; /* [gates][hidden], or NULL */
    int64_t size;
} input;

/* The gate and unit of column v of a group's products: a gate of one vector of units or, for an RNN, other units. */
INLINE place column_of(const cell *c, int first, int v, int64_t *gate) {
    *gate = c->gates == 1 ? 0 : v * c->hidden;
    return (place){0, 0, (int64_t)(c->gates == 1 ? first + v : first) * LANES};
}

/* The input's part of the pre-activations, including the biases, for some rows and one group of units. */
static void project(const layer *l, const input *in, const float *packed, int64_t row, int rows, int first, int columns,
                    floats sums[ROWS][COLUMNS]) {
    const cell *c = &l->cell;
    const float *left[ROWS];
    for (int v = 0; v < columns; v++) {
        int64_t gate, unit = column_of(c, first, v, &gate).unit;
        floats bias = in->b_ih ? load_units(c, in->b_ih + gate, unit) : every(0.0f);
        /* The b_hh of the GRU's candidate is multiplied by r and therefore added in the cell. */
        if (in->b_hh && !(c->kind == GRU && v == 2)) bias += load_units(c, in->b_hh + gate, unit);
        for (int r = 0; r < rows; r++) sums[r][v] = bias;
    }
    for (int r = 0; r < rows; r++) left[r] = in->x + (row + r) * in->size;
    multiply_rows(rows, columns, left, 1, packed, in->size, sums);
}

/* Project many rows into `gates`. `packed` is a buffer for the group's weights. */
static void project_rows(const layer *l, const input *in, int64_t begin, int64_t end, int group, float *packed,
                         float *gates) {
    const cell *c = &l->cell;
    int first, count;
    group_vectors(vectors_of(l), forward_groups(l), group, &first, &count);
    int columns = c->gates == 1 ? count : c->gates;
    pack_group(l, in->weight, in->size, group, packed);
    for (int64_t row = begin; row < end; row += ROWS) {
        int some = end - row < ROWS ? (int)(end - row) : ROWS;
        floats sums[ROWS][COLUMNS];
        project(l, in, packed, row, some, first, columns, sums);
        for (int r = 0; r < some; r++)
            for (int v = 0; v < columns; v++) {
                int64_t gate, unit = column_of(c, first, v, &gate).unit;
                store_units(c, gates + (row + r) * c->gates * c->hidden + gate, unit, sums[r][v]);
            }
    }
}

typedef struct {
    const layer *l;
    const input *in; /* NULL if the input has been projected beforehand */
    const float *packed, *packed_hr, *zeros, *h0, *c0;
    float *gates, *extra, *m, *h; /* m: [rows][hidden], or [batch][hidden] without `keep`; h without a projection */
} forward_task;

/* The m of row b of a step that begins at row `first`. */
INLINE float *m_of(const forward_task *task, int64_t first, int64_t b) {
    const int current = task->l->projected && !task->l->keep;
    return task->m + (current ? b : first + b) * task->l->cell.hidden;
}

/* Prefetch the memory that a tile is going to write, while its products are computed. */
INLINE void expect_forward(const forward_task *task, int64_t first, int64_t b, int rows, int64_t unit) {
    const int64_t hidden = task->l->cell.hidden, gates = task->l->cell.gates;
    for (int64_t row = first + b; row < first + b + rows; row++) {
        __builtin_prefetch(m_of(task, first, row - first) + unit, 1);
        if (!task->l->keep || gates == 1) continue;
        __builtin_prefetch(task->extra + row * hidden + unit, 1);
        for (int64_t n = 0; n < gates; n++) __builtin_prefetch(task->gates + (row * gates + n) * hidden + unit, 1);
    }
}

INLINE void forward_tile(const forward_task *task, int64_t round, int group, int tile, const int soft) {
    const layer *l = task->l;
    const cell own = cell_of(l, soft), *c = &own;
    const int64_t hidden = c->hidden, t = l->reverse ? l->steps - 1 - round : round;
    const int rows = rows_of(l, l->sizes[t], tile);
    const int64_t b = tile_begin(l, tile);
    int first, count;
    if (rows == 0) return;
    const float *before_h[ROWS], *left[ROWS];
    for (int r = 0; r < rows; r++) before_h[r] = row_before(l, task->h, l->output, task->h0, task->zeros, t, b + r);
    const int at_zero = round == 0 && task->h0 == NULL;
    for (int r = 0; r < rows; r++) left[r] = at_zero ? NULL : before_h[r];
    group_vectors(vectors_of(l), forward_groups(l), group, &first, &count);
    const int columns = c->gates == 1 ? count : c->gates;
    floats a[ROWS][COLUMNS], product[ROWS][COLUMNS], xi[ROWS][4];
    expect_forward(task, l->offsets[t], b, rows, (int64_t)first * LANES);
    if (task->in) {
        const float *weight = task->in->weight + group_place(l, task->in->size, group);
        project(l, task->in, weight, l->offsets[t] + b, rows, first, columns, a);
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < columns; v++) {
            int64_t gate, unit = column_of(c, first, v, &gate).unit;
            product[r][v] = every(0.0f);
            if (!task->in)
                a[r][v] = load_units(c, task->gates + (l->offsets[t] + b + r) * c->gates * hidden + gate, unit);
        }
    multiply_rows(rows, columns, left, 1, task->packed + group_place(l, l->output, group), l->output,
                  c->kind == GRU ? product : a);
    if (c->kind == LSTM) draw_gates(c, (place){t, b, (int64_t)first * LANES}, rows, a, xi);
    for (int r = 0; r < rows; r++) {
        int64_t row = l->offsets[t] + b + r;
        float *gates = l->keep ? task->gates + row * c->gates * hidden : NULL;
        place at = {t, b + r, (int64_t)first * LANES};
        float *extra = c->kind == RNN ? NULL : task->extra + (l->keep ? row : b + r) * hidden;
        const float *before_c = extra;
        if (c->kind == LSTM && l->keep) before_c = row_before(l, task->extra, hidden, task->c0, task->zeros, t, b + r);
        cell_forward(c, at, count, a[r], product[r], xi[r], gates, before_h[r], before_c, extra,
                     m_of(task, l->offsets[t], b + r));
    }
}

static void forward_hard(const void *task, int64_t round, int group, int tile) {
    forward_tile(task, round, group, tile, 0);
}

static void forward_soft(const void *task, int64_t round, int group, int tile) {
    forward_tile(task, round, group, tile, 1);
}

/* The projection h = W_hr m of a tile. */
static void forward_output(const void *given, int64_t round, int group, int tile) {
    const forward_task *task = given;
    const layer *l = task->l, out = output_of(l);
    const int64_t hidden = l->cell.hidden, t = l->reverse ? l->steps - 1 - round : round, b = tile_begin(l, tile);
    const int rows = rows_of(l, l->sizes[t], tile);
    const float *left[ROWS] = {NULL};
    floats sums[ROWS][COLUMNS];
    int first, count;
    if (rows == 0) return;
    group_vectors(vectors_of(&out), forward_groups(&out), group, &first, &count);
    for (int r = 0; r < rows; r++) {
        left[r] = m_of(task, l->offsets[t], b + r);
        for (int v = 0; v < count; v++) sums[r][v] = every(0.0f);
    }
    multiply_rows(rows, count, left, 1, task->packed_hr + group_place(&out, hidden, group), hidden, sums);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < count; v++) {
            float *h = task->h + (l->offsets[t] + b + r) * l->output;
            store_units(&out.cell, h, (int64_t)(first + v) * LANES, sums[r][v]);
        }
}

/* x: [rows][size]. h: [rows][output].
 * packed: a buffer for the packed W_hh, for W_ih if the input is projected step by step, and for W_hr.
 * gates: [rows][gates][hidden], receives the pre-activations; without `keep`, a buffer for the input's part of all
 * rows, unused if the input is projected step by step.
 * extra: [rows][hidden], the LSTM's c or the GRU's W_hn h + b_hn; without `keep`, [batch][hidden], the LSTM's c.
 * m: as in forward_task, if there is a projection.
 * Returns 0, or 1 if memory cannot be allocated. */
int noisyact_recurrent_forward(const layer *given, const weights *w, const float *x, int64_t size, float *packed,
                               float *gates, float *extra, float *m, float *h, const float *h0, const float *c0,
                               int threads) {
    const layer own = with_weights(given, w), *l = &own, out = output_of(l);
    const int64_t rows = l->steps ? l->offsets[l->steps - 1] + l->sizes[l->steps - 1] : 0;
    const int groups = forward_groups(l), together = noisyact_recurrent_together(l, size);
    float *packed_ih = packed + packed_size(l, l->output);
    float *packed_hr = packed_ih + (together ? packed_size(l, size) : 0);
    if (rows == 0 || l->cell.hidden == 0) return 0;
    const input in = {x, together ? packed_ih : w->w_ih, w->b_ih, w->b_hh, size};
    const size_t group_size = together ? 0 : (size_t)(COLUMNS * LANES * size); /* of W_ih; one buffer per thread */
    float *zeros = calloc((size_t)(l->output > l->cell.hidden ? l->output : l->cell.hidden), sizeof(float));
    float *buffers = aligned_alloc(64, (size_t)threads * group_size * sizeof(float));
    if (zeros == NULL || (buffers == NULL && group_size > 0)) {
        free(zeros);
        free(buffers);
        return 1;
    }
    forward_task task = {l, together ? &in : NULL, packed, packed_hr, zeros, h0, c0, gates, extra, m ? m : h, h};
    const part parts[2] = {{is_soft(l) ? forward_soft : forward_hard, groups}, {forward_output, forward_groups(&out)}};
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int g = 0; g < groups; g++) {
        pack_group(l, w->w_hh, l->output, g, packed + group_place(l, l->output, g));
        if (together) pack_group(l, w->w_ih, size, g, packed_ih + group_place(l, size, g));
    }
    for (int g = 0; g < parts[1].groups && l->projected; g++)
        pack_group(&out, w->w_hr, l->cell.hidden, g, packed_hr + group_place(&out, l->cell.hidden, g));
    if (!together) {
        /* The rows are divided into enough parts to balance the threads; each part packs the group's weights again. */
        const int parts = groups / 8 >= threads ? 1 : groups / 4 >= threads ? 2 : 4;
        const int64_t part = (rows / parts + ROWS) / ROWS * ROWS;
#pragma omp parallel num_threads(threads) if (threads > 1)
        {
            float *mine = buffers + (size_t)THREAD_NUMBER * group_size;
#pragma omp for collapse(2) schedule(static)
            for (int g = 0; g < groups; g++)
                for (int64_t begin = 0; begin < rows; begin += part)
                    project_rows(l, &in, begin, begin + part < rows ? begin + part : rows, g, mine, gates);
        }
    }
    share_out(l, l->steps, parts, 1 + l->projected, threads, &task);
    free(buffers);
    free(zeros);
    return 0;
}

typedef struct {
    const layer *l;
    const float *packed, *packed_hr, *zeros, *gates, *extra, *h, *h0, *c0, *dh;
    float *carry, *dgates, *partial, *dh0, *dh_sum;
} backward_task;

/* Prefetch the memory that a tile is going to read and write. */
INLINE void expect_backward(const backward_task *task, int64_t row, int rows, int64_t unit, int count) {
    const int64_t hidden = task->l->cell.hidden, gates = task->l->cell.gates, width = width_of(&task->l->cell);
    for (int64_t end = row + rows; row < end; row++)
        for (int v = 0; v < count; v++) {
            const int64_t at = unit + v * LANES;
            for (int64_t n = 0; n < gates; n++) __builtin_prefetch(task->gates + (row * gates + n) * hidden + at);
            for (int64_t n = 0; n < width; n += hidden) __builtin_prefetch(task->dgates + row * width + n + at, 1);
            if (gates > 1) __builtin_prefetch(task->extra + row * hidden + at);
            if (!task->l->projected) __builtin_prefetch(task->dh + row * hidden + at);
        }
}

/* The dgates of the rows that follow a tile's rows: their product with W_hh is a part of dh. In the additional round,
 * those of the first steps: their product is the gradient of h0. */
INLINE void rows_after(const backward_task *task, int64_t round, int64_t t, int64_t b, int rows, const float **after) {
    const layer *l = task->l;
    const int64_t width = width_of(&l->cell);
    for (int r = 0; r < rows; r++) {
        /* h0 enters at a sequence's first step: step 0, or in reverse the sequence's last step. */
        int64_t entry = l->reverse ? first_step(l->sizes, l->steps, b + r) : 0;
        after[r] = round == l->steps ? task->dgates + (l->offsets[entry] + b + r) * width
                                     : neighbour(l, task->dgates, width, t, b + r, 0);
        if (after[r] == NULL && round > 0) after[r] = task->zeros;
    }
}

/* With a projection: the gradient of h at a tile's rows, to `dh_sum`, or of h0. */
static void backward_output(const void *given, int64_t round, int group, int tile) {
    const backward_task *task = given;
    const layer *l = task->l, out = output_of(l);
    const int64_t t = l->reverse ? round : l->steps - 1 - round, b = tile_begin(l, tile), depth = width_of(&l->cell);
    const int last = round == l->steps, rows = rows_of(l, last ? l->batch : l->sizes[t], tile);
    const float *after[ROWS];
    floats product[ROWS][COLUMNS];
    int first, count;
    if (rows == 0) return;
    rows_after(task, round, t, b, rows, after);
    group_vectors(vectors_of(&out), backward_groups(&out), group, &first, &count);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < count; v++) {
            const float *dh = last ? task->zeros : task->dh + (l->offsets[t] + b + r) * l->output;
            product[r][v] = load_units(&out.cell, dh, (int64_t)(first + v) * LANES);
        }
    multiply_rows(rows, count, after, 1, task->packed + (int64_t)first * LANES * depth, depth, product);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < count; v++) {
            float *to = last ? task->dh0 + (b + r) * l->output : task->dh_sum + (l->offsets[t] + b + r) * l->output;
            store_units(&out.cell, to, (int64_t)(first + v) * LANES, product[r][v]);
        }
}

INLINE void backward_tile(const backward_task *task, int64_t round, int group, int tile, const int soft) {
    const layer *l = task->l;
    const cell own = cell_of(l, soft), *c = &own;
    const int64_t hidden = c->hidden, width = width_of(c), depth = l->projected ? l->output : hidden * c->gates;
    const int64_t t = l->reverse ? round : l->steps - 1 - round, b = tile_begin(l, tile);
    const int last = round == l->steps; /* the additional round computes the gradient of h0 */
    const int rows = rows_of(l, last ? l->batch : l->sizes[t], tile);
    int first, count;
    if (rows == 0 || (last && l->projected)) return;
    const float *left[ROWS];
    if (!l->projected) rows_after(task, round, t, b, rows, left);
    else
        for (int r = 0; r < rows; r++) left[r] = task->dh_sum + (l->offsets[t] + b + r) * l->output;
    group_vectors(vectors_of(l), backward_groups(l), group, &first, &count);
    floats product[ROWS][COLUMNS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < count; v++)
            product[r][v] = every(0.0f);
    if (!last) expect_backward(task, l->offsets[t] + b, rows, (int64_t)first * LANES, count);
    const float *packed = l->projected ? task->packed_hr : task->packed;
    multiply_rows(rows, count, left, 1, packed + (int64_t)first * LANES * depth, depth, product);
    float *partial = task->partial + (int64_t)tile * (c->nonlinearities * hidden + width);
    for (int v = 0; v < count; v++) {
        place at = {t, b, (int64_t)(first + v) * LANES};
        floats a[ROWS][COLUMNS], xi[ROWS][4], sums[4] = {{0}};
        if (c->kind == LSTM && !last) load_gates(c, at, task->gates + (l->offsets[t] + b) * width, rows, a, xi);
        for (int r = 0; r < rows; r++, at.row++) {
            if (last) { /* t is not a step in this round */
                store_units(c, task->dh0 + at.row * hidden, at.unit, product[r][v]);
                continue;
            }
            const int64_t row = l->offsets[t] + at.row;
            const float *before_h = row_before(l, task->h, l->output, task->h0, task->zeros, t, at.row);
            const float *before_c =
                c->kind == LSTM ? row_before(l, task->extra, hidden, task->c0, task->zeros, t, at.row) : NULL;
            floats dh = product[r][v];
            if (!l->projected) dh += load_units(c, task->dh + row * hidden, at.unit);
            cell_backward(c, at, dh, a[r], xi[r], task->gates + row * c->gates * hidden, before_h, before_c,
                          c->kind == RNN ? NULL : task->extra + row * hidden, task->carry + at.row * hidden,
                          task->dgates + row * width, partial, sums);
        }
        for (int n = 0; n * hidden < width && !last; n++)
            add_units(c, partial + (c->nonlinearities + n) * hidden, at.unit, sums[n]);
    }
}

static void backward_hard(const void *task, int64_t round, int group, int tile) {
    backward_tile(task, round, group, tile, 0);
}

static void backward_soft(const void *task, int64_t round, int group, int tile) {
    backward_tile(task, round, group, tile, 1);
}

/* dh: [rows][output], the gradient of h at every step. carry: [batch][hidden], holds the gradient of the LSTM's final
 * c (else 0); receives the gradient of c0 (LSTM), or the part of h0's gradient that does not pass the weights (GRU).
 * dgates: [rows][width][hidden]; width is 4 for the GRU (the fourth is the input's side of the candidate), else gates.
 * packed: a buffer for W_hh and W_hr.
 * sums: [nonlinearities + width][hidden], the gradients of p and the sums of dgates.
 * dh0: [batch][output], receives the part of h0's gradient that passes the weights; or NULL.
 * dh_sum: [rows][output], receives the whole gradient of h if there is a projection.
 * Returns 0, or 1 if memory cannot be allocated. */
int noisyact_recurrent_backward(const layer *given, const weights *w, float *packed, const float *gates,
                                const float *extra, const float *h, const float *h0, const float *c0, const float *dh,
                                float *carry, float *dgates, float *sums, float *dh0, float *dh_sum, int threads) {
    const layer own = with_weights(given, w), *l = &own, out = output_of(l);
    const int64_t hidden = l->cell.hidden, depth = hidden * l->cell.gates, width = width_of(&l->cell);
    const int64_t length = l->cell.nonlinearities * hidden + width;
    if (hidden == 0) return 0;
    memset(sums, 0, (size_t)length * sizeof(float));
    if (l->batch == 0) return 0;
    float *zeros = calloc((size_t)(width > l->output ? width : l->output), sizeof(float));
    float *partial = calloc((size_t)(tiles_of(l) * length), sizeof(float)); /* one for each tile, so that none waits */
    if (zeros == NULL || partial == NULL) {
        free(partial);
        free(zeros);
        return 1;
    }
    float *packed_hr = packed + packed_size(&out, depth);
    const backward_task task = {l,  packed, packed_hr, zeros,  gates,   extra, h,     h0,
                                c0, dh,     carry,     dgates, partial, dh0,   dh_sum};
    const part parts[2] = {{backward_output, backward_groups(&out)},
                           {is_soft(l) ? backward_soft : backward_hard, backward_groups(l)}};
    pack_backward(&out, w->w_hh, depth, packed, threads);
    if (l->projected) pack_backward(l, w->w_hr, l->output, packed_hr, threads);
    share_out(l, l->steps + (dh0 != NULL), parts + !l->projected, 1 + l->projected, threads, &task);
    for (int tile = 0; tile < tiles_of(l); tile++)
        for (int64_t j = 0; j < length; j++) sums[j] += partial[tile * length + j];
    free(partial);
    free(zeros);
    return 0;
}
