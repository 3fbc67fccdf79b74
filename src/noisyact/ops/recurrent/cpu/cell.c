/* The pointwise part of one step of a cell on a CPU, forward and backward, row by row. */
#include "layer.h"

typedef struct {
    const layer *l;
    const real *product, *before_h, *before_c, *dh;
    real *gates, *extra, *h, *carry, *dgates, *partial;
} step;

INLINE void forward_row(const step *s, int64_t b, const int soft) {
    const cell own = cell_of(s->l, soft), *c = &own;
    const int64_t hidden = c->hidden, row_size = c->gates * hidden;
    for (int64_t j = 0; j < hidden; j += LANES) {
        place at = {0, b, j};
        reals a[1][COLUMNS], sums[COLUMNS], xi[1][4];
        for (int n = 0; n < c->gates; n++) {
            a[0][n] = load_units(c, s->gates + b * row_size + n * hidden, j);
            sums[n] = s->product ? load_units(c, s->product + b * row_size + n * hidden, j) : every(0.0f);
        }
        if (c->kind == LSTM) draw_gates(c, at, 1, a, xi);
        cell_forward(c, at, 1, a[0], sums, xi[0], s->gates + b * row_size, s->before_h + b * hidden,
                     s->before_c + b * hidden, s->extra + b * hidden, s->h + b * hidden);
    }
}

static void forward_hard(const step *s, int64_t b) { forward_row(s, b, 0); }
static void forward_soft(const step *s, int64_t b) { forward_row(s, b, 1); }

INLINE void backward_row(const step *s, int64_t b, const int soft) {
    const cell own = cell_of(s->l, soft), *c = &own;
    const int64_t hidden = c->hidden;
    real *gates = s->gates + b * c->gates * hidden;
    for (int64_t j = 0; j < hidden; j += LANES) {
        place at = {0, b, j};
        reals gradient = load_units(c, s->dh + b * hidden, j), a[1][COLUMNS], xi[1][4], sums[4] = {{0}};
        if (c->kind == LSTM) load_gates(c, at, gates, 1, a, xi);
        cell_backward(c, at, gradient, a[0], xi[0], gates, s->before_h + b * hidden, s->before_c + b * hidden,
                      s->extra + b * hidden, s->carry + b * hidden, s->dgates + b * width_of(c),
                      s->partial + b * c->nonlinearities * hidden, sums);
    }
}

static void backward_hard(const step *s, int64_t b) { backward_row(s, b, 0); }
static void backward_soft(const step *s, int64_t b) { backward_row(s, b, 1); }

static void every_row(const step *s, void (*do_row)(const step *, int64_t), int threads) {
    const int64_t batch = s->l->batch;
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && batch * s->l->cell.hidden > 4096)
    for (int64_t b = 0; b < batch; b++) do_row(s, b);
}

/* `gates` is as in the layer; `product`, [rows][gates][hidden], is the GRU's recurrent part, which for other cells is
 * already in `gates`. Always returns 0, because it allocates no memory. */
int EXPORTED(noisyact_cell_forward)(const layer *given, const weights *w, const rules *rules, real *gates,
                          const real *product, const real *before_h, const real *before_c, real *extra, real *h,
                          int threads) {
    const layer l = with_weights(given, w, rules);
    const step s = {&l, product, before_h, before_c, NULL, gates, extra, h, NULL, NULL, NULL};
    every_row(&s, is_soft(&l) ? forward_soft : forward_hard, threads);
    return 0;
}

/* The gradients of noisyact_cell_forward. `partial`, [batch][nonlinearities][hidden], must hold zeros and receives p's;
 * `carry` is as in the layer. Always returns 0. */
int EXPORTED(noisyact_cell_backward)(const layer *given, const weights *w, const rules *rules, real *gates,
                           const real *before_h, const real *before_c, real *extra, const real *dh, real *carry,
                           real *dgates, real *partial, int threads) {
    const layer l = with_weights(given, w, rules);
    const step s = {&l, NULL, before_h, before_c, dh, gates, extra, NULL, carry, dgates, partial};
    every_row(&s, is_soft(&l) ? backward_soft : backward_hard, threads);
    return 0;
}
