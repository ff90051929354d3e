# The tables of the block codes: make_tables.c, run on the machine that builds, writes them when a build
# is configured. They are headers "kernels/generated/blockcode_<what>.h" below MEMOPT_MADE.
set(MEMOPT_MADE ${PROJECT_BINARY_DIR}/made)
set(memopt_here_compiler ${CMAKE_C_COMPILER} ${CMAKE_C_COMPILER_ARG1})
if(CMAKE_CROSSCOMPILING)
  find_program(MEMOPT_HERE_CC NAMES cc gcc clang NO_CMAKE_FIND_ROOT_PATH
               DOC "A C compiler for programs that run on this machine")
  if(NOT MEMOPT_HERE_CC)
    message(FATAL_ERROR "A cross build makes its tables by a program of this machine, and finds no cc, gcc "
                        "or clang for it; -DMEMOPT_HERE_CC=<compiler> names one")
  endif()
  set(memopt_here_compiler ${MEMOPT_HERE_CC})
endif()

function(memopt_make_tables)
  set(source ${PROJECT_SOURCE_DIR}/cmake/make_tables.c)
  set(program ${MEMOPT_MADE}/make_tables)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
  file(MAKE_DIRECTORY ${MEMOPT_MADE})
  execute_process(COMMAND ${memopt_here_compiler} -std=c11 -O1 -ffp-contract=off ${source} -o ${program} -lm
                  COMMAND_ERROR_IS_FATAL ANY)
  foreach(what tables planes lines)
    execute_process(COMMAND ${program} ${what} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
    file(CONFIGURE OUTPUT ${MEMOPT_MADE}/kernels/generated/blockcode_${what}.h CONTENT "${text}" @ONLY)
  endforeach()
endfunction()
memopt_make_tables()
