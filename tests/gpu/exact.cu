/*
 * The f32 reciprocal, root and quotient of the optimizers' loops, beside the processor's correctly
 * rounded ones. They lean on approximations, which each kind of processor has its own of: exact.py
 * runs this on a card before anything else. A thread tries MO_EXACT_TURNS operands.
 */
#include "kernels/optim/adamw_gpu.h"

enum { MO_EXACT_THREADS = 256, MO_EXACT_TURNS = 256 };
enum { MO_EXACT_RECIPROCAL, MO_EXACT_ROOT, MO_EXACT_QUOTIENT };

/* Operand number n has the bits n * stride; a quotient's are in n: the divisor's significand, the
 * other one's, both exponents (6 and 7 bits), of which a significand takes so many bits. */
typedef struct mo_exact_args {
    uint32_t *wrong; /* raised to the bits of an operand whose result is wrong */
    uint64_t stride;
    uint32_t what, divisor_bits, other_bits, reserved;
} mo_exact_args;

MO_DEVICE uint64_t mo_exact_number(uint64_t item, uint32_t turn)
{
    return (item * MO_EXACT_TURNS + turn) * MO_EXACT_THREADS + mo_thread_index();
}

MO_DEVICE void mo_exact_check(const mo_exact_args &args, uint32_t operand, float found,
                              float wanted)
{
    if (MO_RARE(mo_f32_bits(found) != mo_f32_bits(wanted)))
        mo_cell_raise(args.wrong, operand);
}

/* Of all scales of blocks that are plain. */
MO_DEVICE void mo_exact_reciprocal(const mo_exact_args &args, uint32_t bits)
{
    if (mo_scale_is_plain(bits))
        mo_exact_check(args, bits, mo_reciprocal(mo_f32_from_bits(bits)),
                       1.0f / mo_f32_from_bits(bits));
}

/* Of all numbers up to 2^40. */
MO_DEVICE void mo_exact_root(const mo_exact_args &args, uint32_t bits)
{
    float v = mo_f32_from_bits(bits);
    if (bits != 0 && bits <= 0x53800000u)
        mo_exact_check(args, bits, mo_adamw_roots(mo_both(v)).of[0] * -0x1p-32f, mo_sqrtf(v));
}

/* A significand of so many bits of a number, and below them what those make. */
MO_DEVICE uint32_t mo_exact_significand(uint32_t number, uint32_t bits)
{
    uint32_t below = (1u << (23 - bits)) - 1;
    return number << (23 - bits) | (number * 2654435761u >> 8 & below);
}

/* Divisors from 2^-40 to below 2^24; dividends that AdamW may have. */
MO_DEVICE void mo_exact_quotient(const mo_exact_args &args, uint64_t n)
{
    uint32_t divisor = (uint32_t)n & ((1u << args.divisor_bits) - 1);
    uint32_t other = (uint32_t)(n >> args.divisor_bits) & ((1u << args.other_bits) - 1);
    uint32_t scales = (uint32_t)(n >> (args.divisor_bits + args.other_bits));
    uint32_t below = 87 + (scales & 63u), above = 20 + (scales >> 6 & 127u);
    divisor = below << 23 | mo_exact_significand(divisor, args.divisor_bits);
    other = above << 23 | mo_exact_significand(other, args.other_bits);
    float d = mo_f32_from_bits(divisor), m = mo_f32_from_bits(other);
    if (above + 124 >= below) /* the quotient is a normal number */
        mo_exact_check(args, divisor, mo_adamw_quotients(mo_both(m), mo_both(-d)).of[0],
                       m / d * 0x1p64f);
}

MO_GLOBAL(mo_exact, mo_exact_args, MO_EXACT_THREADS)
{
    MO_ROLLED
    for (uint32_t turn = 0; turn < MO_EXACT_TURNS; turn++) {
        uint64_t n = mo_exact_number(first_item + mo_block_index(), turn) * args.stride;
        if (args.what == MO_EXACT_RECIPROCAL)
            mo_exact_reciprocal(args, (uint32_t)n);
        else if (args.what == MO_EXACT_ROOT)
            mo_exact_root(args, (uint32_t)n);
        else
            mo_exact_quotient(args, n);
    }
}
