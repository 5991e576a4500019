// A shared version word, as code on a GPU sees it: the 8-byte counter that says which payload is complete.
//
// Names are the PTX ISA's. All operations are strong and at system scope: they synchronise with the CPU, with other
// GPUs and with whatever else reaches the word coherently, not only with threads of this GPU. They need sm_70.
//
// What they order is memory as the PTX memory model knows it. That a network card's writes to GPU memory become visible
// payload first and version last is not theirs to promise; it is an assumption about the fabric.
#pragma once

namespace slackline {

// `unsigned long long` is 64 bits in every CUDA dialect, and nothing needs to be included for it.
using Version = unsigned long long;

#ifdef __CUDACC_RTC__

// ld.acquire.sys.b64: the version. No later read or write of this thread is performed before it, so whatever was
// written before the version was released is seen. `word` is aligned to 8 bytes.
//
// Other threads of the block see it too once the reading thread has passed a barrier with them (__syncthreads).
__device__ __forceinline__ Version load_acquire(const Version *word) {
    Version version;
    // "memory": the compiler moves no access across it either. volatile: two reads are two reads.
    asm volatile("ld.acquire.sys.b64 %0, [%1];" : "=l"(version) : "l"(word) : "memory");
    return version;
}

// st.release.sys.b64: announces `version`. Every earlier read and write of this thread is performed before it, and so
// is what this thread has observed from others: one thread announces for its block after a barrier (__syncthreads).
// A version word has one writer. `word` is aligned to 8 bytes.
__device__ __forceinline__ void store_release(Version *word, Version version) {
    asm volatile("st.release.sys.b64 [%0], %1;" : : "l"(word), "l"(version) : "memory");
}

// st.relaxed.sys.b64: the word alone, which others read meanwhile. `word` is aligned to 8 bytes.
__device__ __forceinline__ void store(Version *word, Version version) {
    asm volatile("st.relaxed.sys.b64 [%0], %1;" : : "l"(word), "l"(version) : "memory");
}

// fence.acq_rel.sys: every earlier write of this thread is performed before every later one.
__device__ __forceinline__ void fence() {
    asm volatile("fence.acq_rel.sys;" : : : "memory");
}

#else

// The same for the CPU, on which tests/kernels.rs runs the kernels.
inline Version load_acquire(const Version *word) {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

inline void store_release(Version *word, Version version) {
    __atomic_store_n(word, version, __ATOMIC_RELEASE);
}

inline void store(Version *word, Version version) {
    __atomic_store_n(word, version, __ATOMIC_RELAXED);
}

inline void fence() {
    __atomic_thread_fence(__ATOMIC_ACQ_REL);
}

#endif

}  // namespace slackline
