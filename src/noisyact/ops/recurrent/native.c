/* A noisy LSTM, GRU or RNN layer in one direction on a CPU, float32: the whole time loop in one call.
 *
 * README.md beside this file has the formulas; reference.py is what they must equal. The recurrent product, the noise
 * and the cell are done together, a tile of rows and one vector of units at a time, while the sums are in registers.
 * Tiles depend on the batch alone, and a unit's gradients of p are added by tile and step in a fixed order: the result is
 * the same to the bit for every number of threads.
 *
 * Rows: step t has sizes[t] rows that begin at offsets[t], longest sequence first, as PackedSequence has them; a
 * rectangular batch has equal sizes. Row b of a step follows row b of the step before, or of the step after in reverse.
 */
#include <stdlib.h>

#include "layer.h"

int64_t noisyact_recurrent_packed_size(const layer *l, int64_t depth) {
    return (int64_t)vectors_of(l) * LANES * l->cell.gates * depth;
}

void noisyact_recurrent_pack_forward(const layer *l, const float *weight, int64_t depth, float *packed, int threads) {
    const int groups = forward_groups(l);
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int g = 0; g < groups; g++) pack_group(l, weight, depth, g, packed + group_place(l, depth, g));
}

/* W_hh packed for the backward product, whose depth runs over all gates. */
void noisyact_recurrent_pack_backward(const layer *l, const float *weight, float *packed, int threads) {
    const int64_t hidden = l->cell.hidden, depth = hidden * l->cell.gates;
    const int groups = backward_groups(l), vectors = vectors_of(l);
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int g = 0; g < groups; g++) {
        int first, count;
        group_vectors(vectors, groups, g, &first, &count);
        float *to = packed + (int64_t)first * LANES * depth;
        int64_t begin = (int64_t)first * LANES, end = begin + (int64_t)count * LANES;
        int64_t present = (end < hidden ? end : hidden) - begin;
        for (int64_t k = 0; k < depth; k++, to += end - begin) {
            memcpy(to, weight + k * hidden + begin, (size_t)present * sizeof(float));
            memset(to + present, 0, (size_t)(end - begin - present) * sizeof(float));
        }
    }
}

/* The step at which row b begins in reverse: the last that has it. */
static int64_t first_step(const int64_t *sizes, int64_t steps, int64_t b) {
    int64_t t = steps - 1;
    while (t > 0 && b >= sizes[t]) t--;
    return t;
}

/* The row before (t, b), or NULL where the sequence begins there. */
static const float *neighbour(const layer *l, const float *rows, int64_t width, int64_t t, int64_t b, int before) {
    int64_t other = (before != 0) == (l->reverse != 0) ? t + 1 : t - 1;
    if (other < 0 || other >= l->steps || b >= l->sizes[other]) return NULL;
    return rows + (l->offsets[other] + b) * width;
}

#ifdef _OPENMP
#include <omp.h>
#define THREAD_NUMBER omp_get_thread_num()
#define THREAD_COUNT omp_get_num_threads()
#else
#define THREAD_NUMBER 0
#define THREAD_COUNT 1
#endif

/* Equal tiles of at most ROWS rows. */
static int tiles_of(const layer *l) { return (int)((l->batch + ROWS - 1) / ROWS); }
static int tile_rows(const layer *l) { return (int)((l->batch + tiles_of(l) - 1) / tiles_of(l)); }

/* The rows of a tile that a step has. */
static int rows_of(const layer *l, int64_t size, int tile) {
    int64_t left = size - (int64_t)tile * tile_rows(l);
    return (int)(left < 0 ? 0 : left < tile_rows(l) ? left : tile_rows(l));
}

/* Sequences need nothing of each other: threads that share them out never wait. That takes tiles enough for all threads
 * and weights that fit the cache of each; otherwise threads share out the units of a step and meet after it. */
static int threads_by_rows(const layer *l, int threads) {
    int tiles = tiles_of(l), most = (tiles + threads - 1) / threads;
    return 10 * tiles >= 9 * most * threads && 4 * noisyact_recurrent_packed_size(l, l->cell.hidden) <= (1 << 20);
}

typedef void work(const void *task, int64_t round, int group, int tile);

/* Does `work` for every round, group and tile; a round begins when the one before is done as far as it needs it. */
static void share_out(const layer *l, int64_t rounds, int groups, int threads, work *do_one, const void *task) {
    const int tiles = tiles_of(l), by_rows = threads_by_rows(l, threads);
    (void)threads;
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (int64_t round = 0; round < rounds; round++) {
        int64_t me = THREAD_NUMBER, all = THREAD_COUNT;
        if (by_rows) {
            for (int g = 0; g < groups; g++)
                for (int tile = (int)(tiles * me / all); tile < tiles * (me + 1) / all; tile++)
                    do_one(task, round, g, tile);
        } else {
            int64_t items = (int64_t)tiles * groups;
            for (int64_t item = items * me / all; item < items * (me + 1) / all; item++)
                do_one(task, round, (int)(item / tiles), (int)(item % tiles));
#pragma omp barrier
        }
    }
}

/* A sequence's row before (t, b): of `rows`, or at the beginning of `first`, or zeros. */
static const float *row_before(const layer *l, const float *rows, const float *first, const float *zeros, int64_t t,
                               int64_t b) {
    const float *row = neighbour(l, rows, l->cell.hidden, t, b, 1);
    if (row != NULL) return row;
    return first ? first + b * l->cell.hidden : zeros;
}

/* Whether the input is projected step by step. Small weights of both kinds stay in the cache: then it is done when it is
 * needed, and the result is still there. Large ones would come in anew at every step: then all rows pass by each part of
 * them once, and wait in `gates`. */
int noisyact_recurrent_together(const layer *l, int64_t size) {
    return 4 * noisyact_recurrent_packed_size(l, size + l->cell.hidden) <= (1 << 19);
}

/* The input's side of a forward pass. */
typedef struct {
    const float *x, *weight, *bias; /* [rows][size]; W_ih, packed or not; [gates][hidden] or NULL */
    int64_t size;
} input;

/* Gate and unit of column v of a group's products: an LSTM's or GRU's gates of one vector of units, or an RNN's units. */
INLINE place column_of(const cell *c, int first, int v, int64_t *gate) {
    *gate = c->gates == 1 ? 0 : v * c->hidden;
    return (place){0, 0, (int64_t)(c->gates == 1 ? first + v : first) * LANES};
}

/* The input's part of the pre-activations, with the biases, of some rows and one group of units. */
static void project(const layer *l, const input *in, const float *packed, int64_t row, int rows, int first, int columns,
                    floats sums[ROWS][COLUMNS]) {
    const cell *c = &l->cell;
    const float *left[ROWS];
    for (int r = 0; r < rows; r++) left[r] = in->x + (row + r) * in->size;
    multiply_rows(rows, columns, left, 1, packed, in->size, sums);
    for (int v = 0; v < columns && in->bias; v++) {
        int64_t gate, unit = column_of(c, first, v, &gate).unit;
        floats bias = load_units(c, in->bias + gate, unit);
        for (int r = 0; r < rows; r++) sums[r][v] += bias;
    }
}

/* The same for many rows, into `gates`; `room` is for the group's weights. */
static void project_rows(const layer *l, const input *in, int64_t begin, int64_t end, int group, float *room,
                         float *gates) {
    const cell *c = &l->cell;
    int first, count;
    group_vectors(vectors_of(l), forward_groups(l), group, &first, &count);
    int columns = c->gates == 1 ? count : c->gates;
    pack_group(l, in->weight, in->size, group, room);
    for (int64_t row = begin; row < end; row += ROWS) {
        int some = end - row < ROWS ? (int)(end - row) : ROWS;
        floats sums[ROWS][COLUMNS];
        project(l, in, room, row, some, first, columns, sums);
        for (int r = 0; r < some; r++)
            for (int v = 0; v < columns; v++) {
                int64_t gate, unit = column_of(c, first, v, &gate).unit;
                store_units(c, gates + (row + r) * c->gates * c->hidden + gate, unit, sums[r][v]);
            }
    }
}

typedef struct {
    const layer *l;
    const input *in; /* to project step by step, or NULL where that is done */
    const float *packed, *zeros, *h0, *c0;
    float *gates, *extra, *h;
} forward_task;

/* Has what a tile is going to write brought to the cache while its products are being done. */
INLINE void expect_forward(const forward_task *task, int64_t row, int rows, int64_t unit) {
    const int64_t hidden = task->l->cell.hidden, gates = task->l->cell.gates;
    for (int64_t end = row + rows; row < end; row++) {
        __builtin_prefetch(task->h + row * hidden + unit, 1);
        if (!task->l->keep || gates == 1) continue;
        __builtin_prefetch(task->extra + row * hidden + unit, 1);
        for (int64_t n = 0; n < gates; n++) __builtin_prefetch(task->gates + (row * gates + n) * hidden + unit, 1);
    }
}

static void forward_work(const void *given, int64_t round, int group, int tile) {
    const forward_task *task = given;
    const layer *l = task->l;
    const cell *c = &l->cell;
    const int64_t hidden = c->hidden, t = l->reverse ? l->steps - 1 - round : round;
    const int rows = rows_of(l, l->sizes[t], tile);
    const int64_t b = (int64_t)tile * tile_rows(l);
    int first, count;
    if (rows == 0) return;
    const float *before_h[ROWS], *left[ROWS];
    for (int r = 0; r < rows; r++) before_h[r] = row_before(l, task->h, task->h0, task->zeros, t, b + r);
    const int at_zero = round == 0 && task->h0 == NULL;
    for (int r = 0; r < rows; r++) left[r] = at_zero ? NULL : before_h[r];
    group_vectors(vectors_of(l), forward_groups(l), group, &first, &count);
    const int columns = c->gates == 1 ? count : c->gates;
    floats product[ROWS][COLUMNS], from_input[ROWS][COLUMNS];
    expect_forward(task, l->offsets[t] + b, rows, (int64_t)first * LANES);
    if (task->in) {
        const float *weight = task->in->weight + group_place(l, task->in->size, group);
        project(l, task->in, weight, l->offsets[t] + b, rows, first, columns, from_input);
    }
    multiply_rows(rows, columns, left, 1, task->packed + (int64_t)first * LANES * c->gates * hidden, hidden, product);
    for (int r = 0; r < rows; r++) {
        int64_t row = l->offsets[t] + b + r;
        float *gates = task->gates + row * c->gates * hidden;
        place at = {t, b + r, (int64_t)first * LANES};
        if (!task->in)
            for (int v = 0; v < columns; v++) {
                int64_t gate, unit = column_of(c, first, v, &gate).unit;
                from_input[r][v] = load_units(c, gates + gate, unit);
            }
        float *extra = task->extra + (l->keep ? row : b + r) * hidden;
        const float *before_c = extra;
        if (c->kind == LSTM && l->keep) before_c = row_before(l, task->extra, task->c0, task->zeros, t, b + r);
        cell_forward(c, at, count, product[r], from_input[r], l->keep ? gates : NULL, before_h[r], before_c, extra,
                     task->h + row * hidden);
    }
}

/* x: [rows][size]. weight: W_ih, packed as above if it is used step by step, else as it is. packed: W_hh, packed.
 * bias: [gates][hidden] or NULL.
 * gates: [rows][gates][hidden], receives the pre-activations; without `keep` it is room for all rows' projection, or unused if that is done step by step.
 * extra: [rows][hidden], the LSTM's c or the GRU's recurrent part of its candidate; without `keep` [batch][hidden], in:
 * the LSTM's first c, out: its last. h: [rows][hidden]. */
void noisyact_recurrent_forward(const layer *l, const float *x, int64_t size, const float *weight,
                                const float *bias, const float *packed, const float *zeros, float *gates, float *extra,
                                float *h, const float *h0, const float *c0, int threads) {
    const input in = {x, weight, bias, size};
    const int64_t rows = l->steps ? l->offsets[l->steps - 1] + l->sizes[l->steps - 1] : 0;
    const int groups = forward_groups(l);
    const int together = noisyact_recurrent_together(l, size);
    forward_task task = {l, together ? &in : NULL, packed, zeros, h0, c0, gates, extra, h};
    if (rows == 0) return;
    if (!together) {
        /* Each group in so many parts that threads have an even share; each part packs the group's weights anew. */
        const int parts = groups >= 8 * threads ? 1 : groups >= 4 * threads ? 2 : 4;
        const int64_t part = (rows / parts + ROWS) / ROWS * ROWS;
#pragma omp parallel num_threads(threads) if (threads > 1)
        {
            float *room = aligned_alloc(64, (size_t)(COLUMNS * LANES * size) * sizeof(float));
#pragma omp for collapse(2) schedule(static)
            for (int g = 0; g < groups; g++)
                for (int64_t begin = 0; begin < rows; begin += part)
                    project_rows(l, &in, begin, begin + part < rows ? begin + part : rows, g, room, gates);
            free(room);
        }
    }
    share_out(l, l->steps, groups, threads, forward_work, &task);
}

typedef struct {
    const layer *l;
    const float *packed, *zeros, *gates, *extra, *h, *h0, *c0, *dh;
    float *carry, *dgates, *partial, *dh0;
} backward_task;

static void backward_work(const void *given, int64_t round, int group, int tile) {
    const backward_task *task = given;
    const layer *l = task->l;
    const cell *c = &l->cell;
    const int64_t hidden = c->hidden, width = hidden * (c->kind == GRU ? 4 : c->gates), depth = hidden * c->gates;
    const int64_t t = l->reverse ? round : l->steps - 1 - round, b = (int64_t)tile * tile_rows(l);
    const int last = round == l->steps; /* one round more than steps: the gradient of h0 */
    const int rows = rows_of(l, last ? l->batch : l->sizes[t], tile);
    int first, count;
    if (rows == 0) return;
    const float *after[ROWS];
    for (int r = 0; r < rows; r++) {
        /* h0 enters at a sequence's first step: 0, or in reverse its own last. */
        int64_t entry = l->reverse ? first_step(l->sizes, l->steps, b + r) : 0;
        after[r] = last ? task->dgates + (l->offsets[entry] + b + r) * width
                        : neighbour(l, task->dgates, width, t, b + r, 0);
        if (after[r] == NULL && round > 0) after[r] = task->zeros;
    }
    group_vectors(vectors_of(l), backward_groups(l), group, &first, &count);
    floats product[ROWS][COLUMNS];
    multiply_rows(rows, count, after, 1, task->packed + (int64_t)first * LANES * depth, depth, product);
    for (int r = 0; r < rows; r++) {
        place at = {t, b + r, (int64_t)first * LANES};
        if (last) {
            for (int v = 0; v < count; v++, at.unit += LANES)
                store_units(c, task->dh0 + (b + r) * hidden, at.unit, product[r][v]);
            continue;
        }
        int64_t row = l->offsets[t] + b + r;
        const float *before_c = c->kind == LSTM ? row_before(l, task->extra, task->c0, task->zeros, t, b + r) : NULL;
        cell_backward(c, at, count, product[r], task->gates + row * c->gates * hidden,
                      row_before(l, task->h, task->h0, task->zeros, t, b + r), before_c, task->extra + row * hidden,
                      task->dh + row * hidden, task->carry + (b + r) * hidden, task->dgates + row * width,
                      task->partial + (int64_t)tile * c->nonlinearities * hidden);
    }
}

/* dh: [rows][hidden], the gradient from above. carry: [batch][hidden], in: the gradient of the last c (0 for others);
 * out: of c0 (LSTM), or the part of h0's that does not pass the weights (GRU).
 * dgates: [rows][width][hidden]; width 4 for the GRU, whose fourth is the input's side of the candidate, else gates.
 * partial: zeros, [tiles][nonlinearities][hidden]. dh0: [batch][hidden], only its part through the weights; or NULL. */
void noisyact_recurrent_backward(const layer *l, const float *packed, const float *zeros, const float *gates,
                                 const float *extra, const float *h, const float *h0, const float *c0, const float *dh,
                                 float *carry, float *dgates, float *partial, float *dh0, int threads) {
    backward_task task = {l, packed, zeros, gates, extra, h, h0, c0, dh, carry, dgates, partial, dh0};
    if (l->batch) share_out(l, l->steps + (dh0 != NULL), backward_groups(l), threads, backward_work, &task);
}

/* The cell alone, for one step whose products are done: `gates` as in the layer, `product` [rows][gates][hidden] the
 * recurrent part (NULL: it is in `gates` already). */
void noisyact_cell_forward(const layer *l, float *gates, const float *product, const float *before_h,
                           const float *before_c, float *extra, float *h, int threads) {
    const cell *cell_ = &l->cell;
    const int64_t hidden = cell_->hidden, row_size = cell_->gates * hidden;
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && l->batch * hidden > 4096)
    for (int64_t b = 0; b < l->batch; b++)
        for (int64_t j = 0; j < hidden; j += LANES) {
            place at = {0, b, j};
            floats sums[COLUMNS], from_input[COLUMNS];
            for (int n = 0; n < cell_->gates; n++) {
                sums[n] = product ? load_units(cell_, product + b * row_size + n * hidden, j) : every(0.0f);
                from_input[n] = load_units(cell_, gates + b * row_size + n * hidden, j);
            }
            cell_forward(cell_, at, 1, sums, from_input, gates + b * row_size, before_h + b * hidden,
                         before_c + b * hidden, extra + b * hidden, h + b * hidden);
        }
}

/* Its gradients; `partial` holds zeros, [batch][nonlinearities][hidden]. `carry` as in the layer. */
void noisyact_cell_backward(const layer *l, const float *gates, const float *before_h, const float *before_c,
                            const float *extra, const float *dh, float *carry, float *dgates, float *partial,
                            int threads) {
    const cell *cell_ = &l->cell;
    const int64_t hidden = cell_->hidden, row_size = cell_->gates * hidden;
    const int64_t width = hidden * (cell_->kind == GRU ? 4 : cell_->gates);
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && l->batch * hidden > 4096)
    for (int64_t b = 0; b < l->batch; b++)
        for (int64_t j = 0; j < hidden; j += LANES) {
            place at = {0, b, j};
            floats none = every(0.0f);
            cell_backward(cell_, at, 1, &none, gates + b * row_size, before_h + b * hidden, before_c + b * hidden,
                          extra + b * hidden, dh + b * hidden, carry + b * hidden, dgates + b * width,
                          partial + b * cell_->nonlinearities * hidden);
        }
}
