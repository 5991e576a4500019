// The optimisers' formulas, operation by operation as in src/kernel/rule.rs.
//
// Every operation is rounded once, to nearest even. The compiler never contracts __fmul_rn and __fadd_rn to a fused
// multiply-add, whatever -fmad says; __fdiv_rn and __fsqrt_rn are those of IEEE 754, whatever -prec-div and -prec-sqrt
// say. Constants that derive from others come from the host, which computes them in f64 (abi.h, src/kernel/rule.rs).
#pragma once

namespace {

// `step`: from the summed gradient, the parameter and its states to the new parameter; the states change in place.
struct Sgd {
    enum : int { STATES = 0 };
    float rate, decay;

    __device__ __forceinline__ Sgd(const slackline_fold &fold) : rate(fold.rate), decay(fold.decay) {}

    __device__ __forceinline__ float step(float gradient, float parameter, float (&)[2]) const {
        // With a decay of 0, too: src/kernel does not branch on it either.
        gradient = __fadd_rn(gradient, __fmul_rn(decay, parameter));
        return __fsub_rn(parameter, __fmul_rn(rate, gradient));
    }
};

struct Momentum {
    enum : int { STATES = 1 };
    float rate, decay, momentum;

    __device__ __forceinline__ Momentum(const slackline_fold &fold)
        : rate(fold.rate), decay(fold.decay), momentum(fold.momentum) {}

    __device__ __forceinline__ float step(float gradient, float parameter, float (&states)[2]) const {
        gradient = __fadd_rn(gradient, __fmul_rn(decay, parameter));
        states[0] = __fadd_rn(__fmul_rn(momentum, states[0]), gradient);
        return __fsub_rn(parameter, __fmul_rn(rate, states[0]));
    }
};

// Adam, and with DECOUPLED AdamW.
template <bool DECOUPLED>
struct Adam {
    enum : int { STATES = 2 };
    float decay, beta1, one_less_beta1, beta2, one_less_beta2, step_size, correction, epsilon;

    __device__ __forceinline__ Adam(const slackline_fold &fold)
        : decay(fold.decay), beta1(fold.beta1), one_less_beta1(fold.one_less_beta1), beta2(fold.beta2),
          one_less_beta2(fold.one_less_beta2), step_size(fold.step_size), correction(fold.correction),
          epsilon(fold.epsilon) {}

    __device__ __forceinline__ float step(float gradient, float parameter, float (&states)[2]) const {
        const float decayed = __fmul_rn(decay, parameter);
        if (DECOUPLED) {
            parameter = __fsub_rn(parameter, decayed);
        } else {
            gradient = __fadd_rn(gradient, decayed);
        }
        const float first = __fmul_rn(one_less_beta1, gradient);
        const float second = __fmul_rn(__fmul_rn(one_less_beta2, gradient), gradient);
        states[0] = __fadd_rn(__fmul_rn(beta1, states[0]), first);
        states[1] = __fadd_rn(__fmul_rn(beta2, states[1]), second);
        const float denominator = __fadd_rn(__fdiv_rn(__fsqrt_rn(states[1]), correction), epsilon);
        return __fsub_rn(parameter, __fmul_rn(step_size, __fdiv_rn(states[0], denominator)));
    }
};

}  // namespace
