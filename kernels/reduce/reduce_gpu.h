/* A stripe of a sum on a GPU: a group of 32 threads is its lanes, whatever the width of the warp.
 */
#ifndef MO_KERNELS_REDUCE_REDUCE_GPU_H
#define MO_KERNELS_REDUCE_REDUCE_GPU_H

#include "kernels/core/gpu_vector_io.h"

#include "kernels/reduce/reduce.h"

/* mo_stripe_tree over the lanes of a group: lane 0's result is the stripe's. */
MO_DEVICE double mo_lanes_tree(double value)
{
    MO_UNROLL
    for (uint32_t distance = MO_STRIPE_LANES / 2; distance > 0; distance /= 2)
        value += mo_shuffle_xor_f64(value, distance);
    return value;
}

/* The lane's share of its stripe: elements first, first + 32, ... below end, in order. Eight loads
 * start before the first is needed. */
template <uint32_t DTYPE>
MO_DEVICE double mo_lane_squares(const unsigned char *data, uint32_t first, uint32_t end)
{
    enum { AHEAD = 8 };
    const uint32_t size = DTYPE == MO_DTYPE_F32 ? 4 : 2;
    double sum = 0;
    uint32_t i = first;
    for (; i + (AHEAD - 1) * MO_STRIPE_LANES < end; i += AHEAD * MO_STRIPE_LANES) {
        uint32_t codes[AHEAD];
        MO_UNROLL
        for (uint32_t k = 0; k < AHEAD; k++)
            codes[k] = mo_read_code(data, i + k * MO_STRIPE_LANES, size);
        MO_UNROLL
        for (uint32_t k = 0; k < AHEAD; k++) {
            double value = (double)mo_decode_as<DTYPE>(codes[k]);
            sum += value * value;
        }
    }
    for (; i < end; i += MO_STRIPE_LANES) {
        double value = (double)mo_decode_as<DTYPE>(mo_read_code(data, i, size));
        sum += value * value;
    }
    return sum;
}

#endif
