/* The order of a layer's rows, and the division of the rounds of its time loop among threads. */
#ifndef NOISYACT_ROUNDS_H
#define NOISYACT_ROUNDS_H

#include "../../native/threads.h"
#include "state.h"

/* The step at which row b begins in reverse: the last step that has it. */
static inline int64_t first_step(const int64_t *sizes, int64_t steps, int64_t b) {
    int64_t t = steps - 1;
    while (t > 0 && b >= sizes[t]) t--;
    return t;
}

/* The row before (t, b) or, without `before`, after it; NULL if the sequence begins or ends there. */
static inline const real *neighbour(const layer *l, const real *rows, int64_t width, int64_t t, int64_t b, int before) {
    int64_t other = (before != 0) == (l->reverse != 0) ? t + 1 : t - 1;
    if (other < 0 || other >= l->steps || b >= l->sizes[other]) return NULL;
    return rows + (l->offsets[other] + b) * width;
}

/* A sequence's row before (t, b) in `rows`; at the beginning of the sequence, its row in `first`, or zeros; at a reset,
 * its row in `anew`, or zeros. */
static inline const real *row_before(const layer *l, const real *rows, int64_t width, const real *first,
                                     const real *anew, const real *zeros, int64_t t, int64_t b) {
    if (resets(l, t, b)) return anew ? anew + b * width : zeros;
    const real *row = neighbour(l, rows, width, t, b, 1);
    if (row != NULL) return row;
    return first ? first + b * width : zeros;
}

/* Tiles have at most ROWS rows and nearly equal sizes, so that threads with equally many tiles have equal work. */
static inline int tiles_of(const layer *l) { return (int)((l->batch + ROWS - 1) / ROWS); }
static inline int64_t tile_begin(const layer *l, int tile) { return l->batch * tile / tiles_of(l); }

/* The number of rows of a tile at a step. */
static inline int rows_of(const layer *l, int64_t size, int tile) {
    int64_t begin = tile_begin(l, tile), end = tile_begin(l, tile + 1);
    return (int)(size <= begin ? 0 : (size < end ? size : end) - begin);
}

/* Whether threads divide the sequences, so that no thread waits. This needs enough tiles for all threads and weights
 * that fit each thread's cache. Otherwise the threads divide the units and synchronise after each step. */
static inline int threads_by_rows(const layer *l, int threads) {
    int64_t tiles = tiles_of(l), most = (tiles + threads - 1) / threads;
    return 10 * tiles >= 9 * most * threads && (int64_t)sizeof(real) * packed_size(l, l->output) <= (1 << 20);
}

/* A part of a round. Its groups need the results of the part before, or of the last part of the previous round. */
typedef struct {
    void (*do_one)(const void *task, int64_t round, int group, int tile);
    int groups;
} part;

/* Do all parts of every round for every group and tile. A part begins when the results that it needs are ready. */
static inline void share_out(const layer *l, int64_t rounds, const part *parts, int count, int threads,
                             const void *task) {
    const int tiles = tiles_of(l), by_rows = threads_by_rows(l, threads);
    (void)threads;
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (int64_t step = 0; step < rounds * count; step++) {
        const part *now = parts + step % count;
        int64_t me = THREAD_NUMBER, all = THREAD_COUNT, round = step / count;
        if (by_rows) {
            for (int g = 0; g < now->groups; g++)
                for (int tile = (int)(tiles * me / all); tile < tiles * (me + 1) / all; tile++)
                    now->do_one(task, round, g, tile);
        } else {
            int64_t items = (int64_t)tiles * now->groups;
            for (int64_t item = items * me / all; item < items * (me + 1) / all; item++)
                now->do_one(task, round, (int)(item / tiles), (int)(item % tiles));
#pragma omp barrier
        }
    }
}

#endif
