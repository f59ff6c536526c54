// SPDX-License-Identifier: Apache-2.0
// SearchRate: how often a caller may search archives. An answer to a search says whether its keys fit, so that guesses
// are as good as answers to a caller who has enough of them. Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_PACS_SEARCH_RATE_H_
#define INTRAWARP_SERVER_PACS_SEARCH_RATE_H_

#include <chrono>
#include <map>
#include <mutex>
#include <string>

namespace intrawarp::server {

// Searches a minute, and as many at once: of a caller who may see patients, and of others.
inline constexpr int kSearchesAMinute = 300;
inline constexpr int kBlindSearchesAMinute = 30;

class SearchRate {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Whether the caller may search now. `who`: an identity that is known, so that there are not many.
  bool Take(const std::string& who, bool sees_patients, Time now);

 private:
  struct Bucket {
    double used = 0;
    Time at;
  };

  std::mutex mutex_;
  std::map<std::string, Bucket> buckets_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_SEARCH_RATE_H_
