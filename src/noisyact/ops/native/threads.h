/* The number of this thread and the number of threads; 0 and 1 without OpenMP. */
#ifndef NOISYACT_THREADS_H
#define NOISYACT_THREADS_H

#if defined(_OPENMP) && defined(__clang__)
/* clang calls LLVM's runtime, and openmp.c translates the calls for GNU's, which torch loads on Linux. The functions
 * are weak: their addresses are NULL if no OpenMP is loaded, and one thread does all the work. */
__attribute__((weak)) int omp_get_thread_num(void);
__attribute__((weak)) int omp_get_num_threads(void);
#define THREAD_NUMBER (omp_get_thread_num ? omp_get_thread_num() : 0)
#define THREAD_COUNT (omp_get_num_threads ? omp_get_num_threads() : 1)
#elif defined(_OPENMP)
#include <omp.h>
#define THREAD_NUMBER omp_get_thread_num()
#define THREAD_COUNT omp_get_num_threads()
#else
#define THREAD_NUMBER 0
#define THREAD_COUNT 1
#endif

#endif
