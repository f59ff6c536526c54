// SPDX-License-Identifier: Apache-2.0
// Rules: what a simulated run must keep. The first rule that is broken is kept with its time.
#ifndef INTRAWARP_TESTS_SERVER_SIMULATION_RULES_H_
#define INTRAWARP_TESTS_SERVER_SIMULATION_RULES_H_

#include <chrono>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/server/simulation/virtual_time.h"

namespace intrawarp::server {

class Rules {
 public:
  // `trace`: prints what Note is told.
  Rules(const VirtualTime& time, bool trace) : time_(time), trace_(trace) {}

  bool Check(bool holds, absl::string_view rule) {
    if (!holds && broken_.empty()) broken_ = absl::StrCat(rule, " (at ", Now(), " us)");
    return holds;
  }
  template <typename... Parts>
  void Note(const Parts&... parts) const {
    if (trace_) std::printf("%10lld  %s\n", static_cast<long long>(Now()), absl::StrCat(parts...).c_str());
  }
  // Empty: none.
  const std::string& broken() const { return broken_; }

 private:
  int64_t Now() const { return time_.now().time_since_epoch() / std::chrono::microseconds(1); }

  const VirtualTime& time_;
  const bool trace_;
  std::string broken_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_SIMULATION_RULES_H_
