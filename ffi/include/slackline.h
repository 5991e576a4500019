/*
 * slackline: bounded-stale parameter memory over shared memory.
 *
 * Generated from ffi/src; edit there, then: UPDATE_HEADER=1 cargo test -p slackline-ffi --test header
 *
 * Every function that can fail answers a slackline_status: 0 is success, and slackline_last_error() says in words
 * what went wrong. No function waits longer than the timeout_ms that it is given, in milliseconds.
 *
 * Objects (slackline_server, slackline_worker, slackline_publisher, slackline_reader) are known by pointer only. Each
 * has a function that makes it and one that destroys it. An object is used by one thread at a time; it may wander
 * from thread to thread. Different objects are independent. An object that a forked child inherits is of no use
 * there: fork first, then create.
 *
 * Structs whose first field is `size` are versioned by it: set it to the sizeof of the struct before the call. A
 * wrong size is SLACKLINE_STATUS_BAD_ARGUMENT. Such structs only ever grow at their end.
 *
 * Pointers are checked for NULL and alignment, texts for UTF-8; that they point at as much as they should is up to
 * the caller, as ever in C. What is given to a function is copied; what a function hands out is valid for as long as
 * its comment says.
 */


#ifndef SLACKLINE_H
#define SLACKLINE_H

#include <stddef.h>
#include <stdint.h>

/**
 * A staleness that is not given: schemes that take one use their default, the others take none.
 */
#define SLACKLINE_NO_STALENESS 18446744073709551615ull

/**
 * What every function answers. Numbers are permanent: none is ever given another meaning, and the number of a
 * status that is retired stays reserved.
 */
enum slackline_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * It worked.
     */
    SLACKLINE_STATUS_OK = 0,
    /**
     * An argument cannot be: NULL, a wrong length, a wrong struct size, a name that is not UTF-8, an option out of
     * range, tables or schemes that do not fit together. Nothing was done.
     */
    SLACKLINE_STATUS_BAD_ARGUMENT = 1,
    /**
     * The call does not fit what the object is doing: another call has to come first. Nothing was done.
     */
    SLACKLINE_STATUS_OUT_OF_TURN = 2,
    /**
     * The time given has passed. What was waited for goes on: call again.
     */
    SLACKLINE_STATUS_DEADLINE = 3,
    /**
     * The peer, or the rule that both must be the same user, turned this process away.
     */
    SLACKLINE_STATUS_REFUSED = 4,
    /**
     * The peer is gone. Destroy the object and connect again once the peer is back.
     */
    SLACKLINE_STATUS_SERVER_LOST = 5,
    /**
     * The server took this worker or reader for dead, or found that it broke the protocol. Destroy the object and
     * connect again.
     */
    SLACKLINE_STATUS_EVICTED = 6,
    /**
     * Readers pinned all other frames for the time given. Call again, or use more frames.
     */
    SLACKLINE_STATUS_PINNED = 7,
    /**
     * The peer does not speak this protocol, or another version of it.
     */
    SLACKLINE_STATUS_PROTOCOL = 8,
    /**
     * What was read is not what its owner wrote.
     */
    SLACKLINE_STATUS_DAMAGED = 9,
    /**
     * Memory could not be had or shared.
     */
    SLACKLINE_STATUS_MEMORY = 10,
    /**
     * The system refused something else: a socket, a thread. Nobody listening at an address is this, too.
     */
    SLACKLINE_STATUS_SYSTEM = 11,
    /**
     * The transport cannot do this.
     */
    SLACKLINE_STATUS_UNSUPPORTED = 12,
    /**
     * A bug in slackline that it noticed itself. Please report it.
     */
    SLACKLINE_STATUS_INTERNAL = 13,
    /**
     * A bug in slackline that it did not: a panic was stopped at the boundary. The object can only be destroyed.
     */
    SLACKLINE_STATUS_PANIC = 14,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slackline_status slackline_status;
#else
typedef uint32_t slackline_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Types of elements, for the fields called `element` and `encoding`.
 */
enum slackline_element
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * IEEE 754 single precision, 4 bytes.
     */
    SLACKLINE_ELEMENT_F32 = 0,
    /**
     * bfloat16, 2 bytes.
     */
    SLACKLINE_ELEMENT_BF16 = 1,
    /**
     * IEEE 754 half precision, 2 bytes.
     */
    SLACKLINE_ELEMENT_F16 = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slackline_element slackline_element;
#else
typedef uint32_t slackline_element;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How gradients move parameters, for the field called `optimizer`. Formulas are PyTorch's.
 */
enum slackline_optimizer
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Uses `learning_rate` and `weight_decay`.
     */
    SLACKLINE_OPTIMIZER_SGD = 0,
    /**
     * Uses `momentum` as well.
     */
    SLACKLINE_OPTIMIZER_MOMENTUM = 1,
    /**
     * Uses `learning_rate`, `beta1`, `beta2`, `epsilon` and `weight_decay`, an L2 penalty.
     */
    SLACKLINE_OPTIMIZER_ADAM = 2,
    /**
     * As Adam, with the decay taken from the parameter itself.
     */
    SLACKLINE_OPTIMIZER_ADAMW = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slackline_optimizer slackline_optimizer;
#else
typedef uint32_t slackline_optimizer;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Publishes versions of a table that its owner made itself. It has no thread that looks after readers: it does while
 * `slackline_publisher_progress` or `slackline_publisher_publish` is called, which must be more often than the lease.
 */
typedef struct slackline_publisher slackline_publisher;

/**
 * Reads versions of one publisher's table, or of one server's shard. A thread of its own tells the owner that it
 * lives.
 */
typedef struct slackline_reader slackline_reader;

/**
 * Holds one shard of the parameters and folds workers' gradients into it. It has no thread that looks after peers: it
 * works while `slackline_server_progress` or `slackline_server_serve` is called, which must be far more often than
 * the lease.
 */
typedef struct slackline_server slackline_server;

/**
 * Reads parameters and publishes gradients. One clock is: begin, compute on the parameters, write the gradient,
 * publish. A thread of its own tells the servers that it lives, however long it computes.
 */
typedef struct slackline_worker slackline_worker;

/**
 * One tensor of a table. A table is an array of them, laid out one after the other in one flat space, each at a
 * multiple of its element size.
 */
typedef struct slackline_tensor {
    /**
     * UTF-8, ending in a zero; unique in its table.
     */
    const char *name;
    /**
     * `rank` sides, outermost first. May be NULL if `rank` is 0: a scalar.
     */
    const uint64_t *shape;
    /**
     * Number of sides.
     */
    size_t rank;
    /**
     * One of `enum slackline_element`.
     */
    uint32_t element;
} slackline_tensor;

/**
 * How a publisher works. Set `size`, call `slackline_publisher_options_init`, change what should differ.
 */
typedef struct slackline_publisher_options {
    /**
     * `sizeof(struct slackline_publisher_options)`.
     */
    size_t size;
    /**
     * Most readers at a time; by default 64.
     */
    uint16_t peers;
    /**
     * Frames of memory, each one version long: readers that pin different versions, plus 2. By default 3.
     */
    uint8_t frames;
    /**
     * Not 0: each version carries a checksum. By default 0.
     */
    uint8_t checksums;
    /**
     * Bytes that are copied and announced at a time, a multiple of 64; by default 1 MiB.
     */
    uint64_t chunk_bytes;
    /**
     * How long a reader may be silent before it is taken for dead; by default 3000.
     */
    uint64_t lease_ms;
} slackline_publisher_options;

/**
 * What a publisher says about itself. Set `size` before it is asked.
 */
typedef struct slackline_publisher_status {
    /**
     * `sizeof(struct slackline_publisher_status)`.
     */
    size_t size;
    /**
     * The newest version.
     */
    uint64_t version;
    /**
     * Readers that are in.
     */
    uint64_t readers;
    /**
     * Readers that ever joined.
     */
    uint64_t joined;
} slackline_publisher_status;

/**
 * How a reader reads. Set `size`, call `slackline_reader_options_init`, change what should differ.
 */
typedef struct slackline_reader_options {
    /**
     * `sizeof(struct slackline_reader_options)`.
     */
    size_t size;
    /**
     * Not 0: check the owner's checksums, where there are any. By default 0.
     */
    uint32_t checksums;
} slackline_reader_options;

/**
 * What a reader holds after a refresh. Set `size` before it is asked.
 */
typedef struct slackline_fresh {
    /**
     * `sizeof(struct slackline_fresh)`.
     */
    size_t size;
    /**
     * Its version.
     */
    uint64_t version;
    /**
     * How many versions it is behind the newest.
     */
    uint64_t behind;
    /**
     * The owner's life: another number after it was started anew.
     */
    uint64_t epoch;
    /**
     * Copies begun anew because the frame changed under them.
     */
    uint64_t retries;
    /**
     * 0 if the copy at hand was fresh enough and nothing was read but its age.
     */
    uint32_t copied;
} slackline_fresh;

/**
 * How a server works. Set `size`, call `slackline_server_options_init`, change what should differ.
 */
typedef struct slackline_server_options {
    /**
     * `sizeof(struct slackline_server_options)`.
     */
    size_t size;
    /**
     * "bsp", "asp", "ssp(3)" or another scheme that `slackline train --help` names, with its settings in
     * parentheses; by default "bsp". Workers must run the same.
     */
    const char *scheme;
    /**
     * How many clocks a worker's copy may be behind, for schemes that take a staleness and have none in their text;
     * by default `SLACKLINE_NO_STALENESS`.
     */
    uint64_t staleness;
    /**
     * How many workers the job has: nothing is applied before that many have joined. By default 1.
     */
    size_t workers;
    /**
     * Threads that sum gradients, the caller's own among them; by default 1.
     */
    size_t threads;
    /**
     * One of `enum slackline_optimizer`; by default SGD.
     */
    uint32_t optimizer;
    /**
     * Step size; by default 0.01.
     */
    float learning_rate;
    /**
     * By default 0.
     */
    float weight_decay;
    /**
     * By default 0.9.
     */
    float momentum;
    /**
     * By default 0.9.
     */
    float beta1;
    /**
     * By default 0.999.
     */
    float beta2;
    /**
     * By default 1e-8.
     */
    float epsilon;
    /**
     * Which shard of the table this server holds; by default 0.
     */
    uint16_t shard;
    /**
     * Into how many shards the table is cut; by default 1.
     */
    uint16_t shards;
    /**
     * Most peers at a time, workers and readers together; by default 64.
     */
    uint16_t peers;
    /**
     * Frames of memory, each one version long: readers that pin different versions, plus 2. By default 3.
     */
    uint8_t frames;
    /**
     * Not 0: each version carries a checksum. By default 0.
     */
    uint8_t checksums;
    /**
     * Bytes of parameters that are summed, copied and announced at a time, a multiple of 64; by default 1 MiB.
     */
    uint64_t chunk_bytes;
    /**
     * How long a peer may be silent before it is taken for dead; by default 3000.
     */
    uint64_t lease_ms;
} slackline_server_options;

/**
 * What a server says about itself. Set `size` before it is asked.
 */
typedef struct slackline_server_status {
    /**
     * `sizeof(struct slackline_server_status)`.
     */
    size_t size;
    /**
     * The newest version.
     */
    uint64_t version;
    /**
     * All gradients of clocks before this one are in it.
     */
    uint64_t smallest_clock;
    /**
     * Workers that are in.
     */
    uint64_t workers;
    /**
     * Readers that are in.
     */
    uint64_t readers;
    /**
     * Workers that ever joined.
     */
    uint64_t joined;
    /**
     * Workers that left or were evicted.
     */
    uint64_t left;
    /**
     * Peers that were turned away.
     */
    uint64_t refused;
    /**
     * Gradients that were folded in.
     */
    uint64_t folded;
    /**
     * Gradients that were consumed without being folded in.
     */
    uint64_t dropped;
    /**
     * Mean of the losses that came with the gradients of the newest version; NaN until one came.
     */
    double loss;
} slackline_server_status;

/**
 * How a worker works. Set `size`, call `slackline_worker_options_init`, change what should differ.
 */
typedef struct slackline_worker_options {
    /**
     * `sizeof(struct slackline_worker_options)`.
     */
    size_t size;
    /**
     * The servers' scheme; by default "bsp".
     */
    const char *scheme;
    /**
     * The servers' staleness; by default `SLACKLINE_NO_STALENESS`.
     */
    uint64_t staleness;
    /**
     * One of `enum slackline_element`: how gradients travel; by default f32.
     */
    uint32_t encoding;
    /**
     * Not 0: gradients carry checksums, and those of parameters are checked. By default 0.
     */
    uint32_t checksums;
} slackline_worker_options;

/**
 * The parameters that a worker computes on next. Set `size` before it is asked.
 */
typedef struct slackline_view {
    /**
     * `sizeof(struct slackline_view)`.
     */
    size_t size;
    /**
     * The worker's clock: the gradient belongs to it.
     */
    uint64_t clock;
    /**
     * Version of the parameters; over several servers, the smallest.
     */
    uint64_t version;
    /**
     * They hold all gradients of clocks before this one; over several servers, the smallest.
     */
    uint64_t smallest_clock;
    /**
     * By how many clocks they are stale: `clock` less `smallest_clock`, or 0.
     */
    uint64_t staleness;
    /**
     * By how many versions they were behind the newest when they were read.
     */
    uint64_t behind;
    /**
     * Copies begun anew because a frame changed under them.
     */
    uint64_t retries;
} slackline_view;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The library's version, "MAJOR.MINOR.PATCH". Valid for ever.
 */
const char *slackline_version(void);

/**
 * What a status is called, for people. Valid for ever; never NULL, whatever the number.
 */
const char *slackline_status_name(uint32_t status);

/**
 * What went wrong in the call of this thread that failed last, in a sentence that names the operation, the cause and
 * the remedy. UTF-8; never NULL; empty if nothing has failed. Valid until another call of this thread fails, or the
 * thread ends; calls that work leave it as it is.
 */
const char *slackline_last_error(void);

/**
 * Which bytes of a table's flat space shard number `shard` of `shards` is: a server's own part, which the initial
 * values that it is given are of. One shard is the whole table.
 */
slackline_status slackline_shard_range(const struct slackline_tensor *tensors,
                                       size_t tensor_count,
                                       uint16_t shard,
                                       uint16_t shards,
                                       uint64_t *begin,
                                       uint64_t *end);

/**
 * Sets all options but `size`, which the caller has set, to their defaults.
 */
slackline_status slackline_publisher_options_init(struct slackline_publisher_options *options);

/**
 * Begins to serve a table at `address`, which is as for a server; version 0 is all zeros. `options` may be NULL. The
 * publisher is the caller's, to be destroyed; on failure it is NULL.
 */
slackline_status slackline_publisher_create(const char *address,
                                            const struct slackline_tensor *tensors,
                                            size_t tensor_count,
                                            const struct slackline_publisher_options *options,
                                            struct slackline_publisher **publisher);

/**
 * Where readers reach this publisher. Valid until it is destroyed.
 */
slackline_status slackline_publisher_address(const struct slackline_publisher *publisher,
                                             const char **address);

/**
 * Publishes `bytes`, the whole table, as the next version, whose number `version`, unless NULL, becomes. It is copied.
 * Waits only if readers pin all other frames; `SLACKLINE_STATUS_PINNED` says that they did for `timeout_ms`.
 */
slackline_status slackline_publisher_publish(struct slackline_publisher *publisher,
                                             const void *bytes,
                                             size_t len,
                                             uint64_t timeout_ms,
                                             uint64_t *version);

/**
 * Takes readers in and notices who is gone, without waiting. `progressed`, unless NULL, becomes 1 if anything
 * happened and 0 if not.
 */
slackline_status slackline_publisher_progress(struct slackline_publisher *publisher, uint32_t *progressed);

/**
 * Tells what there is to say now. `status->size` must be set.
 */
slackline_status slackline_publisher_get_status(const struct slackline_publisher *publisher,
                                                struct slackline_publisher_status *status);

/**
 * Ends the publisher; its readers are told. NULL is nothing.
 */
void slackline_publisher_destroy(struct slackline_publisher *publisher);

/**
 * Sets all options but `size`, which the caller has set, to their defaults.
 */
slackline_status slackline_reader_options_init(struct slackline_reader_options *options);

/**
 * Connects to a publisher or a server, which must be there already. `options` may be NULL. The reader is the
 * caller's, to be destroyed; on failure it is NULL.
 */
slackline_status slackline_reader_connect(const char *address,
                                          const struct slackline_reader_options *options,
                                          uint64_t timeout_ms,
                                          struct slackline_reader **reader);

/**
 * Makes sure that the reader's copy is at most `max_staleness` versions behind the newest. A copy that is fresh
 * enough already is kept. `fresh`, unless NULL, is told what it is; `fresh->size` must be set. After a failure there
 * may be nothing to read until a refresh works again.
 */
slackline_status slackline_reader_refresh(struct slackline_reader *reader,
                                          uint64_t max_staleness,
                                          uint64_t timeout_ms,
                                          struct slackline_fresh *fresh);

/**
 * Waits for `version` or a newer one, and copies the newest; otherwise as `slackline_reader_refresh`.
 */
slackline_status slackline_reader_refresh_to(struct slackline_reader *reader,
                                             uint64_t version,
                                             uint64_t timeout_ms,
                                             struct slackline_fresh *fresh);

/**
 * The reader's copy, `len` bytes. Valid, and unchanging, until the next refresh or destroy of this reader.
 */
slackline_status slackline_reader_bytes(const struct slackline_reader *reader,
                                        const void **bytes,
                                        size_t *len);

/**
 * Leaves. NULL is nothing.
 */
void slackline_reader_destroy(struct slackline_reader *reader);

/**
 * Sets all options but `size`, which the caller has set, to their defaults.
 */
slackline_status slackline_server_options_init(struct slackline_server_options *options);

/**
 * Begins to serve a shard of a table at `address`: "@NAME", a name that vanishes with the process, the path of a
 * socket file, with a "/" in it, "IP:PORT" (port 0 takes a free one), or several of these with commas between. NULL
 * picks a name; `slackline_server_address` tells it.
 *
 * All tensors must be f32. `initial` holds the shard's own `initial_len` values as version 0 and is copied. The
 * server is the caller's, to be destroyed; on failure it is NULL.
 */
slackline_status slackline_server_create(const char *address,
                                         const struct slackline_tensor *tensors,
                                         size_t tensor_count,
                                         const float *initial,
                                         size_t initial_len,
                                         const struct slackline_server_options *options,
                                         struct slackline_server **server);

/**
 * Where workers and readers reach this server. Valid until it is destroyed.
 */
slackline_status slackline_server_address(const struct slackline_server *server, const char **address);

/**
 * Does whatever there is to do without waiting: takes peers in, notices who is gone, folds gradients that have come,
 * publishes versions. `progressed`, unless NULL, becomes 1 if it got anywhere and 0 if not.
 */
slackline_status slackline_server_progress(struct slackline_server *server,
                                           uint32_t *progressed);

/**
 * Serves until `until_workers_left` workers in all have left since the server was created, or `timeout_ms` has
 * passed: that is `SLACKLINE_STATUS_DEADLINE`, and serving can go on with another call.
 */
slackline_status slackline_server_serve(struct slackline_server *server,
                                        uint64_t until_workers_left,
                                        uint64_t timeout_ms);

/**
 * Tells what there is to say now. `status->size` must be set.
 */
slackline_status slackline_server_get_status(const struct slackline_server *server,
                                             struct slackline_server_status *status);

/**
 * Changes the step size from the next version on. It must be finite.
 */
slackline_status slackline_server_set_learning_rate(struct slackline_server *server, float learning_rate);

/**
 * Copies the newest parameters of this shard to `values`, which has room for exactly as many.
 */
slackline_status slackline_server_parameters(const struct slackline_server *server,
                                             float *values,
                                             size_t len);

/**
 * Ends the server; its peers are told. NULL is nothing.
 */
void slackline_server_destroy(struct slackline_server *server);

/**
 * Sets all options but `size`, which the caller has set, to their defaults.
 */
slackline_status slackline_worker_options_init(struct slackline_worker_options *options);

/**
 * Connects to the servers of all shards, given in any order. The servers must be there already: an address at which
 * nobody listens is `SLACKLINE_STATUS_SYSTEM` at once. The worker is the caller's, to be destroyed; on failure it is
 * NULL.
 */
slackline_status slackline_worker_connect(const char *const *addresses,
                                          size_t address_count,
                                          const struct slackline_worker_options *options,
                                          uint64_t timeout_ms,
                                          struct slackline_worker **worker);

/**
 * Brings the parameters for the next gradient, waiting as the scheme says. `view`, unless NULL, is told what they are;
 * `view->size` must be set. After `SLACKLINE_STATUS_DEADLINE` it may be called again and goes on where it was.
 */
slackline_status slackline_worker_begin(struct slackline_worker *worker,
                                        struct slackline_view *view,
                                        uint64_t timeout_ms);

/**
 * The parameters that `slackline_worker_begin` brought, as one flat array of the whole table; `len` is how many.
 * Valid, and unchanging, until the next begin, publish, flush or destroy of this worker.
 */
slackline_status slackline_worker_parameters(const struct slackline_worker *worker,
                                             const float **parameters,
                                             size_t *len);

/**
 * Where to write the gradient of the whole table, if it travels as f32; `len` is how many values. It holds what was
 * written there last. Valid until the next begin, publish, flush or destroy of this worker.
 */
slackline_status slackline_worker_gradient(struct slackline_worker *worker,
                                           float **gradient,
                                           size_t *len);

/**
 * Rounds a gradient of the whole table, `len` values, to the worker's encoding, ready to be published: instead of
 * writing to `slackline_worker_gradient`. It is copied.
 */
slackline_status slackline_worker_encode(struct slackline_worker *worker,
                                         const float *gradient,
                                         size_t len);

/**
 * Publishes the gradient, waiting for free slots. `loss` is told to the servers, unless NULL. When it returns
 * `SLACKLINE_STATUS_OK`, every server has the gradient whole. After `SLACKLINE_STATUS_DEADLINE` it is still on its
 * way: the next begin finishes it, and publishing again before that is out of turn.
 */
slackline_status slackline_worker_publish(struct slackline_worker *worker,
                                          const float *loss,
                                          uint64_t timeout_ms);

/**
 * Waits until every server has folded in, or dropped, all that this worker has published: call it before a worker
 * whose last gradients count is destroyed.
 */
slackline_status slackline_worker_flush(struct slackline_worker *worker,
                                        uint64_t timeout_ms);

/**
 * Leaves the job. NULL is nothing.
 */
void slackline_worker_destroy(struct slackline_worker *worker);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SLACKLINE_H */
