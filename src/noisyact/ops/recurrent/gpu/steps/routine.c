/* The steps of a recurrent layer on a GPU: the same products and launches at every step, in other rows.
 *
 * The host calls them in a row, so that it is ahead of the GPU. The functions of CUDA are called by their addresses, so
 * that neither its headers nor its libraries are needed to compile this. routine.py has the same loop in Python. */
#include <stdint.h>
#include <string.h>

enum { NUMBERS = 7, MOST_PARAMETERS = 64, NO_TRANSPOSITION = 0, TRANSPOSITION = 1, DEFAULT_ALGORITHM = 99 };

/* The rows of a tensor from the one that two numbers of a position add up to; -1 stands for none. */
struct place {
    char *base;
    int64_t row_bytes;
    int32_t begins[2];
};

/* In rows whose number is the difference of two numbers of a position: a product, to = of w or to += of w, or a launch. */
struct operation {
    int32_t total, less, is_launch, adds;
    struct place to, of;
    const void *w;
    int64_t inner, columns, to_width, of_width, w_width;
    int32_t w_is_transposed, rows_of_program, across, threads, shared, parameters, first;
    void *function;
    uint64_t values[MOST_PARAMETERS]; /* of the parameters; those of the position follow the first ones */
};

typedef int multiply(void *, int, int, int, int, int, const void *, const void *, int, int, const void *, int, int,
                     const void *, void *, int, int, int, int);
typedef int launch(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

/* cublasGemmEx with its handle, cuLaunchKernel with its stream, and CUDA's names of the dtype and of that of sums. */
struct device {
    multiply *multiply;
    launch *launch;
    void *handle, *stream;
    int32_t dtype, sums, doubles;
};

static int64_t number(const int32_t *position, int32_t which) { return which < 0 ? 0 : position[which]; }

static char *address(const struct place *place, const int32_t *position) {
    return place->base + place->row_bytes * (number(position, place->begins[0]) + number(position, place->begins[1]));
}

/* cuBLAS stores columns one after the other, so for it every matrix is transposed: to' = w' of'. */
static int product(const struct device *device, const struct operation *o, const int32_t *position, int64_t rows) {
    const double one = 1.0, zero = 0.0;
    const float one_f = 1.0f, zero_f = 0.0f;
    const void *alpha = device->doubles ? (const void *)&one : &one_f;
    const void *beta = o->adds ? alpha : device->doubles ? (const void *)&zero : &zero_f;
    return device->multiply(device->handle, o->w_is_transposed ? TRANSPOSITION : NO_TRANSPOSITION, NO_TRANSPOSITION,
                            (int)o->columns, (int)rows, (int)o->inner, alpha, o->w, device->dtype, (int)o->w_width,
                            address(&o->of, position), device->dtype, (int)o->of_width, beta, address(&o->to, position),
                            device->dtype, (int)o->to_width, device->sums, DEFAULT_ALGORITHM);
}

static int started(const struct device *device, struct operation *o, const int32_t *position, int64_t rows) {
    void *parameters[MOST_PARAMETERS];
    for (int32_t i = 0; i < o->parameters; i++) parameters[i] = &o->values[i];
    for (int32_t i = 0; i < NUMBERS; i++) memcpy(&o->values[o->first + i], &position[i], sizeof(int32_t));
    unsigned programs = (unsigned)((rows + o->rows_of_program - 1) / o->rows_of_program);
    return device->launch(o->function, programs, (unsigned)o->across, 1, (unsigned)o->threads, 1, 1,
                          (unsigned)o->shared, device->stream, parameters, NULL);
}

/* Call the operations of all steps. Returns 0, or the status of cuBLAS, or minus that of a launch. */
int noisyact_gpu_routine(const struct device *device, struct operation *operations, const int32_t *positions,
                         int64_t steps, int count) {
    for (int64_t step = 0; step < steps; step++, positions += NUMBERS) {
        for (int i = 0; i < count; i++) {
            struct operation *o = &operations[i];
            int64_t rows = number(positions, o->total) - number(positions, o->less);
            if (rows <= 0) continue;
            int status = o->is_launch ? -started(device, o, positions, rows) : product(device, o, positions, rows);
            if (status) return status;
        }
    }
    return 0;
}
