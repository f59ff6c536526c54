# SPDX-License-Identifier: Apache-2.0
# Compiles the sources of a target several at a time where INTRAWARP_UNITY is set, for builds from nothing: most of a
# unit's time goes to the headers of gRPC, protobuf, Abseil and GoogleTest. deal_units.py decides which sources share a
# unit. A source that is made in the build, or has options of its own, is compiled by itself.

# The targets that are made in `folder` and below it.
function(intrawarp_targets_below folder out)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  get_property(folders DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(below IN LISTS folders)
    intrawarp_targets_below(${below} more)
    list(APPEND targets ${more})
  endforeach()
  set(${out} ${targets} PARENT_SCOPE)
endfunction()

# Adds a line "TARGET SOURCE" to the list `out` for each C++ source of `target` but for the ones made in the build.
function(intrawarp_list_sources target out)
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  list(FILTER sources INCLUDE REGEX "\\.cc$")
  set(lines ${${out}})
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder})
    cmake_path(IS_PREFIX PROJECT_BINARY_DIR ${source} is_made)
    if(NOT is_made)
      list(APPEND lines "${target} ${source}")
    endif()
  endforeach()
  set(${out} ${lines} PARENT_SCOPE)
endfunction()

# To be called after all targets are made.
function(intrawarp_deal_units)
  find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/deal_units.py)
  intrawarp_targets_below(${PROJECT_SOURCE_DIR} targets)
  set(lines)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(type MATCHES "^(STATIC_LIBRARY|EXECUTABLE)$")
      intrawarp_list_sources(${target} lines)
    endif()
  endforeach()
  list(JOIN lines "\n" text)
  file(WRITE ${PROJECT_BINARY_DIR}/sources.txt "${text}\n")
  execute_process(COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/cmake/deal_units.py ${PROJECT_SOURCE_DIR}
                  INPUT_FILE ${PROJECT_BINARY_DIR}/sources.txt OUTPUT_FILE ${PROJECT_BINARY_DIR}/units.txt
                  COMMAND_ERROR_IS_FATAL ANY)
  file(STRINGS ${PROJECT_BINARY_DIR}/units.txt units)
  foreach(line IN LISTS units)
    string(REGEX MATCH "^([^ ]+) ([0-9]+) (.*)$" matched "${line}")
    set(target ${CMAKE_MATCH_1})
    set_source_files_properties("${CMAKE_MATCH_3}" TARGET_DIRECTORY ${target}
                                PROPERTIES UNITY_GROUP ${target}_${CMAKE_MATCH_2})
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  endforeach()
endfunction()
