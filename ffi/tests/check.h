/* Shared parts of the C programs: checks that stop the program, tables, and two processes. */
#ifndef CHECK_H
#define CHECK_H

#include "slackline.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIMEOUT_MS = 60000, WEIGHTS = 1000, BIASES = 10, ELEMENTS = WEIGHTS + BIASES };

static inline void fail(int line, const char *what)
{
    fprintf(stderr, "%s:%d: process %d: %s; last error: %s\n", __BASE_FILE__, line, (int)getpid(), what, slackline_last_error());
    exit(1);
}

#define CHECK(condition)                 \
    do {                                 \
        if (!(condition))                \
            fail(__LINE__, #condition);  \
    } while (0)

/* True if the last message has a path of Rust in it, such as Job::role. An IPv6 address is none. */
static inline int names_rust(void)
{
    const char *at = slackline_last_error();
    while ((at = strstr(at, "::")) != NULL)
        if (isalpha((unsigned char)*(at += 2)))
            return 1;
    return 0;
}

static inline void expect(int line, const char *what, slackline_status wanted, slackline_status got)
{
    if (got != wanted) {
        fprintf(stderr, "wanted %s, got %s\n", slackline_status_name(wanted), slackline_status_name(got));
        fail(line, what);
    }
    /* Every failure says something. */
    if (got != SLACKLINE_STATUS_OK && strlen(slackline_last_error()) < 10)
        fail(line, "no message");
    if (got != SLACKLINE_STATUS_OK && names_rust())
        fail(line, "the message names something that only Rust has");
}

#define EXPECT(status, call) expect(__LINE__, #call, SLACKLINE_STATUS_##status, (call))
#define OK(call) EXPECT(OK, call)

/* True if the last message holds `word`. */
static inline int said(const char *word)
{
    return strstr(slackline_last_error(), word) != NULL;
}

static const uint64_t weight_shape[2] = {50, 20};
static const uint64_t bias_shape[1] = {BIASES};

static inline void layer(struct slackline_tensor tensors[2])
{
    memset(tensors, 0, 2 * sizeof tensors[0]);
    tensors[0].name = "weight";
    tensors[0].shape = weight_shape;
    tensors[0].rank = 2;
    tensors[0].element = SLACKLINE_ELEMENT_F32;
    tensors[1].name = "bias";
    tensors[1].shape = bias_shape;
    tensors[1].rank = 1;
    tensors[1].element = SLACKLINE_ELEMENT_F32;
}

static inline struct slackline_server_options server_options(void)
{
    struct slackline_server_options options;
    options.size = sizeof options;
    OK(slackline_server_options_init(&options));
    return options;
}

static inline struct slackline_worker_options worker_options(void)
{
    struct slackline_worker_options options;
    options.size = sizeof options;
    OK(slackline_worker_options_init(&options));
    return options;
}

/* ------------------------------------------------------------------ a quadratic */

/* The gradient of (p - target)^2 / 2; with a rate of 1/2 every step halves the distance, exactly. */
static inline float target_of(size_t index)
{
    return (float)(index % 16) - 8.0f;
}

static inline void set_one_from_target(float parameters[ELEMENTS])
{
    size_t index;
    for (index = 0; index < ELEMENTS; index++)
        parameters[index] = target_of(index) + 1.0f;
}

/* Fails unless the server has taken so many steps from there. */
static inline void check_steps_taken(const struct slackline_server *server, int steps)
{
    float parameters[ELEMENTS];
    size_t index;
    OK(slackline_server_parameters(server, parameters, ELEMENTS));
    for (index = 0; index < ELEMENTS; index++)
        CHECK(parameters[index] == target_of(index) + ldexpf(1.0f, -steps));
}

/* ------------------------------------------------------------------ two processes */

#define ADDRESS_SIZE 64

/* Writes the address to listen at: a name for this run, or any free port of this host. */
static inline void own_address(char text[ADDRESS_SIZE], const char *role, int tcp)
{
    if (tcp)
        snprintf(text, ADDRESS_SIZE, "127.0.0.1:0");
    else
        snprintf(text, ADDRESS_SIZE, "@slackline-smoke-%s-%d", role, (int)getpid());
}

/* Forks. The child waits until the parent calls `start`, as connecting needs a listener; it is told the address. */
static inline pid_t pair(int gate[2], char address[ADDRESS_SIZE])
{
    pid_t child;
    CHECK(pipe(gate) == 0);
    fflush(NULL);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(gate[1]);
        CHECK(read(gate[0], address, ADDRESS_SIZE) == ADDRESS_SIZE);
    }
    return child;
}

static inline void start(const int gate[2], const char *address)
{
    char text[ADDRESS_SIZE] = {0};
    CHECK(strlen(address) < ADDRESS_SIZE);
    memcpy(text, address, strlen(address));
    CHECK(write(gate[1], text, ADDRESS_SIZE) == ADDRESS_SIZE);
}

/* One clock of a worker: every gradient is 1. */
static inline void step(struct slackline_worker *worker)
{
    float *gradient;
    size_t len, index;

    OK(slackline_worker_begin(worker, NULL, TIMEOUT_MS));
    OK(slackline_worker_gradient(worker, &gradient, &len));
    for (index = 0; index < len; index++)
        gradient[index] = 1;
    OK(slackline_worker_publish(worker, NULL, TIMEOUT_MS));
}

/* Runs something in a child, which ends with 0 if all its checks passed. */
static inline pid_t in_a_child(void (*run)(const char *address), const char *address)
{
    pid_t child;
    fflush(NULL);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        run(address);
        exit(0);
    }
    return child;
}

static inline void join(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#endif
