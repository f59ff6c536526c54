# SPDX-License-Identifier: Apache-2.0
# Fails when a source file below engine/ includes what the engine must not know.
file(GLOB_RECURSE files ${ROOT}/engine/*.h ${ROOT}/engine/*.cc ${ROOT}/engine/*.cu ${ROOT}/engine/*.cuh)
list(LENGTH files count)
if(count EQUAL 0)
  message(FATAL_ERROR "no files below ${ROOT}/engine")
endif()
foreach(file ${files})
  file(STRINGS ${file} lines REGEX "#include *[<\"](grpc|google/protobuf|dcmtk|io/|server/|client/|.*\\.pb\\.h)")
  if(lines)
    message(FATAL_ERROR "${file}: ${lines}")
  endif()
endforeach()
message(STATUS "${count} files below engine/ keep the dependency rule")
