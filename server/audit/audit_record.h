// SPDX-License-Identifier: Apache-2.0
// AuditRecord: one event of the audit log, in the words of the wire. It holds digests instead of names and ids, since a
// client may have put a patient's name into an id.
#ifndef INTRAWARP_SERVER_AUDIT_AUDIT_RECORD_H_
#define INTRAWARP_SERVER_AUDIT_AUDIT_RECORD_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace intrawarp::audit {

// The outcome of a call that has begun to send content; its end has a record with the same note "call".
inline constexpr char kBegun[] = "BEGUN";

struct AuditRecord {
  std::chrono::system_clock::time_point time;
  // "intrawarp.v1.BulkService/Upload", "frame", "start".
  std::string action;
  // The caller's identity; empty: none was asked for.
  std::string who;
  // The caller's address.
  std::string peer;
  // The raw SHA-256 of what the event used and made, by role ("fixed", "moving", "result").
  std::vector<std::pair<std::string, std::string>> digests;
  // The same for resources that have no digest, or another name for each server: digests of their names.
  std::vector<std::pair<std::string, std::string>> names;
  // A checksum over those of a frame's chunks.
  std::string checksum;
  // JSON objects; empty: none.
  std::string options;
  std::string quality;
  std::string device;
  std::optional<int64_t> frame;
  // A gRPC status code by its name, or kBegun, and the reason of a failure.
  std::string outcome;
  std::string reason;
  std::optional<double> milliseconds;
  // Other members, by name: of "start" the build, say.
  std::vector<std::pair<std::string, std::string>> notes;
};

// One line of JSON that begins with {"seq":SEQ; `previous` is a member unless it is empty. Text that is not UTF-8 is
// replaced by U+FFFD. `options` and `quality` that are no JSON are left out.
std::string ToJson(const AuditRecord& record, int64_t seq, const std::string& previous);

}  // namespace intrawarp::audit

#endif  // INTRAWARP_SERVER_AUDIT_AUDIT_RECORD_H_
