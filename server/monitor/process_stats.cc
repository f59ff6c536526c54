// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/process_stats.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

namespace intrawarp::server {
namespace {

int64_t CountOpenFds() {
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  int64_t entries = 0;
  while (readdir(folder) != nullptr) ++entries;
  closedir(folder);
  return entries - 3;  // ".", ".." and the folder itself
}

// proc(5): the fields after the name, which stands in parentheses and may hold anything; state is field 3.
void ReadStat(ProcessStats& stats) {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return;
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  for (int i = 3; i < 14; ++i) fields >> skipped;
  int64_t user_ticks = 0, system_ticks = 0, resident_pages = 0;
  fields >> user_ticks >> system_ticks;
  for (int i = 16; i < 20; ++i) fields >> skipped;
  fields >> stats.threads >> skipped >> skipped >> stats.virtual_bytes >> resident_pages;
  stats.cpu_seconds = static_cast<double>(user_ticks + system_ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
  stats.resident_bytes = resident_pages * sysconf(_SC_PAGESIZE);
}

}  // namespace

ProcessStats ReadProcessStats() {
  ProcessStats stats;
  ReadStat(stats);
  stats.open_fds = CountOpenFds();
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) stats.max_fds = static_cast<int64_t>(limit.rlim_cur);
  return stats;
}

}  // namespace intrawarp::server
