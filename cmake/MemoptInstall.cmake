# memopt_install(name [USES package]): installs lib<name>, its headers, a .pc file and a CMake package, which
# finds the other first. Paths are relative to the prefix, so an installed tree can be moved.
include(CMakePackageConfigHelpers)

function(memopt_install name)
  cmake_parse_arguments(I "" "USES" "" ${ARGN})
  get_property(targets GLOBAL PROPERTY memopt_libraries_${name})
  set(folder ${CMAKE_INSTALL_LIBDIR}/cmake/${name})
  install(TARGETS ${targets} EXPORT ${name}Targets
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/memopt DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
          FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
  install(EXPORT ${name}Targets NAMESPACE memopt:: DESTINATION ${folder})

  set(memopt_needs "${I_USES}")
  if(memopt_needs STREQUAL "")
    set(memopt_needs Threads)
  endif()
  configure_package_config_file(${memopt_root}/cmake/Config.cmake.in ${PROJECT_BINARY_DIR}/${name}Config.cmake
                                INSTALL_DESTINATION ${folder})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/${name}ConfigVersion.cmake
                                   COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/${name}Config.cmake ${PROJECT_BINARY_DIR}/${name}ConfigVersion.cmake
          DESTINATION ${folder})

  # From the folder of the .pc file back to the prefix, however deep the library folder is.
  cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX
             BASE_DIRECTORY ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig
             OUTPUT_VARIABLE memopt_pc_to_prefix)
  set(memopt_pc_needs "Requires: ${I_USES} = ${PROJECT_VERSION}")
  if(NOT I_USES)
    set(pool "")
    if(memopt_threads STREQUAL "pool")
      set(pool "-lpthreadpool ")
    endif()
    set(memopt_pc_needs "Libs.private: ${pool}-lm -ldl -pthread")
  endif()
  configure_file(${memopt_root}/pkgconfig/memopt.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()
