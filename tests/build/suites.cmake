# SPDX-License-Identifier: Apache-2.0
# Read by ctest with `name`, `program` and `properties` set: adds the entry "name.Suite" for each suite of a GoogleTest
# program. Instantiations ("Devices/WarpTest", "PixelTest/3") of one fixture are one entry. The list is kept beside the
# program, and made anew when the program is newer.
if(NOT EXISTS ${program})
  add_test(${name}_is_not_built ${program})
  return()
endif()
if(NOT EXISTS ${program}.suites OR ${program} IS_NEWER_THAN ${program}.suites)
  execute_process(COMMAND ${program} --gtest_list_tests OUTPUT_VARIABLE listing RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${program} --gtest_list_tests: ${result}")
  endif()
  file(WRITE ${program}.suites "${listing}")
endif()
file(STRINGS ${program}.suites suites REGEX "^[A-Za-z0-9_/]+\\.")
list(TRANSFORM suites REPLACE "\\..*" "")
list(TRANSFORM suites REPLACE "^[A-Za-z0-9_]+/([A-Za-z_])" "\\1")
list(TRANSFORM suites REPLACE "/.*" "")
list(REMOVE_DUPLICATES suites)
foreach(suite IN LISTS suites)
  add_test(${name}.${suite} ${program} "--gtest_filter=${suite}.*:${suite}/*:*/${suite}.*:*/${suite}/*")
  set_tests_properties(${name}.${suite} PROPERTIES ${properties})
endforeach()
