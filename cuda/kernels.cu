// All kernels, from which `cargo xtask ptx` makes kernels.ptx.
#include "abi.h"

#include "number.cuh"
#include "rule.cuh"

#include "fold.cuh"

#include "encode.cuh"

#include "train.cuh"

#include "publish.cuh"
