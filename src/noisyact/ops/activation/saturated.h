/* The noisy activations whose linear part draws no noise: the elements outside it are gathered, computed without gaps
 * and put back.
 *
 * In normal input a third of the elements of a hard tanh saturates, but seldom none of 16 neighbours. Noise and phi take
 * several times as long as gathering. Every element's result has the same bits as without gathering. Other processors
 * than those with AVX-512 have no instruction for it.
 */
#ifndef NOISYACT_SATURATED_H
#define NOISYACT_SATURATED_H

#include "blocks.h"

#ifdef HAS_COMPRESS

#define SPAN (8 * BLOCK) /* elements: few enough for the first-level cache, and many for the last vector to matter less */
#define QUEUE (SPAN + LANES)
#define VECTORS (GROUP / LANES)
#define CROWDED (5 * SPAN / 8) /* elements outside the linear part from which on gathering them takes longer than not */

/* The elements of a span outside the linear part, one after the other. */
typedef struct {
    float x[QUEUE]; /* also receives the result; of 16-bit floats in backward: x in the high half, g in the low */
    float g[QUEUE], p[QUEUE];          /* of p if each feature has its own; it receives the gradient */
    float radius[QUEUE], angle[QUEUE]; /* the words from which Box-Muller makes the noise, which `radius` receives */
    uint64_t where[SPAN / GROUP];      /* one bit for each element */
    int count;
} __attribute__((aligned(64))) gathered;

/* At most SPAN elements from `begin` on. */
typedef struct {
    const void *x, *g;
    void *to;
    int64_t begin, column;
    int elements, count; /* `elements`: the next multiple of BLOCK */
} span;

/* Whether a call draws noise, and only outside the linear part. */
INLINE int gathers(const activation *a) {
    const int scheme = a->unit.scheme;
    return a->unit.stochastic && (scheme == NAN_SCHEME || scheme == NAH || scheme == NANIL || scheme == NANIS);
}

INLINE int64_t size_of(const activation *a) { return a->dtype == FLOAT32 ? sizeof(float) : sizeof(uint16_t); }

INLINE floats load_as(const int dtype, const void *from, int64_t at) {
    if (dtype == FLOAT32) return load((const float *)from + at);
    halves v = load_halves((const uint16_t *)from + at);
    return dtype == BFLOAT16 ? from_bfloat16(v) : from_float16(v);
}

INLINE void store_as(const int dtype, void *to, int64_t at, floats v) {
    if (dtype == FLOAT32) store((float *)to + at, v);
    else store_halves((uint16_t *)to + at, dtype == BFLOAT16 ? to_bfloat16(v) : to_float16(v));
}

/* x and g of 16-bit floats in one vector, so that they are gathered together. */
INLINE floats both_halves(const void *x, const void *g, int64_t at) {
    const halves high = load_halves((const uint16_t *)x + at), low = load_halves((const uint16_t *)g + at);
    return (floats)(widened(high) << 16 | widened(low));
}

INLINE void gather(const activation *a, const float *p, const span *s, gathered *q, const int dtype,
                   const int backward) {
    const unit own = a->unit;
    const void *x = s->x, *g = s->g;
    const uint64_t seed = a->seed;
    int64_t column = s->column;
    int count = 0;
    for (int b = 0; b < s->elements; b += BLOCK, column = next_column(a, column)) {
        uint64_t *where = q->where + b / GROUP;
        for (int k = 0; k < STREAMS; k++) {
            uint64_t inside = 0;
            for (int l = 0; l < VECTORS; l++) {
                const floats u = load_as(dtype, x, b + k * GROUP + l * LANES) * own.slope + own.offset;
                inside |= (uint64_t)(mask)(above(every(own.high), u) & above(u, every(own.low))) << (l * LANES);
            }
            where[k] = ~inside;
        }
        if ((where[0] | where[1]) == 0) continue;
        float p_buffer[BLOCK];
        const float *p_block = a->p_size > 1 ? p_of_block(a, p, column, p_buffer) : NULL;
        words w[STREAMS][4];
        block_words(seed, (uint64_t)(s->begin + b) / BLOCK, 0, w);
        for (int v = 0; v < BLOCK / LANES; v++) {
            const int k = v / VECTORS, l = v % VECTORS;
            const mask here = (mask)(where[k] >> (l * LANES));
            const int64_t at = b + v * LANES;
            if (backward && dtype != FLOAT32) {
                store(q->x + count, compress(here, both_halves(x, g, at)));
            } else {
                store(q->x + count, compress(here, load_as(dtype, x, at)));
                if (backward) store(q->g + count, compress(here, load_as(dtype, g, at)));
            }
            if (p_block) store(q->p + count, compress(here, load(p_block + v * LANES)));
            store(q->radius + count, compress(here, (floats)w[k][l & ~1]));
            store(q->angle + count, compress(here, (floats)(w[k][l | 1] + (l & 1 ? 0 : QUARTER_TURN))));
            count += number(here);
        }
    }
    /* The lanes behind the last element must not add to the gradient of p. */
    q->count = count;
    store(q->x + count, every(0.0f));
    if (backward && dtype == FLOAT32) store(q->g + count, every(0.0f));
    if (a->p_size > 1) store(q->p + count, every(0.0f));
}

/* Put the results back between those of the linear part, `source` slope + offset. */
INLINE void put_back(const void *source, float slope, float offset, const span *s, gathered *q, const int dtype) {
    const float *from = q->x;
    void *to = s->to;
    for (int at = 0; at < s->elements; at += LANES) {
        const mask here = (mask)(q->where[at / GROUP] >> (at % GROUP));
        store_as(dtype, to, at, expand(here, load(from), load_as(dtype, source, at) * slope + offset));
        from += number(here);
    }
}

/* The same for 16-bit floats where the slope is 1 and the offset 0 or -0: the linear part needs no conversion. Adding 0
 * would turn -0 into 0. */
INLINE void put_between(const void *source, float offset, const span *s, gathered *q, const int dtype) {
    for (int j = 0; j < q->count; j += LANES) {
        const floats v = load(q->x + j);
        store(q->x + j, (floats)(dtype == BFLOAT16 ? bfloat16_bits(v) : widened(to_float16(v))));
    }
    const float *from = q->x;
    const __m256i cleared = _mm256_set1_epi16(signbit(offset) ? 0 : INT16_MIN);
    for (int at = 0; at < s->elements; at += LANES) {
        const mask here = (mask)(q->where[at / GROUP] >> (at % GROUP));
        const __m256i others = (__m256i)load_halves((const uint16_t *)source + at);
        const __m256i linear = _mm256_maskz_mov_epi16(_mm256_cmpneq_epi16_mask(others, cleared), others);
        const __m512i dense = (__m512i)expand(here, load(from), every(0.0f));
        store_halves((uint16_t *)s->to + at, (halves)_mm512_mask_cvtepi32_epi16(linear, here, dense));
        from += number(here);
    }
}

/* One copy of these functions for each dtype, shared by all schemes. */
#define OF_DTYPE(NAME, DTYPE)                                                                                          \
    OUTLINE void gather_##NAME(const activation *a, const float *p, const span *s, gathered *q) {                      \
        if (s->g) gather(a, p, s, q, DTYPE, 1);                                                                        \
        else gather(a, p, s, q, DTYPE, 0);                                                                             \
    }                                                                                                                  \
    OUTLINE void put_##NAME(const void *source, float slope, float offset, const span *s, gathered *q) {               \
        if (DTYPE != FLOAT32 && slope == 1.0f && offset == 0.0f) put_between(source, offset, s, q, DTYPE);             \
        else put_back(source, slope, offset, s, q, DTYPE);                                                             \
    }
OF_DTYPE(float32, FLOAT32)
OF_DTYPE(bfloat16, BFLOAT16)
OF_DTYPE(float16, FLOAT16)

INLINE void gather_span(const activation *a, const float *p, const span *s, gathered *q) {
    if (a->dtype == FLOAT32) gather_float32(a, p, s, q);
    else if (a->dtype == BFLOAT16) gather_bfloat16(a, p, s, q);
    else gather_float16(a, p, s, q);
}

INLINE void put_span(const activation *a, const void *source, float offset, const span *s, gathered *q) {
    if (a->dtype == FLOAT32) put_float32(source, a->unit.slope, offset, s, q);
    else if (a->dtype == BFLOAT16) put_bfloat16(source, a->unit.slope, offset, s, q);
    else put_float16(source, a->unit.slope, offset, s, q);
}

/* The noise of the gathered elements, to `radius`. In the loop of phi it would take longer: the instructions that wait
 * for their operands would be more than the processor keeps. */
OUTLINE void make_noise(gathered *q) {
    for (int j = 0; j < q->count; j += LANES)
        store(q->radius + j, radius_of((words)load(q->radius + j)) * sine_of((words)load(q->angle + j)));
}

INLINE void forward_gathered(const activation *a, const float *p, const span *s, gathered *q) {
    gather_span(a, p, s, q);
    make_noise(q);
    const floats one_p = every(a->p_size == 1 ? p[0] : 1.0f);
    for (int j = 0; j < q->count; j += LANES) {
        const floats own_p = a->p_size > 1 ? load(q->p + j) : one_p;
        store(q->x + j, phi_forward(&a->unit, load(q->x + j), own_p, load(q->radius + j)));
    }
    put_span(a, s->x, a->unit.offset, s, q);
}

/* Add the gathered gradients of p to those of the features. */
OUTLINE void add_gathered(const activation *a, const span *s, const gathered *q, float *partial) {
    const float *from = q->p;
    int64_t column = s->column;
    for (int b = 0; b < s->elements; b += BLOCK, column = next_column(a, column)) {
        float gp[BLOCK];
        const int count = s->count - b < BLOCK ? s->count - b : BLOCK, contiguous = column + BLOCK <= a->p_size;
        for (int j = 0; j < BLOCK; j += LANES) {
            const mask here = (mask)(q->where[(b + j) / GROUP] >> (j % GROUP));
            const floats added = expand(here, load(from), every(0.0f));
            from += number(here);
            if (contiguous) store(partial + column + j, load(partial + column + j) + added);
            else store(gp + j, added);
        }
        if (!contiguous) add_gp(a, gp, column, count, partial);
    }
}

INLINE void backward_gathered(const activation *a, const float *p, const span *s, gathered *q, floats *total,
                              float *partial) {
    gather_span(a, p, s, q);
    make_noise(q);
    const floats one_p = every(a->p_size == 1 ? p[0] : 1.0f);
    for (int j = 0; j < q->count; j += LANES) {
        const words both = (words)load(q->x + j);
        floats own_p = a->p_size > 1 ? load(q->p + j) : one_p, g, x, gx, gp;
        if (a->dtype == FLOAT32) {
            x = (floats)both;
            g = load(q->g + j);
        } else if (a->dtype == BFLOAT16) {
            x = (floats)(both & 0xffff0000u);
            g = (floats)(both << 16);
        } else {
            x = from_float16(narrowed(both >> 16));
            g = from_float16(narrowed(both));
        }
        phi_backward(&a->unit, g, x, own_p, load(q->radius + j), &gx, &gp);
        store(q->x + j, gx);
        if (a->p_size > 1) store(q->p + j, gp);
        else *total += gp;
    }
    put_span(a, s->g, -0.0f, s, q);
    if (a->p_size > 1) add_gathered(a, s, q, partial);
}

/* Elements begin to end - 1, at most SPAN. If the last block is short: copies in `buffers` that end with zeros. */
INLINE span span_of(const activation *a, const void *g, const void *x, void *to, int64_t begin, int64_t end,
                    char *buffers) {
    const int64_t size = size_of(a), column = a->p_size > 1 ? begin % a->p_size : 0;
    const int count = end - begin < SPAN ? (int)(end - begin) : SPAN, elements = (count + BLOCK - 1) / BLOCK * BLOCK;
    const char *own_x = (const char *)x + begin * size, *own_g = g ? (const char *)g + begin * size : NULL;
    if (count == elements) return (span){own_x, own_g, (char *)to + begin * size, begin, column, elements, count};
    memset(buffers, 0, 2 * SPAN * sizeof(float));
    memcpy(buffers, own_x, (size_t)(count * size));
    if (g) own_g = memcpy(buffers + SPAN * sizeof(float), own_g, (size_t)(count * size));
    return (span){buffers, own_g, buffers + 2 * SPAN * sizeof(float), begin, column, elements, count};
}

/* Copy the results of a short block from the buffer. */
INLINE void keep_short(const activation *a, const span *s, void *to) {
    if (s->count < s->elements) memcpy((char *)to + s->begin * size_of(a), s->to, (size_t)(s->count * size_of(a)));
}

/* These return where they have ended: at once if a call does not gather, and after a crowded first span. */
INLINE int64_t gathered_forward(const activation *a, const void *x, const float *p, void *y, int64_t first,
                                int64_t end) {
    gathered q;
    char buffers[3 * SPAN * sizeof(float)];
    for (int64_t begin = first; begin < end && gathers(a); begin += SPAN) {
        const span s = span_of(a, NULL, x, y, begin, end, buffers);
        forward_gathered(a, p, &s, &q);
        keep_short(a, &s, y);
        if (begin == first && q.count > CROWDED) return begin + s.count;
    }
    return gathers(a) ? end : first;
}

INLINE int64_t gathered_backward(const activation *a, const void *g, const void *x, const float *p, void *gx,
                                 float *partial, int64_t first, int64_t end) {
    gathered q;
    char buffers[3 * SPAN * sizeof(float)];
    floats total = every(0.0f);
    /* With x, g and p in float32 beside each other the caches are too small: it would take longer than all elements. */
    const int fits = a->dtype != FLOAT32 || a->p_size <= 1;
    int64_t done = gathers(a) && fits ? end : first;
    for (int64_t begin = first; begin < done; begin += SPAN) {
        const span s = span_of(a, g, x, gx, begin, end, buffers);
        backward_gathered(a, p, &s, &q, &total, partial);
        keep_short(a, &s, gx);
        if (begin == first && q.count > CROWDED) done = begin + s.count;
    }
    if (a->p_size == 1)
        for (int j = 0; j < LANES; j++) partial[0] += total[j];
    return done;
}

#else

INLINE int64_t gathered_forward(const activation *a, const void *x, const float *p, void *y, int64_t first,
                                int64_t end) {
    (void)a, (void)x, (void)p, (void)y, (void)end;
    return first;
}
INLINE int64_t gathered_backward(const activation *a, const void *g, const void *x, const float *p, void *gx,
                                 float *partial, int64_t first, int64_t end) {
    (void)a, (void)g, (void)x, (void)p, (void)gx, (void)partial, (void)end;
    return first;
}

#endif
#endif
