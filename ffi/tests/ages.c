/*
 * Programs that were built with an older or a newer header than the library's; the secret in the options; host names;
 * RDMA; the message of the last failure. Exits with 0 if all checks passed.
 */
#include "check.h"

#include <pthread.h>
#include <sys/stat.h>

/* ------------------------------------------------------------------ sizes */

/* The worker's options as release 0.1.0 had them. */
struct older_worker_options {
    size_t size;
    const char *scheme;
    uint64_t staleness;
    uint32_t encoding;
    uint32_t checksums;
};

static void an_older_program_s_struct_is_neither_overrun_nor_refused(void)
{
    struct {
        struct older_worker_options options;
        unsigned char behind[256];
    } older;
    struct slackline_worker *worker;
    const char *address = "@slackline-ages-none";
    size_t index;

    memset(&older, 0xee, sizeof older);
    older.options.size = sizeof older.options;
    OK(slackline_worker_options_init((struct slackline_worker_options *)&older.options));
    CHECK(older.options.scheme == NULL && older.options.size == sizeof older.options);
    for (index = 0; index < sizeof older.behind; index++)
        CHECK(older.behind[index] == 0xee);
    /* The library does not take what lies behind the struct for a secret. */
    EXPECT(SYSTEM, slackline_worker_connect(&address, 1, (struct slackline_worker_options *)&older.options, 0, &worker));
}

/* A struct of a program of any age: of each size that it ever had, and of some that it has yet to get. */
typedef slackline_status fill_function(void *object, void *memory);

static void fill_at_every_age(fill_function *fill, void *object, size_t first, size_t now)
{
    union {
        size_t size;
        unsigned char bytes[512];
    } memory;
    size_t size, index;

    for (size = first; size <= now + 16; size += 8) {
        memset(&memory, 0xee, sizeof memory);
        memory.size = size;
        OK(fill(object, &memory));
        CHECK(memory.size == size);
        for (index = size; index < sizeof memory; index++)
            CHECK(memory.bytes[index] == 0xee);
        for (index = now; index < size; index++)
            CHECK(memory.bytes[index] == 0);
    }
    memory.size = first - 8;
    EXPECT(BAD_ARGUMENT, fill(object, &memory));
}

#define FILL(name, call) \
    static slackline_status name(void *object, void *memory) { (void)object; return call; }
FILL(job_options, slackline_job_options_init(memory))
FILL(server_options_of, slackline_server_options_init(memory))
FILL(worker_options_of, slackline_worker_options_init(memory))
FILL(publisher_options, slackline_publisher_options_init(memory))
FILL(reader_options, slackline_reader_options_init(memory))
FILL(group_options, slackline_group_options_init(memory))
FILL(simulate_options, slackline_simulate_options_init(memory))
FILL(server_status, slackline_server_get_status(object, memory))
FILL(publisher_status, slackline_publisher_get_status(object, memory))

static slackline_status fresh(void *object, void *memory)
{
    const void *bytes;
    size_t len;
    return slackline_snapshot_bytes(object, &bytes, &len, memory);
}

/* The sizes are those of release 0.1.0. */
static void structs_of_every_age_are_filled_and_not_overrun(void)
{
    struct slackline_server_options options = server_options();
    struct slackline_publisher *publisher;
    struct slackline_server *server;
    struct slackline_tensor tensors[2];
    static const float values[ELEMENTS];

    fill_at_every_age(job_options, NULL, 48, sizeof(struct slackline_job_options));
    fill_at_every_age(server_options_of, NULL, 104, sizeof(struct slackline_server_options));
    fill_at_every_age(worker_options_of, NULL, 32, sizeof(struct slackline_worker_options));
    fill_at_every_age(publisher_options, NULL, 32, sizeof(struct slackline_publisher_options));
    fill_at_every_age(reader_options, NULL, 16, sizeof(struct slackline_reader_options));
    fill_at_every_age(group_options, NULL, 48, sizeof(struct slackline_group_options));
    fill_at_every_age(simulate_options, NULL, 152, sizeof(struct slackline_simulate_options));
    layer(tensors);
    OK(slackline_server_create(NULL, tensors, 2, values, ELEMENTS, &options, &server));
    fill_at_every_age(server_status, server, 104, sizeof(struct slackline_server_status));
    slackline_server_destroy(server);
    OK(slackline_publisher_create(NULL, tensors, 2, NULL, &publisher));
    fill_at_every_age(publisher_status, publisher, 32, sizeof(struct slackline_publisher_status));
    slackline_publisher_destroy(publisher);
}

static void what_is_told_of_a_version_is_of_every_age(void)
{
    struct slackline_publisher_options options;
    struct slackline_publisher *publisher;
    struct slackline_snapshot *snapshot;
    struct slackline_reader *reader;
    struct slackline_tensor tensors[2];
    const char *address;

    layer(tensors);
    options.size = sizeof options;
    OK(slackline_publisher_options_init(&options));
    options.background = 1;
    OK(slackline_publisher_create(NULL, tensors, 2, &options, &publisher));
    OK(slackline_publisher_address(publisher, &address));
    OK(slackline_reader_connect(address, NULL, TIMEOUT_MS, &reader));
    OK(slackline_reader_snapshot(reader, 0, SLACKLINE_ANY_STALENESS, 0, TIMEOUT_MS, &snapshot));
    fill_at_every_age(fresh, snapshot, 48, sizeof(struct slackline_fresh));
    slackline_snapshot_destroy(snapshot);
    slackline_reader_destroy(reader);
    slackline_publisher_destroy(publisher);
}

static void a_newer_program_s_fields_are_refused_only_if_they_are_set(void)
{
    struct {
        struct slackline_server_options options;
        uint64_t unknown[2];
    } newer;
    struct {
        struct slackline_server_status status;
        uint64_t unknown;
    } status;
    struct slackline_server *server;
    struct slackline_tensor tensors[2];
    static const float values[ELEMENTS];

    layer(tensors);
    memset(&newer, 0xee, sizeof newer);
    newer.options.size = sizeof newer;
    OK(slackline_server_options_init(&newer.options));
    CHECK(newer.options.size == sizeof newer && newer.unknown[0] == 0 && newer.unknown[1] == 0);
    newer.unknown[1] = 1;
    EXPECT(BAD_ARGUMENT, slackline_server_create(NULL, tensors, 2, values, ELEMENTS, &newer.options, &server));
    CHECK(said("leave the new fields zero"));
    newer.unknown[1] = 0;
    OK(slackline_server_create(NULL, tensors, 2, values, ELEMENTS, &newer.options, &server));
    memset(&status, 0xee, sizeof status);
    status.status.size = sizeof status;
    OK(slackline_server_get_status(server, &status.status));
    CHECK(status.status.version == 0 && status.unknown == 0 && status.status.size == sizeof status);
    slackline_server_destroy(server);
}

static void the_version_is_a_macro_a_number_and_a_text(void)
{
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", SLACKLINE_VERSION_MAJOR, SLACKLINE_VERSION_MINOR, SLACKLINE_VERSION_PATCH);
    CHECK(strcmp(text, slackline_version()) == 0);
#if SLACKLINE_VERSION_NUMBER < 1000
#error "the version number can be compared by the preprocessor"
#endif
    CHECK(slackline_version_number() == SLACKLINE_VERSION_NUMBER);
}

/* ------------------------------------------------------------------ the message */

static void *fail_elsewhere(void *unused)
{
    (void)unused;
    EXPECT(BAD_ARGUMENT, slackline_worker_flush(NULL, 0));
    CHECK(said("object"));
    return NULL;
}

static void the_message_stays_at_one_address_and_in_its_thread(void)
{
    const char *early = slackline_last_error();
    pthread_t thread;

    EXPECT(BAD_ARGUMENT, slackline_worker_options_init(NULL));
    CHECK(early == slackline_last_error() && strstr(early, "options is NULL") != NULL);
    CHECK(slackline_last_error_is_retryable() == 0);
    CHECK(pthread_create(&thread, NULL, fail_elsewhere, NULL) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(strstr(early, "options is NULL") != NULL);
}

/* ------------------------------------------------------------------ secrets and hosts */

static const char SECRET[] = "a secret of the job, long enough";

static slackline_status read_with(const char *address, const char *secret, const char *secret_file)
{
    struct slackline_reader_options options;
    struct slackline_reader *reader;
    slackline_status status;

    options.size = sizeof options;
    OK(slackline_reader_options_init(&options));
    options.secret = secret;
    options.secret_file = secret_file;
    status = slackline_reader_connect(address, &options, TIMEOUT_MS, &reader);
    if (status == SLACKLINE_STATUS_OK) {
        OK(slackline_reader_refresh(reader, 0, TIMEOUT_MS, NULL));
        slackline_reader_destroy(reader);
    }
    return status;
}

static void read_with_several_secrets(const char *address)
{
    char file[] = "/tmp/slackline-ages-XXXXXX";
    int descriptor = mkstemp(file);

    CHECK(descriptor >= 0);
    CHECK(write(descriptor, SECRET, strlen(SECRET)) == (ssize_t)strlen(SECRET) && close(descriptor) == 0);
    EXPECT(BAD_ARGUMENT, read_with(address, SECRET, file));
    CHECK(said("both set"));
    EXPECT(BAD_ARGUMENT, read_with(address, "short", NULL));
    CHECK(said("16 to 4096 bytes"));
    EXPECT(BAD_ARGUMENT, read_with(address, NULL, "/no/such/file"));
    CHECK(chmod(file, 0644) == 0);
    EXPECT(BAD_ARGUMENT, read_with(address, NULL, file));
    CHECK(said("mode 600"));
    CHECK(chmod(file, 0600) == 0);
    EXPECT(REFUSED, read_with(address, "another secret, as long", NULL));
    EXPECT(OK, read_with(address, NULL, file));
    EXPECT(OK, read_with(address, SECRET, NULL));
    CHECK(unlink(file) == 0);
}

static void the_secret_in_the_options_lets_peers_in_at_a_host_s_name(void)
{
    struct slackline_publisher_options options;
    struct slackline_publisher *publisher;
    struct slackline_publisher_status status;
    struct slackline_tensor tensors[2];
    const char *address;
    char text[ADDRESS_SIZE];
    pid_t child;
    int gate[2];

    child = pair(gate, text);
    if (child == 0) {
        read_with_several_secrets(text);
        exit(0);
    }
    layer(tensors);
    options.size = sizeof options;
    OK(slackline_publisher_options_init(&options));
    CHECK(options.secret == NULL && options.secret_file == NULL);
    EXPECT(BAD_ARGUMENT, slackline_publisher_create("0.0.0.0:0", tensors, 2, &options, &publisher));
    CHECK(said("secret"));
    options.secret = SECRET;
    OK(slackline_publisher_create("localhost:0", tensors, 2, &options, &publisher));
    OK(slackline_publisher_address(publisher, &address));
    CHECK(strncmp(address, "127.0.0.1:", 10) == 0);
    snprintf(text, sizeof text, "localhost:%s", strrchr(address, ':') + 1);
    start(gate, text);
    status.size = sizeof status;
    do {
        OK(slackline_publisher_progress(publisher, NULL));
        OK(slackline_publisher_get_status(publisher, &status));
    } while (status.joined < 2 || status.readers > 0);
    join(child);
    slackline_publisher_destroy(publisher);
}

static void a_setting_of_rdma_that_cannot_be_is_named(void)
{
    struct slackline_publisher *publisher;
    struct slackline_tensor tensors[2];

    layer(tensors);
    CHECK(setenv("SLACKLINE_RDMA_MTU", "big", 1) == 0);
    EXPECT(BAD_ARGUMENT, slackline_publisher_create("verbs:127.0.0.1:0", tensors, 2, NULL, &publisher));
    CHECK(publisher == NULL && said("SLACKLINE_RDMA_MTU"));
    OK(slackline_publisher_create("127.0.0.1:0", tensors, 2, NULL, &publisher));
    slackline_publisher_destroy(publisher);
    CHECK(unsetenv("SLACKLINE_RDMA_MTU") == 0);
}

static void rdma_works_or_is_unsupported_in_words(void)
{
    char both[ADDRESS_SIZE];
    struct slackline_publisher *publisher;
    struct slackline_reader *reader;
    struct slackline_tensor tensors[2];
    slackline_status status;

    layer(tensors);
    snprintf(both, sizeof both, "@ages-both-%d,verbs:127.0.0.1:0", (int)getpid());
    status = slackline_publisher_create(both, tensors, 2, NULL, &publisher);
    if (status == SLACKLINE_STATUS_OK) {
        slackline_publisher_destroy(publisher);
        return;
    }
    EXPECT(UNSUPPORTED, status);
    CHECK(publisher == NULL && (said("RDMA") || said("libibverbs")));
    EXPECT(UNSUPPORTED, slackline_reader_connect("verbs:localhost:7", NULL, TIMEOUT_MS, &reader));
    CHECK(reader == NULL && (said("RDMA") || said("libibverbs")));
}

int main(void)
{
    alarm(300);
    an_older_program_s_struct_is_neither_overrun_nor_refused();
    structs_of_every_age_are_filled_and_not_overrun();
    what_is_told_of_a_version_is_of_every_age();
    a_newer_program_s_fields_are_refused_only_if_they_are_set();
    the_version_is_a_macro_a_number_and_a_text();
    the_message_stays_at_one_address_and_in_its_thread();
    the_secret_in_the_options_lets_peers_in_at_a_host_s_name();
    a_setting_of_rdma_that_cannot_be_is_named();
    rdma_works_or_is_unsupported_in_words();
    puts("all checks passed");
    return 0;
}
