// SPDX-License-Identifier: Apache-2.0
// WorkerPool: a few threads for what takes the host milliseconds to seconds (hashing a chunk, validating a matrix,
// page-locking memory), so that neither gRPC's reaction threads nor the device's jobs wait for it.
//
// Tasks begin in the order of their submission. Whoever submits has at most one task waiting, which bounds their
// number.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_BASE_WORKER_POOL_H_
#define INTRAWARP_SERVER_BASE_WORKER_POOL_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace intrawarp::server {

class WorkerPool {
 public:
  explicit WorkerPool(int threads);
  // As Shutdown.
  ~WorkerPool();

  // Does not wait. Not after Shutdown.
  void Submit(std::function<void()> task);
  // Runs what waits, then ends the threads. Idempotent. Not from a task.
  void Shutdown();

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BASE_WORKER_POOL_H_
