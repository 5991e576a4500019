/*
 * Workers without a server: each trains its own parameters and averages them with another worker in each round. All
 * processes run this one program, a power of two of them:
 *
 *   cc groups.c $(pkg-config --cflags --libs slackline) -lm -o groups
 *   slackline launch -n 4 -- ./groups          (or torchrun, srun, mpirun)
 *
 * An argument, "shm", "tcp" or "verbs", requires that transport.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <slackline.h>

enum { ELEMENTS = 1000, ROUNDS = 60, TIMEOUT_MS = 60000 };

/* Ends the program with the message of a call that failed. */
static void check(slackline_status status)
{
    if (status != SLACKLINE_STATUS_OK) {
        fprintf(stderr, "error: %s\n", slackline_last_error());
        exit(1);
    }
}

/* Trains towards `target`, a different one for each worker, and returns where it ends. */
static float train(struct slackline_group *group, uint32_t rank, uint64_t workers, float target)
{
    struct slackline_averaged averaged = { .size = sizeof averaged };
    float *parameters, end;
    size_t ranks[2], count, len, index;
    uint64_t round;

    for (round = 0; round < ROUNDS; round++) {
        check(slackline_group_parameters(group, &parameters, &len)); /* changed where they lie */
        for (index = 0; index < len; index++)
            parameters[index] += 0.1f * (target - parameters[index]);
        check(slackline_group_ranks(workers, 2, SLACKLINE_PARTITION_DIGITS, rank, round, ranks, &count));
        check(slackline_group_average(group, round, ranks, count, TIMEOUT_MS, &averaged));
        if (averaged.members != 2 || averaged.skipped) {
            fprintf(stderr, "error: a member is gone\n");
            exit(1);
        }
    }
    check(slackline_group_parameters(group, &parameters, &len));
    end = parameters[0];
    for (index = 0; index < len; index++) {
        if (parameters[index] != end) {
            fprintf(stderr, "error: a mixture\n");
            exit(1);
        }
    }
    return end;
}

int main(int argc, char **argv)
{
    struct slackline_job_options options = { .size = sizeof options };
    struct slackline_group *group;
    struct slackline_job *job;
    slackline_status status;
    uint32_t rank;
    uint64_t workers;
    float end;

    check(slackline_job_options_init(&options));
    options.servers = 0;
    options.transport = argc > 1 ? argv[1] : NULL;
    check(slackline_job_from_env(&options, &job));
    check(slackline_job_role(job, NULL, &rank, &workers));
    check(slackline_job_group(job, ELEMENTS, NULL, &group));
    /* The mean of all targets is 1. */
    end = train(group, rank, workers, 1 + ((float)rank - (float)(workers - 1) / 2) / 10);
    printf("worker %u ends at %.3f, near the mean of all targets\n", (unsigned)rank, end);
    check(slackline_group_leave(group, TIMEOUT_MS));
    slackline_group_destroy(group);
    while ((status = slackline_job_finish(job, NULL, TIMEOUT_MS)) == SLACKLINE_STATUS_DEADLINE) { }
    check(status);
    slackline_job_destroy(job);
    return fabsf(end - 1) < 0.05f ? 0 : 1;
}
