// SPDX-License-Identifier: Apache-2.0
// AuditLog: appends records to an audit log (audit_chain.h) on a thread of its own. Records that come while the disk is
// busy are written and synced together.
//
// A disk that fails or does not answer makes the log unavailable: who waits for a record learns it at once, or after
// `patience`. Records are kept in memory, up to kMaxPending, and written once the disk is back; the number of those
// beyond is written in their place. The server starts no new work meanwhile.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_AUDIT_AUDIT_LOG_H_
#define INTRAWARP_SERVER_AUDIT_AUDIT_LOG_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/audit/audit_chain.h"
#include "server/audit/audit_record.h"
#include "server/state/file_layer.h"

namespace intrawarp::audit {

inline constexpr size_t kMaxPending = 8192;

struct AuditOptions {
  // An existing directory.
  std::string directory;
  // Empty: the chain can be verified, and forged, by everyone.
  std::string key;
  // A file beyond this is followed by the next one.
  int64_t file_bytes = int64_t{64} << 20;
  // Between two tries to write to a disk that failed.
  std::chrono::milliseconds retry{1000};
  // A record that waits for longer makes the log unavailable.
  std::chrono::milliseconds patience{5000};
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
};

class AuditLog {
 public:
  using DoneFn = std::function<void(const absl::Status&)>;

  // Goes on with the log in the directory, or begins one; cuts off a last line that a crash left half written.
  // DATA_LOSS when the last file does not verify or ends before the head, FAILED_PRECONDITION while another process
  // uses the log; errors of the files. `files` outlives the log.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(state::FileLayer& files, AuditOptions options);
  // Writes what waits, and gives up on a disk that fails.
  ~AuditLog();

  // Records are written in this order. `done`, which may be empty, is called once, on a thread of the log's, of Check's
  // or within this call: OK once the record is synced, UNAVAILABLE when it cannot be for now.
  void Append(AuditRecord record, DoneFn done = nullptr);

  // Writes what waits and ends the thread, for so long at most. False when the disk does not answer: then the log must
  // not be destroyed. Nothing is appended after it.
  bool Stop(std::chrono::milliseconds patience);

  // Calls those who have waited for longer than `patience`. The housekeeping calls this once a second.
  void Check(std::chrono::steady_clock::time_point now);

  // False from a failure until the next success.
  bool available() const;
  // The last record that is synced.
  Position head() const;
  // Records that found no room, since the start.
  int64_t lost() const;

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Pending {
    AuditRecord record;
    DoneFn done;
    Time since;
  };

  AuditLog(state::FileLayer& files, AuditOptions options);
  absl::Status Start();
  absl::Status OpenLast(const std::vector<int64_t>& numbers);
  absl::Status Recover(int64_t number);
  absl::Status OpenFile(int64_t number);
  absl::Status CheckHead();
  absl::Status WriteHead();
  void Loop();
  absl::Status Write(const std::vector<Pending*>& batch, int64_t lost);
  void Finished(size_t batch, int64_t lost, const absl::Status& status);

  state::FileLayer& files_;
  const AuditOptions options_;
  const ChainHash hash_;
  std::unique_ptr<state::DirectoryLock> lock_;

  // The log's thread alone uses these after Start.
  std::unique_ptr<state::File> file_;
  std::unique_ptr<state::File> head_file_;
  int head_line_ = 1;  // that holds the head
  int64_t number_ = 0;
  int64_t size_ = 0;
  bool has_remains_ = false;  // of a write that failed, beyond size_
  Position end_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable ended_;
  // The thread writes from the front, and others add at the back.
  std::deque<Pending> pending_;
  Position head_;
  int64_t unwritten_losses_ = 0;
  int64_t lost_ = 0;
  bool failed_ = false;
  bool hangs_ = false;
  bool stopping_ = false;
  bool has_ended_ = false;
  std::thread thread_;
};

}  // namespace intrawarp::audit

#endif  // INTRAWARP_SERVER_AUDIT_AUDIT_LOG_H_
