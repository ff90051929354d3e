/**
 * @file fit.h
 * @brief Fit a training step into a byte budget: replay what choices would take, and choose.
 *
 * A ::memopt_fit holds the **tape** of one step: storages are born and die, saved tensors are
 * packed, unpacked and released, modules are entered and left. A **choice** changes the step: a
 * module's forward runs again in backward, a saved value is made again, or it waits on the host or
 * on the disk.
 * memopt_fit_replay() gives the bytes that a step with some choices takes, exactly.
 * memopt_fit_solve() finds choices that hold a budget and cost little time; each candidate is
 * replayed, so what it answers is exact, too. Nothing is run, and no device is needed.
 *
 * **The tape.** An event names a storage, a pack or a module by its index. A pack is a saved tensor:
 * it lives from #MEMOPT_FIT_PACK to #MEMOPT_FIT_RELEASE, and holds its storage. A death
 * (#MEMOPT_FIT_DEATH) tells when a storage has no other owner than packs; it is freed when its packs
 * are released, too. A module is one call of one module: a module that is called twice has two
 * indices. Modules nest. #MEMOPT_FIT_BACKWARD ends forward. Storages that live all the time
 * (weights, states, the batch) are not on the tape; they count in `fixed_bytes`.
 *
 * **Choices.**
 * - #MEMOPT_FIT_RECOMPUTE, a module: packs within it hold nothing in forward. The first of them that
 *   is unpacked runs the module's events again, from its entry to the last pack that is not yet
 *   released; then each pack holds what it needs until its release. Its inputs live from its entry
 *   until its last pack is released. So do `extra_bytes` (copies of buffers), which count twice
 *   while it runs again. A recomputed module may be within another one, which then packs its
 *   inputs: they are there from the outer module's run until its own run is over. It runs twice more,
 *   in that run and for its own packs, and its `extra_bytes` live in both.
 * - #MEMOPT_FIT_REMAKE, a storage: its packs, from `first_pack` on, hold the inputs instead. When one
 *   is unpacked and no other has made the storage again, it is made: `extra_bytes` more live while
 *   that runs. A pack whose inputs are freed at its time, or that is within a recomputed module,
 *   is as without the choice.
 * - #MEMOPT_FIT_OFFLOAD, a storage: its packs, from `first_pack` on, hold one copy on the host.
 *   When one is unpacked and no other has brought the storage back, it is brought back.
 * - #MEMOPT_FIT_DISK, a storage: the same with a copy on the disk.
 *
 * Two choices exclude each other if they are for the same module or storage; if one remakes a storage
 * from one that the other chooses; or if a storage is remade that is born in a recomputed module, other
 * than the choice's own `module`.
 *
 * **Threads.** A handle does not change after memopt_fit_create(): any number of threads may use it.
 */
#ifndef MEMOPT_FIT_H
#define MEMOPT_FIT_H

#include <memopt/base.h>

MEMOPT_BEGIN_DECLS

/** @brief The tape of a step and its choices. */
typedef struct memopt_fit memopt_fit;

/** @brief What happens in an event. */
typedef uint32_t memopt_fit_event_kind;

/** @brief The values of ::memopt_fit_event_kind. */
enum {
    MEMOPT_FIT_BIRTH = 1,   /**< A storage is allocated. */
    MEMOPT_FIT_DEATH = 2,   /**< It has no owner any more but packs. */
    MEMOPT_FIT_PACK = 3,    /**< A tensor in a storage is saved for backward. */
    MEMOPT_FIT_UNPACK = 4,  /**< Backward reads it. */
    MEMOPT_FIT_RELEASE = 5, /**< Backward does not need it any more. */
    MEMOPT_FIT_ENTER = 6,   /**< A module's forward begins. */
    MEMOPT_FIT_LEAVE = 7,   /**< It ends. */
    MEMOPT_FIT_BACKWARD = 8 /**< Forward is over. At most once, outside all modules. */
};

/** @brief An event of a tape. */
typedef struct memopt_fit_event {
    uint32_t kind;    /**< A ::memopt_fit_event_kind. */
    uint32_t subject; /**< The storage; of a pack's events the pack; of a module's the module. */
    uint32_t storage; /**< Of #MEMOPT_FIT_PACK: its storage. Else not read. */
} memopt_fit_event;

/** @brief What a choice does. */
typedef uint32_t memopt_fit_choice_kind;

/** @brief The values of ::memopt_fit_choice_kind. */
enum {
    MEMOPT_FIT_RECOMPUTE = 1, /**< Runs a module's forward again. */
    MEMOPT_FIT_REMAKE = 2,    /**< Makes a saved value again from its inputs. */
    MEMOPT_FIT_OFFLOAD = 3,   /**< Keeps a saved value on the host. */
    MEMOPT_FIT_DISK = 4       /**< Keeps a saved value on the disk. */
};

/** @brief In place of a module: none. */
#define MEMOPT_FIT_NONE UINT32_MAX

/** @brief Something that may be done to take fewer bytes. */
typedef struct memopt_fit_choice {
    uint32_t kind;        /**< A ::memopt_fit_choice_kind. */
    uint32_t module;      /**< RECOMPUTE: the module. REMAKE: the module that is called to make
                               the value, or #MEMOPT_FIT_NONE. OFFLOAD, DISK: not read. */
    uint32_t storage;     /**< REMAKE, OFFLOAD, DISK: the value. RECOMPUTE: not read. */
    uint32_t first_pack;  /**< REMAKE, OFFLOAD, DISK: packs of the storage from this number on. */
    uint32_t first_input; /**< Where its inputs begin in memopt_fit_tape::inputs. */
    uint32_t input_count; /**< How many inputs it has. OFFLOAD, DISK: 0. */
    uint64_t extra_bytes; /**< See the choice's kind. OFFLOAD, DISK: not read. */
    double seconds;       /**< Time each time that it is run, made or copied there and back: finite,
                               ≥ 0, in any unit. */
} memopt_fit_choice;

/** @brief A step, as it runs without choices, and what may be chosen. */
typedef struct memopt_fit_tape {
    size_t struct_size;               /**< sizeof(memopt_fit_tape). */
    const memopt_fit_event *events;   /**< In order. */
    uint64_t event_count;             /**< At most 2^24. */
    const uint64_t *storage_bytes;    /**< Of each storage. */
    uint64_t storage_count;           /**< At most event_count. */
    const memopt_fit_choice *choices; /**< What may be chosen. */
    uint64_t choice_count;            /**< At most 4096. */
    const uint32_t *inputs;           /**< Storages that choices hold. */
    uint64_t input_count;             /**< Length of `inputs`. */
    uint64_t fixed_bytes;             /**< What lives all the time. */
} memopt_fit_tape;

/** @brief Initialiser of ::memopt_fit_tape. */
#define MEMOPT_FIT_TAPE_INIT                                                                       \
    {                                                                                              \
        sizeof(memopt_fit_tape), NULL, 0, NULL, 0, NULL, 0, NULL, 0, 0                             \
    }

/** @brief What a step takes with some choices. */
typedef struct memopt_fit_result {
    size_t struct_size;    /**< Set by the caller. */
    uint64_t peak_bytes;   /**< The most bytes that live at once, fixed_bytes included. */
    uint64_t host_bytes;   /**< The most bytes on the host at once. */
    double seconds;        /**< Time that the choices add. */
    uint64_t peak_event;   /**< The first event of the tape within which the peak is. */
    uint32_t peak_module;  /**< The innermost module that runs then, or that runs again then; or
                               #MEMOPT_FIT_NONE. */
    uint32_t peak_storage; /**< The largest storage of the tape that lives then, or
                                #MEMOPT_FIT_NONE. */
    uint64_t disk_bytes;   /**< The most bytes on the disk at once. */
} memopt_fit_result;

/** @brief Initialiser of ::memopt_fit_result. */
#define MEMOPT_FIT_RESULT_INIT                                                                     \
    {                                                                                              \
        sizeof(memopt_fit_result), 0, 0, 0, 0, 0, 0, 0                                             \
    }

/** @brief What memopt_fit_solve() is to hold; zero means the default. */
typedef struct memopt_fit_options {
    size_t struct_size; /**< sizeof(memopt_fit_options). */
    uint64_t budget; /**< The most bytes that may live at once. 0: as few as possible, the floor. */
    uint64_t host_limit; /**< The most bytes on the host at once. 0: no limit. */
    uint64_t disk_limit; /**< The most bytes on the disk at once. 0: no limit. */
} memopt_fit_options;

/** @brief Initialiser of ::memopt_fit_options. */
#define MEMOPT_FIT_OPTIONS_INIT                                                                    \
    {                                                                                              \
        sizeof(memopt_fit_options), 0, 0, 0                                                        \
    }

/**
 * @brief Takes a tape and checks it.
 * @param tape the tape; copied.
 * @param[out] out_fit the handle; destroy it with memopt_fit_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or a count too large; an event is out of
 *         order: a storage is not born once before it is used, a pack is not packed once before it is
 *         unpacked or released, modules do not nest; a choice names something that is not on the
 *         tape, or its time is negative or not finite; or sizes do not fit 62 bits. The message
 *         names the event or the choice.
 * @retval MEMOPT_UNSUPPORTED an unknown field at the end of the struct is set.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_fit_create(const memopt_fit_tape *tape, memopt_fit **out_fit);

/**
 * @brief Destroys a handle. No other thread may use it then.
 * @param fit the handle; NULL does nothing.
 * @retval MEMOPT_OK done.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_fit_destroy(memopt_fit *fit);

/**
 * @brief Tells what the step takes with some choices, exactly. Time O(events), any thread.
 * @param fit the handle.
 * @param chosen indices of choices, each once; NULL if count is 0.
 * @param count how many.
 * @param[in,out] out_result the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, struct_size is too small, an index is out of
 *         range or given twice, two choices exclude each other, or a recomputed module is within
 *         two that are; the message names them.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_fit_replay(const memopt_fit *fit, const uint32_t *chosen,
                                           uint64_t count, memopt_fit_result *out_result);

/**
 * @brief Finds choices that hold a budget at little additional time.
 *
 * A binary program: least time, so that the peak holds. Bytes that single choices save at each
 * moment are taken as a sum, moments weighted by Lagrangian multipliers, and each proposal is
 * replayed, repaired and improved by single changes. So the peak is exact, and the time near the
 * least. The result is the same on every run and machine with the same tape. About a second
 * for 300 modules and 300 values. Any thread.
 * @param fit the handle.
 * @param options budget and limits of host and disk; NULL: the floor.
 * @param[out] out_chosen memory for as many indices as the tape has choices; gets those chosen,
 *        ascending. NULL if the tape has none.
 * @param[out] out_count how many.
 * @param[in,out] out_result the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @retval MEMOPT_UNSUPPORTED an unknown field at the end of the options is set.
 * @retval MEMOPT_LIMIT_REACHED the budget is below the least peak that was found; the message gives
 *         that floor, where in the step it is, and the largest storage then.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_fit_solve(const memopt_fit *fit, const memopt_fit_options *options,
                                          uint32_t *out_chosen, uint64_t *out_count,
                                          memopt_fit_result *out_result);

MEMOPT_END_DECLS

#endif /* MEMOPT_FIT_H */
