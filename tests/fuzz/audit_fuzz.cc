// SPDX-License-Identifier: Apache-2.0
// An audit log of hostile bytes: it is verified without harm, and a log that goes on from it is sound where it was.
#include <utility>

#include "server/audit/audit_log.h"
#include "server/audit/audit_verify.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/server/state/test_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using intrawarp::fuzz::Require;
  namespace audit = intrawarp::audit;
  intrawarp::state::MemoryDisk disk;
  auto file = disk.Open("audit/audit-00000001.log", intrawarp::state::OpenMode::kWrite);
  Require(file.ok() && (*file)->WriteAt(0, data, size).ok(), "a disk in memory");
  const auto before = audit::VerifyAudit(disk, "audit", audit::ChainHash(""));
  Require(before.ok(), "a log without a head can be read");
  audit::AuditOptions options;
  options.directory = "audit";
  auto log = audit::AuditLog::Open(disk, options);
  if (!log.ok()) return 0;
  audit::AuditRecord record;
  record.action = "one more";
  (*log)->Append(std::move(record));
  log->reset();
  const auto after = audit::VerifyAudit(disk, "audit", audit::ChainHash(""));
  if (!before->errors.empty()) return 0;
  Require(after.ok() && after->errors.empty(), "it is still sound");
  Require(after->records == before->records + 1, "it has one more record");
  return 0;
}
