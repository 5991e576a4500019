/*
 * A trainer that publishes weights, and rollout workers that read them, at most one version behind:
 *
 *   cc publish_weights.c $(pkg-config --cflags --libs slackline) -o publish_weights && ./publish_weights
 *
 * The readers are processes of this host here; elsewhere they need nothing but the address, of TCP or RDMA.
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slackline.h>

enum { ELEMENTS = 100000, VERSIONS = 50, READERS = 2, TIMEOUT_MS = 60000 };

/* Ends the program with a message unless `condition` holds. */
static void expect(int condition, const char *message)
{
    if (!condition) {
        fprintf(stderr, "error: %s\n", message);
        exit(1);
    }
}

/* Ends the program with the message of a call that failed. */
static void check(slackline_status status)
{
    expect(status == SLACKLINE_STATUS_OK, slackline_last_error());
}

/* Trains: each step writes its number into all weights, where readers find them. */
static void train(struct slackline_publisher *publisher)
{
    slackline_status status;
    size_t bytes, index;
    void *memory;
    int step;

    check(slackline_publisher_serve(publisher, READERS, 0, TIMEOUT_MS)); /* all are there */
    for (step = 1; step <= VERSIONS; step++) {
        float *weights;
        check(slackline_publisher_begin(publisher, TIMEOUT_MS, &memory, &bytes));
        weights = memory; /* nothing is copied */
        for (index = 0; index < ELEMENTS; index++)
            weights[index] = (float)step;
        check(slackline_publisher_commit(publisher, NULL));
        /* It computes the next step, and looks after readers meanwhile. */
        status = slackline_publisher_serve(publisher, READERS, READERS + 1, 2);
        check(status == SLACKLINE_STATUS_DEADLINE ? SLACKLINE_STATUS_OK : status);
    }
    check(slackline_publisher_serve(publisher, READERS, READERS, TIMEOUT_MS)); /* all have left */
}

/* Reads the last version where the trainer wrote it: on its host a reader needs no copy. */
static void read_in_place(struct slackline_reader *reader)
{
    const void *memory;
    uint32_t intact;
    size_t bytes;
    float last;

    check(slackline_reader_pin(reader, VERSIONS, TIMEOUT_MS, &memory, &bytes, NULL));
    last = ((const float *)memory)[ELEMENTS - 1]; /* the trainer writes elsewhere until it is unpinned */
    check(slackline_reader_is_intact(reader, &intact)); /* no, if this process was stopped for longer than the lease */
    check(slackline_reader_unpin(reader));
    expect(intact && last == (float)VERSIONS, "the pinned version is not the last one");
}

/* Rolls out: each batch uses weights that are whole and at most one version behind the newest. */
static void roll_out(const char *address)
{
    struct slackline_fresh fresh = { .size = sizeof fresh };
    struct slackline_reader *reader;
    const void *memory;
    size_t bytes, index;
    int copies = 0;

    check(slackline_reader_connect(address, NULL, TIMEOUT_MS, &reader)); /* waits for the trainer */
    check(slackline_reader_refresh_to(reader, 1, TIMEOUT_MS, NULL));
    do {
        const float *weights;
        check(slackline_reader_refresh(reader, 1, TIMEOUT_MS, &fresh));
        copies += fresh.copied;
        check(slackline_reader_bytes(reader, &memory, &bytes));
        weights = memory;
        for (index = 0; index < ELEMENTS; index++)
            expect(weights[index] == (float)fresh.version, "a version is a mixture");
    } while (fresh.version + fresh.behind < VERSIONS);
    read_in_place(reader);
    printf("a reader copied %d of %d versions, each of them whole\n", copies, VERSIONS);
    slackline_reader_destroy(reader);
    exit(0);
}

int main(void)
{
    const uint64_t shape[] = { ELEMENTS };
    const struct slackline_tensor table[] = { { "weight", shape, 1, SLACKLINE_ELEMENT_F32 } };
    struct slackline_publisher *publisher;
    char address[64];
    int reader, status;

    snprintf(address, sizeof address, "@publish-weights-%d", (int)getpid());
    for (reader = 0; reader < READERS; reader++) {
        pid_t child = fork(); /* before this process makes an object */
        if (child == 0)
            roll_out(address); /* does not return */
        expect(child >= 0, "no process can be made");
    }
    check(slackline_publisher_create(address, table, 1, NULL, &publisher));
    train(publisher);
    slackline_publisher_destroy(publisher);
    while (wait(&status) > 0)
        expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a reader failed");
    return 0;
}
