# The GPU kernels: which compilers and targets there are, and the images that the library carries
# or finds beside it.
#
# No vendor's toolkit is needed: a plain clang from 17 on compiles PTX and every AMD target. nvcc,
# where found, adds SASS. Each target is tried when the build is configured. MEMOPT_GPU_IMAGES says
# which are wanted; a list that is given (-DMEMOPT_CUDA_TARGETS="80;90") replaces that vendor's.
#
# memopt_gpu_images(target) adds the generated C file to a target.

include(${CMAKE_CURRENT_LIST_DIR}/MemoptNative.cmake)
set(MEMOPT_CUDA AUTO CACHE STRING "CUDA kernels: AUTO (what a compiler is found for), ON or OFF")
set(MEMOPT_HIP AUTO CACHE STRING "HIP kernels: AUTO (what a compiler is found for), ON or OFF")
set_property(CACHE MEMOPT_CUDA MEMOPT_HIP PROPERTY STRINGS AUTO ON OFF)
set(MEMOPT_GPU_IMAGES NATIVE CACHE STRING "Kernels compiled ahead of time: NATIVE (for the GPUs of \
this machine), ALL targets, FEW (PTX and two AMD targets, for tests), EMPTY (as few, of their names \
only: for simulated drivers, which have their own), NONE (compiled at their first use), or a folder: the \
folder gpu of another build of the same sources, whose images are taken")
set_property(CACHE MEMOPT_GPU_IMAGES PROPERTY STRINGS NATIVE ALL FEW EMPTY NONE)
option(MEMOPT_GPU_IMAGES_EMBED "Put the compiled kernels into the library; OFF: into files beside it" ON)
set(memopt_native_root "" CACHE INTERNAL "The folder of dev and sys, for tests")

# Targets, or families of AMD's: one generic target for all of them, and those to compile where the
# compiler does not have it.
set(memopt_cuda_wanted "")
set(memopt_hip_wanted "")
set(memopt_ptx_wanted YES)
set(memopt_images_taken NO)
set(memopt_no_CUDA NO) # YES: the GPUs of this machine are asked for, and it has none of the vendor
set(memopt_no_HIP NO)
if(MEMOPT_GPU_IMAGES STREQUAL "NATIVE")
  memopt_native_cuda(memopt_cuda_wanted memopt_ptx_wanted ${memopt_native_root}/dev)
  memopt_native_hip(memopt_hip_wanted ${memopt_native_root}/sys/class/kfd/kfd/topology/nodes)
  if(NOT memopt_ptx_wanted)
    set(memopt_no_CUDA YES)
  endif()
  if(NOT memopt_hip_wanted)
    set(memopt_no_HIP YES)
  endif()
elseif(MEMOPT_GPU_IMAGES STREQUAL "ALL")
  set(memopt_cuda_wanted 75 80 86 89 90 100 120)
  set(memopt_hip_wanted
      gfx908 gfx90a
      gfx9-generic,gfx900,gfx906
      gfx9-4-generic,gfx942,gfx950
      gfx10-1-generic,gfx1010,gfx1011,gfx1012
      gfx10-3-generic,gfx1030,gfx1031,gfx1032,gfx1034,gfx1035,gfx1036
      gfx11-generic,gfx1100,gfx1101,gfx1102,gfx1103,gfx1150,gfx1151,gfx1152
      gfx12-generic,gfx1200,gfx1201)
elseif(MEMOPT_GPU_IMAGES MATCHES "^(FEW|EMPTY)$")
  set(memopt_hip_wanted gfx90a gfx1030)
elseif(MEMOPT_GPU_IMAGES STREQUAL "NONE")
  set(memopt_ptx_wanted NO)
elseif(EXISTS "${MEMOPT_GPU_IMAGES}/kernels.cu")
  set(memopt_ptx_wanted NO)
  set(memopt_images_taken YES)
else()
  message(FATAL_ERROR "MEMOPT_GPU_IMAGES is \"${MEMOPT_GPU_IMAGES}\"; NATIVE, ALL, FEW, EMPTY, NONE "
                      "or the folder gpu of a build")
endif()

set(MEMOPT_NVCC_FLAGS --std=c++17 -O3 --fmad=false --prec-div=true --prec-sqrt=true --ftz=false
    --diag-suppress=177) # unused functions of the shared headers
set(MEMOPT_CLANG_PTX_FLAGS -x cuda --cuda-device-only -nocudainc -nocudalib --cuda-gpu-arch=sm_75
    --cuda-feature=+ptx63 -std=c++17 -O3 -ffp-contract=off -Wno-unknown-cuda-version)
# Without a cuid, which is a hash of the folder.
set(MEMOPT_HIP_FLAGS -x hip --offload-device-only --no-gpu-bundle-output -fuse-cuid=none -nogpulib -nogpuinc
    -std=c++17 -O3 -ffp-contract=off)

# Adds the target's own flags. Every ROCm from 5.0 on loads version 4 of code objects. Generic
# targets need version 6, which ROCm loads from 6.4 on, and of which clang 19 warns.
function(memopt_hip_flags out target)
  set(flags ${MEMOPT_HIP_FLAGS} --offload-arch=${target} -mcode-object-version=4)
  if(target MATCHES "-generic$")
    set(flags ${MEMOPT_HIP_FLAGS} --offload-arch=${target} -mcode-object-version=6 -w)
  endif()
  set(${out} ${flags} PARENT_SCOPE)
endfunction()

# --- compilers -----------------------------------------------------------------------------------

# clang from 17 on. `extra` are folders to look in first.
function(memopt_find_clang variable)
  if(${variable})
    return()
  endif()
  set(names "")
  foreach(version RANGE 30 17 -1)
    list(APPEND names clang-${version})
  endforeach()
  find_program(${variable}_any NAMES clang ${names} NAMES_PER_DIR HINTS ${ARGN} NO_CACHE
               VALIDATOR memopt_is_clang_17)
  set(${variable} "${${variable}_any}" CACHE FILEPATH "clang >= 17 for GPU kernels")
  mark_as_advanced(${variable})
endfunction()

function(memopt_is_clang_17 result program)
  execute_process(COMMAND ${program} -dumpversion OUTPUT_VARIABLE version ERROR_QUIET
                  OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
  if(failed OR version VERSION_LESS 17)
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

find_program(MEMOPT_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda /opt/cuda
             PATH_SUFFIXES bin DOC "nvcc")
find_program(MEMOPT_HIPCC hipcc HINTS ENV ROCM_PATH PATHS /opt/rocm PATH_SUFFIXES bin DOC "hipcc")
mark_as_advanced(MEMOPT_NVCC MEMOPT_HIPCC)
memopt_find_clang(MEMOPT_CLANG)
memopt_find_clang(MEMOPT_ROCM_CLANG $ENV{ROCM_PATH}/llvm/bin /opt/rocm/llvm/bin)

# ROCm's own clang, another one, or else hipcc, which takes the same flags.
set(memopt_hip_compiler "${MEMOPT_HIPCC}")
if(MEMOPT_ROCM_CLANG)
  set(memopt_hip_compiler "${MEMOPT_ROCM_CLANG}")
elseif(MEMOPT_CLANG)
  set(memopt_hip_compiler "${MEMOPT_CLANG}")
endif()

# --- targets -------------------------------------------------------------------------------------

set(memopt_probe ${PROJECT_BINARY_DIR}/gpu/probe.cu)
file(CONFIGURE OUTPUT ${memopt_probe} CONTENT [[
#if defined(__clang__)
#define __global__ __attribute__((global))
#endif
extern "C" __global__ void probe(float *x) { *x = *x / 3.0f; }
]])

function(memopt_probe_compiles result)
  execute_process(COMMAND ${ARGN} ${memopt_probe} -o ${memopt_probe}.out OUTPUT_QUIET ERROR_QUIET
                  RESULT_VARIABLE failed)
  set(works NO)
  if(failed EQUAL 0)
    set(works YES)
  endif()
  set(${result} ${works} PARENT_SCOPE)
endfunction()

# All at once costs little; one by one only where that fails.
function(memopt_probe_cuda out)
  set(all "")
  foreach(arch ${memopt_cuda_wanted})
    list(APPEND all -gencode arch=compute_${arch},code=sm_${arch})
  endforeach()
  memopt_probe_compiles(works ${MEMOPT_NVCC} -x cu --fatbin ${all})
  set(targets ${memopt_cuda_wanted})
  if(NOT works)
    set(targets "")
    foreach(arch ${memopt_cuda_wanted})
      memopt_probe_compiles(works ${MEMOPT_NVCC} -x cu --fatbin
                            -gencode arch=compute_${arch},code=sm_${arch})
      if(works)
        list(APPEND targets ${arch})
      endif()
    endforeach()
  endif()
  set(${out} "${targets}" PARENT_SCOPE)
endfunction()

function(memopt_probe_hip out)
  set(targets "")
  foreach(family ${memopt_hip_wanted})
    string(REPLACE "," ";" members "${family}")
    foreach(target ${members})
      memopt_hip_flags(flags ${target})
      memopt_probe_compiles(works ${memopt_hip_compiler} ${flags} -c)
      if(works)
        list(APPEND targets ${target})
        if(target MATCHES "-generic$")
          break()
        endif()
      endif()
    endforeach()
  endforeach()
  set(${out} "${targets}" PARENT_SCOPE)
endfunction()

# MEMOPT_CUDA_TARGETS or MEMOPT_HIP_TARGETS as given, else what of the wanted ones the compiler takes,
# which is asked once for the same question.
macro(memopt_choose_targets vendor compiler)
  if(NOT DEFINED CACHE{MEMOPT_${vendor}_TARGETS})
    string(TOLOWER ${vendor} lower)
    set(question "${compiler} ${memopt_${lower}_wanted}")
    if(NOT "${memopt_${lower}_question}" STREQUAL "${question}")
      set(found "")
      if(NOT "${compiler}" STREQUAL "" AND memopt_${lower}_wanted)
        cmake_language(CALL memopt_probe_${lower} found)
      endif()
      set(memopt_${lower}_answer "${found}" CACHE INTERNAL "")
      set(memopt_${lower}_question "${question}" CACHE INTERNAL "")
    endif()
    set(MEMOPT_${vendor}_TARGETS "${memopt_${lower}_answer}")
  endif()
endmacro()

foreach(vendor CUDA HIP)
  if(NOT "${MEMOPT_${vendor}}" MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "MEMOPT_${vendor} is \"${MEMOPT_${vendor}}\"; AUTO, ON or OFF")
  elseif(MEMOPT_${vendor} STREQUAL "ON" AND MEMOPT_GPU_IMAGES STREQUAL "NONE")
    message(FATAL_ERROR "MEMOPT_${vendor}=ON asks for images, MEMOPT_GPU_IMAGES=NONE for none")
  elseif(MEMOPT_${vendor} STREQUAL "ON" AND memopt_no_${vendor} AND NOT MEMOPT_${vendor}_TARGETS)
    message(FATAL_ERROR "MEMOPT_${vendor}=ON asks for images, and this machine has no such device: "
                        "say which with -DMEMOPT_${vendor}_TARGETS=... or -DMEMOPT_GPU_IMAGES=ALL")
  endif()
endforeach()
set(memopt_ptx_by_clang NO)
if(NOT MEMOPT_CUDA STREQUAL "OFF")
  memopt_choose_targets(CUDA "${MEMOPT_NVCC}")
  if(MEMOPT_GPU_IMAGES STREQUAL "NATIVE" AND MEMOPT_CUDA_TARGETS)
    set(memopt_ptx_wanted NO) # the devices' own code is there
  endif()
  if(MEMOPT_CLANG AND memopt_ptx_wanted)
    memopt_probe_compiles(memopt_ptx_by_clang ${MEMOPT_CLANG} ${MEMOPT_CLANG_PTX_FLAGS} -S)
  endif()
  if(MEMOPT_CUDA_TARGETS AND NOT MEMOPT_NVCC)
    message(FATAL_ERROR "MEMOPT_CUDA_TARGETS=\"${MEMOPT_CUDA_TARGETS}\" needs nvcc, and none was "
                        "found: set MEMOPT_NVCC to its path, or leave the targets empty (clang "
                        "makes PTX, which drivers compile)")
  endif()
  if(MEMOPT_CUDA STREQUAL "ON" AND NOT (MEMOPT_CUDA_TARGETS OR memopt_ptx_by_clang OR memopt_images_taken))
    message(FATAL_ERROR "MEMOPT_CUDA=ON needs nvcc, or clang from 17 on (./setup installs one)")
  endif()
endif()
if(NOT MEMOPT_HIP STREQUAL "OFF")
  memopt_choose_targets(HIP "${memopt_hip_compiler}")
  if(MEMOPT_HIP_TARGETS AND NOT memopt_hip_compiler)
    message(FATAL_ERROR "MEMOPT_HIP_TARGETS=\"${MEMOPT_HIP_TARGETS}\" needs clang from 17 on with "
                        "lld (./setup installs one) or a hipcc, and none was found: install one, or "
                        "leave the targets empty")
  endif()
  if(MEMOPT_HIP STREQUAL "ON" AND NOT (MEMOPT_HIP_TARGETS OR memopt_images_taken))
    message(FATAL_ERROR "MEMOPT_HIP=ON needs clang from 17 on with lld (./setup installs one), or "
                        "a hipcc")
  endif()
endif()

# Says what a vendor's kernels are.
function(memopt_tell_images vendor images)
  if(MEMOPT_${vendor} STREQUAL "OFF")
    set(images "none (MEMOPT_${vendor}=OFF)")
  elseif(memopt_images_taken)
    set(images "those of ${MEMOPT_GPU_IMAGES}")
  elseif(images STREQUAL "" AND MEMOPT_GPU_IMAGES STREQUAL "NONE")
    set(images "none ahead of time (MEMOPT_GPU_IMAGES=NONE): compiled at their first use")
  elseif(images STREQUAL "" AND memopt_no_${vendor})
    set(images "none ahead of time, as this machine has no such device (MEMOPT_GPU_IMAGES=ALL is for "
               "other machines): compiled at their first use")
    string(CONCAT images ${images})
  elseif(images STREQUAL "")
    set(images "no compiler found: the library carries their source and compiles it at its first use "
               "(./setup installs a compiler)")
    string(CONCAT images ${images})
  endif()
  message(STATUS "GPU kernels, ${vendor}: ${images}")
endfunction()

set(memopt_cuda_told "")
if(MEMOPT_CUDA_TARGETS)
  list(JOIN MEMOPT_CUDA_TARGETS " " memopt_cuda_told)
  set(memopt_cuda_told "sm ${memopt_cuda_told}, by ${MEMOPT_NVCC}")
endif()
if(memopt_ptx_by_clang)
  string(PREPEND memopt_cuda_told "PTX by ${MEMOPT_CLANG}; ")
endif()
set(memopt_hip_told "")
if(MEMOPT_HIP_TARGETS)
  list(JOIN MEMOPT_HIP_TARGETS " " memopt_hip_told)
  string(APPEND memopt_hip_told ", by ${memopt_hip_compiler}")
endif()
memopt_tell_images(CUDA "${memopt_cuda_told}")
memopt_tell_images(HIP "${memopt_hip_told}")

# --- images --------------------------------------------------------------------------------------

# Kernels that do nothing, of the names of all: each begins a line with MO_GLOBAL or a macro around it.
function(memopt_empty_kernels file)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/*/*.cu)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${sources})
  set(names "")
  foreach(source ${sources})
    file(STRINGS ${source} found REGEX "^MO_[A-Z0-9_]+\\(mo_")
    list(APPEND names ${found})
  endforeach()
  list(TRANSFORM names REPLACE "^MO_[A-Z0-9_]+\\((mo_[a-z0-9_]+),.*$"
       "extern \"C\" __attribute__((global)) void \\1(void) {}\n")
  list(JOIN names "" text)
  file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
endfunction()

function(memopt_gpu_images target)
  set(folder ${PROJECT_BINARY_DIR}/gpu)
  set(source ${folder}/kernels.cu)
  file(GLOB inputs CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/*/*.cu
       ${PROJECT_SOURCE_DIR}/kernels/*/*.h ${PROJECT_SOURCE_DIR}/kernels/*/*.def)
  add_custom_command(OUTPUT ${source}
    COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -DMADE=${MEMOPT_MADE} -DOUTPUT=${source}
            -P ${PROJECT_SOURCE_DIR}/cmake/MemoptFlatten.cmake
    DEPENDS ${inputs} ${MEMOPT_MADE}/kernels/generated/blockcode_tables.h
            ${PROJECT_SOURCE_DIR}/cmake/MemoptFlatten.cmake
    COMMENT "GPU kernels: one source" VERBATIM)
  set(kernels ${source})
  if(MEMOPT_GPU_IMAGES STREQUAL "EMPTY")
    set(kernels ${folder}/empty.cu)
    memopt_empty_kernels(${kernels})
  endif()
  set(images ${folder})
  if(NOT MEMOPT_GPU_IMAGES_EMBED)
    set(images ${PROJECT_BINARY_DIR}/memopt/kernels) # beside the library, as when it is installed
    file(MAKE_DIRECTORY ${images})
  endif()
  set(files "")
  set(cuda "")
  set(hip "")
  set(cuda_source ON)
  set(hip_source ON)
  if(MEMOPT_CUDA STREQUAL "OFF")
    set(cuda_source OFF)
  else()
    memopt_cuda_images(${images} ${kernels})
    memopt_taken_images(cuda kernels.fatbin kernels.ptx)
  endif()
  if(MEMOPT_HIP STREQUAL "OFF")
    set(hip_source OFF)
  else()
    memopt_hip_images(${images} ${kernels})
    memopt_taken_images(hip *.hsaco)
  endif()
  list(JOIN cuda "|" cuda)
  list(JOIN hip "|" hip)
  add_custom_command(OUTPUT ${folder}/images.c
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${folder}/images.c -DSOURCE=${source} "-DCUDA=${cuda}"
            "-DHIP=${hip}" -DCUDA_SOURCE=${cuda_source} -DHIP_SOURCE=${hip_source}
            -DEMBED=${MEMOPT_GPU_IMAGES_EMBED}
            -P ${PROJECT_SOURCE_DIR}/cmake/MemoptEmbed.cmake
    DEPENDS ${source} ${files} ${PROJECT_SOURCE_DIR}/cmake/MemoptEmbed.cmake
    COMMENT "GPU kernels: the table of images" VERBATIM)
  set_source_files_properties(${folder}/images.c TARGET_DIRECTORY ${target}
                              PROPERTIES OBJECT_DEPENDS "${source};${files}")
  target_sources(${target} PRIVATE ${folder}/images.c)
  if(NOT MEMOPT_GPU_IMAGES_EMBED)
    set_property(GLOBAL PROPERTY memopt_image_files ${files})
  endif()
endfunction()

# Add to files and cuda of the caller.
macro(memopt_cuda_images folder source)
  if(MEMOPT_CUDA_TARGETS)
    set(code "")
    foreach(arch ${MEMOPT_CUDA_TARGETS})
      list(APPEND code -gencode arch=compute_${arch},code=sm_${arch})
    endforeach()
    list(GET MEMOPT_CUDA_TARGETS 0 oldest)
    list(GET MEMOPT_CUDA_TARGETS -1 newest)
    foreach(arch ${oldest} ${newest})
      set(ptx -gencode arch=compute_${arch},code=compute_${arch})
      if(NOT ptx IN_LIST code)
        list(APPEND code ${ptx})
      endif()
    endforeach()
    add_custom_command(OUTPUT ${folder}/kernels.fatbin
      COMMAND ${MEMOPT_NVCC} -x cu --fatbin --threads 0 ${MEMOPT_NVCC_FLAGS} ${code} ${source}
              -o ${folder}/kernels.fatbin
      DEPENDS ${source} COMMENT "GPU kernels: sm ${MEMOPT_CUDA_TARGETS}" VERBATIM)
    list(APPEND files ${folder}/kernels.fatbin)
    list(APPEND cuda fatbin=${folder}/kernels.fatbin)
  endif()
  if(memopt_ptx_by_clang)
    add_custom_command(OUTPUT ${folder}/kernels.ptx
      COMMAND ${MEMOPT_CLANG} ${MEMOPT_CLANG_PTX_FLAGS} -S ${source} -o ${folder}/kernels.ptx
      COMMAND ${CMAKE_COMMAND} -DPTX=${folder}/kernels.ptx -P ${PROJECT_SOURCE_DIR}/cmake/MemoptSortPtx.cmake
      DEPENDS ${source} COMMENT "GPU kernels: PTX" VERBATIM)
    list(APPEND files ${folder}/kernels.ptx)
    list(APPEND cuda ptx75=${folder}/kernels.ptx)
  endif()
endmacro()

# Add to files and hip of the caller.
macro(memopt_hip_images folder source)
  foreach(gfx ${MEMOPT_HIP_TARGETS})
    memopt_hip_flags(flags ${gfx})
    add_custom_command(OUTPUT ${folder}/${gfx}.hsaco
      COMMAND ${memopt_hip_compiler} ${flags} -c ${source} -o ${folder}/${gfx}.hsaco
      DEPENDS ${source} COMMENT "GPU kernels: ${gfx}" VERBATIM)
    list(APPEND files ${folder}/${gfx}.hsaco)
    list(APPEND hip ${gfx}=${folder}/${gfx}.hsaco)
  endforeach()
endmacro()

# Add to files and cuda or hip of the caller what fits the patterns in the folder MEMOPT_GPU_IMAGES.
macro(memopt_taken_images list)
  set(found "")
  if(memopt_images_taken)
    set(patterns ${ARGN})
    list(TRANSFORM patterns PREPEND "${MEMOPT_GPU_IMAGES}/")
    file(GLOB found ${patterns})
  endif()
  foreach(image ${found})
    cmake_path(GET image FILENAME name)
    add_custom_command(OUTPUT ${images}/${name}
      COMMAND ${CMAKE_COMMAND} -E compare_files ${source} ${MEMOPT_GPU_IMAGES}/kernels.cu
      COMMAND ${CMAKE_COMMAND} -E copy ${image} ${images}/${name}
      DEPENDS ${source} ${MEMOPT_GPU_IMAGES}/kernels.cu ${image}
      COMMENT "GPU kernels: ${name} of another build, whose source must be the same" VERBATIM)
    list(APPEND files ${images}/${name})
    string(REGEX REPLACE "^kernels\\.|\\.hsaco$" "" key ${name}) # fatbin, ptx, gfx90a
    string(REGEX REPLACE "^ptx$" "ptx75" key ${key})
    list(APPEND ${list} ${key}=${images}/${name})
  endforeach()
endmacro()
