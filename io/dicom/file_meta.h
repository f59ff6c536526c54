// SPDX-License-Identifier: Apache-2.0
// The meta header of a DICOM file (PS3.10, section 7.1), by which files are told apart and sent without their data set
// being parsed. Plain values and thread-safe functions.
#ifndef INTRAWARP_IO_DICOM_FILE_META_H_
#define INTRAWARP_IO_DICOM_FILE_META_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace intrawarp::io {

// A meta header is no longer.
inline constexpr size_t kMaxFileMetaBytes = 64 << 10;

// UIDs are pseudonyms: they go to archives, and neither into messages nor into logs.
struct FileMeta {
  std::string sop_class;
  std::string sop_instance;
  std::string transfer_syntax;
  // Where the data set begins.
  size_t size = 0;

  bool is_directory() const;  // a DICOMDIR
};

// Reads the beginning of a file. NOT_FOUND "file: is not DICOM" without preamble and prefix, DATA_LOSS "file: ..."
// where the header is cut short or lacks one of the three UIDs.
absl::StatusOr<FileMeta> ParseFileMeta(absl::string_view bytes);
// Reads the file at this path; also the errors of opening and reading it.
absl::StatusOr<FileMeta> ReadFileMeta(const std::string& path);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_DICOM_FILE_META_H_
