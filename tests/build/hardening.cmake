# SPDX-License-Identifier: Apache-2.0
# Fails unless a program is position-independent, binds every symbol at its start and makes them read-only then, and has
# stack canaries, checked calls of the C library and containers that check their bounds:
#   cmake -DPROGRAM=FILE -P tests/build/hardening.cmake
find_program(READELF readelf REQUIRED)
execute_process(COMMAND ${READELF} --file-header --program-headers --dynamic --syms --wide ${PROGRAM}
                OUTPUT_VARIABLE listing COMMAND_ERROR_IS_FATAL ANY)
function(require what pattern)
  if(NOT listing MATCHES "${pattern}")
    message(SEND_ERROR "${PROGRAM}: no ${what}")
  endif()
endfunction()
require("position-independent executable" "Flags: [^\n]*PIE")
require("BIND_NOW" "Flags: [^\n]*NOW")
require("RELRO" "GNU_RELRO")
require("stack protector" "__stack_chk_fail")
require("_FORTIFY_SOURCE" "__[a-z]+_chk")
require("_GLIBCXX_ASSERTIONS" "__glibcxx_assert_fail")
