/*
 * A worker in C, beside plain steps: it computes where parameters and gradients lie, connects again, shows what it
 * has published, and says what it did. Exits with 0 if all checks passed.
 */
#include "check.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>

enum { CLOCKS = 10 };

static struct slackline_worker_status status_of(struct slackline_worker *worker)
{
    struct slackline_worker_status status;
    status.size = sizeof status;
    OK(slackline_worker_get_status(worker, &status));
    return status;
}

/* ------------------------------------------------------------------ in place */

static void compute_in_place(const char *address)
{
    struct slackline_worker_options options = worker_options();
    const struct slackline_tensor *tensors;
    struct slackline_worker *worker;
    struct slackline_worker_status status;
    struct slackline_view view;
    const float *parameters;
    const char *scheme;
    void *slot, *again;
    float *gradient;
    size_t len, bytes, index, count;
    int clock;

    options.read = SLACKLINE_READ_IN_PLACE;
    OK(slackline_worker_connect(&address, 1, &options, TIMEOUT_MS, &worker));
    OK(slackline_worker_scheme(worker, &scheme));
    CHECK(strcmp(scheme, "ssp(0)") == 0);
    OK(slackline_worker_table(worker, &tensors, &count));
    CHECK(count == 2 && strcmp(tensors[1].name, "bias") == 0 && tensors[1].shape[0] == BIASES);
    EXPECT(OUT_OF_TURN, slackline_worker_in_place(worker, 0, &parameters, &len));
    EXPECT(OUT_OF_TURN, slackline_worker_slot(worker, 0, TIMEOUT_MS, &slot, &bytes));
    view.size = sizeof view;
    for (clock = 0; clock < CLOCKS; clock++) {
        OK(slackline_worker_begin(worker, &view, TIMEOUT_MS));
        CHECK(view.clock == (uint64_t)clock && view.version == (uint64_t)clock);
        EXPECT(OUT_OF_TURN, slackline_worker_parameters(worker, &parameters, &len));
        EXPECT(OUT_OF_TURN, slackline_worker_in_place(worker, 1, &parameters, &len));
        OK(slackline_worker_in_place(worker, 0, &parameters, &len));
        CHECK(len == ELEMENTS);
        EXPECT(OUT_OF_TURN, slackline_worker_publish_slots(worker, NULL, TIMEOUT_MS));
        CHECK(said("slackline_worker_slot"));
        EXPECT(BAD_ARGUMENT, slackline_worker_slot(worker, 1, TIMEOUT_MS, &slot, &bytes));
        OK(slackline_worker_slot(worker, 0, TIMEOUT_MS, &slot, &bytes));
        OK(slackline_worker_slot(worker, 0, TIMEOUT_MS, &again, &bytes));
        CHECK(slot == again && bytes == ELEMENTS * sizeof *gradient);
        gradient = slot;
        for (index = 0; index < len; index++)
            gradient[index] = parameters[index] - target_of(index);
        if (clock == 3) {
            /* Nothing of an abandoned step is published: the next begin is of the same clock. */
            memset(slot, 0x7f, bytes);
            OK(slackline_worker_abandon(worker));
            EXPECT(OUT_OF_TURN, slackline_worker_publish_slots(worker, NULL, TIMEOUT_MS));
            EXPECT(OUT_OF_TURN, slackline_worker_abandon(worker));
            OK(slackline_worker_begin(worker, &view, TIMEOUT_MS));
            CHECK(view.clock == 3);
            OK(slackline_worker_in_place(worker, 0, &parameters, &len));
            OK(slackline_worker_slot(worker, 0, TIMEOUT_MS, &slot, &bytes));
            gradient = slot;
            for (index = 0; index < len; index++)
                gradient[index] = parameters[index] - target_of(index);
        }
        OK(slackline_worker_publish_slots(worker, NULL, TIMEOUT_MS));
        EXPECT(OUT_OF_TURN, slackline_worker_publish_slots(worker, NULL, TIMEOUT_MS));
    }
    OK(slackline_worker_flush(worker, TIMEOUT_MS));
    status = status_of(worker);
    CHECK(status.clock == CLOCKS && status.published == CLOCKS && status.abandoned == 1);
    CHECK(status.bytes_published == 0 && status.bytes_pulled == 0 && status.reconnects == 0);
    slackline_worker_destroy(worker);
}

/* Begins to publish, and sees to it between other things that this worker has to do. */
static void publish_without_waiting(struct slackline_worker *worker, uint64_t published)
{
    slackline_status status = slackline_worker_publish(worker, NULL, 0);

    if (status != SLACKLINE_STATUS_OK)
        EXPECT(DEADLINE, status);
    while (status_of(worker).published < published)
        OK(slackline_worker_progress(worker, NULL));
}

/* Tries to compute in place where memory is not shared: that is refused, and copies work. */
static void compute_on_copies(const char *address)
{
    struct slackline_worker_options options = worker_options();
    struct slackline_worker *worker;
    struct slackline_worker_status status;
    struct slackline_staleness staleness;
    const float *parameters;
    float *gradient;
    void *slot;
    size_t len, index;
    int clock;

    options.identity = 1;
    OK(slackline_worker_connect(&address, 1, &options, TIMEOUT_MS, &worker));
    for (clock = 0; clock < CLOCKS; clock++) {
        OK(slackline_worker_begin(worker, NULL, TIMEOUT_MS));
        if (clock == 0)
            EXPECT(UNSUPPORTED, slackline_worker_slot(worker, 0, TIMEOUT_MS, &slot, &len));
        OK(slackline_worker_parameters(worker, &parameters, &len));
        OK(slackline_worker_gradient(worker, &gradient, &len));
        for (index = 0; index < len; index++)
            gradient[index] = parameters[index] - target_of(index);
        if (clock % 2 == 0)
            OK(slackline_worker_publish(worker, NULL, TIMEOUT_MS));
        else
            publish_without_waiting(worker, clock + 1);
    }
    OK(slackline_worker_flush(worker, TIMEOUT_MS));
    staleness.size = sizeof staleness - sizeof(uint64_t);
    EXPECT(BAD_ARGUMENT, slackline_worker_get_staleness(worker, &staleness));
    staleness.size = sizeof staleness;
    OK(slackline_worker_get_staleness(worker, &staleness));
    CHECK(staleness.gradients == CLOCKS && staleness.largest == 0 && staleness.counts[0] == CLOCKS);
    CHECK(staleness.counts[1] == 0 && staleness.counts[SLACKLINE_STALENESS_COUNTS - 1] == 0);
    status = status_of(worker);
    CHECK(status.bytes_published == CLOCKS * ELEMENTS * sizeof *gradient);
    /* A copy that is begun again is counted too. */
    CHECK(status.bytes_pulled >= CLOCKS * ELEMENTS * sizeof *parameters);
    slackline_worker_destroy(worker);
}

static void a_worker_computes_where_its_memory_is(int tcp)
{
    struct slackline_server_options options = server_options();
    struct slackline_server_status status;
    struct slackline_server *server;
    struct slackline_tensor tensors[2];
    float parameters[ELEMENTS];
    const char *address;
    char text[ADDRESS_SIZE];
    pid_t child;
    int gate[2];

    own_address(text, "steps", tcp);
    child = pair(gate, text);
    if (child == 0) {
        if (tcp)
            compute_on_copies(text);
        else
            compute_in_place(text);
        exit(0);
    }
    layer(tensors);
    set_one_from_target(parameters);
    options.scheme = "ssp(0)";
    options.learning_rate = 0.5f;
    options.measure_moments = 1;
    OK(slackline_server_create(text, tensors, 2, parameters, ELEMENTS, &options, &server));
    OK(slackline_server_address(server, &address));
    start(gate, address);
    OK(slackline_server_serve(server, 1, TIMEOUT_MS));
    join(child);
    status.size = sizeof status;
    OK(slackline_server_get_status(server, &status));
    CHECK(status.version == CLOCKS && status.folded == CLOCKS && status.gradients == 1 && status.epoch != 0);
    CHECK(status.diverged == SLACKLINE_NO_VERSION && status.misbehaved == 0 && status.mean_norm_squared >= 0);
    CHECK(status.access_violations == 0 && status.staleness_bound == SLACKLINE_NO_STALENESS);
    check_steps_taken(server, CLOCKS);
    slackline_server_destroy(server);
}

/* ------------------------------------------------------------------ workers that cannot be */

static void ask_for_too_much(const char *address)
{
    struct slackline_worker_options options = worker_options();
    struct slackline_worker *worker;

    options.read = 2;
    EXPECT(BAD_ARGUMENT, slackline_worker_connect(&address, 1, &options, TIMEOUT_MS, &worker));
    options.read = SLACKLINE_READ_IN_PLACE;
    options.identity = (uint64_t)1 << 32;
    EXPECT(BAD_ARGUMENT, slackline_worker_connect(&address, 1, &options, TIMEOUT_MS, &worker));
    CHECK(worker == NULL && said("identity"));
    options.identity = 1;
    /* Over TCP nothing lies in this process's memory; over shared memory what lies there is the server's. */
    if (address[0] != '@') {
        EXPECT(UNSUPPORTED, slackline_worker_connect(&address, 1, &options, TIMEOUT_MS, &worker));
    } else {
        options.own_step = 0.5;
        EXPECT(BAD_ARGUMENT, slackline_worker_connect(&address, 1, &options, TIMEOUT_MS, &worker));
        CHECK(said("own_step"));
    }
    CHECK(worker == NULL);
}

static void a_worker_that_cannot_be_is_told_why(int tcp)
{
    struct slackline_server_options options = server_options();
    struct slackline_server *server;
    struct slackline_tensor tensors[2];
    static const float values[ELEMENTS];
    const char *address;
    char text[ADDRESS_SIZE];
    pid_t child;
    int gate[2];

    own_address(text, "refused", tcp);
    child = pair(gate, text);
    if (child == 0) {
        ask_for_too_much(text);
        exit(0);
    }
    layer(tensors);
    OK(slackline_server_create(text, tensors, 2, values, ELEMENTS, &options, &server));
    OK(slackline_server_address(server, &address));
    start(gate, address);
    /* It has joined before it finds out, and left. */
    OK(slackline_server_serve(server, 1, TIMEOUT_MS));
    join(child);
    slackline_server_destroy(server);
}

/* ------------------------------------------------------------------ read my writes */

static void publish_alone(const char *address)
{
    struct slackline_worker_options options = worker_options();
    struct slackline_worker *worker;
    struct slackline_view view;
    const float *parameters;
    float *gradient;
    size_t len, index;

    options.own_step = 0.5;
    OK(slackline_worker_connect(&address, 1, &options, TIMEOUT_MS, &worker));
    view.size = sizeof view;
    OK(slackline_worker_begin(worker, &view, TIMEOUT_MS));
    OK(slackline_worker_gradient(worker, &gradient, &len));
    for (index = 0; index < len; index++)
        gradient[index] = 1;
    OK(slackline_worker_publish(worker, NULL, TIMEOUT_MS));
    OK(slackline_worker_begin(worker, &view, TIMEOUT_MS));
    OK(slackline_worker_parameters(worker, &parameters, &len));
    CHECK(view.clock == 1 && view.version == 0 && parameters[0] == -0.5f && parameters[len - 1] == -0.5f);
    slackline_worker_destroy(worker);
}

/* The server waits for a second worker: what the first one sees of its gradient is its own doing. */
static void a_worker_sees_what_it_has_published(void)
{
    struct slackline_server_options options = server_options();
    struct slackline_server *server;
    struct slackline_tensor tensors[2];
    static const float values[ELEMENTS];
    char text[ADDRESS_SIZE];
    pid_t child;
    int gate[2];

    own_address(text, "own", 0);
    child = pair(gate, text);
    if (child == 0) {
        publish_alone(text);
        exit(0);
    }
    layer(tensors);
    options.scheme = "ssp(4)";
    options.workers = 2;
    options.damping = 2;
    EXPECT(BAD_ARGUMENT, slackline_server_create(text, tensors, 2, values, ELEMENTS, &options, &server));
    options.damping = SLACKLINE_DAMPING_INVERSE;
    options.idle = SLACKLINE_IDLE_SLEEP;
    OK(slackline_server_create(text, tensors, 2, values, ELEMENTS, &options, &server));
    start(gate, text);
    OK(slackline_server_serve(server, 1, TIMEOUT_MS));
    join(child);
    slackline_server_destroy(server);
}

/* ------------------------------------------------------------------ coming back */

static int has_published[2];

static void train_and_come_back(const char *address)
{
    struct slackline_worker_options options = worker_options();
    const char *nowhere = "@slackline-steps-nowhere";
    struct slackline_worker *worker;
    struct slackline_view view;
    slackline_status status;
    int clock;

    options.identity = 7;
    OK(slackline_worker_connect(&address, 1, &options, TIMEOUT_MS, &worker));
    view.size = sizeof view;
    for (clock = 0; clock < 3; clock++) {
        OK(slackline_worker_begin(worker, &view, TIMEOUT_MS));
        OK(slackline_worker_publish(worker, NULL, TIMEOUT_MS));
    }
    OK(slackline_worker_flush(worker, TIMEOUT_MS));
    CHECK(write(has_published[1], "", 1) == 1);
    do {
        usleep(1000);
        status = slackline_worker_begin(worker, NULL, TIMEOUT_MS);
    } while (status == SLACKLINE_STATUS_OK);
    EXPECT(SERVER_LOST, status);
    CHECK(slackline_worker_reconnect(worker, &nowhere, 1, 1) != SLACKLINE_STATUS_OK);
    EXPECT(OUT_OF_TURN, slackline_worker_begin(worker, NULL, TIMEOUT_MS));
    CHECK(said("reconnect"));
    OK(slackline_worker_reconnect(worker, &address, 1, TIMEOUT_MS));
    OK(slackline_worker_begin(worker, &view, TIMEOUT_MS));
    CHECK(view.clock == 3 && view.version == 3 && status_of(worker).reconnects == 1);
    OK(slackline_worker_publish(worker, NULL, TIMEOUT_MS));
    OK(slackline_worker_flush(worker, TIMEOUT_MS));
    slackline_worker_destroy(worker);
}

static void a_worker_connects_again_to_a_server_that_came_back(void)
{
    struct slackline_server_options options = server_options();
    struct slackline_server_status status;
    struct slackline_server *server;
    struct slackline_tensor tensors[2];
    static const float values[ELEMENTS];
    char folder[] = "/tmp/slackline-steps-XXXXXX", file[64], owner[80], text[ADDRESS_SIZE];
    struct pollfd published;
    pid_t child;
    int gate[2];

    CHECK(mkdtemp(folder) != NULL && pipe(has_published) == 0);
    own_address(text, "back", 0);
    child = pair(gate, text);
    if (child == 0) {
        train_and_come_back(text);
        exit(0);
    }
    layer(tensors);
    options.checkpoint_folder = folder;
    options.resume = SLACKLINE_RESUME_IF_THERE;
    OK(slackline_server_create(text, tensors, 2, values, ELEMENTS, &options, &server));
    start(gate, text);
    published.fd = has_published[0];
    published.events = POLLIN;
    while (poll(&published, 1, 0) == 0)
        EXPECT(DEADLINE, slackline_server_serve(server, 1, 5));
    OK(slackline_server_checkpoint(server, TIMEOUT_MS, NULL));
    slackline_server_destroy(server);
    OK(slackline_server_create(text, tensors, 2, values, ELEMENTS, &options, &server));
    OK(slackline_server_serve(server, 1, TIMEOUT_MS));
    join(child);
    status.size = sizeof status;
    OK(slackline_server_get_status(server, &status));
    CHECK(status.version == 4 && status.folded == 4 && status.lost_updates == 0);
    slackline_server_destroy(server);
    snprintf(file, sizeof file, "%s/shard-0-of-1.safetensors", folder);
    snprintf(owner, sizeof owner, "%s.owner", file);
    CHECK(unlink(file) == 0 && unlink(owner) == 0 && rmdir(folder) == 0);
}

/* ------------------------------------------------------------------ in the background */

/* Serves one worker under BAP in a child, which tells its address by the gate. */
static pid_t a_server_in_a_child(int gate[2])
{
    struct slackline_server_options options = server_options();
    struct slackline_server_status status;
    struct slackline_server *server;
    struct slackline_tensor tensors[2];
    static const float values[ELEMENTS];
    const char *address;
    pid_t child;

    CHECK(pipe(gate) == 0);
    fflush(NULL);
    child = fork();
    CHECK(child >= 0);
    if (child != 0)
        return child;
    /* A stopped process does not outlive a parent whose check has failed. */
    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    layer(tensors);
    options.scheme = "bap(2)";
    /* The worker, which stops this process, is not lost. */
    options.lease_ms = TIMEOUT_MS;
    OK(slackline_server_create("127.0.0.1:0", tensors, 2, values, ELEMENTS, &options, &server));
    OK(slackline_server_address(server, &address));
    start(gate, address);
    OK(slackline_server_serve(server, 1, TIMEOUT_MS));
    status.size = sizeof status;
    OK(slackline_server_get_status(server, &status));
    CHECK(status.version == 3 && status.folded == 3);
    slackline_server_destroy(server);
    exit(0);
}

/* With a timeout of 0 a call that waits at all fails. */
static void under_bap_a_step_begins_while_a_gradient_is_on_its_way(void)
{
    struct slackline_worker_options options = worker_options();
    struct slackline_worker *worker;
    struct slackline_view view;
    char text[ADDRESS_SIZE];
    const char *address = text;
    float *gradient, *before;
    size_t len;
    int gate[2], stopped;
    pid_t server = a_server_in_a_child(gate);

    CHECK(read(gate[0], text, ADDRESS_SIZE) == ADDRESS_SIZE);
    OK(slackline_worker_connect(&address, 1, &options, TIMEOUT_MS, &worker));
    view.size = sizeof view;
    OK(slackline_worker_begin(worker, &view, TIMEOUT_MS));
    OK(slackline_worker_publish(worker, NULL, TIMEOUT_MS));
    OK(slackline_worker_flush(worker, TIMEOUT_MS));
    CHECK(kill(server, SIGSTOP) == 0 && waitpid(server, &stopped, WUNTRACED) == server && WIFSTOPPED(stopped));
    OK(slackline_worker_begin(worker, &view, 0));
    OK(slackline_worker_gradient(worker, &before, &len));
    OK(slackline_worker_publish(worker, NULL, 0));
    OK(slackline_worker_begin(worker, &view, 0));
    OK(slackline_worker_gradient(worker, &gradient, &len));
    CHECK(view.clock == 2 && gradient != before);
    EXPECT(DEADLINE, slackline_worker_publish(worker, NULL, 0));
    CHECK(said("the step before") && slackline_last_error_is_retryable());
    OK(slackline_worker_begin(worker, &view, 0));
    CHECK(view.clock == 2);
    CHECK(kill(server, SIGCONT) == 0);
    OK(slackline_worker_publish(worker, NULL, TIMEOUT_MS));
    OK(slackline_worker_flush(worker, TIMEOUT_MS));
    slackline_worker_destroy(worker);
    join(server);
}

/* ------------------------------------------------------------------ local steps */

/* Gives up at a step, or never. */
struct computing {
    struct slackline_worker *worker;
    uint64_t gives_up_at, steps;
};

static uint32_t compute(void *context, uint64_t step, const float *parameters, float *gradient, size_t len, float *loss)
{
    struct computing *computing = context;
    uint32_t stop = 1;
    size_t index;

    CHECK(step == computing->steps++ && len == ELEMENTS && *loss == 0);
    OK(slackline_worker_should_stop(computing->worker, &stop));
    for (index = 0; index < len; index++)
        gradient[index] = parameters[index] - target_of(index);
    *loss = gradient[0];
    return stop || step == computing->gives_up_at;
}

static void make_local_steps(const char *address)
{
    struct slackline_worker_options options = worker_options();
    struct slackline_local_steps *steps;
    struct computing computing = {NULL, UINT64_MAX, 0};
    const float *parameters;
    float *gradient, loss;
    size_t len, room;
    uint32_t done;

    EXPECT(BAD_ARGUMENT, slackline_local_steps_create(0, 0.5f, &steps));
    EXPECT(BAD_ARGUMENT, slackline_local_steps_create(2, 0, &steps));
    EXPECT(BAD_ARGUMENT, slackline_local_steps_create(2, NAN, &steps));
    CHECK(steps == NULL);
    OK(slackline_local_steps_create(3, 0.5f, &steps));
    OK(slackline_worker_connect(&address, 1, &options, TIMEOUT_MS, &computing.worker));
    OK(slackline_worker_begin(computing.worker, NULL, TIMEOUT_MS));
    OK(slackline_worker_parameters(computing.worker, &parameters, &len));
    OK(slackline_worker_gradient(computing.worker, &gradient, &room));
#define GRADIENT(len, compute) \
    slackline_local_steps_gradient(steps, parameters, gradient, len, compute, &computing, &loss, &done)
    EXPECT(BAD_ARGUMENT, GRADIENT(len, NULL));
    EXPECT(BAD_ARGUMENT, GRADIENT(SIZE_MAX, compute));
    computing.gives_up_at = 1;
    OK(GRADIENT(len, compute));
    CHECK(done == 0 && computing.steps == 2);
    computing.gives_up_at = UINT64_MAX;
    computing.steps = 0;
    OK(GRADIENT(len, compute));
    /* The distance goes from 1 to 1/2, 1/4 and 1/8. */
    CHECK(done == 1 && computing.steps == 3 && gradient[7] == 2 * (1 - 0.125f));
    CHECK(fabsf(loss - (1 + 0.5f + 0.25f) / 3) < 1e-6f);
    OK(slackline_worker_publish(computing.worker, &loss, TIMEOUT_MS));
    OK(slackline_worker_flush(computing.worker, TIMEOUT_MS));
    slackline_worker_destroy(computing.worker);
    slackline_local_steps_destroy(steps);
    slackline_local_steps_destroy(NULL);
#undef GRADIENT
}

static void local_steps_count_as_one_gradient(void)
{
    struct slackline_server_options options = server_options();
    struct slackline_tensor tensors[2];
    struct slackline_server *server;
    float parameters[ELEMENTS];
    char text[ADDRESS_SIZE];
    pid_t child;
    int gate[2];

    own_address(text, "local", 0);
    child = pair(gate, text);
    if (child == 0) {
        make_local_steps(text);
        exit(0);
    }
    layer(tensors);
    set_one_from_target(parameters);
    options.learning_rate = 0.5f;
    OK(slackline_server_create(text, tensors, 2, parameters, ELEMENTS, &options, &server));
    start(gate, text);
    OK(slackline_server_serve(server, 1, TIMEOUT_MS));
    join(child);
    check_steps_taken(server, 3);
    slackline_server_destroy(server);
}

int main(void)
{
    alarm(300);
    local_steps_count_as_one_gradient();
    a_worker_computes_where_its_memory_is(0);
    a_worker_computes_where_its_memory_is(1);
    a_worker_that_cannot_be_is_told_why(0);
    a_worker_that_cannot_be_is_told_why(1);
    a_worker_sees_what_it_has_published();
    a_worker_connects_again_to_a_server_that_came_back();
    under_bap_a_step_begins_while_a_gradient_is_on_its_way();
    puts("all checks passed");
    return 0;
}
