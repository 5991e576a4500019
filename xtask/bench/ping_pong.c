/*
 * The round trip of 8 bytes over a bare TCP connection on the loopback interface, between two processes that block in
 * recv: the limit that a request over TCP is held against.
 *
 *     ping_pong ITERATIONS        prints {"p50_ns": ...}
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
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

static void must(int condition, const char *what)
{
    if (!condition) {
        perror(what);
        exit(1);
    }
}

static void all(int fd, int sends, char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t done = sends ? send(fd, bytes, len, 0) : recv(fd, bytes, len, 0);
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

int main(int argc, char **argv)
{
    long iterations = argc > 1 ? atol(argv[1]) : 0, warmup = iterations / 10 + 1, index;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), fd, one = 1;
    int64_t *samples = malloc((size_t)(iterations > 0 ? iterations : 1) * sizeof *samples);
    char word[8] = {0};
    pid_t child;

    if (iterations < 1) {
        fprintf(stderr, "usage: ping_pong ITERATIONS\n");
        return 2;
    }
    must(samples != NULL, "malloc");
    must(listener >= 0 && bind(listener, (struct sockaddr *)&address, sizeof address) == 0, "bind");
    must(listen(listener, 1) == 0 && getsockname(listener, (struct sockaddr *)&address, &len) == 0, "listen");
    child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        fd = accept(listener, NULL, NULL);
        must(fd >= 0 && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0, "accept");
        for (index = 0; index < warmup + iterations; index++) {
            all(fd, 0, word, sizeof word);
            all(fd, 1, word, sizeof word);
        }
        _exit(0);
    }
    fd = socket(AF_INET, SOCK_STREAM, 0);
    must(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    must(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0, "TCP_NODELAY");
    for (index = -warmup; index < iterations; index++) {
        int64_t begun = now_ns();
        all(fd, 1, word, sizeof word);
        all(fd, 0, word, sizeof word);
        if (index >= 0)
            samples[index] = now_ns() - begun;
    }
    waitpid(child, NULL, 0);
    qsort(samples, (size_t)iterations, sizeof *samples, ascending);
    printf("{\"p50_ns\": %lld}\n", (long long)samples[iterations / 2]);
    return 0;
}
