// SPDX-License-Identifier: Apache-2.0
// Runs `promtool check metrics` (Debian's prometheus package) on a scrape.
#ifndef INTRAWARP_TESTS_SERVER_PROMTOOL_H_
#define INTRAWARP_TESTS_SERVER_PROMTOOL_H_

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace intrawarp::server {

struct PromtoolResult {
  bool available = false;
  int exit_code = -1;
  std::string output;
};

inline PromtoolResult PromtoolCheck(const std::string& metrics) {
  PromtoolResult result;
  if (std::system("command -v promtool > /dev/null 2>&1") != 0) return result;
  result.available = true;
  char path[] = "/tmp/intrawarp_metrics_XXXXXX";
  close(mkstemp(path));
  std::ofstream(path) << metrics;
  FILE* pipe = popen(("promtool check metrics < " + std::string(path) + " 2>&1").c_str(), "r");
  char line[512];
  while (fgets(line, sizeof(line), pipe) != nullptr) result.output += line;
  result.exit_code = WEXITSTATUS(pclose(pipe));
  std::remove(path);
  return result;
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_PROMTOOL_H_
