// SPDX-License-Identifier: Apache-2.0
// A folder of files that appears at once or not at all.
#ifndef INTRAWARP_IO_FILE_ATOMIC_FOLDER_H_
#define INTRAWARP_IO_FILE_ATOMIC_FOLDER_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace intrawarp::io {

// Files are written into path(), a temporary folder beside the target (".intrawarp-..."), which Commit renames. Without
// a Commit the destructor removes it with its files (a crash leaves it behind). The target must not exist, or be an
// empty folder: a folder is never mixed with the files of an earlier run. Thread-compatible.
class AtomicFolder {
 public:
  // Slashes at the end of `target` do not matter. ALREADY_EXISTS "file: ..." for a target that is a file or a folder
  // with something in it; NOT_FOUND "file: ..." where the folder around it is missing.
  static absl::StatusOr<AtomicFolder> Create(const std::string& target);
  AtomicFolder(AtomicFolder&& other) noexcept;
  AtomicFolder& operator=(AtomicFolder&&) = delete;
  ~AtomicFolder();

  const std::string& path() const { return temporary_; }

  // Called once, after the last file is on the disk. ALREADY_EXISTS where somebody else has made the target meanwhile.
  absl::Status Commit();

 private:
  AtomicFolder(std::string target, std::string temporary)
      : target_(std::move(target)), temporary_(std::move(temporary)) {}

  std::string target_;
  std::string temporary_;  // empty once it was renamed
};

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_FILE_ATOMIC_FOLDER_H_
