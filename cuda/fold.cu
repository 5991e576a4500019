// The fold of src/kernel on a GPU: the weighted sum of k gradients and one optimiser step, in one pass over memory.
//
// For each parameter the same f32 operations in the same order as src/kernel/sweep.rs and rule.rs, so that a GPU, every
// vector width of a CPU and a plain serial loop give the same bits:
//
//     sum = weights[0] * gradients[0][i];  sum += weights[j] * gradients[j][i]  for j = 1 .. k - 1, in this order
//     sgd:       g = sum + decay * p;                        p' = p - rate * g
//     momentum:  g = sum + decay * p;  m' = momentum * m + g;  p' = p - rate * m'
//
// Every operation is rounded once, to nearest even. __fmul_rn, __fadd_rn and __fsub_rn are never contracted to a fused
// multiply-add, whatever -fmad says; subnormals survive unless the compiler is told -ftz=true, which it must not be.
//
// Out of place: parameters and state are read from one array and written to another, so that a fold can be thrown away
// and done again. Arrays that are written overlap nothing. Gradients may be written by a peer up to the moment at which
// their version was acquired (version.cuh), hence no __restrict__: it would let the compiler read them through the
// non-coherent cache (ld.global.nc), which no acquire invalidates.
//
// Launch with any grid and any one-dimensional block: each thread takes every (grid * block)-th element. `gradients`
// and `weights` are arrays of `count` in memory that the GPU can read; `count` is at least 1, as src/kernel checks.

namespace {

// sum_j weights[j] * gradients[j][i], from the left.
__device__ __forceinline__ float weighted_sum(const float *const *gradients, const float *weights, unsigned count,
                                              unsigned long long i) {
    float sum = __fmul_rn(weights[0], gradients[0][i]);
    for (unsigned j = 1; j < count; j++) {
        sum = __fadd_rn(sum, __fmul_rn(weights[j], gradients[j][i]));
    }
    return sum;
}

// g + decay * p, with a decay of 0 too: src/kernel does not branch on it either.
__device__ __forceinline__ float decayed(float gradient, float decay, float parameter) {
    return __fadd_rn(gradient, __fmul_rn(decay, parameter));
}

__device__ __forceinline__ unsigned long long first() {
    return static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ unsigned long long stride() {
    return static_cast<unsigned long long>(gridDim.x) * blockDim.x;
}

}  // namespace

extern "C" __global__ void slackline_fold_sgd_f32(const float *const *gradients, const float *weights, unsigned count,
                                                  const float *parameters_from, float *parameters_to,
                                                  unsigned long long elements, float rate, float decay) {
    for (unsigned long long i = first(); i < elements; i += stride()) {
        const float parameter = parameters_from[i];
        const float gradient = decayed(weighted_sum(gradients, weights, count, i), decay, parameter);
        parameters_to[i] = __fsub_rn(parameter, __fmul_rn(rate, gradient));
    }
}

extern "C" __global__ void slackline_fold_momentum_f32(const float *const *gradients, const float *weights,
                                                       unsigned count, const float *parameters_from,
                                                       float *parameters_to, const float *momenta_from,
                                                       float *momenta_to, unsigned long long elements, float rate,
                                                       float momentum, float decay) {
    for (unsigned long long i = first(); i < elements; i += stride()) {
        const float parameter = parameters_from[i];
        const float gradient = decayed(weighted_sum(gradients, weights, count, i), decay, parameter);
        const float step = __fadd_rn(__fmul_rn(momentum, momenta_from[i]), gradient);
        momenta_to[i] = step;
        parameters_to[i] = __fsub_rn(parameter, __fmul_rn(rate, step));
    }
}
