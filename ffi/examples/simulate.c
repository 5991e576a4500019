/*
 * Four schemes in virtual time: the same problem, the same random delays, and how long each takes to the same loss.
 *
 *   cc simulate.c $(pkg-config --cflags --libs slackline) -o simulate
 */
#include <stdio.h>
#include <stdlib.h>

#include <slackline.h>

/* Ends the program with the message of a call that failed. */
static void check(slackline_status status)
{
    if (status != SLACKLINE_STATUS_OK) {
        fprintf(stderr, "error: %s\n", slackline_last_error());
        exit(1);
    }
}

int main(void)
{
    const char *const schemes[] = { "bsp", "bap(4)", "ssp(4)", "essp(4)" };
    size_t index;

    for (index = 0; index < sizeof schemes / sizeof *schemes; index++) {
        struct slackline_simulate_options options = { .size = sizeof options };
        struct slackline_simulate_report report = { .size = sizeof report };
        check(slackline_simulate_options_init(&options));
        options.scheme = schemes[index];
        options.workers = 8;
        options.compute = "exp(1)";
        options.parameters = 100;
        options.until = SLACKLINE_UNTIL_LOSS;
        options.loss = 0.1;
        check(slackline_simulate(&options, &report));
        if (!(report.reached <= report.end)) { /* NaN */
            fprintf(stderr, "error: the loss was not reached\n");
            return 1;
        }
        printf("%-8s %6.1f s, %llu versions, %llu gradients\n", schemes[index], report.reached,
               (unsigned long long)report.versions, (unsigned long long)report.gradients);
    }
    return 0;
}
