// SPDX-License-Identifier: Apache-2.0
#include "server/ledger/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace intrawarp::server {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

int64_t LimitIn(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  uint64_t bytes = 0;
  // Version 1 writes some 2^63 for no limit.
  if (!(file >> word) || !absl::SimpleAtoi(word, &bytes) || bytes == 0 || bytes > uint64_t{kNoLimit}) return kNoLimit;
  return static_cast<int64_t>(bytes);
}

// The least limit of the group and of those around it. In a container the mount may be the group itself, so that the
// path below it does not exist there; its parents, up to the mount, are asked all the same.
int64_t LeastLimit(const std::string& mount, std::string group, const std::string& file) {
  int64_t least = LimitIn(absl::StrCat(mount, "/", file));
  while (!group.empty() && group != "/") {
    least = std::min(least, LimitIn(absl::StrCat(mount, group, "/", file)));
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
  return least;
}

bool IsMemoryController(absl::string_view controllers) {
  const std::vector<absl::string_view> names = absl::StrSplit(controllers, ',');
  return std::find(names.begin(), names.end(), "memory") != names.end();
}

}  // namespace

int64_t HostMemoryLimit(const ControlGroupPaths& paths) {
  int64_t limit = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  std::ifstream membership(paths.membership);
  // "0::/path" for version 2, "N:controllers:/path" for version 1.
  for (std::string line; std::getline(membership, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    if (parts[0] == "0" && parts[1].empty()) {
      limit = std::min(limit, LeastLimit(paths.mount, parts[2], "memory.max"));
    } else if (IsMemoryController(parts[1])) {
      limit = std::min(limit, LeastLimit(absl::StrCat(paths.mount, "/memory"), parts[2], "memory.limit_in_bytes"));
    }
  }
  return limit;
}

}  // namespace intrawarp::server
