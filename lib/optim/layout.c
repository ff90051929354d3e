#include "optim/layout.h"

#include <string.h>

const unsigned char mo_export_magic[8] = {'M', 'E', 'M', 'O', 'P', 'T', 'O', 'S'};

static mo_state_part part_of(void *data, uint64_t bytes, uint32_t word)
{
    return (mo_state_part){data, bytes, (bytes + 7) / 8 * 8, word};
}

/* Of `count` moments, or of their scales, the one at `index`. */
static void *pick(uint64_t index, uint64_t count, void *first, void *slow, void *last)
{
    return index == 0 ? first : index == count - 1 ? last : slow;
}

int mo_state_parts(const mo_parameter *p, mo_state_part parts[MO_EXPORT_PARTS])
{
    const mo_optim_tensor *d = &p->device;
    const uint64_t n = p->moments, count = mo_parameter_states(p);
    for (uint64_t k = 0; k < count; k++) {
        memopt_tensor t = mo_parameter_state(p, k);
        uint32_t word = (uint32_t)memopt_dtype_size(t.dtype);
        void *data = k < n ? pick(k, n, d->m, d->slow, d->v)
                     : p->split && k == count - 1
                         ? d->residual
                         : pick(k - n, n, d->absmax1, d->slow_absmax, d->absmax2);
        parts[k] = part_of(data, t.count * word, word);
    }
    return (int)count;
}

uint64_t mo_parts_bytes(const mo_parameter *p)
{
    mo_state_part parts[MO_EXPORT_PARTS];
    uint64_t bytes = 0;
    for (int k = 0, n = mo_state_parts(p, parts); k < n; k++)
        bytes += parts[k].padded;
    return bytes;
}

uint32_t mo_export_version(const memopt_optimizer *o)
{
    if (o->options.kind == MEMOPT_OPTIMIZER_ADEMAMIX)
        return 4;
    if (o->options.kind == MEMOPT_OPTIMIZER_ADAFACTOR)
        return 6;
    if (o->options.split_weights)
        return o->options.split_weights == 1 ? 3 : 5;
    return o->options.kind == MEMOPT_OPTIMIZER_ADAMW &&
                   o->options.state_format <= MEMOPT_STATE_8BIT_DYNAMIC
               ? 1
               : 2;
}

uint32_t mo_export_format(const mo_parameter *p)
{
    return p->moments != 0 ? p->format : 0;
}

uint64_t mo_export_group_bytes(uint32_t version)
{
    return version == 1 ? 48 : version == 4 ? 104 : version == 6 ? 96 : 72;
}

uint64_t mo_export_record_bytes(int is_cut)
{
    return is_cut ? MO_EXPORT_SHARD : MO_EXPORT_PARAMETER;
}

uint64_t mo_export_bytes(const memopt_optimizer *o)
{
    uint64_t bytes = MO_EXPORT_HEADER + MO_EXPORT_END +
                     o->group_count * mo_export_group_bytes(mo_export_version(o)) +
                     o->parameter_count * mo_export_record_bytes(o->is_cut);
    for (uint64_t i = 0; i < o->parameter_count; i++)
        bytes += mo_parts_bytes(&o->parameters[i]);
    return bytes;
}

void mo_export_turn(unsigned char *at, uint64_t bytes, uint32_t word)
{
    for (uint64_t i = 0; MO_BIG_ENDIAN && word > 1 && i < bytes; i += word)
        for (uint32_t low = 0, high = word - 1; low < high; low++, high--) {
            unsigned char byte = at[i + low];
            at[i + low] = at[i + high];
            at[i + high] = byte;
        }
}

void mo_put_u32(unsigned char *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (unsigned char)(value >> (8 * i));
}

void mo_put_u64(unsigned char *at, uint64_t value)
{
    mo_put_u32(at, (uint32_t)value);
    mo_put_u32(at + 4, (uint32_t)(value >> 32));
}

void mo_put_f64(unsigned char *at, double value)
{
    mo_put_u64(at, mo_f64_bits(value));
}

uint32_t mo_get_u32(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

uint64_t mo_get_u64(const unsigned char *at)
{
    return mo_get_u32(at) | (uint64_t)mo_get_u32(at + 4) << 32;
}

double mo_get_f64(const unsigned char *at)
{
    return mo_f64_from_bits(mo_get_u64(at));
}
