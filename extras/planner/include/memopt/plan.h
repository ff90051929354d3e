/**
 * @file plan.h
 * @brief Plans the memory of a training step before it runs: what it needs, what fits a device, and
 *        which changes make it fit.
 *
 * Settings are text: `key=value` entries, separated by line ends or semicolons. Blanks around keys
 * and values are ignored. If a key is given twice, the last entry counts. A key that is missing, or
 * that is 0, has its default. memopt_plan_get_key() lists all keys and what they accept.
 *
 * @code
 * memopt_plan *plan = NULL;
 * if (memopt_plan_solve("model.family=llama; model.hidden=2048; model.layers=22; run.batch=4;"
 *                       "run.weight_dtype=bf16; card.capacity=24GiB",
 *                       NULL, NULL, &plan) == MEMOPT_OK)
 *     puts(memopt_plan_get_json(plan));
 * @endcode
 *
 * Results are JSON text, or single numbers by name. The planner opens no device: it *plays* the
 * step with sizes in place of tensors, operation by operation, as PyTorch's autograd runs the code
 * of the `transformers` package. If you measure or trace your own program, pass a function instead
 * of a model.
 *
 * **What is exact.** Without offload of optimizer states, `peak_bytes` minus `categories.overhead`
 * is what a tracker of live tensor bytes measures on a step of such a model (transformers 5.23,
 * torch 2.15; optimizer states exist, gradients are set to None after the step, and the program
 * keeps only the loss). Tiny tensors are rounded up: the planned peak is never below the measured
 * one, and less than a thousandth above it (extras/planner/tests/truth).
 *
 * **What is an upper bound.** Attention `sdpa` with dropout on the CPU or an unknown device;
 * mixtures of experts, counted as the grouped products that transformers runs by default; all of
 * `categories.overhead`. With several devices the plan describes the fullest one.
 *
 * **What is an estimate.** Models given by their total of weights; contrastive heads; the fused
 * loss; all times. A time factor compares a step with the same run without recomputation and
 * offload: backward takes twice as long as forward, recomputation adds the forward of the layers
 * that run again, and copies to the host add the part that compute does not hide.
 *
 * **Threads.** All functions are thread-safe. Use a handle from one thread at a time.
 */
#ifndef MEMOPT_PLAN_H
#define MEMOPT_PLAN_H

#include <memopt/base.h>

MEMOPT_BEGIN_DECLS

/** @brief A plan: what a run needs and, from memopt_plan_solve(), what fits. */
typedef struct memopt_plan memopt_plan;

/** @brief Phases of a step, in this order: load, forward, loss, backward, step. */
#define MEMOPT_PLAN_PHASES 5

/** @brief Categories of bytes, in this order: parameters, gradients, optimizer, activations,
 *        logits, batch, overhead. */
#define MEMOPT_PLAN_CATEGORIES 7

/**
 * @brief Gives the bytes of a run that you measured or traced.
 *
 * The planner calls it on the calling thread, once for each run that it looks at.
 * @param user the pointer that you passed with the function.
 * @param settings the run as text: all keys `run.*` with their defaults filled in. `run.sequence`
 *        is missing if the settings do not have it. With adapters, which the planner may propose,
 *        `model.lora_rank`, `model.lora_targets`, `model.lora_dropout` (missing: 0) and
 *        `model.quantize` too. Valid during the call.
 * @param[out] out_bytes ::MEMOPT_PLAN_PHASES × ::MEMOPT_PLAN_CATEGORIES numbers, all zero on entry.
 *        Set number phase × ::MEMOPT_PLAN_CATEGORIES + category to the bytes of live tensors of one
 *        device at the fullest moment of the phase; overhead is what kernels take beside tensors, as
 *        far as the phase needs more because of it. What the card takes is added to the fullest
 *        phase's. A larger batch must not take fewer bytes.
 * @return MEMOPT_OK; MEMOPT_UNSUPPORTED or MEMOPT_INVALID_ARGUMENT if you do not know such a run:
 * the planner then does not propose changes that lead to it. Any other status ends the planner's
 *         call, which returns it.
 */
typedef memopt_status (*memopt_plan_measure)(void *user, const char *settings, uint64_t *out_bytes);

/**
 * @brief Plans a run: bytes by phase and category, by layer, and whether it fits the card.
 * @param settings the model, the run and the card; NULL is an empty text. `target.*` is ignored.
 *        With `measure`, only adapters (`model.lora_*`) and `model.quantize` count of `model.*`.
 * @param measure NULL: the planner plays the step of the model. Otherwise it asks this function.
 * @param user passed to measure; may be NULL.
 * @param[out] out_plan the plan; you own it, destroy it with memopt_plan_destroy(). Untouched on
 *        failure.
 * @retval MEMOPT_OK done, also if the run does not fit (then `fits` is false).
 * @retval MEMOPT_INVALID_ARGUMENT out_plan is NULL; a key is unknown (the message names the nearest
 *         one); a value is not accepted or does not go with another one (the message has both and
 *         what is accepted); or a sum does not fit 64 bits.
 * @retval MEMOPT_UNSUPPORTED the planner does not know this combination, or measure returned this.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY host allocation failed.
 * @return any other status that measure returned.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_create(const char *settings, memopt_plan_measure measure,
                                            void *user, memopt_plan **out_plan);

/**
 * @brief Finds the largest micro-batch that fits, the accumulation for an effective batch, and, if
 *        nothing fits, the changes that make it fit, cheapest in time first.
 *
 * The JSON has the plan of the run from which changes are counted (with the given batch or, without
 * one, with the batch that fits), and the result under `solution`.
 * @param settings as for memopt_plan_create(), with `card.capacity`; `target.*` says what to look
 *        for.
 * @param measure NULL: the planner plays the step of the model. Otherwise it asks this function:
 *        `time_assumption` then says what recomputation and copies are taken to cost.
 * @param user passed to measure; may be NULL.
 * @param[out] out_plan the plan; you own it, destroy it with memopt_plan_destroy(). Untouched on
 *        failure.
 * @retval MEMOPT_OK done, also if nothing fits (then `solution.fits_after` is false).
 * @retval MEMOPT_INVALID_ARGUMENT as for memopt_plan_create(), or card.capacity is missing.
 * @retval MEMOPT_UNSUPPORTED as for memopt_plan_create(), about the run as given.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY host allocation failed.
 * @return any other status that measure returned.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_solve(const char *settings, memopt_plan_measure measure,
                                           void *user, memopt_plan **out_plan);

/**
 * @brief Destroys a plan. The text of memopt_plan_get_json() is no longer valid.
 * @param plan the plan; NULL does nothing.
 * @retval MEMOPT_OK done.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_destroy(memopt_plan *plan);

/**
 * @brief The whole plan as a JSON object.
 *
 * `settings` has all settings with their defaults filled in; `categories` the bytes at the peak;
 * `phases` the same for each phase; `layers` a list; `solution`, if there is one, the batch, the
 * `changes` and the `settings` of the proposed run. Sizes are in bytes. Later versions may add
 * names; they remove none.
 * @param plan the plan.
 * @return UTF-8 text that the plan owns, valid until memopt_plan_destroy(); NULL if plan is NULL.
 * @since 0.9
 */
MEMOPT_API const char *memopt_plan_get_json(const memopt_plan *plan);

/**
 * @brief Gets one number of the JSON.
 * @param plan the plan.
 * @param name its name, with dots between levels: "peak_bytes", "fits", "categories.logits",
 *        "phases.backward.total", "solution.micro_batch".
 * @param[out] out_value the number; true is 1. Integers below 2^53 are exact. Untouched on failure.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_NOT_FOUND the plan has no such number; the message names the nearest one.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_get_value(const memopt_plan *plan, const char *name,
                                               double *out_value);

/** @brief A block of memory begins or ends. */
typedef struct memopt_plan_event {
    uint64_t id;    /**< Identifies the block from its begin to its end; then it may begin again. */
    uint64_t bytes; /**< The requested bytes of a block that begins; 0: it ends. */
} memopt_plan_event;

/**
 * @brief Lists what the planned run allocates and frees on one device, in order, from its start to
 *        the end of its second step.
 *
 * Replay the list through an allocator (memopt_trace_add(), memopt_trace_replay()) to learn what is
 * *reserved* where the plan's bytes are only what is *live*. The first step makes the optimizer's
 * states before its optimizer runs; the second has them from the start. Gradients end with the
 * step. A step is one micro-batch: with accumulation one that finds the gradients of those before
 * it. The temporaries of a kernel are one block.
 *
 * The first call plays the step again; the plan keeps the list.
 * @param plan a plan of a model, not of bytes that a function gave. In a plan of
 *        memopt_plan_solve() it is the run that changes are counted from.
 * @param[out] out_events the first `room` events; NULL if room is 0.
 * @param room how many events fit out_events.
 * @param[out] out_count how many events there are: call once with room 0 to learn it. Untouched on
 *        failure.
 * @retval MEMOPT_OK done, also if there are more events than room.
 * @retval MEMOPT_INVALID_ARGUMENT plan or out_count is NULL, or out_events is NULL with room.
 * @retval MEMOPT_UNSUPPORTED the bytes of the plan were measured: only their sums are known.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY host allocation failed; the plan is as it was.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_get_events(memopt_plan *plan, memopt_plan_event *out_events,
                                                uint64_t room, uint64_t *out_count);

/**
 * @brief Describes one key of the settings, for tools and documentation.
 *
 * All texts are static: do not free them.
 * @param index from 0 upward, until MEMOPT_NOT_FOUND.
 * @param[out] out_name the key: "model.hidden".
 * @param[out] out_kind "count", "size", "share", "number", "choice", "flags", "switch" or "dtype".
 * @param[out] out_accepts the words, separated by "|", or the range in words.
 * @param[out] out_help what it is and its default, in one line.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_NOT_FOUND index is past the last key; nothing is written.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_get_key(uint64_t index, const char **out_name,
                                             const char **out_kind, const char **out_accepts,
                                             const char **out_help);

MEMOPT_END_DECLS

#endif /* MEMOPT_PLAN_H */
