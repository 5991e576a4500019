/*
 * A scheme written outside of the library, SSP whose bound shrinks, in the processes of a job:
 *   cc custom_scheme.c $(pkg-config --cflags --libs slackline) -o custom_scheme
 *   slackline launch -n 3 -- ./custom_scheme          (or torchrun, srun, mpirun)
 */
#include <slackline.h>
#include <stdio.h>
#include <stdlib.h>

enum { ELEMENTS = 16, CLOCKS = 60, FIRST = 4, EVERY = 10, TIMEOUT_MS = 60000 };
/* The worker's half: it computes on its copy while that is fresh enough for its clock. */
struct half { unsigned first, every; uint64_t clock, held; int holds, due; };

/* Ends the program with the message of a call that failed. */
static void check(slackline_status status)
{
    if (status == SLACKLINE_STATUS_OK) return;
    fprintf(stderr, "error: %s\n", slackline_last_error());
    exit(1);
}

/* A copy may be `first` clocks behind at the beginning, and one less after each `every` clocks. */
static uint64_t needed(unsigned first, unsigned every, uint64_t clock)
{
    uint64_t bound = clock / every < first ? first - clock / every : 0;
    return clock > bound ? clock - bound : 0;
}

static const char *needs(void *context, const char *settings, struct slackline_scheme_needs *needs)
{
    unsigned first, every;
    (void)context;
    if (sscanf(settings, "%u, %u", &first, &every) != 2 || every == 0)
        return "cannot read the settings: write two numbers, such as 4, 10";
    needs->staleness = first; /* the simulator holds it to that */
    return NULL;
}

static const char *create(void *context, const char *settings, const struct slackline_scheme_start *start, void **made)
{
    struct half *half = *made = calloc(1, sizeof *half);
    (void)context, (void)start;
    return half && sscanf(settings, "%u, %u", &half->first, &half->every) == 2 ? NULL : "no memory";
}

static const char *event(void *pointer, const struct slackline_scheme_event *event)
{
    struct half *half = pointer;
    switch (event->kind) {
    case SLACKLINE_EVENT_JOINED: half->clock = event->clock; half->holds = 0; break;
    case SLACKLINE_EVENT_HOLDS: half->held = event->clock; half->holds = 1; break;
    case SLACKLINE_EVENT_PUBLISHED: half->clock++; break;
    default: return NULL;
    }
    half->due = 1;
    return NULL;
}

static const char *action(void *pointer, struct slackline_scheme_action *action)
{
    struct half *half = pointer;
    action->clock = needed(half->first, half->every, half->clock);
    if (half->due)
        action->kind = half->holds && half->held >= action->clock ? SLACKLINE_ACTION_COMPUTE : SLACKLINE_ACTION_REFRESH;
    half->due = 0;
    return NULL;
}

static void serve(struct slackline_job *job)
{
    const struct slackline_tensor table = { "weight", (const uint64_t[]){ ELEMENTS }, 1, SLACKLINE_ELEMENT_F32 };
    struct slackline_server_options options = { .size = sizeof options };
    struct slackline_server *server;
    float weights[ELEMENTS] = { 0 };
    check(slackline_server_options_init(&options));
    options.scheme = "shrinking-ssp(4, 10)"; /* the workers learn it from the server */
    options.learning_rate = 0.1f;
    check(slackline_job_server(job, &table, 1, weights, ELEMENTS, &options, &server));
    check(slackline_job_serve(job, server, TIMEOUT_MS));
    check(slackline_server_parameters(server, weights, ELEMENTS));
    printf("trained to %.3f of 1\n", weights[0]);
    slackline_server_destroy(server);
}

static void work(struct slackline_job *job)
{
    struct slackline_worker_options options = { .size = sizeof options };
    struct slackline_view view = { .size = sizeof view };
    struct slackline_worker *worker;
    check(slackline_worker_options_init(&options));
    check(slackline_job_worker(job, &options, &worker));
    for (int clock = 0; clock < CLOCKS; clock++) {
        const float *weights; float *gradient; size_t len;
        check(slackline_worker_begin(worker, &view, TIMEOUT_MS));
        if (view.smallest_clock < needed(FIRST, EVERY, view.clock)) exit(2);
        check(slackline_worker_parameters(worker, &weights, &len));
        check(slackline_worker_gradient(worker, &gradient, &len));
        while (len-- > 0) gradient[len] = weights[len] - 1;
        check(slackline_worker_publish(worker, NULL, TIMEOUT_MS));
    }
    check(slackline_worker_flush(worker, TIMEOUT_MS));
    check(slackline_job_finish(job, worker, TIMEOUT_MS));
    slackline_worker_destroy(worker);
}

int main(void)
{
    const struct slackline_scheme scheme = { .size = sizeof scheme, .name = "shrinking-ssp", .base = "asp",
        .needs = needs, .worker = { create, event, action, free } }; /* the server's half is that of "asp" */
    struct slackline_job_options options = { .size = sizeof options };
    struct slackline_job *job; uint32_t role;
    check(slackline_scheme_register(&scheme));
    check(slackline_job_options_init(&options));
    check(slackline_job_from_env(&options, &job));
    check(slackline_job_role(job, &role, NULL, NULL));
    role == SLACKLINE_ROLE_SERVER ? serve(job) : work(job);
    slackline_job_destroy(job);
    return 0;
}
