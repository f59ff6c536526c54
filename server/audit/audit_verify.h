// SPDX-License-Identifier: Apache-2.0
// Verification of an audit log: a record that was removed, changed or moved, or added by someone without the key.
//
// Records that were cut off the end are found by the log's head, unless the head was set back too: against that helps a
// head that was noted down elsewhere (the server logs it).
#ifndef INTRAWARP_SERVER_AUDIT_AUDIT_VERIFY_H_
#define INTRAWARP_SERVER_AUDIT_AUDIT_VERIFY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/audit/audit_chain.h"
#include "server/state/file_layer.h"

namespace intrawarp::audit {

// A log is sound when `errors` is empty.
struct AuditFindings {
  int64_t records = 0;
  Position end;
  // The bytes of a last line without its end, which a crash left; its record was never acknowledged.
  int64_t torn_bytes = 0;
  // The numbers of the first records of calls that began to send content and have no record of their end, at most
  // kMaxUnfinished: they go on, or the server ended before they did.
  std::vector<int64_t> unfinished;
  // One a line, each naming file and line; at most kMaxErrors.
  std::vector<std::string> errors;
};
inline constexpr size_t kMaxErrors = 100;
inline constexpr size_t kMaxUnfinished = 100;

struct AuditExpectations {
  // The last record whose file was moved away. Default: none was, and the log begins with record 1.
  Position after;
  // A head that was noted down.
  std::optional<Position> head;
};

// Reads the whole log; a server may append meanwhile. NOT_FOUND for a directory without a log; errors of the files.
absl::StatusOr<AuditFindings> VerifyAudit(state::FileLayer& files, const std::string& directory, const ChainHash& hash,
                                          const AuditExpectations& expected = {});

}  // namespace intrawarp::audit

#endif  // INTRAWARP_SERVER_AUDIT_AUDIT_VERIFY_H_
