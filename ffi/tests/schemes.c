/*
 * Schemes in C, under real servers and in the simulator: they keep their bounds, and those that fail or ask for
 * nonsense are told so. Exits with 0 if all checks passed.
 */
#include "check.h"

enum { QUEUE = 4096, CLOCKS = 10 };

/* ------------------------------------------------------------------ a scheme */

/* The scheme "own(STALENESS, FAULT)" is SSP, both halves of it in C, with one of these faults. */
enum fault {
    NONE,
    SERVER_CREATE, SERVER_EVENT, SERVER_ACTION, TWICE, EARLY, WEIGHT, NO_ARRAY, ODD_KIND, WORKER_KIND, ENDLESS_PUSH,
    ABSENT, DROPS, FORGETS,
    WORKER_CREATE, WORKER_EVENT, WORKER_ACTION, NO_COPY, IMPATIENT, ENDLESS_REFRESH, SERVER_KIND, LOOSE, NEVER, SLOW,
    NO_SLOTS
};

static const char *parse(const char *settings, unsigned *staleness, unsigned *fault)
{
    return sscanf(settings, "%u, %u", staleness, fault) == 2 ? NULL : "write two numbers, such as 2, 0";
}

static const char *needs(void *context, const char *settings, struct slackline_scheme_needs *needs)
{
    unsigned staleness = 0, fault = 0;
    const char *error = parse(settings, &staleness, &fault);

    CHECK(context == NULL && needs->size == sizeof *needs);
    CHECK(needs->staleness == SLACKLINE_NO_STALENESS && needs->slots == 2 && !needs->folds_all_in_order);
    needs->staleness = staleness;
    needs->folds_all_in_order = fault != FORGETS;
    if (fault == NO_SLOTS)
        needs->slots = 0;
    return error;
}

/* ------------------------------------------------------------------ its server */

struct serving {
    unsigned staleness, fault, members, first, count;
    int is_folding;
    struct slackline_share queue[QUEUE], asked[2];
};

static const char *serve_create(void *context, const char *settings, const struct slackline_scheme_start *start,
                                void **made)
{
    struct serving *serving = calloc(1, sizeof *serving);

    CHECK(context == NULL && start->size == sizeof *start && start->workers > 0);
    CHECK(parse(settings, &serving->staleness, &serving->fault) == NULL);
    if (serving->fault == SERVER_CREATE) {
        free(serving);
        return "no room";
    }
    *made = serving;
    return NULL;
}

static const char *serve_event(void *half, const struct slackline_scheme_event *event)
{
    struct serving *serving = half;
    struct slackline_share *share;
    unsigned from, to = 0;

    CHECK(event->size == sizeof *event);
    switch (event->kind) {
    case SLACKLINE_EVENT_JOINED:
        serving->members++;
        break;
    case SLACKLINE_EVENT_LEFT:
        serving->members--;
        for (from = 0; from < serving->count; from++)
            if (serving->queue[(serving->first + from) % QUEUE].worker != event->worker)
                serving->queue[(serving->first + to++) % QUEUE] = serving->queue[(serving->first + from) % QUEUE];
        serving->count = to;
        break;
    case SLACKLINE_EVENT_ARRIVED:
        if (serving->fault == SERVER_EVENT && event->clock == 3)
            return "out of ideas";
        CHECK(serving->count < QUEUE && isnan(event->magnitude));
        share = &serving->queue[(serving->first + serving->count++) % QUEUE];
        share->worker = event->worker;
        share->clock = event->clock;
        break;
    case SLACKLINE_EVENT_APPLIED:
        serving->is_folding = 0;
        break;
    }
    return NULL;
}

static const char *serve_action(void *half, struct slackline_scheme_action *action)
{
    struct serving *serving = half;
    struct slackline_share *asked = serving->asked;

    CHECK(action->size == sizeof *action && action->kind == SLACKLINE_ACTION_NONE);
    if (serving->is_folding || serving->count == 0)
        return NULL;
    asked[0] = serving->queue[serving->first];
    asked[0].weight = 1.0f / (float)serving->members;
    serving->first = (serving->first + 1) % QUEUE;
    serving->count--;
    action->kind = SLACKLINE_ACTION_APPLY;
    action->shares = asked;
    action->share_count = 1;
    action->worker = asked[0].worker;
    action->clock = asked[0].clock;
    switch (serving->fault) {
    case SERVER_ACTION: return "out of luck";
    case TWICE: asked[1] = asked[0]; action->share_count = 2; break;
    case EARLY: asked[0].clock++; break;
    case WEIGHT: asked[0].weight = NAN; break;
    case NO_ARRAY: action->shares = NULL; break;
    case ODD_KIND: action->kind = 99; break;
    case WORKER_KIND: action->kind = SLACKLINE_ACTION_COMPUTE; break;
    case ENDLESS_PUSH: action->kind = SLACKLINE_ACTION_PUSH; serving->count++; break;
    case ABSENT: action->kind = SLACKLINE_ACTION_INTERRUPT; action->worker = 77; break;
    case DROPS: case FORGETS: action->kind = SLACKLINE_ACTION_DROP; break;
    default: serving->is_folding = 1;
    }
    return NULL;
}

/* ------------------------------------------------------------------ its worker */

struct working {
    unsigned staleness, fault, last;
    uint64_t clock, held, now;
    int holds, due;
};

static const char *work_create(void *context, const char *settings, const struct slackline_scheme_start *start,
                               void **made)
{
    struct working *working = calloc(1, sizeof *working);

    CHECK(context == NULL && start->size == sizeof *start && start->workers == 0);
    CHECK(parse(settings, &working->staleness, &working->fault) == NULL);
    if (working->fault == WORKER_CREATE) {
        free(working);
        return "no room";
    }
    *made = working;
    return NULL;
}

static const char *work_event(void *half, const struct slackline_scheme_event *event)
{
    struct working *working = half;

    working->now = event->now_ns;
    if (working->fault == NEVER)
        return NULL;
    switch (event->kind) {
    case SLACKLINE_EVENT_JOINED: working->clock = event->clock; working->holds = 0; break;
    case SLACKLINE_EVENT_HOLDS: working->held = event->clock; working->holds = 1; break;
    case SLACKLINE_EVENT_PUBLISHED: working->clock++; break;
    case SLACKLINE_EVENT_TIMEOUT: break;
    default: return NULL;
    }
    working->due = 1;
    working->last = event->kind;
    return working->fault == WORKER_EVENT && event->kind == SLACKLINE_EVENT_HOLDS ? "out of ideas" : NULL;
}

static const char *work_action(void *half, struct slackline_scheme_action *action)
{
    struct working *working = half;
    uint64_t bound = working->staleness + (working->fault == LOOSE);

    action->clock = working->clock > bound ? working->clock - bound : 0;
    if (!working->due && !(working->fault == IMPATIENT && working->holds))
        return NULL;
    working->due = working->fault == ENDLESS_REFRESH;
    action->kind = SLACKLINE_ACTION_REFRESH;
    if (working->holds && working->held >= action->clock)
        action->kind = SLACKLINE_ACTION_COMPUTE;
    switch (working->fault) {
    case WORKER_ACTION: return "out of luck";
    case NO_COPY: action->kind = SLACKLINE_ACTION_COMPUTE; break;
    case ENDLESS_REFRESH: action->kind = SLACKLINE_ACTION_REFRESH; break;
    case SERVER_KIND: action->kind = SLACKLINE_ACTION_PUSH; break;
    case SLOW: /* a second before each computation */
        if (action->kind == SLACKLINE_ACTION_COMPUTE && working->last != SLACKLINE_EVENT_TIMEOUT) {
            action->kind = SLACKLINE_ACTION_NONE;
            action->wake_ns = working->now + 1000000000;
        }
        break;
    }
    return NULL;
}

static struct slackline_scheme own(void)
{
    struct slackline_scheme scheme = {
        .size = sizeof scheme, .name = "own", .needs = needs,
        .server = { serve_create, serve_event, serve_action, free },
        .worker = { work_create, work_event, work_action, free },
    };
    return scheme;
}

/* ------------------------------------------------------------------ registering */

static void schemes_that_cannot_be_are_not_registered(void)
{
    struct slackline_scheme wrong = own();

    EXPECT(BAD_ARGUMENT, slackline_scheme_register(NULL));
    wrong.size = sizeof wrong - 8;
    EXPECT(BAD_ARGUMENT, slackline_scheme_register(&wrong));
    CHECK(said("scheme->size"));
#define REFUSED(change, word)                                    \
    do {                                                         \
        wrong = own();                                           \
        change;                                                  \
        EXPECT(BAD_ARGUMENT, slackline_scheme_register(&wrong)); \
        CHECK(said(word));                                       \
    } while (0)
    REFUSED(wrong.name = NULL, "scheme->name is NULL");
    REFUSED(wrong.name = "", "no name");
    REFUSED(wrong.name = "own(2)", "no name");
    REFUSED(wrong.name = "own)", "no name");
    REFUSED(wrong.name = "\xff", "UTF-8");
    REFUSED(wrong.name = "ssp", "built-in");
    REFUSED(wrong.server.action = NULL, "(server)");
    REFUSED(wrong.worker.create = NULL, "(worker)");
    REFUSED(memset(&wrong.worker, 0, sizeof wrong.worker), "has no worker");
    REFUSED(wrong.base = "no-such", "no-such");
    REFUSED(wrong.base = "ds-sync(group=2)", "base");
    wrong = own();
    OK(slackline_scheme_register(&wrong));
    REFUSED((void)0, "already");
}

/* ------------------------------------------------------------------ simulated */

static struct slackline_simulate_options simulation(const char *scheme, uint64_t workers)
{
    struct slackline_simulate_options options = { .size = sizeof options };

    OK(slackline_simulate_options_init(&options));
    options.scheme = scheme;
    options.workers = workers;
    options.clocks = CLOCKS;
    return options;
}

static struct slackline_simulate_report simulated(struct slackline_simulate_options options)
{
    struct slackline_simulate_report report = { .size = sizeof report };

    OK(slackline_simulate(&options, &report));
    return report;
}

static void a_simulation_takes_the_time_that_arithmetic_says(void)
{
    struct slackline_simulate_options options = simulation("bsp", 4), other;
    struct slackline_simulate_report report = simulated(options);

    CHECK(report.end == CLOCKS && report.gradients == 4 * CLOCKS && report.mean_time_per_clock == 1);
    CHECK(report.computing == 4 * CLOCKS && report.waiting == 0 && report.wasted == 0);
    CHECK(report.mean_staleness == 0 && report.most_staleness == 0 && report.mean_lag == 0);
    CHECK(isnan(report.reached) && isnan(report.loss) && report.bytes == 0);
    options.latency = "0.5"; /* there and back before each computation */
    CHECK(simulated(options).end == 2 * CLOCKS);
    options.until = SLACKLINE_UNTIL_VERSIONS;
    options.versions = 7;
    CHECK(simulated(options).versions == 7);
    options.until = SLACKLINE_UNTIL_SECONDS;
    options.seconds = 12.5;
    CHECK(simulated(options).end == 12.5);
    options.until = SLACKLINE_UNTIL_LOSS;
    options.parameters = 10;
    options.seconds = 1000;
    report = simulated(options);
    CHECK(report.reached == report.end && report.loss <= options.loss && report.bytes > 0);
    other = options;
    CHECK(simulated(other).trace_hash == report.trace_hash);
    other.compute = "exp(1)";
    report = simulated(other);
    other.seed = 2;
    CHECK(simulated(other).trace_hash != report.trace_hash);
}

/* One parameter without noise: the loss falls by a factor for each version. */
static void a_simulation_moves_parameters_by_the_rule_that_it_is_given(void)
{
    struct slackline_simulate_options options = simulation("bsp", 2), other;
    double plain, end;

    options.parameters = 1;
    options.variance = 0;
    options.condition = 1;
    plain = simulated(options).loss;
    other = options;
    other.additive = 1;
    CHECK(simulated(other).loss < plain);
    other = options;
    other.momentum = 0.5;
    CHECK(simulated(other).loss < plain);
    other = options;
    /* The optimum is 0, towards which the decay pulls, too. */
    other.weight_decay = 1;
    CHECK(simulated(other).loss < plain);
    other = options;
    other.schedule = "steps(1, 0.5)";
    CHECK(simulated(other).loss > plain);
    options.scheme = "ssp(2)";
    options.latency = "1";
    end = simulated(options).loss;
    options.read_my_writes = 1;
    CHECK(simulated(options).loss != end);
}

static void a_simulation_that_cannot_be_is_refused(void)
{
    struct slackline_simulate_options options = simulation("bsp", 2), wrong = options;
    struct slackline_simulate_report report = { .size = sizeof report };

    EXPECT(BAD_ARGUMENT, slackline_simulate(NULL, &report));
    EXPECT(BAD_ARGUMENT, slackline_simulate(&options, NULL));
    EXPECT(BAD_ARGUMENT, slackline_simulate_options_init(NULL));
    report.size = 16;
    EXPECT(BAD_ARGUMENT, slackline_simulate(&options, &report));
    report.size = sizeof report;
#define UNFIT(change, word)                                        \
    do {                                                           \
        wrong = options;                                           \
        change;                                                    \
        EXPECT(BAD_ARGUMENT, slackline_simulate(&wrong, &report)); \
        CHECK(said(word));                                         \
    } while (0)
    UNFIT(wrong.size = 8, "options->size");
    UNFIT(wrong.scheme = NULL, "scheme");
    UNFIT(wrong.scheme = "own-ish", "own-ish");
    UNFIT(wrong.workers = 0, "workers");
    UNFIT(wrong.compute = "banana", "banana");
    UNFIT(wrong.compute = NULL, "options->compute is NULL");
    UNFIT(wrong.latency = "exp(-1)", "exp(-1)");
    UNFIT(wrong.server_bandwidth = -1, "bandwidth");
    UNFIT(wrong.until = 9, "until");
    UNFIT(wrong.clocks = 0, "until");
    UNFIT(wrong.damping = 9, "damping");
    UNFIT(wrong.parameters = UINT64_MAX, "parameters");
    UNFIT(wrong.until = SLACKLINE_UNTIL_LOSS, "problem");
    UNFIT(wrong.learning_rate = NAN, "learning_rate");
    UNFIT(wrong.schedule = "linear", "linear");
    UNFIT(wrong.momentum = 1, "momentum cannot be 1");
    UNFIT(wrong.weight_decay = NAN, "weight_decay cannot be");
    UNFIT((wrong.read_my_writes = 1, wrong.momentum = 0.5), "read_my_writes");
    UNFIT((wrong.additive = 1, wrong.scheme = "dbw"), "additive");
}

static void the_scheme_in_c_is_simulated_as_the_built_in_one(void)
{
    struct slackline_simulate_options options = simulation("own(2, 0)", 8);
    struct slackline_simulate_report report, same;

    options.compute = "exp(1)";
    options.latency = "uniform(0, 0.1)";
    options.parameters = 10;
    report = simulated(options);
    CHECK(report.most_staleness == 2);
    options.scheme = "ssp(2)";
    same = simulated(options);
    CHECK(report.trace_hash == same.trace_hash && report.end == same.end && report.loss == same.loss);
}

static void a_scheme_in_c_that_fails_or_asks_for_nonsense_is_told_so(void)
{
    const struct { enum fault fault; const char *word; } faults[] = {
        { SERVER_CREATE, "its create failed: no room" },
        { SERVER_EVENT, "its event failed: out of ideas" },
        { SERVER_ACTION, "its action failed: out of luck" },
        { TWICE, "twice" },
        { EARLY, "has not come" },
        { WEIGHT, "NaN" },
        { NO_ARRAY, "action->shares is NULL" },
        { ODD_KIND, "action 99" },
        { WORKER_KIND, "which no server does" },
        { ENDLESS_PUSH, "actions between two events" },
        { ABSENT, "worker 77, which is not in" },
        { DROPS, "every gradient is to be folded in" },
        { WORKER_CREATE, "its create failed: no room" },
        { WORKER_EVENT, "its event failed: out of ideas" },
        { WORKER_ACTION, "its action failed: out of luck" },
        { NO_COPY, "compute without a copy" },
        { IMPATIENT, "while it computes" },
        { ENDLESS_REFRESH, "actions between two events" },
        { SERVER_KIND, "which no worker does" },
        { LOOSE, "2 clocks behind, and the bound is 1" },
        { NEVER, "stuck" },
        { NO_SLOTS, "slots" },
    };
    struct slackline_simulate_report report = { .size = sizeof report };
    struct slackline_simulate_options options;
    char scheme[32];
    size_t index;

    for (index = 0; index < sizeof faults / sizeof faults[0]; index++) {
        snprintf(scheme, sizeof scheme, "own(1, %d)", (int)faults[index].fault);
        options = simulation(scheme, 4);
        options.compute = "exp(1)";
        EXPECT(SCHEME, slackline_simulate(&options, &report));
        CHECK(said(faults[index].word) && said("own"));
    }
    options.scheme = "own(none)";
    EXPECT(SCHEME, slackline_simulate(&options, &report));
    CHECK(said("write two numbers"));
}

static void a_scheme_in_c_drops_and_waits_as_it_likes(void)
{
    char scheme[32];
    struct slackline_simulate_report report;

    snprintf(scheme, sizeof scheme, "own(0, %d)", FORGETS);
    report = simulated(simulation(scheme, 2));
    CHECK(report.versions == 0 && report.dropped >= 2 * (CLOCKS - 1));
    snprintf(scheme, sizeof scheme, "own(0, %d)", SLOW);
    CHECK(simulated(simulation(scheme, 2)).end == 2 * CLOCKS);
}

/* ------------------------------------------------------------------ in real jobs */

static struct slackline_server *server_of(const char *scheme, const char *address, size_t workers)
{
    struct slackline_server_options options = server_options();
    struct slackline_server *server = NULL;
    struct slackline_tensor tensors[2];
    float parameters[ELEMENTS];

    layer(tensors);
    set_one_from_target(parameters);
    options.scheme = scheme;
    options.workers = workers;
    options.learning_rate = 0.5f;
    OK(slackline_server_create(address, tensors, 2, parameters, ELEMENTS, &options, &server));
    return server;
}

static struct slackline_worker *worker_of(const char *address)
{
    struct slackline_worker_options options = worker_options();
    struct slackline_worker *worker;

    OK(slackline_worker_connect(&address, 1, &options, TIMEOUT_MS, &worker));
    return worker;
}

/* Trains on copies that are at most `staleness` clocks behind, and says if all of them were fresh. */
static int train(const char *address, const char *wanted, uint64_t staleness)
{
    struct slackline_worker *worker = worker_of(address);
    struct slackline_view view = { .size = sizeof view };
    const float *parameters;
    const char *scheme;
    float *gradient;
    size_t len, index;
    int clock, are_fresh = 1;

    OK(slackline_worker_scheme(worker, &scheme));
    CHECK(strcmp(scheme, wanted) == 0);
    for (clock = 0; clock < CLOCKS; clock++) {
        OK(slackline_worker_begin(worker, &view, TIMEOUT_MS));
        CHECK(view.clock == (uint64_t)clock && view.staleness <= staleness);
        are_fresh &= view.staleness == 0;
        OK(slackline_worker_parameters(worker, &parameters, &len));
        OK(slackline_worker_gradient(worker, &gradient, &len));
        for (index = 0; index < len; index++)
            gradient[index] = parameters[index] - target_of(index);
        OK(slackline_worker_publish(worker, NULL, TIMEOUT_MS));
    }
    OK(slackline_worker_flush(worker, TIMEOUT_MS));
    slackline_worker_destroy(worker);
    return are_fresh;
}

static void a_scheme_in_c_trains_within_its_bound(unsigned staleness, int tcp)
{
    struct slackline_server_status status = { .size = sizeof status };
    struct slackline_server *server;
    const char *address;
    char text[ADDRESS_SIZE], scheme[32];
    int gates[2][2], index, workers = staleness == 0 ? 1 : 2;
    pid_t children[2];

    snprintf(scheme, sizeof scheme, "own(%u, 0)", staleness);
    for (index = 0; index < workers; index++) {
        children[index] = pair(gates[index], text);
        if (children[index] == 0) {
            /* A copy is used again for as long as it may be. */
            CHECK(train(text, scheme, staleness) == (staleness == 0));
            exit(0);
        }
    }
    own_address(text, "scheme", tcp);
    server = server_of(scheme, text, (size_t)workers);
    OK(slackline_server_address(server, &address));
    for (index = 0; index < workers; index++)
        start(gates[index], address);
    OK(slackline_server_serve(server, (uint64_t)workers, TIMEOUT_MS));
    for (index = 0; index < workers; index++)
        join(children[index]);
    OK(slackline_server_get_status(server, &status));
    CHECK(status.folded == (uint64_t)(workers * CLOCKS) && status.smallest_clock >= CLOCKS && status.dropped == 0);
    if (staleness == 0)
        check_steps_taken(server, CLOCKS);
    slackline_server_destroy(server);
}

static void a_scheme_in_c_that_fails_ends_the_call_that_ran_it(void)
{
    struct slackline_server *server;
    struct slackline_worker *worker;
    char text[ADDRESS_SIZE], scheme[32];
    int gate[2];
    pid_t child;

    own_address(text, "scheme-fails", 0);
    snprintf(scheme, sizeof scheme, "own(0, %d)", SERVER_CREATE);
    {
        struct slackline_server_options options = server_options();
        struct slackline_tensor tensors[2];
        float parameters[ELEMENTS] = {0};
        layer(tensors);
        options.scheme = scheme;
        EXPECT(SCHEME, slackline_server_create(text, tensors, 2, parameters, ELEMENTS, &options, &server));
        CHECK(server == NULL && said("scheme own: its create failed: no room"));
        options.scheme = "own(0, 0)";
        options.staleness = 3;
        EXPECT(BAD_ARGUMENT, slackline_server_create(text, tensors, 2, parameters, ELEMENTS, &options, &server));
        CHECK(said("takes no staleness"));
    }
    child = pair(gate, text);
    if (child == 0) {
        /* The worker publishes its fourth gradient, and then the server is no more. */
        worker = worker_of(text);
        while (slackline_worker_begin(worker, NULL, TIMEOUT_MS) == SLACKLINE_STATUS_OK)
            if (slackline_worker_publish(worker, NULL, TIMEOUT_MS) != SLACKLINE_STATUS_OK)
                break;
        CHECK(said("lost"));
        slackline_worker_destroy(worker);
        exit(0);
    }
    snprintf(scheme, sizeof scheme, "own(0, %d)", SERVER_EVENT);
    server = server_of(scheme, text, 1);
    start(gate, text);
    EXPECT(SCHEME, slackline_server_serve(server, 1, TIMEOUT_MS));
    CHECK(said("scheme own: its event failed: out of ideas") && !slackline_last_error_is_retryable());
    EXPECT(SCHEME, slackline_server_progress(server, NULL));
    slackline_server_destroy(server);
    join(child);
    child = pair(gate, text);
    if (child == 0) {
        worker = worker_of(text);
        EXPECT(SCHEME, slackline_worker_begin(worker, NULL, TIMEOUT_MS));
        CHECK(said("scheme own: its event failed: out of ideas"));
        EXPECT(SCHEME, slackline_worker_begin(worker, NULL, TIMEOUT_MS));
        slackline_worker_destroy(worker);
        exit(0);
    }
    snprintf(scheme, sizeof scheme, "own(0, %d)", WORKER_EVENT);
    server = server_of(scheme, text, 1);
    start(gate, text);
    OK(slackline_server_serve(server, 1, TIMEOUT_MS));
    slackline_server_destroy(server);
    join(child);
}

/* Over shared memory each copy comes at once. */
static void a_worker_in_c_that_refreshes_for_ever_meets_its_deadline(void)
{
    struct slackline_server *server;
    struct slackline_worker *worker;
    char text[ADDRESS_SIZE], scheme[32];
    int gate[2];
    pid_t child;

    own_address(text, "scheme-endless", 0);
    child = pair(gate, text);
    if (child == 0) {
        worker = worker_of(text);
        EXPECT(DEADLINE, slackline_worker_begin(worker, NULL, 100));
        slackline_worker_destroy(worker);
        exit(0);
    }
    snprintf(scheme, sizeof scheme, "own(0, %d)", ENDLESS_REFRESH);
    server = server_of(scheme, text, 1);
    start(gate, text);
    OK(slackline_server_serve(server, 1, TIMEOUT_MS));
    slackline_server_destroy(server);
    join(child);
}

/* Forked before the scheme is registered. */
static pid_t a_worker_that_does_not_know_the_scheme(int gate[2])
{
    char text[ADDRESS_SIZE];
    pid_t child = pair(gate, text);

    if (child == 0) {
        struct slackline_worker_options options = worker_options();
        struct slackline_worker *worker;
        const char *address = text;
        EXPECT(BAD_ARGUMENT, slackline_worker_connect(&address, 1, &options, TIMEOUT_MS, &worker));
        CHECK(worker == NULL && said("\"own\"") && said("slackline_scheme_register"));
        exit(0);
    }
    return child;
}

static void a_worker_that_does_not_know_the_scheme_is_told_so(const int gate[2], pid_t child)
{
    char text[ADDRESS_SIZE];
    struct slackline_server *server;
    int status;

    own_address(text, "scheme-unknown", 0);
    server = server_of("own(0, 0)", text, 1);
    start(gate, text);
    while (waitpid(child, &status, WNOHANG) == 0)
        OK(slackline_server_progress(server, NULL));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    slackline_server_destroy(server);
}

int main(void)
{
    int gate[2], tcp;
    pid_t unknowing = a_worker_that_does_not_know_the_scheme(gate);

    schemes_that_cannot_be_are_not_registered();
    a_worker_that_does_not_know_the_scheme_is_told_so(gate, unknowing);
    a_simulation_takes_the_time_that_arithmetic_says();
    a_simulation_moves_parameters_by_the_rule_that_it_is_given();
    a_simulation_that_cannot_be_is_refused();
    the_scheme_in_c_is_simulated_as_the_built_in_one();
    a_scheme_in_c_that_fails_or_asks_for_nonsense_is_told_so();
    a_scheme_in_c_drops_and_waits_as_it_likes();
    for (tcp = 0; tcp < 2; tcp++) {
        a_scheme_in_c_trains_within_its_bound(0, tcp);
        a_scheme_in_c_trains_within_its_bound(2, tcp);
    }
    a_scheme_in_c_that_fails_ends_the_call_that_ran_it();
    a_worker_in_c_that_refreshes_for_ever_meets_its_deadline();
    puts("all checks passed");
    return 0;
}
