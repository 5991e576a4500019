// A kernel of a few lines, so that version.cuh is compiled.
#include "version.cuh"

extern "C" __global__ void pass_on(const slackline::Version *from, slackline::Version *to) {
    slackline::store(to, 1);
    slackline::fence();
    slackline::store_release(to, slackline::load_acquire(from));
}
