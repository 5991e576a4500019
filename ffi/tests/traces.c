/*
 * Certificates in C: what a publisher and a reader put on record, and the judgement of it. Exits with 0 if all checks
 * passed.
 */
#include "check.h"

enum { TRACE = 1 << 16 };

static char trace[TRACE];

static void put_on_record(const char *line)
{
    CHECK(line[0] == '{' && strchr(line, '\n') == NULL);
    CHECK(strlen(trace) + strlen(line) + 2 < TRACE);
    strcat(strcat(trace, line), "\n");
}

static struct slackline_verdict judge(char *violations, size_t room)
{
    struct slackline_verdict verdict;
    verdict.size = sizeof verdict;
    OK(slackline_check(trace, 0, &verdict, violations, room));
    return verdict;
}

/* Publishes a version by each of the ways, with a record, and reads each. */
static void record(uint32_t background)
{
    struct slackline_publisher_options options;
    struct slackline_publisher *publisher;
    struct slackline_tensor tensors[2];
    struct slackline_snapshot *snapshot;
    struct slackline_reader *reader;
    static float values[ELEMENTS];
    const char *address, *line, *again;
    struct slackline_tag tag = {7, {1}};
    uint64_t version;
    size_t len;
    void *memory;

    trace[0] = 0;
    layer(tensors);
    options.size = sizeof options;
    OK(slackline_publisher_options_init(&options));
    options.background = background;
    OK(slackline_publisher_create(NULL, tensors, 2, &options, &publisher));
    OK(slackline_publisher_address(publisher, &address));
    EXPECT(OUT_OF_TURN, slackline_publisher_commit_recorded(publisher, &version, &line));
    EXPECT(BAD_ARGUMENT, slackline_publisher_publish_recorded(publisher, values, 4, TIMEOUT_MS, NULL, &line));
    values[0] = 1;
    OK(slackline_publisher_set_tag(publisher, &tag));
    OK(slackline_publisher_publish_recorded(publisher, values, sizeof values, TIMEOUT_MS, &version, &line));
    CHECK(version == 1 && strstr(line, "\"step\":7") != NULL);
    put_on_record(line);
    if (background) {
        OK(slackline_reader_connect(address, NULL, TIMEOUT_MS, &reader));
        OK(slackline_reader_snapshot(reader, 1, 0, 0, TIMEOUT_MS, &snapshot));
        OK(slackline_snapshot_certificate(snapshot, &line));
        OK(slackline_snapshot_certificate(snapshot, &again));
        CHECK(line == again);
        put_on_record(line);
        slackline_snapshot_destroy(snapshot);
    }
    OK(slackline_publisher_begin(publisher, TIMEOUT_MS, &memory, &len));
    memset(memory, 2, len);
    OK(slackline_publisher_commit_recorded(publisher, NULL, &line));
    CHECK(strstr(line, "\"step\":0") != NULL); /* a tag is that of one version */
    put_on_record(line);
    if (background) {
        OK(slackline_reader_snapshot(reader, 2, 0, 0, TIMEOUT_MS, &snapshot));
        OK(slackline_snapshot_certificate(snapshot, &line));
        put_on_record(line);
        slackline_snapshot_destroy(snapshot);
        slackline_reader_destroy(reader);
    }
    slackline_publisher_destroy(publisher);
}

static void a_publisher_of_calls_records_its_versions(void)
{
    struct slackline_verdict verdict;

    record(0);
    verdict = judge(NULL, 0);
    CHECK(verdict.publications == 2 && verdict.reads == 0 && verdict.violations == 0 && verdict.text_bytes == 1);
}

static void reads_are_verified_and_an_altered_digest_is_a_violation(void)
{
    struct slackline_verdict verdict;
    char text[1024] = "x", *digest;

    record(1);
    verdict = judge(text, sizeof text);
    CHECK(verdict.publications == 2 && verdict.reads == 2 && verdict.verified == 2 && verdict.unverified == 0);
    CHECK(verdict.violations == 0 && text[0] == 0);

    /* The last line is that of a certificate, and its last member has the digests. */
    digest = strrchr(trace, ':') + 2;
    *digest = *digest == '0' ? '1' : '0';
    verdict = judge(text, sizeof text);
    CHECK(verdict.verified == 1 && verdict.unverified == 0 && verdict.violations == 1);
    CHECK(strncmp(text, "line 4: not whole: ", 19) == 0 && strstr(text, "(line 3)\n") != NULL);
    CHECK(strlen(text) + 1 == verdict.text_bytes);
    judge(text, verdict.text_bytes);
    CHECK(strlen(text) + 1 == verdict.text_bytes);
    judge(text, verdict.text_bytes - 1); /* whole lines or none */
    CHECK(text[0] == 0);
    CHECK(judge(NULL, 0).text_bytes == verdict.text_bytes);
}

/* Puts the last read of the reader on record. */
static void certify(struct slackline_reader *reader, const void *bytes, size_t len)
{
    const char *line;
    OK(slackline_reader_certificate(reader, bytes, len, &line));
    put_on_record(line);
}

static void refreshes_pulls_and_pins_are_verified_like_snapshots(void)
{
    struct slackline_publisher_options options;
    struct slackline_publisher *publisher;
    struct slackline_snapshot *snapshot;
    struct slackline_tensor tensors[2];
    struct slackline_verdict verdict;
    struct slackline_reader *reader;
    static float values[ELEMENTS], copy[ELEMENTS];
    struct slackline_slice part = {"bias", NULL, NULL, 0};
    const char *address, *line;
    const void *bytes;
    uint32_t done;
    size_t len;
    int version;

    trace[0] = 0;
    layer(tensors);
    options.size = sizeof options;
    OK(slackline_publisher_options_init(&options));
    options.background = 1;
    OK(slackline_publisher_create(NULL, tensors, 2, &options, &publisher));
    OK(slackline_publisher_address(publisher, &address));
    OK(slackline_reader_connect(address, NULL, TIMEOUT_MS, &reader));
    EXPECT(OUT_OF_TURN, slackline_reader_certificate(reader, values, sizeof values, &line));
    for (version = 1; version <= 2; version++) {
        values[ELEMENTS - 1] = (float)version;
        OK(slackline_publisher_publish_recorded(publisher, values, sizeof values, TIMEOUT_MS, NULL, &line));
        put_on_record(line);
        OK(slackline_reader_pull(reader, copy, sizeof copy, 0, TIMEOUT_MS, NULL));
        EXPECT(BAD_ARGUMENT, slackline_reader_certificate(reader, copy, sizeof copy - 1, &line));
        EXPECT(BAD_ARGUMENT, slackline_reader_certificate(reader, NULL, sizeof copy, &line));
        certify(reader, copy, sizeof copy);
        OK(slackline_reader_pin(reader, (uint64_t)version, TIMEOUT_MS, &bytes, &len, NULL));
        certify(reader, bytes, len);
        OK(slackline_reader_unpin(reader));
        EXPECT(OUT_OF_TURN, slackline_reader_certificate(reader, copy, sizeof copy, &line));
        /* At version 2 the copy is kept: it is one version older than what was read before. */
        OK(slackline_reader_refresh(reader, 1, TIMEOUT_MS, NULL));
        OK(slackline_reader_bytes(reader, &bytes, &len));
        certify(reader, bytes, len);
    }
    OK(slackline_reader_begin_refresh(reader, 0));
    EXPECT(OUT_OF_TURN, slackline_reader_certificate(reader, values, sizeof values, &line));
    for (done = 0; !done;)
        OK(slackline_reader_poll(reader, &done, NULL));
    OK(slackline_reader_bytes(reader, &bytes, &len));
    certify(reader, bytes, len);
    OK(slackline_reader_snapshot(reader, 2, 0, 0, TIMEOUT_MS, &snapshot));
    OK(slackline_snapshot_certificate(snapshot, &line));
    put_on_record(line);
    slackline_snapshot_destroy(snapshot);
    /* Of a selection the copy is a part, and a pinned frame is the whole. */
    OK(slackline_reader_select(reader, &part, 1));
    OK(slackline_reader_refresh_to(reader, 2, TIMEOUT_MS, NULL));
    OK(slackline_reader_bytes(reader, &bytes, &len));
    certify(reader, bytes, len);
    OK(slackline_reader_pin(reader, 2, TIMEOUT_MS, &bytes, &len, NULL));
    CHECK(len == sizeof values);
    certify(reader, bytes, len);
    OK(slackline_reader_unpin(reader));
    verdict = judge(NULL, 0);
    CHECK(verdict.publications == 2 && verdict.reads == 10 && verdict.verified == 10 && verdict.violations == 0);

    /* Bytes that are not those of the read are found out. */
    OK(slackline_reader_select(reader, NULL, 0));
    OK(slackline_reader_pull(reader, copy, sizeof copy, 0, TIMEOUT_MS, NULL));
    copy[0] = 7;
    certify(reader, copy, sizeof copy);
    verdict = judge(NULL, 0);
    CHECK(verdict.reads == 11 && verdict.verified == 10 && verdict.violations == 1);
    slackline_reader_destroy(reader);
    slackline_publisher_destroy(publisher);
}

static void a_pull_does_not_go_back_behind_a_snapshot_or_a_pin(void)
{
    struct slackline_publisher_options options;
    struct slackline_reader_options reading;
    struct slackline_publisher *publisher;
    struct slackline_snapshot *snapshot;
    struct slackline_tensor tensors[2];
    struct slackline_verdict verdict;
    struct slackline_reader *reader;
    struct slackline_fresh fresh;
    static float values[ELEMENTS], copy[ELEMENTS];
    const char *address, *line;
    const void *bytes;
    size_t len;
    int version;

    trace[0] = 0;
    layer(tensors);
    options.size = sizeof options;
    OK(slackline_publisher_options_init(&options));
    options.background = 1;
    OK(slackline_publisher_create(NULL, tensors, 2, &options, &publisher));
    OK(slackline_publisher_address(publisher, &address));
    /* Pulls of a reader that checks go by way of its own copy. */
    reading.size = sizeof reading;
    OK(slackline_reader_options_init(&reading));
    reading.checksums = 1;
    OK(slackline_reader_connect(address, &reading, TIMEOUT_MS, &reader));
    fresh.size = sizeof fresh;
    for (version = 1; version <= 3; version++) {
        values[ELEMENTS - 1] = (float)version;
        OK(slackline_publisher_publish_recorded(publisher, values, sizeof values, TIMEOUT_MS, NULL, &line));
        put_on_record(line);
        if (version == 2) {
            OK(slackline_reader_snapshot(reader, 2, 0, 0, TIMEOUT_MS, &snapshot));
            OK(slackline_snapshot_certificate(snapshot, &line));
            put_on_record(line);
            slackline_snapshot_destroy(snapshot);
        } else if (version == 3) {
            OK(slackline_reader_pin(reader, 3, TIMEOUT_MS, &bytes, &len, NULL));
            certify(reader, bytes, len);
            OK(slackline_reader_unpin(reader));
        }
        OK(slackline_reader_pull(reader, copy, sizeof copy, 5, TIMEOUT_MS, &fresh));
        CHECK(fresh.version == (uint64_t)version);
        certify(reader, copy, sizeof copy);
    }
    verdict = judge(NULL, 0);
    CHECK(verdict.publications == 3 && verdict.reads == 5 && verdict.verified == 5 && verdict.violations == 0);
    slackline_reader_destroy(reader);
    slackline_publisher_destroy(publisher);
}

static void what_is_no_record_is_told_with_its_line(void)
{
    struct slackline_verdict verdict;
    const char *line;

    verdict.size = sizeof verdict;
    EXPECT(BAD_ARGUMENT, slackline_check("\n\n{\"other\": 1}\n", 0, &verdict, NULL, 0));
    CHECK(said("line 3"));
    EXPECT(BAD_ARGUMENT, slackline_check("\n", 0, &verdict, NULL, 0));
    CHECK(said("no record"));
    EXPECT(BAD_ARGUMENT, slackline_check(NULL, 0, &verdict, NULL, 0));
    EXPECT(BAD_ARGUMENT, slackline_check("", 0, NULL, NULL, 0));
    EXPECT(BAD_ARGUMENT, slackline_check("", 0, &verdict, NULL, 1));
    EXPECT(BAD_ARGUMENT, slackline_snapshot_certificate(NULL, &line));
    EXPECT(BAD_ARGUMENT, slackline_reader_certificate(NULL, "", 1, &line));
    EXPECT(BAD_ARGUMENT, slackline_publisher_commit_recorded(NULL, NULL, &line));
    EXPECT(BAD_ARGUMENT, slackline_publisher_publish_recorded(NULL, NULL, 0, 0, NULL, &line));
}

/* As of processes that were killed while they wrote the last line, and of a host that crashed. */
static void a_last_line_that_is_not_finished_is_left_out(void)
{
    struct slackline_verdict verdict;
    char whole[2048], *last;
    size_t len;

    record(0);
    len = strlen(trace);
    CHECK(len < sizeof whole);
    memcpy(whole, trace, len + 1);
    CHECK(judge(NULL, 0).unfinished == 0);
    trace[len - 1] = 0; /* a record is whole without its end */
    verdict = judge(NULL, 0);
    CHECK(verdict.publications == 2 && verdict.unfinished == 0);
    trace[len / 2 + 9] = 0;
    verdict = judge(NULL, 0);
    CHECK(verdict.publications == 1 && verdict.unfinished == 2);
    last = strchr(trace, '\n') + 1;
    strcpy(last, "\xff no record");
    verdict = judge(NULL, 0);
    CHECK(verdict.publications == 1 && verdict.unfinished == 2);
    strcat(last, "\n");
    verdict.size = sizeof verdict;
    EXPECT(BAD_ARGUMENT, slackline_check(trace, 0, &verdict, NULL, 0));
    CHECK(said("line 2"));
    /* Records behind it: it is not the last one. */
    strcpy(trace, "{\n");
    strcat(trace, whole);
    EXPECT(BAD_ARGUMENT, slackline_check(trace, 0, &verdict, NULL, 0));
    CHECK(said("line 1"));
    /* The begin of a record alone is a trace without records. */
    EXPECT(BAD_ARGUMENT, slackline_check("{", 0, &verdict, NULL, 0));
    CHECK(said("no record"));
}

int main(void)
{
    a_publisher_of_calls_records_its_versions();
    reads_are_verified_and_an_altered_digest_is_a_violation();
    refreshes_pulls_and_pins_are_verified_like_snapshots();
    a_pull_does_not_go_back_behind_a_snapshot_or_a_pin();
    what_is_no_record_is_told_with_its_line();
    a_last_line_that_is_not_finished_is_left_out();
    puts("all checks passed");
    return 0;
}
