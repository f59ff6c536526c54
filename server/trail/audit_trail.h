// SPDX-License-Identifier: Apache-2.0
// AuditTrail: the audit log of a server, which may have none. CallAudit: what becomes the record of one call.
//
// A call that brings, makes, sends or takes away something has one record, which is synced before its status is sent,
// and so has a call that was refused for its identity; a frame has one that is written soon after its answer. A call
// that streams content to its client has another one, which is synced before the first of it is sent. A server whose
// log cannot be written refuses new calls of these kinds (AUDIT_UNAVAILABLE); the frames of open sessions go on.
//
// No gRPC here: server/rpc/caller.h knows the CallAudit of a call.
//
// Thread safety: safe for concurrent use after Open.
#ifndef INTRAWARP_SERVER_TRAIL_AUDIT_TRAIL_H_
#define INTRAWARP_SERVER_TRAIL_AUDIT_TRAIL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "intrawarp/v1/registration.pb.h"
#include "server/audit/audit_log.h"
#include "server/base/names.h"
#include "server/base/seams.h"

namespace intrawarp::server {

// Whether calls of the method have records ("intrawarp.v1.BulkService/Upload").
bool IsAudited(absl::string_view method);

// Whether calls of the method stream content to their client.
bool IsExport(absl::string_view method);

// UNAVAILABLE (AUDIT_UNAVAILABLE): for a call whose record cannot be written, whatever it has done.
absl::Status Unrecorded();

// A status code by its name ("OK", "NOT_FOUND").
std::string CodeName(int code);
// Who calls what.
struct AuditedCall {
  std::string method;
  std::string who;
  std::string peer;
};

// How a call ended.
struct AuditedOutcome {
  std::string code = "OK";  // CodeName
  std::string reason;       // of the status' ErrorInfo; empty without one
};

class AuditTrail {
 public:
  explicit AuditTrail(const Seams& seams) : seams_(seams) {}
  // As Close.
  ~AuditTrail() { Close(); }

  // Once, before the first call. The first record tells what `notes` say of the server. `files` outlives the trail. The
  // errors of AuditLog::Open.
  absl::Status Open(state::FileLayer& files, audit::AuditOptions options,
                    std::vector<std::pair<std::string, std::string>> notes);
  // Writes a last record, and what waits. Idempotent.
  void Close();

  bool enabled() const { return log_ != nullptr; }
  // Unrecorded() while the log cannot be written.
  absl::Status Available() const;
  // With the time of now. `done` as of AuditLog::Append; within this call on a server without a log.
  void Append(audit::AuditRecord record, audit::AuditLog::DoneFn done = nullptr);
  // Records a caller that was refused. So that nobody fills the disk, a network of strangers has kRefusalsAMinute
  // records a minute, kScarceRefusals once all strangers together have kStrangerRefusals, and an identity has
  // kKnownRefusals; a record a minute, and one at the end, tells of each how many more there were.
  // `done` as of Append; within this call for one that has no record.
  void AppendRefusal(const AuditedCall& call, const AuditedOutcome& outcome, audit::AuditLog::DoneFn done = nullptr);
  // A name for a call in its records.
  std::string NewCallId() const { return RandomId(seams_); }
  // The text that stands for a resource's name in records: 32 digits of its digest, by the log's key where it has one.
  std::string NameDigest(absl::string_view name) const;

  // The housekeeping calls this once a second.
  void Check(std::chrono::steady_clock::time_point now);
  audit::Position head() const;
  int64_t lost() const;

  static constexpr int kRefusalsAMinute = 60;
  static constexpr int kScarceRefusals = 6;
  static constexpr int kStrangerRefusals = 600;
  static constexpr int kKnownRefusals = 6000;
  // Networks and identities of which refusals are counted one by one.
  static constexpr size_t kRefusedSources = 256;

 private:
  // Who was refused in this minute, and how often.
  struct Refused {
    int recorded = 0;
    int64_t unrecorded = 0;
  };
  // Identity and network, of which one is empty; both are, of those beyond kRefusedSources.
  using Source = std::pair<std::string, std::string>;
  // With the mutex held.
  bool TakeRefusal(const Source& source);
  // Begins a new minute.
  void RecordUnrecorded();

  const Seams& seams_;
  std::unique_ptr<audit::ChainHash> names_;
  std::unique_ptr<audit::AuditLog> log_;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point minute_;  // that counts
  std::map<Source, Refused> refused_;             // in it
  int stranger_refusals_ = 0;                     // recorded in it
};

struct AuditedFrame {
  int64_t number = 0;
  // A CRC32C over those of its chunks.
  uint32_t checksum = 0;
  absl::Status status;
  std::chrono::nanoseconds elapsed{0};
  // SHA-256s of what the frame had of its own, by role.
  std::vector<std::pair<std::string, std::string>> digests = {};
};

// Thread safety: safe for concurrent use.
class CallAudit {
 public:
  // `trail` outlives it; null, or one without a log: nothing is recorded.
  explicit CallAudit(AuditTrail* trail = nullptr) : trail_(trail != nullptr && trail->enabled() ? trail : nullptr) {}

  // The id of the trace that the call belongs to (wire/trace_context.h), for its record and those of its frames.
  void Trace(const std::string& trace_id);
  // Adds something that the call uses or makes, by its role.
  void Digest(absl::string_view role, const std::string& sha256);
  void Name(absl::string_view role, absl::string_view resource);
  // Without names of objects.
  void Options(const google::protobuf::Message& options);
  void Device(absl::string_view device);
  // The options, device and quality of the report.
  void Report(const v1::Report& report);

  // Writes the record that the call has begun to send content. Once, before Close.
  void Begin(const AuditedCall& call, audit::AuditLog::DoneFn done);
  // Writes the record of the call. Once.
  void Close(const AuditedCall& call, const AuditedOutcome& outcome, std::chrono::nanoseconds elapsed,
             audit::AuditLog::DoneFn done);

  // Writes the record of an answered frame of the session "sessions/{id}". A frame that is OK has a report.
  void Frame(absl::string_view session, const AuditedFrame& frame, const v1::Report* report);

 private:
  // With what the call has told so far.
  audit::AuditRecord NewRecord(const AuditedCall& call, const AuditedOutcome& outcome);

  AuditTrail* const trail_;
  std::mutex mutex_;
  audit::AuditRecord record_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_TRAIL_AUDIT_TRAIL_H_
