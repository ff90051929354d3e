# An overlay port of the clone that it lies in: vcpkg install libmemopt --overlay-ports=packaging/vcpkg
cmake_path(SET source NORMALIZE "${CURRENT_PORT_DIR}/../../..")

# The library is shared in every triplet; one with static libraries gets libmemopt.a too.
set(archive OFF)
if(VCPKG_LIBRARY_LINKAGE STREQUAL "static")
  set(archive ON)
endif()

vcpkg_cmake_configure(
  SOURCE_PATH "${source}"
  OPTIONS
    -DMEMOPT_BUILD_TESTS=OFF
    -DMEMOPT_BUILD_EXAMPLES=OFF
    -DMEMOPT_THREADS=OWN
    -DMEMOPT_GPU_IMAGES=NONE
    -DMEMOPT_STATIC=${archive})
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME memopt CONFIG_PATH lib/cmake/memopt)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include")
vcpkg_install_copyright(FILE_LIST "${source}/LICENSE")
