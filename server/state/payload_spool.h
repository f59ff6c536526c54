// SPDX-License-Identifier: Apache-2.0
// PayloadSpool: payloads in files that are named by their SHA-256. A payload is written under a temporary name, synced,
// renamed, and the folder is synced: a file that has its name is whole, also after a loss of power.
//
// The layout of a spool folder: {64 hex digits} for a payload, "new-{n}" for one on its way.
//
// Thread safety: safe for concurrent use, except that nobody else uses a payload while it is removed.
#ifndef INTRAWARP_SERVER_STATE_PAYLOAD_SPOOL_H_
#define INTRAWARP_SERVER_STATE_PAYLOAD_SPOOL_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/state/file_layer.h"

namespace intrawarp::state {

class PayloadSpool {
 public:
  // `files` outlives the spool.
  PayloadSpool(FileLayer& files, std::string folder) : files_(files), folder_(std::move(folder)) {}

  // Makes the folder unless it is there.
  absl::Status Create();
  // Writes `bytes`, whose SHA-256 is `digest`. When it returns OK they outlive a loss of power. After an error the
  // payload may be there all the same: the caller removes it unless it is in use. The errors of FileLayer.
  absl::Status Write(const std::string& digest, absl::Span<const char> bytes);
  // Reads the payload, which has to.size() bytes. DATA_LOSS naming the file when it is missing, has another size or
  // another SHA-256; then `to` holds nothing of use.
  absl::Status Read(const std::string& digest, absl::Span<char> to) const;
  // Compares a payload with its digest and size, without holding it in memory. DATA_LOSS as of Read.
  absl::Status Verify(const std::string& digest, int64_t bytes) const;
  // The file's removal is lost when the power is; the next start finds the payload unused. OK when there is none.
  absl::Status Remove(const std::string& digest);
  // Removes every file that is not a payload, and returns their number.
  absl::StatusOr<int> RemoveTemporary();
  // Payloads that were moved to or from the folder outlive a loss of power.
  absl::Status Sync() const { return files_.SyncDirectory(folder_); }

  // The digests of the payloads, and the names of all other files.
  struct Contents {
    std::vector<std::string> digests;
    std::vector<std::string> others;
  };
  absl::StatusOr<Contents> List() const;

  // "spool/0a1b...": what errors call a payload.
  static std::string FileName(const std::string& digest);
  // Where the payload lies.
  std::string Path(const std::string& digest) const;
  // The digest that 64 hex digits stand for; nullopt for another text.
  static std::optional<std::string> DigestIn(absl::string_view name);

 private:
  absl::Status WriteTemporary(const std::string& path, absl::Span<const char> bytes);

  FileLayer& files_;
  const std::string folder_;
  std::atomic<int64_t> next_temporary_{0};
};

}  // namespace intrawarp::state

#endif  // INTRAWARP_SERVER_STATE_PAYLOAD_SPOOL_H_
