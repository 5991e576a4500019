/*
 * What a bare TCP connection on the loopback interface does between two processes: the limit that requests over TCP are
 * held against.
 *
 *     tcp ping ITERATIONS       the round trip of 8 bytes, first with both sides blocked in recv, then with both
 *                               spinning on it; prints {"p50_ns": the shorter, "blocking_ns": .., "spinning_ns": ..}
 *     tcp copy BYTES COUNT      BYTES of one buffer into another of that size, COUNT times in a stream, with calls of
 *                               up to 1 MiB; prints {"bytes_per_s": of the receiver}
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PIECE ((size_t)1 << 20)

static void must(int condition, const char *what)
{
    if (!condition) {
        perror(what);
        exit(1);
    }
}

/* Sends or receives all of it; with MSG_DONTWAIT it spins. */
static void all(int fd, int sends, char *bytes, size_t len, int flags)
{
    while (len > 0) {
        size_t piece = len < PIECE ? len : PIECE;
        ssize_t done = sends ? send(fd, bytes, piece, flags) : recv(fd, bytes, piece, flags);
        if (done < 0 && errno == EAGAIN)
            continue;
        must(done > 0, sends ? "send" : "recv");
        bytes += done;
        len -= (size_t)done;
    }
}

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Both ends of a connection: the parent's is returned, the child gets `serve` and ends. */
static int connected(void (*serve)(int fd, size_t bytes, long count, int flags), size_t bytes, long count, int flags)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), fd, one = 1;
    pid_t child;

    must(listener >= 0 && bind(listener, (struct sockaddr *)&address, sizeof address) == 0, "bind");
    must(listen(listener, 1) == 0 && getsockname(listener, (struct sockaddr *)&address, &len) == 0, "listen");
    child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        fd = accept(listener, NULL, NULL);
        must(fd >= 0 && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0, "accept");
        serve(fd, bytes, count, flags);
        _exit(0);
    }
    fd = socket(AF_INET, SOCK_STREAM, 0);
    must(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    must(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0, "TCP_NODELAY");
    close(listener);
    return fd;
}

static char *buffer(size_t bytes)
{
    char *memory = malloc(bytes);
    must(memory != NULL, "malloc");
    memset(memory, 1, bytes);
    return memory;
}

static void answer(int fd, size_t bytes, long count, int flags)
{
    char *word = buffer(bytes);
    while (count-- > 0) {
        all(fd, 0, word, bytes, flags);
        all(fd, 1, word, bytes, flags);
    }
}

static int64_t ping(long iterations, int flags)
{
    long warmup = iterations / 10 + 1, index;
    int64_t *samples = malloc((size_t)iterations * sizeof *samples), median;
    int fd = connected(answer, 8, warmup + iterations, flags);
    char word[8] = {0};

    must(samples != NULL, "malloc");
    for (index = -warmup; index < iterations; index++) {
        int64_t begun = now_ns();
        all(fd, 1, word, sizeof word, flags);
        all(fd, 0, word, sizeof word, flags);
        if (index >= 0)
            samples[index] = now_ns() - begun;
    }
    wait(NULL);
    qsort(samples, (size_t)iterations, sizeof *samples, ascending);
    median = samples[iterations / 2];
    free(samples);
    return median;
}

/* Takes everything, and tells once so. The first tenth is for warmth. */
static void take(int fd, size_t bytes, long count, int flags)
{
    char *memory = buffer(bytes), word[8] = {0};
    long index, warmup = count / 10 + 1;
    int64_t begun = 0;
    for (index = -warmup; index < count; index++) {
        if (index == 0)
            begun = now_ns();
        all(fd, 0, memory, bytes, flags);
    }
    begun = now_ns() - begun;
    memcpy(word, &begun, sizeof word);
    all(fd, 1, word, sizeof word, flags);
}

int main(int argc, char **argv)
{
    long count = argc > 2 ? atol(argv[argc - 1]) : 0;
    if (argc == 3 && strcmp(argv[1], "ping") == 0 && count > 0) {
        int64_t blocking = ping(count, 0), spinning = ping(count, MSG_DONTWAIT);
        printf("{\"p50_ns\": %lld, \"blocking_ns\": %lld, \"spinning_ns\": %lld}\n",
               (long long)(blocking < spinning ? blocking : spinning), (long long)blocking, (long long)spinning);
        return 0;
    }
    if (argc == 4 && strcmp(argv[1], "copy") == 0 && count > 0 && atol(argv[2]) > 0) {
        size_t bytes = (size_t)atol(argv[2]);
        int fd = connected(take, bytes, count, 0);
        char *memory = buffer(bytes);
        long index;
        int64_t took;
        for (index = -(count / 10 + 1); index < count; index++)
            all(fd, 1, memory, bytes, 0);
        all(fd, 0, (char *)&took, sizeof took, 0);
        wait(NULL);
        printf("{\"bytes_per_s\": %.0f}\n", (double)bytes * (double)count / (double)took * 1e9);
        return 0;
    }
    fprintf(stderr, "usage: tcp ping ITERATIONS | tcp copy BYTES COUNT\n");
    return 2;
}
