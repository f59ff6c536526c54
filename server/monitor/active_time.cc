// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/active_time.h"

#include <dirent.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

namespace intrawarp::server {
namespace {

// proc(5): the state stands after the name, which is in parentheses and may hold anything.
bool WantsCpu(const std::string& task) {
  std::ifstream file("/proc/self/task/" + task + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');
  return name_end != std::string::npos && name_end + 2 < line.size() && line[name_end + 2] == 'R';
}

}  // namespace

ProcessSigns ReadProcessSigns() {
  ProcessSigns signs;
  timespec cpu{};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) == 0) {
    signs.cpu = std::chrono::seconds(cpu.tv_sec) + std::chrono::nanoseconds(cpu.tv_nsec);
  }
  const std::string own = std::to_string(syscall(SYS_gettid));
  DIR* const tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return signs;
  while (const dirent* entry = readdir(tasks)) {
    const std::string task = entry->d_name;
    if (task[0] != '.' && task != own && WantsCpu(task)) signs.wants_cpu = true;
  }
  closedir(tasks);
  return signs;
}

ActiveTime::Duration ActiveTime::Advance(Time now) {
  const ProcessSigns signs = look_();
  const Duration cpu = signs.cpu - std::exchange(last_cpu_, signs.cpu);
  const Duration wall = last_ ? std::clamp(Duration(now - *last_), Duration(0), kMostStep) : Duration(0);
  last_ = now;
  return signs.wants_cpu ? std::min(wall, cpu) : wall;
}

ActiveTime::Duration Standstill::Look(int64_t progress, ActiveTime::Duration wall, ActiveTime::Duration step) {
  still_ = progress_ == progress ? still_ + step : std::min(wall, step);
  progress_ = progress;
  return std::min(still_, wall);
}

}  // namespace intrawarp::server
