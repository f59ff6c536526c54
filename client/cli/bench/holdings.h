// SPDX-License-Identifier: Apache-2.0
// Holdings: the volumes, transforms and matrices that a load test makes on the server, and deletes again, whatever
// happened. Every id begins with "bench-" and a part that belongs to this run alone.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_CLIENT_CLI_BENCH_HOLDINGS_H_
#define INTRAWARP_CLIENT_CLI_BENCH_HOLDINGS_H_

#include <cstdint>
#include <mutex>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "io/format/nifti.h"

namespace intrawarp::cli::bench {

class Holdings {
 public:
  // `client` outlives the holdings. `run` is the part of ids that belongs to this run.
  Holdings(client::Client* client, std::string run);
  Holdings(const Holdings&) = delete;
  Holdings& operator=(const Holdings&) = delete;
  ~Holdings() { (void)DeleteAll(); }

  // A name for something that is about to be made, "volumes/bench-0a1b2c3d-7". It is noted before the call that makes
  // it, whose answer may get lost.
  std::string NewVolume() { return New("volumes/"); }
  std::string NewTransform() { return New("transforms/"); }
  std::string NewMatrix() { return New("sparseMatrices/"); }

  // Through a connection of the caller's. What is not there is no error; otherwise the name stays noted.
  absl::Status Delete(const std::string& name, client::Client& client);
  // The end of an operation that was to make `name`: deletes what was made, forgets what was refused. What failed
  // otherwise may come to be after its call has ended; its name stays noted.
  absl::Status Release(const std::string& name, const absl::Status& made, client::Client& client);
  // All that is noted. The first error, after all have been tried; a server that does not answer is asked once.
  absl::Status DeleteAll();
  // How many names are noted.
  int64_t count() const;

 private:
  std::string New(const std::string& collection);

  client::Client* const client_;
  const std::string run_;
  mutable std::mutex mutex_;  // guards what follows
  std::set<std::string> names_;
  int64_t last_ = 0;
};

// "bench-0a1b2c3d" of "volumes/bench-0a1b2c3d": the id of a name.
std::string IdOf(const std::string& name);

// Volumes and matrices of the caller's under these names.
absl::Status UploadVolumeAs(const std::string& name, const io::HostVolume& volume, client::Client& client,
                            const client::CallOptions& options);
absl::Status UploadMatrixAs(const std::string& name, const client::SparseMatrix& matrix, client::Client& client,
                            const client::CallOptions& options);

}  // namespace intrawarp::cli::bench

#endif  // INTRAWARP_CLIENT_CLI_BENCH_HOLDINGS_H_
