// SPDX-License-Identifier: Apache-2.0
// A state directory whose catalogue, log and payload hold hostile bytes: it is refused or opened, what it lists has the
// sizes that it says, a payload is never served with another digest, and the offline check agrees. The input begins
// with the sizes of catalogue and log, four bytes each; the rest is the payload.
#include <algorithm>
#include <cstring>
#include <string>

#include "server/state/state_store.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/server/state/test_files.h"

namespace {

using intrawarp::fuzz::Require;
using intrawarp::state::MemoryDisk;

constexpr char kPayload[] = "state/spool/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

void Put(MemoryDisk& disk, const std::string& path, const std::string& bytes) {
  auto file = disk.Open(path, intrawarp::state::OpenMode::kWrite);
  Require(file.ok() && (*file)->WriteAt(0, bytes.data(), bytes.size()).ok() && (*file)->Sync().ok(),
          "a disk in memory");
}

bool HasNegativeSize(intrawarp::state::StateStore& store) {
  const auto rows = store.List();
  return rows.ok() && std::any_of(rows->begin(), rows->end(), [](const auto& row) { return row.payload_bytes < 0; });
}

void ReadAll(intrawarp::state::StateStore& store) {
  const auto rows = store.List();
  if (!rows.ok()) return;
  for (const auto& row : *rows) {
    if (row.payload_bytes < 0 || row.payload_bytes > (int64_t{1} << 20)) continue;
    std::string bytes(static_cast<size_t>(row.payload_bytes), '\0');
    (void)store.Read(row.payload, absl::MakeSpan(bytes));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint32_t sizes[2];
  if (size < sizeof(sizes)) return 0;
  std::memcpy(sizes, data, sizeof(sizes));
  const std::string input(reinterpret_cast<const char*>(data) + sizeof(sizes), size - sizeof(sizes));
  const size_t catalogue = std::min<size_t>(sizes[0], input.size());
  const size_t log = std::min<size_t>(catalogue + sizes[1], input.size());
  MemoryDisk disk;
  Put(disk, "state/catalogue.db", input.substr(0, catalogue));
  if (log > catalogue) Put(disk, "state/catalogue.db-wal", input.substr(catalogue, log - catalogue));
  if (input.size() > log) Put(disk, kPayload, input.substr(log));
  (void)disk.SyncDirectory("state");
  const auto report = intrawarp::state::CheckState(disk, "state");
  Require(!report.ok() || report->payload_bytes >= 0, "a sum that is one");
  auto store = intrawarp::state::StateStore::Open(disk, "state", /*now=*/1);
  if (!store.ok()) return 0;
  Require(!report.ok() || !HasNegativeSize(**store) || !report->errors.empty(), "a size that is none is reported");
  ReadAll(**store);
  return 0;
}
