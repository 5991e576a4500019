/* A C program that knows the installed header alone: a server and a worker in two processes. Prints "ok". */
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

int main(void)
{
    const uint64_t shape[1] = {ELEMENTS};
    const struct slackline_tensor tensor = {"weights", shape, 1, SLACKLINE_ELEMENT_F32};
    struct slackline_server_options options;
    struct slackline_server *server;
    float values[ELEMENTS] = {0};
    char address[64];
    pid_t child;
    int status;

    if (slackline_version_number() != SLACKLINE_VERSION_NUMBER)
        return 1;
    snprintf(address, sizeof address, "@slackline-check-%d", (int)getpid());
    /* It may come before the server. */
    child = fork();
    if (child == 0) {
        work(address);
        return 0;
    }
    options.size = sizeof options;
    ok("options", slackline_server_options_init(&options));
    options.learning_rate = 0.5f;
    ok("create", slackline_server_create(address, &tensor, 1, values, ELEMENTS, &options, &server));
    ok("serve", slackline_server_serve(server, 1, TIMEOUT_MS));
    ok("parameters", slackline_server_parameters(server, values, ELEMENTS));
    slackline_server_destroy(server);
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return 1;
    if (values[ELEMENTS - 1] != 1 - 1.0f / (1 << CLOCKS)) {
        fprintf(stderr, "the parameters are %.9g\n", values[ELEMENTS - 1]);
        return 1;
    }
    puts("ok");
    return 0;
}
