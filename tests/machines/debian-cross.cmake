# Builds for another architecture by Debian's cross compiler, and runs what is built by QEMU:
#   cmake -S . -B build/s390x -DCMAKE_TOOLCHAIN_FILE=tests/machines/debian-cross.cmake
#         -DMEMOPT_MACHINE=s390x -DMEMOPT_BUILD_TESTS=OFF -DMEMOPT_BUILD_DIGEST=ON
set(MEMOPT_MACHINE aarch64 CACHE STRING "aarch64, s390x, or what else gcc is there for")
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES MEMOPT_MACHINE)
set(root /usr/${MEMOPT_MACHINE}-linux-gnu)

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${MEMOPT_MACHINE})
set(CMAKE_C_COMPILER ${MEMOPT_MACHINE}-linux-gnu-gcc)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-${MEMOPT_MACHINE}-static -L ${root})
set(CMAKE_FIND_ROOT_PATH ${root})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} ${root}/lib/pkgconfig) # not this machine's
