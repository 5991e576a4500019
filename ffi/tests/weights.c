/*
 * The weights plane in C: tags, a publisher that a thread looks after, what its readers hold, slices, snapshots and
 * relays. Exits with 0 if all checks passed.
 */
#include "check.h"

#define BYTES (ELEMENTS * 4)

static struct slackline_publisher *any_publisher_of(const char *address, uint64_t begin_at, uint64_t background)
{
    struct slackline_publisher_options options;
    struct slackline_publisher *publisher;
    struct slackline_tensor tensors[2];

    layer(tensors);
    options.size = sizeof options;
    OK(slackline_publisher_options_init(&options));
    CHECK(options.background == 0 && options.begin_at == 0);
    options.background = background;
    options.begin_at = begin_at;
    OK(slackline_publisher_create(address, tensors, 2, &options, &publisher));
    return publisher;
}

static struct slackline_publisher *publisher_of(const char *address, uint64_t begin_at)
{
    return any_publisher_of(address, begin_at, 1);
}

static void publish(struct slackline_publisher *publisher, int value, uint64_t version)
{
    static uint32_t words[ELEMENTS];
    struct slackline_tag tag;
    uint64_t published;
    int index;

    for (index = 0; index < ELEMENTS; index++)
        words[index] = (uint32_t)(value * 100000 + index);
    memset(&tag, value, sizeof tag);
    tag.step = (uint64_t)value;
    OK(slackline_publisher_set_tag(publisher, &tag));
    OK(slackline_publisher_publish(publisher, words, sizeof words, TIMEOUT_MS, &published));
    CHECK(published == version);
}

/* The words of a snapshot are those that `publish` wrote, from the index `first` on. */
static void has_words(struct slackline_snapshot *snapshot, const char *name, int value, int first, size_t count)
{
    const uint32_t *words;
    const void *bytes;
    size_t len, index;

    OK(slackline_snapshot_tensor(snapshot, name, &bytes, &len));
    CHECK(len == 4 * count);
    words = bytes;
    for (index = 0; index < count; index++)
        CHECK(words[index] == (uint32_t)(value * 100000 + first + (int)index));
}

static void versions_come_with_their_tags_and_stay(void)
{
    struct slackline_publisher *publisher = publisher_of(NULL, 0);
    struct slackline_snapshot *first, *second, *none;
    struct slackline_fresh fresh;
    struct slackline_reader *reader;
    const struct slackline_tensor *table;
    const char *address;
    const void *bytes;
    uint64_t begin, end;
    size_t len, count;

    OK(slackline_publisher_address(publisher, &address));
    OK(slackline_reader_connect(address, NULL, TIMEOUT_MS, &reader));
    publish(publisher, 1, 1);
    OK(slackline_reader_tensor_range(reader, 1, &begin, &end));
    CHECK(begin == 4 * WEIGHTS && end == BYTES);
    EXPECT(BAD_ARGUMENT, slackline_reader_tensor_range(reader, 2, &begin, &end));
    OK(slackline_reader_snapshot(reader, 1, SLACKLINE_ANY_STALENESS, 0, TIMEOUT_MS, &first));
    publish(publisher, 2, 2);
    OK(slackline_reader_snapshot(reader, 0, 0, 0, TIMEOUT_MS, &second));
    fresh.size = sizeof fresh;
    OK(slackline_snapshot_bytes(first, &bytes, &len, &fresh));
    CHECK(len == BYTES && fresh.version == 1 && fresh.step == 1 && fresh.label[31] == 1);
    CHECK(fresh.published_ns > 0 && fresh.origin == fresh.epoch);
    OK(slackline_snapshot_bytes(second, &bytes, &len, &fresh));
    CHECK(fresh.version == 2 && fresh.step == 2 && fresh.behind == 0);
    OK(slackline_snapshot_table(second, &table, &count));
    CHECK(count == 2 && strcmp(table[1].name, "bias") == 0);
    has_words(first, "weight", 1, 0, WEIGHTS);
    has_words(second, "bias", 2, WEIGHTS, BIASES);
    EXPECT(BAD_ARGUMENT, slackline_snapshot_tensor(second, "other", &bytes, &len));

    /* Three frames hold the last three versions. */
    publish(publisher, 3, 3);
    publish(publisher, 4, 4);
    slackline_snapshot_destroy(first);
    OK(slackline_reader_snapshot(reader, 2, SLACKLINE_ANY_STALENESS, 1, TIMEOUT_MS, &first));
    has_words(first, "weight", 2, 0, WEIGHTS);
    EXPECT(VERSION_GONE, slackline_reader_snapshot(reader, 1, SLACKLINE_ANY_STALENESS, 1, TIMEOUT_MS, &none));
    CHECK(none == NULL);
    EXPECT(DEADLINE, slackline_reader_snapshot(reader, 5, SLACKLINE_ANY_STALENESS, 0, 20, &none));

    slackline_reader_destroy(reader);
    has_words(second, "weight", 2, 0, WEIGHTS); /* it outlives its reader */
    slackline_snapshot_destroy(first);
    slackline_snapshot_destroy(second);
    slackline_publisher_destroy(publisher);
}

static void a_version_that_was_begun_outlives_a_wrong_call(uint64_t background)
{
    static const uint32_t wrong[ELEMENTS + 1];
    struct slackline_publisher *publisher = any_publisher_of(NULL, 0, background);
    struct slackline_snapshot *snapshot;
    struct slackline_reader *reader;
    const char *address, *record;
    uint64_t version;
    size_t len, index;
    uint32_t *words;
    void *memory;

    OK(slackline_publisher_begin(publisher, TIMEOUT_MS, &memory, &len));
    words = memory;
    for (index = 0; index < ELEMENTS; index++)
        words[index] = 700000 + (uint32_t)index;
    EXPECT(BAD_ARGUMENT, slackline_publisher_publish(publisher, wrong, sizeof wrong, TIMEOUT_MS, &version));
    EXPECT(BAD_ARGUMENT,
           slackline_publisher_publish_recorded(publisher, wrong, sizeof wrong, TIMEOUT_MS, &version, &record));
    CHECK(words[BIASES] == 700000 + BIASES);
    OK(slackline_publisher_commit(publisher, &version));
    CHECK(version == 1);
    if (background != 0) { /* another one takes no reader in meanwhile */
        OK(slackline_publisher_address(publisher, &address));
        OK(slackline_reader_connect(address, NULL, TIMEOUT_MS, &reader));
        OK(slackline_reader_snapshot(reader, version, 0, 0, TIMEOUT_MS, &snapshot));
        has_words(snapshot, "weight", 7, 0, WEIGHTS);
        slackline_snapshot_destroy(snapshot);
        slackline_reader_destroy(reader);
    }
    slackline_publisher_destroy(publisher);
}

/* The thread of the publisher may hold its lock when the process forks. */
static void a_forked_child_leaves_the_objects_to_its_parent(void)
{
    struct slackline_publisher *publisher = publisher_of(NULL, 0);
    struct slackline_publisher_status status = {.size = sizeof status};
    uint64_t version;
    size_t len;
    void *memory;
    pid_t child;
    int round;

    OK(slackline_publisher_begin(publisher, TIMEOUT_MS, &memory, &len));
    for (round = 0; round < 50; round++) {
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(60);
            EXPECT(OUT_OF_TURN, slackline_publisher_get_status(publisher, &status));
            CHECK(said("forked this one: make one here"));
            EXPECT(OUT_OF_TURN, slackline_publisher_publish(publisher, memory, len, TIMEOUT_MS, &version));
            slackline_publisher_destroy(publisher);
            _exit(0);
        }
        join(child);
    }
    OK(slackline_publisher_commit(publisher, &version));
    CHECK(version == 1);
    slackline_publisher_destroy(publisher);
}

static void a_publisher_knows_what_its_readers_hold(void)
{
    struct slackline_publisher *publisher = publisher_of(NULL, 0);
    struct slackline_reader_status statuses[4];
    struct slackline_reader *one, *other;
    const char *address;
    const void *bytes;
    size_t len, count;
    void *memory;

    OK(slackline_publisher_address(publisher, &address));
    OK(slackline_reader_connect(address, NULL, TIMEOUT_MS, &one));
    OK(slackline_reader_connect(address, NULL, TIMEOUT_MS, &other));
    publish(publisher, 1, 1);
    OK(slackline_reader_refresh(one, 0, TIMEOUT_MS, NULL));
    OK(slackline_publisher_wait(publisher, 1, 1, TIMEOUT_MS));
    EXPECT(DEADLINE, slackline_publisher_wait(publisher, 1, 2, 20));
    OK(slackline_reader_pin(other, 1, TIMEOUT_MS, &bytes, &len, NULL));
    OK(slackline_publisher_wait(publisher, 1, 2, TIMEOUT_MS));
    OK(slackline_publisher_readers(publisher, statuses, 1, &count));
    CHECK(count == 2); /* more than there is room for */
    OK(slackline_publisher_readers(publisher, statuses, 4, &count));
    CHECK(count == 2 && statuses[0].behind == 0 && statuses[1].behind == 0);
    CHECK((statuses[0].pins == 1) + (statuses[1].pins == 1) == 1);
    CHECK((statuses[0].holds == SLACKLINE_NO_VERSION) + (statuses[1].holds == SLACKLINE_NO_VERSION) == 1);
    OK(slackline_reader_unpin(other));

    /* Written in place, and given up, while the thread looks after the readers. */
    OK(slackline_publisher_begin(publisher, TIMEOUT_MS, &memory, &len));
    memset(memory, 0xff, len);
    OK(slackline_publisher_abort(publisher));
    EXPECT(OUT_OF_TURN, slackline_publisher_commit(publisher, NULL));
    publish(publisher, 2, 2);
    slackline_reader_destroy(one);
    slackline_reader_destroy(other);
    OK(slackline_publisher_serve(publisher, 2, 2, TIMEOUT_MS));
    slackline_publisher_destroy(publisher);
}

static void a_reader_takes_slices_and_finds_the_successor(void)
{
    struct slackline_publisher *publisher = publisher_of(NULL, 0);
    static const uint64_t begin[2] = {10, 0}, end[2] = {12, 20}, outside[2] = {12, 21};
    struct slackline_slice slices[2];
    struct slackline_snapshot *snapshot;
    struct slackline_reader *reader;
    const char *address;
    char text[128];

    OK(slackline_publisher_address(publisher, &address));
    strcpy(text, address);
    OK(slackline_reader_connect(address, NULL, TIMEOUT_MS, &reader));
    memset(slices, 0, sizeof slices);
    slices[0].name = "bias";
    slices[1].name = "weight";
    slices[1].begin = begin;
    slices[1].end = outside;
    slices[1].rank = 2;
    EXPECT(BAD_ARGUMENT, slackline_reader_select(reader, slices, 2));
    slices[1].end = end;
    OK(slackline_reader_select(reader, slices, 2));
    publish(publisher, 1, 1);
    OK(slackline_reader_snapshot(reader, 1, 0, 0, TIMEOUT_MS, &snapshot));
    has_words(snapshot, "bias", 1, WEIGHTS, BIASES);
    has_words(snapshot, "weight", 1, 200, 40);
    slackline_snapshot_destroy(snapshot);
    slackline_publisher_destroy(publisher);
    do
        snapshot = NULL;
    while (slackline_reader_snapshot(reader, 1, 0, 0, TIMEOUT_MS, &snapshot) == SLACKLINE_STATUS_OK &&
           (slackline_snapshot_destroy(snapshot), 1));

    publisher = publisher_of(text, 1);
    publish(publisher, 2, 2);
    OK(slackline_reader_reconnect(reader, text, TIMEOUT_MS));
    OK(slackline_reader_snapshot(reader, 2, 0, 0, TIMEOUT_MS, &snapshot));
    has_words(snapshot, "weight", 2, 200, 40);
    slackline_snapshot_destroy(snapshot);
    OK(slackline_reader_select(reader, NULL, 0));
    OK(slackline_reader_snapshot(reader, 2, 0, 0, TIMEOUT_MS, &snapshot));
    has_words(snapshot, "weight", 2, 0, WEIGHTS);
    slackline_snapshot_destroy(snapshot);
    slackline_reader_destroy(reader);
    slackline_publisher_destroy(publisher);
}

static void a_relay_passes_versions_on(void)
{
    struct slackline_publisher *publisher = publisher_of(NULL, 0);
    struct slackline_snapshot *snapshot;
    struct slackline_reader_status status;
    struct slackline_fresh fresh;
    struct slackline_reader *reader;
    struct slackline_relay *relay;
    const char *upstream, *address;
    const void *bytes;
    uint64_t version;
    size_t len;

    OK(slackline_publisher_address(publisher, &upstream));
    EXPECT(BAD_ARGUMENT, slackline_relay_start(&upstream, 0, NULL, NULL, TIMEOUT_MS, &relay));
    OK(slackline_relay_start(&upstream, 1, NULL, NULL, TIMEOUT_MS, &relay));
    OK(slackline_relay_address(relay, &address));
    OK(slackline_reader_connect(address, NULL, TIMEOUT_MS, &reader));
    publish(publisher, 1, 1);
    OK(slackline_reader_snapshot(reader, 1, SLACKLINE_ANY_STALENESS, 0, TIMEOUT_MS, &snapshot));
    has_words(snapshot, "weight", 1, 0, WEIGHTS);
    fresh.size = sizeof fresh;
    OK(slackline_snapshot_bytes(snapshot, &bytes, &len, &fresh));
    CHECK(fresh.step == 1 && fresh.origin != fresh.epoch);
    OK(slackline_relay_version(relay, &version));
    CHECK(version == 1);
    do {
        OK(slackline_relay_readers(relay, &status, 1, &len));
        CHECK(len == 1 && status.pins == SLACKLINE_NO_VERSION);
    } while (status.holds != 1); /* the relay's thread hears of it */
    CHECK(status.behind == 0);
    slackline_snapshot_destroy(snapshot);
    slackline_reader_destroy(reader);
    slackline_relay_destroy(relay);
    slackline_publisher_destroy(publisher);
}

/* What is at its owner's address now is another publisher, whose versions mean something else. */
static void a_relay_that_has_ended_says_why(void)
{
    struct slackline_publisher *publisher;
    struct slackline_relay *relay;
    const char *upstream;
    char text[ADDRESS_SIZE];
    slackline_status status;
    uint64_t version;

    own_address(text, "relayed", 0);
    upstream = text;
    publisher = publisher_of(text, 0);
    OK(slackline_relay_start(&upstream, 1, NULL, NULL, TIMEOUT_MS, &relay));
    slackline_publisher_destroy(publisher);
    publisher = publisher_of(text, 0);
    do
        status = slackline_relay_version(relay, &version);
    while (status == SLACKLINE_STATUS_OK);
    EXPECT(SERVER_LOST, status);
    CHECK(said("another"));
    slackline_relay_destroy(relay);
    slackline_publisher_destroy(publisher);
}

/* A reader that asks the publisher for its position in the tree reads the same version, whichever relay serves it. */
static void a_relay_joins_the_tree_of_its_publisher(void)
{
    struct slackline_publisher_options options;
    struct slackline_reader_options reading;
    struct slackline_publisher *publisher = publisher_of(NULL, 0);
    struct slackline_snapshot *snapshot;
    struct slackline_reader *reader;
    struct slackline_relay *near, *far;
    const char *root;

    options.size = sizeof options;
    OK(slackline_publisher_options_init(&options));
    options.branches = 1;
    OK(slackline_publisher_address(publisher, &root));
    EXPECT(BAD_ARGUMENT, slackline_relay_join(root, "0.0.0.0:0", &options, TIMEOUT_MS, &near));
    OK(slackline_relay_join(root, NULL, &options, TIMEOUT_MS, &near));
    OK(slackline_relay_join(root, NULL, &options, TIMEOUT_MS, &far));
    reading.size = sizeof reading;
    OK(slackline_reader_options_init(&reading));
    reading.in_tree = 1;
    OK(slackline_reader_connect(root, &reading, TIMEOUT_MS, &reader));
    publish(publisher, 1, 1);
    OK(slackline_reader_snapshot(reader, 1, SLACKLINE_ANY_STALENESS, 0, TIMEOUT_MS, &snapshot));
    has_words(snapshot, "weight", 1, 0, WEIGHTS);
    slackline_snapshot_destroy(snapshot);
    slackline_reader_destroy(reader);
    slackline_relay_destroy(far);
    slackline_relay_destroy(near);
    slackline_publisher_destroy(publisher);
}

/* Of each version one word is another than before. */
static void a_copy_is_brought_on_by_differences(void)
{
    struct slackline_publisher_options options;
    struct slackline_publisher *publisher;
    struct slackline_tensor tensors[2];
    struct slackline_reader *reader;
    static uint32_t words[ELEMENTS];
    const char *address;
    const void *bytes;
    uint64_t version;
    size_t len;

    layer(tensors);
    options.size = sizeof options;
    OK(slackline_publisher_options_init(&options));
    CHECK(options.deltas == 0 && options.delta_bytes == 0);
    options.background = 1;
    options.deltas = 256;
    EXPECT(BAD_ARGUMENT, slackline_publisher_create(NULL, tensors, 2, &options, &publisher));
    options.deltas = 2;
    options.delta_bytes = 64;
    OK(slackline_publisher_create(NULL, tensors, 2, &options, &publisher));
    OK(slackline_publisher_address(publisher, &address));
    OK(slackline_reader_connect(address, NULL, TIMEOUT_MS, &reader));
    for (version = 1; version < 20; version++) {
        words[version * 31 % ELEMENTS] = 0x7fc00000u + (uint32_t)version; /* NaNs, if they were values */
        OK(slackline_publisher_publish(publisher, words, sizeof words, TIMEOUT_MS, NULL));
        if (version % 4 == 0)
            continue;
        OK(slackline_reader_refresh_to(reader, version, TIMEOUT_MS, NULL));
        OK(slackline_reader_bytes(reader, &bytes, &len));
        CHECK(len == sizeof words && memcmp(bytes, words, len) == 0);
    }
    slackline_reader_destroy(reader);
    slackline_publisher_destroy(publisher);
}

static void a_readers_secret_opens_reading_and_nothing_else(void)
{
    static const char job[] = "a secret of the job in C";
    struct slackline_publisher_options options;
    struct slackline_reader_options reading;
    struct slackline_publisher *publisher, *none;
    struct slackline_tensor tensors[2];
    struct slackline_reader *reader;
    char secret[SLACKLINE_READING_SECRET_BYTES];
    const char *address;

    OK(slackline_reading_secret(job, NULL, secret, sizeof secret));
    CHECK(strlen(secret) == sizeof secret - 1);
    EXPECT(BAD_ARGUMENT, slackline_reading_secret(job, NULL, secret, sizeof secret - 1));
    EXPECT(BAD_ARGUMENT, slackline_reading_secret("short", NULL, secret, sizeof secret));
    layer(tensors);
    options.size = sizeof options;
    OK(slackline_publisher_options_init(&options));
    options.background = 1;
    options.secret = job;
    OK(slackline_publisher_create("127.0.0.1:0", tensors, 2, &options, &publisher));
    OK(slackline_publisher_address(publisher, &address));
    reading.size = sizeof reading;
    OK(slackline_reader_options_init(&reading));
    reading.secret = secret;
    OK(slackline_reader_connect(address, &reading, TIMEOUT_MS, &reader));
    OK(slackline_reader_refresh(reader, 0, TIMEOUT_MS, NULL));
    slackline_reader_destroy(reader);
    options.secret = secret;
    EXPECT(BAD_ARGUMENT, slackline_publisher_create("127.0.0.1:0", tensors, 2, &options, &none));
    slackline_publisher_destroy(publisher);
}

static void tables_are_found_by_their_names(void)
{
    static const char *const names[2] = {"base", "adapter-7"};
    struct slackline_publisher *publishers[2], *none;
    struct slackline_publisher_options options;
    struct slackline_reader_options reading;
    struct slackline_snapshot *snapshot;
    struct slackline_tensor tensors[2];
    struct slackline_tables *tables;
    struct slackline_reader *reader;
    const char *address;
    int index;

    OK(slackline_tables_listen(NULL, NULL, NULL, &tables));
    OK(slackline_tables_address(tables, &address));
    layer(tensors);
    options.size = sizeof options;
    OK(slackline_publisher_options_init(&options));
    options.background = 1;
    for (index = 0; index < 2; index++) {
        options.table = names[index];
        OK(slackline_tables_publisher(tables, tensors, 2, &options, &publishers[index]));
        publish(publishers[index], 5 + index, 1);
    }
    EXPECT(SYSTEM, slackline_tables_publisher(tables, tensors, 2, &options, &none));
    reading.size = sizeof reading;
    OK(slackline_reader_options_init(&reading));
    EXPECT(REFUSED, slackline_reader_connect(address, &reading, 20, &reader));
    for (index = 0; index < 2; index++) {
        reading.table = names[index];
        OK(slackline_reader_connect(address, &reading, TIMEOUT_MS, &reader));
        OK(slackline_reader_snapshot(reader, 1, SLACKLINE_ANY_STALENESS, 0, TIMEOUT_MS, &snapshot));
        has_words(snapshot, "weight", 5 + index, 0, WEIGHTS);
        slackline_snapshot_destroy(snapshot);
        slackline_reader_destroy(reader);
        slackline_publisher_destroy(publishers[index]);
    }
    slackline_tables_destroy(tables);
    slackline_tables_destroy(NULL);
}

static void null_is_answered_everywhere(void)
{
    struct slackline_snapshot *snapshot;
    struct slackline_relay *relay;
    const void *bytes;
    uint64_t number;
    size_t count;

    EXPECT(BAD_ARGUMENT, slackline_reading_secret("a secret of the job in C", NULL, NULL, 0));
    EXPECT(BAD_ARGUMENT, slackline_publisher_set_tag(NULL, NULL));
    EXPECT(BAD_ARGUMENT, slackline_publisher_readers(NULL, NULL, 0, &count));
    EXPECT(BAD_ARGUMENT, slackline_publisher_wait(NULL, 0, 0, 0));
    EXPECT(BAD_ARGUMENT, slackline_reader_select(NULL, NULL, 0));
    EXPECT(BAD_ARGUMENT, slackline_reader_reconnect(NULL, "@x", 0));
    EXPECT(BAD_ARGUMENT, slackline_reader_tensor_range(NULL, 0, &number, &number));
    EXPECT(BAD_ARGUMENT, slackline_reader_snapshot(NULL, 0, 0, 0, 0, &snapshot));
    EXPECT(BAD_ARGUMENT, slackline_snapshot_bytes(NULL, &bytes, &count, NULL));
    EXPECT(BAD_ARGUMENT, slackline_snapshot_tensor(NULL, "x", &bytes, &count));
    EXPECT(BAD_ARGUMENT, slackline_relay_start(NULL, 0, NULL, NULL, 0, &relay));
    EXPECT(BAD_ARGUMENT, slackline_relay_version(NULL, &number));
    EXPECT(BAD_ARGUMENT, slackline_relay_readers(NULL, NULL, 0, &count));
    slackline_snapshot_destroy(NULL);
    slackline_relay_destroy(NULL);
}

int main(void)
{
    versions_come_with_their_tags_and_stay();
    a_version_that_was_begun_outlives_a_wrong_call(0);
    a_version_that_was_begun_outlives_a_wrong_call(1);
    a_forked_child_leaves_the_objects_to_its_parent();
    a_publisher_knows_what_its_readers_hold();
    a_reader_takes_slices_and_finds_the_successor();
    a_relay_passes_versions_on();
    a_relay_that_has_ended_says_why();
    a_relay_joins_the_tree_of_its_publisher();
    a_copy_is_brought_on_by_differences();
    a_readers_secret_opens_reading_and_nothing_else();
    tables_are_found_by_their_names();
    null_is_answered_everywhere();
    puts("all checks passed");
    return 0;
}
