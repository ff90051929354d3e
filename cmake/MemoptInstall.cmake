# Installs the libraries, their headers, a .pc file for each, and the CMake package. Paths are relative to the
# prefix, so an installed tree can be moved.
include(CMakePackageConfigHelpers)

get_property(memopt_targets GLOBAL PROPERTY memopt_libraries)
set(memopt_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/memopt)

install(TARGETS ${memopt_targets} EXPORT memoptTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/memopt DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h")

get_property(memopt_image_files GLOBAL PROPERTY memopt_image_files)
install(FILES ${memopt_image_files} DESTINATION ${CMAKE_INSTALL_LIBDIR}/memopt/kernels)

install(EXPORT memoptTargets NAMESPACE memopt:: DESTINATION ${memopt_cmake_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/memoptConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/memoptConfig.cmake
                              INSTALL_DESTINATION ${memopt_cmake_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/memoptConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/memoptConfig.cmake
              ${PROJECT_BINARY_DIR}/memoptConfigVersion.cmake
        DESTINATION ${memopt_cmake_dir})

# From the folder of memopt.pc back to the prefix, however deep the library folder is.
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX
           BASE_DIRECTORY ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig
           OUTPUT_VARIABLE memopt_pc_to_prefix)
set(memopt_pc_pool "")
if(memopt_threads STREQUAL "pool")
  set(memopt_pc_pool "-lpthreadpool ")
endif()
foreach(name memopt memopt-tools memopt-plan)
  get_property(memopt_pc_description GLOBAL PROPERTY memopt_description_${name})
  set(memopt_pc_name ${name})
  if(name STREQUAL "memopt")
    set(memopt_pc_needs "Libs.private: ${memopt_pc_pool}-lm -ldl -pthread")
  else()
    set(memopt_pc_needs "Requires: memopt = ${PROJECT_VERSION}")
  endif()
  configure_file(${PROJECT_SOURCE_DIR}/pkgconfig/memopt.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
