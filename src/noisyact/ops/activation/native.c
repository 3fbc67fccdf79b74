/* The noisy activation and its gradients on a CPU: one pass over memory, noise regenerated from the seed.
 *
 * Tensors of 16-bit floats are converted in blocks to float32, in which all is computed, and results are rounded once.
 *
 * README.md derives the formulas; the results must equal reference.py. The notation is the paper's. The chunk size
 * depends only on the shapes, and the partial gradients of p are added in the order of the chunks, so the results are
 * bit-identical for every number of threads.
 */
#include "saturated.h"

/* Whether phi equals u in a whole block, which then needs no noise. */
INLINE int linear_block(const unit *a, const float *x) {
    for (int j = 0; j < BLOCK; j += LANES)
        if (!linear(a, load(x + j) * a->slope + a->offset)) return 0;
    return 1;
}

INLINE void noise_of_block(const activation *a, int64_t begin, float xi[BLOCK]) {
    if (a->unit.stochastic) {
        normal_block(a->seed, (uint64_t)begin / BLOCK, xi);
        return;
    }
    for (int j = 0; j < BLOCK; j += LANES) store(xi + j, every(a->unit.expectation));
}

INLINE void forward_block(const activation *a, const float *x, const float *p, int64_t begin, int64_t column,
                          float *y) {
    float xi[BLOCK], p_buffer[BLOCK];
    if (linear_block(&a->unit, x)) {
        for (int j = 0; j < BLOCK; j += LANES) store(y + j, load(x + j) * a->unit.slope + a->unit.offset);
        return;
    }
    noise_of_block(a, begin, xi);
    const floats one_p = every(a->p_size == 1 ? p[0] : 1.0f);
    if (a->p_size > 1) p = p_of_block(a, p, column, p_buffer);
    for (int j = 0; j < BLOCK; j += LANES)
        store(y + j, phi_forward(&a->unit, load(x + j), a->p_size > 1 ? load(p + j) : one_p, load(xi + j)));
}

/* The gradient of a single p is added to `total`, the gradient of several to `partial`. */
INLINE void backward_block(const activation *a, const float *g, const float *x, const float *p, int64_t begin,
                           int64_t column, int count, float *gx, floats *total, float *partial) {
    float xi[BLOCK], p_buffer[BLOCK], gp[BLOCK];
    if (linear_block(&a->unit, x)) {
        for (int j = 0; j < BLOCK; j += LANES) store(gx + j, load(g + j) * a->unit.slope);
        return;
    }
    noise_of_block(a, begin, xi);
    const floats one_p = every(a->p_size == 1 ? p[0] : 1.0f);
    if (a->p_size > 1) p = p_of_block(a, p, column, p_buffer);
    for (int j = 0; j < BLOCK; j += LANES) {
        floats p_lanes = a->p_size > 1 ? load(p + j) : one_p, gx_lanes, gp_lanes;
        phi_backward(&a->unit, load(g + j), load(x + j), p_lanes, load(xi + j), &gx_lanes, &gp_lanes);
        store(gx + j, gx_lanes);
        if (a->p_size > 1) store(gp + j, gp_lanes);
        else *total += gp_lanes;
    }
    if (a->p_size > 1) add_gp(a, gp, column, count, partial);
}

/* The block of a tensor from `begin` on as float32: a pointer into the tensor, or a copy in `buffer`. The copy of a
 * short last block ends with zeros. */
INLINE const float *block_of(const activation *a, const void *tensor, int64_t begin, int count, float *buffer) {
    if (a->dtype == FLOAT32) {
        const float *from = (const float *)tensor + begin;
        if (count == BLOCK) return from;
        memset(buffer, 0, BLOCK * sizeof(float));
        memcpy(buffer, from, (size_t)count * sizeof(float));
        return buffer;
    }
    const uint16_t *from = (const uint16_t *)tensor + begin;
    uint16_t padded[BLOCK] = {0};
    if (count < BLOCK) from = memcpy(padded, from, (size_t)count * sizeof(uint16_t));
    widen(a->dtype, from, buffer, BLOCK);
    return buffer;
}

/* Where a block of results is computed: in the tensor, or in `buffer`, from which put_block converts or cuts it. */
INLINE float *room_of(const activation *a, void *tensor, int64_t begin, int count, float *buffer) {
    return a->dtype == FLOAT32 && count == BLOCK ? (float *)tensor + begin : buffer;
}

INLINE void put_block(const activation *a, const float *from, void *tensor, int64_t begin, int count) {
    if (a->dtype == FLOAT32) {
        if (count < BLOCK) memcpy((float *)tensor + begin, from, (size_t)count * sizeof(float));
        return;
    }
    uint16_t *to = (uint16_t *)tensor + begin, padded[BLOCK];
    narrow(a->dtype, from, count < BLOCK ? padded : to, BLOCK);
    if (count < BLOCK) memcpy(to, padded, (size_t)count * sizeof(uint16_t));
}

INLINE int count_of(int64_t begin, int64_t end) { return end - begin < BLOCK ? (int)(end - begin) : BLOCK; }

/* `first` is a multiple of 128. */
INLINE void forward_span(const activation *a, const void *x, const float *p, void *y, int64_t first, int64_t end) {
    float x_buffer[BLOCK], y_buffer[BLOCK];
    int64_t column = a->p_size > 1 ? first % a->p_size : 0;
    for (int64_t begin = first; begin < end; begin += BLOCK, column = next_column(a, column)) {
        int count = count_of(begin, end);
        float *to = room_of(a, y, begin, count, y_buffer);
        forward_block(a, block_of(a, x, begin, count, x_buffer), p, begin, column, to);
        put_block(a, to, y, begin, count);
    }
}

INLINE void backward_span(const activation *a, const void *g, const void *x, const float *p, void *gx, float *partial,
                          int64_t first, int64_t end) {
    float g_buffer[BLOCK], x_buffer[BLOCK], gx_buffer[BLOCK];
    floats total = every(0.0f);
    int64_t column = a->p_size > 1 ? first % a->p_size : 0;
    for (int64_t begin = first; begin < end; begin += BLOCK, column = next_column(a, column)) {
        int count = count_of(begin, end);
        const float *g_block = block_of(a, g, begin, count, g_buffer), *x_block = block_of(a, x, begin, count, x_buffer);
        float *to = room_of(a, gx, begin, count, gx_buffer);
        backward_block(a, g_block, x_block, p, begin, column, count, to, &total, partial);
        put_block(a, to, gx, begin, count);
    }
    if (a->p_size == 1)
        for (int j = 0; j < LANES; j++) partial[0] += total[j];
}

/* One copy of each kernel for each scheme, which is then a constant, so that its loops do not branch on it. */
#define OF_ALL_SCHEMES(X)                                                                                              \
    X(NAN_SCHEME, 0)                                                                                                   \
    X(NAN_SCHEME, 1)                                                                                                   \
    X(NAH, 0)                                                                                                          \
    X(NAH, 1)                                                                                                          \
    X(NANI, 0)                                                                                                         \
    X(NANIL, 0)                                                                                                        \
    X(NANIS, 0)                                                                                                        \
    X(NANI_MEAN, 0)                                                                                                    \
    X(NANIL_MEAN, 0)                                                                                                   \
    X(NANIS_MEAN, 0)                                                                                                   \
    X(STRAIGHT_THROUGH, 0)                                                                                             \
    X(SLOPE, 0)                                                                                                        \
    X(LOGISTIC_GATE, 0)                                                                                                \
    X(NORMAL_GATE, 0)

INLINE activation specialised(const activation *a, const int scheme, const int clip) {
    activation own = *a;
    own.unit.scheme = scheme;
    own.unit.clip = clip;
    own.unit.function = PIECEWISE;
    return own;
}

#define CHUNKS(SCHEME, CLIP)                                                                                           \
    OUTLINE int64_t gathered_forward_##SCHEME##_##CLIP(const activation *a, const void *x, const float *p, void *y,    \
                                                       int64_t first, int64_t end) {                                   \
        const activation own = specialised(a, SCHEME, CLIP);                                                           \
        return gathered_forward(&own, x, p, y, first, end);                                                            \
    }                                                                                                                  \
    OUTLINE void forward_##SCHEME##_##CLIP(const activation *a, const void *x, const float *p, void *y, int64_t first, \
                                           int64_t end) {                                                              \
        const activation own = specialised(a, SCHEME, CLIP);                                                           \
        first = gathered_forward_##SCHEME##_##CLIP(a, x, p, y, first, end);                                            \
        forward_span(&own, x, p, y, first, end);                                                                       \
    }                                                                                                                  \
    OUTLINE int64_t gathered_backward_##SCHEME##_##CLIP(const activation *a, const void *g, const void *x,             \
                                                        const float *p, void *gx, float *partial, int64_t first,       \
                                                        int64_t end) {                                                 \
        const activation own = specialised(a, SCHEME, CLIP);                                                           \
        return gathered_backward(&own, g, x, p, gx, partial, first, end);                                              \
    }                                                                                                                  \
    OUTLINE void backward_##SCHEME##_##CLIP(const activation *a, const void *g, const void *x, const float *p,         \
                                            void *gx, float *partial, int64_t first, int64_t end) {                    \
        const activation own = specialised(a, SCHEME, CLIP);                                                           \
        first = gathered_backward_##SCHEME##_##CLIP(a, g, x, p, gx, partial, first, end);                              \
        backward_span(&own, g, x, p, gx, partial, first, end);                                                         \
    }
OF_ALL_SCHEMES(CHUNKS)

#define FORWARD_CASE(SCHEME, CLIP) \
    case 2 * (SCHEME) + (CLIP): forward_##SCHEME##_##CLIP(a, x, p, y, first, end); break;
#define BACKWARD_CASE(SCHEME, CLIP) \
    case 2 * (SCHEME) + (CLIP): backward_##SCHEME##_##CLIP(a, g, x, p, gx, partial, first, end); break;

static void forward_chunk(const activation *a, const void *x, const float *p, void *y, int64_t first, int64_t end) {
    switch (2 * a->unit.scheme + a->unit.clip) { OF_ALL_SCHEMES(FORWARD_CASE) }
}

static void backward_chunk(const activation *a, const void *g, const void *x, const float *p, void *gx, float *partial,
                           int64_t first, int64_t end) {
    switch (2 * a->unit.scheme + a->unit.clip) { OF_ALL_SCHEMES(BACKWARD_CASE) }
}

/* The number of elements in a chunk: enough work for a thread and, for a large p, to outweigh the partial sums. */
int64_t noisyact_activation_chunk(int64_t p_size) {
    int64_t chunk = 64 * p_size > 16384 ? 64 * p_size : 16384;
    return (chunk + BLOCK - 1) / BLOCK * BLOCK;
}

void noisyact_activation_forward(const activation *a, const void *x, const float *p, void *y, int threads) {
    int64_t chunk = noisyact_activation_chunk(1), chunks = (a->elements + chunk - 1) / chunk;
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (chunks > 1 && threads > 1)
    for (int64_t k = 0; k < chunks; k++) {
        int64_t end = (k + 1) * chunk < a->elements ? (k + 1) * chunk : a->elements;
        forward_chunk(a, x, p, y, k * chunk, end);
    }
}

/* `partial` holds p_size zeros for each chunk; gp receives the sum over the chunks. */
void noisyact_activation_backward(const activation *a, const void *g, const void *x, const float *p, void *gx, float *gp,
                                  float *partial, int threads) {
    int64_t chunk = noisyact_activation_chunk(a->p_size), chunks = (a->elements + chunk - 1) / chunk;
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (chunks > 1 && threads > 1)
    for (int64_t k = 0; k < chunks; k++) {
        int64_t end = (k + 1) * chunk < a->elements ? (k + 1) * chunk : a->elements;
        backward_chunk(a, g, x, p, gx, partial + k * a->p_size, k * chunk, end);
    }
    for (int64_t first = 0; first < a->p_size; first += BLOCK) {
        int64_t count = a->p_size - first < BLOCK ? a->p_size - first : BLOCK;
        double sums[BLOCK] = {0};
        for (int64_t k = 0; k < chunks; k++)
            for (int64_t i = 0; i < count; i++) sums[i] += partial[k * a->p_size + first + i];
        for (int64_t i = 0; i < count; i++) gp[first + i] = (float)sums[i];
    }
}

/* The noise xi of elements 0 to elements - 1. */
void noisyact_normal(uint64_t seed, float *xi, int64_t elements) {
    for (int64_t begin = 0; begin < elements; begin += BLOCK) {
        float block[BLOCK];
        int64_t count = elements - begin < BLOCK ? elements - begin : BLOCK;
        normal_block(seed, (uint64_t)begin / BLOCK, block);
        memcpy(xi + begin, block, (size_t)count * sizeof(float));
    }
}
