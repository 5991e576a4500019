/* What a launch passes to a kernel: one structure by value, the kernel's only parameter.
 *
 * Plain C, without headers, for NVRTC has none. `unsigned long long` has 8 bytes, `unsigned` and `float` have 4, and
 * pointers have 8 and hold addresses that the GPU can use. All is little-endian, as both sides are. The offsets on the
 * right are checked at the end of this file.
 *
 * Every kernel takes any grid of any one-dimensional blocks of at most SLACKLINE_BLOCK threads. Its results do not
 * depend on the grid.
 */
#pragma once

/* Most threads of a block. */
#define SLACKLINE_BLOCK 256
/* Most gradients of one fold. */
#define SLACKLINE_GRADIENTS 256
/* The lanes among which a measured fold distributes its elements. */
#define SLACKLINE_LANES 131072ull
/* The sums that slackline_moments leaves. */
#define SLACKLINE_SUMS 256

/* Sums of squares: of the weighted sum of the gradients, and of each gradient. Aligned to 16 bytes. */
struct slackline_squares {
    double of_sum;                                   /*  0 */
    double of_each;                                  /*  8 */
};                                                   /* 16 bytes */

/* slackline_fold_<rule>_<type> and slackline_fold_<rule>_<type>_measured: fold.cuh says what they do.
 *
 * Constants that a rule does not have are not read. The arrays hold element 0 of the parameters at their beginning,
 * whichever elements the launch folds. `to` overlaps nothing that is read. An f32 array is aligned to 4 bytes, one of
 * bf16 or f16 to 2. Where all f32 arrays are aligned to 16 bytes, and those of bf16 or f16 to 8, accesses are as wide.
 */
struct slackline_fold {
    unsigned long long offset;                       /*    0  the first element */
    unsigned long long count;                        /*    8  elements, at least 1 */
    const float *from[3];                            /*   16  parameters, then the optimiser's states; unused: any */
    float *to[3];                                    /*   40  the same */
    unsigned *not_finite;                            /*   64  becomes 1 if a new parameter is NaN or infinite */
    struct slackline_squares *squares;               /*   72  measured: SLACKLINE_LANES of them; else unused */
    unsigned gradients;                              /*   80  their number, at most SLACKLINE_GRADIENTS */
    float rate;                                      /*   84  sgd, momentum */
    float decay;                                     /*   88  all; adamw: rate * decay */
    float momentum;                                  /*   92  momentum */
    float beta1;                                     /*   96  adam, adamw, like all that follow */
    float one_less_beta1;                            /*  100  1 - b1 */
    float beta2;                                     /*  104 */
    float one_less_beta2;                            /*  108  1 - b2 */
    float step_size;                                 /*  112  rate / (1 - b1^t) */
    float correction;                                /*  116  sqrt(1 - b2^t) */
    float epsilon;                                   /*  120 */
    unsigned reserved;                               /*  124  not read */
    float weights[SLACKLINE_GRADIENTS];              /*  128  of the gradients */
    const void *elements[SLACKLINE_GRADIENTS];       /* 1152  the gradients: f32, bf16 or f16 */
};                                                   /* 3200 bytes */

/* slackline_moments: the sums of a measured fold's lanes, which fold.cuh describes. */
struct slackline_lanes {
    const struct slackline_squares *lanes;           /*  0  `squares` of the fold */
    unsigned long long count;                        /*  8  lanes that the fold has: SLACKLINE_LANES at most */
    struct slackline_squares *sums;                  /* 16  SLACKLINE_SUMS of them, all of which are written */
};                                                   /* 24 bytes */

/* slackline_encode_bf16, slackline_encode_f16: encode.cuh. `to` does not overlap `from`. Where `from` is aligned to 16
 * bytes and `to` to 8, accesses are as wide; 4 and 2 bytes are enough. */
struct slackline_encode {
    unsigned long long offset;                       /*  0  the first element, of both arrays */
    unsigned long long count;                        /*  8  elements, at least 1 */
    const float *from;                               /* 16 */
    unsigned short *to;                              /* 24 */
};                                                   /* 32 bytes */

/* slackline_train_linear, slackline_train_gradient, slackline_train_deltas: see train.cuh. */
struct slackline_layer {
    const float *inputs;                             /*  0  rows of `columns` */
    const unsigned long long *rows;                  /*  8  the row of each example; null: example e has row e */
    const float *parameters;                         /* 16  weights, units x columns, then biases, units */
    float *outputs;                                  /* 24  examples x units; gradient, deltas: derivatives by them */
    float *results;                                  /* 32  gradient: as `parameters`; deltas: examples x columns */
    unsigned examples;                               /* 40 */
    unsigned columns;                                /* 44 */
    unsigned units;                                  /* 48 */
    unsigned relu;                                   /* 52  linear: 1 where the outputs are rectified, else 0 */
};                                                   /* 56 bytes */

/* slackline_train_softmax: see train.cuh. */
struct slackline_softmax {
    float *scores;                                   /*  0  examples x classes, changed to derivatives */
    const unsigned *labels;                          /*  8  of all rows, each below `classes` */
    const unsigned long long *rows;                  /* 16  as in slackline_layer */
    float *losses;                                   /* 24  examples */
    unsigned examples;                               /* 32 */
    unsigned classes;                                /* 36 */
    float share;                                     /* 40  1 / the examples of the mean */
    unsigned reserved;                               /* 44  not read */
};                                                   /* 48 bytes */

/* slackline_publish_versions: publish.cuh. All addresses are of 8-byte words, and `latest`, `headers` and `stop` those of
 * words that the host shares. */
struct slackline_publish {
    const unsigned long long *stop;                  /*  0  the kernel ends once it is not 0 */
    unsigned long long *latest;                      /*  8  number of the newest version * 256 + its frame */
    unsigned long long *headers;                     /* 16  of the frames, 8 words each */
    unsigned long long *frames;                      /* 24  the first word of frame 0 */
    unsigned long long stride;                       /* 32  words from one frame to the next */
    unsigned long long words;                        /* 40  of a version */
    unsigned long long version;                      /* 48  the number before the first */
    unsigned frame;                                  /* 56  the frame that has that version */
    unsigned count;                                  /* 60  frames, at least 2 */
};                                                   /* 64 bytes */

#if defined(__cplusplus) && !defined(__CUDACC_RTC__) /* NVRTC has no offsetof. */
#define SLACKLINE_AT(structure, field, offset)                                                                         \
    static_assert(__builtin_offsetof(structure, field) == offset, #field " is not at " #offset)

static_assert(sizeof(void *) == 8 && sizeof(unsigned long long) == 8 && sizeof(unsigned) == 4, "sizes");
SLACKLINE_AT(slackline_squares, of_each, 8);
SLACKLINE_AT(slackline_fold, count, 8);
SLACKLINE_AT(slackline_fold, from, 16);
SLACKLINE_AT(slackline_fold, to, 40);
SLACKLINE_AT(slackline_fold, not_finite, 64);
SLACKLINE_AT(slackline_fold, squares, 72);
SLACKLINE_AT(slackline_fold, gradients, 80);
SLACKLINE_AT(slackline_fold, rate, 84);
SLACKLINE_AT(slackline_fold, decay, 88);
SLACKLINE_AT(slackline_fold, momentum, 92);
SLACKLINE_AT(slackline_fold, beta1, 96);
SLACKLINE_AT(slackline_fold, one_less_beta1, 100);
SLACKLINE_AT(slackline_fold, beta2, 104);
SLACKLINE_AT(slackline_fold, one_less_beta2, 108);
SLACKLINE_AT(slackline_fold, step_size, 112);
SLACKLINE_AT(slackline_fold, correction, 116);
SLACKLINE_AT(slackline_fold, epsilon, 120);
SLACKLINE_AT(slackline_fold, weights, 128);
SLACKLINE_AT(slackline_fold, elements, 1152);
SLACKLINE_AT(slackline_lanes, count, 8);
SLACKLINE_AT(slackline_lanes, sums, 16);
SLACKLINE_AT(slackline_encode, count, 8);
SLACKLINE_AT(slackline_encode, from, 16);
SLACKLINE_AT(slackline_encode, to, 24);
SLACKLINE_AT(slackline_layer, rows, 8);
SLACKLINE_AT(slackline_layer, parameters, 16);
SLACKLINE_AT(slackline_layer, outputs, 24);
SLACKLINE_AT(slackline_layer, results, 32);
SLACKLINE_AT(slackline_layer, examples, 40);
SLACKLINE_AT(slackline_layer, columns, 44);
SLACKLINE_AT(slackline_layer, units, 48);
SLACKLINE_AT(slackline_layer, relu, 52);
SLACKLINE_AT(slackline_softmax, labels, 8);
SLACKLINE_AT(slackline_softmax, rows, 16);
SLACKLINE_AT(slackline_softmax, losses, 24);
SLACKLINE_AT(slackline_softmax, examples, 32);
SLACKLINE_AT(slackline_softmax, classes, 36);
SLACKLINE_AT(slackline_softmax, share, 40);
SLACKLINE_AT(slackline_publish, latest, 8);
SLACKLINE_AT(slackline_publish, headers, 16);
SLACKLINE_AT(slackline_publish, frames, 24);
SLACKLINE_AT(slackline_publish, stride, 32);
SLACKLINE_AT(slackline_publish, words, 40);
SLACKLINE_AT(slackline_publish, version, 48);
SLACKLINE_AT(slackline_publish, frame, 56);
SLACKLINE_AT(slackline_publish, count, 60);
static_assert(sizeof(slackline_squares) == 16, "slackline_squares has 16 bytes");
static_assert(sizeof(slackline_fold) == 3200, "slackline_fold has 3200 bytes");
static_assert(sizeof(slackline_lanes) == 24, "slackline_lanes has 24 bytes");
static_assert(sizeof(slackline_encode) == 32, "slackline_encode has 32 bytes");
static_assert(sizeof(slackline_layer) == 56, "slackline_layer has 56 bytes");
static_assert(sizeof(slackline_softmax) == 48, "slackline_softmax has 48 bytes");
static_assert(sizeof(slackline_publish) == 64, "slackline_publish has 64 bytes");

#undef SLACKLINE_AT
#endif
