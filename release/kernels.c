/* Runs the kernels on made-up numbers and prints their results, to compare processors and systems; see emulated.py. */
#include <stdio.h>

#include "../src/noisyact/ops/native/memory.h"
#include "../src/noisyact/ops/recurrent/cpu/layer.h"

typedef struct {
    const float *left, *right;
    float *out;
    int64_t rows, columns, depth, left_row, left_k, right_k, right_column;
} matmul;

void noisyact_normal(uint64_t seed, float *xi, int64_t elements);
int noisyact_matmul(const matmul *given, int threads);
int noisyact_recurrent_forward(const layer *given, const weights *w, const rules *s, const float *x, int64_t size,
                               float *packed, float *gates, float *extra, float *m, float *h, const float *h0,
                               const float *c0, int threads);
int noisyact_recurrent_backward(const layer *given, const weights *w, const rules *s, float *packed,
                                const float *gates, const float *extra, const float *h, const float *h0,
                                const float *c0, const float *dh, float *carry, float *dgates, float *sums, float *dh0,
                                float *dh_sum, int threads);

static float *numbers(int64_t count, uint32_t seed, float size) {
    float *made = aligned_memory((size_t)(count + LANES) * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        made[i] = ((float)(seed >> 8) / 8388608.0f - 1.0f) * size;
    }
    return made;
}

static void show(const char *name, const float *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) printf("%s %.9g\n", name, values[i]);
}

static void show_layer(const char *name, int kind, int gates, int nonlinearities, int scheme) {
    enum { STEPS = 5, BATCH = 7, HIDDEN = 19, INPUT = 11, ROWS_ALL = STEPS * BATCH };
    int64_t sizes[STEPS], offsets[STEPS];
    for (int t = 0; t < STEPS; t++) sizes[t] = BATCH, offsets[t] = t * BATCH;
    const unit gate = {.scheme = scheme, .stochastic = 1, .alpha = 1.15f, .scale = 0.5f, .slope = 0.25f,
                       .offset = 0.5f, .low = 0.0f, .high = 1.0f};
    const unit state = {.scheme = scheme, .stochastic = 1, .alpha = 1.15f, .scale = 0.5f, .slope = 1.0f, .low = -1.0f,
                        .high = 1.0f};
    const layer l = {.cell = {.kind = kind, .gates = gates, .nonlinearities = nonlinearities, .gate = gate,
                              .state = state, .seed = 1234567890123u, .hidden = HIDDEN},
                     .steps = STEPS, .batch = BATCH, .sizes = sizes, .offsets = offsets, .keep = 1, .output = HIDDEN};
    const int64_t width = width_of(&l.cell), large = 100000;
    const weights w = {.w_ih = numbers(gates * HIDDEN * INPUT, 1, 0.8f), .w_hh = numbers(gates * HIDDEN * HIDDEN, 2, 0.8f),
                       .b_ih = numbers(gates * HIDDEN, 3, 0.5f), .b_hh = numbers(gates * HIDDEN, 4, 0.5f),
                       .p = numbers(nonlinearities * HIDDEN, 5, 1.0f)};
    float *x = numbers(ROWS_ALL * INPUT, 6, 1.5f), *packed = numbers(large, 7, 0.0f), *dh = numbers(ROWS_ALL * HIDDEN, 8, 1.0f);
    float *made = numbers(ROWS_ALL * gates * HIDDEN, 9, 0.0f), *extra = numbers(ROWS_ALL * HIDDEN, 9, 0.0f);
    float *h = numbers(ROWS_ALL * HIDDEN, 9, 0.0f), *carry = numbers(BATCH * HIDDEN, 9, 0.0f);
    float *dgates = numbers(ROWS_ALL * width, 9, 0.0f), *sums = numbers(nonlinearities * HIDDEN + width, 9, 0.0f);
    float *dh0 = numbers(BATCH * HIDDEN, 9, 0.0f), *h0 = numbers(BATCH * HIDDEN, 10, 0.5f);
    float *c0 = kind == LSTM ? numbers(BATCH * HIDDEN, 11, 0.5f) : NULL;
    if (noisyact_recurrent_forward(&l, &w, NULL, x, INPUT, packed, made, extra, NULL, h, h0, c0, 1)) printf("no memory\n");
    show(name, h, ROWS_ALL * HIDDEN);
    if (noisyact_recurrent_backward(&l, &w, NULL, packed, made, extra, h, h0, c0, dh, carry, dgates, sums, dh0, NULL, 1))
        printf("no memory\n");
    show(name, dgates, ROWS_ALL * width);
    show(name, sums, nonlinearities * HIDDEN + width);
    show(name, dh0, BATCH * HIDDEN);
}

int main(void) {
    float *xi = numbers(1000, 0, 0.0f), *out = numbers(13 * 37, 0, 0.0f);
    noisyact_normal(42, xi, 1000);
    show("normal", xi, 1000);
    matmul product = {numbers(13 * 51, 1, 1.0f), numbers(51 * 37, 2, 1.0f), out, 13, 37, 51, 51, 1, 37, 1};
    if (noisyact_matmul(&product, 1)) printf("no memory\n");
    show("matmul", out, 13 * 37);
    show_layer("lstm", LSTM, 4, 5, NAH);
    show_layer("gru", GRU, 3, 3, NAN_SCHEME);
    show_layer("rnn", RNN, 1, 1, NANIL);
    return 0;
}
