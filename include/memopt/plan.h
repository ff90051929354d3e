/**
 * @file plan.h
 * @brief What a training step needs before it runs, what fits a device, and what to change where
 *        nothing fits.
 *
 * Settings are text: `key=value` entries, separated by line ends or semicolons. Blanks around keys
 * and values do not count, and of two equal keys the last one counts. A key that is left out, or
 * that is 0, has its default. memopt_plan_get_key() lists all keys with what they accept.
 *
 * @code
 * memopt_plan *plan = NULL;
 * if (memopt_plan_solve("model.family=llama; model.hidden=2048; model.layers=22; run.batch=4;"
 *                       "run.weight_dtype=bf16; card.capacity=24GiB", NULL, NULL, &plan) ==
 * MEMOPT_OK) puts(memopt_plan_get_json(plan));
 * @endcode
 *
 * Results are JSON text, or single numbers by name. No device is opened: a step of the model is
 * *played* with sizes only, operation by operation, as PyTorch's autograd runs the code of the
 * `transformers` package. A caller that measures or traces its own program gives a function in
 * place of a model.
 *
 * **What is exact.** Without offload of optimizer states, `peak_bytes` less `categories.overhead`
 * is what a tracker of live tensor bytes measures on a step of such a model (transformers 5.23,
 * torch 2.15; optimizer states exist, gradients are set to None after the step, and of the model's
 * outputs only the loss is kept). Tiny tensors are rounded up, so the peak is never below the
 * measured one, and above it by less than a thousandth (tests/plan).
 *
 * **What is an upper bound.** Attention `sdpa` with dropout on the CPU or an unknown device;
 * mixtures of experts, counted as the grouped products that transformers runs by default; all of
 * `categories.overhead`; what DeepSpeed's stage 3 gathers. With several devices the plan describes
 * the fullest one.
 *
 * **What is an estimate.** Models that are given by their totals; contrastive heads; the fused
 * loss; all times. A time factor compares a step with the same run without recomputation and
 * offload: backward takes twice forward, recomputation adds the forward of what runs again, and
 * copies to the host add what compute does not hide.
 *
 * **Threads.** All functions are thread-safe. Use a handle from one thread at a time.
 */
#ifndef MEMOPT_PLAN_H
#define MEMOPT_PLAN_H

#include <memopt/base.h>

MEMOPT_BEGIN_DECLS

/** @brief What a run takes and, from memopt_plan_solve(), what fits. */
typedef struct memopt_plan memopt_plan;

/** @brief Phases of a step, in this order: load, forward, loss, backward, step. */
#define MEMOPT_PLAN_PHASES 5

/** @brief Categories of bytes, in this order: parameters, gradients, optimizer, activations,
 *         logits, batch. */
#define MEMOPT_PLAN_CATEGORIES 6

/**
 * @brief Says what a run takes that is not played but measured or traced.
 *
 * It is called on the calling thread, once for each run.
 * @param user as given with the function.
 * @param settings the run: the keys `run.*` with their defaults filled in, as text. `run.sequence`
 *        is missing where it was not given.
 * @param[out] out_bytes ::MEMOPT_PLAN_PHASES × ::MEMOPT_PLAN_CATEGORIES numbers, all zero: the live
 *             tensors of one device at the fullest moment of each phase; number
 *             phase × ::MEMOPT_PLAN_CATEGORIES + category. A larger batch may not take fewer bytes.
 * @return MEMOPT_OK; MEMOPT_UNSUPPORTED or MEMOPT_INVALID_ARGUMENT where nothing is known of such a
 *         run: changes that lead to it are not proposed. Any other status ends the call, which
 *         returns it.
 */
typedef memopt_status (*memopt_plan_measure)(void *user, const char *settings, uint64_t *out_bytes);

/**
 * @brief Plans a run: bytes by phase and category, by layer, and whether it fits the card.
 * @param settings the model, the run and the card; `target.*` is not used. With `measure` the model
 *        is not used.
 * @param measure NULL: the step of the model is played. Else what the run takes.
 * @param user passed to measure.
 * @param[out] out_plan the plan; end it with memopt_plan_destroy(). Untouched on failure.
 * @retval MEMOPT_OK done, also where the run does not fit (`fits` is false).
 * @retval MEMOPT_INVALID_ARGUMENT out_plan is NULL; a key is unknown (the message names the nearest
 *         one); a value is not accepted or does not go with another (the message names both and
 *         what is accepted); or a sum does not fit 64 bits.
 * @retval MEMOPT_UNSUPPORTED the planner does not know this combination, or measure returned it.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY host allocation failed.
 * @return what else measure returned.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_create(const char *settings, memopt_plan_measure measure,
                                            void *user, memopt_plan **out_plan);

/**
 * @brief Finds the largest micro-batch that fits, the accumulation for an effective batch, and,
 *        where nothing fits, the changes that make it fit, cheapest in time first.
 *
 * The JSON has the plan of the run that changes are counted from (the given batch or, without one,
 * what fits), and under `solution` what was found.
 * @param settings as memopt_plan_create(), with `card.capacity`; `target.*` says what to look for.
 * @param measure NULL: the step of the model is played. Else what runs take; then only changes of
 *        the run and the card are proposed, and no times of recomputation and copies are known.
 * @param user passed to measure.
 * @param[out] out_plan the plan; end it with memopt_plan_destroy(). Untouched on failure.
 * @retval MEMOPT_OK done, also where nothing fits (`solution.fits_after` is false).
 * @retval MEMOPT_INVALID_ARGUMENT as memopt_plan_create(), or the card has no capacity.
 * @retval MEMOPT_UNSUPPORTED as memopt_plan_create(), for the run as given.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY host allocation failed.
 * @return what else measure returned.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_solve(const char *settings, memopt_plan_measure measure,
                                           void *user, memopt_plan **out_plan);

/**
 * @brief Destroys a plan, and the text of memopt_plan_get_json().
 * @param plan the plan; NULL does nothing.
 * @retval MEMOPT_OK done.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_destroy(memopt_plan *plan);

/**
 * @brief Everything that a plan says, as a JSON object.
 *
 * `settings` has the settings with every default filled in; `categories` the bytes at the peak;
 * `phases` the same for each phase; `layers` a list; `solution`, where there is one, the batch, the
 * `changes` and the `settings` of the run that is proposed. Names that a version has stay.
 * @param plan the plan.
 * @return UTF-8 text, valid until memopt_plan_destroy(); NULL where plan is NULL.
 * @since 0.9
 */
MEMOPT_API const char *memopt_plan_get_json(const memopt_plan *plan);

/**
 * @brief One number of the JSON.
 * @param plan the plan.
 * @param name its name, with dots between levels: "peak_bytes", "fits", "categories.logits",
 *        "phases.backward.total", "solution.micro_batch".
 * @param[out] out_value the number; true is 1. Whole numbers below 2^53 are exact. Untouched on
 *             failure.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_NOT_FOUND the plan has no such number; the message names the nearest one.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_get_value(const memopt_plan *plan, const char *name,
                                               double *out_value);

/**
 * @brief One key of the settings, for tools and documentation. All texts are static.
 * @param index from 0, until MEMOPT_NOT_FOUND.
 * @param[out] out_name the key: "model.hidden".
 * @param[out] out_kind "count", "size", "share", "number", "choice", "flags", "switch" or "dtype".
 * @param[out] out_accepts the words, separated by "|", or the range in words.
 * @param[out] out_help what it is, with its default, in one line.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_NOT_FOUND there is no key with this index; nothing is written.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_plan_get_key(uint64_t index, const char **out_name,
                                             const char **out_kind, const char **out_accepts,
                                             const char **out_help);

MEMOPT_END_DECLS

#endif /* MEMOPT_PLAN_H */
