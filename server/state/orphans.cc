// SPDX-License-Identifier: Apache-2.0
#include "server/state/orphans.h"

#include <map>
#include <memory>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/status_macros.h"

namespace intrawarp::state {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
// Beyond these a name was made by nobody here.
constexpr int64_t kLastSecond = int64_t{1} << 33;

}  // namespace

std::string Orphans::Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

absl::StatusOr<std::vector<Orphans::Entry>> Orphans::List() const {
  const absl::StatusOr<std::vector<std::string>> names = files_.List(folder_);
  if (absl::IsNotFound(names.status())) return std::vector<Entry>();
  INTRAWARP_RETURN_IF_ERROR(names.status());
  std::vector<Entry> entries;
  for (const std::string& name : *names) {
    const std::vector<absl::string_view> parts = absl::StrSplit(name, absl::MaxSplits('-', 1));
    int64_t seconds = 0;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &seconds) || seconds < 0 || seconds > kLastSecond) continue;
    const std::optional<std::string> digest = PayloadSpool::DigestIn(parts[1]);
    if (digest) entries.push_back({name, *digest, seconds * kSecond});
  }
  return entries;
}

absl::StatusOr<int64_t> Orphans::BytesOf(const Entry& entry) const {
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files_.Open(Path(entry.name), OpenMode::kRead));
  return file->Size();
}

absl::StatusOr<Orphans::Amount> Orphans::Count() const {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<Entry> entries, List());
  Amount amount;
  for (const Entry& entry : entries) {
    INTRAWARP_ASSIGN_OR_RETURN(const int64_t bytes, BytesOf(entry));
    ++amount.files;
    amount.bytes += bytes;
  }
  return amount;
}

absl::Status Orphans::Take(const std::vector<std::string>& digests, int64_t now) {
  if (digests.empty()) return absl::OkStatus();
  INTRAWARP_RETURN_IF_ERROR(files_.MakeDirectory(folder_));
  for (const std::string& digest : digests) {
    const std::string name = absl::StrCat(now / kSecond, "-", absl::BytesToHexString(digest));
    INTRAWARP_RETURN_IF_ERROR(files_.Rename(spool_.Path(digest), Path(name)));
  }
  // The new names first, so that a loss of power leaves at least one of the two.
  INTRAWARP_RETURN_IF_ERROR(files_.SyncDirectory(folder_));
  return spool_.Sync();
}

absl::StatusOr<int64_t> Orphans::BringBack(const std::vector<std::string>& digests) {
  if (digests.empty()) return 0;
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<Entry> entries, List());
  std::map<std::string, std::string> names;
  for (const Entry& entry : entries) names.emplace(entry.digest, entry.name);
  int64_t brought = 0;
  for (const std::string& digest : digests) {
    const auto found = names.find(digest);
    if (found == names.end()) continue;
    INTRAWARP_RETURN_IF_ERROR(files_.Rename(Path(found->second), spool_.Path(digest)));
    ++brought;
  }
  if (brought == 0) return 0;
  INTRAWARP_RETURN_IF_ERROR(spool_.Sync());
  INTRAWARP_RETURN_IF_ERROR(files_.SyncDirectory(folder_));
  return brought;
}

absl::StatusOr<Orphans::Amount> Orphans::RemoveOld(int64_t now, int64_t age) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<Entry> entries, List());
  Amount removed;
  for (const Entry& entry : entries) {
    if (now - entry.since <= age) continue;
    INTRAWARP_ASSIGN_OR_RETURN(const int64_t bytes, BytesOf(entry));
    INTRAWARP_RETURN_IF_ERROR(files_.Remove(Path(entry.name)));
    ++removed.files;
    removed.bytes += bytes;
  }
  return removed;
}

}  // namespace intrawarp::state
