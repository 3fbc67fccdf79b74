/* The number of this thread and the number of threads; 0 and 1 without OpenMP. */
#ifndef NOISYACT_THREADS_H
#define NOISYACT_THREADS_H

#ifdef _OPENMP
#include <omp.h>
#define THREAD_NUMBER omp_get_thread_num()
#define THREAD_COUNT omp_get_num_threads()
#else
#define THREAD_NUMBER 0
#define THREAD_COUNT 1
#endif

#endif
