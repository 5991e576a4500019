/*
 * Trains a linear model with one server and any number of workers. All processes run this one program:
 *
 *   cc parameter_server.c $(pkg-config --cflags --libs slackline) -lm -o parameter_server
 *   slackline launch -n 3 -- ./parameter_server          (or torchrun, srun, mpirun)
 *
 * An argument, "shm", "tcp" or "verbs", requires that transport.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <slackline.h>

enum { COLUMNS = 16, BATCH = 32, CLOCKS = 300, TIMEOUT_MS = 60000 };

/* Ends the program with the message of a call that failed. */
static void check(slackline_status status)
{
    if (status != SLACKLINE_STATUS_OK) {
        fprintf(stderr, "error: %s\n", slackline_last_error());
        exit(1);
    }
}

/* The weight that training should find. */
static float truth(int column) { return (float)column / COLUMNS - 0.5f; }

/* The next number between -1 and 1. */
static float uniform(unsigned *seed)
{
    return (float)((*seed = *seed * 1664525u + 1013904223u) >> 8) / (1 << 23) - 1.0f;
}

/* Writes the gradient of the mean squared error over a batch of random examples, and returns half that error. */
static float least_squares(const float *weights, float *gradient, unsigned *seed)
{
    float loss = 0;
    int example, column;

    memset(gradient, 0, COLUMNS * sizeof *gradient);
    for (example = 0; example < BATCH; example++) {
        float values[COLUMNS], error = 0;
        for (column = 0; column < COLUMNS; column++) {
            values[column] = uniform(seed);
            error += (weights[column] - truth(column)) * values[column];
        }
        for (column = 0; column < COLUMNS; column++)
            gradient[column] += error * values[column] / BATCH;
        loss += error * error / (2 * BATCH);
    }
    return loss;
}

static void serve(struct slackline_job *job)
{
    static const float initial[COLUMNS];
    const uint64_t shape[] = { COLUMNS };
    const struct slackline_tensor table[] = { { "weight", shape, 1, SLACKLINE_ELEMENT_F32 } };
    struct slackline_server_options options = { .size = sizeof options };
    struct slackline_server *server;
    slackline_status status;
    float weights[COLUMNS], largest = 0;
    int column;

    check(slackline_server_options_init(&options));
    options.scheme = "ssp(2)";
    options.learning_rate = 0.05f;
    check(slackline_job_server(job, table, 1, initial, COLUMNS, &options, &server));
    while ((status = slackline_job_serve(job, server, TIMEOUT_MS)) == SLACKLINE_STATUS_DEADLINE) { }
    check(status);
    check(slackline_server_parameters(server, weights, COLUMNS));
    for (column = 0; column < COLUMNS; column++)
        largest = fmaxf(largest, fabsf(weights[column] - truth(column)));
    printf("largest error %.4f\n", largest);
    slackline_server_destroy(server);
}

static void work(struct slackline_job *job, unsigned number)
{
    struct slackline_worker_options options = { .size = sizeof options };
    struct slackline_worker *worker;
    slackline_status status;
    unsigned seed = number + 1, clock;

    check(slackline_worker_options_init(&options)); /* the scheme is the servers' */
    check(slackline_job_worker(job, &options, &worker));
    for (clock = 0; clock < CLOCKS; clock++) {
        const float *weights;
        float *gradient, loss;
        size_t len;
        check(slackline_worker_begin(worker, NULL, TIMEOUT_MS));
        check(slackline_worker_parameters(worker, &weights, &len));
        check(slackline_worker_gradient(worker, &gradient, &len)); /* neither is copied */
        loss = least_squares(weights, gradient, &seed);
        check(slackline_worker_publish(worker, &loss, TIMEOUT_MS));
    }
    check(slackline_worker_flush(worker, TIMEOUT_MS));
    while ((status = slackline_job_finish(job, worker, TIMEOUT_MS)) == SLACKLINE_STATUS_DEADLINE) { }
    check(status);
    printf("worker %u: %d clocks\n", number, CLOCKS);
    slackline_worker_destroy(worker);
}

int main(int argc, char **argv)
{
    struct slackline_job_options options = { .size = sizeof options };
    struct slackline_job *job;
    uint32_t role, number;

    check(slackline_job_options_init(&options));
    options.transport = argc > 1 ? argv[1] : NULL;
    check(slackline_job_from_env(&options, &job));
    check(slackline_job_role(job, &role, &number, NULL));
    role == SLACKLINE_ROLE_SERVER ? serve(job) : work(job, number);
    slackline_job_destroy(job);
    return 0;
}
