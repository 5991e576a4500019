/*
 * slackline: bounded-stale parameter memory over shared memory, TCP and RDMA.
 *
 * Generated from ffi/src; edit there, then: UPDATE_HEADER=1 cargo test -p slackline-ffi --test header
 *
 * Every function that can fail answers a slackline_status: 0 is success, and slackline_last_error() says in words
 * what went wrong. No function waits longer than the timeout_ms that it is given, in milliseconds, nor one of a job
 * that is given none longer than the timeout_ms of the job, with these exceptions:
 *
 *   - When a job ends or fails, the call of rank 0 that learns of it waits until the others have heard of it, at most
 *     10 s; slackline_job_serve before that for the last checkpoint, at most the timeout_ms of the job.
 *   - Where a server of a job is lost or cannot be reached, rank 0 is given 2 s to tell the cause, and 2 s to hear of a
 *     process that gives up.
 *   - slackline_job_destroy waits at rank 0 until the others have heard of the end, at most 10 s, and at the first worker
 *     of a host until the others there are done, at most 2 s, with per_host; slackline_relay_destroy waits for an attempt
 *     to reach its owner, at most 5 s; slackline_server_destroy for the checkpoint that is being written, as long as the
 *     disk takes.
 *   - The system's resolver, which is asked for a host's name, and the driver of a GPU take the time that they take.
 *
 * Addresses are UTF-8 text, of one of these forms; a listener also takes several with commas between them:
 *
 *   @NAME             shared memory, by a name that vanishes with the process that listens
 *   PATH              shared memory, by a socket file: a path with a "/" in it, in a folder of mode 700
 *   HOST:PORT         TCP: a host's name, an IPv4 address, or an IPv6 address in brackets; port 0 takes a free one
 *   verbs:HOST:PORT   RDMA; the two sides find each other by TCP at HOST:PORT. The library loads libibverbs itself when
 *                     an object is made with such an address; a host without it or without a device is
 *                     SLACKLINE_STATUS_UNSUPPORTED. The best device and port are taken, unless SLACKLINE_RDMA_DEVICE
 *                     (names with commas between them) in the environment names others; docs/operations.md has all
 *                     variables SLACKLINE_RDMA_*
 *
 * TCP and RDMA serve peers on this host only, unless both sides know one secret: set `secret` or `secret_file` in the
 * options, or SLACKLINE_SECRET_FILE (a file of mode 600) or SLACKLINE_SECRET in the environment. With `encrypt` in the
 * options data over TCP is encrypted, too. Shared memory serves processes of the same user and needs no secret.
 *
 * Objects (slackline_job, slackline_server, slackline_worker, slackline_publisher, slackline_reader,
 * slackline_group, slackline_relay, slackline_snapshot, slackline_tables, slackline_local_steps,
 * slackline_checkpoint, slackline_gpu) are known by pointer only.
 * Each has a function that makes it and one that destroys it. An object is used by one thread at a time; it may
 * wander from thread to thread. Different objects are independent. An object that a forked child inherits is of no
 * use there: each call with it is SLACKLINE_STATUS_OUT_OF_TURN, and its destroy frees nothing. Fork first, then create.
 * Functions that take no object may be called by several threads at once.
 *
 * Structs whose first field is `size` are versioned by it: set it to the sizeof of the struct before the call. Such
 * structs only ever grow at their end, so that a program runs with an older or a newer library than the one it was
 * built with: fields that the program does not know take their defaults, and fields that the library does not know
 * must be zero, or the call is SLACKLINE_STATUS_BAD_ARGUMENT. Structs without it never change within a minor version.
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
 * The major version of this header.
 */
#define SLACKLINE_VERSION_MAJOR 0

/**
 * The minor version of this header. While the major version is 0, a new minor version may change the ABI.
 */
#define SLACKLINE_VERSION_MINOR 1

/**
 * The patch version of this header. It grows with every addition to the ABI.
 */
#define SLACKLINE_VERSION_PATCH 13

/**
 * The version of this header as one number that grows with it.
 */
#define SLACKLINE_VERSION_NUMBER (((SLACKLINE_VERSION_MAJOR * 1000000) + (SLACKLINE_VERSION_MINOR * 1000)) + SLACKLINE_VERSION_PATCH)

/**
 * A version that there is not.
 */
#define SLACKLINE_NO_VERSION 18446744073709551615ull

/**
 * A staleness that is not given: schemes that take one use their default, the others take none.
 */
#define SLACKLINE_NO_STALENESS 18446744073709551615ull

/**
 * Bytes of a reader's secret, with the zero at its end.
 */
#define SLACKLINE_READING_SECRET_BYTES 149

/**
 * The number of counts in `struct slackline_staleness`.
 */
#define SLACKLINE_STALENESS_COUNTS 256

/**
 * Bytes of a label.
 */
#define SLACKLINE_LABEL_BYTES 32

/**
 * Any number of versions behind the newest.
 */
#define SLACKLINE_ANY_STALENESS 18446744073709551615ull

/**
 * The result of every function that can fail. Numbers are permanent: none is ever given another meaning, and the
 * number of a status that is retired stays reserved.
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
     * The call does not fit the state of the object: another call has to come first. Nothing was done.
     */
    SLACKLINE_STATUS_OUT_OF_TURN = 2,
    /**
     * The timeout has passed. The operation continues, or did not begin: call again, unless
     * `slackline_last_error_is_retryable` is 0, for an object that can only be destroyed.
     */
    SLACKLINE_STATUS_DEADLINE = 3,
    /**
     * The peer turned this process away, or a rule that both sides follow: the same user over shared memory, the same
     * secret over TCP and RDMA, data that both encrypt or neither, and no peer beyond this host without a secret.
     */
    SLACKLINE_STATUS_REFUSED = 4,
    /**
     * The peer is gone. Connect a worker or a reader again, by its `..._reconnect`, once the peer is back; destroy any
     * other object and make it again.
     */
    SLACKLINE_STATUS_SERVER_LOST = 5,
    /**
     * The server took this worker or reader for dead, or found that it broke the protocol. Connect it again, by its
     * `..._reconnect`.
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
     * The data that was read differs from the owner's.
     */
    SLACKLINE_STATUS_DAMAGED = 9,
    /**
     * Memory could not be had or shared.
     */
    SLACKLINE_STATUS_MEMORY = 10,
    /**
     * The system refused something else: a socket, a thread. That no process listens at an address is this, too.
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
    /**
     * The job has failed, its rank 0 is gone, or it was over before this process was in. The message has the cause.
     */
    SLACKLINE_STATUS_JOB_FAILED = 15,
    /**
     * A scheme of `slackline_scheme_register` failed, asked for something impossible, or does not know such
     * settings; or, in a simulation, any scheme broke a promise or waits for ever. The message has the cause.
     */
    SLACKLINE_STATUS_SCHEME = 16,
    /**
     * The version that was asked for by its number is overwritten. Ask for a newer one, or give its publisher more
     * frames.
     */
    SLACKLINE_STATUS_VERSION_GONE = 17,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slackline_status slackline_status;
#else
typedef uint32_t slackline_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The actions that a scheme may ask for, for the field called `kind` in `slackline_scheme_action`. Each is followed by
 * the fields that it reads.
 */
enum slackline_action
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Nothing, until the next event.
     */
    SLACKLINE_ACTION_NONE = 0,
    /**
     * Of a server: fold `shares` into one new version, whose step may be of no share. Each must have come, and counts
     * once; at most 1024 at a time.
     */
    SLACKLINE_ACTION_APPLY = 1,
    /**
     * Of a server: begin to fold `shares`, as they will be folded next if they all come. It binds neither side.
     */
    SLACKLINE_ACTION_EXPECT = 2,
    /**
     * Of a server: consume the gradient of `clock` of `worker` without folding it in.
     */
    SLACKLINE_ACTION_DROP = 3,
    /**
     * Of a server: ask `worker` to abandon what it computes and to take the newest version.
     */
    SLACKLINE_ACTION_INTERRUPT = 4,
    /**
     * Of a server: push the newest version to the workers that take pushes.
     */
    SLACKLINE_ACTION_PUSH = 5,
    /**
     * Of a worker: bring the newest copy that is at least `version` and holds all gradients of clocks before `clock`,
     * waiting for one if need be. `SLACKLINE_EVENT_HOLDS` answers.
     */
    SLACKLINE_ACTION_REFRESH = 6,
    /**
     * Of a worker: compute on the copy at hand and publish. `SLACKLINE_EVENT_PUBLISHED` or
     * `SLACKLINE_EVENT_INTERRUPTED` answers.
     */
    SLACKLINE_ACTION_COMPUTE = 7,
    /**
     * Of a server, in a simulation alone: say how large the updates of one worker are in sum, those that were made
     * after `version` and the one that the one gradient in `shares` would make if it were folded next.
     * `SLACKLINE_EVENT_WEIGHED` answers. It is for schemes that need it: `weighs_updates`.
     */
    SLACKLINE_ACTION_WEIGH = 8,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slackline_action slackline_action;
#else
typedef uint32_t slackline_action;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What an advance of the training did, for the field called `kind`.
 */
enum slackline_advance_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint64_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Nothing: `compute` gave up. The next advance makes the same step.
     */
    SLACKLINE_ADVANCE_KIND_GAVE_UP = 0,
    /**
     * The parameters have made a step.
     */
    SLACKLINE_ADVANCE_KIND_STEPPED = 1,
    /**
     * The parameters are their group's mean.
     */
    SLACKLINE_ADVANCE_KIND_AVERAGED = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slackline_advance_kind slackline_advance_kind;
#else
typedef uint64_t slackline_advance_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The effects of a gradient's staleness on its weight, for the field called `damping`.
 */
enum slackline_damping
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint64_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * It has no effect.
     */
    SLACKLINE_DAMPING_NONE = 0,
    /**
     * The weight is divided by the staleness, where that is more than 1.
     */
    SLACKLINE_DAMPING_INVERSE = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slackline_damping slackline_damping;
#else
typedef uint64_t slackline_damping;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Types of elements, for the field called `element`: the types of DLPack 1.1 except vectors and complex numbers of two
 * float16. A server's table is f32. Of the field called `encoding` the first three are values.
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
    /**
     * IEEE 754 double precision, 8 bytes.
     */
    SLACKLINE_ELEMENT_F64 = 3,
    /**
     * A byte that is 0 or 1.
     */
    SLACKLINE_ELEMENT_BOOL = 4,
    /**
     * Signed integer of 1 byte.
     */
    SLACKLINE_ELEMENT_I8 = 5,
    /**
     * Signed integer of 2 bytes.
     */
    SLACKLINE_ELEMENT_I16 = 6,
    /**
     * Signed integer of 4 bytes.
     */
    SLACKLINE_ELEMENT_I32 = 7,
    /**
     * Signed integer of 8 bytes.
     */
    SLACKLINE_ELEMENT_I64 = 8,
    /**
     * Unsigned integer of 1 byte.
     */
    SLACKLINE_ELEMENT_U8 = 9,
    /**
     * Unsigned integer of 2 bytes.
     */
    SLACKLINE_ELEMENT_U16 = 10,
    /**
     * Unsigned integer of 4 bytes.
     */
    SLACKLINE_ELEMENT_U32 = 11,
    /**
     * Unsigned integer of 8 bytes.
     */
    SLACKLINE_ELEMENT_U64 = 12,
    /**
     * Two f32, real and imaginary part.
     */
    SLACKLINE_ELEMENT_COMPLEX64 = 13,
    /**
     * Two f64, real and imaginary part.
     */
    SLACKLINE_ELEMENT_COMPLEX128 = 14,
    /**
     * 1 byte: 3 bits of exponent, 4 of mantissa.
     */
    SLACKLINE_ELEMENT_F8E3M4 = 15,
    /**
     * 1 byte: 4 bits of exponent, 3 of mantissa, as IEEE 754 would have it.
     */
    SLACKLINE_ELEMENT_F8E4M3 = 16,
    /**
     * 1 byte: 4 bits of exponent with bias 11, 3 of mantissa, finite, one zero.
     */
    SLACKLINE_ELEMENT_F8E4M3B11_FNUZ = 17,
    /**
     * 1 byte: 4 bits of exponent, 3 of mantissa, finite (OCP E4M3).
     */
    SLACKLINE_ELEMENT_F8E4M3_FN = 18,
    /**
     * 1 byte: 4 bits of exponent, 3 of mantissa, finite, one zero.
     */
    SLACKLINE_ELEMENT_F8E4M3_FNUZ = 19,
    /**
     * 1 byte: 5 bits of exponent, 2 of mantissa (OCP E5M2).
     */
    SLACKLINE_ELEMENT_F8E5M2 = 20,
    /**
     * 1 byte: 5 bits of exponent, 2 of mantissa, finite, one zero.
     */
    SLACKLINE_ELEMENT_F8E5M2_FNUZ = 21,
    /**
     * 1 byte: 8 bits of exponent, for scales (OCP E8M0).
     */
    SLACKLINE_ELEMENT_F8E8M0_FNU = 22,
    /**
     * 6 bits, packed: 2 of exponent, 3 of mantissa.
     */
    SLACKLINE_ELEMENT_F6E2M3_FN = 23,
    /**
     * 6 bits, packed: 3 of exponent, 2 of mantissa.
     */
    SLACKLINE_ELEMENT_F6E3M2_FN = 24,
    /**
     * 4 bits, packed: 2 of exponent, 1 of mantissa.
     */
    SLACKLINE_ELEMENT_F4E2M1_FN = 25,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slackline_element slackline_element;
#else
typedef uint32_t slackline_element;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The events that a scheme is told of, for the field called `kind` in `slackline_scheme_event`. Each is followed by
 * the fields that it sets. More may come: a callback does nothing at a number that it does not know.
 */
enum slackline_event
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * At a server: a worker is in. `worker`, `clock` at which it begins, `returns`. At a worker: it is in, and begins
     * everything again at `clock`; copies from before count no more.
     */
    SLACKLINE_EVENT_JOINED = 0,
    /**
     * At a server: a worker left or was evicted; its gradients that were not applied are void. `worker`.
     */
    SLACKLINE_EVENT_LEFT = 1,
    /**
     * At a server: a gradient has come whole; those of one worker come in the order of their clocks. `worker`,
     * `clock`, `version` from which it was computed, `loss`, `magnitude`.
     */
    SLACKLINE_EVENT_ARRIVED = 2,
    /**
     * At a server: a worker holds a copy of `version` or a later one; told where the scheme `reports_reads`. `worker`,
     * `version`.
     */
    SLACKLINE_EVENT_SEEN = 3,
    /**
     * At a server: what `SLACKLINE_ACTION_APPLY` asked for is done and can be read. `version`, `loss`,
     * `mean_norm_squared`, `variance`, `learning_rate`.
     */
    SLACKLINE_EVENT_APPLIED = 4,
    /**
     * At both: the time that `wake_ns` named has come.
     */
    SLACKLINE_EVENT_TIMEOUT = 5,
    /**
     * At a worker: it holds a copy that it asked for. `version`, and `clock`: all gradients of earlier clocks are in
     * it.
     */
    SLACKLINE_EVENT_HOLDS = 6,
    /**
     * At a worker: the gradient of its clock is announced, and the clock moves on by one. `magnitude`.
     */
    SLACKLINE_EVENT_PUBLISHED = 7,
    /**
     * At a worker: what it computed is abandoned, as the server asked. The clock stays.
     */
    SLACKLINE_EVENT_INTERRUPTED = 8,
    /**
     * At a worker: the server has consumed its gradients of clocks before `clock`.
     */
    SLACKLINE_EVENT_CONSUMED = 9,
    /**
     * At a worker: so many `workers` are in.
     */
    SLACKLINE_EVENT_MEMBERSHIP = 10,
    /**
     * At a server: the answer to `SLACKLINE_ACTION_WEIGH`. `worker` and `clock` of the gradient, `magnitude` of the
     * sum: the largest of its elements, which is infinite where time alone is simulated.
     */
    SLACKLINE_EVENT_WEIGHED = 11,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slackline_event slackline_event;
#else
typedef uint32_t slackline_event;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The ways in which an owner, a worker or a reader waits while there is nothing to do, for the field called `idle`.
 */
enum slackline_idle
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint64_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * It polls without pause: an event is seen at once, at the cost of a processor.
     */
    SLACKLINE_IDLE_POLL = 0,
    /**
     * It sleeps until a peer wakes it, over shared memory, TCP and RDMA, or for 20 ms at most; a worker or a reader
     * over TCP and RDMA for 100 ms at most. An owner that shares its listener with other tables polls, as does one at
     * several RDMA addresses. A publisher with `background` is not woken: it looks every millisecond, and every 20 ms
     * once it has had nothing to do for 100 ms.
     */
    SLACKLINE_IDLE_SLEEP = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slackline_idle slackline_idle;
#else
typedef uint64_t slackline_idle;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The levels of the log; a smaller number is more serious.
 */
enum slackline_log_level
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Something failed that no call could answer.
     */
    SLACKLINE_LOG_LEVEL_ERROR = 1,
    /**
     * Something that deserves a look: a peer was evicted, a connection was refused.
     */
    SLACKLINE_LOG_LEVEL_WARN = 2,
    /**
     * An event: a peer joined or left.
     */
    SLACKLINE_LOG_LEVEL_INFO = 3,
    /**
     * The reason for an event.
     */
    SLACKLINE_LOG_LEVEL_DEBUG = 4,
    /**
     * Everything.
     */
    SLACKLINE_LOG_LEVEL_TRACE = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slackline_log_level slackline_log_level;
#else
typedef uint32_t slackline_log_level;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The treatments of gradients that hold a NaN or an infinity, for the field called `non_finite`.
 */
enum slackline_non_finite
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * They are folded in as they are.
     */
    SLACKLINE_NON_FINITE_ALLOW = 0,
    /**
     * They are left out, and count as dropped.
     */
    SLACKLINE_NON_FINITE_DROP = 1,
    /**
     * They are left out, and the worker that sent one is evicted.
     */
    SLACKLINE_NON_FINITE_REFUSE = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slackline_non_finite slackline_non_finite;
#else
typedef uint32_t slackline_non_finite;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The rules by which gradients move parameters, for the field called `optimizer`. Formulas are PyTorch's.
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
 * The partitions of workers into groups, for the parameter called `partition`. `slackline_group_train` knows more of
 * them by their names.
 */
enum slackline_partition
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The number of workers is a power of the group's size; after as many rounds as the power says, every member has
     * the mean of all.
     */
    SLACKLINE_PARTITION_DIGITS = 0,
    /**
     * The two partitions of 4 workers into pairs that the code of DS-Sync's authors has.
     */
    SLACKLINE_PARTITION_AUTHORS = 1,
    /**
     * Any number of workers: as digits, with groups that lack the ranks that do not exist.
     */
    SLACKLINE_PARTITION_UNEVEN = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slackline_partition slackline_partition;
#else
typedef uint32_t slackline_partition;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The ways in which a worker reads parameters, for the field called `read`.
 */
enum slackline_read
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint64_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * It copies them into memory of its own: `slackline_worker_parameters`.
     */
    SLACKLINE_READ_COPY = 0,
    /**
     * It reads them where they lie and holds a pin while it computes, over shared memory only:
     * `slackline_worker_in_place`.
     */
    SLACKLINE_READ_IN_PLACE = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slackline_read slackline_read;
#else
typedef uint64_t slackline_read;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Whether a server goes on from its checkpoint, for the field called `resume`.
 */
enum slackline_resume
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint64_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * It begins with the initial values that it is given.
     */
    SLACKLINE_RESUME_NEVER = 0,
    /**
     * It goes on from its checkpoint if there is one. The version in its status tells.
     */
    SLACKLINE_RESUME_IF_THERE = 1,
    /**
     * It goes on from its checkpoint; that there is none is an error.
     */
    SLACKLINE_RESUME_REQUIRED = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slackline_resume slackline_resume;
#else
typedef uint64_t slackline_resume;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The part of a process in its job, for the parameter called `role`.
 */
enum slackline_role
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Holds the shard of its number: `slackline_job_server`, then `slackline_job_serve`.
     */
    SLACKLINE_ROLE_SERVER = 0,
    /**
     * Computes gradients: `slackline_job_worker`, then `slackline_job_finish`.
     */
    SLACKLINE_ROLE_WORKER = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slackline_role slackline_role;
#else
typedef uint32_t slackline_role;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The ends of a simulation, for the field called `until`.
 */
enum slackline_until
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint64_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Every worker has completed `clocks`. Not for schemes that interrupt workers.
     */
    SLACKLINE_UNTIL_CLOCKS = 0,
    /**
     * So many `versions` were made.
     */
    SLACKLINE_UNTIL_VERSIONS = 1,
    /**
     * So many `seconds` have passed.
     */
    SLACKLINE_UNTIL_SECONDS = 2,
    /**
     * The loss of the problem is `loss` or less; after `seconds` it stops anyway.
     */
    SLACKLINE_UNTIL_LOSS = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slackline_until slackline_until;
#else
typedef uint64_t slackline_until;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * One shard as a server wrote it to its checkpoint, whole and in memory of its own.
 *
 * Thread-safety: its parameters may be read by any number of threads at once, until one of them destroys it.
 */
typedef struct slackline_checkpoint slackline_checkpoint;

/**
 * A GPU of this process, in the context that the CUDA runtime uses. Objects that are made with it keep it.
 *
 * Thread-safety: one thread at a time, any thread. A call while another thread is in one is
 * `SLACKLINE_STATUS_OUT_OF_TURN` and does nothing; destroying it meanwhile is undefined.
 */
typedef struct slackline_gpu slackline_gpu;

/**
 * One member of a group whose members all hold all parameters and average them in rounds, without a server. One round
 * is: change the parameters, then average. A thread of its own tells the others that it lives, however long it
 * computes.
 *
 * Thread-safety: one thread at a time, any thread. A call while another thread is in one is
 * `SLACKLINE_STATUS_OUT_OF_TURN` and does nothing; destroying it meanwhile is undefined.
 */
typedef struct slackline_group slackline_group;

/**
 * One process's part in a job of many processes that one launcher has started, torchrun, Slurm, Open MPI, MPICH or
 * `slackline launch`, or to which the program itself gives ranks. At rank 0 a thread keeps the rendezvous of the
 * job.
 *
 * Thread-safety: one thread at a time, any thread. A call while another thread is in one is
 * `SLACKLINE_STATUS_OUT_OF_TURN` and does nothing; destroying it meanwhile is undefined.
 */
typedef struct slackline_job slackline_job;

/**
 * Several steps of plain SGD on a worker's own copy of the parameters, which count as one gradient: the change of the
 * copy, divided by the size of a step, so that the server's step changes its parameters in the same way.
 *
 * Thread-safety: one thread at a time, any thread. A call while another thread is in one is
 * `SLACKLINE_STATUS_OUT_OF_TURN` and does nothing; destroying it meanwhile is undefined.
 */
typedef struct slackline_local_steps slackline_local_steps;

/**
 * Publishes versions of a table that its owner made itself. Unless `background` was set in its options, it has no
 * thread that looks after readers: it does while `slackline_publisher_progress`, `serve`, `wait` or `publish` is
 * called, which must be more often than the lease.
 *
 * Thread-safety: one thread at a time, any thread. A call while another thread is in one is
 * `SLACKLINE_STATUS_OUT_OF_TURN` and does nothing; destroying it meanwhile is undefined.
 */
typedef struct slackline_publisher slackline_publisher;

/**
 * Reads versions of one publisher's table, or of one server's shard. A thread of its own tells the owner that it
 * lives.
 *
 * Thread-safety: one thread at a time, any thread. A call while another thread is in one is
 * `SLACKLINE_STATUS_OUT_OF_TURN` and does nothing; destroying it meanwhile is undefined.
 */
typedef struct slackline_reader slackline_reader;

/**
 * Reads each version of a publisher or of another relay, and serves it to readers of its own: the same version with
 * the same number, tag, time and origin. A thread of the library does all of this.
 *
 * Thread-safety: one thread at a time, any thread. A call while another thread is in one is
 * `SLACKLINE_STATUS_OUT_OF_TURN` and does nothing; destroying it meanwhile is undefined.
 */
typedef struct slackline_relay slackline_relay;

/**
 * Holds one shard of the parameters and folds workers' gradients into it. It has no thread that looks after peers: it
 * works while `slackline_server_progress` or `slackline_server_serve` is called, which must be far more often than
 * the lease.
 *
 * Thread-safety: one thread at a time, any thread. A call while another thread is in one is
 * `SLACKLINE_STATUS_OUT_OF_TURN` and does nothing; destroying it meanwhile is undefined.
 */
typedef struct slackline_server slackline_server;

/**
 * One whole version in memory of its own, which stays as it is until it is destroyed: a program serves one and reads
 * the next meanwhile. It may outlive its reader.
 *
 * Thread-safety: its bytes may be read by any number of threads at once, until one of them destroys it.
 */
typedef struct slackline_snapshot slackline_snapshot;

/**
 * One address at which several publishers serve a table each, by name: the adapters of a model, say.
 *
 * Thread-safety: one thread at a time, any thread. A call while another thread is in one is
 * `SLACKLINE_STATUS_OUT_OF_TURN` and does nothing; destroying it meanwhile is undefined.
 */
typedef struct slackline_tables slackline_tables;

/**
 * Reads parameters and publishes gradients. One clock is: begin, compute on the parameters, write the gradient,
 * publish. A thread of its own tells the servers that it lives, however long it computes.
 *
 * Thread-safety: one thread at a time, any thread. A call while another thread is in one is
 * `SLACKLINE_STATUS_OUT_OF_TURN` and does nothing; destroying it meanwhile is undefined.
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
 * Computes a gradient: writes the `len` values of it to `gradient`, which holds anything, and the loss to `loss`,
 * which is 0. `parameters` are as many, and `context` is the caller's own. `step` is the number of the step. It
 * returns 0; any other value gives up, and its gradient does not count. It returns without `longjmp` or an
 * exception.
 */
typedef uint32_t (*slackline_compute)(void *context,
                                      uint64_t step,
                                      const float *parameters,
                                      float *gradient,
                                      size_t len,
                                      float *loss);

/**
 * Called once, by any thread, when the library uses memory of the caller's no more, with the `context` that was
 * given. It returns soon and calls no function of this library.
 */
typedef void (*slackline_release)(void *context);

/**
 * A range of memory of a GPU, and the stream with which its copies are ordered.
 *
 * The range stays allocated until `release` is called: once, also if the call that it is given to fails, when no copy
 * uses it any more. That a copy is over which nothing waits for is noticed by the next copy of that GPU the same way,
 * or when the GPU is closed: no program should wait for `release`. Neither `pointer` nor `bytes` need any alignment.
 * Where it is for the frames of a publisher, `gpu_memory` of its options says when `release` is called.
 */
typedef struct slackline_gpu_range {
    /**
     * The GPU that the memory is on. A call that is given the range uses the handle: threads open one each.
     */
    const struct slackline_gpu *gpu;
    /**
     * The address of the first byte: of `cudaMalloc`, `cuMemCreate` or a tensor.
     */
    uint64_t pointer;
    /**
     * Length in bytes, at least 1.
     */
    size_t bytes;
    /**
     * A `cudaStream_t` or `CUstream` of the context that the CUDA runtime uses, which lives until the call returns;
     * NULL is the default stream. The default stream of each thread is not taken.
     */
    void *stream;
    /**
     * May be NULL.
     */
    slackline_release release;
    /**
     * The argument of `release`.
     */
    void *context;
} slackline_gpu_range;

/**
 * The copy that a reader holds after a refresh. Set `size` before the call that fills it.
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
     * Number of versions by which it is behind the newest.
     */
    uint64_t behind;
    /**
     * The epoch of the owner's incarnation: another number after it was started again.
     */
    uint64_t epoch;
    /**
     * Copies begun again because the frame changed under them.
     */
    uint64_t retries;
    /**
     * 0 if the copy at hand was fresh enough and nothing was read but the number of the newest version.
     */
    uint32_t copied;
    /**
     * The publisher's own number for the version (`struct slackline_tag`); 0 from a server.
     */
    uint64_t step;
    /**
     * The publisher's own words about the version; zeros from a server.
     */
    uint8_t label[SLACKLINE_LABEL_BYTES];
    /**
     * The time at which it was published, in nanoseconds since 1970 by the clock of the publisher's host; 0 from a
     * server.
     */
    uint64_t published_ns;
    /**
     * The epoch of the publisher that made the version: another one than `epoch` behind a relay. 0 from a server, and
     * behind a relay of a server the epoch of that server.
     */
    uint64_t origin;
} slackline_fresh;

/**
 * Settings of a group, the same in all its members. Set `size`, call `slackline_group_options_init`, then change
 * fields.
 */
typedef struct slackline_group_options {
    /**
     * `sizeof(struct slackline_group_options)`.
     */
    size_t size;
    /**
     * The time in milliseconds after which a silent member is taken for dead; by default 3000.
     */
    uint64_t lease_ms;
    /**
     * Not 0: each part carries a checksum. By default 0.
     */
    uint64_t checksums;
    /**
     * Names the job: members of different ones refuse each other. By default 0.
     */
    uint64_t run;
    /**
     * The secret that all processes of the job know, 16 to 4096 bytes of UTF-8 and a zero; needed over TCP and RDMA
     * beyond this host. By default NULL: see `secret_file`.
     */
    const char *secret;
    /**
     * The path of a file of mode 600 with the secret in it. By default NULL: if `secret` is NULL as well, it comes
     * from the file that the variable SLACKLINE_SECRET_FILE names, or else from the text in SLACKLINE_SECRET.
     */
    const char *secret_file;
    /**
     * Not 0: parameters are encrypted over TCP, and not only the handshakes. This needs a secret. Peers
     * that do not encrypt are refused, and RDMA is `SLACKLINE_STATUS_UNSUPPORTED`. By default 0: they are encrypted if
     * SLACKLINE_TCP_ENCRYPT is 1.
     */
    uint64_t encrypt;
} slackline_group_options;

/**
 * The result of a round. Set `size` before the call that fills it.
 */
typedef struct slackline_averaged {
    /**
     * `sizeof(struct slackline_averaged)`.
     */
    size_t size;
    /**
     * The round.
     */
    uint64_t round;
    /**
     * Number of members whose parameters are in the mean, this member among them.
     */
    uint64_t members;
    /**
     * 1 if there is no mean, because a member died or gave up in the middle of the round: the parameters are as
     * before.
     */
    uint64_t skipped;
} slackline_averaged;

/**
 * The state of a member of a group. Set `size` before the call that fills it.
 */
typedef struct slackline_group_status {
    /**
     * `sizeof(struct slackline_group_status)`.
     */
    size_t size;
    /**
     * This member's rank.
     */
    uint64_t rank;
    /**
     * Number of members at the beginning.
     */
    uint64_t members;
    /**
     * Number of members that are still there, this one among them.
     */
    uint64_t alive;
    /**
     * Rounds that ended, skipped ones among them.
     */
    uint64_t rounds;
    /**
     * Rounds without a mean.
     */
    uint64_t skipped;
    /**
     * Number of times that a round began again without a member that was gone.
     */
    uint64_t restarts;
    /**
     * Parts that were written again while they were read.
     */
    uint64_t retries;
    /**
     * Bytes of parameters written to others.
     */
    uint64_t bytes;
    /**
     * Nanoseconds in rounds.
     */
    uint64_t wait_ns;
} slackline_group_status;

/**
 * The plan of a job, the same in all its processes. Set `size`, call `slackline_job_options_init`, then change
 * fields.
 */
typedef struct slackline_job_options {
    /**
     * `sizeof(struct slackline_job_options)`.
     */
    size_t size;
    /**
     * The number of servers: the first ranks, one for each shard. The other ranks are workers. By default 1.
     */
    uint64_t servers;
    /**
     * The longest time that any wait of the job takes; by default 60000.
     */
    uint64_t timeout_ms;
    /**
     * "shm", "verbs" or "tcp": the one transport that all pairs must use. By default NULL: the best of each pair.
     */
    const char *transport;
    /**
     * Not 0: the job goes on without a server that was lost, until it comes back with its checkpoint or the timeout
     * passes; workers then call `slackline_job_reconnect`. By default 0.
     */
    uint64_t reconnect;
    /**
     * One of `enum slackline_resume`, for servers with a `checkpoint_folder`; by default never: a checkpoint that an
     * earlier run left is an error. A server that replaces a lost one resumes from its checkpoint in any case.
     */
    uint64_t resume;
    /**
     * Not 0: the first worker of each host stands for all workers there at the servers, which see one worker and one
     * gradient of it; the workers of a host reach each other over shared memory. Under "bsp", with servers, and
     * without `reconnect`. By default 0.
     */
    uint64_t per_host;
    /**
     * The secret that all processes of the job know, 16 to 4096 bytes of UTF-8 and a zero; needed beyond one host. By
     * default NULL: see `secret_file`.
     */
    const char *secret;
    /**
     * The path of a file of mode 600 with the secret in it. By default NULL: if `secret` is NULL as well, it comes
     * from the file that the variable SLACKLINE_SECRET_FILE names, or else from the text in SLACKLINE_SECRET.
     */
    const char *secret_file;
    /**
     * Not 0: parameters and gradients are encrypted over TCP, and not only the handshakes. This needs a secret. The
     * job then has no RDMA. By default 0: they are encrypted if SLACKLINE_TCP_ENCRYPT is 1.
     */
    uint64_t encrypt;
    /**
     * The GPU of this process, for the payloads that it serves or works with: see `slackline_gpu_open`. If the RDMA
     * devices of a server do not reach its GPU, other hosts reach it over TCP; with "verbs" as `transport` its
     * payloads are in host memory instead. By default NULL: there is none.
     */
    const struct slackline_gpu *gpu;
} slackline_job_options;

/**
 * Settings of a server. Set `size`, call `slackline_server_options_init`, then change fields.
 */
typedef struct slackline_server_options {
    /**
     * `sizeof(struct slackline_server_options)`.
     */
    size_t size;
    /**
     * "bsp", "asp", "ssp(3)" or another scheme that `slackline train --help` names, with its settings in
     * parentheses, or one of `slackline_scheme_register`; by default "bsp". Workers must run the same.
     */
    const char *scheme;
    /**
     * Most clocks that a worker's copy may be behind, for schemes that take a staleness and have none in their text;
     * by default `SLACKLINE_NO_STALENESS`.
     */
    uint64_t staleness;
    /**
     * Number of workers in the job: nothing is applied before that many have joined. By default 1.
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
     * The number of the shard that this server holds; by default 0.
     */
    uint16_t shard;
    /**
     * Number of shards into which the table is cut; by default 1.
     */
    uint16_t shards;
    /**
     * Most peers at a time, workers and readers together; by default 64. In a job there is room for its workers and
     * servers in any case.
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
     * The time in milliseconds after which a silent peer is taken for dead; by default 3000.
     */
    uint64_t lease_ms;
    /**
     * One of `enum slackline_non_finite`, for gradients that hold a NaN or an infinity; by default they are allowed.
     */
    uint32_t non_finite;
    /**
     * The secret that all processes of the job know, 16 to 4096 bytes of UTF-8 and a zero; needed over TCP and RDMA
     * beyond this host. By default NULL: see `secret_file`.
     */
    const char *secret;
    /**
     * The path of a file of mode 600 with the secret in it. By default NULL: if `secret` is NULL as well, it comes
     * from the file that the variable SLACKLINE_SECRET_FILE names, or else from the text in SLACKLINE_SECRET.
     */
    const char *secret_file;
    /**
     * The folder for the server's checkpoint, a file `shard-S-of-N.safetensors` and the one before it; the servers of
     * a job may share the folder. By default NULL: no checkpoints.
     */
    const char *checkpoint_folder;
    /**
     * Number of versions after which a thread of its own writes the next checkpoint; with 0 one is written only when
     * `slackline_server_checkpoint` is called. By default 0.
     */
    uint64_t checkpoint_every;
    /**
     * One of `enum slackline_resume`; by default never.
     */
    uint64_t resume;
    /**
     * One of `enum slackline_damping`; by default none.
     */
    uint64_t damping;
    /**
     * One of `enum slackline_idle`; by default it polls.
     */
    uint64_t idle;
    /**
     * Not 0: norm and variance of gradients are measured, though the scheme has no use for them. By default 0.
     */
    uint64_t measure_moments;
    /**
     * How the step size falls with the number of the version: "constant", "steps(100, 0.1)" (a tenth after each 100
     * versions), "inverse-root(100)" (`1 / sqrt(1 + version / 100)` of the first one) or "cosine(100)" (to 0 at
     * version 100). By default NULL: it is constant.
     */
    const char *schedule;
    /**
     * Not 0: each gradient counts whole, and the step size is not shared among the workers, so that updates add up as
     * counts do. It is for schemes that fold every gradient in. By default 0.
     */
    uint64_t additive;
    /**
     * Not 0: parameters and gradients are encrypted over TCP, and not only the handshakes. This needs a secret.
     * Peers that do not encrypt are refused, and RDMA is `SLACKLINE_STATUS_UNSUPPORTED`. By default 0: they are
     * encrypted if SLACKLINE_TCP_ENCRYPT is 1.
     */
    uint64_t encrypt;
    /**
     * The GPU that the parameters, the states and the gradients are on, and that folds them: over shared memory, TCP,
     * and RDMA if the device reaches the GPU. If it does not, they are in the memory of the host. See
     * `slackline_gpu_open`. By default NULL: they are in the memory of the host. `slackline_job_server` does not look
     * at it.
     */
    const struct slackline_gpu *gpu;
} slackline_server_options;

/**
 * Settings of a worker. Set `size`, call `slackline_worker_options_init`, then change fields.
 */
typedef struct slackline_worker_options {
    /**
     * `sizeof(struct slackline_worker_options)`.
     */
    size_t size;
    /**
     * The servers' scheme, which is refused if they run another. By default NULL: the worker asks the servers.
     */
    const char *scheme;
    /**
     * The servers' staleness, if `scheme` is set and has none in its text; by default `SLACKLINE_NO_STALENESS`.
     */
    uint64_t staleness;
    /**
     * One of `enum slackline_element`: how gradients travel; by default f32.
     */
    uint32_t encoding;
    /**
     * Not 0: gradients carry checksums, and the checksums of parameters are checked. By default 0.
     */
    uint32_t checksums;
    /**
     * The secret that all processes of the job know, 16 to 4096 bytes of UTF-8 and a zero; needed over TCP and RDMA
     * beyond this host. By default NULL: see `secret_file`.
     */
    const char *secret;
    /**
     * The path of a file of mode 600 with the secret in it. By default NULL: if `secret` is NULL as well, it comes
     * from the file that the variable SLACKLINE_SECRET_FILE names, or else from the text in SLACKLINE_SECRET.
     */
    const char *secret_file;
    /**
     * One of `enum slackline_read`; by default it copies.
     */
    uint64_t read;
    /**
     * A number from 1 to 4294967295 that names this worker among the workers of its servers. A worker that is
     * started again with the same number is the same worker to the servers: no gradient of one clock of it is
     * applied twice. By default 0: a random name that no other worker has. `slackline_job_worker` does not look at
     * it.
     */
    uint64_t identity;
    /**
     * The step with which this worker's view takes the worker's own gradients: `parameters -= own_step * gradient`.
     * The view then holds all published gradients of the worker at once; for plain SGD `own_step` is the learning rate
     * over the number of workers. By default 0: the view is the servers' parameters.
     */
    double own_step;
    /**
     * One of `enum slackline_idle`: how it waits for parameters and for its gradients; by default it polls.
     */
    uint64_t idle;
    /**
     * Not 0: parameters and gradients are encrypted over TCP, and not only the handshakes. This needs a secret.
     * Peers that do not encrypt are refused, and RDMA is `SLACKLINE_STATUS_UNSUPPORTED`. By default 0: they are
     * encrypted if SLACKLINE_TCP_ENCRYPT is 1.
     */
    uint64_t encrypt;
    /**
     * The GPU that `slackline_worker_publish_from_gpu` publishes from: see `slackline_gpu_open`. By default NULL:
     * there is none. `slackline_job_worker` does not look at it.
     */
    const struct slackline_gpu *gpu;
} slackline_worker_options;

/**
 * Receives one line of the log: its level, one of `enum slackline_log_level`, its text without a line end, and the
 * pointer that was given with the function. The text is valid during the call only. It is called by any thread, also
 * by several at once and by the library's own, and must neither block nor call a function of this library.
 */
typedef void (*slackline_log_function)(uint32_t level, const char *text, void *user);

/**
 * Settings of a publisher. Set `size`, call `slackline_publisher_options_init`, then change fields.
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
     * The time in milliseconds after which a silent reader is taken for dead; by default 3000.
     */
    uint64_t lease_ms;
    /**
     * The secret that all processes of the job know, 16 to 4096 bytes of UTF-8 and a zero; needed over TCP and RDMA
     * beyond this host. By default NULL: see `secret_file`.
     */
    const char *secret;
    /**
     * The path of a file of mode 600 with the secret in it. By default NULL: if `secret` is NULL as well, it comes
     * from the file that the variable SLACKLINE_SECRET_FILE names, or else from the text in SLACKLINE_SECRET.
     */
    const char *secret_file;
    /**
     * One of `enum slackline_idle`; by default it polls.
     */
    uint64_t idle;
    /**
     * Not 0: a thread of the library looks after the readers, so that no call has to. By default 0.
     */
    uint64_t background;
    /**
     * The version at which it begins, all zeros; by default 0. The successor of a publisher that is lost begins at
     * that one's last version.
     */
    uint64_t begin_at;
    /**
     * The number of differences between successive versions that are kept for readers which hold an older version, at
     * most 255; by default 0. Readers use them by themselves.
     */
    uint64_t deltas;
    /**
     * Most bytes of one difference: a version that differs by more is read whole. By default 0, which stands for a
     * sixteenth of the table.
     */
    uint64_t delta_bytes;
    /**
     * The name of the table, UTF-8 and a zero, by which readers ask for it; of a relay also by which it asks for it.
     * By default NULL: it has none. For several tables at one address see `slackline_tables_listen`.
     */
    const char *table;
    /**
     * Relays that read from it, at least 1, where a publisher arranges a tree; by default 2. See
     * `slackline_relay_join`.
     */
    uint64_t branches;
    /**
     * The number of bytes at multiples of which the tensors begin, a power of two of at most 4096: DLPack asks for
     * 256. By default 0: each begins at a multiple of its element size. A relay has its owner's.
     * `slackline_publisher_tensor_range` says where each lies.
     */
    uint64_t alignment;
    /**
     * Not 0: versions are encrypted over TCP, and not only the handshakes. This needs a secret. Peers
     * that do not encrypt are refused, and RDMA is `SLACKLINE_STATUS_UNSUPPORTED`. By default 0: they are encrypted if
     * SLACKLINE_TCP_ENCRYPT is 1.
     */
    uint64_t encrypt;
    /**
     * The GPU that the frames are on: over shared memory, TCP, and RDMA if the device reaches the GPU. If it does not,
     * they are in the memory of the host. See `slackline_gpu_open`. A publisher of tables and a relay have none. By
     * default NULL: they are in the memory of the host.
     */
    const struct slackline_gpu *gpu;
    /**
     * Memory of the caller's on that GPU for the frames; it is read during the call. The range has exactly `frames`
     * times the bytes of the table, which are rounded up to a multiple of 4096. It is cleared, behind the work that
     * its stream has at the time of the call, and from then on only written by way of the publisher. The call waits
     * for that, and is `SLACKLINE_STATUS_DEADLINE` if it takes more than 30 seconds. Over shared memory it is of
     * `cudaMalloc`, which other processes open where it lies. `release` is called after the publisher is destroyed,
     * once no copy uses the memory and no reader has it open any more; also if the call fails, unless the options
     * cannot be read or `publisher` is NULL. A publisher of tables and a relay take none. By default NULL: the frames
     * are in memory of the library's own.
     */
    const struct slackline_gpu_range *gpu_memory;
} slackline_publisher_options;

/**
 * The state of a publisher. Set `size` before the call that fills it.
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
    /**
     * The epoch of this incarnation of the publisher: another number after it was started again.
     */
    uint64_t epoch;
} slackline_publisher_status;

/**
 * Settings of a reader. Set `size`, call `slackline_reader_options_init`, then change fields.
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
    /**
     * The secret that all processes of the job know, 16 to 4096 bytes of UTF-8 and a zero; needed over TCP and RDMA
     * beyond this host. By default NULL: see `secret_file`.
     */
    const char *secret;
    /**
     * The path of a file of mode 600 with the secret in it. By default NULL: if `secret` is NULL as well, it comes
     * from the file that the variable SLACKLINE_SECRET_FILE names, or else from the text in SLACKLINE_SECRET.
     */
    const char *secret_file;
    /**
     * The name of the table to read, UTF-8 and a zero, where its owner has one for it. By default NULL: it has none.
     */
    const char *table;
    /**
     * Not 0: the address belongs to a publisher whose relays are in a tree. The publisher says which owner this reader
     * reads from, each time that it connects. By default 0.
     */
    uint64_t in_tree;
    /**
     * One of `enum slackline_idle`: how it waits for a version; by default it polls.
     */
    uint64_t idle;
    /**
     * Not 0: it begins to copy a version that it waits for while a server still writes it, piece by piece, and has it
     * sooner. A version is lent only once it is whole, and a selection is never read so. By default 0.
     */
    uint64_t follow;
    /**
     * Not 0: versions are encrypted over TCP, and not only the handshakes. This needs a secret. Peers
     * that do not encrypt are refused, and RDMA is `SLACKLINE_STATUS_UNSUPPORTED`. By default 0: they are encrypted if
     * SLACKLINE_TCP_ENCRYPT is 1.
     */
    uint64_t encrypt;
    /**
     * The GPU that `slackline_reader_pull_to_gpu` copies to: see `slackline_gpu_open`. By default NULL: there is none.
     */
    const struct slackline_gpu *gpu;
} slackline_reader_options;

/**
 * The needs and promises of a scheme, as a callback answers them. The library has set all fields to their defaults:
 * those of `base`, or without one those that are said here.
 */
typedef struct slackline_scheme_needs {
    /**
     * The bytes of this struct as the library knows it, to be left alone.
     */
    size_t size;
    /**
     * Most clocks that a copy may be behind its reader, which the simulator holds the scheme to; by default
     * `SLACKLINE_NO_STALENESS`.
     */
    uint64_t staleness;
    /**
     * Gradients that a worker may have on their way, 1 to 65535; by default 2.
     */
    uint64_t slots;
    /**
     * Not 0: workers take copies that the server pushes. By default 0.
     */
    uint64_t pushes;
    /**
     * Not 0: the server interrupts workers. By default 0.
     */
    uint64_t interrupts;
    /**
     * Not 0: workers wait for `SLACKLINE_EVENT_CONSUMED`. By default 0.
     */
    uint64_t waits_for_own;
    /**
     * Not 0: the server is told `SLACKLINE_EVENT_SEEN`. By default 0.
     */
    uint64_t reports_reads;
    /**
     * Not 0: the largest magnitude of each gradient is measured. By default 0.
     */
    uint64_t measures_magnitude;
    /**
     * Not 0: norm and variance of gradients are measured. By default 0.
     */
    uint64_t measures_moments;
    /**
     * Not 0: each gradient is folded in, those of one worker in the order of their clocks, which the simulator holds
     * the scheme to. By default 0.
     */
    uint64_t folds_all_in_order;
    /**
     * Not 0: decisions are about versions, so that of several servers one decides for all (`slackline_server_follow`).
     * By default 0.
     */
    uint64_t counts_versions;
    /**
     * Not 0: the server asks for `SLACKLINE_ACTION_WEIGH`. A simulation answers; a server keeps no updates, and
     * refuses the scheme. By default 0.
     */
    uint64_t weighs_updates;
} slackline_scheme_needs;

/**
 * The state with which a server's half begins; all 0 for that of a worker.
 */
typedef struct slackline_scheme_start {
    /**
     * The bytes of this struct as the library knows it.
     */
    size_t size;
    /**
     * Workers of the job. No action is asked for before so many different ones have joined.
     */
    uint64_t workers;
    /**
     * The clock at which workers begin.
     */
    uint64_t clock;
    /**
     * The version that workers find.
     */
    uint64_t version;
} slackline_scheme_start;

/**
 * An event, as a callback is given it. Fields that its kind does not set are 0, or NaN where they are numbers with a
 * fraction; those may be NaN in any case, where they were not measured.
 */
typedef struct slackline_scheme_event {
    /**
     * The bytes of this struct as the library knows it: a later library has more of them.
     */
    size_t size;
    /**
     * One of `enum slackline_event`.
     */
    uint32_t kind;
    /**
     * The worker, by a small number; that of a worker that has left is given to the next one that comes.
     */
    uint32_t worker;
    /**
     * The time, in nanoseconds since some moment; only grows. In a simulation it is virtual.
     */
    uint64_t now_ns;
    /**
     * A clock.
     */
    uint64_t clock;
    /**
     * A version.
     */
    uint64_t version;
    /**
     * 1 if the worker was in before, perhaps by another number.
     */
    uint64_t returns;
    /**
     * Number of workers.
     */
    uint64_t workers;
    /**
     * The loss that came with the gradient, or the mean of those in an update.
     */
    double loss;
    /**
     * Largest magnitude of a gradient's elements, where the scheme `measures_magnitude`; or of the updates that were
     * weighed.
     */
    double magnitude;
    /**
     * Squared Euclidean norm of the mean gradient, where the scheme `measures_moments`.
     */
    double mean_norm_squared;
    /**
     * Trace of the covariance of one gradient, where the scheme `measures_moments`.
     */
    double variance;
    /**
     * The step size that the update was made with.
     */
    double learning_rate;
} slackline_scheme_event;

/**
 * A gradient's part in an update.
 */
typedef struct slackline_share {
    /**
     * The worker that computed it.
     */
    uint32_t worker;
    /**
     * The weight of the gradient in the sum.
     */
    float weight;
    /**
     * The clock in which it was computed.
     */
    uint64_t clock;
} slackline_share;

/**
 * An action, as a callback answers it. The library has set all fields to their defaults.
 */
typedef struct slackline_scheme_action {
    /**
     * The bytes of this struct as the library knows it, to be left alone: a later library has more of them.
     */
    size_t size;
    /**
     * One of `enum slackline_action`; by default none.
     */
    uint32_t kind;
    /**
     * The worker; by default 0.
     */
    uint32_t worker;
    /**
     * A clock; by default 0.
     */
    uint64_t clock;
    /**
     * A version; by default 0.
     */
    uint64_t version;
    /**
     * `share_count` gradients with their weights, in any order; they stay where they are until the next callback of
     * this half. By default NULL.
     */
    const struct slackline_share *shares;
    /**
     * Number of shares; by default 0.
     */
    size_t share_count;
    /**
     * The time at which this half is to be told `SLACKLINE_EVENT_TIMEOUT`, on the scale of `now_ns`. It holds until
     * then, or until another is named, and is later than the last such event; by default 0: none is.
     */
    uint64_t wake_ns;
    /**
     * Of a server, for its status only: the number of gradients that the next version waits for; by default 0: it is
     * not chosen.
     */
    uint64_t waits_for;
    /**
     * Of a server, for its status only: most versions that a gradient may be behind by now; by default
     * `SLACKLINE_NO_STALENESS`.
     */
    uint64_t staleness_bound;
} slackline_scheme_action;

/**
 * The callbacks of one half of a scheme: a state machine that is told events and asked for actions, and knows no
 * memory, thread or wall clock. All are set but `destroy`, which may be NULL; or none is, and `base` has the half.
 *
 * Each answers NULL, or a text that says why it failed, which is read at once: then the call that runs the half ends
 * with `SLACKLINE_STATUS_SCHEME`, and nothing but `destroy` is called again.
 */
typedef struct slackline_scheme_half {
    /**
     * Makes a half: writes a pointer of its own, which may be NULL, to `half`. One that failed is not destroyed.
     */
    const char *(*create)(void *context,
                          const char *settings,
                          const struct slackline_scheme_start *start,
                          void **half);
    /**
     * Takes note of an event.
     */
    const char *(*event)(void *half, const struct slackline_scheme_event *event);
    /**
     * Asks for the next action, again and again until it is none.
     */
    const char *(*action)(void *half, struct slackline_scheme_action *action);
    /**
     * Frees a half.
     */
    void (*destroy)(void *half);
} slackline_scheme_half;

/**
 * A scheme that is written in C. Set `size` and the fields that it needs, and leave the others zero.
 *
 * Thread-safety: one half is used by one thread at a time, the one that calls the server's or the worker's functions;
 * different halves, and `needs`, may be called by several threads at once. A callback returns, soon and without
 * `longjmp` or an exception, and calls no function of this library that takes an object.
 */
typedef struct slackline_scheme {
    /**
     * `sizeof(struct slackline_scheme)`.
     */
    size_t size;
    /**
     * The name, which no other scheme has; copied. Without "(" and control codes.
     */
    const char *name;
    /**
     * A built-in scheme with its settings, such as "asp": it has the half that has no callbacks here, and the needs by
     * default. By default NULL: there is none.
     */
    const char *base;
    /**
     * Passed through to `needs` and `create`; it is used until the process ends. By default NULL.
     */
    void *context;
    /**
     * Says whether such `settings` can be (the text between the parentheses behind the name, which travels from the
     * servers to the workers) and what the scheme needs under them; it answers as the callbacks of a half. By default
     * NULL: there are no settings, and the needs are the default.
     */
    const char *(*needs)(void *context, const char *settings, struct slackline_scheme_needs *needs);
    /**
     * The half beside each server.
     */
    struct slackline_scheme_half server;
    /**
     * The half beside each worker.
     */
    struct slackline_scheme_half worker;
} slackline_scheme;

/**
 * The state of a server. Set `size` before the call that fills it.
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
     * Peers that were refused.
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
    /**
     * Gradients that were announced, and void because their worker left before they were folded in or dropped.
     */
    uint64_t voided;
    /**
     * Gradients that held a NaN or an infinity, folded in or not.
     */
    uint64_t non_finite;
    /**
     * The version of the newest checkpoint that is safely on the disk; `SLACKLINE_NO_VERSION` before the first.
     */
    uint64_t checkpointed;
    /**
     * Checkpoints that could not be written.
     */
    uint64_t checkpoints_failed;
    /**
     * Interrupts sent to workers: see `slackline_worker_should_stop`.
     */
    uint64_t interrupts;
    /**
     * The epoch of this incarnation of the server: another number after it was started again.
     */
    uint64_t epoch;
    /**
     * Gradients in the newest version.
     */
    uint64_t gradients;
    /**
     * The first version with a parameter that is NaN or infinite; `SLACKLINE_NO_VERSION` if there is none. From then
     * on no checkpoint is written.
     */
    uint64_t diverged;
    /**
     * Peers that were evicted because their words broke the protocol.
     */
    uint64_t misbehaved;
    /**
     * Updates that were lost with the incarnation before, as workers that came back tell it.
     */
    uint64_t lost_updates;
    /**
     * Number of gradients that the next version waits for; 0 where the scheme does not choose that number.
     */
    uint64_t waits_for;
    /**
     * Squared Euclidean norm of the mean gradient of the newest version that has told one; NaN if none has, as where
     * neither the scheme nor `measure_moments` asks for it.
     */
    double mean_norm_squared;
    /**
     * Trace of the covariance of one gradient, as `mean_norm_squared`.
     */
    double variance;
    /**
     * 1 if the server of shard 0 decides for this one: see `slackline_server_follow`.
     */
    uint64_t follows;
    /**
     * Gradients in the decider's versions that this server, which follows it, does not have: it was lost and began
     * again after they were announced.
     */
    uint64_t missing;
    /**
     * Accesses of peers to memory that they were not granted; each one ended its connection.
     */
    uint64_t access_violations;
    /**
     * Most versions by which a gradient's parameters may be behind now; `SLACKLINE_NO_STALENESS` where the scheme does
     * not bound that.
     */
    uint64_t staleness_bound;
    /**
     * RDMA devices side by side that connections have lost, and gone on over the others.
     */
    uint64_t rails_lost;
    /**
     * The sum, over the gradients that this incarnation folded in, of the versions between the version that a gradient
     * was computed on and the version that it is in.
     */
    uint64_t versions_behind;
    /**
     * Gradients of this incarnation that were computed on the version right before the version that they are in.
     */
    uint64_t fresh;
} slackline_server_status;

/**
 * A job to simulate. Set `size`, call `slackline_simulate_options_init`, change what should differ.
 *
 * Times are texts: "1", "exp(1)" (mean), "shifted-exp(0.5, 0.5)" (shift, and mean of the rest), "pareto(2, 0.5)"
 * (shape and scale), "uniform(0.5, 1.5)", or "trace:FILE", in seconds.
 */
typedef struct slackline_simulate_options {
    /**
     * `sizeof(struct slackline_simulate_options)`.
     */
    size_t size;
    /**
     * The scheme, as a server's; "ds-sync", which has no server, can be simulated, too. By default "bsp".
     */
    const char *scheme;
    /**
     * Number of workers; by default 1.
     */
    uint64_t workers;
    /**
     * Everything random follows from it; by default 1.
     */
    uint64_t seed;
    /**
     * The time that a gradient takes; by default "1".
     */
    const char *compute;
    /**
     * The time that each message takes, one way; by default "0".
     */
    const char *latency;
    /**
     * Bytes per second of each worker's link, each way; by default 0: without limit.
     */
    double worker_bandwidth;
    /**
     * Bytes per second of the server's link, each way; by default 0: without limit.
     */
    double server_bandwidth;
    /**
     * Bytes of a gradient, and of a copy of the parameters; by default 0: four for each parameter.
     */
    uint64_t message_bytes;
    /**
     * Number of parameters of a quadratic problem that the workers learn; by default 0: time alone is simulated.
     */
    uint64_t parameters;
    /**
     * The ratio of the greatest curvature of the problem to the smallest; by default 10.
     */
    double condition;
    /**
     * The variance of a gradient, summed over its elements; by default 1.
     */
    double variance;
    /**
     * The step size of SGD; by default 0.1.
     */
    double learning_rate;
    /**
     * One of `enum slackline_damping`; by default none.
     */
    uint64_t damping;
    /**
     * One of `enum slackline_until`; by default clocks.
     */
    uint64_t until;
    /**
     * By default 100.
     */
    uint64_t clocks;
    /**
     * By default 100.
     */
    uint64_t versions;
    /**
     * By default 10000.
     */
    double seconds;
    /**
     * By default 0.1.
     */
    double loss;
    /**
     * As of `struct slackline_server_options`; without a server it counts the worker's steps. By default NULL: the
     * step size is constant.
     */
    const char *schedule;
    /**
     * Not 0: each gradient counts whole, as of `struct slackline_server_options`. By default 0.
     */
    uint64_t additive;
    /**
     * Not 0: workers see their own gradients before the server has folded them in. It is for SGD without momentum. By
     * default 0.
     */
    uint64_t read_my_writes;
    /**
     * The momentum of SGD, from 0 to below 1; by default 0: plain SGD.
     */
    double momentum;
    /**
     * The weight decay of SGD, an L2 penalty; by default 0.
     */
    double weight_decay;
} slackline_simulate_options;

/**
 * The result of a simulation. Times are virtual, in seconds. Set `size` before the call that fills it.
 */
typedef struct slackline_simulate_report {
    /**
     * `sizeof(struct slackline_simulate_report)`.
     */
    size_t size;
    /**
     * The time at which it ended.
     */
    double end;
    /**
     * The time at which the loss was reached; NaN if it was not, or none was asked for.
     */
    double reached;
    /**
     * Updates applied; without a server, rounds that all workers have averaged.
     */
    uint64_t versions;
    /**
     * Gradients that all workers have published.
     */
    uint64_t gradients;
    /**
     * Gradients that were consumed without being folded in.
     */
    uint64_t dropped;
    /**
     * Computations that were abandoned because the server asked.
     */
    uint64_t interrupted;
    /**
     * Bytes of all gradients and copies.
     */
    uint64_t bytes;
    /**
     * The time of all workers over the clocks that they have completed.
     */
    double mean_time_per_clock;
    /**
     * Seconds that all workers together spent on what they published.
     */
    double computing;
    /**
     * Seconds that they spent on what they abandoned.
     */
    double wasted;
    /**
     * Seconds that they spent on anything else.
     */
    double waiting;
    /**
     * Number of clocks by which parameters were stale when a worker computed on them, in the mean; 0 is as fresh as
     * can be. NaN if none did.
     */
    double mean_staleness;
    /**
     * The most of these.
     */
    uint64_t most_staleness;
    /**
     * Number of versions between the one that a gradient was computed on and the one that it was added to, in the
     * mean; NaN without gradients.
     */
    double mean_lag;
    /**
     * The loss of the newest parameters; NaN without a problem.
     */
    double loss;
    /**
     * Hash of all that happened: two runs with the same hash were the same run.
     */
    uint64_t trace_hash;
} slackline_simulate_report;

/**
 * The parameters that a worker computes on next. Set `size` before the call that fills it.
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
     * Number of clocks by which they are stale: `clock` less `smallest_clock`, or 0.
     */
    uint64_t staleness;
    /**
     * Number of versions by which they were behind the newest when they were read.
     */
    uint64_t behind;
    /**
     * Copies begun again because a frame changed under them.
     */
    uint64_t retries;
} slackline_view;

/**
 * The judgement of a trace. Each read is verified, unverified, or has a violation. Set `size` before the call that
 * fills it.
 */
typedef struct slackline_verdict {
    /**
     * `sizeof(struct slackline_verdict)`.
     */
    size_t size;
    /**
     * The number of versions with a record of their publication.
     */
    uint64_t publications;
    /**
     * The number of reads with a record.
     */
    uint64_t reads;
    /**
     * The number of reads without a violation whose bytes were compared with the published bytes.
     */
    uint64_t verified;
    /**
     * The number of reads without a violation whose bytes could not be compared: their version has no record of its
     * publication, or no tensor was read whole.
     */
    uint64_t unverified;
    /**
     * The number of violations.
     */
    uint64_t violations;
    /**
     * The bytes that the text of all violations takes, with its zero.
     */
    uint64_t text_bytes;
    /**
     * The number of the last line, from 1, if it is not finished: it was left out. 0 if all lines are whole.
     */
    uint64_t unfinished;
} slackline_verdict;

/**
 * The result of an advance of the training. Set `size` before the call that fills it.
 */
typedef struct slackline_advance {
    /**
     * `sizeof(struct slackline_advance)`.
     */
    size_t size;
    /**
     * One of `enum slackline_advance_kind`.
     */
    uint64_t kind;
    /**
     * Of a step, the loss before it; otherwise NaN.
     */
    double loss;
    /**
     * Of an average, the number of its round; otherwise 0.
     */
    uint64_t round;
    /**
     * The number of steps that were made so far.
     */
    uint64_t clock;
    /**
     * 1 if the next advance makes an average: a worker that has made all its steps makes it before it leaves.
     */
    uint64_t averages_next;
} slackline_advance;

/**
 * The publisher's own words about a version, which the library does not look into.
 */
typedef struct slackline_tag {
    /**
     * A number, such as the step of the optimiser.
     */
    uint64_t step;
    /**
     * Bytes of any meaning.
     */
    uint8_t label[SLACKLINE_LABEL_BYTES];
} slackline_tag;

/**
 * A reader, as its publisher sees it.
 */
typedef struct slackline_reader_status {
    /**
     * Its index, which another reader gets once this one has left.
     */
    uint64_t peer;
    /**
     * The newest version that it has copied, by its own word, or `SLACKLINE_NO_VERSION`.
     */
    uint64_t holds;
    /**
     * The version whose frame it pins now, to read it in place or to copy it, or `SLACKLINE_NO_VERSION`.
     */
    uint64_t pins;
    /**
     * The number of versions by which its newest one, as a copy or in place, is behind the latest.
     */
    uint64_t behind;
} slackline_reader_status;

/**
 * A tensor of which a reader wants a part.
 */
typedef struct slackline_slice {
    /**
     * UTF-8, ending in a zero.
     */
    const char *name;
    /**
     * The first index of each dimension, outermost first. NULL, with `end`: the whole tensor.
     */
    const uint64_t *begin;
    /**
     * The index behind the last one of each dimension.
     */
    const uint64_t *end;
    /**
     * Number of dimensions of `begin` and `end`: those of the tensor.
     */
    size_t rank;
} slackline_slice;

/**
 * The state of a worker. Set `size` before the call that fills it.
 */
typedef struct slackline_worker_status {
    /**
     * `sizeof(struct slackline_worker_status)`.
     */
    size_t size;
    /**
     * Its next gradient belongs to this clock.
     */
    uint64_t clock;
    /**
     * Gradients published.
     */
    uint64_t published;
    /**
     * Computations abandoned.
     */
    uint64_t abandoned;
    /**
     * Bytes of gradients written to servers; none for gradients that were computed in a slot.
     */
    uint64_t bytes_published;
    /**
     * Bytes of parameters copied from servers; none for parameters that were read in place.
     */
    uint64_t bytes_pulled;
    /**
     * Copies begun again because a frame changed under them.
     */
    uint64_t retries;
    /**
     * Waits that ended at their deadline.
     */
    uint64_t timeouts;
    /**
     * Number of times that it has connected again.
     */
    uint64_t reconnects;
    /**
     * Nanoseconds between the end of begin and the call of publish or abandon.
     */
    uint64_t compute_ns;
    /**
     * Nanoseconds in begin, publish and flush.
     */
    uint64_t wait_ns;
} slackline_worker_status;

/**
 * How stale the parameters were on which a worker computed its gradients. Set `size` before the call that fills it.
 */
typedef struct slackline_staleness {
    /**
     * `sizeof(struct slackline_staleness)`.
     */
    size_t size;
    /**
     * Gradients that were counted: the sum of all counts.
     */
    uint64_t gradients;
    /**
     * The largest staleness that occurred, in clocks; 0 if there is no gradient.
     */
    uint64_t largest;
    /**
     * `counts[s]` is the number of gradients whose parameters were stale by `s` clocks: the worker's clock less the
     * smallest clock of its copy. The last one counts staler gradients, too, and is then the `largest`.
     */
    uint64_t counts[SLACKLINE_STALENESS_COUNTS];
} slackline_staleness;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The library's version, "MAJOR.MINOR.PATCH". Valid for ever.
 */
const char *slackline_version(void);

/**
 * The library's version as one number, to be compared with the header's `SLACKLINE_VERSION_NUMBER`.
 */
uint32_t slackline_version_number(void);

/**
 * Returns the name of a status, for people to read. The text is valid for ever; it is never NULL, for any number.
 */
const char *slackline_status_name(uint32_t status);

/**
 * The message of the call of this thread that failed last: a sentence that names the operation, the cause and the
 * remedy. UTF-8, at most 2047 bytes; never NULL; empty if no call has failed. The pointer stays the same until
 * the thread ends and may be read that long; the text is replaced by the thread's next failing call, and by no other
 * call.
 */
const char *slackline_last_error(void);

/**
 * Returns 1 if the call of this thread that failed last may succeed later with the same arguments: after a deadline,
 * while readers pin all other frames, or, after connecting again, where a peer was lost or evicted this one. Returns 0
 * if something has to be changed first, if the object can only be destroyed, or if no call has failed.
 */
uint32_t slackline_last_error_is_retryable(void);

/**
 * Returns the time in milliseconds after which the peer that refused the call of this thread that failed last asks for
 * it again, rounded up: a publisher that has as many readers as it takes, for example. 0 if it has named none, or no
 * peer has refused.
 */
uint64_t slackline_last_error_retry_after_ms(void);

/**
 * Finds the bytes of a table's flat space that are shard number `shard` of `shards`: a server's own part. The
 * server's initial values are the values of this part. One shard is the whole table.
 */
slackline_status slackline_shard_range(const struct slackline_tensor *tensors,
                                       size_t tensor_count,
                                       uint16_t shard,
                                       uint16_t shards,
                                       uint64_t *begin,
                                       uint64_t *end);

/**
 * Reads the checkpoint in the file `path`, which a server wrote as `shard-S-of-N.safetensors` to its
 * `checkpoint_folder`, and proves that it is whole. Where the file is missing or damaged, the checkpoint before it is
 * read instead: `slackline_checkpoint_version` tells which version it is. Where there is neither, that is
 * `SLACKLINE_STATUS_BAD_ARGUMENT`. The checkpoint is the caller's, to be destroyed; on failure it is NULL.
 */
slackline_status slackline_checkpoint_open(const char *path,
                                           struct slackline_checkpoint **checkpoint);

/**
 * Sets `version` to the number of the version that the checkpoint holds.
 */
slackline_status slackline_checkpoint_version(const struct slackline_checkpoint *checkpoint,
                                              uint64_t *version);

/**
 * Lends the table of the job, `count` tensors, of all shards. Valid until the checkpoint is destroyed.
 */
slackline_status slackline_checkpoint_table(const struct slackline_checkpoint *checkpoint,
                                            const struct slackline_tensor **tensors,
                                            size_t *count);

/**
 * Lends the parameters of the shard, `len` values: `slackline_shard_range` says which bytes of the table they are.
 * Valid, and unchanging, until the checkpoint is destroyed.
 */
slackline_status slackline_checkpoint_parameters(const struct slackline_checkpoint *checkpoint,
                                                 const float **parameters,
                                                 size_t *len);

/**
 * Frees the memory; the file stays as it is. NULL does nothing.
 */
void slackline_checkpoint_destroy(struct slackline_checkpoint *checkpoint);

/**
 * Prepares to make `count` steps for each gradient, at least 1, at the `learning_rate` of the servers, which is above
 * 0 and does not fall by a schedule. It is the caller's, to be destroyed; on failure it is NULL.
 */
slackline_status slackline_local_steps_create(uint64_t count,
                                              float learning_rate,
                                              struct slackline_local_steps **steps);

/**
 * Makes the steps from `parameters` and writes their gradient to `gradient`, both of `len` values: memory that
 * `slackline_worker_parameters` and `slackline_worker_gradient` lend, or memory of the caller's. `compute` is called
 * for each step, numbered from 0, in this thread; it may call functions of the worker that change neither, such as
 * `slackline_worker_should_stop`. `loss`, unless NULL, becomes the mean of the losses.
 *
 * Sets `done` to 1; or to 0 if `compute` gave up, in which case `gradient` holds nothing of use and the caller
 * abandons the step.
 */
slackline_status slackline_local_steps_gradient(struct slackline_local_steps *steps,
                                                const float *parameters,
                                                float *gradient,
                                                size_t len,
                                                slackline_compute compute,
                                                void *context,
                                                float *loss,
                                                uint32_t *done);

/**
 * Frees the memory of the steps. NULL does nothing.
 */
void slackline_local_steps_destroy(struct slackline_local_steps *steps);

/**
 * Opens a GPU by its number, from 0 on, as CUDA counts (`CUDA_VISIBLE_DEVICES`). The NVIDIA driver, of CUDA 12.0
 * or later, is looked for at this call; `SLACKLINE_STATUS_UNSUPPORTED` says that it or the GPU is not there, and
 * the message why. If `require_gpudirect` is not 0, no payload of an object that is made with this handle is
 * staged through the memory of the host: where nothing else is left, making the object is
 * `SLACKLINE_STATUS_UNSUPPORTED`. The call takes the time that the driver takes. The handle is the caller's, to be
 * destroyed; on failure it is NULL.
 */
slackline_status slackline_gpu_open(uint32_t ordinal,
                                    uint32_t require_gpudirect,
                                    struct slackline_gpu **gpu);

/**
 * Lends the name of the model. It is valid until the handle is destroyed.
 */
slackline_status slackline_gpu_name(const struct slackline_gpu *gpu, const char **name);

/**
 * Sets `bytes` to the number of payload bytes that connections have carried through blocks of host memory since the
 * GPU was opened, because the network does not reach its memory.
 */
slackline_status slackline_gpu_host_bytes_copied(const struct slackline_gpu *gpu,
                                                 uint64_t *bytes);

/**
 * Lets go of the handle. The GPU is closed once no object and no copy uses it any more. NULL does nothing.
 */
void slackline_gpu_destroy(struct slackline_gpu *gpu);

/**
 * Has the GPU copy a range into the next version, from the byte `offset` of the table on, behind the work that the
 * stream has now, and does not wait for it. The stream does not wait either: the range stays as it is until
 * `slackline_publisher_commit_when_copied` has told the version. The first call for a version waits as
 * `slackline_publisher_begin` does, and for the copies of the version before. `slackline_publisher_abort` gives the
 * version up. For publishers with `background` in their options.
 */
slackline_status slackline_publisher_copy_from_gpu(struct slackline_publisher *publisher,
                                                   uint64_t offset,
                                                   const struct slackline_gpu_range *range,
                                                   uint64_t timeout_ms);

/**
 * Publishes the version that `slackline_publisher_copy_from_gpu` and `slackline_publisher_begin` have begun once GPUs
 * have copied all of it, and waits for that; `version`, unless NULL, becomes its number. `SLACKLINE_STATUS_DEADLINE`
 * says that it is not copied yet: it will be published once it is, and the same call waits for that again.
 */
slackline_status slackline_publisher_commit_when_copied(struct slackline_publisher *publisher,
                                                        uint64_t timeout_ms,
                                                        uint64_t *version);

/**
 * Copies a version that is at most `max_staleness` versions behind the newest to a range of a GPU, which is as long as
 * a copy, behind the work that the stream has now. Later work of the stream sees this version, which `fresh`, unless
 * NULL, describes; `fresh->size` must be set. The GPU or an RDMA device copies straight out of the owner's memory;
 * over TCP, and by RDMA whose devices do not reach the GPU, it comes by way of blocks of host memory. For readers
 * with `gpu` in their options. After a failure the range may hold anything.
 */
slackline_status slackline_reader_pull_to_gpu(struct slackline_reader *reader,
                                              const struct slackline_gpu_range *range,
                                              uint64_t max_staleness,
                                              uint64_t timeout_ms,
                                              struct slackline_fresh *fresh);

/**
 * Has the GPU copy the bytes of a snapshot from `offset` on to a range, behind the work that the stream has now. Later
 * work of the stream waits for the copy. It returns at once, and the snapshot may be destroyed.
 */
slackline_status slackline_snapshot_copy_to_gpu(const struct slackline_snapshot *snapshot,
                                                uint64_t offset,
                                                const struct slackline_gpu_range *range);

/**
 * Has the GPU copy the parameters of the open step, from the byte `offset` of the table on, to a range, behind the
 * work that the stream has now. Later work of the stream waits for the copy. It returns at once.
 */
slackline_status slackline_worker_copy_parameters_to_gpu(struct slackline_worker *worker,
                                                         uint64_t offset,
                                                         const struct slackline_gpu_range *range);

/**
 * Has the GPU copy a range into the gradient of the open step, from the byte `offset` on of the whole gradient in the
 * worker's encoding, behind the work that the stream has now, and does not wait for it. The stream does not wait
 * either: the range stays as it is until `slackline_worker_publish` has returned, which waits for the copy, and
 * abandons the step if it is not done by its timeout.
 */
slackline_status slackline_worker_copy_gradient_from_gpu(struct slackline_worker *worker,
                                                         uint64_t offset,
                                                         const struct slackline_gpu_range *range);

/**
 * Publishes the gradient that is in a range, the whole of it in the worker's encoding, straight out of memory of the
 * GPU, behind the work that the stream has now; otherwise as `slackline_worker_publish` under schemes other than
 * "bap". When it returns `SLACKLINE_STATUS_OK` the range may change; the stream does not wait. For workers with `gpu`
 * in their options, or in the options of their job.
 */
slackline_status slackline_worker_publish_from_gpu(struct slackline_worker *worker,
                                                   const struct slackline_gpu_range *range,
                                                   const float *loss,
                                                   uint64_t timeout_ms);

/**
 * Sets all options but `size`, which the caller has set, to their defaults.
 */
slackline_status slackline_group_options_init(struct slackline_group_options *options);

/**
 * Begins to listen at `address`, which is as for a server, as the member `rank` of `members`, each with `elements`
 * parameters, all zero at first. Then `slackline_group_connect` meets the others. `options` may be NULL. The group is
 * the caller's, to be destroyed; on failure it is NULL.
 */
slackline_status slackline_group_listen(const char *address,
                                        size_t rank,
                                        size_t members,
                                        size_t elements,
                                        const struct slackline_group_options *options,
                                        struct slackline_group **group);

/**
 * Meets all workers of a job without servers (`servers` 0 in its options), each with `elements` parameters. The rank
 * of this member is the number of this worker. `options` may be NULL; `secret`, `secret_file` and `encrypt` in it are
 * not looked at: they are the job's. Call `slackline_job_finish` with no worker once `slackline_group_leave` has
 * returned. The group is the caller's, to be destroyed before the job is; on failure it is NULL. A job with a GPU that
 * would have the parameters there is `SLACKLINE_STATUS_UNSUPPORTED`: leave its GPU out.
 */
slackline_status slackline_job_group(const struct slackline_job *job,
                                     size_t elements,
                                     const struct slackline_group_options *options,
                                     struct slackline_group **group);

/**
 * Lends the address at which the others reach this member; empty for a member of a job. It is valid until the group
 * is destroyed.
 */
slackline_status slackline_group_address(const struct slackline_group *group,
                                         const char **address);

/**
 * Meets the other members, which may start in any order: `addresses` are the addresses of all members, in order of
 * rank, of the transports that this member listens at. Where they cannot be read, or are not as many as the members,
 * that is `SLACKLINE_STATUS_BAD_ARGUMENT` and the member listens on. After any other failure the group can only be
 * destroyed.
 */
slackline_status slackline_group_connect(struct slackline_group *group,
                                         const char *const *addresses,
                                         size_t address_count,
                                         uint64_t timeout_ms);

/**
 * The parameters of this member, `len` values, to be read and changed in place: its own, or the mean since the last
 * round. Valid until the next `slackline_group_average`, `slackline_group_train`, `slackline_group_advance`, leave or
 * destroy; they lie elsewhere after each round. While a round is under way it is out of turn.
 */
slackline_status slackline_group_parameters(struct slackline_group *group,
                                            float **parameters,
                                            size_t *len);

/**
 * Averages the parameters over the members `ranks`, in order and with this member's, the same list at all of them.
 * Rounds are numbered upwards, the same everywhere; numbers may be left out. Members that are gone are left out of
 * the mean. `averaged`, unless NULL, is told how it ended; `averaged->size` must be set.
 *
 * After `SLACKLINE_STATUS_DEADLINE` it may be called again for the same round and continues; with a `timeout_ms` of
 * 0 it does the work that needs no waiting. `SLACKLINE_STATUS_EVICTED` says that the others took this member for
 * dead and go on without it.
 */
slackline_status slackline_group_average(struct slackline_group *group,
                                         uint64_t round,
                                         const size_t *ranks,
                                         size_t rank_count,
                                         uint64_t timeout_ms,
                                         struct slackline_averaged *averaged);

/**
 * Gives up the round that is under way, and tells the others: the parameters are as before, unless the round had
 * ended. `averaged`, unless NULL, is told how it ended, with 0 `members` if none was under way; `averaged->size` must
 * be set.
 */
slackline_status slackline_group_abandon(struct slackline_group *group,
                                         struct slackline_averaged *averaged);

/**
 * Sets `alive` to 1 if the member `rank` is there, and to 0 if it is gone.
 */
slackline_status slackline_group_is_alive(const struct slackline_group *group, size_t rank, uint32_t *alive);

/**
 * Writes the present state to `status`. `status->size` must be set.
 */
slackline_status slackline_group_get_status(const struct slackline_group *group,
                                            struct slackline_group_status *status);

/**
 * Leaves in order: the others go on without this member, and do not take it for an accident. Gives up a round that is
 * under way. `SLACKLINE_STATUS_DEADLINE` says that some have not heard of it; they find out by themselves. Copy the
 * parameters first; afterwards the group can only be destroyed.
 */
slackline_status slackline_group_leave(struct slackline_group *group,
                                       uint64_t timeout_ms);

/**
 * Frees the member. The others lose a member that has not left as soon as they find its connection closed. NULL does
 * nothing.
 */
void slackline_group_destroy(struct slackline_group *group);

/**
 * Finds the members that average with the member `rank` of `workers` in a round of DS-Sync with groups of `group`,
 * by a `partition` of `enum slackline_partition`. Writes the ranks, in order and `rank` among them, to `ranks`,
 * which has room for `group`, and how many they are to `count`.
 */
slackline_status slackline_group_ranks(size_t workers,
                                       uint16_t group,
                                       uint32_t partition,
                                       size_t rank,
                                       uint64_t round,
                                       size_t *ranks,
                                       size_t *count);

/**
 * Sets all options but `size`, which the caller has set, to their defaults.
 */
slackline_status slackline_job_options_init(struct slackline_job_options *options);

/**
 * Joins the job in which a launcher has started this process; `SLACKLINE_STATUS_BAD_ARGUMENT` if none has. The job is
 * the caller's, to be destroyed after the objects that it made; on failure it is NULL.
 */
slackline_status slackline_job_from_env(const struct slackline_job_options *options,
                                        struct slackline_job **job);

/**
 * As `slackline_job_from_env`, for a program that gives ranks to its processes itself: this one is `rank`, which
 * counts from 0, of `world`. `rendezvous` is the HOST:PORT at which rank 0 listens for the others, the same
 * everywhere.
 */
slackline_status slackline_job_join(const struct slackline_job_options *options,
                                    uint32_t rank,
                                    uint32_t world,
                                    const char *rendezvous,
                                    struct slackline_job **job);

/**
 * Tells the part of this process, one of `enum slackline_role`, with its shard or the number of the worker, and the
 * number of workers in the job. Each may be NULL.
 */
slackline_status slackline_job_role(const struct slackline_job *job,
                                    uint32_t *role,
                                    uint32_t *number,
                                    uint64_t *workers);

/**
 * Begins to serve this process's shard of a table, and tells the workers where. `initial` holds the `initial_len`
 * values of the whole table as version 0 and is copied. Of the options `workers`, `shard`, `shards`, `secret`,
 * `secret_file`, `encrypt` and `resume` are not looked at: they are the job's. The server is the caller's, to be
 * destroyed; on failure it is NULL. A job has no use for a process whose server cannot be made: it fails, too, with
 * the cause in its message, also where that is a setting of the options (`SLACKLINE_STATUS_BAD_ARGUMENT`).
 */
slackline_status slackline_job_server(const struct slackline_job *job,
                                      const struct slackline_tensor *tensors,
                                      size_t tensor_count,
                                      const float *initial,
                                      size_t initial_len,
                                      const struct slackline_server_options *options,
                                      struct slackline_server **server);

/**
 * Serves until the job is over, and writes the last checkpoint if `checkpoint_folder` is set. After `timeout_ms` that
 * is `SLACKLINE_STATUS_DEADLINE`: call it again, well within the lease. A server that connects to the one that
 * decides for it takes up to 2 s for each attempt, also where that is longer. `SLACKLINE_STATUS_JOB_FAILED` says
 * that the job has failed; the message has the cause.
 */
slackline_status slackline_job_serve(const struct slackline_job *job,
                                     struct slackline_server *server,
                                     uint64_t timeout_ms);

/**
 * Connects this process to the servers of the job, once all of them are up. Of the options `secret`, `secret_file`
 * and `encrypt` are not looked at: they are the job's. The worker is the caller's, to be destroyed before the job is;
 * on failure it is NULL.
 */
slackline_status slackline_job_worker(const struct slackline_job *job,
                                      const struct slackline_worker_options *options,
                                      struct slackline_worker **worker);

/**
 * Connects a worker again after `SLACKLINE_STATUS_SERVER_LOST` or `SLACKLINE_STATUS_EVICTED`, once all servers are up
 * again. It goes on at the clock at which the servers are; begin tells it.
 */
slackline_status slackline_job_reconnect(const struct slackline_job *job,
                                         struct slackline_worker *worker);

/**
 * Says that this worker has finished, and waits until all others have. Flush the worker first, and destroy it
 * afterwards; in a job without servers, leave the group first, and `worker` is NULL. `SLACKLINE_STATUS_SERVER_LOST`:
 * call `slackline_job_reconnect`, and train on from the clock that begin tells. After `timeout_ms` that is
 * `SLACKLINE_STATUS_DEADLINE`: call it again. `SLACKLINE_STATUS_JOB_FAILED` says that the job has failed; the message
 * has the cause.
 */
slackline_status slackline_job_finish(const struct slackline_job *job,
                                      struct slackline_worker *worker,
                                      uint64_t timeout_ms);

/**
 * Answers `SLACKLINE_STATUS_JOB_FAILED`, with the cause in the message, if the job has failed: a worker hears of that
 * as `SLACKLINE_STATUS_SERVER_LOST`. Never waits.
 */
slackline_status slackline_job_check(const struct slackline_job *job);

/**
 * Leaves the job; at rank 0 it ends the job. NULL does nothing.
 */
void slackline_job_destroy(struct slackline_job *job);

/**
 * Hands the log of this library, from `level` on to more serious ones, to `function`. Once per process, permanently:
 * a second call is `SLACKLINE_STATUS_OUT_OF_TURN`. Without it nothing is logged. `user` is passed through.
 */
slackline_status slackline_set_log(uint32_t level,
                                   slackline_log_function function,
                                   void *user);

/**
 * Begins to serve the workers of one host at `address`, which is as for `slackline_server_create`, and stands for them
 * at the servers of the job: an aggregating proxy. In each round it sums the gradients of its workers and hands the
 * sum on, so that one connection to each server leaves the host. The scheme is the servers', "bsp"; each worker of the
 * job has the same weight there, and their `workers` counts hosts.
 *
 * `servers` are the addresses of the servers of all shards, in any order, to which it connects with the options
 * `upstream` (gradients are f32 and copied, and `own_step` is 0). Of `options` it looks at `workers`, the number of
 * workers of this host, at the secret and its encryption, and at `peers`, `frames`, `checksums`, `chunk_bytes`,
 * `lease_ms` and `idle`. It waits at most `timeout_ms` for the servers and their first parameters.
 *
 * Serve it until its workers have left, then destroy it: while it has no worker, the servers wait for its next
 * gradient. It is the caller's; on failure it is NULL. `per_host` in the options of a job does all of this.
 */
slackline_status slackline_server_for_host(const char *const *servers,
                                           size_t server_count,
                                           const struct slackline_worker_options *upstream,
                                           const char *address,
                                           const struct slackline_server_options *options,
                                           uint64_t timeout_ms,
                                           struct slackline_server **server);

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
 * Lends the address at which readers reach this publisher. It is valid until the publisher is destroyed.
 */
slackline_status slackline_publisher_address(const struct slackline_publisher *publisher,
                                             const char **address);

/**
 * Finds the bytes of tensor number `tensor` in a version: its range in the memory that `slackline_publisher_begin`
 * lends and `slackline_publisher_publish` takes, with the `alignment` of the options.
 */
slackline_status slackline_publisher_tensor_range(const struct slackline_publisher *publisher,
                                                  size_t tensor,
                                                  uint64_t *begin,
                                                  uint64_t *end);

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
 * Lends the memory of the next version, `len` bytes, the whole table, to be written in place and then published by
 * `slackline_publisher_commit`: nothing is copied. It holds some old version. Until the commit readers see the version
 * before, and `slackline_publisher_progress` may be called. Called again, it lends the same memory, with the bytes
 * that were written there. Waits only if readers pin all other frames, as `slackline_publisher_publish` does. Valid
 * until the next commit, abort, publish or destroy of this publisher.
 */
slackline_status slackline_publisher_begin(struct slackline_publisher *publisher,
                                           uint64_t timeout_ms,
                                           void **bytes,
                                           size_t *len);

/**
 * Publishes the memory that `slackline_publisher_begin` lent as the next version; `version`, unless NULL, becomes its
 * number.
 */
slackline_status slackline_publisher_commit(struct slackline_publisher *publisher,
                                            uint64_t *version);

/**
 * Gives up the memory that `slackline_publisher_begin` lent: the bytes that were written there are never published,
 * readers keep the version before it, and the next version has the number that this one would have had. For a copy
 * into that memory which has failed. Without memory that is lent it does nothing.
 */
slackline_status slackline_publisher_abort(struct slackline_publisher *publisher);

/**
 * Takes readers in and notices readers that are gone, without waiting. `progressed`, unless NULL, becomes 1 if
 * anything happened and 0 if not.
 */
slackline_status slackline_publisher_progress(struct slackline_publisher *publisher,
                                              uint32_t *progressed);

/**
 * Looks after readers until `until_joined` in all have joined since the publisher was created and `until_left` of them
 * have left, or `timeout_ms` has passed: that is `SLACKLINE_STATUS_DEADLINE`.
 */
slackline_status slackline_publisher_serve(struct slackline_publisher *publisher,
                                           uint64_t until_joined,
                                           uint64_t until_left,
                                           uint64_t timeout_ms);

/**
 * Writes the present state to `status`. `status->size` must be set.
 */
slackline_status slackline_publisher_get_status(const struct slackline_publisher *publisher,
                                                struct slackline_publisher_status *status);

/**
 * Ends the publisher; its readers are told. NULL does nothing.
 */
void slackline_publisher_destroy(struct slackline_publisher *publisher);

/**
 * Sets all options but `size`, which the caller has set, to their defaults.
 */
slackline_status slackline_reader_options_init(struct slackline_reader_options *options);

/**
 * Connects to a publisher or a server, waiting for one as `slackline_worker_connect` does. `options` may be NULL.
 * The reader is the caller's, to be destroyed; on failure it is NULL.
 */
slackline_status slackline_reader_connect(const char *address,
                                          const struct slackline_reader_options *options,
                                          uint64_t timeout_ms,
                                          struct slackline_reader **reader);

/**
 * Has refreshes copy into memory of the caller's from now on, where it lies: `bytes` from `memory` on, as many as a
 * version has. `memory` is a multiple of 8, and over RDMA it is registered with the device. `slackline_reader_bytes`
 * is `SLACKLINE_STATUS_OUT_OF_TURN` until the next refresh.
 *
 * The memory stays valid, and no other code reads or writes it from the begin of a refresh until its end (until the
 * end of a later one if it failed or was abandoned, since its requests may go on writing), until `release` (which may
 * be NULL) is called with `context`: when other memory was given, `slackline_reader_select` was called, or the reader
 * was destroyed, and no request uses it any more. After a failure `release` was called, and the reader has the memory
 * that it had.
 */
slackline_status slackline_reader_use_memory(struct slackline_reader *reader,
                                             void *memory,
                                             size_t bytes,
                                             slackline_release release,
                                             void *context);

/**
 * Makes sure that the reader's copy is at most `max_staleness` versions behind the newest. A copy that is fresh
 * enough already is kept. `fresh`, unless NULL, receives its description; `fresh->size` must be set. After a failure
 * there may be nothing to read until a refresh works again. After `SLACKLINE_STATUS_DEADLINE` the refresh has ended;
 * a refresh that `slackline_reader_begin_refresh` begins continues from call to call of `slackline_reader_poll`.
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
 * Begins a `slackline_reader_refresh`, and does not wait for it: `slackline_reader_poll` drives it forward, and the
 * calling thread may do something else in between. There is no copy to read from the moment when a newer version
 * is found until the refresh has ended. A call that pins, pulls, refreshes or takes a snapshot abandons it.
 */
slackline_status slackline_reader_begin_refresh(struct slackline_reader *reader,
                                                uint64_t max_staleness);

/**
 * Moves the refresh that `slackline_reader_begin_refresh` began on as far as it goes without waiting, and looks
 * after the connection. Sets `done` to 1 once the version is in the copy, which `fresh`, unless NULL, is then told
 * (`fresh->size` must be set); to 0 before that, and while there is no refresh. After a failure the refresh has
 * ended.
 *
 * Over TCP and RDMA a copy that would come too late pins its frame until it has ended: a publisher may wait for a
 * frame while a refresh that has begun is not moved on.
 */
slackline_status slackline_reader_poll(struct slackline_reader *reader,
                                       uint32_t *done,
                                       struct slackline_fresh *fresh);

/**
 * The reader's copy, `len` bytes. Valid, and unchanging, until the next refresh of this reader, also one that is only
 * begun, its next `slackline_reader_pull`, `slackline_reader_select`, `slackline_reader_use_memory` or
 * `slackline_reader_reconnect`, or its destroy. No call on the reader changes a snapshot.
 */
slackline_status slackline_reader_bytes(const struct slackline_reader *reader,
                                        const void **bytes,
                                        size_t *len);

/**
 * Copies a version that is at most `max_staleness` versions behind the newest to `bytes`, memory of the caller's of
 * exactly `len` bytes, beside the copy that `slackline_reader_bytes` lends: one copy over shared memory, two over
 * TCP and RDMA, the first of them to the reader's copy. `fresh`, unless NULL, receives its description;
 * `fresh->size` must be set. After a failure `bytes` may hold anything.
 */
slackline_status slackline_reader_pull(struct slackline_reader *reader,
                                       void *bytes,
                                       size_t len,
                                       uint64_t max_staleness,
                                       uint64_t timeout_ms,
                                       struct slackline_fresh *fresh);

/**
 * The same of the version that `at_least`, `max_staleness` and `exactly` name, as for `slackline_reader_snapshot`. If
 * `exactly` is not 0 there are two copies over shared memory, too.
 */
slackline_status slackline_reader_pull_version(struct slackline_reader *reader,
                                               void *bytes,
                                               size_t len,
                                               uint64_t at_least,
                                               uint64_t max_staleness,
                                               uint32_t exactly,
                                               uint64_t timeout_ms,
                                               struct slackline_fresh *fresh);

/**
 * Sets `version` to the number of the newest version. Nothing is copied.
 */
slackline_status slackline_reader_newest(struct slackline_reader *reader,
                                         uint64_t timeout_ms,
                                         uint64_t *version);

/**
 * Pins the newest version in the owner's own memory, once it is `version` or a newer one, and lends it, `len` bytes:
 * nothing is copied, and the owner writes other frames meanwhile. Only over shared memory, and of versions in host
 * memory; elsewhere it is `SLACKLINE_STATUS_UNSUPPORTED`. `fresh`, unless NULL, receives its description;
 * `fresh->size` must be set. Valid, and to be read only, until `slackline_reader_unpin` or destroy; until then
 * refresh, pull and pin are out of turn. Any number of threads may read the memory at once, until one of them unpins
 * it.
 */
slackline_status slackline_reader_pin(struct slackline_reader *reader,
                                      uint64_t version,
                                      uint64_t timeout_ms,
                                      const void **bytes,
                                      size_t *len,
                                      struct slackline_fresh *fresh);

/**
 * Sets `intact` to 1 if all reads so far of the memory that `slackline_reader_pin` lent saw that version, and to 0 if
 * not. It always was, unless this process was stopped for longer than its lease and the owner took it
 * for dead: ask after the last byte was read, before anything is made of it.
 */
slackline_status slackline_reader_is_intact(const struct slackline_reader *reader,
                                            uint32_t *intact);

/**
 * Releases the version that `slackline_reader_pin` has pinned. Does nothing if none is.
 */
slackline_status slackline_reader_unpin(struct slackline_reader *reader);

/**
 * Lends the table of the owner, `count` tensors with their names and shapes. Valid, and unchanging, until this
 * reader is destroyed.
 */
slackline_status slackline_reader_table(const struct slackline_reader *reader,
                                        const struct slackline_tensor **tensors,
                                        size_t *count);

/**
 * Sets `begin` and `end` to the bytes of the table's flat space that this reader reads: all of a publisher's table,
 * or a server's shard.
 */
slackline_status slackline_reader_range(const struct slackline_reader *reader,
                                        uint64_t *begin,
                                        uint64_t *end);

/**
 * Disconnects the reader and frees it. NULL does nothing.
 */
void slackline_reader_destroy(struct slackline_reader *reader);

/**
 * Registers a scheme that is written in C, for as long as the process is. From then on its name, with settings in
 * parentheses where it has any, is a `scheme` in the options of servers, workers and simulations; a worker whose
 * options name no scheme knows it when a server has it. Every process of a job registers it. Servers of a scheme ask
 * it for no action before all workers have joined, and the library counts its clocks.
 *
 * A scheme that fails, or asks for what cannot be (a gradient that has not come or is consumed, a worker that is not
 * in, a weight that is not finite, to compute without a copy, actions without end between two events), is
 * `SLACKLINE_STATUS_SCHEME` from the call that ran it, and from all that follow.
 */
slackline_status slackline_scheme_register(const struct slackline_scheme *scheme);

/**
 * Writes the secret for processes that only read, which is made of the job's, to `reading`: text of
 * `SLACKLINE_READING_SECRET_BYTES` with its zero, which must fit `room`. Readers use it as their `secret`. It opens
 * publishers and servers over TCP and RDMA for readers alone, and does not tell the job's secret. That one is in
 * `secret` or `secret_file`, or in the environment if both are NULL.
 */
slackline_status slackline_reading_secret(const char *secret,
                                          const char *secret_file,
                                          char *reading,
                                          size_t room);

/**
 * Sets all options but `size`, which the caller has set, to their defaults.
 */
slackline_status slackline_server_options_init(struct slackline_server_options *options);

/**
 * Begins to serve a shard of a table at `address`, of any form that the head of this file lists; NULL picks a name,
 * and `slackline_server_address` tells it.
 *
 * All tensors must be f32. `initial` holds the shard's own `initial_len` values as version 0 and is copied; it is not
 * looked at where the server goes on from a checkpoint (`resume` in the options). The server is the caller's, to be
 * destroyed; on failure it is NULL.
 */
slackline_status slackline_server_create(const char *address,
                                         const struct slackline_tensor *tensors,
                                         size_t tensor_count,
                                         const float *initial,
                                         size_t initial_len,
                                         const struct slackline_server_options *options,
                                         struct slackline_server **server);

/**
 * Lends the address at which workers and readers reach this server. It is valid until the server is destroyed.
 */
slackline_status slackline_server_address(const struct slackline_server *server,
                                          const char **address);

/**
 * Connects this server to the one of shard 0 at `decider`, which decides for all shards under a scheme that counts
 * versions, such as "dbw" and "abs". Until then it serves no peer: call it before the first progress or serve if
 * `follows` in the status is not 0, and again after `SLACKLINE_STATUS_SERVER_LOST`.
 */
slackline_status slackline_server_follow(struct slackline_server *server,
                                         const char *decider,
                                         uint64_t timeout_ms);

/**
 * Does all work that needs no waiting: accepts peers, notices lost peers, folds gradients that have arrived, publishes
 * versions. `progressed`, unless NULL, becomes 1 if there was work and 0 if not.
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
 * Writes the present state to `status`. `status->size` must be set.
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
 * Writes a checkpoint and serves until the version that is the newest now, or a later one, is safely on the disk: the
 * last thing before a clean end. `version`, unless NULL, is told which one. Needs `checkpoint_folder` in the options.
 */
slackline_status slackline_server_checkpoint(struct slackline_server *server,
                                             uint64_t timeout_ms,
                                             uint64_t *version);

/**
 * Ends the server; its peers are told. NULL does nothing.
 */
void slackline_server_destroy(struct slackline_server *server);

/**
 * Sets all options but `size`, which the caller has set, to their defaults.
 */
slackline_status slackline_simulate_options_init(struct slackline_simulate_options *options);

/**
 * Simulates a whole job in virtual time, in the calling thread, and writes to `report` how it went; `report->size`
 * must be set. A scheme of `slackline_scheme_register` runs by the same callbacks as in a real job, and any scheme is
 * held to its promises at every event: one that breaks them, or that would wait for ever, is
 * `SLACKLINE_STATUS_SCHEME`, with the seed that replays it in the message. It takes as long as there are events, and
 * has no timeout.
 */
slackline_status slackline_simulate(const struct slackline_simulate_options *options,
                                    struct slackline_simulate_report *report);

/**
 * Brings the parameters for the next gradient, waiting as the scheme says. `view`, unless NULL, is told what they are;
 * `view->size` must be set. After `SLACKLINE_STATUS_DEADLINE` it may be called again and goes on where it was.
 */
slackline_status slackline_worker_begin(struct slackline_worker *worker,
                                        struct slackline_view *view,
                                        uint64_t timeout_ms);

/**
 * The parameters that `slackline_worker_begin` brought, as one flat array of the whole table; `len` is how many.
 * Valid, and unchanging, until the next begin, publish or abandon of this worker, flush, reconnect (that of its job,
 * too), or destroy.
 */
slackline_status slackline_worker_parameters(const struct slackline_worker *worker,
                                             const float **parameters,
                                             size_t *len);

/**
 * Lends the memory for the gradient of the whole table, if gradients travel as f32; `len` is the number of values.
 * The memory holds what was written there last; under "bap" successive steps use two memories by turns. Call it after
 * begin. Valid until the next begin, publish or abandon of this worker, flush, reconnect (that of its job, too), or
 * destroy.
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
 *
 * Under "bap" it does not wait for the gradient: `SLACKLINE_STATUS_OK` says that it is on its way, and the next step
 * begins meanwhile. One gradient at a time is on its way, so that the call waits for the gradient of the step before.
 * `SLACKLINE_STATUS_DEADLINE` says that this one is still on its way; nothing of the present step is published then,
 * and the next begin is of the same clock. `slackline_worker_flush` waits for the last one. A worker with `own_step`,
 * or with memory of the caller's for its gradients, waits as under the other schemes.
 */
slackline_status slackline_worker_publish(struct slackline_worker *worker,
                                          const float *loss,
                                          uint64_t timeout_ms);

/**
 * The parameters of one shard in its server's own memory, `len` values: nothing is copied. Only for workers that are
 * connected with `SLACKLINE_READ_IN_PLACE`, which is over shared memory. To be read only; the server leaves them as
 * they are until the next begin, publish or abandon of this worker, reconnect (that of its job, too), or destroy.
 */
slackline_status slackline_worker_in_place(const struct slackline_worker *worker,
                                           uint16_t shard,
                                           const float **parameters,
                                           size_t *len);

/**
 * Lends memory for the gradient of one shard in its server's own memory, `len` bytes in the worker's encoding: a
 * worker that computes straight into it and calls `slackline_worker_publish_slots` copies nothing. Only over shared
 * memory; elsewhere it is `SLACKLINE_STATUS_UNSUPPORTED`. Waits for a free slot at every server. The memory holds
 * some old gradient. Valid until the next begin, publish or abandon of this worker, reconnect (that of its job, too),
 * or destroy.
 */
slackline_status slackline_worker_slot(struct slackline_worker *worker,
                                       uint16_t shard,
                                       uint64_t timeout_ms,
                                       void **gradient,
                                       size_t *len);

/**
 * Publishes what was written to the slots that `slackline_worker_slot` lent, of all servers; otherwise as
 * `slackline_worker_publish` under the other schemes, under "bap", too.
 */
slackline_status slackline_worker_publish_slots(struct slackline_worker *worker,
                                                const float *loss,
                                                uint64_t timeout_ms);

/**
 * Sets `stop` to 1 if a server has asked that this worker abandon what it computes, because newer parameters are worth
 * more (schemes "dbw" and "abs"), and to 0 if not. Never waits and costs next to nothing over shared memory, so that
 * it can be asked in the midst of a computation; over TCP and RDMA a request is heard of with the second question
 * after it.
 */
slackline_status slackline_worker_should_stop(struct slackline_worker *worker,
                                              uint32_t *stop);

/**
 * Abandons the computation of this clock: nothing of it is published, and the next begin brings parameters for the
 * same clock that are no older than the servers asked for.
 */
slackline_status slackline_worker_abandon(struct slackline_worker *worker);

/**
 * Finds which bytes of the flat space tensor number `tensor` is, in a table that this program lays out itself: tensors
 * lie one after the other. `slackline_publisher_tensor_range` finds those of a table with an `alignment`, and
 * `slackline_reader_tensor_range` those of a table that another program has laid out.
 */
slackline_status slackline_tensor_range(const struct slackline_tensor *tensors,
                                        size_t tensor_count,
                                        size_t tensor,
                                        uint64_t *begin,
                                        uint64_t *end);

/**
 * Begins to listen at `address`, which is as for a publisher; `secret` and `secret_file` are as in the options of a
 * publisher; versions are encrypted over TCP if SLACKLINE_TCP_ENCRYPT is 1. The tables are the caller's, to be
 * destroyed; on failure it is NULL.
 */
slackline_status slackline_tables_listen(const char *address,
                                         const char *secret,
                                         const char *secret_file,
                                         struct slackline_tables **tables);

/**
 * Lends the address at which all tables are reached. It is valid until the tables are destroyed.
 */
slackline_status slackline_tables_address(const struct slackline_tables *tables, const char **address);

/**
 * Begins to serve a table there, by the name in `options->table`, which no other table has. Otherwise as
 * `slackline_publisher_create`, except that the secret and its encryption are those of the tables. The publisher
 * may outlive them.
 */
slackline_status slackline_tables_publisher(const struct slackline_tables *tables,
                                            const struct slackline_tensor *tensors,
                                            size_t tensor_count,
                                            const struct slackline_publisher_options *options,
                                            struct slackline_publisher **publisher);

/**
 * Ends the listener of `slackline_tables_listen`, once all its publishers are gone. NULL does nothing.
 */
void slackline_tables_destroy(struct slackline_tables *tables);

/**
 * As `slackline_publisher_publish`, and lends the record of the version in `publication`: one line of JSON without
 * its end, of which a trace is made. It takes the SHA-256 of all tensors. Valid until the next recorded version or
 * destroy of this publisher.
 */
slackline_status slackline_publisher_publish_recorded(struct slackline_publisher *publisher,
                                                      const void *bytes,
                                                      size_t len,
                                                      uint64_t timeout_ms,
                                                      uint64_t *version,
                                                      const char **publication);

/**
 * As `slackline_publisher_commit`, and lends the record of the version as `slackline_publisher_publish_recorded` does.
 */
slackline_status slackline_publisher_commit_recorded(struct slackline_publisher *publisher,
                                                     uint64_t *version,
                                                     const char **publication);

/**
 * Lends the record of the read: one line of JSON without its end, with the request, the result and the time.
 * The first call computes the SHA-256 of each tensor that was read whole. Valid until the snapshot is destroyed.
 * `slackline_reader_certificate` has the records of other reads.
 */
slackline_status slackline_snapshot_certificate(const struct slackline_snapshot *snapshot,
                                                const char **certificate);

/**
 * Lends the record of the reader's last read that is no snapshot, a refresh, pull or pin which has succeeded, as
 * `slackline_snapshot_certificate` does. `bytes` and `len` are the result of that read: the memory that
 * `slackline_reader_bytes` or `slackline_reader_pin` lends, or that `slackline_reader_pull` has filled. Of a pinned
 * version ask `slackline_reader_is_intact` afterwards. Refreshes are on record as the reads of a reader of their own,
 * since they keep a copy that is fresh enough. Valid until the next call of this function or destroy of this reader.
 */
slackline_status slackline_reader_certificate(struct slackline_reader *reader,
                                              const void *bytes,
                                              size_t len,
                                              const char **certificate);

/**
 * Judges records from their content alone, as the program `slackline check` does: whether each read was whole, as
 * fresh as requested, and in order. `trace` is text of lines, the records of any number of publishers and readers in
 * any order; blank lines count for nothing. `clock_error_ms` is the most by which the clocks of two hosts differ: 0
 * for processes of one host. `verdict->size` must be set.
 *
 * `violations`, unless NULL, becomes text of a line for each violation, as many whole lines as fit `room` with a zero
 * behind them: `verdict->text_bytes` is the room for all.
 *
 * A last line without its end that is the beginning of a record, or comes behind records, comes from a process that
 * was killed while it wrote the line: it is left out, and `verdict->unfinished` says so. A violation is no failure
 * of the call. `SLACKLINE_STATUS_BAD_ARGUMENT`: another line is no record, or there is no record at all.
 */
slackline_status slackline_check(const char *trace,
                                 uint64_t clock_error_ms,
                                 struct slackline_verdict *verdict,
                                 char *violations,
                                 size_t room);

/**
 * Has the member train by DS-Sync from now on: `slackline_group_advance` makes the steps of an optimiser of its own,
 * and the averages with the members of each round. It begins with the parameters that the member has, which are the
 * same at all members if they have set them so. A member that has made a round, or has one under way, cannot train.
 *
 * Of `options` it looks at `scheme`, such as "ds-sync(group=2, partition=random, seed=7, period=4)", the same at all
 * members, and at the optimiser with its settings, `learning_rate` and `schedule`. The other settings are a server's.
 * Rounds that the program names itself, `slackline_group_average` and `slackline_group_abandon`, are out of turn
 * afterwards. After `SLACKLINE_STATUS_MEMORY` the group can only be destroyed.
 */
slackline_status slackline_group_train(struct slackline_group *group,
                                       const struct slackline_server_options *options);

/**
 * Makes a step or an average, whichever is next. `compute` is called, in this thread and with the number of the step,
 * where a step is next; it calls no function of this group. `advance`, unless NULL, is told what it was;
 * `advance->size` must be set.
 *
 * After `SLACKLINE_STATUS_DEADLINE` it may be called again and goes on where it was. `SLACKLINE_STATUS_EVICTED` says
 * that the others took this member for dead and go on without it.
 */
slackline_status slackline_group_advance(struct slackline_group *group,
                                         slackline_compute compute,
                                         void *context,
                                         uint64_t timeout_ms,
                                         struct slackline_advance *advance);

/**
 * Sets the tag of the next version, which the next publish or commit takes. Versions without one have a tag of zeros.
 */
slackline_status slackline_publisher_set_tag(struct slackline_publisher *publisher,
                                             const struct slackline_tag *tag);

/**
 * Writes the statuses of at most `room` readers to `statuses`, and the number of all present readers to `count`.
 */
slackline_status slackline_publisher_readers(const struct slackline_publisher *publisher,
                                             struct slackline_reader_status *statuses,
                                             size_t room,
                                             size_t *count);

/**
 * Waits until at least `readers` readers hold `version` or a newer one, as a copy or in place, and looks after readers
 * meanwhile. `SLACKLINE_STATUS_DEADLINE` says that they did not within `timeout_ms`.
 */
slackline_status slackline_publisher_wait(struct slackline_publisher *publisher,
                                          uint64_t version,
                                          size_t readers,
                                          uint64_t timeout_ms);

/**
 * Reads these slices from now on, `count` of them, in their order, and not the whole table; 0 reads all of it again.
 * `slackline_reader_table` goes on to describe the owner's table; a snapshot has a table of its own. There is no copy
 * to read until the next refresh has ended, and that copies to memory of the reader's: what
 * `slackline_reader_use_memory` gave is released. Checksums are not checked of a part.
 */
slackline_status slackline_reader_select(struct slackline_reader *reader,
                                         const struct slackline_slice *slices,
                                         size_t count);

/**
 * Finds which bytes of a version tensor number `tensor` of the owner's table is: where it lies in what
 * `slackline_reader_bytes` and `slackline_reader_pin` lend of a publisher's table. A publisher may align its tensors.
 */
slackline_status slackline_reader_tensor_range(const struct slackline_reader *reader,
                                               size_t tensor,
                                               uint64_t *begin,
                                               uint64_t *end);

/**
 * Connects again, after the loss of the owner, to its successor at `address`, which must have the same table. Waits
 * for one that does not listen yet. What the successor publishes has another epoch.
 */
slackline_status slackline_reader_reconnect(struct slackline_reader *reader,
                                            const char *address,
                                            uint64_t timeout_ms);

/**
 * Copies a version into memory of its own: the newest once it is at least `at_least`, and at most `max_staleness`
 * versions behind the newest when the copy is complete (`SLACKLINE_ANY_STALENESS`: the newest at the time of the
 * call). If `exactly` is not 0 it is the version `at_least` and no other, which is an error once no frame holds it any
 * more. The snapshot is the caller's, to be destroyed; on failure it is NULL.
 *
 * After `SLACKLINE_STATUS_DEADLINE` nothing is under way: the next call asks again, and keeps only what was copied
 * whole of the same version. With a `timeout_ms` of 0 it may never succeed, nor may refresh, pull, newest and pin. A
 * program that does not wait calls `slackline_reader_begin_refresh` and `slackline_reader_poll`, which go on.
 */
slackline_status slackline_reader_snapshot(struct slackline_reader *reader,
                                           uint64_t at_least,
                                           uint64_t max_staleness,
                                           uint32_t exactly,
                                           uint64_t timeout_ms,
                                           struct slackline_snapshot **snapshot);

/**
 * Lends the bytes, `len` of them, laid out as `slackline_snapshot_table` says. Valid, and unchanging, until it is
 * destroyed. `fresh`, unless NULL, is told which version it is; `fresh->size` must be set.
 */
slackline_status slackline_snapshot_bytes(const struct slackline_snapshot *snapshot,
                                          const void **bytes,
                                          size_t *len,
                                          struct slackline_fresh *fresh);

/**
 * Lends the table of the bytes, `count` tensors: the selected slices, or the whole table.
 * `slackline_snapshot_tensor` says where each lies. Valid until the snapshot is destroyed.
 */
slackline_status slackline_snapshot_table(const struct slackline_snapshot *snapshot,
                                          const struct slackline_tensor **tensors,
                                          size_t *count);

/**
 * Lends the bytes of one tensor of a snapshot. Valid until the snapshot is destroyed.
 */
slackline_status slackline_snapshot_tensor(const struct slackline_snapshot *snapshot,
                                           const char *name,
                                           const void **bytes,
                                           size_t *len);

/**
 * Ends the snapshot: its memory is used for a later one. NULL does nothing.
 */
void slackline_snapshot_destroy(struct slackline_snapshot *snapshot);

/**
 * Connects to the first of `count` addresses in `upstream` that answers within `timeout_ms`, and serves at
 * `address`, which is as for a publisher. If the owner upstream is lost later, the next address is tried. `options`,
 * whose `frames` and `chunk_bytes` are the owner's whatever they say, may be NULL. The relay is the caller's, to be
 * destroyed; on failure it is NULL.
 */
slackline_status slackline_relay_start(const char *const *upstream,
                                       size_t count,
                                       const char *address,
                                       const struct slackline_publisher_options *options,
                                       uint64_t timeout_ms,
                                       struct slackline_relay **relay);

/**
 * Joins the tree that the publisher at `publisher` arranges of its relays, waiting up to `timeout_ms` for it, and
 * serves at `address`, which is as for a publisher, and must be one at which others reach it. The publisher says
 * from whom the relay reads, and sends readers with `in_tree` to it; if its owner is lost, it says so again.
 * `options` is as for `slackline_relay_start`. The relay is the caller's, to be destroyed; on failure it is NULL.
 */
slackline_status slackline_relay_join(const char *publisher,
                                      const char *address,
                                      const struct slackline_publisher_options *options,
                                      uint64_t timeout_ms,
                                      struct slackline_relay **relay);

/**
 * Lends the address at which readers reach this relay. It is valid until the relay is destroyed.
 */
slackline_status slackline_relay_address(const struct slackline_relay *relay, const char **address);

/**
 * Sets `version` to the newest version that the relay serves. Of a relay that has ended the call fails with the status
 * and the message of the cause.
 */
slackline_status slackline_relay_version(const struct slackline_relay *relay,
                                         uint64_t *version);

/**
 * Writes the statuses of at most `room` readers of the relay to `statuses`, and the number of all that are in to
 * `count`. Those of a relay that has ended are the last ones that it had.
 */
slackline_status slackline_relay_readers(const struct slackline_relay *relay,
                                         struct slackline_reader_status *statuses,
                                         size_t room,
                                         size_t *count);

/**
 * Ends the relay; its readers are told. NULL does nothing.
 */
void slackline_relay_destroy(struct slackline_relay *relay);

/**
 * Sets all options but `size`, which the caller has set, to their defaults.
 */
slackline_status slackline_worker_options_init(struct slackline_worker_options *options);

/**
 * Connects to the servers of all shards, given in any order. Where no process listens at an address it waits for
 * one; if none comes within `timeout_ms` that is `SLACKLINE_STATUS_SYSTEM`. `SLACKLINE_STATUS_DEADLINE` says that a
 * server accepted the connection and did not answer: its owner has to call progress or serve. After either, call
 * again. The worker is the caller's, to be destroyed; on failure it is NULL.
 */
slackline_status slackline_worker_connect(const char *const *addresses,
                                          size_t address_count,
                                          const struct slackline_worker_options *options,
                                          uint64_t timeout_ms,
                                          struct slackline_worker **worker);

/**
 * Leaves all servers and connects again, to the servers of all shards in any order: after
 * `SLACKLINE_STATUS_SERVER_LOST` or `SLACKLINE_STATUS_EVICTED`, or whenever the servers have other addresses. It
 * keeps trying while a server is not there yet. The worker goes on at the clock at which the servers are; begin
 * tells it. A gradient whose publishing had not returned was applied once or not at all, and is never sent again.
 * After a failure every call is out of turn until this one succeeds. Memory of `slackline_worker_use_memory` to
 * which a GPU still copies for the connections before is left to it: the worker goes on in memory of its own, which
 * begin gives, until it is given memory again. A worker of a job calls `slackline_job_reconnect` instead.
 */
slackline_status slackline_worker_reconnect(struct slackline_worker *worker,
                                            const char *const *addresses,
                                            size_t address_count,
                                            uint64_t timeout_ms);

/**
 * Lends the table of the servers, `count` tensors with their names and shapes. Valid, and unchanging, until this
 * worker is destroyed.
 */
slackline_status slackline_worker_table(const struct slackline_worker *worker,
                                        const struct slackline_tensor **tensors,
                                        size_t *count);

/**
 * Lends the name of the scheme that the servers and this worker keep, with its settings, as the field `scheme` takes
 * it. Valid until this worker is destroyed.
 */
slackline_status slackline_worker_scheme(const struct slackline_worker *worker,
                                         const char **scheme);

/**
 * Writes the present state to `status`. `status->size` must be set.
 */
slackline_status slackline_worker_get_status(const struct slackline_worker *worker,
                                             struct slackline_worker_status *status);

/**
 * Writes to `staleness` how stale the parameters were on which this worker computed its gradients since it connected
 * first. `staleness->size` must be set.
 */
slackline_status slackline_worker_get_staleness(const struct slackline_worker *worker,
                                                struct slackline_staleness *staleness);

/**
 * Drives a gradient forward that is on its way, without waiting: it is called between pieces of a computation, for
 * gradients that `slackline_worker_publish` with a `timeout_ms` of 0 began to publish.
 * `progressed`, unless NULL, becomes 1 if it got anywhere and 0 if not.
 */
slackline_status slackline_worker_progress(struct slackline_worker *worker,
                                           uint32_t *progressed);

/**
 * Has the worker copy parameters into memory of the caller's from now on, and take gradients out of it, where it
 * lies; either may be NULL. There are `parameter_bytes` from `parameters` on, as many as the table has, and
 * `gradient_bytes` from `gradient` on, as many as a gradient has in its encoding. Both are multiples of 8 and do not
 * overlap, and over RDMA they are registered with the device. The parameters that the worker holds are copied there
 * now. It is an error while a step is open.
 *
 * The memory stays valid until `release` (which may be NULL) is called with `context`: when other memory was given,
 * or the worker was destroyed, and no request uses either any more. Until then no other code reads or writes the
 * parameters but while a step is open, nor the gradient from the moment when it is published until that has ended.
 * After a failure `release` was called, and the worker has the memory that it had.
 */
slackline_status slackline_worker_use_memory(struct slackline_worker *worker,
                                             void *parameters,
                                             size_t parameter_bytes,
                                             void *gradient,
                                             size_t gradient_bytes,
                                             slackline_release release,
                                             void *context);

/**
 * Waits until every server has folded in, or dropped, all published gradients of this worker: call it before you
 * destroy a worker whose last gradients count.
 */
slackline_status slackline_worker_flush(struct slackline_worker *worker,
                                        uint64_t timeout_ms);

/**
 * Leaves the job. NULL does nothing.
 */
void slackline_worker_destroy(struct slackline_worker *worker);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SLACKLINE_H */
