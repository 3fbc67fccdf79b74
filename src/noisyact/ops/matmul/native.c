/* out = left right with the same inner loop as the recurrent product.
 *
 * The products over all steps take most of a recurrent layer's time. torch.mm is up to 5 % slower on an AMD EPYC, and
 * its rounding may depend on the number of threads.
 */
#include "../native/gemm.h"
#include "../native/memory.h"
#include "../native/threads.h"

#define DEPTH 768 /* of a block: 4 vectors of this depth stay in the second-level cache for all rows */

typedef struct {
    const real *left, *right;
    real *out;
    int64_t rows, columns, depth;
    int64_t left_row, left_k;      /* left[r][k] = left[r * left_row + k * left_k] */
    int64_t right_k, right_column; /* right[k][c] = right[k * right_k + c * right_column] */
} matmul;

/* Pack columns first to first + count - 1 of rows k0 to k0 + depth - 1 of the right factor as [k][vector][lane], with
 * zeros past the end. The last loop goes lane by lane, so that a transposed factor is read along its rows. */
static void pack_right(const matmul *p, int64_t k0, int64_t depth, int64_t first, int64_t count, real *packed) {
    int64_t present = p->columns - first < count ? p->columns - first : count;
    if (p->right_column == 1) {
        for (int64_t k = 0; k < depth; k++, packed += count) {
            memcpy(packed, p->right + (k0 + k) * p->right_k + first, (size_t)present * sizeof(real));
            memset(packed + present, 0, (size_t)(count - present) * sizeof(real));
        }
        return;
    }
    for (int64_t j = 0; j < count; j++) {
        const real *column = p->right + (first + j) * p->right_column + k0 * p->right_k;
        for (int64_t k = 0; k < depth; k++) packed[k * count + j] = j < present ? column[k * p->right_k] : 0.0f;
    }
}

/* Whether the left factor is transposed with so large a power of two between its rows that the elements which a product
 * reads share a few places of the caches and displace each other. Then it is worth a copy. */
static int left_collides(const matmul *p) {
    return p->left_row == 1 && p->left_k % 256 == 0 && p->depth >= 64 && p->columns >= 64;
}

/* Copy a transposed left factor row by row, with zeros up to `stride` elements. */
static void copy_left(const matmul *p, real *copy, int64_t stride, int threads) {
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t k = 0; k < p->depth; k += LANES) {
        int present = p->depth - k < LANES ? (int)(p->depth - k) : LANES;
        transpose_rows(p->left + k * p->left_k, p->left_k, present, p->rows, copy + k, stride);
    }
}

static void store_columns(real *out, int64_t present, reals v) {
    if (present >= LANES) store(out, v);
    else if (present > 0) store_first(out, (int)present, v);
}

static reals load_columns(const real *from, int64_t present) {
    return present >= LANES ? load(from) : load_first(from, present > 0 ? (int)present : 0);
}

/* Rows begin to end - 1 of one group of columns, one block of the depth at a time. */
static void multiply_group(const matmul *p, int64_t begin, int64_t end, int first_vector, int vectors, real *packed) {
    int64_t first = (int64_t)first_vector * LANES;
    const int halves = p->columns - first - (vectors - 1) * LANES <= HALF;
    for (int64_t k0 = 0; k0 < p->depth; k0 += DEPTH) {
        int64_t depth = p->depth - k0 < DEPTH ? p->depth - k0 : DEPTH;
        pack_right(p, k0, depth, first, (int64_t)vectors * LANES, packed);
        for (int64_t r0 = begin; r0 < end; r0 += ROWS) {
            int rows = end - r0 < ROWS ? (int)(end - r0) : ROWS;
            const real *left[ROWS];
            reals sums[ROWS][COLUMNS];
            for (int r = 0; r < rows; r++) {
                left[r] = p->left + (r0 + r) * p->left_row + k0 * p->left_k;
                for (int v = 0; v < vectors; v++) {
                    int64_t column = first + v * LANES;
                    const real *sum = p->out + (r0 + r) * p->columns + column;
                    sums[r][v] = k0 > 0 ? load_columns(sum, p->columns - column) : every(0.0f);
                }
            }
            if (p->left_k == 1) multiply_rows(rows, vectors, halves, left, 1, packed, depth, sums);
            else multiply_rows(rows, vectors, halves, left, p->left_k, packed, depth, sums);
            for (int r = 0; r < rows; r++)
                for (int v = 0; v < vectors; v++) {
                    int64_t column = first + v * LANES, present = p->columns - column;
                    store_columns(p->out + (r0 + r) * p->columns + column, present, sums[r][v]);
                }
        }
    }
}

/* Returns 0, or 1 if memory cannot be allocated. */
int EXPORTED(noisyact_matmul)(const matmul *given, int threads) {
    matmul own = *given;
    const matmul *p = &own;
    if (p->rows == 0 || p->columns == 0) return 0; /* `out` may be NULL, which memset does not allow */
    /* The threads divide the rows as long as each has enough rows to outweigh packing all columns itself. Further
     * threads divide the columns. */
    int64_t tiles = (p->rows + ROWS - 1) / ROWS, enough = p->rows / (16 * ROWS);
    int64_t parts = enough < 1 ? 1 : enough < threads ? enough : threads, share = (threads + parts - 1) / parts;
    int64_t vectors = (p->columns + LANES - 1) / LANES, groups = (vectors + COLUMNS - 1) / COLUMNS;
    groups = (groups + share - 1) / share * share;
    if (groups > vectors) groups = vectors;
    if (p->depth == 0) memset(p->out, 0, (size_t)(p->rows * p->columns) * sizeof(real));
    const size_t of_thread = (size_t)DEPTH * COLUMNS * LANES;
    const int64_t stride = left_collides(p) ? (p->depth + LANES - 1) / LANES * LANES + LANES : 0;
    real *packed = aligned_memory((size_t)threads * of_thread * sizeof(real));
    real *copy = aligned_memory((size_t)(p->rows * stride + LANES) * sizeof(real));
    if (packed == NULL || copy == NULL) {
        free_aligned(packed);
        free_aligned(copy);
        return 1;
    }
    if (stride > 0) {
        copy_left(p, copy, stride, threads);
        own.left = copy;
        own.left_row = stride;
        own.left_k = 1;
    }
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        real *own = packed + (size_t)THREAD_NUMBER * of_thread;
#pragma omp for collapse(2) schedule(static)
        for (int64_t part = 0; part < parts; part++)
            for (int64_t g = 0; g < groups; g++) {
                int64_t begin = tiles * part / parts * ROWS, end = tiles * (part + 1) / parts * ROWS;
                int first, count;
                group_vectors(vectors, groups, g, &first, &count);
                multiply_group(p, begin, end < p->rows ? end : p->rows, first, count, own);
            }
    }
    free_aligned(copy);
    free_aligned(packed);
    return 0;
}
