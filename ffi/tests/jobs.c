/*
 * Jobs whose ranks come from the program, and servers that stand for their host. Exits with 0 if all checks passed.
 */
#include "check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

enum { WORKERS = 2, CLOCKS = 3 };

static const char SECRET[] = "a secret of the job, long enough";

/*
 * Writes a port of this host at which no process listens, from below those that the system gives away, and beside those
 * that the tests in Rust and Python take.
 */
static void free_rendezvous(char text[ADDRESS_SIZE])
{
    static uint16_t next;
    struct sockaddr_in address = {.sin_family = AF_INET};
    int descriptor, is_free = 0;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    while (!is_free) {
        uint16_t port = (uint16_t)(25000 + ((unsigned)getpid() * 13u + next++) % 4000);
        address.sin_port = htons(port);
        descriptor = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(descriptor >= 0);
        is_free = bind(descriptor, (struct sockaddr *)&address, sizeof address) == 0;
        CHECK(close(descriptor) == 0);
        snprintf(text, ADDRESS_SIZE, "127.0.0.1:%u", (unsigned)port);
    }
}

static struct slackline_job_options job_options(void)
{
    struct slackline_job_options options;
    options.size = sizeof options;
    OK(slackline_job_options_init(&options));
    options.secret = SECRET;
    options.transport = "tcp";
    options.timeout_ms = 20000;
    return options;
}

/* ------------------------------------------------------------------ jobs */

static struct slackline_job *join_as(const struct slackline_job_options *options, uint32_t rank, const char *at)
{
    struct slackline_job *job;
    uint32_t role, number;
    uint64_t workers;

    OK(slackline_job_join(options, rank, 1 + WORKERS, at, &job));
    OK(slackline_job_role(job, &role, &number, &workers));
    CHECK(role == (rank == 0 ? SLACKLINE_ROLE_SERVER : SLACKLINE_ROLE_WORKER) && workers == WORKERS);
    CHECK(number == (rank == 0 ? 0 : rank - 1));
    return job;
}

static void train(const struct slackline_job_options *options, uint32_t rank, const char *at)
{
    struct slackline_worker_options working = worker_options();
    struct slackline_job *job = join_as(options, rank, at);
    struct slackline_worker *worker;
    int clock;

    OK(slackline_job_worker(job, &working, &worker));
    for (clock = 0; clock < CLOCKS; clock++)
        step(worker);
    OK(slackline_worker_flush(worker, TIMEOUT_MS));
    OK(slackline_job_finish(job, worker, TIMEOUT_MS));
    slackline_worker_destroy(worker);
    slackline_job_destroy(job);
}

/* The number of workers that the server sees. */
static uint64_t workers_of_a_job(const struct slackline_job_options *options)
{
    struct slackline_server_options serving = server_options();
    struct slackline_server_status status;
    struct slackline_tensor tensors[2];
    struct slackline_server *server;
    static const float values[ELEMENTS];
    static float parameters[ELEMENTS];
    struct slackline_job *job;
    pid_t children[WORKERS];
    char at[ADDRESS_SIZE];
    int rank;

    free_rendezvous(at);
    for (rank = 1; rank <= WORKERS; rank++) {
        fflush(NULL);
        children[rank - 1] = fork();
        CHECK(children[rank - 1] >= 0);
        if (children[rank - 1] == 0) {
            train(options, (uint32_t)rank, at);
            exit(0);
        }
    }
    job = join_as(options, 0, at);
    layer(tensors);
    serving.learning_rate = 1;
    OK(slackline_job_server(job, tensors, 2, values, ELEMENTS, &serving, &server));
    OK(slackline_job_serve(job, server, TIMEOUT_MS));
    OK(slackline_server_parameters(server, parameters, ELEMENTS));
    CHECK(parameters[0] == -CLOCKS && parameters[ELEMENTS - 1] == -CLOCKS);
    status.size = sizeof status;
    OK(slackline_server_get_status(server, &status));
    CHECK(status.folded == WORKERS * CLOCKS);
    slackline_server_destroy(server);
    slackline_job_destroy(job);
    for (rank = 0; rank < WORKERS; rank++)
        join(children[rank]);
    return status.joined;
}

static void a_job_takes_its_ranks_and_its_secret_from_the_program(void)
{
    struct slackline_job_options options = job_options();

    CHECK(options.per_host == 0 && options.encrypt == 0);
    CHECK(workers_of_a_job(&options) == WORKERS);
    options.encrypt = 1;
    CHECK(workers_of_a_job(&options) == WORKERS);
}

static void one_worker_of_a_host_stands_for_all(void)
{
    struct slackline_job_options options = job_options();
    struct slackline_job *job;

    options.per_host = 1;
    CHECK(workers_of_a_job(&options) == 1);
    options.reconnect = 1;
    EXPECT(BAD_ARGUMENT, slackline_job_join(&options, 0, 2, "127.0.0.1:21000", &job));
    CHECK(job == NULL && said("per_host"));
}

static void a_job_of_a_program_that_cannot_be_is_a_bad_argument(void)
{
    struct slackline_job_options options = job_options();
    struct slackline_job *job;

    EXPECT(BAD_ARGUMENT, slackline_job_join(NULL, 0, 2, "127.0.0.1:21000", &job));
    EXPECT(BAD_ARGUMENT, slackline_job_join(&options, 0, 2, NULL, &job));
    EXPECT(BAD_ARGUMENT, slackline_job_join(&options, 0, 2, "127.0.0.1", &job));
    CHECK(said("no port"));
    EXPECT(BAD_ARGUMENT, slackline_job_join(&options, 2, 2, "127.0.0.1:21000", &job));
    CHECK(said("no rank 2 of 2"));
    EXPECT(BAD_ARGUMENT, slackline_job_join(&options, 0, 1, "127.0.0.1:21000", &job));
    CHECK(said("no worker"));
    options.secret_file = "/no/such/file";
    EXPECT(BAD_ARGUMENT, slackline_job_join(&options, 0, 2, "127.0.0.1:21000", &job));
    CHECK(said("both set"));
    options.secret = options.secret_file = NULL;
    options.encrypt = 1;
    CHECK(unsetenv("SLACKLINE_SECRET") == 0 && unsetenv("SLACKLINE_SECRET_FILE") == 0);
    EXPECT(BAD_ARGUMENT, slackline_job_join(&options, 0, 2, "127.0.0.1:21000", &job));
    CHECK(job == NULL && said("secret"));
}

/* One side encrypts, the other does not. */
static void processes_of_a_job_that_differ_in_encryption_do_not_meet(void)
{
    struct slackline_job_options options = job_options();
    struct slackline_server_options serving = server_options();
    struct slackline_worker_options working = worker_options();
    struct slackline_tensor tensors[2];
    static const float values[ELEMENTS];
    struct slackline_server *server;
    struct slackline_worker *worker;
    struct slackline_job *job;
    char at[ADDRESS_SIZE];
    pid_t child;

    free_rendezvous(at);
    options.timeout_ms = 10000; /* for so long rank 0 waits for another worker once all are lost */
    fflush(NULL);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        OK(slackline_job_join(&options, 1, 2, at, &job));
        EXPECT(REFUSED, slackline_job_worker(job, &working, &worker));
        CHECK(worker == NULL && said("encrypt"));
        slackline_job_destroy(job);
        exit(0);
    }
    options.encrypt = 1;
    OK(slackline_job_join(&options, 0, 2, at, &job));
    layer(tensors);
    OK(slackline_job_server(job, tensors, 2, values, ELEMENTS, &serving, &server));
    EXPECT(JOB_FAILED, slackline_job_serve(job, server, TIMEOUT_MS));
    CHECK(said("encrypt"));
    slackline_server_destroy(server);
    slackline_job_destroy(job);
    join(child);
}

/* `cause` is in the messages, of a setting that the server refuses or of one that says nothing. */
static void fail_a_job(float learning_rate, const char *scheme, const char *cause)
{
    struct slackline_job_options options = job_options();
    struct slackline_worker_options working = worker_options();
    struct slackline_worker *worker;
    struct slackline_group *group;
    struct slackline_server_options serving = server_options();
    struct slackline_tensor tensors[2];
    static const float values[ELEMENTS];
    struct slackline_server *server;
    struct slackline_job *job;
    char at[ADDRESS_SIZE];
    pid_t child;

    free_rendezvous(at);
    fflush(NULL);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        OK(slackline_job_join(&options, 1, 2, at, &job));
        EXPECT(JOB_FAILED, slackline_job_worker(job, &working, &worker));
        CHECK(worker == NULL && said(cause));
        slackline_job_destroy(job);
        exit(0);
    }
    OK(slackline_job_join(&options, 0, 2, at, &job));
    EXPECT(OUT_OF_TURN, slackline_job_worker(job, &working, &worker));
    CHECK(said("connecting to servers is for a worker"));
    EXPECT(BAD_ARGUMENT, slackline_job_group(job, ELEMENTS, NULL, &group));
    CHECK(said("a group is for plans of 0 servers"));
    layer(tensors);
    serving.resume = SLACKLINE_RESUME_REQUIRED; /* it is the job's */
    serving.learning_rate = learning_rate;
    serving.scheme = scheme;
    EXPECT(BAD_ARGUMENT, slackline_job_server(job, tensors, 2, values, ELEMENTS, &serving, &server));
    CHECK(server == NULL && said(cause));
    EXPECT(JOB_FAILED, slackline_job_check(job));
    CHECK(said(cause));
    slackline_job_destroy(job);
    join(child);
}

static void a_server_that_cannot_be_made_fails_its_job(void)
{
    fail_a_job(NAN, "bsp", "learning_rate");
    fail_a_job(1, "pigeon", "pigeon");
}

static void a_job_without_a_server_says_so(void)
{
    struct slackline_job_options options = job_options();
    struct slackline_worker_options working = worker_options();
    struct slackline_worker *worker;
    struct slackline_job *job;
    char at[ADDRESS_SIZE];

    free_rendezvous(at);
    options.servers = 0;
    OK(slackline_job_join(&options, 0, 1, at, &job));
    EXPECT(BAD_ARGUMENT, slackline_job_worker(job, &working, &worker));
    CHECK(worker == NULL && said("use a plan with a server, or a group"));
    slackline_job_destroy(job);
}

/* Rank 0 does not come. */
static void a_join_that_meets_its_deadline_may_be_tried_again(void)
{
    struct slackline_job_options options = job_options();
    struct slackline_job *job;
    char at[ADDRESS_SIZE];

    free_rendezvous(at);
    options.timeout_ms = 50;
    EXPECT(DEADLINE, slackline_job_join(&options, 1, 2, at, &job));
    CHECK(job == NULL && slackline_last_error_is_retryable() == 1);
}

/* ------------------------------------------------------------------ a server of one host */

static void work_for_a_host(const char *address)
{
    struct slackline_worker_options options = worker_options();
    struct slackline_worker *worker;
    int clock;

    OK(slackline_worker_connect(&address, 1, &options, TIMEOUT_MS, &worker));
    for (clock = 0; clock < CLOCKS; clock++)
        step(worker);
    OK(slackline_worker_flush(worker, TIMEOUT_MS));
    slackline_worker_destroy(worker);
}

static void stand_for_a_host(const char *top)
{
    struct slackline_server_options options = server_options();
    struct slackline_worker_options upstream = worker_options();
    struct slackline_server_status status;
    struct slackline_server *proxy;
    pid_t children[WORKERS];
    char address[ADDRESS_SIZE];
    int index;

#define FOR_HOST(upstream, options) slackline_server_for_host(&top, 1, upstream, address, options, TIMEOUT_MS, &proxy)
    own_address(address, "host", 0);
    EXPECT(BAD_ARGUMENT, FOR_HOST(NULL, &options));
    EXPECT(BAD_ARGUMENT, FOR_HOST(&upstream, NULL));
    CHECK(proxy == NULL);
    options.workers = WORKERS;
    OK(FOR_HOST(&upstream, &options));
#undef FOR_HOST
    for (index = 0; index < WORKERS; index++) {
        fflush(NULL);
        children[index] = fork();
        CHECK(children[index] >= 0);
        if (children[index] == 0) {
            work_for_a_host(address);
            exit(0);
        }
    }
    OK(slackline_server_serve(proxy, WORKERS, TIMEOUT_MS));
    status.size = sizeof status;
    OK(slackline_server_get_status(proxy, &status));
    CHECK(status.version == CLOCKS && status.joined == WORKERS);
    slackline_server_destroy(proxy);
    for (index = 0; index < WORKERS; index++)
        join(children[index]);
}

static void a_proxy_hands_the_sum_of_its_workers_on(void)
{
    struct slackline_server_options options = server_options();
    struct slackline_server_status status;
    struct slackline_tensor tensors[2];
    struct slackline_server *server;
    static const float values[ELEMENTS];
    static float parameters[ELEMENTS];
    char text[ADDRESS_SIZE];
    int gate[2];
    pid_t child;

    own_address(text, "top", 0);
    child = pair(gate, text);
    if (child == 0) {
        stand_for_a_host(text);
        exit(0);
    }
    layer(tensors);
    options.learning_rate = 1;
    OK(slackline_server_create(text, tensors, 2, values, ELEMENTS, &options, &server));
    start(gate, text);
    OK(slackline_server_serve(server, 1, TIMEOUT_MS));
    OK(slackline_server_parameters(server, parameters, ELEMENTS));
    CHECK(parameters[0] == -CLOCKS && parameters[ELEMENTS - 1] == -CLOCKS);
    status.size = sizeof status;
    OK(slackline_server_get_status(server, &status));
    CHECK(status.joined == 1 && status.version == CLOCKS && status.folded == WORKERS * CLOCKS);
    slackline_server_destroy(server);
    join(child);
}

int main(void)
{
    alarm(300);
    a_proxy_hands_the_sum_of_its_workers_on();
    a_job_takes_its_ranks_and_its_secret_from_the_program();
    one_worker_of_a_host_stands_for_all();
    processes_of_a_job_that_differ_in_encryption_do_not_meet();
    a_server_that_cannot_be_made_fails_its_job();
    a_job_without_a_server_says_so();
    a_join_that_meets_its_deadline_may_be_tried_again();
    a_job_of_a_program_that_cannot_be_is_a_bad_argument();
    puts("all checks passed");
    return 0;
}
