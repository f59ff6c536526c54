# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` lays down: the programs, and the package `intrawarp` with the components client (the client
# library, with the generated messages that it speaks in) and engine. Headers keep their paths of this tree below
# include/intrawarp, which is the include directory of every installed library.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
set(INTRAWARP_INSTALL_INCLUDEDIR ${CMAKE_INSTALL_INCLUDEDIR}/intrawarp)
set(INTRAWARP_INSTALL_CMAKEDIR ${CMAKE_INSTALL_LIBDIR}/cmake/intrawarp)

# The headers of this tree that `headers` (paths from its root) include, and these themselves.
function(intrawarp_header_closure out)
  set(waiting ${ARGN})
  set(closure)
  while(waiting)
    list(POP_FRONT waiting header)
    if(header IN_LIST closure OR NOT EXISTS ${PROJECT_SOURCE_DIR}/${header})
      continue()
    endif()
    list(APPEND closure ${header})
    file(STRINGS ${PROJECT_SOURCE_DIR}/${header} lines REGEX "^#include \"[a-z]+/")
    list(TRANSFORM lines REPLACE "^#include \"([^\"]+)\".*" "\\1")
    list(APPEND waiting ${lines})
  endwhile()
  set(${out} ${closure} PARENT_SCOPE)
endfunction()

function(intrawarp_install_headers component)
  foreach(header IN LISTS ARGN)
    get_filename_component(folder ${header} DIRECTORY)
    install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${INTRAWARP_INSTALL_INCLUDEDIR}/${folder}
            COMPONENT ${component})
  endforeach()
endfunction()

# The libraries of this tree that a target links, itself among them, but for intrawarp_base.
function(intrawarp_link_closure out)
  set(waiting ${ARGN})
  set(closure)
  while(waiting)
    list(POP_FRONT waiting target)
    if(NOT target MATCHES "^intrawarp_" OR target STREQUAL intrawarp_base OR target IN_LIST closure)
      continue()
    endif()
    list(APPEND closure ${target})
    get_target_property(libraries ${target} LINK_LIBRARIES)
    list(APPEND waiting ${libraries})
  endwhile()
  set(${out} ${closure} PARENT_SCOPE)
endfunction()

# Names the libraries that are installed as intrawarp::NAME in the build tree, too, so that a project that adds this
# tree links the names that it would link of an installed package.
function(intrawarp_add_aliases)
  set(roots intrawarp_engine)
  if(INTRAWARP_CLIENT)
    list(APPEND roots intrawarp_client)
  endif()
  intrawarp_link_closure(libraries ${roots})
  foreach(library IN LISTS libraries ITEMS intrawarp_base)
    string(REPLACE intrawarp_ "" name ${library})
    add_library(intrawarp::${name} ALIAS ${library})
  endforeach()
endfunction()

# Installs static libraries intrawarp_NAME as intrawarp::NAME, in the export set of a component.
function(intrawarp_install_libraries component)
  foreach(library IN LISTS ARGN)
    string(REPLACE intrawarp_ "" name ${library})
    set_target_properties(${library} PROPERTIES EXPORT_NAME ${name})
    install(TARGETS ${library} EXPORT intrawarp-${component} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
            COMPONENT ${component})
  endforeach()
  install(EXPORT intrawarp-${component} NAMESPACE intrawarp:: FILE intrawarp-${component}.cmake
          DESTINATION ${INTRAWARP_INSTALL_CMAKEDIR} COMPONENT ${component})
endfunction()

function(intrawarp_install_client)
  intrawarp_link_closure(client_libraries intrawarp_client)
  intrawarp_install_libraries(client ${client_libraries})
  intrawarp_header_closure(client_headers client/cpp/client.h client/cpp/routed_session.h)
  intrawarp_install_headers(client ${client_headers})
  install(DIRECTORY ${PROJECT_BINARY_DIR}/proto/ DESTINATION ${INTRAWARP_INSTALL_INCLUDEDIR} COMPONENT client
          FILES_MATCHING PATTERN "*.pb.h" PATTERN CMakeFiles EXCLUDE)
endfunction()

function(intrawarp_install)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS engine/public_headers.txt)
  if(INTRAWARP_SERVER)
    install(TARGETS intrawarpd RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
  endif()
  if(INTRAWARP_CLI)
    install(TARGETS intrawarp intrawarp-igtl RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
  endif()

  intrawarp_install_libraries(base intrawarp_base)
  intrawarp_link_closure(engine_libraries intrawarp_engine)
  intrawarp_install_libraries(engine ${engine_libraries})

  file(STRINGS ${PROJECT_SOURCE_DIR}/engine/public_headers.txt public_headers REGEX "^[^#]")
  intrawarp_header_closure(engine_headers ${public_headers})
  intrawarp_install_headers(engine ${engine_headers})
  if(INTRAWARP_CLIENT)
    intrawarp_install_client()
  endif()

  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/intrawarpConfig.cmake.in
    ${PROJECT_BINARY_DIR}/intrawarpConfig.cmake INSTALL_DESTINATION ${INTRAWARP_INSTALL_CMAKEDIR})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/intrawarpConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/intrawarpConfig.cmake ${PROJECT_BINARY_DIR}/intrawarpConfigVersion.cmake
          ${PROJECT_SOURCE_DIR}/cmake/FindGraphBLAS.cmake DESTINATION ${INTRAWARP_INSTALL_CMAKEDIR} COMPONENT base)
endfunction()
