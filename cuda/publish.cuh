// A kernel that publishes: versions one after the other into the frames of an owner, as src/param/frames.rs writes them,
// until a word of the host ends it. The litmus on a GPU (tests/gpu/litmus.rs) has other processes read them meanwhile.
#pragma once

#include "version.cuh"

namespace {

// Words of a frame's header: where the sequence is, which is odd while the frame is being written, and the number of the
// version.
constexpr Index HEADER = 8, SEQUENCE = 0, NUMBER = 1;

}  // namespace

// One thread does it all, and the others do nothing: then the order of its accesses is that of the program, as far as
// the operations of version.cuh hold it. A version is filled throughout with the byte that is its number modulo 251.
// No reader of these frames pins one.
extern "C" __global__ void __launch_bounds__(SLACKLINE_BLOCK)
    slackline_publish_versions(const __grid_constant__ slackline_publish publish) {
    if (thread() != 0) {
        return;
    }
    slackline::Version version = publish.version;
    Index frame = publish.frame;
    while (slackline::load_acquire(publish.stop) == 0) {
        version++;
        frame = (frame + 1) % publish.count;
        slackline::Version *header = publish.headers + HEADER * frame;
        slackline::Version *words = publish.frames + publish.stride * frame;
        const slackline::Version odd = (header[SEQUENCE] + 1) | 1;
        slackline::store(header + SEQUENCE, odd);
        // A reader that finds anything of what follows finds the odd sequence, too.
        slackline::fence();
        slackline::store(header + NUMBER, version);
        for (Index word = 0; word < publish.words; word++) {
            words[word] = version % 251 * 0x0101010101010101ull;
        }
        slackline::store_release(header + SEQUENCE, odd + 1);
        slackline::store_release(publish.latest, version * 256 + frame);
    }
}
