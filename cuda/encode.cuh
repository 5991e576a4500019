// From f32 to the halves in which a peer asks for parameters or gradients, as src/kernel/convert.rs does: rounded to
// nearest, ties to even, with the same bits for a NaN as there.
#pragma once

namespace {

template <unsigned short (*NARROW)(float)>
__device__ __forceinline__ void encode_run(const slackline_encode &encode) {
    const Run run(encode.offset, encode.count);
    const Index groups = run.groups();
    const bool aligned = low(encode.from) % 16 == 0 && low(encode.to) % 8 == 0;
    for (Index group = thread(); group < groups; group += threads()) {
        const Index at = run.at(group);
        if (aligned && run.has_all(at)) {
            float values[WIDTH];
            F32::load_wide(encode.from, at, values);
            *reinterpret_cast<ushort4 *>(encode.to + at) =
                make_ushort4(NARROW(values[0]), NARROW(values[1]), NARROW(values[2]), NARROW(values[3]));
            continue;
        }
        for (Index element = at; element < at + WIDTH; element++) {
            if (run.has(element)) {
                encode.to[element] = NARROW(encode.from[element]);
            }
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(SLACKLINE_BLOCK)
    slackline_encode_bf16(const __grid_constant__ slackline_encode encode) {
    encode_run<to_bf16>(encode);
}

extern "C" __global__ void __launch_bounds__(SLACKLINE_BLOCK)
    slackline_encode_f16(const __grid_constant__ slackline_encode encode) {
    encode_run<to_f16>(encode);
}
