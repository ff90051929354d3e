#include "kernels/hash/hash_bytes.h"

#include "kernels/hash/hash_cpu.h"

/* The scalar form: it may run on any thread, without a device. */
uint64_t mo_hash_bytes(uint64_t hash, const void *data, uint64_t bytes)
{
    uint64_t granule = 0;
    for (uint64_t done = 0; done < bytes; done += MO_HASH_GRANULE) {
        uint64_t rest = bytes - done;
        const mo_hash_granules_args args = {(const unsigned char *)data + done, &granule,
                                            rest < MO_HASH_GRANULE ? rest : MO_HASH_GRANULE};
        mo_hash_granules_ref(&args, 0, 1);
        hash = mo_hash_term(hash ^ granule, 0); /* a bijection of either; in order */
    }
    return hash;
}
