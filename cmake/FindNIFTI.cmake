# SPDX-License-Identifier: Apache-2.0
# nifticlib, as Debian's libnifti-dev installs it: NIFTI::niftiio.
find_path(NIFTI_INCLUDE_DIR nifti1_io.h PATH_SUFFIXES nifti)
find_library(NIFTI_niftiio_LIBRARY niftiio)
find_library(NIFTI_znz_LIBRARY znz)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NIFTI REQUIRED_VARS NIFTI_niftiio_LIBRARY NIFTI_znz_LIBRARY NIFTI_INCLUDE_DIR)
if(NIFTI_FOUND AND NOT TARGET NIFTI::niftiio)
  add_library(NIFTI::niftiio UNKNOWN IMPORTED)
  set_target_properties(NIFTI::niftiio PROPERTIES
    IMPORTED_LOCATION ${NIFTI_niftiio_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${NIFTI_INCLUDE_DIR}
    INTERFACE_LINK_LIBRARIES ${NIFTI_znz_LIBRARY})
endif()
