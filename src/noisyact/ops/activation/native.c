/* The noisy activation and its gradients on a CPU, float32: one pass over memory, noise regenerated from the seed.
 *
 * README.md beside this file derives the formulas; reference.py is what they must equal. Letters are the paper's.
 * Work is cut into chunks of a size that depends on the shapes alone, and partial gradients of p are added chunk by
 * chunk in order: the result is the same to the bit for every number of threads.
 */
#include <stddef.h>

#include "../native/philox.h"

enum scheme { NAN_SCHEME, NAH, NANI, NANIL, NANIS };

typedef struct {
    int32_t scheme;
    int32_t stochastic; /* 0: epsilon is `expectation` and nothing is drawn */
    int32_t clip;
    int32_t one_sided; /* a limit is infinite */
    float expectation;
    float alpha;
    float scale; /* c, or sigma for NANI and NANIS */
    float slope, offset, low, high;
    uint64_t seed;
    int64_t elements;
    int64_t p_size; /* 0: no p; 1: one for all; else one for each place of the last dimension */
} activation;

/* h, with NaN staying NaN. */
INLINE floats hard(const activation *a, floats u) { return at_most(at_least(u, every(a->low)), every(a->high)); }

/* u - h; 0 where both are the same infinity, which needs a function that saturates on one side only. */
INLINE floats gap_of(const activation *a, floats h, floats u) {
    floats gap = u - h, zero = every(0.0f);
    return a->one_sided ? pick(above(absolute(gap), zero), gap, zero) : gap;
}

/* |Delta|, held finite so that p = 0 times an infinite saturation is 0 and not NaN. */
INLINE floats depth_of(const activation *a, floats h, floats u) {
    return at_most(absolute(gap_of(a, h, u)), every(3.0e38f));
}

/* alpha h + (1 - alpha) u. */
INLINE floats leaky(const activation *a, floats h, floats u) {
    return a->alpha == 1.0f ? h : h + (1.0f - a->alpha) * gap_of(a, h, u);
}

/* g where v lies in the range of h, its ends included: the kinks count as linear. */
INLINE floats inside(const activation *a, floats v, floats g) {
    floats zero = every(0.0f);
    return pick(above(v, every(a->high)), zero, pick(above(every(a->low), v), zero, g));
}

/* The sign of d(x) = -sgn(x) sgn(1 - alpha), with sgn(0) = +1 (x + 0 turns -0 into +0). */
INLINE ints direction(const activation *a, floats x) {
    ints sign = sign_bit(x + 0.0f);
    return a->alpha <= 1.0f ? sign ^ (int32_t)0x80000000 : sign;
}

/* sigma of NANI and NANIS, which do not learn it: the noise of NANIS begins at the threshold itself. */
INLINE floats fixed_sigma(const activation *a, floats u) {
    floats sigma = every(a->scale);
    if (a->scheme == NANI) return sigma;
    floats below_high = pick(above(every(a->high), u), every(0.0f), sigma);
    return pick(above(u, every(a->low)), below_high, sigma);
}

INLINE floats forward_lanes(const activation *a, floats x, floats p, floats xi) {
    floats u = x * a->slope + a->offset, sigma;
    if (a->scheme == NANI || a->scheme == NANIS) {
        sigma = fixed_sigma(a, u);
    } else {
        floats h = hard(a, u), t = half_tanh(absolute(p) * depth_of(a, h, u));
        sigma = (0.25f * a->scale) * t * t;
        if (a->scheme <= NAH) {
            floats phi = leaky(a, h, u) + flip(sigma * xi, direction(a, x));
            return a->clip ? hard(a, phi) : phi;
        }
    }
    return hard(a, (x + sigma * xi) * a->slope + a->offset);
}

/* gx = g dphi/dx; gp = g dphi/dp. */
INLINE void backward_lanes(const activation *a, floats g, floats x, floats p, floats xi, floats *gx, floats *gp) {
    floats u = x * a->slope + a->offset, zero = every(0.0f);
    if (a->scheme == NANI || a->scheme == NANIS) {
        *gx = inside(a, (x + fixed_sigma(a, u) * xi) * a->slope + a->offset, g * a->slope);
        *gp = zero;
        return;
    }
    floats h = hard(a, u), depth = depth_of(a, h, u), t = half_tanh(absolute(p) * depth);
    floats noise = (0.25f * a->scale) * t * xi;
    floats rate = noise * (1.0f - t * t); /* d (sigma epsilon) / d |p Delta| */
    mask saturated = above(depth, zero);
    if (a->scheme <= NAH) {
        ints d = direction(a, x);
        if (a->clip) {
            g = inside(a, leaky(a, h, u) + flip(noise * t, d), g);
        }
        /* Going deeper grows |Delta| by u' outwards, and d points outwards for alpha > 1, inwards otherwise. */
        floats outward = a->alpha > 1.0f ? rate : -rate;
        *gx = g * a->slope * pick(saturated, (1.0f - a->alpha) + outward * absolute(p), every(1.0f));
        *gp = g * flip(rate * depth, d ^ sign_bit(p));
        return;
    }
    floats open = inside(a, (x + noise * t) * a->slope + a->offset, g * a->slope);
    floats deeper = flip(every(a->slope), sign_bit(u - h));
    *gx = open * pick(saturated, 1.0f + rate * absolute(p) * deeper, every(1.0f));
    *gp = open * flip(rate * depth, sign_bit(p));
}

/* A block uses noise unless all its elements are strictly inside the linear part (NANI uses it everywhere). */
INLINE int wants_noise(const activation *a, const float *x) {
    if (!a->stochastic) return 0;
    if (a->scheme == NANI) return 1;
    for (int j = 0; j < BLOCK; j += LANES) {
        floats u = load(x + j) * a->slope + a->offset, one = every(1.0f), zero = every(0.0f);
        floats linear = pick(above(u, every(a->low)), pick(above(every(a->high), u), one, zero), zero);
        if (any(above(one, linear))) return 1;
    }
    return 0;
}

/* The 128 values of p that begin at `column` of the last dimension, which repeats: in place, or gathered into `room`. */
INLINE const float *p_of_block(const activation *a, const float *p, int64_t column, float *room) {
    if (column + BLOCK <= a->p_size) return p + column;
    for (int filled = 0; filled < BLOCK;) {
        int64_t left = a->p_size - column, run = left < BLOCK - filled ? left : BLOCK - filled;
        memcpy(room + filled, p + column, (size_t)run * sizeof(float));
        filled += (int)run;
        column = 0;
    }
    return room;
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
    column += BLOCK;
    return column < a->p_size ? column : column % a->p_size;
}

INLINE void noise_of_block(const activation *a, const float *x, int64_t begin, float xi[BLOCK]) {
    if (!wants_noise(a, x)) {
        for (int j = 0; j < BLOCK; j += LANES) store(xi + j, every(a->expectation));
        return;
    }
    normal_block(a->seed, (uint64_t)begin / BLOCK, xi);
    if (a->scheme == NAH)
        for (int j = 0; j < BLOCK; j += LANES) store(xi + j, absolute(load(xi + j)));
}

/* `first` is a multiple of 128; a short last block goes through padded copies. */
INLINE void forward_span(const activation *a, const float *x, const float *p, float *y, int64_t first, int64_t end) {
    float xi[BLOCK], p_room[BLOCK], x_copy[BLOCK], y_copy[BLOCK];
    const floats p_all = every(a->p_size ? p[0] : 1.0f);
    int64_t column = a->p_size > 1 ? first % a->p_size : 0;
    for (int64_t begin = first; begin < end; begin += BLOCK) {
        int count = end - begin < BLOCK ? (int)(end - begin) : BLOCK;
        const float *x_block = x + begin, *p_block = p;
        float *y_block = y + begin;
        if (count < BLOCK) {
            memset(x_copy, 0, sizeof x_copy);
            memcpy(x_copy, x_block, (size_t)count * sizeof(float));
            x_block = x_copy;
            y_block = y_copy;
        }
        noise_of_block(a, x_block, begin, xi);
        if (a->p_size > 1) p_block = p_of_block(a, p, column, p_room);
        for (int j = 0; j < BLOCK; j += LANES) {
            floats p_lanes = a->p_size > 1 ? load(p_block + j) : p_all;
            store(y_block + j, forward_lanes(a, load(x_block + j), p_lanes, load(xi + j)));
        }
        if (count < BLOCK) memcpy(y + begin, y_copy, (size_t)count * sizeof(float));
        if (a->p_size > 1) column = next_column(a, column);
    }
}

INLINE void backward_span(const activation *a, const float *g, const float *x, const float *p, float *gx,
                          float *partial, int64_t first, int64_t end) {
    float xi[BLOCK], p_room[BLOCK], gp_block[BLOCK];
    float x_copy[BLOCK], g_copy[BLOCK], gx_copy[BLOCK];
    const floats p_all = every(a->p_size ? p[0] : 1.0f);
    floats total = every(0.0f);
    int64_t column = a->p_size > 1 ? first % a->p_size : 0;
    for (int64_t begin = first; begin < end; begin += BLOCK) {
        int count = end - begin < BLOCK ? (int)(end - begin) : BLOCK;
        const float *x_block = x + begin, *g_block = g + begin, *p_block = p;
        float *gx_block = gx + begin;
        if (count < BLOCK) {
            memset(x_copy, 0, sizeof x_copy);
            memset(g_copy, 0, sizeof g_copy);
            memcpy(x_copy, x_block, (size_t)count * sizeof(float));
            memcpy(g_copy, g_block, (size_t)count * sizeof(float));
            x_block = x_copy;
            g_block = g_copy;
            gx_block = gx_copy;
        }
        noise_of_block(a, x_block, begin, xi);
        if (a->p_size > 1) p_block = p_of_block(a, p, column, p_room);
        for (int j = 0; j < BLOCK; j += LANES) {
            floats p_lanes = a->p_size > 1 ? load(p_block + j) : p_all, gx_lanes, gp_lanes;
            backward_lanes(a, load(g_block + j), load(x_block + j), p_lanes, load(xi + j), &gx_lanes, &gp_lanes);
            store(gx_block + j, gx_lanes);
            if (a->p_size > 1) store(gp_block + j, gp_lanes);
            else total += gp_lanes;
        }
        if (count < BLOCK) memcpy(gx + begin, gx_copy, (size_t)count * sizeof(float));
        if (a->p_size > 1) {
            add_gp(a, gp_block, column, count, partial);
            column = next_column(a, column);
        }
    }
    if (a->p_size == 1)
        for (int j = 0; j < LANES; j++) partial[0] += total[j];
}

/* One copy of `call`'s loops for each scheme, so that nothing is decided inside them: `s` has it as a constant. */
#define CASE(SCHEME, CLIP, call)                                                                                       \
    case 2 * (SCHEME) + (CLIP):                                                                                        \
        fixed.scheme = (SCHEME);                                                                                       \
        fixed.clip = (CLIP);                                                                                           \
        call;                                                                                                          \
        break;
#define SPECIALISED(a, call)                                                                                           \
    do {                                                                                                               \
        activation fixed = *(a);                                                                                       \
        const activation *s = &fixed;                                                                                  \
        switch (2 * fixed.scheme + fixed.clip) {                                                                       \
            CASE(NAN_SCHEME, 0, call)                                                                                  \
            CASE(NAN_SCHEME, 1, call)                                                                                  \
            CASE(NAH, 0, call)                                                                                         \
            CASE(NAH, 1, call)                                                                                         \
            CASE(NANI, 0, call)                                                                                        \
            CASE(NANIL, 0, call)                                                                                       \
            CASE(NANIS, 0, call)                                                                                       \
        }                                                                                                              \
    } while (0)

static void forward_chunk(const activation *a, const float *x, const float *p, float *y, int64_t first, int64_t end) {
    SPECIALISED(a, forward_span(s, x, p, y, first, end));
}

static void backward_chunk(const activation *a, const float *g, const float *x, const float *p, float *gx,
                           float *partial, int64_t first, int64_t end) {
    SPECIALISED(a, backward_span(s, g, x, p, gx, partial, first, end));
}

/* Elements a chunk: enough to keep a thread busy, and for a large p enough that the partial sums stay a small part. */
int64_t noisyact_activation_chunk(int64_t p_size) {
    int64_t chunk = 16 * p_size > 16384 ? 16 * p_size : 16384;
    return (chunk + BLOCK - 1) / BLOCK * BLOCK;
}

void noisyact_activation_forward(const activation *a, const float *x, const float *p, float *y, int threads) {
    int64_t chunk = noisyact_activation_chunk(1), chunks = (a->elements + chunk - 1) / chunk;
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (chunks > 1 && threads > 1)
    for (int64_t k = 0; k < chunks; k++) {
        int64_t end = (k + 1) * chunk < a->elements ? (k + 1) * chunk : a->elements;
        forward_chunk(a, x, p, y, k * chunk, end);
    }
}

/* `partial` holds p_size zeros for each chunk; gp receives their sum. */
void noisyact_activation_backward(const activation *a, const float *g, const float *x, const float *p, float *gx,
                                  float *gp, float *partial, int threads) {
    int64_t chunk = noisyact_activation_chunk(a->p_size), chunks = (a->elements + chunk - 1) / chunk;
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (chunks > 1 && threads > 1)
    for (int64_t k = 0; k < chunks; k++) {
        int64_t end = (k + 1) * chunk < a->elements ? (k + 1) * chunk : a->elements;
        backward_chunk(a, g, x, p, gx, partial + k * a->p_size, k * chunk, end);
    }
    for (int64_t i = 0; i < a->p_size; i++) {
        double sum = 0.0;
        for (int64_t k = 0; k < chunks; k++) sum += partial[k * a->p_size + i];
        gp[i] = (float)sum;
    }
}

/* The raw noise of elements 0 .. elements-1. */
void noisyact_normal(uint64_t seed, float *xi, int64_t elements) {
    for (int64_t begin = 0; begin < elements; begin += BLOCK) {
        float block[BLOCK];
        int64_t count = elements - begin < BLOCK ? elements - begin : BLOCK;
        normal_block(seed, (uint64_t)begin / BLOCK, block);
        memcpy(xi + begin, block, (size_t)count * sizeof(float));
    }
}
