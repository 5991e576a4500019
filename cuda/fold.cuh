// The fold of src/kernel on a GPU: the weighted sum of k gradients and one step of an optimiser, in one pass over
// memory.
//
// For each parameter the same f32 operations in the same order as src/kernel/sweep.rs and rule.rs, so that a GPU, every
// vector width of a CPU and a plain serial loop give the same bits, but for the sign and the payload of a NaN:
//
//     sum = weights[0] * gradients[0][i];  sum += weights[j] * gradients[j][i]  for j = 1 .. k - 1, in this order
//     the rule's formulas (rule.cuh)
//
// Without gradients the sum is 0. `*not_finite` becomes 1 if a new parameter or second moment is NaN or infinite and is
// left alone otherwise: zeroed before, it is what `Fold::run` says, of one launch or of several.
//
// Out of place: parameters and states are read from one array and written to another, so that a fold can be thrown away
// and done again. Gradients may be written by a peer up to the moment at which their version was acquired, hence no
// __restrict__: it would let the compiler read them through the non-coherent cache (ld.global.nc).
//
// A *measured* fold also adds up the squares of the gradients, as `Fold::run_measured` does, in an order that depends
// on `offset` and `count` alone, neither on the grid nor on where memory lies:
//
//  1. The arrays are cut into groups of four elements, at multiples of four. Of one gradient, and of the sum, the
//     squares of those elements of a group that are in the run are added in f32, the first element first, to 0.
//  2. Lane n of the SLACKLINE_LANES takes groups n, n + SLACKLINE_LANES, ... of the run, the first of which is group 0.
//     It adds what step 1 gives in f64 to 0, in the order of the groups and, of one group, in that of the gradients. If
//     the run has fewer groups, it has as many lanes: min(SLACKLINE_LANES, (offset + count + 3) / 4 - offset / 4).
//  3. slackline_moments: sum n of the SLACKLINE_SUMS takes lanes n, n + SLACKLINE_SUMS, ... and adds them in f64 to 0.
//  4. The host adds these sums in f64 to 0, the first one first.
//
// Squares are f32, of which 4 are added in f32: the relative error is at most 5 * 2^-24, and what f64 adds. An element
// of more than 10^19 makes them infinite, and one of less than 10^-19 counts as nothing, as on the CPU.
#pragma once

namespace {

// Folds the elements of one group that are in the run: all of them, aligned, if WHOLE. Returns whether all new
// parameters and second moments are finite.
template <class Element, class Rule, bool MEASURE, bool WHOLE>
__device__ __forceinline__ bool fold_group(const slackline_fold &fold, const Rule &rule, Run run, Index at,
                                           slackline_squares &squares) {
    // All that does not depend on each other is loaded before anything is computed: each load takes long.
    constexpr unsigned AT_ONCE = WHOLE ? 4 : 1;
    float parameters[WIDTH], states[2][WIDTH];
    load_group<F32, WHOLE>(fold.from[0], run, at, parameters);
#pragma unroll
    for (int s = 0; s < Rule::STATES; s++) {
        load_group<F32, WHOLE>(fold.from[1 + s], run, at, states[s]);
    }

    // -0 is the number that changes nothing, not even -0, when it is added to.
    const float nothing = fold.gradients > 0 ? -0.0f : 0.0f;
    float sums[WIDTH] = {nothing, nothing, nothing, nothing};
    for (unsigned first = 0; first < fold.gradients; first += AT_ONCE) {
        float values[AT_ONCE][WIDTH];
#pragma unroll
        for (unsigned j = 0; j < AT_ONCE; j++) {
            if (first + j < fold.gradients) {
                load_group<Element, WHOLE>(fold.elements[first + j], run, at, values[j]);
            }
        }
#pragma unroll
        for (unsigned j = 0; j < AT_ONCE; j++) {
            if (first + j >= fold.gradients) {
                break;
            }
            const float weight = fold.weights[first + j];
            float of_this = 0.0f;
#pragma unroll
            for (Index e = 0; e < WIDTH; e++) {
                sums[e] = __fadd_rn(sums[e], __fmul_rn(weight, values[j][e]));
                of_this = __fadd_rn(of_this, __fmul_rn(values[j][e], values[j][e]));
            }
            if (MEASURE) {
                squares.of_each = __dadd_rn(squares.of_each, static_cast<double>(of_this));
            }
        }
    }

    bool finite = true;
    float of_sum = 0.0f;
#pragma unroll
    for (Index e = 0; e < WIDTH; e++) {
        float state[2] = {states[0][e], states[1][e]};
        parameters[e] = rule.step(sums[e], parameters[e], state);
        states[0][e] = state[0], states[1][e] = state[1];
        if (WHOLE || run.has(at + e)) {
            of_sum = __fadd_rn(of_sum, __fmul_rn(sums[e], sums[e]));
            finite = finite && is_finite(parameters[e]) && (Rule::STATES < 2 || is_finite(state[1]));
        }
    }
    if (MEASURE) {
        squares.of_sum = __dadd_rn(squares.of_sum, static_cast<double>(of_sum));
    }
    store_group<WHOLE>(parameters, run, at, fold.to[0]);
#pragma unroll
    for (int s = 0; s < Rule::STATES; s++) {
        store_group<WHOLE>(states[s], run, at, fold.to[1 + s]);
    }
    return finite;
}

// Whether all arrays are aligned for wide accesses at multiples of WIDTH.
template <class Element, class Rule>
__device__ __forceinline__ bool is_aligned(const slackline_fold &fold) {
    unsigned gradients = 0;
    for (unsigned j = 0; j < fold.gradients; j++) {
        gradients |= low(fold.elements[j]);
    }
    unsigned rest = 0;
#pragma unroll
    for (int array = 0; array < 1 + Rule::STATES; array++) {
        rest |= low(fold.from[array]) | low(fold.to[array]);
    }
    return gradients % Element::ALIGNMENT == 0 && rest % 16 == 0;
}

template <class Element, class Rule, bool MEASURE>
__device__ __forceinline__ void fold_run(const slackline_fold &fold) {
    const Rule rule(fold);
    const Run run(fold.offset, fold.count);
    const Index groups = run.groups();
    const bool aligned = is_aligned<Element, Rule>(fold);
    // Unmeasured, each thread is a lane.
    const Index stride = MEASURE ? SLACKLINE_LANES : threads();
    bool finite = true;
    for (Index lane = thread(); lane < stride && lane < groups; lane += threads()) {
        slackline_squares squares = {0.0, 0.0};
        for (Index group = lane; group < groups; group += stride) {
            const Index at = run.at(group);
            const bool done = aligned && run.has_all(at)
                                  ? fold_group<Element, Rule, MEASURE, true>(fold, rule, run, at, squares)
                                  : fold_group<Element, Rule, MEASURE, false>(fold, rule, run, at, squares);
            finite = finite && done;
        }
        if (MEASURE) {
            fold.squares[lane] = squares;
        }
    }
    if (!finite) {
        // Whoever writes, writes the same. Volatile stores are strong ones: several of them are no race.
        *const_cast<volatile unsigned *>(fold.not_finite) = 1;
    }
}

}  // namespace

#define SLACKLINE_FOLD(rule, Rule, type, Type)                                                                         \
    extern "C" __global__ void __launch_bounds__(SLACKLINE_BLOCK)                                                      \
        slackline_fold_##rule##_##type(const __grid_constant__ slackline_fold fold) {                                  \
        fold_run<Type, Rule, false>(fold);                                                                             \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(SLACKLINE_BLOCK)                                                      \
        slackline_fold_##rule##_##type##_measured(const __grid_constant__ slackline_fold fold) {                       \
        fold_run<Type, Rule, true>(fold);                                                                              \
    }
#define SLACKLINE_FOLDS(rule, Rule)                                                                                    \
    SLACKLINE_FOLD(rule, Rule, f32, F32)                                                                               \
    SLACKLINE_FOLD(rule, Rule, bf16, Bf16)                                                                             \
    SLACKLINE_FOLD(rule, Rule, f16, F16)
SLACKLINE_FOLDS(sgd, Sgd)
SLACKLINE_FOLDS(momentum, Momentum)
SLACKLINE_FOLDS(adam, Adam<false>)
SLACKLINE_FOLDS(adamw, Adam<true>)
#undef SLACKLINE_FOLDS
#undef SLACKLINE_FOLD

extern "C" __global__ void __launch_bounds__(SLACKLINE_BLOCK)
    slackline_moments(const __grid_constant__ slackline_lanes all) {
    for (Index n = thread(); n < SLACKLINE_SUMS; n += threads()) {
        slackline_squares sum = {0.0, 0.0};
        for (Index lane = n; lane < all.count; lane += SLACKLINE_SUMS) {
            const slackline_squares squares = all.lanes[lane];
            sum.of_sum = __dadd_rn(sum.of_sum, squares.of_sum);
            sum.of_each = __dadd_rn(sum.of_each, squares.of_each);
        }
        all.sums[n] = sum;
    }
}
