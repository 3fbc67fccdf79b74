/* clang's OpenMP on GNU's runtime.
 *
 * clang compiles `#pragma omp` to calls of LLVM's runtime, whose names begin with __kmpc. torch for Linux brings GNU's.
 * These are the calls that our pragmas become, made from GNU's: a parallel region with a number of threads, a loop with
 * a static schedule, and a barrier. They are hidden, so that no other runtime in the process is confused with them.
 */
#if defined(_OPENMP) && defined(__clang__)

#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include "threads.h"

#define HIDDEN __attribute__((visibility("hidden")))
#define MOST 16 /* arguments of a region */

__attribute__((weak)) void GOMP_parallel(void (*region)(void *), void *data, unsigned threads, unsigned flags);
__attribute__((weak)) void GOMP_barrier(void);

typedef void (*microtask)(void);
typedef void (*of_8)(int32_t *global, int32_t *bound, void *, void *, void *, void *, void *, void *, void *, void *);
typedef void (*of_16)(int32_t *global, int32_t *bound, void *, void *, void *, void *, void *, void *, void *, void *,
                      void *, void *, void *, void *, void *, void *, void *, void *);

typedef struct {
    microtask task;
    int32_t count;
    void *given[MOST];
} region;

static __thread int32_t threads_asked = 1;

HIDDEN int32_t __kmpc_global_thread_num(void *place) {
    (void)place;
    return THREAD_NUMBER;
}

HIDDEN void __kmpc_push_num_threads(void *place, int32_t thread, int32_t threads) {
    (void)place, (void)thread;
    threads_asked = threads;
}

/* More arguments than a function takes are ignored by it, in the calling conventions of every Linux. */
static void run_region(void *data) {
    region *r = data;
    void **a = r->given;
    int32_t global = THREAD_NUMBER, bound = global;
    if (r->count <= 8)
        ((of_8)r->task)(&global, &bound, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
    else
        ((of_16)r->task)(&global, &bound, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11],
                         a[12], a[13], a[14], a[15]);
}

HIDDEN void __kmpc_fork_call(void *place, int32_t count, microtask task, ...) {
    (void)place;
    if (count > MOST) abort(); /* a test compiles and runs every region */
    region r = {task, count, {NULL}};
    va_list arguments;
    va_start(arguments, task);
    for (int32_t i = 0; i < count; i++) r.given[i] = va_arg(arguments, void *);
    va_end(arguments);
    if (GOMP_parallel && threads_asked > 1)
        GOMP_parallel(run_region, &r, (unsigned)threads_asked, 0);
    else
        run_region(&r);
    threads_asked = 1;
}

/* A region whose `if` is false. The caller runs it itself. */
HIDDEN void __kmpc_serialized_parallel(void *place, int32_t thread) { (void)place, (void)thread; }
HIDDEN void __kmpc_end_serialized_parallel(void *place, int32_t thread) { (void)place, (void)thread; }

HIDDEN void __kmpc_barrier(void *place, int32_t thread) {
    (void)place, (void)thread;
    if (GOMP_barrier && THREAD_COUNT > 1) GOMP_barrier();
}

/* This thread's share of the iterations from *lower to *upper, in steps of `step` > 0: one run, of nearly equal sizes. An
 * empty share begins after the last iteration, because one that ends before the first would be huge if unsigned. */
#define STATIC_LOOP(NAME, TYPE, SIGNED)                                                                                \
    HIDDEN void NAME(void *place, int32_t thread, int32_t schedule, int32_t *last, TYPE *lower, TYPE *upper,           \
                     SIGNED *stride, SIGNED step, SIGNED chunk) {                                                      \
        (void)place, (void)thread, (void)schedule, (void)chunk;                                                        \
        const int64_t me = THREAD_NUMBER, all = THREAD_COUNT, first = (int64_t)*lower, by = step;                      \
        const int64_t count = ((int64_t)*upper - first) / by + 1; /* clang calls this for at least one iteration */    \
        const int64_t begin = count * me / all, end = count * (me + 1) / all;                                          \
        *lower = (TYPE)(first + (begin < end ? begin : count) * by);                                                   \
        *upper = (TYPE)(first + ((begin < end ? end : count) - 1) * by);                                               \
        *stride = (SIGNED)(count * by);                                                                                \
        *last = end == count && begin < end;                                                                           \
    }
STATIC_LOOP(__kmpc_for_static_init_4, int32_t, int32_t)
STATIC_LOOP(__kmpc_for_static_init_4u, uint32_t, int32_t)
STATIC_LOOP(__kmpc_for_static_init_8, int64_t, int64_t)
STATIC_LOOP(__kmpc_for_static_init_8u, uint64_t, int64_t)
HIDDEN void __kmpc_for_static_fini(void *place, int32_t thread) { (void)place, (void)thread; }

#else
typedef int no_translation; /* a file of C must not be empty */
#endif
