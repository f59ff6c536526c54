// SPDX-License-Identifier: Apache-2.0
// Orphans: payloads that no row of the catalogue needs, in a folder of their own for as long as they are kept. A start
// with the wrong catalogue (an older copy, an emptied one) takes nothing away for good: a later start with the right
// one brings its payloads back.
//
// The layout of the folder: "{seconds}-{64 hex digits}", the time of its store at which the payload was put there, in
// seconds since 1970, and its SHA-256. Other files are nobody's and stay.
//
// Errors are those of FileLayer. Thread-compatible.
#ifndef INTRAWARP_SERVER_STATE_ORPHANS_H_
#define INTRAWARP_SERVER_STATE_ORPHANS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/state/file_layer.h"
#include "server/state/payload_spool.h"

namespace intrawarp::state {

class Orphans {
 public:
  // Times and ages in nanoseconds, times since 1970. `files` and `spool` outlive it.
  Orphans(FileLayer& files, const PayloadSpool& spool, std::string folder)
      : files_(files), spool_(spool), folder_(std::move(folder)) {}

  struct Amount {
    int64_t files = 0;
    int64_t bytes = 0;
  };
  // What lies there.
  absl::StatusOr<Amount> Count() const;
  // Moves these payloads out of the spool. After an error some may be in either place, all whole.
  absl::Status Take(const std::vector<std::string>& digests, int64_t now);
  // Moves those of the payloads that lie here back into the spool, and returns how many did.
  absl::StatusOr<int64_t> BringBack(const std::vector<std::string>& digests);
  // Removes what was put here more than `age` before `now`, and returns it.
  absl::StatusOr<Amount> RemoveOld(int64_t now, int64_t age);

 private:
  struct Entry {
    std::string name;
    std::string digest;
    int64_t since = 0;
  };
  absl::StatusOr<std::vector<Entry>> List() const;
  std::string Path(const std::string& name) const;
  absl::StatusOr<int64_t> BytesOf(const Entry& entry) const;

  FileLayer& files_;
  const PayloadSpool& spool_;
  const std::string folder_;
};

}  // namespace intrawarp::state

#endif  // INTRAWARP_SERVER_STATE_ORPHANS_H_
