"""The mutants: realistic defects, each in one place; run.py says what the fields are.

`old` is in its file exactly once (a test of the short check sees to that): where a source changes,
its mutant changes too, or another one takes its place.
"""
import runpy

from run import ROOT, Mutant

MUTANTS = [
    # --- allocator
    Mutant(
        "allocator_table_stale",
        "lib/allocator/blocks/block.c",
        "    block->state = MO_BLOCK_FREE; /* the table may still lead to it */\n",
        "",
        "asan",
        "^fuzz_allocator$",
    ),
    Mutant(
        "allocator_room_stays",
        "lib/allocator/front/stripes.c",
        """    if (sum > most) {
        for (uint32_t i = 0; i < stripes; i++)
            allocator->stripes[i].room""",
        """    if (sum < 0) {
        for (uint32_t i = 0; i < stripes; i++)
            allocator->stripes[i].room""",
        "asan",
        "^allocator_stripes$",
    ),
    Mutant(
        "allocator_reused_handle",
        "lib/allocator/streams/streams.c",
        "        pool->stream = no_stream(pool);\n",
        "",
        "asan",
        "^allocator_ended_streams$",
    ),
    Mutant(
        "allocator_unmap_early",
        "lib/allocator/memory/growth.c",
        """        if (pool->drained == allocator->release_pass || !mo_stale_may(allocator, pool) ||
            mo_stale_mark(allocator, pool, stream, &use) != MEMOPT_OK)
            status = mo_drain_pool(allocator, pool);
""",
        "        (void)pool;\n",
        "asan",
        "^allocator_stale$",
    ),
    Mutant(
        "allocator_stale_early",
        "lib/allocator/memory/stale.c",
        "    if (!wait)\n        return mo_work_is_over(memopt_event_query(block->uses->event));\n",
        "    if (!wait)\n        return 1;\n",
        "asan",
        "^allocator_stale$",
    ),
    Mutant(
        "allocator_waits_for_own_only",
        "lib/allocator/front/pressure.c",
        "mo_events_wait_one(allocator, NULL, &found)",
        "mo_events_wait_one(allocator, request->pool, &found)",
        "asan",
        "^allocator_(pressure|streams)$",
    ),
    # --- checkpoint
    Mutant(
        "checkpoint_random_on_failure",
        "lib/checkpoint/passes.c",
        "status = random_put_back(region, region->random_now, status);",
        "if (status == MEMOPT_OK)\n        status = random_restore(region, region->random_now);",
        "asan",
        "^checkpoint_region$",
    ),
    Mutant(
        "checkpoint_last_for_most",
        "lib/checkpoint/schedule_fastest.c",
        """        most = mo_max_u64(most, mo_chain_value(c, k) + mo_chain_value(c, k + 1) +
                                    c->stages[k].forward_extra_bytes);""",
        """        most = mo_chain_value(c, k) + mo_chain_value(c, k + 1) +
               c->stages[k].forward_extra_bytes;""",
        "asan",
        "^checkpoint_schedule$",
    ),
    # --- offload
    Mutant(
        "offload_join_forgets_reader",
        "lib/offload/slabs.c",
        "    range->read = mo_max_u64(range->read, next->read);\n",
        "",
        "asan",
        "^(stress_offload|offload_races)$",
    ),
    Mutant(
        "offload_pageable_read_early",
        "lib/offload/unpack.c",
        "range->slab->block != NULL ? mo_timeline_sync(line, mark)",
        "range->slab->block != NULL && 0 ? mo_timeline_sync(line, mark)",
        "asan",
        "^offload_pinned_cuda$",
    ),
    Mutant(
        "offload_short_read",
        "lib/base/unnamed_file.c",
        "mo_file_calls.read(file, data + done, piece, (off_t)(offset + done))",
        "mo_file_calls.read(file, data + done, piece, (off_t)offset)",
        "asan",
        "^offload_disk_faults$",
    ),
    Mutant(
        "offload_writer_without_lock",
        "lib/offload/streams.c",
        """    mo_lock(&offloader->streams_lock);
    memopt_stream stream = value->pack_stream;
    mo_unlock(&offloader->streams_lock);
""",
        """    (void)offloader;
    memopt_stream stream = value->pack_stream;
""",
        "tsan",
        "^offload_ended$",
    ),
    Mutant(
        "offload_host_write_while_copies_read",
        "lib/offload/fixed.c",
        "    MO_TRY(mo_timeline_sync(&offloader->back, range->read));\n",
        "",
        "asan",
        "^offload_fixed$",
    ),
    # --- stream
    Mutant(
        "stream_leaves_while_the_store_is_written",
        "lib/stream/streamer.c",
        "            status = memopt_offloader_wait_packed(s->offloader, ticket, s->order);\n",
        "            status = MEMOPT_OK;\n",
        "asan",
        "^stream_weights$",
    ),
    Mutant(
        "stream_expects_the_first_layers_only",
        "lib/stream/schedule.c",
        "    for (uint32_t i = 0; i < count; i++)\n        learn(schedule, layers[i],",
        "    for (uint32_t i = 0; i < 1; i++)\n        learn(schedule, layers[i],",
        "asan",
        "^stream_schedule$",
    ),
    # --- race
    Mutant(
        "race_range_behind_one_that_touches_is_missed",
        "lib/race/span.c",
        "root->lower->highest > lo)",
        "root->lower->highest >= lo)",
        "asan",
        "^race_kinds$",
    ),
    # --- optim
    Mutant(
        "optim_import_keeps_groups",
        "lib/optim/import.c",
        "    o->group_table.current = 0;\n",
        "",
        "asan",
        "^optim_export$",
    ),
    Mutant(
        "optim_shards_draw_from_their_own_place",
        "kernels/optim/optim_step.h",
        "    s->start = t->first + start;\n",
        "    s->start = start;\n",
        "asan",
        "^optim_shards$",
    ),
    Mutant(
        "optim_codes_at_thresholds",
        "kernels/optim/state_codes_avx2.h",
        "| 2 * lines->epsilon)",
        "| 0 * lines->epsilon)",
        "test",
        "^optim_blockcode$",
        "avx2",
    ),
    Mutant(
        "optim_no_barrier",
        "kernels/optim/optim.cu",
        """        mo_codec<FORMAT>::load(tables);
        mo_barrier();
        done""",
        """        mo_codec<FORMAT>::load(tables);
        done""",
        "test",
        "^conformance_cuda_sim$",
    ),
    # --- cast
    Mutant(
        "cast_negative_nan",
        "kernels/cast/cast_lanes.h",
        "v_selecti(v_is_nan(v_bits(u)), v_or(u, ",
        "v_selecti(v_gti(u, v_seti((int)MO_F32_INF_BITS)), v_or(u, ",
        "test",
        "^kernels_cast_exhaustive$",
        "avx2",
    ),
    Mutant(
        "scaler_tracker_at_the_top",
        "kernels/reduce/scale.h",
        """    if (mo_f32_is_finite(grown))
        block->scale = grown;
    block->growth_tracker = 0;
""",
        """    if (!mo_f32_is_finite(grown))
        return;
    block->scale = grown;
    block->growth_tracker = 0;
""",
        "asan",
        "^cast_scaler$",
    ),
    # --- kernels' flags: what once crashed on processors without AVX-512
    Mutant(
        "kernels_wrong_flags",
        "kernels/CMakeLists.txt",
        """      set_source_files_properties(${file} TARGET_DIRECTORY""",
        """      if(NOT file MATCHES "/optim/") # where the code would be another one
        string(REGEX REPLACE "^avx2$" avx512 isa ${isa})
      endif()
      set_source_files_properties(${file} TARGET_DIRECTORY""",
        "test",
        "^kernels_instructions$",
    ),
    # --- kernels' text: what NVRTC once refused
    Mutant(
        "kernels_host_function",
        "kernels/hash/hash.h",
        "extern const mo_kernel mo_kernel_hash_granules;\n",
        """uint64_t mo_hash_bytes(uint64_t hash, const void *data, uint64_t bytes);
extern const mo_kernel mo_kernel_hash_granules;
""",
        "test",
        "^kernels_text$",
    ),
    # --- device
    Mutant(
        "device_failed_record",
        "lib/device/cpu/event.c",
        """        unused = event->marker;
        event->marker = marker;
    }
""",
        """        unused = event->marker;
    }
    event->marker = marker;
""",
        "asan",
        "^torture_(device|trace)$",
    ),
    Mutant(
        "allocator_leak_without_addresses",
        "lib/allocator/memory/segment_expandable.c",
        """        mo_slab_return(&allocator->slab, block);
        mo_free(segment);
        mo_free(pages);
""",
        """        mo_slab_return(&allocator->slab, block);
        mo_free(segment);
""",
        "asan",
        "^oracle_faults_cpu$",
    ),
    Mutant(
        "device_context_after_failure",
        "lib/device/gpu/scope.c",
        """    scope->gpu->driver->vendor->leave_context(scope->gpu, scope->saved);
""",
        """    if (scope->status == MEMOPT_OK)
        scope->gpu->driver->vendor->leave_context(scope->gpu, scope->saved);
""",
        "asan",
        "^test_gpu_context",
    ),
    Mutant(
        "device_compiles_what_was_waited_for",
        "lib/device/gpu/module.c",
        "    if (lock >= 0)\n        status = load_kept",
        "    if (lock < 0)\n        status = load_kept",
        "test",
        "^test_gpu_cache$",
    ),
    # --- Python
    Mutant(
        "python_budget_of_nothing",
        "bindings/python/memopt/schedule.py",
        "return max(parse_size(budget), 1)",
        "return parse_size(budget)",
        "python",
        "test_schedule",
    ),
    # --- documents: links to headers and folders that lead nowhere
    Mutant(
        "docs_link_from_a_page_below",
        "docs/site/conf.py",
        'reftarget="/" + page',
        "reftarget=page",
        "test",
        "^docs$",
    ),
]

for file in sorted(ROOT.glob("extras/*/tests/mutants.py")):  # of the projects beside the library
    MUTANTS += runpy.run_path(str(file))["MUTANTS"]
