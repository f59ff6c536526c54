# SPDX-License-Identifier: Apache-2.0
# Configures this tree in part, as a project that adds it would, without the packages that the parts left out need, looks
# at the flags of that project's own targets, and asks for combinations that cannot be:
#   cmake -DSOURCE=... -DWORK=... -DCXX=... -DCUDACXX=COMPILER_OR_NOTHING -P components.cmake
file(REMOVE_RECURSE ${WORK})
file(WRITE ${WORK}/parent/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)
project(parent LANGUAGES C CXX)
add_subdirectory(${SOURCE} intrawarp)
add_executable(own own.cc)
add_executable(consumer ${SOURCE}/tests/install/engine/main.cc)
target_link_libraries(consumer PRIVATE intrawarp::engine)
")
file(WRITE ${WORK}/parent/own.cc "int main() {}\n")

function(configure name source)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env --unset=CXXFLAGS --unset=LDFLAGS ${CMAKE_COMMAND} -G Ninja -S ${source} -B ${WORK}/${name} -DCMAKE_CXX_COMPILER=${CXX}
            -DINTRAWARP_CUDA=OFF ${ARGN}
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  set(result ${result} PARENT_SCOPE)
  set(output "${output}" PARENT_SCOPE)
endfunction()

set(engine_only -DINTRAWARP_SERVER=OFF -DINTRAWARP_CLIENT=OFF -DINTRAWARP_CLI=OFF -DINTRAWARP_DICOM=OFF)
foreach(package Protobuf gRPC OpenSSL ZLIB Cairo CURL NIFTI HDF5 DcmtkDecoders OpenJPEG nlohmann_json SQLite3
                prometheus-cpp Microhttpd GTest)
  list(APPEND engine_only -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
endforeach()
if(CUDACXX)
  list(APPEND engine_only -DINTRAWARP_CUDA=ON -DCMAKE_CUDA_COMPILER=${CUDACXX})
endif()
configure(engine ${WORK}/parent ${engine_only} -DINTRAWARP_WERROR=ON -DCMAKE_CXX_COMPILER_LAUNCHER=env)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the engine does not configure without the packages of the other parts:\n${output}")
endif()

# The commands that make a target of the parent, and what they make it from: `commands_TARGET`, a list.
function(commands_of target)
  execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/engine -- -t commands ${target}
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "no commands of ${target}:\n${output}")
  endif()
  string(REPLACE ";" "\\;" output "${output}")
  string(REGEX REPLACE "\n$" "" output "${output}")
  string(REPLACE "\n" ";" output "${output}")
  set(commands_${target} "${output}" PARENT_SCOPE)
endfunction()
commands_of(own)
commands_of(consumer)

# Warnings, hardening and sanitizers are this tree's affair. Abseil wraps a library in a push and a pop.
foreach(command IN LISTS commands_own commands_consumer)
  if(command MATCHES "(own|consumer)\\.dir/")
    string(REGEX REPLACE " -Wl,--(push-state,--as-needed|pop-state)" "" rest "${command}")
    if(rest MATCHES " (-[Wfgmw][^ ]*|-D_[^ ]*|-O[^ ]*)")
      message(FATAL_ERROR "a target of the project that adds this tree gets ${CMAKE_MATCH_1}:\n${command}")
    endif()
  endif()
endforeach()

# This tree's sources have them there, too, with the launcher that the project names.
set(ours "${commands_consumer}")
list(FILTER ours INCLUDE REGEX "intrawarp_engine\\.dir/.*\\.cc\\.o -c ")
set(flagged "${ours}")
list(FILTER flagged INCLUDE REGEX "^env .* -Wall .*-Werror ")
if(ours STREQUAL "" OR NOT ours STREQUAL flagged)
  message(FATAL_ERROR "sources of the engine without their warnings or the launcher:\n${ours}")
endif()

# What the headers and the library need comes with the target.
set(uses "${commands_consumer}")
list(FILTER uses INCLUDE REGEX "consumer\\.dir/.*\\.cc\\.o -c ")
if(NOT uses MATCHES "-std=(gnu|c)\\+\\+20 ")
  message(FATAL_ERROR "a project that links the engine is not compiled as C++20:\n${uses}")
endif()
list(GET commands_consumer -1 link)
if(CUDACXX AND NOT link MATCHES "libcudart_static")
  message(FATAL_ERROR "a project that links the engine does not link CUDA's runtime:\n${link}")
endif()

function(expect_refusal sentence)
  configure(refused ${SOURCE} ${ARGN})
  if(result EQUAL 0 OR NOT output MATCHES "${sentence}")
    message(FATAL_ERROR "'${ARGN}' was not refused with '${sentence}':\n${output}")
  endif()
  file(REMOVE_RECURSE ${WORK}/refused)
endfunction()

expect_refusal("INTRAWARP_SERVER=ON needs INTRAWARP_DICOM=ON" -DINTRAWARP_DICOM=OFF)
expect_refusal("INTRAWARP_CLI=ON needs INTRAWARP_CLIENT=ON" -DINTRAWARP_CLIENT=OFF)
expect_refusal("INTRAWARP_BUILD_TESTS=ON needs INTRAWARP_CLI=ON" -DINTRAWARP_CLI=OFF -DINTRAWARP_BUILD_TESTS=ON)
file(REMOVE_RECURSE ${WORK})
