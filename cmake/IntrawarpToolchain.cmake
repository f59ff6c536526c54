# SPDX-License-Identifier: Apache-2.0
# Compiler settings shared by every target: warnings, hardening, sanitizers, ccache, and whether there is a CUDA device to
# build. They are options of this directory, which reach every target below it and none of a project that adds this tree.
# An INTERFACE library would hand its link options on: CMake takes them from what a static library links, PRIVATE or not
# (CMP0099). tests/build/components.cmake looks at what such a project gets.

# A project that adds this tree, or the command line, may have named another launcher.
find_program(INTRAWARP_CCACHE ccache)
mark_as_advanced(INTRAWARP_CCACHE)
foreach(language CXX CUDA)
  if(INTRAWARP_CCACHE AND NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
    set(CMAKE_${language}_COMPILER_LAUNCHER ${INTRAWARP_CCACHE})
  endif()
endforeach()

add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra>
                    $<$<COMPILE_LANGUAGE:CXX>:-Wno-sign-compare>)
if(INTRAWARP_WERROR)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(INTRAWARP_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(INTRAWARP_SANITIZE)
  add_compile_options(-fsanitize=${INTRAWARP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${INTRAWARP_SANITIZE})
else()
  add_link_options(LINKER:-z,relro LINKER:-z,now)
  include(CheckPIESupported)
  check_pie_supported(LANGUAGES CXX)
endif()

# Hardens a target that reads what strangers send: stack canaries, checked calls of the C library, checked bounds of the
# standard library's containers. The engine's loops do without, on sizes that were checked before. Sanitizers have
# checks of their own in these places, and _FORTIFY_SOURCE needs an optimiser.
function(intrawarp_harden target)
  if(NOT INTRAWARP_SANITIZE)
    target_compile_options(${target} PRIVATE -fstack-protector-strong $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=2>)
    target_compile_definitions(${target} PRIVATE _GLIBCXX_ASSERTIONS)
  endif()
endfunction()

# For a target whose time is not its own loops but messages, files and calls: -O1 in a Release build, which takes a third
# less time to compile.
function(intrawarp_cold target)
  target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
endfunction()

set(INTRAWARP_WITH_CUDA OFF)
if(NOT INTRAWARP_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real 90-real 90-virtual)
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    # CMake 3.25 does not know that nvcc 13 takes C++20 and drops CUDA_STANDARD 20, so the flag goes in by hand.
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED OFF)
    set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} -std=c++20 --expt-relaxed-constexpr -Xcompiler=-Wall")
    enable_language(CUDA)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    set(INTRAWARP_WITH_CUDA ON)
  elseif(INTRAWARP_CUDA STREQUAL "ON")
    message(FATAL_ERROR "INTRAWARP_CUDA=ON, but no CUDA compiler was found")
  endif()
endif()
message(STATUS "intrawarp: CUDA device ${INTRAWARP_WITH_CUDA}")
