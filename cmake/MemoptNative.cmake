# The GPUs of this machine, as targets of compilers.

# Compute capabilities as 89, each once, into `out`; `found` says whether there is an NVIDIA device at
# all: a driver whose nvidia-smi is older than 11.6's does not tell them. `devices` is the folder of
# device files.
function(memopt_native_cuda out found devices)
  set(capabilities "")
  set(is_there NO)
  if(EXISTS ${devices}/nvidiactl OR EXISTS ${devices}/dxg)
    set(is_there YES)
    find_program(smi nvidia-smi HINTS /usr/lib/wsl/lib NO_CACHE)
    if(smi)
      execute_process(COMMAND ${smi} --query-gpu=compute_cap --format=csv,noheader TIMEOUT 20
                      OUTPUT_VARIABLE text ERROR_QUIET)
      string(REGEX MATCHALL "[0-9]+\\.[0-9]" capabilities "${text}")
      list(TRANSFORM capabilities REPLACE "\\." "")
      list(REMOVE_DUPLICATES capabilities)
      list(SORT capabilities COMPARE NATURAL)
    endif()
  endif()
  set(${out} "${capabilities}" PARENT_SCOPE)
  set(${found} ${is_there} PARENT_SCOPE)
endfunction()

# Targets as gfx90a, each once, from the kernel driver's list of nodes, whose gfx_target_version is
# 90010 for gfx90a: two decimal digits each of minor version and stepping. Processors have 0.
function(memopt_native_hip out nodes)
  set(targets "")
  file(GLOB properties ${nodes}/*/properties)
  foreach(file ${properties})
    file(STRINGS ${file} line REGEX "^gfx_target_version [0-9]+$")
    string(REGEX MATCH "[0-9]+$" version "${line}")
    if(NOT version OR version EQUAL 0)
      continue()
    endif()
    math(EXPR major "${version} / 10000")
    math(EXPR minor "${version} / 100 % 100" OUTPUT_FORMAT HEXADECIMAL)
    math(EXPR stepping "${version} % 100" OUTPUT_FORMAT HEXADECIMAL)
    string(REPLACE "0x" "" target "gfx${major}${minor}${stepping}")
    list(APPEND targets ${target})
  endforeach()
  list(REMOVE_DUPLICATES targets)
  list(SORT targets COMPARE NATURAL)
  set(${out} "${targets}" PARENT_SCOPE)
endfunction()
