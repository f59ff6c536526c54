# SPDX-License-Identifier: Apache-2.0
# OpenJPEG, as Debian's libopenjp2-7-dev installs it: OpenJPEG::openjp2. Its own package file also wants the programs.
find_path(OpenJPEG_INCLUDE_DIR openjpeg.h PATH_SUFFIXES openjpeg-2.5)
find_library(OpenJPEG_LIBRARY openjp2)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OpenJPEG REQUIRED_VARS OpenJPEG_LIBRARY OpenJPEG_INCLUDE_DIR)
if(OpenJPEG_FOUND AND NOT TARGET OpenJPEG::openjp2)
  add_library(OpenJPEG::openjp2 UNKNOWN IMPORTED)
  set_target_properties(OpenJPEG::openjp2 PROPERTIES
    IMPORTED_LOCATION ${OpenJPEG_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${OpenJPEG_INCLUDE_DIR})
endif()
