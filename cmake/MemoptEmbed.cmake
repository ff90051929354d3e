cmake_minimum_required(VERSION 3.25)
# Writes the C file with the GPU kernels' source and images, or with the names and digests of the
# images' files where EMBED is OFF:
#   cmake -DOUTPUT=... -DSOURCE=... -DCUDA="target=path|..." -DHIP="..." -DCUDA_SOURCE=ON -DHIP_SOURCE=ON
#         -DEMBED=ON -P MemoptEmbed.cmake
# Sizes are those of the files, so it runs after they are made.
set(blobs "")
set(number 0)

# Adds a file's bytes; `symbol` and `size` are set.
macro(blob path)
  set(symbol "mo_blob_${number}")
  math(EXPR number "${number} + 1")
  file(SIZE "${path}" size)
  string(APPEND blobs
    "extern const unsigned char ${symbol}[] __attribute__((visibility(\"hidden\")));\n"
    "__asm__(\".pushsection .rodata\\n\"\n"
    "        \".balign 64\\n\"\n"
    "        \".globl ${symbol}\\n\"\n"
    "        \".hidden ${symbol}\\n\"\n"
    "        \"${symbol}:\\n\"\n"
    "        \".incbin \\\"${path}\\\"\\n\"\n"
    "        \".byte 0\\n\"\n"
    "        \".popsection\\n\");\n\n")
endmacro()

if(CUDA_SOURCE OR HIP_SOURCE)
  blob("${SOURCE}")
  set(source_symbol "${symbol}")
  set(source_size "${size}")
endif()

set(tables "")
foreach(vendor CUDA HIP)
  string(TOLOWER ${vendor} lower)
  set(entries "")
  set(count 0)
  string(REPLACE "|" ";" items "${${vendor}}")
  foreach(item IN LISTS items)
    string(REGEX MATCH "^([^=]*)=(.*)$" matched "${item}")
    set(target "${CMAKE_MATCH_1}")
    set(path "${CMAKE_MATCH_2}")
    if(EMBED)
      blob("${path}")
      string(APPEND entries "    {\"${target}\", ${symbol}, ${size}u, 0, 0},\n")
    else()
      file(SIZE "${path}" size)
      file(SHA256 "${path}" digest)
      cmake_path(GET path FILENAME name)
      string(APPEND entries "    {\"${target}\", 0, ${size}u, \"${name}\",\n     \"${digest}\"},\n")
    endif()
    math(EXPR count "${count} + 1")
  endforeach()
  set(images 0)
  if(count GREATER 0)
    string(APPEND tables "static const mo_image ${lower}[] = {\n${entries}};\n")
    set(images ${lower})
  endif()
  set(source "0, 0")
  if(${vendor}_SOURCE)
    set(source "(const char *)${source_symbol}, ${source_size}u")
  endif()
  string(APPEND tables "const mo_images mo_${lower}_images = {${images}, ${count}, ${source}};\n\n")
endforeach()

file(WRITE "${OUTPUT}"
  "/* Written by cmake/MemoptEmbed.cmake. */\n#include \"kernels/core/gpu_images.h\"\n\n${blobs}${tables}")
