/*
 * Memory of GPUs, as far as it goes without one: what is refused, that owners are let go of, and versions of a
 * publisher that waits for GPUs and has none. The library's own tests are of copies. Exits with 0 if all checks passed.
 */
#include "check.h"

#include <stddef.h>

static unsigned released;

static void release(void *context)
{
    CHECK(context == &released);
    released++;
}

/* A range on no GPU, with an owner. */
static struct slackline_gpu_range nowhere(void)
{
    struct slackline_gpu_range range;
    memset(&range, 0, sizeof range);
    range.pointer = 4096;
    range.bytes = 64;
    range.release = release;
    range.context = &released;
    return range;
}

static struct slackline_publisher *publisher_of(uint64_t background)
{
    struct slackline_publisher_options options;
    struct slackline_publisher *publisher;
    struct slackline_tensor tensors[2];
    layer(tensors);
    options.size = sizeof options;
    OK(slackline_publisher_options_init(&options));
    CHECK(options.gpu == NULL);
    options.background = background;
    OK(slackline_publisher_create(NULL, tensors, 2, &options, &publisher));
    return publisher;
}

static void a_gpu_is_opened_or_the_status_says_why_not(void)
{
    struct slackline_gpu *gpu = (struct slackline_gpu *)&released;
    const char *name;
    uint64_t bytes = 1;

    if (slackline_gpu_open(0, 0, &gpu) == SLACKLINE_STATUS_OK) {
        OK(slackline_gpu_name(gpu, &name));
        OK(slackline_gpu_host_bytes_copied(gpu, &bytes));
        CHECK(name[0] != 0 && bytes == 0);
        slackline_gpu_destroy(gpu);
    } else {
        EXPECT(UNSUPPORTED, slackline_gpu_open(0, 0, &gpu));
        CHECK(gpu == NULL && !slackline_last_error_is_retryable());
        CHECK(said("driver") || said("GPU"));
        CHECK(said("install") || said("nvidia-smi"));
    }
    EXPECT(UNSUPPORTED, slackline_gpu_open(4000000000u, 0, &gpu));
    EXPECT(BAD_ARGUMENT, slackline_gpu_open(0, 0, NULL));
    EXPECT(BAD_ARGUMENT, slackline_gpu_name(NULL, &name));
    EXPECT(BAD_ARGUMENT, slackline_gpu_host_bytes_copied(NULL, &bytes));
    slackline_gpu_destroy(NULL);
}

/* Each call that takes a range, of which the first `count` say what is wrong with it. */
static void each_call_refuses(const struct slackline_gpu_range *range, const char *word, unsigned owners)
{
    struct slackline_publisher *publisher = publisher_of(1);
    slackline_status statuses[6];
    size_t call;

    for (call = 0; call < 6; call++) {
        released = 0;
        switch (call) {
        case 0: statuses[call] = slackline_publisher_copy_from_gpu(publisher, 0, range, TIMEOUT_MS); break;
        case 1: statuses[call] = slackline_reader_pull_to_gpu(NULL, range, 0, TIMEOUT_MS, NULL); break;
        case 2: statuses[call] = slackline_snapshot_copy_to_gpu(NULL, 0, range); break;
        case 3: statuses[call] = slackline_worker_copy_parameters_to_gpu(NULL, 0, range); break;
        case 4: statuses[call] = slackline_worker_copy_gradient_from_gpu(NULL, 0, range); break;
        default: statuses[call] = slackline_worker_publish_from_gpu(NULL, range, NULL, TIMEOUT_MS); break;
        }
        EXPECT(BAD_ARGUMENT, statuses[call]);
        CHECK(said(word) && released == owners);
    }
    slackline_publisher_destroy(publisher);
}

static void a_range_that_cannot_be_is_refused_and_its_owner_let_go(void)
{
    struct slackline_gpu_range range = nowhere();

    each_call_refuses(NULL, "range is NULL", 0);
    each_call_refuses(&range, "the object is NULL", 1);
    range.stream = (void *)2;
    each_call_refuses(&range, "default stream of each thread", 1);
    range.release = NULL;
    each_call_refuses(&range, "default stream of each thread", 0);
}

static void what_is_begun_without_a_gpu_is_copied_already(void)
{
    struct slackline_publisher *publisher = publisher_of(1);
    struct slackline_reader *reader;
    const char *address;
    float seen[ELEMENTS];
    uint64_t version = 7;
    void *bytes;
    size_t len;

    EXPECT(OUT_OF_TURN, slackline_publisher_commit_when_copied(publisher, TIMEOUT_MS, &version));
    OK(slackline_publisher_begin(publisher, TIMEOUT_MS, &bytes, &len));
    CHECK(len == sizeof seen);
    set_one_from_target(bytes);
    OK(slackline_publisher_commit_when_copied(publisher, TIMEOUT_MS, &version));
    CHECK(version == 1);
    EXPECT(OUT_OF_TURN, slackline_publisher_commit_when_copied(publisher, TIMEOUT_MS, &version));

    OK(slackline_publisher_address(publisher, &address));
    OK(slackline_reader_connect(address, NULL, TIMEOUT_MS, &reader));
    OK(slackline_reader_pull(reader, seen, sizeof seen, 0, TIMEOUT_MS, NULL));
    CHECK(seen[3] == target_of(3) + 1.0f);
    slackline_reader_destroy(reader);
    slackline_publisher_destroy(publisher);

    publisher = publisher_of(0);
    EXPECT(BAD_ARGUMENT, slackline_publisher_commit_when_copied(publisher, TIMEOUT_MS, NULL));
    CHECK(said("set `background`"));
    slackline_publisher_destroy(publisher);
}

/* The options of a publisher that has its frames in a range. */
static struct slackline_publisher_options lending(const struct slackline_gpu_range *range)
{
    struct slackline_publisher_options options;
    options.size = sizeof options;
    OK(slackline_publisher_options_init(&options));
    CHECK(options.gpu_memory == NULL);
    options.gpu_memory = range;
    return options;
}

static void memory_for_frames_that_is_refused_is_let_go(void)
{
    struct slackline_gpu_range range = nowhere();
    struct slackline_publisher_options options = lending(&range);
    struct slackline_publisher *publisher;
    struct slackline_tables *tables;
    struct slackline_relay *relay;
    struct slackline_tensor tensors[2];
    const char *upstream = "@slackline-gpus-none";

    layer(tensors);
    released = 0;
    EXPECT(BAD_ARGUMENT, slackline_publisher_create(NULL, tensors, 2, &options, &publisher));
    CHECK(publisher == NULL && said("set `gpu` in its options") && released == 1);
    EXPECT(BAD_ARGUMENT, slackline_publisher_create("no address", tensors, 2, &options, &publisher));
    CHECK(released == 2);
    EXPECT(BAD_ARGUMENT, slackline_relay_start(&upstream, 1, NULL, &options, TIMEOUT_MS, &relay));
    CHECK(said("a relay cannot have frames") && released == 3);
    EXPECT(BAD_ARGUMENT, slackline_relay_start(NULL, 0, NULL, &options, TIMEOUT_MS, &relay));
    CHECK(released == 4);
    EXPECT(BAD_ARGUMENT, slackline_relay_join(upstream, NULL, &options, TIMEOUT_MS, &relay));
    CHECK(said("a relay cannot have frames") && released == 5);

    OK(slackline_tables_listen(NULL, NULL, NULL, &tables));
    options.table = "one";
    EXPECT(BAD_ARGUMENT, slackline_tables_publisher(tables, tensors, 2, &options, &publisher));
    CHECK(said("a publisher of tables cannot have frames") && released == 6);
    slackline_tables_destroy(tables);
}

static void a_program_without_memory_for_frames_need_not_know_of_it(void)
{
    struct slackline_publisher_options options = lending((const struct slackline_gpu_range *)1);
    struct slackline_publisher *publisher;
    struct slackline_tensor tensors[2];

    layer(tensors);
    EXPECT(BAD_ARGUMENT, slackline_publisher_create(NULL, tensors, 2, &options, &publisher));
    CHECK(said("gpu_memory"));
    /* What lies behind the struct of an older program is not read. */
    options.size = offsetof(struct slackline_publisher_options, gpu_memory);
    OK(slackline_publisher_create(NULL, tensors, 2, &options, &publisher));
    slackline_publisher_destroy(publisher);
}

int main(void)
{
    a_gpu_is_opened_or_the_status_says_why_not();
    a_range_that_cannot_be_is_refused_and_its_owner_let_go();
    what_is_begun_without_a_gpu_is_copied_already();
    memory_for_frames_that_is_refused_is_let_go();
    a_program_without_memory_for_frames_need_not_know_of_it();
    puts("all checks passed");
    return 0;
}
