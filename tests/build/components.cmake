# SPDX-License-Identifier: Apache-2.0
# Configures this tree in part, as a project that adds it would, without the packages that the parts left out need, and
# asks for combinations that cannot be:  cmake -DSOURCE=... -DWORK=... -DCXX=... -P components.cmake
file(REMOVE_RECURSE ${WORK})
file(WRITE ${WORK}/parent/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)
project(parent LANGUAGES C CXX)
add_subdirectory(${SOURCE} intrawarp)
add_executable(consumer ${SOURCE}/tests/install/engine/main.cc)
target_link_libraries(consumer PRIVATE intrawarp::engine)
")

function(configure name source)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -G Ninja -S ${source} -B ${WORK}/${name} -DCMAKE_CXX_COMPILER=${CXX}
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
configure(engine ${WORK}/parent ${engine_only})
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the engine does not configure without the packages of the other parts:\n${output}")
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
