# SPDX-License-Identifier: Apache-2.0
# Prints the key numbers of a report.json:  cmake -DREPORT=report.json -P deploy/report_summary.cmake
file(READ "${REPORT}" report)

# The text at a path in the report, "none" where it is null or missing.
function(report_value out)
  string(JSON value ERROR_VARIABLE missing GET "${report}" ${ARGN})
  if(missing OR value STREQUAL "")
    set(value none)
  endif()
  set(${out} "${value}" PARENT_SCOPE)
endfunction()

function(say)
  execute_process(COMMAND ${CMAKE_COMMAND} -E echo "${ARGN}")
endfunction()

report_value(method method)
report_value(device device)
report_value(stop stop_reason)
report_value(verdict verdict)
report_value(ncc_before similarity before ncc)
report_value(ncc_after similarity after ncc)
report_value(mse_before similarity before mse)
report_value(mse_after similarity after mse)
report_value(optimise latency_ms optimise)
report_value(total latency_ms total)
say("${method} on ${device}: ${stop}, verdict ${verdict}")
say("NCC ${ncc_before} -> ${ncc_after}, MSE ${mse_before} -> ${mse_after}")
say("optimise ${optimise} ms, whole request ${total} ms")
