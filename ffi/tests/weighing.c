/*
 * A scheme in C that weighs updates before it folds them, in the simulator. Exits with 0 if all checks passed.
 */
#include "check.h"

enum { VERSIONS = 20 };

/* The scheme "weighing(MODE)": it folds each gradient once it has been weighed, with the worker of ASP. */
enum mode {
    ALL,    /* with all updates of its worker */
    ALONE,  /* with none of those that were made */
    SILENT, /* without having said that it weighs */
    TWO,    /* two at once */
    ABSENT, /* one that has not come */
    ENDLESS /* the same one again and again */
};

/* What the last simulation weighed. */
static double weighed[VERSIONS];
static unsigned weighings;

struct serving {
    unsigned mode;
    uint64_t newest;
    enum { EMPTY, HAS_COME, ASKED, IS_WEIGHED } state;
    struct slackline_share shares[2];
};

static const char *needs(void *context, const char *settings, struct slackline_scheme_needs *needs)
{
    (void)context;
    CHECK(needs->size == sizeof *needs && needs->weighs_updates == 0);
    needs->weighs_updates = settings[0] != '0' + SILENT;
    return NULL;
}

static const char *serve_create(void *context, const char *settings, const struct slackline_scheme_start *start,
                                void **made)
{
    struct serving *serving = calloc(1, sizeof *serving);
    (void)context;
    CHECK(serving != NULL && start->workers == 1);
    serving->mode = (unsigned)(settings[0] - '0');
    *made = serving;
    return NULL;
}

static const char *serve_event(void *half, const struct slackline_scheme_event *event)
{
    struct serving *serving = half;

    switch (event->kind) {
    case SLACKLINE_EVENT_ARRIVED:
        serving->state = HAS_COME;
        serving->shares[0].worker = event->worker;
        serving->shares[0].clock = event->clock;
        serving->shares[0].weight = 1;
        break;
    case SLACKLINE_EVENT_WEIGHED:
        CHECK(serving->state == ASKED && event->worker == 0 && event->clock == serving->shares[0].clock);
        serving->state = serving->mode == ENDLESS ? HAS_COME : IS_WEIGHED;
        if (weighings < VERSIONS)
            weighed[weighings++] = event->magnitude;
        break;
    case SLACKLINE_EVENT_APPLIED:
        serving->newest = event->version;
        break;
    }
    return NULL;
}

static const char *serve_action(void *half, struct slackline_scheme_action *action)
{
    struct serving *serving = half;

    action->shares = serving->shares;
    action->share_count = serving->mode == TWO ? 2 : 1;
    if (serving->state == HAS_COME) {
        action->kind = SLACKLINE_ACTION_WEIGH;
        action->version = serving->mode == ALL ? 0 : serving->newest;
        serving->shares[0].clock += serving->mode == ABSENT;
        serving->state = ASKED;
    } else if (serving->state == IS_WEIGHED) {
        action->kind = SLACKLINE_ACTION_APPLY;
        serving->state = EMPTY;
    }
    return NULL;
}

static slackline_status simulate(enum mode mode, uint64_t parameters)
{
    struct slackline_simulate_options options;
    struct slackline_simulate_report report;
    char scheme[32];

    weighings = 0;
    options.size = sizeof options;
    OK(slackline_simulate_options_init(&options));
    snprintf(scheme, sizeof scheme, "weighing(%d)", mode);
    options.scheme = scheme;
    options.parameters = parameters;
    options.condition = 1;
    options.variance = 0;
    options.until = SLACKLINE_UNTIL_VERSIONS;
    options.versions = VERSIONS;
    report.size = sizeof report;
    return slackline_simulate(&options, &report);
}

/* Without noise the one parameter moves one way: its moves add up. */
static void updates_are_weighed_in_sum_or_alone(void)
{
    double sum = 0, alone[VERSIONS];
    unsigned index;

    OK(simulate(ALONE, 1));
    CHECK(weighings == VERSIONS);
    memcpy(alone, weighed, sizeof alone);
    OK(simulate(ALL, 1));
    CHECK(weighings == VERSIONS);
    for (index = 0; index < VERSIONS; index++) {
        sum += alone[index];
        CHECK(alone[index] > 0 && fabs(weighed[index] - sum) < 1e-5 * sum);
    }
    /* Time alone has no updates. */
    OK(simulate(ALL, 0));
    CHECK(weighings == VERSIONS && isinf(weighed[0]));
}

static void weighing_that_cannot_be_is_told_so(void)
{
    struct slackline_server_options options = server_options();
    struct slackline_tensor tensors[2];
    struct slackline_server *server;
    static const float values[ELEMENTS];

    EXPECT(SCHEME, simulate(SILENT, 1));
    CHECK(said("set weighs_updates in its needs"));
    EXPECT(SCHEME, simulate(TWO, 1));
    CHECK(said("weigh 2 gradients at once"));
    EXPECT(SCHEME, simulate(ABSENT, 1));
    CHECK(said("has not come"));
    EXPECT(SCHEME, simulate(ENDLESS, 0));
    CHECK(said("weighing(5)") && said("actions at one instant"));
    layer(tensors);
    options.scheme = "weighing(0)";
    EXPECT(BAD_ARGUMENT, slackline_server_create(NULL, tensors, 2, values, ELEMENTS, &options, &server));
    CHECK(server == NULL && said("a real server keeps no updates"));
}

int main(void)
{
    struct slackline_scheme scheme;

    memset(&scheme, 0, sizeof scheme);
    scheme.size = sizeof scheme;
    scheme.name = "weighing";
    scheme.base = "asp";
    scheme.needs = needs;
    scheme.server.create = serve_create;
    scheme.server.event = serve_event;
    scheme.server.action = serve_action;
    scheme.server.destroy = free;
    OK(slackline_scheme_register(&scheme));
    updates_are_weighed_in_sum_or_alone();
    weighing_that_cannot_be_is_told_so();
    puts("all checks passed");
    return 0;
}
