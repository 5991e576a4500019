/*
 * Settings of servers, workers, publishers and readers, each by what it changes. Exits with 0 if all checks passed.
 */
#define _GNU_SOURCE /* RUSAGE_THREAD */
#include "check.h"

#include <poll.h>
#include <sys/resource.h>

static const char SECRET[] = "a secret of the job, long enough";

static struct slackline_reader_options reader_options(void)
{
    struct slackline_reader_options options;
    options.size = sizeof options;
    OK(slackline_reader_options_init(&options));
    return options;
}

static struct slackline_publisher_options publisher_options(void)
{
    struct slackline_publisher_options options;
    options.size = sizeof options;
    OK(slackline_publisher_options_init(&options));
    options.background = 1;
    return options;
}

static struct slackline_worker *worker_at(const char *address, const struct slackline_worker_options *options)
{
    struct slackline_worker *worker;
    OK(slackline_worker_connect(&address, 1, options, TIMEOUT_MS, &worker));
    return worker;
}

/* Serves `workers` workers, all of which `run` has, until they have left; the first parameter at the end. */
static float serve(struct slackline_server_options options, size_t workers, void (*run)(const char *address), int tcp)
{
    static const float values[ELEMENTS];
    static float parameters[ELEMENTS];
    struct slackline_tensor tensors[2];
    struct slackline_server *server;
    char text[ADDRESS_SIZE];
    const char *address;
    pid_t child;

    layer(tensors);
    own_address(text, "settings", tcp);
    options.workers = workers;
    options.learning_rate = 1;
    OK(slackline_server_create(text, tensors, 2, values, ELEMENTS, &options, &server));
    OK(slackline_server_address(server, &address));
    child = in_a_child(run, address);
    OK(slackline_server_serve(server, workers, TIMEOUT_MS));
    OK(slackline_server_parameters(server, parameters, ELEMENTS));
    slackline_server_destroy(server);
    join(child);
    return parameters[0];
}

/* ------------------------------------------------------------------ servers */

static void make_three_steps(const char *address)
{
    struct slackline_worker_options options = worker_options();
    struct slackline_worker *worker = worker_at(address, &options);
    int clock;

    for (clock = 0; clock < 3; clock++)
        step(worker);
    OK(slackline_worker_flush(worker, TIMEOUT_MS));
    slackline_worker_destroy(worker);
}

static void the_step_size_falls_by_the_schedule(void)
{
    struct slackline_server_options options = server_options();
    struct slackline_tensor tensors[2];
    struct slackline_server *server;
    static const float values[ELEMENTS];

    CHECK(options.schedule == NULL && serve(options, 1, make_three_steps, 0) == -3);
    options.schedule = "steps(1, 0.5)";
    CHECK(serve(options, 1, make_three_steps, 0) == -1.75f);
    layer(tensors);
    options.schedule = "linear";
    EXPECT(BAD_ARGUMENT, slackline_server_create(NULL, tensors, 2, values, ELEMENTS, &options, &server));
    CHECK(server == NULL && said("linear") && said("inverse-root"));
    options = server_options();
    options.optimizer = SLACKLINE_OPTIMIZER_MOMENTUM;
    options.momentum = 1;
    EXPECT(BAD_ARGUMENT, slackline_server_create(NULL, tensors, 2, values, ELEMENTS, &options, &server));
    CHECK(server == NULL && said("momentum cannot be 1"));
}

static void make_a_step_by_two_workers(const char *address)
{
    struct slackline_worker_options options = worker_options();
    struct slackline_worker *workers[2];
    int index;

    for (index = 0; index < 2; index++)
        workers[index] = worker_at(address, &options);
    for (index = 0; index < 2; index++)
        step(workers[index]);
    for (index = 0; index < 2; index++)
        OK(slackline_worker_flush(workers[index], TIMEOUT_MS));
    for (index = 0; index < 2; index++)
        slackline_worker_destroy(workers[index]);
}

static void additive_updates_count_whole(void)
{
    struct slackline_server_options options = server_options();

    CHECK(serve(options, 2, make_a_step_by_two_workers, 0) == -1);
    options.additive = 1;
    CHECK(serve(options, 2, make_a_step_by_two_workers, 0) == -2);
}

/* ------------------------------------------------------------------ waiting */

/* The number of times that this thread has given its processor up by itself. */
static long rests(void)
{
    struct rusage usage;
    CHECK(getrusage(RUSAGE_THREAD, &usage) == 0);
    return usage.ru_nvcsw;
}

/* A busy machine lets a thread that polls rest no more often than it has its turn: one of these has to show it. */
enum { ATTEMPTS = 5 };

/* The second clock waits for a worker that never publishes. */
static long rests_of_a_worker(struct slackline_worker *worker)
{
    long before = rests();
    EXPECT(DEADLINE, slackline_worker_begin(worker, NULL, 1000));
    return rests() - before;
}

static void wait_as_workers(const char *address)
{
    struct slackline_worker_options options = worker_options();
    struct slackline_worker *polling = worker_at(address, &options), *third = worker_at(address, &options), *sleeping;
    int attempt, is_shown = 0;

    options.idle = 2;
    EXPECT(BAD_ARGUMENT, slackline_worker_connect(&address, 1, &options, TIMEOUT_MS, &sleeping));
    options.idle = SLACKLINE_IDLE_SLEEP;
    sleeping = worker_at(address, &options);
    step(polling);
    step(sleeping);
    for (attempt = 0; attempt < ATTEMPTS && !is_shown; attempt++) {
        long awake = rests_of_a_worker(polling), asleep = rests_of_a_worker(sleeping);
        CHECK(asleep > 0);
        is_shown = 2 * asleep < awake;
    }
    CHECK(is_shown);
    slackline_worker_destroy(polling);
    slackline_worker_destroy(sleeping);
    slackline_worker_destroy(third);
}

static void a_worker_that_sleeps_does_not_poll(void)
{
    serve(server_options(), 3, wait_as_workers, 1);
}

static long rests_of_a_reader(const char *address, uint64_t idle)
{
    struct slackline_reader_options options = reader_options();
    struct slackline_reader *reader;
    long before;

    options.idle = idle;
    OK(slackline_reader_connect(address, &options, TIMEOUT_MS, &reader));
    OK(slackline_reader_refresh(reader, 0, TIMEOUT_MS, NULL));
    before = rests();
    EXPECT(DEADLINE, slackline_reader_refresh_to(reader, 9, 1000, NULL));
    before = rests() - before;
    slackline_reader_destroy(reader);
    return before;
}

static void a_reader_that_sleeps_does_not_poll(void)
{
    struct slackline_publisher_options options = publisher_options();
    struct slackline_publisher *publisher;
    struct slackline_tensor tensors[2];
    const char *address;
    int attempt, is_shown = 0;

    layer(tensors);
    OK(slackline_publisher_create("127.0.0.1:0", tensors, 2, &options, &publisher));
    OK(slackline_publisher_address(publisher, &address));
    for (attempt = 0; attempt < ATTEMPTS && !is_shown; attempt++) {
        long awake = rests_of_a_reader(address, SLACKLINE_IDLE_POLL);
        long asleep = rests_of_a_reader(address, SLACKLINE_IDLE_SLEEP);
        CHECK(asleep > 0);
        is_shown = 2 * asleep < awake;
    }
    CHECK(is_shown);
    slackline_publisher_destroy(publisher);
}

static long rests_of_a_publisher(uint64_t idle)
{
    struct slackline_publisher_options options = publisher_options();
    struct slackline_publisher *publisher;
    struct slackline_tensor tensors[2];
    long before;
    int round;

    layer(tensors);
    options.background = 0;
    options.idle = idle;
    OK(slackline_publisher_create(NULL, tensors, 2, &options, &publisher));
    before = rests();
    /* Short ones: a long wait that polls looks nearly as seldom as one that sleeps. */
    for (round = 0; round < 10; round++) {
        EXPECT(DEADLINE, slackline_publisher_serve(publisher, 1, 0, 50));
        EXPECT(DEADLINE, slackline_publisher_wait(publisher, 0, 1, 50));
    }
    before = rests() - before;
    slackline_publisher_destroy(publisher);
    return before;
}

static void a_publisher_that_sleeps_does_not_poll(void)
{
    int attempt, is_shown = 0;

    for (attempt = 0; attempt < ATTEMPTS && !is_shown; attempt++) {
        long awake = rests_of_a_publisher(SLACKLINE_IDLE_POLL), asleep = rests_of_a_publisher(SLACKLINE_IDLE_SLEEP);
        CHECK(asleep > 0);
        is_shown = 2 * asleep < awake;
    }
    CHECK(is_shown);
}

/* ------------------------------------------------------------------ following */

static int to_reader[2], to_server[2];

static void tell(const int pipe_of[2], char word)
{
    CHECK(write(pipe_of[1], &word, 1) == 1);
}

static char hear(const int pipe_of[2])
{
    char word;
    CHECK(read(pipe_of[0], &word, 1) == 1);
    return word;
}

/* Reads while the server stands still between two turns. A reader that did not follow would have copied nothing. */
static void read_what_is_written(const char *address)
{
    struct slackline_worker_options of_worker = worker_options();
    struct slackline_reader_options options = reader_options();
    struct slackline_worker *worker = worker_at(address, &of_worker);
    struct slackline_reader *reader;
    struct slackline_fresh fresh;
    slackline_status status;
    static float copy[ELEMENTS];
    size_t index;
    int in_part = 0;

    options.follow = 1;
    OK(slackline_reader_connect(address, &options, TIMEOUT_MS, &reader));
    OK(slackline_reader_use_memory(reader, copy, sizeof copy, NULL, NULL));
    tell(to_server, 'c');
    hear(to_reader);
    step(worker);
    fresh.size = sizeof fresh;
    for (;;) {
        tell(to_server, 'w');
        hear(to_reader);
        status = slackline_reader_refresh_to(reader, 1, 100, &fresh);
        if (status == SLACKLINE_STATUS_OK)
            break;
        CHECK(status == SLACKLINE_STATUS_DEADLINE);
        in_part |= copy[0] == -1 && copy[ELEMENTS - 1] == 0;
    }
    CHECK(fresh.version == 1);
    for (index = 0; index < ELEMENTS; index++)
        CHECK(copy[index] == -1);
    CHECK(in_part);
    tell(to_server, 'd');
    OK(slackline_worker_flush(worker, TIMEOUT_MS));
    slackline_worker_destroy(worker);
    slackline_reader_destroy(reader);
}

static void a_reader_that_follows_copies_what_is_being_written(void)
{
    static const float values[ELEMENTS];
    struct slackline_server_options options = server_options();
    struct slackline_tensor tensors[2];
    struct slackline_server *server;
    char address[ADDRESS_SIZE];
    struct pollfd word;
    pid_t child;

    layer(tensors);
    own_address(address, "followed", 0);
    options.learning_rate = 1;
    options.chunk_bytes = 64; /* A turn folds 16 chunks, a quarter of the table. */
    CHECK(pipe(to_reader) == 0 && pipe(to_server) == 0);
    OK(slackline_server_create(address, tensors, 2, values, ELEMENTS, &options, &server));
    child = in_a_child(read_what_is_written, address);
    /* A child that fails is heard of. */
    CHECK(close(to_server[1]) == 0);
    word.fd = to_server[0];
    word.events = POLLIN;
    while (poll(&word, 1, 0) == 0)
        EXPECT(DEADLINE, slackline_server_serve(server, 1, 5));
    CHECK(hear(to_server) == 'c');
    tell(to_reader, 'g');
    while (hear(to_server) == 'w') {
        OK(slackline_server_progress(server, NULL));
        tell(to_reader, 'g');
    }
    OK(slackline_server_serve(server, 1, TIMEOUT_MS));
    join(child);
    slackline_server_destroy(server);
}

/* ------------------------------------------------------------------ publishers */

static void tensors_begin_at_multiples_of_the_alignment(void)
{
    struct slackline_publisher_options options = publisher_options();
    struct slackline_publisher *publisher;
    struct slackline_tensor tensors[2];
    struct slackline_reader *reader;
    const char *address;
    uint64_t begin, end;
    void *memory;
    size_t len;

    layer(tensors);
    CHECK(options.alignment == 0);
    options.alignment = 3;
    EXPECT(BAD_ARGUMENT, slackline_publisher_create(NULL, tensors, 2, &options, &publisher));
    CHECK(said("power of two"));
    options.alignment = 256;
    OK(slackline_publisher_create(NULL, tensors, 2, &options, &publisher));
    OK(slackline_publisher_tensor_range(publisher, 1, &begin, &end));
    CHECK(begin == 4096 && end == 4096 + BIASES * sizeof(float));
    EXPECT(BAD_ARGUMENT, slackline_publisher_tensor_range(publisher, 2, &begin, &end));
    EXPECT(BAD_ARGUMENT, slackline_publisher_tensor_range(NULL, 0, &begin, &end));
    OK(slackline_publisher_begin(publisher, TIMEOUT_MS, &memory, &len));
    CHECK(len == end);
    OK(slackline_publisher_abort(publisher));
    OK(slackline_publisher_address(publisher, &address));
    OK(slackline_reader_connect(address, NULL, TIMEOUT_MS, &reader));
    OK(slackline_reader_tensor_range(reader, 1, &begin, &end));
    CHECK(begin == 4096);
    slackline_reader_destroy(reader);
    slackline_publisher_destroy(publisher);
}

static void train_encrypted(const char *address)
{
    struct slackline_worker_options options = worker_options();
    struct slackline_worker *worker;

    options.secret = SECRET;
    EXPECT(REFUSED, slackline_worker_connect(&address, 1, &options, TIMEOUT_MS, &worker));
    CHECK(worker == NULL && said("encrypt"));
    options.encrypt = 1;
    worker = worker_at(address, &options);
    step(worker);
    OK(slackline_worker_flush(worker, TIMEOUT_MS));
    slackline_worker_destroy(worker);
}

static void a_server_that_encrypts_takes_workers_that_encrypt(void)
{
    struct slackline_server_options options = server_options();
    options.secret = SECRET;
    options.encrypt = 1;
    CHECK(serve(options, 1, train_encrypted, 1) == -1);
}

static void encrypted_versions_are_for_readers_that_encrypt(void)
{
    struct slackline_publisher_options options = publisher_options();
    struct slackline_reader_options reading = reader_options();
    struct slackline_publisher *publisher;
    struct slackline_tensor tensors[2];
    struct slackline_reader *reader;
    const char *address;

    layer(tensors);
    options.encrypt = 1;
    EXPECT(BAD_ARGUMENT, slackline_publisher_create("127.0.0.1:0", tensors, 2, &options, &publisher));
    CHECK(publisher == NULL && said("secret"));
    options.secret = SECRET;
    OK(slackline_publisher_create("127.0.0.1:0", tensors, 2, &options, &publisher));
    OK(slackline_publisher_address(publisher, &address));
    reading.secret = SECRET;
    EXPECT(REFUSED, slackline_reader_connect(address, &reading, TIMEOUT_MS, &reader));
    CHECK(said("encrypt"));
    reading.encrypt = 1;
    OK(slackline_reader_connect(address, &reading, TIMEOUT_MS, &reader));
    OK(slackline_reader_refresh(reader, 0, TIMEOUT_MS, NULL));
    slackline_reader_destroy(reader);
    slackline_publisher_destroy(publisher);
}

static void a_publisher_without_room_says_when_to_ask_again(void)
{
    struct slackline_publisher_options options = publisher_options();
    struct slackline_publisher *publisher;
    struct slackline_tensor tensors[2];
    struct slackline_reader *first, *second;
    slackline_status status = SLACKLINE_STATUS_OK;
    const char *address;
    uint64_t timeout;

    layer(tensors);
    options.peers = 1;
    OK(slackline_publisher_create(NULL, tensors, 2, &options, &publisher));
    OK(slackline_publisher_address(publisher, &address));
    OK(slackline_reader_connect(address, NULL, TIMEOUT_MS, &first));
    CHECK(slackline_last_error_retry_after_ms() == 0);
    /* An answer that a busy machine gives too late is another error. */
    for (timeout = 20; timeout <= 20000 && status != SLACKLINE_STATUS_REFUSED; timeout *= 10)
        status = slackline_reader_connect(address, NULL, timeout, &second);
    CHECK(status == SLACKLINE_STATUS_REFUSED);
    CHECK(second == NULL && slackline_last_error_is_retryable() == 1);
    CHECK(slackline_last_error_retry_after_ms() > 0 && slackline_last_error_retry_after_ms() < TIMEOUT_MS);
    EXPECT(BAD_ARGUMENT, slackline_reader_connect(NULL, NULL, 20, &second));
    CHECK(slackline_last_error_retry_after_ms() == 0);
    slackline_reader_destroy(first);
    slackline_publisher_destroy(publisher);
}

int main(void)
{
    alarm(300);
    a_publisher_without_room_says_when_to_ask_again();
    the_step_size_falls_by_the_schedule();
    additive_updates_count_whole();
    a_worker_that_sleeps_does_not_poll();
    a_reader_that_sleeps_does_not_poll();
    a_publisher_that_sleeps_does_not_poll();
    a_reader_that_follows_copies_what_is_being_written();
    tensors_begin_at_multiples_of_the_alignment();
    a_server_that_encrypts_takes_workers_that_encrypt();
    encrypted_versions_are_for_readers_that_encrypt();
    puts("all checks passed");
    return 0;
}
