// SPDX-License-Identifier: Apache-2.0
// Seams: the clocks and the random numbers of a server, which tests replace.
#ifndef INTRAWARP_SERVER_BASE_SEAMS_H_
#define INTRAWARP_SERVER_BASE_SEAMS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace intrawarp::server {

// Random and time come in here, so that tests can replace them. Safe for concurrent use.
struct Seams {
  // 32 random bits.
  std::function<uint32_t()> random;
  std::function<std::chrono::steady_clock::time_point()> steady_now;
  std::function<std::chrono::system_clock::time_point()> system_now;
};
// std::random_device and the machine's clocks.
Seams SystemSeams();

// 16 random hexadecimal digits: an id that the server chooses.
std::string RandomId(const Seams& seams);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BASE_SEAMS_H_
