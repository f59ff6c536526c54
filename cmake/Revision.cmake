# SPDX-License-Identifier: Apache-2.0
# Writes the revision of SOURCE_DIR to the header OUTPUT where it is not there already: "unknown" outside a git checkout,
# "-dirty" behind one with changes. REVISION, where it is given, stands for a tree without its git history.
#   cmake -DSOURCE_DIR=DIR -DOUTPUT=FILE [-DGIT=PROGRAM] [-DREVISION=R] -P cmake/Revision.cmake
set(revision unknown)
if(REVISION)
  set(revision ${REVISION})
elseif(GIT)
  execute_process(COMMAND ${GIT} describe --always --abbrev=12 --exclude=* --dirty WORKING_DIRECTORY ${SOURCE_DIR}
                  OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE result)
  if(result EQUAL 0)
    set(revision ${described})
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define INTRAWARP_REVISION \"${revision}\"\n")
