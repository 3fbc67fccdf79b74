/* Memory that begins at a multiple of 64 bytes, a cache line. Windows has its own functions for it. */
#ifndef NOISYACT_MEMORY_H
#define NOISYACT_MEMORY_H

#include <stdlib.h>

#ifdef _WIN32
#include <malloc.h>
static inline void *aligned_memory(size_t size) { return _aligned_malloc(size, 64); }
static inline void free_aligned(void *memory) { _aligned_free(memory); }
#else
/* aligned_alloc takes multiples of the alignment; some libraries return NULL otherwise. */
static inline void *aligned_memory(size_t size) { return aligned_alloc(64, (size + 63) / 64 * 64); }
static inline void free_aligned(void *memory) { free(memory); }
#endif

#endif
