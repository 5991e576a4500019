// Numbers and how they are loaded: f32, bfloat16 and half precision, four at a time.
//
// The conversions are integer arithmetic and single f32 operations, and no conversion instructions: so the CPU can run
// the very same source (tests/kernels.rs), what comes of a NaN is defined, and bfloat16 does without the instructions
// that compute_70 lacks.
#pragma once

namespace {

using Index = unsigned long long;

// Elements that one thread loads at once: 128 bits of f32. The threads of a warp then read and write one contiguous
// range with each instruction, which is why halves are loaded 64 bits at a time.
constexpr Index WIDTH = 4;

// This thread among all threads of the grid, and their number.
__device__ __forceinline__ Index thread() {
    return static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ Index threads() {
    return static_cast<Index>(gridDim.x) * blockDim.x;
}

// The run of elements begin..end, cut into groups of WIDTH at multiples of WIDTH. The first and the last group may
// begin before the run or end behind it.
struct Run {
    Index begin;
    Index end;

    __device__ __forceinline__ Run(Index offset, Index count) : begin(offset), end(offset + count) {}

    __device__ __forceinline__ Index groups() const {
        return (end + WIDTH - 1) / WIDTH - begin / WIDTH;
    }

    // The first element of a group.
    __device__ __forceinline__ Index at(Index group) const {
        return (begin / WIDTH + group) * WIDTH;
    }

    __device__ __forceinline__ bool has_all(Index at) const {
        return at >= begin && at + WIDTH <= end;
    }

    __device__ __forceinline__ bool has(Index element) const {
        return element >= begin && element < end;
    }
};

// The low bits of an address: those of several are joined by `|`, and 0 in the last n places says that all of them are
// aligned to 2^n bytes.
__device__ __forceinline__ unsigned low(const void *address) {
    return static_cast<unsigned>(reinterpret_cast<Index>(address));
}

// A bfloat16 is the upper half of an f32.
__device__ __forceinline__ float from_bf16(unsigned bits) {
    return __uint_as_float(bits << 16);
}

// Exact, subnormal numbers too: moved to the fraction and exponent of an f32, a half is 2^112 times too small.
__device__ __forceinline__ float from_f16(unsigned bits) {
    const unsigned magnitude = (bits & 0x7fff) << 13;
    const unsigned finite = __float_as_uint(__fmul_rn(__uint_as_float(magnitude), __uint_as_float(0x77800000)));
    const unsigned value = magnitude < 0x0f800000 ? finite : magnitude | 0x7f800000;
    return __uint_as_float(value | ((bits & 0x8000) << 16));
}

// To nearest, ties to even; a NaN keeps its sign and the upper bits of its payload, and becomes quiet.
__device__ __forceinline__ unsigned short to_bf16(float value) {
    const unsigned bits = __float_as_uint(value);
    const unsigned rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const unsigned quiet = bits >> 16 | 0x40;
    return static_cast<unsigned short>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

// As to_bf16.
__device__ __forceinline__ unsigned short to_f16(float value) {
    const unsigned bits = __float_as_uint(value);
    const unsigned magnitude = bits & 0x7fffffff;
    unsigned half;
    if (magnitude > 0x7f800000) {
        half = 0x7e00 | (magnitude >> 13 & 0x3ff);
    } else if (magnitude >= 0x47800000) {
        half = 0x7c00;  // 65536 or more
    } else if (magnitude >= 0x38800000) {
        // A normal half: the exponent counts from 15 instead of 127. To round up may carry into it, up to infinity.
        half = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    } else {
        // The unit of a subnormal half is 2^-24, which is that of an f32 from 1/2 on: the addition rounds.
        half = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), 0.5f)) - 0x3f000000;
    }
    return static_cast<unsigned short>(half | (bits >> 16 & 0x8000));
}

__device__ __forceinline__ bool is_finite(float value) {
    return (__float_as_uint(value) & 0x7fffffff) < 0x7f800000;
}

// The types of elements: `load` one, or `load_wide` four that are aligned to ALIGNMENT bytes.
struct F32 {
    enum : unsigned { ALIGNMENT = 16 };

    static __device__ __forceinline__ float load(const void *elements, Index at) {
        return static_cast<const float *>(elements)[at];
    }

    static __device__ __forceinline__ void load_wide(const void *elements, Index at, float (&to)[WIDTH]) {
        const float4 four = *reinterpret_cast<const float4 *>(static_cast<const float *>(elements) + at);
        to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    }
};

template <float (*WIDEN)(unsigned)>
struct Half {
    enum : unsigned { ALIGNMENT = 8 };

    static __device__ __forceinline__ float load(const void *elements, Index at) {
        return WIDEN(static_cast<const unsigned short *>(elements)[at]);
    }

    static __device__ __forceinline__ void load_wide(const void *elements, Index at, float (&to)[WIDTH]) {
        const ushort4 four = *reinterpret_cast<const ushort4 *>(static_cast<const unsigned short *>(elements) + at);
        to[0] = WIDEN(four.x), to[1] = WIDEN(four.y), to[2] = WIDEN(four.z), to[3] = WIDEN(four.w);
    }
};

using Bf16 = Half<from_bf16>;
using F16 = Half<from_f16>;

// Loads the group at `at`. WHOLE: all of it is in the run, and aligned. Otherwise elements outside are not read, and 0.
template <class Element, bool WHOLE>
__device__ __forceinline__ void load_group(const void *elements, Run run, Index at, float (&to)[WIDTH]) {
    if (WHOLE) {
        Element::load_wide(elements, at, to);
    } else {
#pragma unroll
        for (Index e = 0; e < WIDTH; e++) {
            to[e] = run.has(at + e) ? Element::load(elements, at + e) : 0.0f;
        }
    }
}

// Stores the group at `at`. WHOLE: as for load_group. Otherwise elements outside are not written.
template <bool WHOLE>
__device__ __forceinline__ void store_group(const float (&from)[WIDTH], Run run, Index at, float *to) {
    if (WHOLE) {
        *reinterpret_cast<float4 *>(to + at) = make_float4(from[0], from[1], from[2], from[3]);
    } else {
#pragma unroll
        for (Index e = 0; e < WIDTH; e++) {
            if (run.has(at + e)) {
                to[at + e] = from[e];
            }
        }
    }
}

}  // namespace
