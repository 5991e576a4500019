// What a parameter server's round costs on this machine without any library: the yardstick of `cargo xtask bench`.
//
//   cc -O3 -march=native -o round round.c && ./round WORKERS BYTES CHUNK ROUNDS
//
// WORKERS processes and one server share a mapping. In each round a worker copies its gradient into its slot chunk by
// chunk, past the caches, and raises a flag for each; the server steps each chunk of the parameters as soon as all
// workers have sent it, and raises a flag of its own; the worker copies the chunk out. Worker w runs on core
// w % cores, the server on the last core. Prints one JSON line: each worker's median time of a round.
#define _GNU_SOURCE
#include <immintrin.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 64, PAGE = 4096, WARMUP = 3, WORKERS_MAX = 64 };

// A flag on a cache line of its own: how many rounds its chunk has been through.
struct flag {
    _Alignas(LINE) _Atomic uint64_t rounds;
};

static int workers;
static size_t bytes, chunk, chunks, rounds;
static char *parameters, *slots;
static struct flag *stepped, *sent; // sent: chunks of worker 0, then of worker 1, ...
static double *medians;
static int cores[CPU_SETSIZE], core_count;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

static void find_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) fail("sched_getaffinity");
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &set)) cores[core_count++] = core;
}

static void run_on(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set)) fail("sched_setaffinity");
}

// Zeroed memory, every page of it there, on huge pages where the system gives them.
static void *must_map(size_t length, int sharing) {
    void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("mmap");
    madvise(memory, length, MADV_HUGEPAGE);
    memset(memory, 0, length);
    return memory;
}

static size_t length_of(size_t index) {
    size_t begin = index * chunk;
    return bytes - begin < chunk ? bytes - begin : chunk;
}

static void await(struct flag *flag, uint64_t round) {
    for (unsigned spins = 1; atomic_load_explicit(&flag->rounds, memory_order_acquire) < round; spins++) {
        if (spins % 2048 == 0)
            sched_yield();
        else
            _mm_pause();
    }
}

static void raise_flag(struct flag *flag, uint64_t round) {
    atomic_store_explicit(&flag->rounds, round, memory_order_release);
}

// Both sides lie at a multiple of 64, as all lengths are.
static void copy_past_caches(char *to, const char *from, size_t length) {
#if defined(__AVX512F__)
    for (size_t at = 0; at < length; at += 64)
        _mm512_stream_si512((void *)(to + at), _mm512_load_si512((const void *)(from + at)));
#elif defined(__AVX__)
    for (size_t at = 0; at < length; at += 32)
        _mm256_stream_si256((void *)(to + at), _mm256_load_si256((const void *)(from + at)));
#else
    for (size_t at = 0; at < length; at += 16)
        _mm_stream_si128((void *)(to + at), _mm_load_si128((const void *)(from + at)));
#endif
    _mm_sfence();
}

static void step(size_t begin, size_t length) {
    float *restrict parameter = (float *)(parameters + begin);
    const float *restrict first = (const float *)(slots + begin);
    const float *restrict second = (const float *)(slots + bytes + begin);
    size_t count = length / sizeof(float);
    if (workers == 1) {
        for (size_t i = 0; i < count; i++) parameter[i] -= 1e-3f * first[i];
    } else if (workers == 2) {
        for (size_t i = 0; i < count; i++) parameter[i] -= 1e-3f * (0.5f * first[i] + 0.5f * second[i]);
    } else {
        for (int worker = 0; worker < workers; worker++) {
            const float *restrict gradient = (const float *)(slots + (size_t)worker * bytes + begin);
            for (size_t i = 0; i < count; i++) parameter[i] -= 1e-3f / (float)workers * gradient[i];
        }
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void work(int worker) {
    run_on(cores[worker % core_count]);
    char *gradient = must_map(bytes, MAP_PRIVATE), *copy = must_map(bytes, MAP_PRIVATE);
    for (size_t i = 0; i < bytes / sizeof(float); i++) ((float *)gradient)[i] = 1.0f;
    double *took = malloc(rounds * sizeof *took);
    if (!took) fail("malloc");
    struct flag *mine = sent + (size_t)worker * chunks;
    char *slot = slots + (size_t)worker * bytes;
    for (uint64_t round = 1; round <= WARMUP + rounds; round++) {
        double begun = nanoseconds();
        for (size_t i = 0; i < chunks; i++) {
            copy_past_caches(slot + i * chunk, gradient + i * chunk, length_of(i));
            raise_flag(&mine[i], round);
        }
        for (size_t i = 0; i < chunks; i++) {
            await(&stepped[i], round);
            copy_past_caches(copy + i * chunk, parameters + i * chunk, length_of(i));
        }
        if (round > WARMUP) took[round - WARMUP - 1] = nanoseconds() - begun;
    }
    qsort(took, rounds, sizeof *took, ascending);
    medians[worker] = took[rounds / 2];
}

static void serve(void) {
    run_on(cores[core_count - 1]);
    for (uint64_t round = 1; round <= WARMUP + rounds; round++)
        for (size_t i = 0; i < chunks; i++) {
            for (int worker = 0; worker < workers; worker++) await(&sent[(size_t)worker * chunks + i], round);
            step(i * chunk, length_of(i));
            raise_flag(&stepped[i], round);
        }
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: %s WORKERS BYTES CHUNK ROUNDS\n", argv[0]);
        return 2;
    }
    workers = atoi(argv[1]);
    bytes = (strtoull(argv[2], NULL, 10) + PAGE - 1) / PAGE * PAGE;
    chunk = strtoull(argv[3], NULL, 10);
    rounds = strtoull(argv[4], NULL, 10);
    if (workers < 1 || workers > WORKERS_MAX || !bytes || !chunk || chunk % LINE || !rounds) {
        fprintf(stderr, "1 to %d workers, a chunk of a multiple of %d bytes, at least 1 round\n", WORKERS_MAX, LINE);
        return 2;
    }
    chunks = (bytes + chunk - 1) / chunk;
    find_cores();
    parameters = must_map(bytes * (size_t)(workers + 1), MAP_SHARED);
    slots = parameters + bytes;
    stepped = must_map(sizeof(struct flag) * chunks * (size_t)(workers + 1), MAP_SHARED);
    sent = stepped + chunks;
    medians = must_map(PAGE, MAP_SHARED);

    pid_t self = getpid();
    for (int worker = 0; worker < workers; worker++) {
        pid_t child = fork();
        if (child < 0) fail("fork");
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != self) _exit(1);
            work(worker);
            _exit(0);
        }
    }
    serve();
    int failed = 0, status;
    while (wait(&status) > 0) failed |= status != 0;
    if (failed) {
        fprintf(stderr, "a worker failed\n");
        return 1;
    }
    printf("{\"median_ns\": [");
    for (int worker = 0; worker < workers; worker++) printf("%s%.0f", worker ? ", " : "", medians[worker]);
    printf("]}\n");
    return 0;
}
