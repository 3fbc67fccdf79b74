/* The gradient of forward.c: the whole time loop in one call, from the last step to the first. */
#include "../../native/memory.h"
#include "rounds.h"

typedef struct {
    const layer *l;
    const real *packed, *packed_hr, *zeros, *gates, *extra, *h, *h0, *c0, *dh;
    const real *reset_h, *reset_c, *c; /* c after zoneout; `extra` without */
    real *carry, *dgates, *partial, *dh0, *dh_sum;
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
 * those of the first steps: their product is the gradient of h0. Zeros if a reset is in between. */
INLINE void rows_after(const backward_task *task, const layer *l, int64_t round, int64_t t, int64_t b, int rows,
                       const real **after) {
    const int64_t width = width_of(&l->cell);
    for (int r = 0; r < rows; r++) {
        /* h0 enters at a sequence's first step: step 0, or in reverse the sequence's last step. */
        int64_t entry = l->reverse ? first_step(l->sizes, l->steps, b + r) : 0;
        after[r] = round == l->steps ? task->dgates + (l->offsets[entry] + b + r) * width
                                     : neighbour(l, task->dgates, width, t, b + r, 0);
        int64_t next = round == l->steps ? entry : l->reverse ? t - 1 : t + 1;
        if (round > 0 && (after[r] == NULL || resets(l, next, b + r))) after[r] = task->zeros;
    }
}

/* With a projection: the gradient of h at a tile's rows, to `dh_sum`, or of h0. */
static void backward_output(const void *given, int64_t round, int group, int tile) {
    const backward_task *task = given;
    const layer *l = task->l, out = output_of(l);
    const int64_t t = l->reverse ? round : l->steps - 1 - round, b = tile_begin(l, tile), depth = width_of(&l->cell);
    const int last = round == l->steps, rows = rows_of(l, last ? l->batch : l->sizes[t], tile);
    const real *after[ROWS];
    reals product[ROWS][COLUMNS];
    int first, count;
    if (rows == 0) return;
    rows_after(task, l, round, t, b, rows, after);
    group_vectors(vectors_of(&out), backward_groups(&out), group, &first, &count);
    const int masked = l->rules && l->rules->dropout; /* then the product is multiplied by d before dh is added */
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < count; v++) {
            const real *dh = last || masked ? task->zeros : task->dh + (l->offsets[t] + b + r) * l->output;
            product[r][v] = load_units(&out.cell, dh, (int64_t)(first + v) * LANES);
        }
    multiply_rows(rows, count, backward_halves(&out.cell, first, count), after, 1,
                  task->packed + (int64_t)first * LANES * depth, depth, product);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < count; v++) {
            const place at = {t, b + r, (int64_t)(first + v) * LANES};
            const int64_t row = last ? b + r : l->offsets[t] + b + r;
            reals dh = of_seen(l, &out.cell, b + r, at.unit, product[r][v]);
            if (masked && !last) dh += load_units(&out.cell, task->dh + row * l->output, at.unit);
            if (!last && l->rules && l->rules->zoneout_h > 0) dh = before_zoneout(l, &out.cell, at, dh);
            store_units(&out.cell, (last ? task->dh0 : task->dh_sum) + row * l->output, at.unit, dh);
        }
}

INLINE void backward_tile(const backward_task *task, int64_t round, int group, int tile, const int soft,
                          const int ruled) {
    const layer mine = layer_of(task->l, ruled), *l = &mine;
    const cell own = cell_of(l, soft), *c = &own;
    const int64_t hidden = c->hidden, width = width_of(c), depth = l->projected ? l->output : hidden * c->gates;
    const int64_t t = l->reverse ? round : l->steps - 1 - round, b = tile_begin(l, tile);
    const int last = round == l->steps; /* the additional round computes the gradient of h0 */
    const int rows = rows_of(l, last ? l->batch : l->sizes[t], tile);
    const int zoned = has_zoneout(l);
    int first, count;
    if (rows == 0 || (last && l->projected)) return;
    const real *left[ROWS];
    if (!l->projected) rows_after(task, l, round, t, b, rows, left);
    else
        for (int r = 0; r < rows; r++) left[r] = task->dh_sum + (l->offsets[t] + b + r) * l->output;
    group_vectors(vectors_of(l), backward_groups(l), group, &first, &count);
    reals product[ROWS][COLUMNS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < count; v++)
            product[r][v] = every(0.0f);
    if (!last) expect_backward(task, l->offsets[t] + b, rows, (int64_t)first * LANES, count);
    const real *packed = l->projected ? task->packed_hr : task->packed;
    multiply_rows(rows, count, backward_halves(c, first, count), left, 1, packed + (int64_t)first * LANES * depth, depth,
                  product);
    real *partial = task->partial + (int64_t)tile * (c->nonlinearities * hidden + width);
    for (int v = 0; v < count; v++) {
        place at = {t, b, (int64_t)(first + v) * LANES};
        reals a[ROWS][COLUMNS], xi[ROWS][4], sums[4] = {{0}};
        if (c->kind == LSTM && !last) load_gates(c, at, task->gates + (l->offsets[t] + b) * width, rows, a, xi);
        for (int r = 0; r < rows; r++, at.row++) {
            if (last) { /* t is not a step in this round */
                store_units(c, task->dh0 + at.row * hidden, at.unit, of_seen(l, c, at.row, at.unit, product[r][v]));
                continue;
            }
            const int64_t row = l->offsets[t] + at.row;
            const real *before_h =
                row_before(l, task->h, l->output, task->h0, task->reset_h, task->zeros, t, at.row);
            const real *before_c = NULL;
            if (c->kind == LSTM)
                before_c = row_before(l, task->c, hidden, task->c0, task->reset_c, task->zeros, t, at.row);
            real *carry = task->carry + at.row * hidden;
            reals dh = product[r][v], held = every(0.0f);
            if (!l->projected) {
                dh = of_seen(l, c, at.row, at.unit, dh);
                dh += load_units(c, task->dh + row * hidden, at.unit);
            }
            if (zoned) dh = before_cell(l, at, dh, carry, &held);
            cell_backward(c, at, dh, a[r], xi[r], task->gates + row * c->gates * hidden, before_h, before_c,
                          c->kind == RNN ? NULL : task->extra + row * hidden, carry, task->dgates + row * width,
                          partial, sums);
            if (zoned || resets(l, t, at.row)) hand_over(l, at, held, carry);
        }
        for (int n = 0; n * hidden < width && !last; n++)
            add_units(c, partial + (c->nonlinearities + n) * hidden, at.unit, sums[n]);
    }
}

#define BACKWARD(name, soft, ruled) \
    static void name(const void *task, int64_t round, int group, int tile) { \
        backward_tile(task, round, group, tile, soft, ruled); \
    }
BACKWARD(backward_hard, 0, 0)
BACKWARD(backward_soft, 1, 0)
BACKWARD(backward_hard_ruled, 0, 1)
BACKWARD(backward_soft_ruled, 1, 1)

/* dh: [rows][output], the gradient of h at every step. carry: [batch][hidden], holds the gradient of the LSTM's final
 * c (else 0); receives the gradient of c0 (LSTM), or the part of h0's gradient that does not pass the weights (GRU).
 * dgates: [rows][width][hidden]; width is 4 for the GRU (the fourth is the input's side of the candidate), else gates.
 * packed: a buffer for W_hh and W_hr.
 * sums: [nonlinearities + width][hidden], the gradients of p and the sums of dgates.
 * dh0: [batch][output], receives the part of h0's gradient that passes the weights; or NULL.
 * dh_sum: [rows][output], receives the whole gradient of h' = W_hr m if there is a projection.
 * Returns 0, or 1 if memory cannot be allocated. */
int EXPORTED(noisyact_recurrent_backward)(const layer *given, const weights *w, const rules *s, real *packed,
                                const real *gates, const real *extra, const real *h, const real *h0, const real *c0,
                                const real *dh, real *carry, real *dgates, real *sums, real *dh0, real *dh_sum,
                                int threads) {
    const layer own = with_weights(given, w, s), *l = &own, out = output_of(l);
    const int64_t hidden = l->cell.hidden, depth = hidden * l->cell.gates, width = width_of(&l->cell);
    const int64_t length = l->cell.nonlinearities * hidden + width;
    const int64_t rows = l->steps ? l->offsets[l->steps - 1] + l->sizes[l->steps - 1] : 0;
    if (hidden == 0) return 0;
    memset(sums, 0, (size_t)length * sizeof(real));
    if (l->batch == 0) return 0;
    real *zeros = calloc((size_t)(width > l->output ? width : l->output), sizeof(real));
    real *partial = calloc((size_t)(tiles_of(l) * length), sizeof(real)); /* one for each tile, so that none waits */
    if (zeros == NULL || partial == NULL) {
        free(partial);
        free(zeros);
        return 1;
    }
    real *packed_hr = packed + packed_size(&out, depth);
    const backward_task task = {.l = l, .packed = packed, .packed_hr = packed_hr, .zeros = zeros, .gates = gates,
                                .extra = extra, .h = h, .h0 = h0, .c0 = c0, .dh = dh,
                                .reset_h = s ? s->reset_h : NULL, .reset_c = s ? s->reset_c : NULL,
                                .c = extra + c_place(l, rows), .carry = carry, .dgates = dgates,
                                .partial = partial, .dh0 = dh0, .dh_sum = dh_sum};
    static void (*const tiles[2][2])(const void *, int64_t, int, int) = {{backward_hard, backward_soft},
                                                                         {backward_hard_ruled, backward_soft_ruled}};
    const part parts[2] = {{backward_output, backward_groups(&out)},
                           {tiles[s != NULL][is_soft(l)], backward_groups(l)}};
    pack_backward(&out, w->w_hh, depth, packed, threads);
    if (l->projected) pack_backward(l, w->w_hr, l->output, packed_hr, threads);
    share_out(l, l->steps + (dh0 != NULL), parts + !l->projected, 1 + l->projected, threads, &task);
    for (int tile = 0; tile < tiles_of(l); tile++)
        for (int64_t j = 0; j < length; j++) sums[j] += partial[tile * length + j];
    free(partial);
    free(zeros);
    return 0;
}
