/* The state of a layer between its steps: resets, zoneout and recurrent dropout. types.py, StateRules, specifies them.
 * The functions that are no part of a plain layer are not inlined, so that its loops stay as they are. */
#ifndef NOISYACT_STATE_H
#define NOISYACT_STATE_H

#include "layer.h"

#define SEPARATE static __attribute__((noinline, unused))

/* Whether the state of row b is replaced before step t. Only a rectangular batch has resets. */
static inline int resets(const layer *l, int64_t t, int64_t b) {
    return l->rules && l->rules->reset && l->rules->reset[t * l->batch + b];
}

/* The units at a place whose word is below the limit: all bits of a lane, or none. */
INLINE bits chosen(const cell *c, uint64_t seed, place at, uint32_t step, uint32_t block, int word, uint32_t limit) {
    words units = lane_numbers() + (uint32_t)at.unit, w[1][4];
    const uint32_t row = row_number(c, at.row);
    philox(seed, &units, &row, step, block, w, 1);
    return __builtin_convertvector(w[0][word] < (words){0} + limit, bits);
}

/* The zoneout of a vector of units: a drawn mask, or the expectation. */
typedef struct {
    int drawn;
    bits keep;
    real rate, rest;
} zone;

enum { OF_H, OF_C }; /* the words of their masks */

INLINE zone zone_of(const rules *s, const cell *c, place at, int what) {
    const double rate = what == OF_H ? s->zoneout_h : s->zoneout_c;
    zone z = {s->drawn, {0}, (real)rate, (real)(1.0 - rate)};
    const uint32_t limit = what == OF_H ? s->limit_h : s->limit_c;
    if (z.drawn) z.keep = chosen(c, s->seed, at, step_number(c, at.step), 2, what, limit);
    return z;
}

INLINE reals mixed(const zone *z, reals old, reals new) {
    return z->drawn ? (reals)((z->keep & (bits)old) | (~z->keep & (bits)new)) : z->rate * old + z->rest * new;
}

/* The c after zoneout of one vector of units, to c. */
SEPARATE void settle_c(const layer *l, place at, const real *before, const real *new, real *c) {
    const zone z = zone_of(l->rules, &l->cell, at, OF_C);
    reals old = load_units(&l->cell, before, at.unit);
    store_units(&l->cell, c, at.unit, mixed(&z, old, load_units(&l->cell, new, at.unit)));
}

/* The zoneout of h, in place, and the h that the recurrent product sees, for `count` vectors of units.
 * out: the cell of output_of. seen: the row that receives d h if there is recurrent dropout. */
SEPARATE void settle_h(const rules *s, const cell *out, place at, int count, const real *before, real *h, real *seen) {
    for (int v = 0; v < count; v++, at.unit += LANES) {
        reals now = load_units(out, h, at.unit);
        if (s->zoneout_h > 0) {
            const zone z = zone_of(s, out, at, OF_H);
            now = mixed(&z, load_units(out, before, at.unit), now);
            store_units(out, h, at.unit, now);
        }
        if (s->dropout)
            store_units(out, seen, at.unit, now * load_units(out, s->dropout + at.row * out->hidden, at.unit));
    }
}

static inline int settles_h(const layer *l) { return l->rules && (l->rules->zoneout_h > 0 || l->rules->dropout); }
static inline int settles_c(const layer *l) { return l->rules && l->cell.kind == LSTM && l->rules->zoneout_c > 0; }
static inline int has_zoneout(const layer *l) { return settles_c(l) || (l->rules && l->rules->zoneout_h > 0); }

/* Where the LSTM's c begins in `extra`: with zoneout of c, after so many rows of c'. */
static inline int64_t c_place(const layer *l, int64_t rows) { return settles_c(l) ? rows * l->cell.hidden : 0; }

/* The gradient of h for the gradient of the recurrent product's factor. */
INLINE reals of_seen(const layer *l, const cell *out, int64_t b, int64_t unit, reals gradient) {
    if (!l->rules || !l->rules->dropout) return gradient;
    return gradient * load_units(out, l->rules->dropout + b * out->hidden, unit);
}

/* The gradient of h' for the gradient dh of h, which gets what the next step has held. This step holds the part of the
 * units that keep their value, for the step before it or for the state after a reset. */
SEPARATE reals before_zoneout(const layer *l, const cell *out, place at, reals dh) {
    const rules *s = l->rules;
    real *held = s->held + at.row * out->hidden;
    const reals zero = every(0.0f);
    const zone z = zone_of(s, out, at, OF_H);
    dh += load_units(out, held, at.unit);
    reals kept = mixed(&z, dh, zero);
    if (resets(l, at.step, at.row)) {
        if (s->reset_held) add_units(out, s->reset_held + at.row * out->hidden, at.unit, kept);
        kept = zero;
    }
    store_units(out, held, at.unit, kept);
    return mixed(&z, zero, dh);
}

/* The same for c: `carry`, the gradient of c, becomes that of c'. Returns the part that this step holds. */
SEPARATE reals hold_c(const layer *l, place at, real *carry) {
    const reals zero = every(0.0f), dc = load_units(&l->cell, carry, at.unit);
    const zone z = zone_of(l->rules, &l->cell, at, OF_C);
    store_units(&l->cell, carry, at.unit, mixed(&z, zero, dc));
    return mixed(&z, dc, zero);
}

/* The gradient of the cell's h' for the gradient dh of h, before the cell's step in backward. */
SEPARATE reals before_cell(const layer *l, place at, reals dh, real *carry, reals *held) {
    if (settles_c(l)) *held = hold_c(l, at, carry);
    if (l->projected || l->rules->zoneout_h == 0) return dh;
    if (l->cell.kind == GRU) { /* the cell would add it only to the gradient of h' */
        dh += load_units(&l->cell, carry, at.unit);
        store_units(&l->cell, carry, at.unit, every(0.0f));
    }
    return before_zoneout(l, &l->cell, at, dh);
}

/* After a step: `carry` gets what was held, and at a reset it belongs to the new state. */
SEPARATE void hand_over(const layer *l, place at, reals held, real *carry) {
    const cell *c = &l->cell;
    const rules *s = l->rules;
    if (settles_c(l)) add_units(c, carry, at.unit, held);
    if (!resets(l, at.step, at.row)) return;
    if (s->reset_carry) add_units(c, s->reset_carry + at.row * c->hidden, at.unit, load_units(c, carry, at.unit));
    store_units(c, carry, at.unit, every(0.0f));
}

#endif
