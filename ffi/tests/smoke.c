/*
 * The C interface as a C program uses it: misuse is answered, not suffered; a server and a worker train a quadratic in
 * two processes; a publisher and a reader exchange versions in two processes. Exits with 0 if all checks passed.
 */
#include "check.h"

enum { CLOCKS = 20, VERSIONS = 7 };

/* ------------------------------------------------------------------ training */

static void train(const char *address)
{
    struct slackline_worker_options options = worker_options();
    struct slackline_worker *worker = NULL;
    struct slackline_view view;
    const float *parameters;
    float *gradient, loss;
    size_t len, room, index;
    uint64_t clock;

    options.scheme = "ssp";
    options.staleness = 0;
    OK(slackline_worker_connect(&address, 1, &options, TIMEOUT_MS, &worker));
    EXPECT(OUT_OF_TURN, slackline_worker_parameters(worker, &parameters, &len));
    CHECK(said("no step is open: begin one first"));
    EXPECT(OUT_OF_TURN, slackline_worker_publish(worker, NULL, TIMEOUT_MS));
    view.size = sizeof view - 1;
    EXPECT(BAD_ARGUMENT, slackline_worker_begin(worker, &view, TIMEOUT_MS));
    CHECK(said("view->size"));
    view.size = sizeof view;
    for (clock = 0; clock < CLOCKS; clock++) {
        OK(slackline_worker_begin(worker, &view, TIMEOUT_MS));
        CHECK(view.clock == clock && view.version == clock && view.smallest_clock == clock && view.staleness == 0);
        OK(slackline_worker_parameters(worker, &parameters, &len));
        OK(slackline_worker_gradient(worker, &gradient, &room));
        CHECK(len == ELEMENTS && room == ELEMENTS);
        loss = 0;
        for (index = 0; index < len; index++) {
            gradient[index] = parameters[index] - target_of(index);
            loss += gradient[index] * gradient[index] / 2;
        }
        if (clock % 2 == 1) {
            /* The other way to hand a gradient over. */
            float *copy = malloc(len * sizeof *copy);
            CHECK(copy != NULL);
            memcpy(copy, gradient, len * sizeof *copy);
            memset(gradient, 0, len * sizeof *copy);
            EXPECT(BAD_ARGUMENT, slackline_worker_encode(worker, copy, len - 1));
            OK(slackline_worker_encode(worker, copy, len));
            free(copy);
        }
        OK(slackline_worker_publish(worker, &loss, TIMEOUT_MS));
    }
    OK(slackline_worker_flush(worker, TIMEOUT_MS));
    slackline_worker_destroy(worker);
}

static void a_server_and_a_worker_train_a_quadratic(int tcp)
{
    struct slackline_server_options options = server_options();
    struct slackline_server *server = NULL;
    struct slackline_server_status status;
    struct slackline_tensor tensors[2];
    float parameters[ELEMENTS];
    const char *address;
    char text[ADDRESS_SIZE];
    pid_t child;
    int gate[2];

    own_address(text, "server", tcp);
    child = pair(gate, text);
    if (child == 0) {
        train(text);
        exit(0);
    }
    layer(tensors);
    set_one_from_target(parameters);
    options.scheme = "ssp";
    options.staleness = 0;
    options.learning_rate = 0.5f;
    EXPECT(BAD_ARGUMENT, slackline_server_create(text, tensors, 2, parameters, ELEMENTS - 1, &options, &server));
    CHECK(server == NULL && said("1009 values were given for 1010"));
    OK(slackline_server_create(text, tensors, 2, parameters, ELEMENTS, &options, &server));
    OK(slackline_server_address(server, &address));
    CHECK(tcp ? strncmp(address, "127.0.0.1:", 10) == 0 && strcmp(address, text) != 0 : strcmp(address, text) == 0);
    OK(slackline_server_progress(server, NULL));
    EXPECT(DEADLINE, slackline_server_serve(server, 1, 1));
    CHECK(said("0 have joined"));
    start(gate, address);
    OK(slackline_server_serve(server, 1, TIMEOUT_MS));
    join(child);

    status.size = sizeof status;
    OK(slackline_server_get_status(server, &status));
    CHECK(status.version == CLOCKS && status.smallest_clock >= CLOCKS && status.folded == CLOCKS);
    CHECK(status.joined == 1 && status.left == 1 && status.workers == 0 && status.dropped == 0);
    CHECK(status.fresh == CLOCKS && status.versions_behind == 0 && status.rails_lost == 0);
    /* The distance before the last step, squared and halved, in each element. */
    CHECK(fabs(status.loss - ELEMENTS * ldexp(0.5, -2 * (CLOCKS - 1))) < 1e-12);
    EXPECT(BAD_ARGUMENT, slackline_server_parameters(server, parameters, ELEMENTS + 1));
    EXPECT(BAD_ARGUMENT, slackline_server_parameters(server, NULL, ELEMENTS));
    check_steps_taken(server, CLOCKS);
    slackline_server_destroy(server);
}

/* ------------------------------------------------------------------ publishing */

static void follow(const char *address)
{
    struct slackline_reader_options options;
    struct slackline_reader *reader = NULL;
    struct slackline_fresh fresh;
    const unsigned char *values;
    const void *bytes;
    size_t len, index;
    uint32_t done;

    options.size = sizeof options;
    OK(slackline_reader_options_init(&options));
    options.checksums = 1;
    OK(slackline_reader_connect(address, &options, TIMEOUT_MS, &reader));
    EXPECT(OUT_OF_TURN, slackline_reader_bytes(reader, &bytes, &len));
    CHECK(said("nothing is copied yet: refresh first"));
    EXPECT(DEADLINE, slackline_reader_refresh_to(reader, VERSIONS + 1, 1, NULL));
    CHECK(said("version"));
    fresh.size = sizeof fresh;
    OK(slackline_reader_refresh_to(reader, VERSIONS, TIMEOUT_MS, &fresh));
    CHECK(fresh.version == VERSIONS && fresh.behind == 0 && fresh.copied == 1);
    OK(slackline_reader_bytes(reader, &bytes, &len));
    CHECK(len == 2 * ELEMENTS);
    values = bytes;
    for (index = 0; index < len; index++)
        CHECK(values[index] == VERSIONS);
    /* Fresh enough: nothing is copied, and the bytes stay where they are. */
    OK(slackline_reader_refresh(reader, 0, TIMEOUT_MS, &fresh));
    CHECK(fresh.version == VERSIONS && fresh.copied == 0);
    OK(slackline_reader_refresh(reader, 3, TIMEOUT_MS, NULL));
    /* The same without waiting. */
    OK(slackline_reader_poll(reader, &done, NULL));
    CHECK(done == 0);
    OK(slackline_reader_begin_refresh(reader, 0));
    for (fresh.version = 0, done = 0; !done;)
        OK(slackline_reader_poll(reader, &done, &fresh));
    CHECK(fresh.version == VERSIONS && fresh.copied == 0);
    slackline_reader_destroy(reader);
}

static void a_reader_gets_what_a_publisher_published(int tcp)
{
    struct slackline_publisher_options options;
    struct slackline_publisher *publisher = NULL;
    struct slackline_publisher_status status;
    struct slackline_tensor tensors[2];
    unsigned char bytes[2 * ELEMENTS];
    const char *address;
    uint64_t version;
    char text[ADDRESS_SIZE];
    pid_t child;
    int gate[2];

    own_address(text, "publisher", tcp);
    child = pair(gate, text);
    if (child == 0) {
        follow(text);
        exit(0);
    }
    layer(tensors);
    tensors[0].element = tensors[1].element = SLACKLINE_ELEMENT_BF16;
    options.size = sizeof options;
    OK(slackline_publisher_options_init(&options));
    options.checksums = 1;
    options.chunk_bytes = 256;
    OK(slackline_publisher_create(text, tensors, 2, &options, &publisher));
    EXPECT(BAD_ARGUMENT, slackline_publisher_publish(publisher, bytes, sizeof bytes - 1, TIMEOUT_MS, NULL));
    EXPECT(BAD_ARGUMENT, slackline_publisher_publish(publisher, NULL, sizeof bytes, TIMEOUT_MS, NULL));
    EXPECT(OUT_OF_TURN, slackline_publisher_commit(publisher, NULL));
    CHECK(said("begin a version first"));
    OK(slackline_publisher_address(publisher, &address));
    start(gate, address);
    for (version = 1; version <= VERSIONS; version++) {
        uint64_t made;
        memset(bytes, (int)version, sizeof bytes);
        OK(slackline_publisher_publish(publisher, bytes, sizeof bytes, TIMEOUT_MS, &made));
        CHECK(made == version);
    }
    status.size = sizeof status;
    do {
        uint32_t progressed;
        OK(slackline_publisher_progress(publisher, &progressed));
        OK(slackline_publisher_get_status(publisher, &status));
        if (!progressed)
            usleep(100);
    } while (status.joined == 0 || status.readers > 0);
    CHECK(status.version == VERSIONS && status.joined == 1);
    join(child);
    slackline_publisher_destroy(publisher);
}

/* ------------------------------------------------------------------ misuse */

static void names_and_numbers_are_what_the_header_says(void)
{
    CHECK(strcmp(slackline_last_error(), "") == 0);
    CHECK(strchr(slackline_version(), '.') != NULL);
    CHECK(strcmp(slackline_status_name(SLACKLINE_STATUS_OK), "ok") == 0);
    CHECK(strcmp(slackline_status_name(SLACKLINE_STATUS_SERVER_LOST), "server lost") == 0);
    CHECK(strcmp(slackline_status_name(4096), "unknown status") == 0);
}

static void null_is_answered_everywhere(void)
{
    struct slackline_server_status server_status = {.size = sizeof server_status};
    struct slackline_publisher_status publisher_status = {.size = sizeof publisher_status};
    const float *parameters;
    const char *address;
    const void *bytes;
    float *gradient, value = 1;
    const struct slackline_tensor *tensors;
    uint64_t number;
    uint32_t flag;
    void *room;
    size_t len;

    EXPECT(BAD_ARGUMENT, slackline_server_options_init(NULL));
    EXPECT(BAD_ARGUMENT, slackline_worker_options_init(NULL));
    EXPECT(BAD_ARGUMENT, slackline_publisher_options_init(NULL));
    EXPECT(BAD_ARGUMENT, slackline_reader_options_init(NULL));
    EXPECT(BAD_ARGUMENT, slackline_server_create(NULL, NULL, 0, NULL, 0, NULL, NULL));
    EXPECT(BAD_ARGUMENT, slackline_server_address(NULL, &address));
    EXPECT(BAD_ARGUMENT, slackline_server_progress(NULL, NULL));
    CHECK(said("NULL"));
    EXPECT(BAD_ARGUMENT, slackline_server_serve(NULL, 1, 0));
    EXPECT(BAD_ARGUMENT, slackline_server_follow(NULL, "@smoke-decider", 0));
    EXPECT(BAD_ARGUMENT, slackline_worker_reconnect(NULL, &address, 0, 0));
    EXPECT(BAD_ARGUMENT, slackline_worker_table(NULL, &tensors, &len));
    EXPECT(BAD_ARGUMENT, slackline_worker_scheme(NULL, &address));
    EXPECT(BAD_ARGUMENT, slackline_worker_in_place(NULL, 0, &parameters, &len));
    EXPECT(BAD_ARGUMENT, slackline_worker_slot(NULL, 0, 0, &room, &len));
    EXPECT(BAD_ARGUMENT, slackline_worker_progress(NULL, NULL));
    EXPECT(BAD_ARGUMENT, slackline_worker_get_staleness(NULL, NULL));
    EXPECT(BAD_ARGUMENT, slackline_worker_publish_slots(NULL, NULL, 0));
    EXPECT(BAD_ARGUMENT, slackline_publisher_serve(NULL, 0, 0, 0));
    EXPECT(BAD_ARGUMENT, slackline_server_get_status(NULL, &server_status));
    EXPECT(BAD_ARGUMENT, slackline_server_set_learning_rate(NULL, value));
    EXPECT(BAD_ARGUMENT, slackline_server_parameters(NULL, &value, 1));
    EXPECT(BAD_ARGUMENT, slackline_worker_connect(NULL, 1, NULL, 0, NULL));
    EXPECT(BAD_ARGUMENT, slackline_worker_begin(NULL, NULL, 0));
    EXPECT(BAD_ARGUMENT, slackline_worker_parameters(NULL, &parameters, &len));
    EXPECT(BAD_ARGUMENT, slackline_worker_gradient(NULL, &gradient, &len));
    EXPECT(BAD_ARGUMENT, slackline_worker_encode(NULL, &value, 1));
    EXPECT(BAD_ARGUMENT, slackline_worker_publish(NULL, NULL, 0));
    EXPECT(BAD_ARGUMENT, slackline_worker_flush(NULL, 0));
    EXPECT(BAD_ARGUMENT, slackline_publisher_create(NULL, NULL, 0, NULL, NULL));
    EXPECT(BAD_ARGUMENT, slackline_publisher_address(NULL, &address));
    EXPECT(BAD_ARGUMENT, slackline_publisher_publish(NULL, "", 1, 0, NULL));
    EXPECT(BAD_ARGUMENT, slackline_publisher_progress(NULL, NULL));
    EXPECT(BAD_ARGUMENT, slackline_publisher_get_status(NULL, &publisher_status));
    EXPECT(BAD_ARGUMENT, slackline_reader_connect(NULL, NULL, 0, NULL));
    EXPECT(BAD_ARGUMENT, slackline_reader_refresh(NULL, 0, 0, NULL));
    EXPECT(BAD_ARGUMENT, slackline_reader_refresh_to(NULL, 0, 0, NULL));
    EXPECT(BAD_ARGUMENT, slackline_reader_begin_refresh(NULL, 0));
    EXPECT(BAD_ARGUMENT, slackline_reader_poll(NULL, &flag, NULL));
    EXPECT(BAD_ARGUMENT, slackline_reader_bytes(NULL, &bytes, &len));
    EXPECT(BAD_ARGUMENT, slackline_server_checkpoint(NULL, 0, NULL));
    EXPECT(BAD_ARGUMENT, slackline_worker_should_stop(NULL, &flag));
    EXPECT(BAD_ARGUMENT, slackline_worker_abandon(NULL));
    EXPECT(BAD_ARGUMENT, slackline_publisher_begin(NULL, 0, &room, &len));
    EXPECT(BAD_ARGUMENT, slackline_publisher_commit(NULL, NULL));
    EXPECT(BAD_ARGUMENT, slackline_publisher_abort(NULL));
    EXPECT(BAD_ARGUMENT, slackline_reader_pull(NULL, &value, sizeof value, 0, 0, NULL));
    EXPECT(BAD_ARGUMENT, slackline_reader_newest(NULL, 0, &number));
    EXPECT(BAD_ARGUMENT, slackline_reader_pin(NULL, 0, 0, &bytes, &len, NULL));
    EXPECT(BAD_ARGUMENT, slackline_reader_is_intact(NULL, &flag));
    EXPECT(BAD_ARGUMENT, slackline_reader_unpin(NULL));
    EXPECT(BAD_ARGUMENT, slackline_reader_table(NULL, &tensors, &len));
    EXPECT(BAD_ARGUMENT, slackline_reader_range(NULL, &number, &number));
    EXPECT(BAD_ARGUMENT, slackline_tensor_range(NULL, 1, 0, &number, &number));
    slackline_server_destroy(NULL);
    slackline_worker_destroy(NULL);
    slackline_publisher_destroy(NULL);
    slackline_reader_destroy(NULL);
}

static void tables_options_and_addresses_that_cannot_be_are_bad_arguments(void)
{
    struct slackline_server_options options = server_options(), wrong = options;
    struct slackline_server *server = (struct slackline_server *)&options;
    struct slackline_server_status status;
    struct slackline_tensor tensors[2];
    float values[ELEMENTS] = {0};

    layer(tensors);
#define CREATE(address, count, options) \
    slackline_server_create(address, tensors, count, values, ELEMENTS, options, &server)
    EXPECT(BAD_ARGUMENT, CREATE("@smoke-bad", 2, NULL));
    CHECK(server == NULL);
    EXPECT(BAD_ARGUMENT, CREATE("no address", 2, &options));
    CHECK(said("no address"));
    EXPECT(BAD_ARGUMENT, CREATE("@\xff", 2, &options));
    CHECK(said("UTF-8"));
    EXPECT(BAD_ARGUMENT, CREATE("@smoke-bad", 0, &options));
    EXPECT(BAD_ARGUMENT, CREATE("@smoke-bad", SIZE_MAX, &options));
    wrong.size = 0;
    EXPECT(BAD_ARGUMENT, CREATE("@smoke-bad", 2, &wrong));
    EXPECT(BAD_ARGUMENT, slackline_server_options_init(&wrong));
    wrong.size = sizeof wrong + 7;
    EXPECT(BAD_ARGUMENT, CREATE("@smoke-bad", 2, &wrong));
    CHECK(said("options->size"));
    wrong = options;
    wrong.scheme = "bap-ish";
    EXPECT(BAD_ARGUMENT, CREATE("@smoke-bad", 2, &wrong));
    CHECK(said("bap-ish"));
    wrong.scheme = NULL;
    EXPECT(BAD_ARGUMENT, CREATE("@smoke-bad", 2, &wrong));
    wrong = options;
    wrong.staleness = 1;
    EXPECT(BAD_ARGUMENT, CREATE("@smoke-bad", 2, &wrong));
    CHECK(said("takes no staleness"));
    wrong = options;
    wrong.optimizer = 99;
    EXPECT(BAD_ARGUMENT, CREATE("@smoke-bad", 2, &wrong));
    wrong = options;
    wrong.workers = 0;
    EXPECT(BAD_ARGUMENT, CREATE("@smoke-bad", 2, &wrong));
    wrong = options;
    wrong.threads = 0;
    EXPECT(BAD_ARGUMENT, CREATE("@smoke-bad", 2, &wrong));
    wrong = options;
    wrong.chunk_bytes = 0;
    EXPECT(BAD_ARGUMENT, CREATE("@smoke-bad", 2, &wrong));
    wrong = options;
    wrong.learning_rate = NAN;
    EXPECT(BAD_ARGUMENT, CREATE("@smoke-bad", 2, &wrong));
    tensors[1].name = "weight";
    EXPECT(BAD_ARGUMENT, CREATE("@smoke-bad", 2, &options));
    CHECK(said("weight"));
    tensors[1].name = NULL;
    EXPECT(BAD_ARGUMENT, CREATE("@smoke-bad", 2, &options));
    layer(tensors);
    tensors[1].shape = NULL;
    EXPECT(BAD_ARGUMENT, CREATE("@smoke-bad", 2, &options));
    layer(tensors);
    tensors[1].element = 9999;
    EXPECT(BAD_ARGUMENT, CREATE("@smoke-bad", 2, &options));
    CHECK(said("9999"));
    tensors[1].element = SLACKLINE_ELEMENT_F16;
    EXPECT(BAD_ARGUMENT, CREATE("@smoke-bad", 2, &options));
    CHECK(said("f32"));
    layer(tensors);
    EXPECT(BAD_ARGUMENT, slackline_server_create(NULL, tensors, 2, NULL, ELEMENTS, &options, &server));
    OK(CREATE(NULL, 2, &options));
    EXPECT(BAD_ARGUMENT, slackline_server_set_learning_rate(server, NAN));
    status.size = 1;
    EXPECT(BAD_ARGUMENT, slackline_server_get_status(server, &status));
    status.size = sizeof status;
    OK(slackline_server_get_status(server, &status));
    CHECK(status.version == 0 && isnan(status.loss));
    slackline_server_destroy(server);
#undef CREATE
}

static void a_server_that_is_absent_refuses_or_is_gone_is_named(void)
{
    struct slackline_server_options options = server_options();
    struct slackline_worker_options worker = worker_options();
    struct slackline_worker *none = NULL;
    struct slackline_server *server;
    struct slackline_tensor tensors[2];
    float values[ELEMENTS] = {0};
    const char *address = "@slackline-smoke-nobody";

    EXPECT(SYSTEM, slackline_worker_connect(&address, 1, &worker, 100, &none));
    CHECK(none == NULL && said("no process listens") && slackline_last_error_is_retryable() == 1);
    EXPECT(BAD_ARGUMENT, slackline_worker_connect(&address, 0, &worker, TIMEOUT_MS, &none));
    worker.encoding = 17;
    EXPECT(BAD_ARGUMENT, slackline_worker_connect(&address, 1, &worker, TIMEOUT_MS, &none));

    /* A server that is not driven does not answer. */
    worker = worker_options();
    layer(tensors);
    OK(slackline_server_create(NULL, tensors, 2, values, ELEMENTS, &options, &server));
    OK(slackline_server_address(server, &address));
    EXPECT(DEADLINE, slackline_worker_connect(&address, 1, &worker, 1, &none));
    CHECK(none == NULL && said("connecting") && said("accepted the connection but does not answer"));
    CHECK(slackline_last_error_is_retryable() == 1);
    slackline_server_destroy(server);
}

/* Another scheme is refused; and a reader that waits while its server ends is told so. */
static void outlive(const char *address)
{
    struct slackline_worker_options options = worker_options();
    struct slackline_worker *worker = NULL;
    struct slackline_reader *reader;

    options.scheme = "asp";
    EXPECT(REFUSED, slackline_worker_connect(&address, 1, &options, TIMEOUT_MS, &worker));
    CHECK(worker == NULL && said("bsp"));
    OK(slackline_reader_connect(address, NULL, TIMEOUT_MS, &reader));
    OK(slackline_reader_refresh(reader, 0, TIMEOUT_MS, NULL));
    EXPECT(SERVER_LOST, slackline_reader_refresh_to(reader, 1, TIMEOUT_MS, NULL));
    CHECK(said("connect again"));
    slackline_reader_destroy(reader);
}

static void another_scheme_is_refused_and_a_server_that_ends_is_lost(void)
{
    struct slackline_server_options options = server_options();
    struct slackline_server *server;
    struct slackline_server_status status;
    struct slackline_tensor tensors[2];
    float values[ELEMENTS] = {0};
    char text[ADDRESS_SIZE];
    pid_t child;
    int gate[2];

    own_address(text, "ending", 0);
    child = pair(gate, text);
    if (child == 0) {
        outlive(text);
        exit(0);
    }
    layer(tensors);
    OK(slackline_server_create(text, tensors, 2, values, ELEMENTS, &options, &server));
    start(gate, text);
    status.size = sizeof status;
    do {
        OK(slackline_server_progress(server, NULL));
        OK(slackline_server_get_status(server, &status));
    } while (status.readers == 0);
    CHECK(status.refused == 1 && status.joined == 0);
    EXPECT(DEADLINE, slackline_server_serve(server, 1, 50));
    slackline_server_destroy(server);
    join(child);
}

int main(void)
{
    alarm(300);
    names_and_numbers_are_what_the_header_says();
    null_is_answered_everywhere();
    tables_options_and_addresses_that_cannot_be_are_bad_arguments();
    a_server_that_is_absent_refuses_or_is_gone_is_named();
    another_scheme_is_refused_and_a_server_that_ends_is_lost();
    a_server_and_a_worker_train_a_quadratic(0);
    a_server_and_a_worker_train_a_quadratic(1);
    a_reader_gets_what_a_publisher_published(0);
    a_reader_gets_what_a_publisher_published(1);
    puts("all checks passed");
    return 0;
}
