// A C++ program that knows the installed header alone: a publisher and a reader in two threads. Prints "ok".
#include <slackline.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace {

const std::uint64_t TIMEOUT_MS = 20000;

void ok(const char *what, slackline_status status)
{
    if (status != SLACKLINE_STATUS_OK) {
        std::fprintf(stderr, "%s: %s: %s\n", what, slackline_status_name(status), slackline_last_error());
        std::exit(1);
    }
}

void read(const char *address)
{
    slackline_reader *made = nullptr;
    ok("connect", slackline_reader_connect(address, nullptr, TIMEOUT_MS, &made));
    std::unique_ptr<slackline_reader, void (*)(slackline_reader *)> reader(made, slackline_reader_destroy);
    ok("refresh_to", slackline_reader_refresh_to(reader.get(), 3, TIMEOUT_MS, nullptr));
    std::vector<float> values(8);
    slackline_fresh fresh = slackline_fresh();
    fresh.size = sizeof fresh;
    ok("pull", slackline_reader_pull(reader.get(), values.data(), values.size() * sizeof(float), 0, TIMEOUT_MS, &fresh));
    if (fresh.version != 3 || values != std::vector<float>(8, 3)) {
        std::fprintf(stderr, "version %llu\n", static_cast<unsigned long long>(fresh.version));
        std::exit(1);
    }
}

} // namespace

int main()
{
    const std::uint64_t shape[] = {8};
    const slackline_tensor tensor = {"weights", shape, 1, SLACKLINE_ELEMENT_F32};
    slackline_publisher *publisher = nullptr;
    const char *address = nullptr;
    ok("create", slackline_publisher_create("localhost:0", &tensor, 1, nullptr, &publisher));
    ok("address", slackline_publisher_address(publisher, &address));
    for (int version = 1; version <= 3; version++) {
        const std::vector<float> values(8, static_cast<float>(version));
        ok("publish", slackline_publisher_publish(publisher, values.data(), values.size() * sizeof(float), TIMEOUT_MS, nullptr));
    }
    std::thread reading(read, address);
    slackline_publisher_status status = slackline_publisher_status();
    status.size = sizeof status;
    do {
        ok("progress", slackline_publisher_progress(publisher, nullptr));
        ok("status", slackline_publisher_get_status(publisher, &status));
    } while (status.joined == 0 || status.readers > 0);
    reading.join();
    slackline_publisher_destroy(publisher);
    std::puts("ok");
    return 0;
}
