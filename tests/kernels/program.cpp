// Runs the kernels on the CPU: launches come in on standard input, and what is in their buffers then goes out.
//
// A launch, little-endian: the kernel's name, the grid and the block, the buffers (where each begins behind a multiple
// of 64 bytes, and what is in it), the parameter block, and where in it the addresses of which buffers belong. Each
// buffer ends where its memory ends, so that the sanitiser sees an access behind it.
#include "cuda.h"

#include "kernels.cu"

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

[[noreturn]] void fail(const char *what) {
    std::fprintf(stderr, "the launch is refused: %s\n", what);
    std::exit(1);
}

void read(void *to, std::size_t bytes) {
    if (bytes > 0 && std::fread(to, bytes, 1, stdin) != 1) {
        fail("it ends too early");
    }
}

std::uint32_t read_u32() {
    std::uint32_t value;
    read(&value, sizeof value);
    return value;
}

struct Buffer {
    void *memory = nullptr;
    std::size_t shift = 0, bytes = 0;

    char *begin() const {
        return static_cast<char *>(memory) + shift;
    }
};

template <class Block>
void launch(void *kernel, const std::vector<char> &bytes) {
    if (bytes.size() != sizeof(Block)) {
        fail("the parameter block has another size");
    }
    Block block;
    std::memcpy(&block, bytes.data(), sizeof block);
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
        for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++) {
            reinterpret_cast<void (*)(Block)>(kernel)(block);
        }
    }
}

// Runs the kernel that publishes beside a reader, as readers of frames are: it looks at a header before and behind the
// words, and takes what they have for the version if both are the same. It reads few words, so that most of the time
// for which a frame is written is longer than that, and any frame. Behind the word that ends the kernel it leaves how
// many words were not those of their version.
void launch_beside_a_reader(void *kernel, const std::vector<char> &bytes) {
    slackline_publish block;
    if (bytes.size() != sizeof block) {
        fail("the parameter block has another size");
    }
    std::memcpy(&block, bytes.data(), sizeof block);
    const auto load = [](const unsigned long long *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); };
    std::thread publisher([&] { launch<slackline_publish>(kernel, bytes); });
    unsigned long long torn = 0;
    unsigned long long seen[8];
    for (unsigned read = 0, look = 0; read < 50000; look++) {
        const unsigned long long frame = look % block.count, *header = block.headers + 8 * frame;
        const unsigned long long before = load(header), number = load(header + 1);
        for (std::size_t at = 0; at < 8; at++) {
            seen[at] = load(block.frames + block.stride * frame + at * (block.words - 1) / 7);
        }
        if (before % 2 != 0 || load(header) != before || number <= block.version) {
            continue;
        }
        for (const unsigned long long word : seen) {
            torn += word != number % 251 * 0x0101010101010101ull;
        }
        read++;
    }
    unsigned long long *stop = const_cast<unsigned long long *>(block.stop);
    __atomic_store_n(stop, 1, __ATOMIC_RELEASE);
    publisher.join();
    stop[1] = torn;
}

void launch(const std::string &name, const std::vector<char> &bytes) {
    void *kernel = dlsym(RTLD_DEFAULT, name.c_str());
    if (kernel == nullptr) {
        fail("there is no such kernel");
    } else if (name.rfind("slackline_fold_", 0) == 0) {
        launch<slackline_fold>(kernel, bytes);
    } else if (name.rfind("slackline_encode_", 0) == 0) {
        launch<slackline_encode>(kernel, bytes);
    } else if (name == "slackline_moments") {
        launch<slackline_lanes>(kernel, bytes);
    } else if (name == "slackline_train_softmax") {
        launch<slackline_softmax>(kernel, bytes);
    } else if (name.rfind("slackline_train_", 0) == 0) {
        launch<slackline_layer>(kernel, bytes);
    } else if (name == "slackline_publish_versions") {
        launch_beside_a_reader(kernel, bytes);
    } else {
        fail("it is not known what this kernel takes");
    }
}

}  // namespace

int main() {
    for (std::uint32_t length; std::fread(&length, sizeof length, 1, stdin) == 1;) {
        std::string name(length, ' ');
        read(&name[0], length);
        gridDim.x = read_u32();
        blockDim.x = read_u32();
        std::vector<Buffer> buffers(read_u32());
        for (Buffer &buffer : buffers) {
            buffer.shift = read_u32();
            buffer.bytes = read_u32();
            if (posix_memalign(&buffer.memory, 64, buffer.shift + buffer.bytes) != 0) {
                fail("there is no memory");
            }
            read(buffer.begin(), buffer.bytes);
        }
        std::vector<char> block(read_u32());
        read(block.data(), block.size());
        for (std::uint32_t addresses = read_u32(); addresses > 0; addresses--) {
            const std::size_t position = read_u32();
            char *address = buffers.at(read_u32()).begin();
            std::memcpy(&block.at(position), &address, sizeof address);
        }
        launch(name, block);
        for (const Buffer &buffer : buffers) {
            if (buffer.bytes > 0 && std::fwrite(buffer.begin(), buffer.bytes, 1, stdout) != 1) {
                fail("nobody reads what came of it");
            }
            std::free(buffer.memory);
        }
        std::fflush(stdout);
    }
}
