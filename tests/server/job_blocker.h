// SPDX-License-Identifier: Apache-2.0
// Keeps the device of a server, or its copy lane, busy.
#ifndef INTRAWARP_TESTS_SERVER_JOB_BLOCKER_H_
#define INTRAWARP_TESTS_SERVER_JOB_BLOCKER_H_

#include <functional>
#include <future>

#include "absl/status/statusor.h"
#include "engine/schedule/copy_lane.h"
#include "engine/schedule/job_queue.h"

namespace intrawarp::server {

// The constructor returns once the job runs. Release and the destructor end it.
class JobBlocker {
 public:
  explicit JobBlocker(JobQueue& jobs);
  explicit JobBlocker(CopyLane& copies);
  ~JobBlocker() { Release(); }
  JobBlocker(const JobBlocker&) = delete;
  JobBlocker& operator=(const JobBlocker&) = delete;
  void Release();

 private:
  using Run = std::function<void(const absl::StatusOr<const ExecContext*>&)>;
  void Block(const std::function<bool(Run)>& submit);

  std::promise<void> release_;
  bool released_ = false;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_JOB_BLOCKER_H_
