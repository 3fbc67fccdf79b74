/* A noisy LSTM, GRU or RNN layer in one direction on a CPU: the whole time loop in one call. backward.c has the
 * gradient.
 *
 * ../README.md gives the formulas; the results must equal ../reference.py. The recurrent product, the noise and the
 * cell are computed together for a tile of rows and a vector of units, while the sums are in registers. The tiles
 * depend only on the batch, and the gradients of p are added in a fixed order of tiles and steps, so the results are
 * bit-identical for every number of threads.
 *
 * Step t has sizes[t] rows that begin at offsets[t], longest sequence first, as in a PackedSequence. In a rectangular
 * batch all sizes are equal. Row b of a step follows row b of the previous step, or of the next step in reverse.
 */
#include "../../native/memory.h"
#include "rounds.h"

/* Whether the input is projected step by step. If both weights fit the cache, the input is projected when it is needed,
 * and the result is still in registers. Larger weights would be loaded again at every step, so all rows are multiplied
 * beforehand and the results are stored in `gates`. */
int EXPORTED(noisyact_recurrent_together)(const layer *l, int64_t size) {
    return (int64_t)sizeof(real) * packed_size(l, size + l->output) <= (1 << 19);
}

/* The number of floats in a packed weight of the given depth. */
int64_t EXPORTED(noisyact_recurrent_packed_size)(const layer *l, int64_t depth) { return packed_size(l, depth); }

/* The input and its weight in a forward pass. */
typedef struct {
    const real *x, *weight;   /* [rows][size]; W_ih, packed or not */
    const real *b_ih, *b_hh; /* [gates][hidden], or NULL */
    int64_t size;
} input;

/* The gate and unit of column v of a group's products: a gate of one vector of units or, for an RNN, other units. */
INLINE place column_of(const cell *c, int first, int v, int64_t *gate) {
    *gate = c->gates == 1 ? 0 : v * c->hidden;
    return (place){0, 0, (int64_t)(c->gates == 1 ? first + v : first) * LANES};
}

/* The input's part of the pre-activations, including the biases, for some rows and one group of units. */
static void project(const layer *l, const input *in, const real *packed, int64_t row, int rows, int first, int columns,
                    reals sums[ROWS][COLUMNS]) {
    const cell *c = &l->cell;
    const real *left[ROWS];
    for (int v = 0; v < columns; v++) {
        int64_t gate, unit = column_of(c, first, v, &gate).unit;
        reals bias = in->b_ih ? load_units(c, in->b_ih + gate, unit) : every(0.0f);
        /* The b_hh of the GRU's candidate is multiplied by r and therefore added in the cell. */
        if (in->b_hh && !(c->kind == GRU && v == 2)) bias += load_units(c, in->b_hh + gate, unit);
        for (int r = 0; r < rows; r++) sums[r][v] = bias;
    }
    for (int r = 0; r < rows; r++) left[r] = in->x + (row + r) * in->size;
    multiply_rows(rows, columns, forward_halves(c, first, columns), left, 1, packed, in->size, sums);
}

/* Project many rows into `gates`. `packed` is a buffer for the group's weights. */
static void project_rows(const layer *l, const input *in, int64_t begin, int64_t end, int group, real *packed,
                         real *gates) {
    const cell *c = &l->cell;
    int first, count;
    group_vectors(vectors_of(l), forward_groups(l), group, &first, &count);
    int columns = c->gates == 1 ? count : c->gates;
    pack_group(l, in->weight, in->size, group, packed);
    for (int64_t row = begin; row < end; row += ROWS) {
        int some = end - row < ROWS ? (int)(end - row) : ROWS;
        reals sums[ROWS][COLUMNS];
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
    const real *packed, *packed_hr, *zeros, *h0, *c0, *reset_h, *reset_c;
    real *gates, *extra, *m, *h; /* m: [rows][hidden], or [batch][hidden] without `keep`; h without a projection */
    real *c;                     /* the LSTM's c after zoneout; `extra` without */
    /* What the recurrent product sees: h, h0 and reset_h, or with recurrent dropout their products with its mask. */
    const real *seen, *seen_h0, *seen_reset;
} forward_task;

/* The m of row b of a step that begins at row `first`. */
INLINE real *m_of(const forward_task *task, int64_t first, int64_t b) {
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

/* The h before row b of step t, and the c: without `keep` there is only the current one. */
INLINE const real *h_before(const forward_task *task, const layer *l, int64_t t, int64_t b) {
    return row_before(l, task->h, l->output, task->h0, task->reset_h, task->zeros, t, b);
}

INLINE const real *c_before(const forward_task *task, const layer *l, int64_t t, int64_t b) {
    if (l->keep || resets(l, t, b))
        return row_before(l, task->c, l->cell.hidden, task->c0, task->reset_c, task->zeros, t, b);
    return task->c + b * l->cell.hidden;
}

/* The row that receives the d h of a row. */
INLINE real *seen_of(const forward_task *task, int64_t row) {
    return task->l->rules->seen ? task->l->rules->seen + row * task->l->output : NULL;
}

INLINE void forward_tile(const forward_task *task, int64_t round, int group, int tile, const int soft,
                         const int ruled) {
    const layer mine = layer_of(task->l, ruled), *l = &mine;
    const cell own = cell_of(l, soft), *c = &own;
    const int64_t hidden = c->hidden, t = l->reverse ? l->steps - 1 - round : round;
    const int rows = rows_of(l, l->sizes[t], tile);
    const int64_t b = tile_begin(l, tile);
    int first, count;
    if (rows == 0) return;
    const real *before_h[ROWS], *left[ROWS];
    for (int r = 0; r < rows; r++) left[r] = before_h[r] = h_before(task, l, t, b + r);
    if (round == 0 && task->h0 == NULL && task->reset_h == NULL)
        for (int r = 0; r < rows; r++) left[r] = NULL;
    else if (task->seen != task->h)
        for (int r = 0; r < rows; r++)
            left[r] = row_before(l, task->seen, l->output, task->seen_h0, task->seen_reset, task->zeros, t, b + r);
    group_vectors(vectors_of(l), forward_groups(l), group, &first, &count);
    const int columns = c->gates == 1 ? count : c->gates;
    reals a[ROWS][COLUMNS], product[ROWS][COLUMNS], xi[ROWS][4];
    expect_forward(task, l->offsets[t], b, rows, (int64_t)first * LANES);
    if (task->in) {
        const real *weight = task->in->weight + group_place(l, task->in->size, group);
        project(l, task->in, weight, l->offsets[t] + b, rows, first, columns, a);
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < columns; v++) {
            int64_t gate, unit = column_of(c, first, v, &gate).unit;
            product[r][v] = every(0.0f);
            if (!task->in)
                a[r][v] = load_units(c, task->gates + (l->offsets[t] + b + r) * c->gates * hidden + gate, unit);
        }
    multiply_rows(rows, columns, forward_halves(c, first, columns), left, 1,
                  task->packed + group_place(l, l->output, group), l->output, c->kind == GRU ? product : a);
    if (c->kind == LSTM) draw_gates(c, (place){t, b, (int64_t)first * LANES}, rows, a, xi);
    for (int r = 0; r < rows; r++) {
        int64_t row = l->offsets[t] + b + r;
        real *gates = l->keep ? task->gates + row * c->gates * hidden : NULL;
        place at = {t, b + r, (int64_t)first * LANES};
        real *extra = c->kind == RNN ? NULL : task->extra + (l->keep ? row : b + r) * hidden;
        const real *before_c = c->kind == LSTM ? c_before(task, l, t, b + r) : extra;
        cell_forward(c, at, count, a[r], product[r], xi[r], gates, before_h[r], before_c, extra,
                     m_of(task, l->offsets[t], b + r));
        if (settles_c(l)) settle_c(l, at, before_c, extra, task->c + (l->keep ? row : b + r) * hidden);
        if (settles_h(l) && !l->projected)
            settle_h(l->rules, &l->cell, at, count, before_h[r], task->h + row * hidden, seen_of(task, row));
    }
}

#define FORWARD(name, soft, ruled) \
    static void name(const void *task, int64_t round, int group, int tile) { \
        forward_tile(task, round, group, tile, soft, ruled); \
    }
FORWARD(forward_hard, 0, 0)
FORWARD(forward_soft, 1, 0)
FORWARD(forward_hard_ruled, 0, 1)
FORWARD(forward_soft_ruled, 1, 1)

/* The projection h = W_hr m of a tile. */
static void forward_output(const void *given, int64_t round, int group, int tile) {
    const forward_task *task = given;
    const layer *l = task->l, out = output_of(l);
    const int64_t hidden = l->cell.hidden, t = l->reverse ? l->steps - 1 - round : round, b = tile_begin(l, tile);
    const int rows = rows_of(l, l->sizes[t], tile);
    const real *left[ROWS] = {NULL};
    reals sums[ROWS][COLUMNS];
    int first, count;
    if (rows == 0) return;
    group_vectors(vectors_of(&out), forward_groups(&out), group, &first, &count);
    for (int r = 0; r < rows; r++) {
        left[r] = m_of(task, l->offsets[t], b + r);
        for (int v = 0; v < count; v++) sums[r][v] = every(0.0f);
    }
    multiply_rows(rows, count, forward_halves(&out.cell, first, count), left, 1,
                  task->packed_hr + group_place(&out, hidden, group), hidden, sums);
    for (int r = 0; r < rows; r++) {
        const int64_t row = l->offsets[t] + b + r;
        real *h = task->h + row * l->output;
        const place at = {t, b + r, (int64_t)first * LANES};
        for (int v = 0; v < count; v++) store_units(&out.cell, h, at.unit + v * LANES, sums[r][v]);
        if (settles_h(l)) settle_h(l->rules, &out.cell, at, count, h_before(task, l, t, b + r), h, seen_of(task, row));
    }
}

/* The mask of the recurrent dropout: d, [batch][output]. Always returns 0. */
int EXPORTED(noisyact_recurrent_dropout)(const layer *given, const weights *w, const rules *s, real *d, int threads) {
    const layer own = with_weights(given, w, s), out = output_of(&own);
    const bits scale = (bits)every((real)1 / (real)(1.0 - s->rate));
    (void)threads;
    for (int64_t b = 0; b < own.batch; b++)
        for (int64_t j = 0; j < own.output; j += LANES) {
            bits dropped = chosen(&out.cell, s->seed, (place){0, b, j}, 0, 3, 0, s->limit_dropout);
            store_units(&out.cell, d + b * own.output, j, (reals)(~dropped & scale));
        }
    return 0;
}

/* x: [rows][size]. h: [rows][output].
 * packed: a buffer for the packed W_hh, for W_ih if the input is projected step by step, and for W_hr.
 * gates: [rows][gates][hidden], receives the pre-activations; without `keep`, a buffer for the input's part of all
 * rows, unused if the input is projected step by step.
 * extra: [rows][hidden], the LSTM's c or the GRU's W_hn h + b_hn; without `keep`, [batch][hidden], the LSTM's c. With
 * zoneout of c it is twice as long: c' and then the c after zoneout.
 * m: as in forward_task, if there is a projection.
 * Returns 0, or 1 if memory cannot be allocated. */
int EXPORTED(noisyact_recurrent_forward)(const layer *given, const weights *w, const rules *s, const real *x,
                               int64_t size, real *packed, real *gates, real *extra, real *m, real *h, const real *h0,
                               const real *c0, int threads) {
    const layer own = with_weights(given, w, s), *l = &own, out = output_of(l);
    const int64_t rows = l->steps ? l->offsets[l->steps - 1] + l->sizes[l->steps - 1] : 0;
    const int groups = forward_groups(l), together = EXPORTED(noisyact_recurrent_together)(l, size);
    real *packed_ih = packed + packed_size(l, l->output);
    real *packed_hr = packed_ih + (together ? packed_size(l, size) : 0);
    if (rows == 0 || l->cell.hidden == 0) return 0;
    const input in = {x, together ? packed_ih : w->w_ih, w->b_ih, w->b_hh, size};
    const size_t group_size = together ? 0 : (size_t)(COLUMNS * LANES * size); /* of W_ih; one buffer per thread */
    real *zeros = calloc((size_t)(l->output > l->cell.hidden ? l->output : l->cell.hidden), sizeof(real));
    real *buffers = aligned_memory((size_t)threads * group_size * sizeof(real));
    if (zeros == NULL || (buffers == NULL && group_size > 0)) {
        free(zeros);
        free_aligned(buffers);
        return 1;
    }
    const int masked = s && s->dropout;
    forward_task task = {.l = l, .in = together ? &in : NULL, .packed = packed, .packed_hr = packed_hr, .zeros = zeros,
                         .h0 = h0, .c0 = c0, .reset_h = s ? s->reset_h : NULL, .reset_c = s ? s->reset_c : NULL,
                         .gates = gates, .extra = extra, .m = m ? m : h, .h = h,
                         .c = extra + c_place(l, l->keep ? rows : l->batch)};
    task.seen = masked ? s->seen : h;
    task.seen_h0 = masked ? s->seen_h0 : h0;
    task.seen_reset = masked ? s->seen_reset : task.reset_h;
    static void (*const tiles[2][2])(const void *, int64_t, int, int) = {{forward_hard, forward_soft},
                                                                         {forward_hard_ruled, forward_soft_ruled}};
    const part parts[2] = {{tiles[s != NULL][is_soft(l)], groups}, {forward_output, forward_groups(&out)}};
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
            real *mine = buffers + (size_t)THREAD_NUMBER * group_size;
#pragma omp for collapse(2) schedule(static)
            for (int g = 0; g < groups; g++)
                for (int64_t begin = 0; begin < rows; begin += part)
                    project_rows(l, &in, begin, begin + part < rows ? begin + part : rows, g, mine, gates);
        }
    }
    share_out(l, l->steps, parts, 1 + l->projected, threads, &task);
    free_aligned(buffers);
    free(zeros);
    return 0;
}
