# How every target is compiled, of this project and of those built on it. Nothing here leaks into a parent
# project.
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH memopt_root)

# What every library of the project has a copy of, hidden: host memory, texts of errors, options.
set(memopt_base_sources callback.c error.c library.c memory.c options.c small_file.c words.c)
list(TRANSFORM memopt_base_sources PREPEND ${memopt_root}/lib/base/)

# Debian's default of lib/<triplet> is for its own packages; ours is lib unless the user says so.
if(NOT DEFINED CMAKE_INSTALL_LIBDIR)
  set(CMAKE_INSTALL_LIBDIR lib CACHE STRING "Where libraries go below the prefix")
endif()
include(GNUInstallDirs)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# ccache, where there is one.
if(PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_C_COMPILER_LAUNCHER)
  find_program(MEMOPT_CCACHE ccache)
  mark_as_advanced(MEMOPT_CCACHE)
  if(MEMOPT_CCACHE)
    set(CMAKE_C_COMPILER_LAUNCHER ${MEMOPT_CCACHE})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${MEMOPT_CCACHE})
  endif()
endif()

# Threads of the "cpu" device: memopt_threads is pool or own, memopt_thread_libraries what it links.
set(MEMOPT_THREADS AUTO CACHE STRING "Threads of the cpu device: AUTO, PTHREADPOOL or OWN")
set_property(CACHE MEMOPT_THREADS PROPERTY STRINGS AUTO PTHREADPOOL OWN)
find_library(MEMOPT_PTHREADPOOL pthreadpool)
find_path(MEMOPT_PTHREADPOOL_INCLUDE pthreadpool.h)
mark_as_advanced(MEMOPT_PTHREADPOOL MEMOPT_PTHREADPOOL_INCLUDE)
set(memopt_threads pool)
set(memopt_thread_libraries ${MEMOPT_PTHREADPOOL})
if(NOT MEMOPT_THREADS MATCHES "^(AUTO|PTHREADPOOL|OWN)$")
  message(FATAL_ERROR "MEMOPT_THREADS is \"${MEMOPT_THREADS}\"; AUTO, PTHREADPOOL or OWN")
elseif(MEMOPT_THREADS STREQUAL "OWN")
  set(memopt_threads own)
elseif(NOT MEMOPT_PTHREADPOOL OR NOT MEMOPT_PTHREADPOOL_INCLUDE)
  if(MEMOPT_THREADS STREQUAL "PTHREADPOOL")
    message(FATAL_ERROR "MEMOPT_THREADS=PTHREADPOOL needs pthreadpool (Debian: libpthreadpool-dev; "
                        "./setup installs it)")
  endif()
  message(STATUS "pthreadpool was not found: the cpu device runs on threads of its own")
  set(memopt_threads own)
endif()
if(memopt_threads STREQUAL "own")
  set(memopt_thread_libraries Threads::Threads)
endif()

set(MEMOPT_WARNINGS -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror)
# A callback need not use all that it gets.
set(MEMOPT_TEST_WARNINGS -Wall -Wextra -Wshadow -Wno-unused-parameter -Werror)

set(memopt_tsan OFF)
if(MEMOPT_SANITIZE STREQUAL "thread")
  set(memopt_tsan ON)
endif()
if(MEMOPT_SANITIZE)
  if(NOT MEMOPT_SANITIZE MATCHES "^(address|undefined|address,undefined|thread)$")
    message(FATAL_ERROR "MEMOPT_SANITIZE is \"${MEMOPT_SANITIZE}\"; address, undefined, "
                        "address,undefined or thread")
  endif()
  add_compile_options(-fsanitize=${MEMOPT_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${MEMOPT_SANITIZE})
endif()

# One rounding per operation, as written, on every target that computes.
function(memopt_compile_options target)
  target_compile_options(${target} PRIVATE -ffp-contract=off)
  if(memopt_threads STREQUAL "pool")
    target_include_directories(${target} SYSTEM PRIVATE ${MEMOPT_PTHREADPOOL_INCLUDE})
  endif()
  if(MEMOPT_DEVELOPER)
    target_compile_options(${target} PRIVATE ${MEMOPT_WARNINGS})
  endif()
endfunction()

# Objects of lib/ and kernels/: everything but the names in a library's map is hidden.
function(memopt_objects name)
  add_library(${name} OBJECT)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/lib
                                            ${PROJECT_SOURCE_DIR} ${memopt_root}/lib ${MEMOPT_MADE})
  memopt_compile_options(${name})
endfunction()

function(memopt_public_headers target)
  target_include_directories(${target} PUBLIC
                             $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endfunction()

# memopt_library(name OBJECTS objects [USES library] [LIBRARIES lib...]):
# lib<name>.so with the names in lib/<name>.map, and lib<name>.a where MEMOPT_STATIC is on.
# memopt_libraries_<name> lists both, for installing.
function(memopt_library name)
  cmake_parse_arguments(L "" "OBJECTS;USES" "LIBRARIES" ${ARGN})
  string(REPLACE "memopt-" "" alias ${name})
  set(map ${PROJECT_SOURCE_DIR}/lib/${name}.map)
  add_library(${name} SHARED $<TARGET_OBJECTS:${L_OBJECTS}> $<TARGET_OBJECTS:memopt_base_objects>)
  # The last: dlopen, which older C libraries have in a library of its own.
  target_link_libraries(${name} PUBLIC ${L_USES} PRIVATE ${L_LIBRARIES} ${CMAKE_DL_LIBS})
  target_link_options(${name} PRIVATE LINKER:--as-needed LINKER:--version-script=${map}
                      LINKER:-z,relro LINKER:-z,now) # no table of addresses stays writable
  if(NOT MEMOPT_SANITIZE) # a sanitizer's runtime comes with the program, not with the library
    target_link_options(${name} PRIVATE LINKER:-z,defs)
  endif()
  set_target_properties(${name} PROPERTIES VERSION 1.${PROJECT_VERSION} SOVERSION 1
                        EXPORT_NAME ${alias} LINK_DEPENDS ${map})
  memopt_public_headers(${name})
  add_library(memopt::${alias} ALIAS ${name})
  set(libraries ${name})
  if(MEMOPT_STATIC)
    memopt_static_library()
  endif()
  set_property(GLOBAL PROPERTY memopt_libraries_${name} ${libraries})
endfunction()

# The static form of memopt_library's; libmemopt.a has lib/base's objects for the others too.
macro(memopt_static_library)
  add_library(${name}_static STATIC $<TARGET_OBJECTS:${L_OBJECTS}>)
  add_library(memopt::${alias}_static ALIAS ${name}_static)
  set_target_properties(${name}_static PROPERTIES OUTPUT_NAME ${name} EXPORT_NAME ${alias}_static)
  target_link_libraries(${name}_static PRIVATE Threads::Threads m ${CMAKE_DL_LIBS})
  if(L_USES)
    target_link_libraries(${name}_static PUBLIC ${L_USES}_static)
  else()
    target_sources(${name}_static PRIVATE $<TARGET_OBJECTS:memopt_base_objects>)
    if(memopt_threads STREQUAL "pool")
      target_link_libraries(${name}_static PRIVATE $<BUILD_INTERFACE:${MEMOPT_PTHREADPOOL}>
                                                   $<INSTALL_INTERFACE:pthreadpool>)
    endif()
  endif()
  memopt_public_headers(${name}_static)
  list(APPEND libraries ${name}_static)
endmacro()

# Builds with MEMOPT_TESTS=ONCE share the C tests: a test is sanitized, or plain where a sanitizer shows
# nothing more (what kernels compute, slowly), as the folder's memopt_tests_are says: sanitized, plain or
# both. ThreadSanitizer's build has all tests with threads.
set(MEMOPT_TESTS ALL CACHE STRING "Tests of this build: ALL, or ONCE: those that the other one lacks")
set_property(CACHE MEMOPT_TESTS PROPERTY STRINGS ALL ONCE)
if(NOT MEMOPT_TESTS MATCHES "^(ALL|ONCE)$")
  message(FATAL_ERROR "MEMOPT_TESTS is \"${MEMOPT_TESTS}\"; ALL or ONCE")
endif()
set(memopt_tests_are sanitized)

function(memopt_is_elsewhere result)
  set(other plain)
  if(NOT MEMOPT_SANITIZE)
    set(other sanitized)
  endif()
  set(${result} NO PARENT_SCOPE)
  if(MEMOPT_TESTS STREQUAL "ONCE" AND memopt_tests_are STREQUAL other AND NOT memopt_tsan)
    set(${result} YES PARENT_SCOPE)
  endif()
endfunction()

# What a program has that is linked with the library's insides.
function(memopt_internal_settings name)
  target_link_libraries(${name} PRIVATE memopt_test_support memopt_internal)
  target_compile_options(${name} PRIVATE -ffp-contract=off)
  # Most tests are compiled with AddressSanitizer only.
  if(MEMOPT_DEVELOPER OR "${MEMOPT_SANITIZE}" MATCHES address)
    target_compile_options(${name} PRIVATE ${MEMOPT_TEST_WARNINGS})
  endif()
endfunction()

function(memopt_internal_program name)
  memopt_is_elsewhere(elsewhere)
  set(exclude "")
  if(elsewhere)
    set(exclude EXCLUDE_FROM_ALL)
  endif()
  add_executable(${name} ${exclude} ${ARGN})
  memopt_internal_settings(${name})
endfunction()

# memopt_internal_objects(name file...): objects for several of those programs, as <TARGET_OBJECTS:name>.
function(memopt_internal_objects name)
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${ARGN})
  memopt_internal_settings(${name})
endfunction()

# memopt_translated_kernels(target text header...): a module of the translated kernels in `text`, a generated
# C file, compiled in parts (tests/support/parts.py). The headers are what it includes.
function(memopt_translated_kernels target text)
  add_library(${target} MODULE ${text})
  set_source_files_properties(${text} PROPERTIES HEADER_FILE_ONLY ON)
  foreach(number RANGE 7)
    set(part ${CMAKE_CURRENT_BINARY_DIR}/${target}_${number}.c)
    file(CONFIGURE OUTPUT ${part} CONTENT "#define PART ${number}\n#include \"${text}\"\n" @ONLY)
    set_property(SOURCE ${part} PROPERTY OBJECT_DEPENDS "${CMAKE_CURRENT_BINARY_DIR}/${text};${ARGN}")
    target_sources(${target} PRIVATE ${part})
  endforeach()
  add_dependencies(${target} memopt_objects) # which makes what was translated
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_compile_options(${target} PRIVATE -O1 -g0 -ffp-contract=off -fvisibility=hidden
                         -Werror=implicit-function-declaration)
  target_link_libraries(${target} PRIVATE m)
endfunction()

# memopt_test_properties(name label...): what all tests have in common. Exit status 77 is a counted
# skip; a refused allocation is NULL under a sanitizer too. The time limit is for tests that hang:
# no busy or slow machine reaches it.
function(memopt_test_properties name)
  set(labels ${ARGN})
  memopt_is_elsewhere(elsewhere)
  if(elsewhere)
    list(APPEND labels elsewhere)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" SKIP_RETURN_CODE 77)
  if(MEMOPT_SANITIZE)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT
      "ASAN_OPTIONS=allocator_may_return_null=1;TSAN_OPTIONS=allocator_may_return_null=1;LSAN_OPTIONS=print_suppressions=0:suppressions=${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../tests/support/leaks.supp")
  endif()
endfunction()

# memopt_add_test(NAME name SOURCES file... [LIBRARIES lib...] [LABELS label...] [ARGUMENTS a...]
#                 [THREADS] [SWEEPS] [PLAIN]): a cmocka program linked with the insides. The label is `unit`
# where none is given. THREADS: it starts threads or streams, and has the label `threads` too:
# ThreadSanitizer looks at those only.
# SWEEPS: it takes a sample (tests/support/sweep.h), and everything as NAME_long; its label `sweeps` is
# for other samples. PLAIN: it is no test of AddressSanitizer's build (MEMOPT_TESTS).
function(memopt_add_test)
  cmake_parse_arguments(T "THREADS;SWEEPS;PLAIN" "NAME" "SOURCES;LIBRARIES;LABELS;ARGUMENTS" ${ARGN})
  if(NOT T_LABELS)
    set(T_LABELS unit)
  endif()
  if(T_THREADS)
    list(APPEND T_LABELS threads)
  endif()
  if(T_SWEEPS)
    list(APPEND T_LABELS sweeps)
  endif()
  if(T_PLAIN)
    set(memopt_tests_are plain)
  endif()
  memopt_internal_program(${T_NAME} ${T_SOURCES})
  if(memopt_tsan AND NOT T_THREADS)
    set_target_properties(${T_NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  target_link_libraries(${T_NAME} PRIVATE ${MEMOPT_CMOCKA} ${T_LIBRARIES})
  add_test(NAME ${T_NAME} COMMAND ${T_NAME} ${T_ARGUMENTS})
  memopt_test_properties(${T_NAME} ${T_LABELS})
  if(T_SWEEPS AND NOT MEMOPT_SANITIZE)
    add_test(NAME ${T_NAME}_long COMMAND ${T_NAME} ${T_ARGUMENTS})
    memopt_test_properties(${T_NAME}_long long)
    set_tests_properties(${T_NAME}_long PROPERTIES ENVIRONMENT MEMOPT_TEST_LONG=1)
  endif()
endfunction()
