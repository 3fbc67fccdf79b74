/* Which rows follow which, and who does what: the rounds of a layer's time loop shared out among threads. */
#ifndef NOISYACT_ROUNDS_H
#define NOISYACT_ROUNDS_H

#include "../../native/threads.h"
#include "layer.h"

/* The step at which row b begins in reverse: the last that has it. */
static int64_t first_step(const int64_t *sizes, int64_t steps, int64_t b) {
    int64_t t = steps - 1;
    while (t > 0 && b >= sizes[t]) t--;
    return t;
}

/* The row before (t, b), or NULL where the sequence begins there. */
static const float *neighbour(const layer *l, const float *rows, int64_t width, int64_t t, int64_t b, int before) {
    int64_t other = (before != 0) == (l->reverse != 0) ? t + 1 : t - 1;
    if (other < 0 || other >= l->steps || b >= l->sizes[other]) return NULL;
    return rows + (l->offsets[other] + b) * width;
}

/* A sequence's row before (t, b): of `rows`, or at the beginning of `first`, or zeros. */
static const float *row_before(const layer *l, const float *rows, const float *first, const float *zeros, int64_t t,
                               int64_t b) {
    const float *row = neighbour(l, rows, l->cell.hidden, t, b, 1);
    if (row != NULL) return row;
    return first ? first + b * l->cell.hidden : zeros;
}

/* Tiles of at most ROWS rows, as equal as can be: threads that take as many of them then have equal work. */
static int tiles_of(const layer *l) { return (int)((l->batch + ROWS - 1) / ROWS); }
static int64_t tile_begin(const layer *l, int tile) { return l->batch * tile / tiles_of(l); }

/* The rows of a tile that a step has. */
static int rows_of(const layer *l, int64_t size, int tile) {
    int64_t begin = tile_begin(l, tile), end = tile_begin(l, tile + 1);
    return (int)(size <= begin ? 0 : (size < end ? size : end) - begin);
}

/* Sequences need nothing of each other: threads that share them out never wait. That takes tiles enough for all threads
 * and weights that fit the cache of each; otherwise threads share out the units of a step and meet after it. */
static int threads_by_rows(const layer *l, int threads) {
    int64_t tiles = tiles_of(l), most = (tiles + threads - 1) / threads;
    return 10 * tiles >= 9 * most * threads && 4 * packed_size(l, l->cell.hidden) <= (1 << 20);
}

typedef void work(const void *task, int64_t round, int group, int tile);

/* Does `work` for every round, group and tile; a round begins when the one before is done as far as it needs it. */
static void share_out(const layer *l, int64_t rounds, int groups, int threads, work *do_one, const void *task) {
    const int tiles = tiles_of(l), by_rows = threads_by_rows(l, threads);
    (void)threads;
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (int64_t round = 0; round < rounds; round++) {
        int64_t me = THREAD_NUMBER, all = THREAD_COUNT;
        if (by_rows) {
            for (int g = 0; g < groups; g++)
                for (int tile = (int)(tiles * me / all); tile < tiles * (me + 1) / all; tile++)
                    do_one(task, round, g, tile);
        } else {
            int64_t items = (int64_t)tiles * groups;
            for (int64_t item = items * me / all; item < items * (me + 1) / all; item++)
                do_one(task, round, (int)(item / tiles), (int)(item % tiles));
#pragma omp barrier
        }
    }
}

#endif
