memopt_kernel_sources(
  optim_ref.c adamw_avx2.c blockcode_avx2.c optim_lanes_avx2.c
  adamw8_avx512.c adamw8_avx512vbmi.c adamw8_avx512bf16.c adamw32_avx512.c
  blockcode_avx512.c blockcode_avx512vbmi.c optim_lanes_avx512.c optim_lanes_avx512vbmi.c)
# The 8-bit step is several chains of dependent instructions side by side: gcc interleaves them only
# if it schedules before it allocates registers (15 % faster); clang does so by itself.
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  foreach(isa avx512 avx512vbmi avx512bf16)
    set_property(SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/adamw8_${isa}.c
                 TARGET_DIRECTORY memopt_objects
                 APPEND PROPERTY COMPILE_OPTIONS -fschedule-insns -fsched-pressure -mtune=znver3)
  endforeach()
endif()
