// SPDX-License-Identifier: Apache-2.0
// CopyRate: how long a copy from one device to another takes, learnt from those that were made.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_DEVICE_COPY_RATE_H_
#define INTRAWARP_SERVER_DEVICE_COPY_RATE_H_

#include <chrono>
#include <cstdint>
#include <mutex>

namespace intrawarp::server {

class CopyRate {
 public:
  // 0 for no bytes. Until a copy was seen: two passes over PCI Express at 20 GB/s, one after the other.
  std::chrono::nanoseconds Predict(int64_t bytes) const;
  // Copies that are too small to tell a rate are left out.
  void Add(int64_t bytes, std::chrono::nanoseconds took);

 private:
  mutable std::mutex mutex_;
  double bytes_per_second_ = 10e9;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_DEVICE_COPY_RATE_H_
