cmake_minimum_required(VERSION 3.25)
# Writes one self-contained text out of kernels/core/all_kernels.cu:
#   cmake -DROOT=... -DOUTPUT=... -P MemoptFlatten.cmake
# Every #include "kernels/..." is replaced by the file, once; includes of the system's headers are
# left out but for those of kernels/core/rtc_types.h, which comes first.
set(seen "")

# Appends the file to `text`. Contents are only ever handled as quoted strings: lists would eat
# semicolons and brackets.
function(flatten name)
  if(name IN_LIST seen)
    return()
  endif()
  list(APPEND seen "${name}")
  file(READ "${ROOT}/${name}" rest)
  if(NOT name STREQUAL "kernels/core/rtc_types.h")
    string(REGEX REPLACE "#include <[^>\n]*>\n" "" rest "${rest}")
  endif()
  set(out "${text}")
  while(TRUE)
    string(FIND "${rest}" "#include \"" at)
    if(at EQUAL -1)
      break()
    endif()
    string(SUBSTRING "${rest}" 0 ${at} before)
    string(SUBSTRING "${rest}" ${at} -1 rest)
    string(APPEND out "${before}")
    string(FIND "${rest}" "\n" line_end)
    string(SUBSTRING "${rest}" 0 ${line_end} line)
    string(SUBSTRING "${rest}" ${line_end} -1 rest)
    string(REGEX REPLACE "^#include \"([^\"]*)\".*$" "\\1" include "${line}")
    set(text "${out}")
    flatten("${include}")
    set(out "${text}")
  endwhile()
  string(APPEND out "${rest}")
  set(text "${out}" PARENT_SCOPE)
  set(seen "${seen}" PARENT_SCOPE)
endfunction()

set(text "")
flatten(kernels/core/rtc_types.h)
flatten(kernels/core/all_kernels.cu)
file(WRITE "${OUTPUT}" "${text}")
