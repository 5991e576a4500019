/*
 * A C program that knows the installed header alone: a server and a worker in two processes, over shared memory and
 * then over TCP. Prints "ok".
 */
#define _POSIX_C_SOURCE 200809L

#include <slackline.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIMEOUT_MS = 20000, CLOCKS = 10, ELEMENTS = 4 };

static void ok(const char *what, slackline_status status)
{
    if (status != SLACKLINE_STATUS_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, slackline_status_name(status), slackline_last_error());
        exit(1);
    }
}

static void work(const char *address)
{
    struct slackline_worker_options options;
    struct slackline_worker *worker;
    const float *parameters;
    float *gradient;
    size_t len, index;
    int clock;

    options.size = sizeof options;
    ok("options", slackline_worker_options_init(&options));
    ok("connect", slackline_worker_connect(&address, 1, &options, TIMEOUT_MS, &worker));
    for (clock = 0; clock < CLOCKS; clock++) {
        ok("begin", slackline_worker_begin(worker, NULL, TIMEOUT_MS));
        ok("parameters", slackline_worker_parameters(worker, &parameters, &len));
        ok("gradient", slackline_worker_gradient(worker, &gradient, &len));
        for (index = 0; index < len; index++)
            gradient[index] = parameters[index] - 1;
        ok("publish", slackline_worker_publish(worker, NULL, TIMEOUT_MS));
    }
    ok("flush", slackline_worker_flush(worker, TIMEOUT_MS));
    slackline_worker_destroy(worker);
}

/* Trains with a server at `at`; the worker is told the address that the server has, which may have picked a port. */
static int train(const char *at)
{
    const uint64_t shape[1] = {ELEMENTS};
    const struct slackline_tensor tensor = {"weights", shape, 1, SLACKLINE_ELEMENT_F32};
    struct slackline_server_options options;
    struct slackline_server *server;
    float values[ELEMENTS] = {0};
    const char *address;
    char told[128] = {0};
    int ends[2], status;
    pid_t child;

    /* The worker's process is there before this one has threads of the library. */
    if (pipe(ends) != 0 || (child = fork()) < 0)
        return 1;
    if (child == 0) {
        if (read(ends[0], told, sizeof told) != sizeof told)
            _exit(1);
        work(told);
        _exit(0);
    }
    options.size = sizeof options;
    ok("options", slackline_server_options_init(&options));
    options.learning_rate = 0.5f;
    ok("create", slackline_server_create(at, &tensor, 1, values, ELEMENTS, &options, &server));
    ok("address", slackline_server_address(server, &address));
    snprintf(told, sizeof told, "%s", address);
    if (write(ends[1], told, sizeof told) != sizeof told)
        return 1;
    ok("serve", slackline_server_serve(server, 1, TIMEOUT_MS));
    ok("parameters", slackline_server_parameters(server, values, ELEMENTS));
    slackline_server_destroy(server);
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return 1;
    if (values[ELEMENTS - 1] != 1 - 1.0f / (1 << CLOCKS)) {
        fprintf(stderr, "%s: the parameters are %.9g\n", at, values[ELEMENTS - 1]);
        return 1;
    }
    return 0;
}

int main(void)
{
    char name[64];
    const char *at[2] = {name, "localhost:0"};
    int index, status;
    pid_t child;

    if (slackline_version_number() != SLACKLINE_VERSION_NUMBER)
        return 1;
    snprintf(name, sizeof name, "@slackline-check-%d", (int)getpid());
    for (index = 0; index < 2; index++) {
        /* In a process of its own: a child of one that has used the library could not use it. */
        child = fork();
        if (child == 0)
            _exit(train(at[index]));
        if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
            return 1;
    }
    puts("ok");
    return 0;
}
