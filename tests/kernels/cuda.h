// CUDA's built-ins in plain C++, so that cuda/kernels.cu compiles for the CPU.
//
// One thread runs after the other. An operation that is rounded once is the operator itself: the compiler is told not
// to contract (-ffp-contract=off), and an f32 has no more precision than it says. Vectors have the alignment that a GPU
// demands, so that the sanitiser sees an access that would be misaligned there.
#pragma once

#include <cmath>
#include <cstring>

static_assert(sizeof(float) == 4 && sizeof(double) == 8, "IEEE numbers");
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0
#error "f32 is computed in f32"
#endif

#define __device__
#define __global__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(threads)

struct Dimensions {
    unsigned x;
};
static Dimensions gridDim, blockDim, blockIdx, threadIdx;

struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) ushort4 {
    unsigned short x, y, z, w;
};

static inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}

static inline ushort4 make_ushort4(unsigned short x, unsigned short y, unsigned short z, unsigned short w) {
    return {x, y, z, w};
}

static inline float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

static inline unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float __fadd_rn(float a, float b) {
    return a + b;
}

static inline float __fsub_rn(float a, float b) {
    return a - b;
}

static inline float __fmul_rn(float a, float b) {
    return a * b;
}

static inline float __fdiv_rn(float a, float b) {
    return a / b;
}

static inline float __fsqrt_rn(float a) {
    return std::sqrt(a);
}

static inline double __dadd_rn(double a, double b) {
    return a + b;
}
