/* The cells, forward and backward: one step of one row for up to four vectors of units. */
#ifndef NOISYACT_CELLS_H
#define NOISYACT_CELLS_H

#include "../../native/gemm.h"
#include "../../native/phi.h"
#include "../../native/philox.h"

enum kind { LSTM, GRU, RNN };

typedef struct {
    int32_t kind;
    int32_t gates;          /* 4, 3 or 1 */
    int32_t nonlinearities; /* 5, 3 or 1 */
    unit gate, state;       /* the noisy sigmoid and the noisy tanh */
    uint64_t seed;
    int64_t hidden;
    const real *p;         /* [nonlinearities][hidden] */
    const real *bias;      /* b_hh of the GRU's candidate, or NULL */
    const int64_t *rows;   /* the numbers of the rows in the noise; NULL for 0, 1, 2, ... */
    int64_t first_step;    /* the number of the first step in the noise */
} cell;

typedef struct {
    int64_t step, row, unit;
} place;

/* The step and the row of a counter of the noise. */
INLINE uint32_t step_number(const cell *c, int64_t step) { return (uint32_t)(c->first_step + step); }
INLINE uint32_t row_number(const cell *c, int64_t row) { return (uint32_t)(c->rows ? c->rows[row] : row); }

/* The number of columns of dgates: the GRU has an additional gate, the input's side of its candidate. */
static inline int64_t width_of(const cell *c) { return c->hidden * (c->kind == GRU ? 4 : c->gates); }

INLINE int units_left(const cell *c, int64_t unit) { return c->hidden - unit < LANES ? (int)(c->hidden - unit) : LANES; }

/* Load a vector of units from a row, with zeros past its end. */
INLINE reals load_units(const cell *c, const real *row, int64_t unit) {
    return c->hidden - unit >= LANES ? load(row + unit) : load_first(row + unit, units_left(c, unit));
}

INLINE void store_units(const cell *c, real *row, int64_t unit, reals v) {
    if (c->hidden - unit >= LANES) store(row + unit, v);
    else store_first(row + unit, units_left(c, unit), v);
}

INLINE void add_units(const cell *c, real *row, int64_t unit, reals v) {
    store_units(c, row, unit, load_units(c, row, unit) + v);
}

/* The normals of one counter: the xi of nonlinearity n at (step, row, unit) is normal n % 4 of the counter
 * (unit, row, step, n / 4). A pair is computed only if one of its two nonlinearities needs it. */
INLINE void draw(const cell *c, place at, uint32_t block, int first_pair, int second_pair, reals xi[4]) {
    if (!first_pair && !second_pair) return;
    words units = lane_numbers() + (uint32_t)at.unit, w[1][4];
    const uint32_t row = row_number(c, at.row);
    philox(c->seed, &units, &row, step_number(c, at.step), block, w, 1);
    if (first_pair) normal_pair(w[0][0], w[0][1], &xi[0], &xi[1]);
    if (second_pair) normal_pair(w[0][2], w[0][3], &xi[2], &xi[3]);
}

/* Whether a nonlinearity at x needs noise. */
INLINE int wants(const unit *a, reals x) { return (a->stochastic != 0) & !linear(a, x * a->slope + a->offset); }

INLINE reals noise_of(const unit *a, reals xi) { return a->stochastic ? xi : every(a->expectation); }

INLINE reals p_of(const cell *c, int n, int64_t unit) { return load_units(c, c->p + n * c->hidden, unit); }

/* Nonlinearity n of the cell at x. */
INLINE reals noisy(const cell *c, const unit *a, int n, int64_t unit, reals x, reals xi) {
    reals u = x * a->slope + a->offset;
    return linear(a, u) ? u : phi_forward(a, x, p_of(c, n, unit), noise_of(a, xi));
}

/* A nonlinearity's value and derivatives. of_p: whether the derivative of p can be nonzero. */
typedef struct {
    reals phi, dx, dp;
    int of_p;
} slopes;

INLINE slopes noisy_slopes(const cell *c, const unit *a, int n, int64_t unit, reals x, reals xi) {
    reals u = x * a->slope + a->offset;
    slopes s = {u, every(a->slope), every(0.0f), 0};
    if (linear(a, u)) return s;
    phi_derivatives(a, x, p_of(c, n, unit), noise_of(a, xi), &s.phi, &s.dx, &s.dp);
    s.of_p = a->scheme <= NAH || a->scheme == NANIL || a->scheme == NANIL_MEAN;
    return s;
}

/* The gradient of x for the gradient g of the nonlinearity; the gradient of p is added to the partial sums. */
INLINE reals back(const cell *c, slopes s, int n, int64_t unit, reals g, real *partial) {
    if (s.of_p) add_units(c, partial + n * c->hidden, unit, g * s.dp);
    return g * s.dx;
}

/* Store the gradient of a gate and add it to the gradient of its biases. */
INLINE void keep_gate(const cell *c, place at, int n, reals da, real *dgates, reals *sums) {
    store_units(c, dgates + n * c->hidden, at.unit, da);
    sums[n] += da;
}

/* The noise of an LSTM's gates for the rows of a tile, from `at` on. It is drawn for two rows at a time, because a
 * single row would wait for its own results. */
INLINE void draw_gates(const cell *c, place at, int rows, reals (*a)[COLUMNS], reals (*xi)[4]) {
    int wanting[ROWS + 1], pairs[ROWS], count = 0;
    for (int r = 0; r < rows; r++) {
        pairs[r] = wants(&c->gate, a[r][0]) | wants(&c->gate, a[r][1]);
        pairs[r] |= (wants(&c->state, a[r][2]) | wants(&c->gate, a[r][3])) << 1;
        wanting[count] = r;
        count += pairs[r] != 0;
    }
    wanting[count] = wanting[count > 0 ? count - 1 : 0]; /* for an odd count the last row is drawn twice */
    const words units = lane_numbers() + (uint32_t)at.unit, both[2] = {units, units};
    for (int i = 0; i < count; i += 2) {
        const int r[2] = {wanting[i], wanting[i + 1]}, needed = pairs[r[0]] | pairs[r[1]];
        const uint32_t row[2] = {row_number(c, at.row + r[0]), row_number(c, at.row + r[1])};
        words w[2][4];
        philox(c->seed, both, row, step_number(c, at.step), 0, w, 2);
        for (int l = 0; l < 4; l += 2)
            if (needed & (1 << l / 2))
                for (int s = 0; s < 2; s++) normal_pair(w[s][l], w[s][l + 1], &xi[r[s]][l], &xi[r[s]][l + 1]);
    }
}

/* Load an LSTM's saved pre-activations of some rows and one vector of units, and recompute their noise. */
INLINE void load_gates(const cell *c, place at, const real *gates, int rows, reals (*a)[COLUMNS], reals (*xi)[4]) {
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < 4; n++) a[r][n] = load_units(c, gates + (r * 4 + n) * c->hidden, at.unit);
    draw_gates(c, at, rows, a, xi);
}

INLINE reals draw_out(const cell *c, place at, reals state) {
    reals xi[4] = {{0}};
    draw(c, at, 1, wants(&c->state, state), 0, xi);
    return xi[0];
}

INLINE void lstm_forward(const cell *c, place at, const reals *a, const reals *xi, real *gates,
                         const real *before_c, real *now_c, real *h) {
    for (int n = 0; n < 4 && gates; n++) store_units(c, gates + n * c->hidden, at.unit, a[n]);
    reals i = noisy(c, &c->gate, 0, at.unit, a[0], xi[0]), f = noisy(c, &c->gate, 1, at.unit, a[1], xi[1]);
    reals g = noisy(c, &c->state, 2, at.unit, a[2], xi[2]), o = noisy(c, &c->gate, 3, at.unit, a[3], xi[3]);
    reals state = f * load_units(c, before_c, at.unit) + i * g;
    store_units(c, now_c, at.unit, state);
    store_units(c, h, at.unit, o * noisy(c, &c->state, 4, at.unit, state, draw_out(c, at, state)));
}

INLINE void lstm_backward(const cell *c, place at, reals dh, const reals *a, const reals *xi, const real *before_c,
                          const real *now_c, real *carry, real *dgates, real *partial, reals *sums) {
    slopes gate[4];
    for (int n = 0; n < 4; n++) gate[n] = noisy_slopes(c, n == 2 ? &c->state : &c->gate, n, at.unit, a[n], xi[n]);
    reals state = load_units(c, now_c, at.unit);
    slopes out = noisy_slopes(c, &c->state, 4, at.unit, state, draw_out(c, at, state));
    reals i = gate[0].phi, f = gate[1].phi, g = gate[2].phi, o = gate[3].phi;
    reals dc = load_units(c, carry, at.unit) + back(c, out, 4, at.unit, dh * o, partial);
    reals d[4] = {dc * g, dc * load_units(c, before_c, at.unit), dc * i, dh * out.phi};
    for (int n = 0; n < 4; n++) keep_gate(c, at, n, back(c, gate[n], n, at.unit, d[n], partial), dgates, sums);
    store_units(c, carry, at.unit, dc * f);
}

/* r, z and the candidate n. `recurrent` receives W_hn h + b_hn for backward. */
INLINE void gru_forward(const cell *c, place at, const reals *from_input, const reals *product, real *gates,
                        const real *before_h, real *recurrent, real *h) {
    reals xi[4] = {{0}}, q = product[2];
    if (c->bias) q += load_units(c, c->bias, at.unit);
    reals a_r = from_input[0] + product[0], a_z = from_input[1] + product[1];
    draw(c, at, 0, wants(&c->gate, a_r) || wants(&c->gate, a_z), 0, xi);
    reals r = noisy(c, &c->gate, 0, at.unit, a_r, xi[0]), z = noisy(c, &c->gate, 1, at.unit, a_z, xi[1]);
    reals a_n = from_input[2] + r * q;
    draw(c, at, 0, 0, wants(&c->state, a_n), xi);
    reals n = noisy(c, &c->state, 2, at.unit, a_n, xi[2]);
    if (gates) {
        store_units(c, recurrent, at.unit, q);
        store_units(c, gates, at.unit, a_r);
        store_units(c, gates + c->hidden, at.unit, a_z);
        store_units(c, gates + 2 * c->hidden, at.unit, a_n);
    }
    store_units(c, h, at.unit, n + z * (load_units(c, before_h, at.unit) - n));
}

INLINE void gru_backward(const cell *c, place at, reals dh, const real *gates, const real *before_h,
                         const real *recurrent, real *carry, real *dgates, real *partial, reals *sums) {
    reals xi[4] = {{0}};
    reals a_r = load_units(c, gates, at.unit), a_z = load_units(c, gates + c->hidden, at.unit);
    reals a_n = load_units(c, gates + 2 * c->hidden, at.unit), q = load_units(c, recurrent, at.unit);
    draw(c, at, 0, wants(&c->gate, a_r) || wants(&c->gate, a_z), wants(&c->state, a_n), xi);
    slopes r = noisy_slopes(c, &c->gate, 0, at.unit, a_r, xi[0]), z = noisy_slopes(c, &c->gate, 1, at.unit, a_z, xi[1]);
    slopes n = noisy_slopes(c, &c->state, 2, at.unit, a_n, xi[2]);
    dh += load_units(c, carry, at.unit);
    reals da_n = back(c, n, 2, at.unit, dh * (1.0f - z.phi), partial);
    reals da_z = back(c, z, 1, at.unit, dh * (load_units(c, before_h, at.unit) - n.phi), partial);
    reals da_r = back(c, r, 0, at.unit, da_n * q, partial);
    keep_gate(c, at, 0, da_r, dgates, sums);
    keep_gate(c, at, 1, da_z, dgates, sums);
    keep_gate(c, at, 2, da_n * r.phi, dgates, sums);
    keep_gate(c, at, 3, da_n, dgates, sums);
    store_units(c, carry, at.unit, dh * z.phi);
}

/* `count` vectors of units: one for an LSTM or a GRU, whose gates are the columns of the products; several for an RNN.
 * a: the pre-activations; for a GRU the input's part, and `product` is the recurrent part. xi: the noise of an LSTM's
 * gates. gates: the row that receives the pre-activations for backward, or NULL. */
INLINE void cell_forward(const cell *c, place at, int count, const reals *a, const reals *product, const reals *xi,
                         real *gates, const real *before_h, const real *before_c, real *extra, real *h) {
    if (c->kind == LSTM) {
        lstm_forward(c, at, a, xi, gates, before_c, extra, h);
    } else if (c->kind == GRU) {
        gru_forward(c, at, a, product, gates, before_h, extra, h);
    } else {
        for (int v = 0; v < count; v++, at.unit += LANES) {
            reals own[4] = {{0}};
            draw(c, at, 0, wants(&c->state, a[v]), 0, own);
            if (gates) store_units(c, gates, at.unit, a[v]);
            store_units(c, h, at.unit, noisy(c, &c->state, 0, at.unit, a[v], own[0]));
        }
    }
}

/* One vector of units. a, xi: an LSTM's pre-activations and noise; other cells get theirs here. sums: of dgates. */
INLINE void cell_backward(const cell *c, place at, reals dh, const reals *a, const reals *xi, const real *gates,
                          const real *before_h, const real *before_c, const real *extra, real *carry,
                          real *dgates, real *partial, reals *sums) {
    if (c->kind == LSTM) {
        lstm_backward(c, at, dh, a, xi, before_c, extra, carry, dgates, partial, sums);
    } else if (c->kind == GRU) {
        gru_backward(c, at, dh, gates, before_h, extra, carry, dgates, partial, sums);
    } else {
        reals own[4] = {{0}}, x = load_units(c, gates, at.unit);
        draw(c, at, 0, wants(&c->state, x), 0, own);
        slopes s = noisy_slopes(c, &c->state, 0, at.unit, x, own[0]);
        keep_gate(c, at, 0, back(c, s, 0, at.unit, dh, partial), dgates, sums);
    }
}

#endif
