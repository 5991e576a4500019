/*
 * Nodes in C, beside training: they wait for a server, hear interrupts, read into the caller's memory and
 * in place, write in place, keep checkpoints and log. Exits with 0 if all checks passed.
 */
#include "check.h"

#include <pthread.h>

static void sleep_ms(unsigned milliseconds)
{
    usleep(milliseconds * 1000);
}

/* ------------------------------------------------------------------ waiting for a server */

static void train_three_clocks(const char *address)
{
    static uint64_t memory[2][ELEMENTS / 2];
    struct slackline_worker_options options = worker_options();
    struct slackline_worker *worker;
    float *gradient;
    size_t len;
    int clock;

    OK(slackline_worker_connect(&address, 1, &options, TIMEOUT_MS, &worker));
    for (clock = 0; clock < 3; clock++)
        if (clock == 1) { /* parameters and gradient are memory of this program's from here on */
            EXPECT(BAD_ARGUMENT, slackline_worker_use_memory(worker, memory, 8, NULL, 0, NULL, NULL));
            OK(slackline_worker_use_memory(worker, memory[0], sizeof memory[0], memory[1], sizeof memory[1], NULL, NULL));
            OK(slackline_worker_begin(worker, NULL, TIMEOUT_MS));
            OK(slackline_worker_gradient(worker, &gradient, &len));
            CHECK(gradient == (float *)memory[1] && len == ELEMENTS);
            EXPECT(OUT_OF_TURN, slackline_worker_use_memory(worker, NULL, 0, NULL, 0, NULL, NULL));
            for (len = 0; len < ELEMENTS; len++)
                gradient[len] = 1;
            OK(slackline_worker_publish(worker, NULL, TIMEOUT_MS));
        } else {
            step(worker);
        }
    OK(slackline_worker_flush(worker, TIMEOUT_MS));
    slackline_worker_destroy(worker);
}

static void a_worker_may_come_before_its_server(void)
{
    struct slackline_server_options options = server_options();
    struct slackline_server *server;
    struct slackline_tensor tensors[2];
    static const float values[ELEMENTS];
    char address[ADDRESS_SIZE];
    pid_t child;

    own_address(address, "late", 0);
    child = in_a_child(train_three_clocks, address);
    sleep_ms(300);
    CHECK(waitpid(child, NULL, WNOHANG) == 0);
    layer(tensors);
    OK(slackline_server_create(address, tensors, 2, values, ELEMENTS, &options, &server));
    OK(slackline_server_serve(server, 1, TIMEOUT_MS));
    slackline_server_destroy(server);
    join(child);
}

/* ------------------------------------------------------------------ interrupts */

static int has_begun[2];

static struct slackline_worker *first_of_two(const char *address)
{
    struct slackline_worker_options options = worker_options();
    struct slackline_worker *worker;

    options.scheme = "dbw(1)";
    OK(slackline_worker_connect(&address, 1, &options, TIMEOUT_MS, &worker));
    return worker;
}

static void be_slow(const char *address)
{
    struct slackline_worker *worker = first_of_two(address);
    struct slackline_view view;
    uint32_t stop = 0;

    view.size = sizeof view;
    EXPECT(OUT_OF_TURN, slackline_worker_abandon(worker));
    OK(slackline_worker_begin(worker, &view, TIMEOUT_MS));
    CHECK(view.version == 0 && view.clock == 0);
    OK(slackline_worker_should_stop(worker, &stop));
    CHECK(stop == 0 && write(has_begun[1], "", 1) == 1);
    while (!stop) {
        OK(slackline_worker_should_stop(worker, &stop));
        if (!stop)
            sleep_ms(1);
    }
    OK(slackline_worker_abandon(worker));
    OK(slackline_worker_begin(worker, &view, TIMEOUT_MS));
    CHECK(view.version >= 1 && view.clock == 0);
    OK(slackline_worker_publish(worker, NULL, TIMEOUT_MS));
    OK(slackline_worker_flush(worker, TIMEOUT_MS));
    slackline_worker_destroy(worker);
}

static void be_fast(const char *address)
{
    struct slackline_worker *worker = first_of_two(address);
    char signal;

    OK(slackline_worker_begin(worker, NULL, TIMEOUT_MS));
    CHECK(read(has_begun[0], &signal, 1) == 1);
    OK(slackline_worker_publish(worker, NULL, TIMEOUT_MS));
    OK(slackline_worker_flush(worker, TIMEOUT_MS));
    slackline_worker_destroy(worker);
}

static void a_slow_worker_hears_that_it_should_stop(int tcp)
{
    struct slackline_server_options options = server_options();
    struct slackline_server_status status;
    struct slackline_server *server;
    struct slackline_tensor tensors[2];
    static const float values[ELEMENTS];
    char text[ADDRESS_SIZE];
    const char *address;
    pid_t slow, fast;

    CHECK(pipe(has_begun) == 0);
    own_address(text, "interrupt", tcp);
    layer(tensors);
    options.scheme = "dbw(1)";
    options.workers = 2;
    OK(slackline_server_create(text, tensors, 2, values, ELEMENTS, &options, &server));
    OK(slackline_server_address(server, &address));
    slow = in_a_child(be_slow, address);
    fast = in_a_child(be_fast, address);
    OK(slackline_server_serve(server, 2, TIMEOUT_MS));
    status.size = sizeof status;
    OK(slackline_server_get_status(server, &status));
    CHECK(status.interrupts >= 1 && status.version == 2);
    slackline_server_destroy(server);
    join(slow);
    join(fast);
    CHECK(close(has_begun[0]) == 0 && close(has_begun[1]) == 0);
}

/* ------------------------------------------------------------------ a server that follows another */

static struct slackline_server *shard_of_two(uint16_t shard, const char *address, const char *scheme)
{
    struct slackline_server_options options = server_options();
    struct slackline_server *server;
    struct slackline_tensor tensors[2];
    static const float values[ELEMENTS];
    uint64_t begin, end;

    layer(tensors);
    options.scheme = scheme;
    options.shard = shard;
    options.shards = 2;
    OK(slackline_shard_range(tensors, 2, shard, 2, &begin, &end));
    OK(slackline_server_create(address, tensors, 2, values, (end - begin) / sizeof *values, &options, &server));
    return server;
}

static uint64_t follows(struct slackline_server *server)
{
    struct slackline_server_status status;
    status.size = sizeof status;
    OK(slackline_server_get_status(server, &status));
    return status.follows;
}

static void follow(const char *decider)
{
    struct slackline_server *server = shard_of_two(1, NULL, "dbw(1)"), *second = shard_of_two(1, NULL, "dbw(1)");

    CHECK(follows(server) == 1);
    EXPECT(BAD_ARGUMENT, slackline_server_follow(server, "nowhere", TIMEOUT_MS));
    OK(slackline_server_follow(server, decider, TIMEOUT_MS));
    /* The decider knows of the first. */
    EXPECT(REFUSED, slackline_server_follow(second, decider, 1000));
    CHECK(said("follows already"));
    slackline_server_destroy(second);
    slackline_server_destroy(server);
}

static void under_a_scheme_that_counts_versions_one_server_decides(void)
{
    struct slackline_server *server;
    char address[ADDRESS_SIZE];
    pid_t child;
    int ended;

    own_address(address, "decider", 0);
    child = in_a_child(follow, address);
    server = shard_of_two(0, address, "dbw(1)");
    CHECK(follows(server) == 0);
    EXPECT(OUT_OF_TURN, slackline_server_follow(server, address, TIMEOUT_MS));
    while (waitpid(child, &ended, WNOHANG) == 0)
        EXPECT(DEADLINE, slackline_server_serve(server, 1, 5));
    CHECK(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
    slackline_server_destroy(server);
    server = shard_of_two(1, NULL, "ssp(2)");
    CHECK(follows(server) == 0);
    slackline_server_destroy(server);
}

/* ------------------------------------------------------------------ reading and writing in place */

enum { BYTES = 2 * ELEMENTS };

static int all_are(const void *bytes, size_t len, int value)
{
    const unsigned char *at = bytes;
    size_t index;
    for (index = 0; index < len; index++)
        if (at[index] != value)
            return 0;
    return 1;
}

static void ask_for_the_table(struct slackline_reader *reader)
{
    const struct slackline_tensor *tensors;
    uint64_t begin, end;
    size_t count;

    OK(slackline_reader_table(reader, &tensors, &count));
    CHECK(count == 2 && strcmp(tensors[0].name, "weight") == 0 && strcmp(tensors[1].name, "bias") == 0);
    CHECK(tensors[0].rank == 2 && tensors[0].shape[0] == 50 && tensors[0].shape[1] == 20);
    CHECK(tensors[1].rank == 1 && tensors[1].shape[0] == BIASES && tensors[1].element == SLACKLINE_ELEMENT_BF16);
    OK(slackline_tensor_range(tensors, count, 1, &begin, &end));
    CHECK(begin == 2 * WEIGHTS && end == BYTES);
    EXPECT(BAD_ARGUMENT, slackline_tensor_range(tensors, count, 2, &begin, &end));
    OK(slackline_reader_range(reader, &begin, &end));
    CHECK(begin == 0 && end == BYTES);
}

/* The number of times that memory was given back. */
static int given_back;

static void give_back(void *context)
{
    CHECK(context == &given_back);
    given_back++;
}

/* Refreshes go into memory of this program's, which is given back when the reader has other memory,
 * reads another part of the table, or ends. */
static void refresh_own_memory(const char *address)
{
    static uint64_t weights[2][(BYTES + 7) / 8];
    struct slackline_reader *reader;
    const void *bytes;
    size_t len;
    int index;

    OK(slackline_reader_connect(address, NULL, TIMEOUT_MS, &reader));
    EXPECT(BAD_ARGUMENT, slackline_reader_use_memory(reader, NULL, BYTES, give_back, &given_back));
    EXPECT(BAD_ARGUMENT, slackline_reader_use_memory(reader, weights[0], BYTES - 1, give_back, &given_back));
    EXPECT(BAD_ARGUMENT, slackline_reader_use_memory(reader, (char *)weights[0] + 2, BYTES, give_back, &given_back));
    CHECK(said("multiple of 8") && given_back == 3); /* at once, what is refused */
    for (index = 0; index < 2; index++) {
        OK(slackline_reader_use_memory(reader, weights[index], BYTES, give_back, &given_back));
        CHECK(given_back == 3 + index);
        EXPECT(OUT_OF_TURN, slackline_reader_bytes(reader, &bytes, &len));
        OK(slackline_reader_refresh(reader, 0, TIMEOUT_MS, NULL));
        OK(slackline_reader_bytes(reader, &bytes, &len));
        CHECK(bytes == weights[index] && len == BYTES && all_are(weights[index], BYTES, 3));
    }
    OK(slackline_reader_select(reader, NULL, 0));
    CHECK(given_back == 5);
    OK(slackline_reader_refresh(reader, 0, TIMEOUT_MS, NULL));
    OK(slackline_reader_bytes(reader, &bytes, &len));
    CHECK(bytes != weights[1] && len == BYTES && all_are(bytes, BYTES, 3));
    OK(slackline_reader_use_memory(reader, weights[0], BYTES, give_back, &given_back));
    CHECK(given_back == 5);
    slackline_reader_destroy(reader);
    CHECK(given_back == 6);
}

static void read_in_every_way(const char *address)
{
    int mapped = address[0] == '@';
    struct slackline_reader *reader;
    struct slackline_fresh fresh;
    unsigned char memory[BYTES];
    const void *pinned;
    uint32_t intact;
    uint64_t newest;
    size_t len;

    OK(slackline_reader_connect(address, NULL, TIMEOUT_MS, &reader));
    ask_for_the_table(reader);
    OK(slackline_reader_refresh_to(reader, 3, TIMEOUT_MS, NULL));
    OK(slackline_reader_newest(reader, TIMEOUT_MS, &newest));
    CHECK(newest == 3);
    fresh.size = sizeof fresh;
    OK(slackline_reader_pull(reader, memory, sizeof memory, 0, TIMEOUT_MS, &fresh));
    CHECK(fresh.version == 3 && fresh.behind == 0 && fresh.copied == 1 && all_are(memory, sizeof memory, 3));
    EXPECT(BAD_ARGUMENT, slackline_reader_pull(reader, memory, sizeof memory - 1, 0, TIMEOUT_MS, NULL));
    EXPECT(BAD_ARGUMENT, slackline_reader_pull(reader, NULL, sizeof memory, 0, TIMEOUT_MS, NULL));
    memset(memory, 0, sizeof memory);
    OK(slackline_reader_pull_version(reader, memory, sizeof memory, 3, SLACKLINE_ANY_STALENESS, 1, TIMEOUT_MS, &fresh));
    CHECK(fresh.version == 3 && all_are(memory, sizeof memory, 3));
    EXPECT(DEADLINE, slackline_reader_pull_version(reader, memory, sizeof memory, 4, SLACKLINE_ANY_STALENESS, 0, 1, NULL));
    OK(slackline_reader_is_intact(reader, &intact));
    CHECK(intact == 0);
    if (!mapped) {
        EXPECT(UNSUPPORTED, slackline_reader_pin(reader, 0, TIMEOUT_MS, &pinned, &len, NULL));
        CHECK(said("pull a copy instead"));
    } else {
        EXPECT(DEADLINE, slackline_reader_pin(reader, 4, 1, &pinned, &len, NULL));
        OK(slackline_reader_pin(reader, 3, TIMEOUT_MS, &pinned, &len, &fresh));
        CHECK(fresh.version == 3 && fresh.copied == 0 && len == BYTES && all_are(pinned, len, 3));
        EXPECT(OUT_OF_TURN, slackline_reader_refresh(reader, 0, TIMEOUT_MS, NULL));
        CHECK(said("slackline_reader_unpin"));
        EXPECT(OUT_OF_TURN, slackline_reader_pull(reader, memory, sizeof memory, 0, TIMEOUT_MS, NULL));
        EXPECT(OUT_OF_TURN, slackline_reader_pin(reader, 0, TIMEOUT_MS, &pinned, &len, NULL));
        OK(slackline_reader_newest(reader, TIMEOUT_MS, &newest));
        OK(slackline_reader_is_intact(reader, &intact));
        CHECK(intact == 1 && newest == 3);
        OK(slackline_reader_unpin(reader));
        OK(slackline_reader_unpin(reader));
        OK(slackline_reader_refresh(reader, 0, TIMEOUT_MS, NULL));
    }
    refresh_own_memory(address);
    slackline_reader_destroy(reader);
}

static void versions_are_written_in_place_and_read_in_every_way(int tcp)
{
    struct slackline_publisher *publisher;
    struct slackline_publisher_status status;
    struct slackline_tensor tensors[2];
    char text[ADDRESS_SIZE];
    const char *address;
    uint64_t version;
    void *bytes, *again;
    size_t len;
    pid_t child;
    int value;

    own_address(text, "publisher", tcp);
    layer(tensors);
    tensors[0].element = tensors[1].element = SLACKLINE_ELEMENT_BF16;
    OK(slackline_publisher_create(text, tensors, 2, NULL, &publisher));
    OK(slackline_publisher_address(publisher, &address));
    EXPECT(OUT_OF_TURN, slackline_publisher_commit(publisher, NULL));
    for (value = 1; value <= 3; value++) {
        OK(slackline_publisher_begin(publisher, TIMEOUT_MS, &bytes, &len));
        CHECK(len == BYTES);
        memset(bytes, value, len);
        OK(slackline_publisher_begin(publisher, TIMEOUT_MS, &again, &len));
        CHECK(again == bytes && all_are(again, len, value));
        OK(slackline_publisher_commit(publisher, &version));
        CHECK(version == (uint64_t)value);
    }
    OK(slackline_publisher_abort(publisher)); /* Nothing is lent. */
    OK(slackline_publisher_begin(publisher, TIMEOUT_MS, &bytes, &len));
    memset(bytes, 0xff, len);
    OK(slackline_publisher_abort(publisher));
    EXPECT(OUT_OF_TURN, slackline_publisher_commit(publisher, NULL));
    child = in_a_child(read_in_every_way, address);
    status.size = sizeof status;
    do {
        OK(slackline_publisher_progress(publisher, NULL));
        OK(slackline_publisher_get_status(publisher, &status));
    } while (status.joined == 0 || status.readers > 0);
    join(child);
    slackline_publisher_destroy(publisher);
}

/* ------------------------------------------------------------------ checkpoints */

/* Reads `file`, which holds version 3 with these parameters. */
static void read_checkpoint(const char *file, const float *expected)
{
    struct slackline_checkpoint *checkpoint;
    const struct slackline_tensor *tensors;
    const float *parameters;
    uint64_t version;
    size_t len;

    EXPECT(BAD_ARGUMENT, slackline_checkpoint_open(NULL, &checkpoint));
    EXPECT(BAD_ARGUMENT, slackline_checkpoint_open("/tmp/slackline-nowhere", &checkpoint));
    CHECK(checkpoint == NULL && said("no such checkpoint"));
    OK(slackline_checkpoint_open(file, &checkpoint));
    OK(slackline_checkpoint_version(checkpoint, &version));
    OK(slackline_checkpoint_table(checkpoint, &tensors, &len));
    CHECK(version == 3 && len == 2 && strcmp(tensors[0].name, "weight") == 0 && tensors[0].shape[1] == 20);
    OK(slackline_checkpoint_parameters(checkpoint, &parameters, &len));
    CHECK(len == ELEMENTS && memcmp(parameters, expected, len * sizeof *parameters) == 0);
    slackline_checkpoint_destroy(checkpoint);
    slackline_checkpoint_destroy(NULL);
}

static void a_server_goes_on_from_its_checkpoint(void)
{
    struct slackline_server_options options = server_options();
    struct slackline_server *server;
    struct slackline_server_status status;
    struct slackline_tensor tensors[2];
    static const float values[ELEMENTS];
    static float before[ELEMENTS], after[ELEMENTS];
    char folder[] = "/tmp/slackline-nodes-XXXXXX", file[64], owner[80];
    const char *address;
    uint64_t version;
    pid_t child;

    CHECK(mkdtemp(folder) != NULL);
    layer(tensors);
#define CREATE slackline_server_create(NULL, tensors, 2, values, ELEMENTS, &options, &server)
    options.resume = SLACKLINE_RESUME_REQUIRED;
    EXPECT(BAD_ARGUMENT, CREATE);
    CHECK(said("checkpoint_folder"));
    options.checkpoint_folder = folder;
    EXPECT(BAD_ARGUMENT, CREATE);
    CHECK(said("no such checkpoint"));
    options.resume = 3;
    EXPECT(BAD_ARGUMENT, CREATE);
    options.resume = SLACKLINE_RESUME_IF_THERE;
    OK(CREATE);
    OK(slackline_server_address(server, &address));
    child = in_a_child(train_three_clocks, address);
    OK(slackline_server_serve(server, 1, TIMEOUT_MS));
    join(child);
    status.size = sizeof status;
    OK(slackline_server_get_status(server, &status));
    CHECK(status.version == 3 && status.checkpointed == SLACKLINE_NO_VERSION && status.checkpoints_failed == 0);
    OK(slackline_server_checkpoint(server, TIMEOUT_MS, &version));
    OK(slackline_server_get_status(server, &status));
    CHECK(version == 3 && status.checkpointed == 3);
    OK(slackline_server_parameters(server, before, ELEMENTS));
    slackline_server_destroy(server);
    snprintf(file, sizeof file, "%s/shard-0-of-1.safetensors", folder);
    snprintf(owner, sizeof owner, "%s.owner", file);
    read_checkpoint(file, before);

    options.resume = SLACKLINE_RESUME_REQUIRED;
    OK(CREATE);
    OK(slackline_server_get_status(server, &status));
    OK(slackline_server_parameters(server, after, ELEMENTS));
    CHECK(status.version == 3 && memcmp(before, after, sizeof before) == 0 && before[0] < 0);
    slackline_server_destroy(server);

    options.resume = SLACKLINE_RESUME_NEVER;
    options.checkpoint_folder = NULL;
    OK(CREATE);
    OK(slackline_server_get_status(server, &status));
    CHECK(status.version == 0);
    EXPECT(OUT_OF_TURN, slackline_server_checkpoint(server, TIMEOUT_MS, NULL));
    slackline_server_destroy(server);
#undef CREATE
    CHECK(unlink(file) == 0 && unlink(owner) == 0 && rmdir(folder) == 0);
}

/* ------------------------------------------------------------------ the log */

static pthread_mutex_t lines = PTHREAD_MUTEX_INITIALIZER;
static int checkpoint_lines;

static void count(uint32_t level, const char *text, void *user)
{
    CHECK(level >= SLACKLINE_LOG_LEVEL_ERROR && level <= SLACKLINE_LOG_LEVEL_INFO && user == &lines);
    CHECK(strchr(text, '\n') == NULL && strlen(text) > 3);
    pthread_mutex_lock(user);
    checkpoint_lines += strstr(text, "resumed from a checkpoint") == text && strstr(text, " version=3") != NULL;
    pthread_mutex_unlock(user);
}

static void the_log_goes_where_it_is_told(void)
{
    EXPECT(BAD_ARGUMENT, slackline_set_log(SLACKLINE_LOG_LEVEL_INFO, NULL, NULL));
    EXPECT(BAD_ARGUMENT, slackline_set_log(0, count, &lines));
    EXPECT(BAD_ARGUMENT, slackline_set_log(6, count, &lines));
    OK(slackline_set_log(SLACKLINE_LOG_LEVEL_INFO, count, &lines));
    EXPECT(OUT_OF_TURN, slackline_set_log(SLACKLINE_LOG_LEVEL_INFO, count, &lines));
}

int main(void)
{
    alarm(300);
    the_log_goes_where_it_is_told();
    a_worker_may_come_before_its_server();
    a_slow_worker_hears_that_it_should_stop(0);
    a_slow_worker_hears_that_it_should_stop(1);
    under_a_scheme_that_counts_versions_one_server_decides();
    versions_are_written_in_place_and_read_in_every_way(0);
    versions_are_written_in_place_and_read_in_every_way(1);
    a_server_goes_on_from_its_checkpoint();
    CHECK(checkpoint_lines == 1);
    puts("all checks passed");
    return 0;
}
