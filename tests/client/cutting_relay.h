// SPDX-License-Identifier: Apache-2.0
// A TCP relay on a port of its own that breaks connections: the first few that have carried more than a number of
// bytes, both ways together, are closed on both sides; later ones are left alone. Everything is 127.0.0.1.
#ifndef INTRAWARP_TESTS_CLIENT_CUTTING_RELAY_H_
#define INTRAWARP_TESTS_CLIENT_CUTTING_RELAY_H_

#include <cstdint>
#include <memory>
#include <string>

namespace intrawarp::client {

class CuttingRelay {
 public:
  // `target` is HOST:PORT, of which the port counts.
  CuttingRelay(const std::string& target, int64_t bytes_before_cut, int cuts);
  ~CuttingRelay();
  CuttingRelay(const CuttingRelay&) = delete;
  CuttingRelay& operator=(const CuttingRelay&) = delete;

  std::string address() const;
  // Connections that were broken so far. Thread-safe.
  int cuts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_TESTS_CLIENT_CUTTING_RELAY_H_
