# SPDX-License-Identifier: Apache-2.0
# DCMTK's data sets and decoders, as Debian's libdcmtk-dev installs them: DCMTK::decoders. DCMTK's own package file
# also wants its programs and the network.
find_path(DcmtkDecoders_INCLUDE_DIR dcmtk/dcmdata/dctk.h)
set(libraries)
foreach(name dcmjpeg dcmjpls dcmimgle dcmdata oflog ofstd)
  find_library(DcmtkDecoders_${name}_LIBRARY ${name})
  list(APPEND libraries DcmtkDecoders_${name}_LIBRARY)
endforeach()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(DcmtkDecoders REQUIRED_VARS ${libraries} DcmtkDecoders_INCLUDE_DIR)
if(DcmtkDecoders_FOUND AND NOT TARGET DCMTK::decoders)
  add_library(DCMTK::decoders INTERFACE IMPORTED GLOBAL)
  foreach(library IN LISTS libraries)
    target_link_libraries(DCMTK::decoders INTERFACE ${${library}})
  endforeach()
  set_target_properties(DCMTK::decoders PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${DcmtkDecoders_INCLUDE_DIR})
endif()
