// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/search.h"

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dcdatset.h>
#include <dcmtk/dcmdata/dcdeftag.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/dicom/attributes.h"
#include "io/file/file.h"

namespace intrawarp::io::dicom {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxComponents = 8;  // PS3.10 8.2
constexpr size_t kMaxComponent = 64;

absl::Status TooMany(const DicomLimits& limits) {
  return FieldError(absl::StatusCode::kResourceExhausted, "file",
                    absl::StrCat("there are more than ", limits.max_files, " files"));
}

bool IsPlainName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxComponent && name != "." && name != ".." &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-';
         });
}

// A name of PS3.10 is in capitals; file systems that were copied from a disc may have it in small letters.
fs::path Existing(const fs::path& folder, const std::string& name) {
  std::error_code error;
  const fs::path same = folder / name;
  if (fs::exists(same, error)) return same;
  const fs::path lower = folder / absl::AsciiStrToLower(name);
  return fs::exists(lower, error) ? lower : same;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FilesBelow(const std::string& folder, const DicomLimits& limits) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code type_error;
    if (entry->is_directory(type_error) && !entry->is_symlink(type_error) &&
        entry.depth() + 1 >= limits.max_folder_depth) {
      return FieldError(absl::StatusCode::kResourceExhausted, "file",
                        absl::StrCat("folders are nested more than ", limits.max_folder_depth, " deep"));
    }
    if (!entry->is_regular_file(type_error)) continue;
    files.push_back(entry->path().string());
    if (static_cast<int>(files.size()) > limits.max_files) return TooMany(limits);
  }
  if (error) return FileError("folder", error.value());
  std::sort(files.begin(), files.end());
  return files;
}

absl::StatusOr<std::vector<std::string>> FilesOfDirectory(DcmDataset& directory, const std::string& path,
                                                          const DicomLimits& limits) {
  const fs::path folder = fs::path(path).parent_path();
  std::vector<std::string> files;
  for (DcmItem* record : Items(directory, DCM_DirectoryRecordSequence)) {
    const std::vector<std::string> parts = Texts(*record, {DCM_ReferencedFileID, "ReferencedFileID"});
    if (parts.empty()) continue;
    fs::path file = folder;
    for (const std::string& part : parts) {
      if (parts.size() > kMaxComponents || !IsPlainName(part)) {
        return FieldError(absl::StatusCode::kInvalidArgument, "file",
                          "the DICOMDIR names a file in a way that PS3.10 does not allow");
      }
      file = Existing(file, part);
      std::error_code error;
      if (fs::is_symlink(file, error)) {
        return FieldError(absl::StatusCode::kInvalidArgument, "file",
                          "the DICOMDIR names a file behind a symbolic link");
      }
    }
    files.push_back(file.string());
    if (static_cast<int>(files.size()) > limits.max_files) return TooMany(limits);
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

}  // namespace intrawarp::io::dicom
