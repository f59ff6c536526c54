# SPDX-License-Identifier: Apache-2.0
# Fails when the command line has anything of the engine's devices in it: a needed library or a symbol of GraphBLAS,
# oneTBB, Highway or the CUDA runtime, or a symbol of Device:  cmake -DPROGRAM=FILE -P tests/build/cli_links.cmake
find_program(READELF readelf REQUIRED)
find_program(GREP grep REQUIRED)
execute_process(COMMAND ${READELF} --dynamic --syms --wide ${PROGRAM}
                COMMAND ${GREP} -E "NEEDED|libgraphblas|GrB_|cudaMalloc|intrawarp6Device|intrawarp3cli"
                OUTPUT_VARIABLE listing)
if(NOT listing MATCHES "NEEDED[^\n]*libgrpc" OR NOT listing MATCHES "intrawarp3cli")
  message(FATAL_ERROR "${PROGRAM} is not the command line, or it is stripped")
endif()
string(REGEX MATCHALL "libgraphblas|libtbb|libhwy|libcuda|GrB_[A-Za-z_]*|cudaMalloc|intrawarp6Device" found "${listing}")
if(found)
  list(REMOVE_DUPLICATES found)
  message(FATAL_ERROR "${PROGRAM} links more than the base of the engine: ${found}")
endif()
