/*
 * Members of a group average their parameters in place, without a server; a publisher waits for readers. Exits with 0
 * if all checks passed.
 */
#include "check.h"

/* ------------------------------------------------------------------ groups */

/* By rank: an address of that member; then a byte that lets it average. */
static int to_member[2][2];

static void tell(int rank, const char *address)
{
    start(to_member[rank], address);
}

static void fill(struct slackline_group *group, float value)
{
    float *parameters;
    size_t len, index;

    OK(slackline_group_parameters(group, &parameters, &len));
    CHECK(len == ELEMENTS);
    for (index = 0; index < len; index++)
        parameters[index] = value;
}

static void all_are(struct slackline_group *group, float value)
{
    float *parameters;
    size_t len, index;

    OK(slackline_group_parameters(group, &parameters, &len));
    for (index = 0; index < len; index++)
        CHECK(parameters[index] == value);
}

/* Listens, tells the other member where, and meets it. */
static struct slackline_group *meet(size_t rank, int tcp)
{
    char own[ADDRESS_SIZE], other[ADDRESS_SIZE];
    struct slackline_group_options options;
    struct slackline_group *group;
    const char *address, *addresses[2];
    float *parameters;
    size_t len;

    options.size = sizeof options;
    OK(slackline_group_options_init(&options));
    CHECK(options.lease_ms == 3000 && options.run == 0 && options.secret == NULL);
    options.checksums = 1;
    options.lease_ms = 10000;
    own_address(own, rank == 0 ? "group-0" : "group-1", tcp);
    EXPECT(BAD_ARGUMENT, slackline_group_listen(own, 2, 2, ELEMENTS, &options, &group));
    CHECK(group == NULL && said("ranks count from 0"));
    OK(slackline_group_listen(own, rank, 2, ELEMENTS, &options, &group));
    EXPECT(OUT_OF_TURN, slackline_group_parameters(group, &parameters, &len));
    CHECK(said("slackline_group_connect"));
    OK(slackline_group_address(group, &address));
    tell(1 - (int)rank, address);
    CHECK(read(to_member[rank][0], other, ADDRESS_SIZE) == ADDRESS_SIZE);
    addresses[rank] = address;
    addresses[1 - rank] = other;
    EXPECT(BAD_ARGUMENT, slackline_group_connect(group, addresses, 1, TIMEOUT_MS));
    CHECK(said("1 addresses were given for 2 members"));
    OK(slackline_group_connect(group, addresses, 2, TIMEOUT_MS)); /* it listens still */
    EXPECT(OUT_OF_TURN, slackline_group_connect(group, addresses, 2, TIMEOUT_MS));
    CHECK(said("has met the others before"));
    return group;
}

static void a_member_that_meets_no_other_can_only_be_destroyed(void)
{
    const char *addresses[2] = {"@slackline-groups-alone", "@slackline-groups-absent"};
    struct slackline_group *group;

    OK(slackline_group_listen(addresses[0], 0, 2, ELEMENTS, NULL, &group));
    EXPECT(DEADLINE, slackline_group_connect(group, addresses, 2, 50));
    CHECK(said("did not connect") && slackline_last_error_is_retryable() == 0);
    EXPECT(OUT_OF_TURN, slackline_group_connect(group, addresses, 2, 50));
    CHECK(said("did not meet the others: destroy it"));
    slackline_group_destroy(group);
}

static void be_the_second(int tcp)
{
    const size_t both[] = {0, 1};
    struct slackline_group *group = meet(1, tcp);
    struct slackline_averaged averaged;
    char signal;

    fill(group, 2);
    CHECK(read(to_member[1][0], &signal, 1) == 1);
    averaged.size = sizeof averaged;
    OK(slackline_group_average(group, 0, both, 2, TIMEOUT_MS, &averaged));
    CHECK(averaged.round == 0 && averaged.members == 2 && averaged.skipped == 0);
    all_are(group, 1.5f);
    OK(slackline_group_leave(group, TIMEOUT_MS));
    EXPECT(OUT_OF_TURN, slackline_group_average(group, 1, both, 2, TIMEOUT_MS, NULL));
    slackline_group_destroy(group);
}

static void two_members_average_in_place(int tcp)
{
    const size_t both[] = {0, 1}, wrong[] = {1, 0};
    struct slackline_server_options training = server_options();
    struct slackline_averaged averaged;
    struct slackline_group_status status;
    struct slackline_group *group;
    float *parameters;
    uint32_t alive;
    size_t len;
    pid_t child;

    CHECK(pipe(to_member[0]) == 0 && pipe(to_member[1]) == 0);
    fflush(NULL);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        be_the_second(tcp);
        exit(0);
    }
    group = meet(0, tcp);
    fill(group, 1);
    averaged.size = sizeof averaged;
    OK(slackline_group_abandon(group, &averaged));
    CHECK(averaged.members == 0);
    EXPECT(BAD_ARGUMENT, slackline_group_average(group, 0, wrong, 2, TIMEOUT_MS, NULL));
    EXPECT(DEADLINE, slackline_group_average(group, 0, both, 2, 0, &averaged));
    training.scheme = "ds-sync(2)";
    EXPECT(OUT_OF_TURN, slackline_group_train(group, &training)); /* a round is under way */
    EXPECT(OUT_OF_TURN, slackline_group_parameters(group, &parameters, &len));
    CHECK(write(to_member[1][1], "", 1) == 1);
    OK(slackline_group_average(group, 0, both, 2, TIMEOUT_MS, &averaged));
    CHECK(averaged.round == 0 && averaged.members == 2 && averaged.skipped == 0);
    all_are(group, 1.5f);
    EXPECT(OUT_OF_TURN, slackline_group_train(group, &training)); /* a round was made */
    EXPECT(OUT_OF_TURN, slackline_group_average(group, 0, both, 2, TIMEOUT_MS, NULL));
    CHECK(said("numbered upwards"));
    /* The other one leaves: the mean is this member's own. */
    fill(group, 7);
    OK(slackline_group_average(group, 1, both, 2, TIMEOUT_MS, &averaged));
    CHECK(averaged.round == 1 && averaged.members == 1 && averaged.skipped == 0);
    all_are(group, 7);
    OK(slackline_group_is_alive(group, 1, &alive));
    CHECK(alive == 0);
    OK(slackline_group_is_alive(group, 0, &alive));
    CHECK(alive == 1);
    status.size = sizeof status;
    OK(slackline_group_get_status(group, &status));
    CHECK(status.rank == 0 && status.members == 2 && status.alive == 1 && status.rounds == 2 && status.skipped == 0);
    CHECK(status.bytes > 0);
    join(child);
    slackline_group_destroy(group);
    for (len = 0; len < 4; len++)
        CHECK(close(to_member[len / 2][len % 2]) == 0);
}

/* ------------------------------------------------------------------ training */

/* The gradient of (p - target)^2 / 2, or NULL: gives up. */
static uint32_t compute(void *target, uint64_t step, const float *parameters, float *gradient, size_t len, float *loss)
{
    size_t index;

    CHECK(len == ELEMENTS && *loss == 0);
    if (target == NULL)
        return 1;
    for (index = 0; index < len; index++)
        gradient[index] = parameters[index] - *(float *)target;
    *loss = (float)step + 0.5f;
    return 0;
}

/* Two steps at a rate of 1/2, then an average. */
static void train(size_t rank, int tcp)
{
    const size_t both[] = {0, 1};
    struct slackline_server_options options = server_options();
    struct slackline_group *group = meet(rank, tcp);
    struct slackline_group_status status;
    struct slackline_advance advance;
    float target = rank == 0 ? 0 : 4;
    int step;

    fill(group, 8);
    advance.size = sizeof advance;
    EXPECT(OUT_OF_TURN, slackline_group_advance(group, compute, &target, TIMEOUT_MS, &advance));
    CHECK(said("slackline_group_train"));
    EXPECT(BAD_ARGUMENT, slackline_group_train(group, &options));
    CHECK(said("use ds-sync"));
    options.scheme = "ds-sync(group=4)";
    EXPECT(BAD_ARGUMENT, slackline_group_train(group, &options));
    options.scheme = "ds-sync(group=2, partition=random, seed=7, period=2)";
    options.learning_rate = NAN;
    EXPECT(BAD_ARGUMENT, slackline_group_train(group, &options));
    CHECK(said("learning_rate"));
    options.learning_rate = 0.5f;
    options.optimizer = SLACKLINE_OPTIMIZER_MOMENTUM;
    options.momentum = 1;
    EXPECT(BAD_ARGUMENT, slackline_group_train(group, &options));
    CHECK(said("momentum"));
    options.optimizer = SLACKLINE_OPTIMIZER_SGD;
    OK(slackline_group_train(group, &options)); /* the member is as it was */
    EXPECT(OUT_OF_TURN, slackline_group_train(group, &options));
    EXPECT(OUT_OF_TURN, slackline_group_average(group, 0, both, 2, TIMEOUT_MS, NULL));
    EXPECT(OUT_OF_TURN, slackline_group_abandon(group, NULL));
    EXPECT(BAD_ARGUMENT, slackline_group_advance(group, NULL, NULL, TIMEOUT_MS, NULL));
    OK(slackline_group_advance(group, compute, NULL, TIMEOUT_MS, &advance));
    CHECK(advance.kind == SLACKLINE_ADVANCE_KIND_GAVE_UP && advance.clock == 0 && isnan(advance.loss));
    all_are(group, 8);
    for (step = 0; step < 2; step++) {
        OK(slackline_group_advance(group, compute, &target, TIMEOUT_MS, &advance));
        CHECK(advance.kind == SLACKLINE_ADVANCE_KIND_STEPPED && advance.clock == (uint64_t)step + 1);
        CHECK(advance.loss == step + 0.5 && advance.averages_next == (uint64_t)step);
    }
    all_are(group, rank == 0 ? 2 : 5);
    OK(slackline_group_advance(group, compute, NULL, TIMEOUT_MS, &advance));
    CHECK(advance.kind == SLACKLINE_ADVANCE_KIND_AVERAGED && advance.round == 0 && !advance.averages_next);
    all_are(group, 3.5f);
    status.size = sizeof status;
    OK(slackline_group_get_status(group, &status));
    CHECK(status.rounds == 1 && status.skipped == 0);
    OK(slackline_group_leave(group, TIMEOUT_MS));
    EXPECT(OUT_OF_TURN, slackline_group_advance(group, compute, &target, TIMEOUT_MS, NULL));
    slackline_group_destroy(group);
}

static void two_members_train_by_ds_sync(int tcp)
{
    pid_t child;
    int end;

    CHECK(pipe(to_member[0]) == 0 && pipe(to_member[1]) == 0);
    fflush(NULL);
    child = fork();
    CHECK(child >= 0);
    train(child == 0, tcp);
    if (child == 0)
        exit(0);
    join(child);
    for (end = 0; end < 4; end++)
        CHECK(close(to_member[end / 2][end % 2]) == 0);
}

static void the_groups_of_ds_sync_are_those_of_the_paper(void)
{
    size_t ranks[2], count;
#define RANKS(workers, partition, rank, round) \
    slackline_group_ranks(workers, 2, SLACKLINE_PARTITION_##partition, rank, round, ranks, &count)
    OK(RANKS(8, DIGITS, 5, 1));
    CHECK(count == 2 && ranks[0] == 5 && ranks[1] == 7);
    OK(RANKS(8, DIGITS, 5, 2));
    CHECK(count == 2 && ranks[0] == 1 && ranks[1] == 5);
    OK(RANKS(4, AUTHORS, 0, 1));
    CHECK(count == 2 && ranks[0] == 0 && ranks[1] == 3);
    OK(RANKS(3, UNEVEN, 2, 0));
    CHECK(count == 1 && ranks[0] == 2);
    EXPECT(BAD_ARGUMENT, RANKS(6, DIGITS, 0, 0));
    EXPECT(BAD_ARGUMENT, RANKS(4, DIGITS, 4, 0));
    EXPECT(BAD_ARGUMENT, slackline_group_ranks(4, 2, 3, 0, 0, ranks, &count));
    EXPECT(BAD_ARGUMENT, slackline_group_ranks(4, 2, SLACKLINE_PARTITION_DIGITS, 0, 0, NULL, &count));
#undef RANKS
}

static void null_is_answered_everywhere(void)
{
    struct slackline_group_status status = {.size = sizeof status};
    const size_t alone[] = {0};
    const char *address = "@slackline-groups-null";
    float *parameters;
    uint32_t alive;
    size_t len;

    EXPECT(BAD_ARGUMENT, slackline_group_options_init(NULL));
    EXPECT(BAD_ARGUMENT, slackline_group_listen(address, 0, 1, 1, NULL, NULL));
    EXPECT(BAD_ARGUMENT, slackline_job_group(NULL, 1, NULL, NULL));
    EXPECT(BAD_ARGUMENT, slackline_group_address(NULL, &address));
    EXPECT(BAD_ARGUMENT, slackline_group_connect(NULL, &address, 1, 0));
    EXPECT(BAD_ARGUMENT, slackline_group_parameters(NULL, &parameters, &len));
    EXPECT(BAD_ARGUMENT, slackline_group_average(NULL, 0, alone, 1, 0, NULL));
    EXPECT(BAD_ARGUMENT, slackline_group_abandon(NULL, NULL));
    EXPECT(BAD_ARGUMENT, slackline_group_is_alive(NULL, 0, &alive));
    EXPECT(BAD_ARGUMENT, slackline_group_get_status(NULL, &status));
    EXPECT(BAD_ARGUMENT, slackline_group_leave(NULL, 0));
    slackline_group_destroy(NULL);
}

/* ------------------------------------------------------------------ a publisher's readers */

static void come_and_go(const char *address)
{
    struct slackline_reader *reader;
    OK(slackline_reader_connect(address, NULL, TIMEOUT_MS, &reader));
    OK(slackline_reader_refresh(reader, 0, TIMEOUT_MS, NULL));
    slackline_reader_destroy(reader);
}

static void a_publisher_waits_for_readers_to_come_and_go(void)
{
    struct slackline_publisher *publisher;
    struct slackline_publisher_status status;
    struct slackline_tensor tensors[2];
    char text[ADDRESS_SIZE];
    pid_t child;
    int gate[2];

    own_address(text, "readers", 0);
    child = pair(gate, text);
    if (child == 0) {
        come_and_go(text);
        exit(0);
    }
    layer(tensors);
    OK(slackline_publisher_create(text, tensors, 2, NULL, &publisher));
    EXPECT(DEADLINE, slackline_publisher_serve(publisher, 1, 0, 1));
    CHECK(said("0 have joined"));
    start(gate, text);
    OK(slackline_publisher_serve(publisher, 1, 0, TIMEOUT_MS));
    OK(slackline_publisher_serve(publisher, 1, 1, TIMEOUT_MS));
    status.size = sizeof status;
    OK(slackline_publisher_get_status(publisher, &status));
    CHECK(status.joined == 1 && status.readers == 0 && status.epoch != 0);
    join(child);
    slackline_publisher_destroy(publisher);
}

int main(void)
{
    alarm(300);
    null_is_answered_everywhere();
    the_groups_of_ds_sync_are_those_of_the_paper();
    a_member_that_meets_no_other_can_only_be_destroyed();
    two_members_average_in_place(0);
    two_members_average_in_place(1);
    two_members_train_by_ds_sync(0);
    two_members_train_by_ds_sync(1);
    a_publisher_waits_for_readers_to_come_and_go();
    puts("all checks passed");
    return 0;
}
