// SPDX-License-Identifier: Apache-2.0
// JobMetrics: the jobs of each device, by class: how long they waited and computed, whether they kept their deadlines,
// and those that wait or run.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_JOB_JOB_METRICS_H_
#define INTRAWARP_SERVER_JOB_JOB_METRICS_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/schedule/job_class.h"
#include "engine/schedule/job_record.h"
#include "server/monitor/registry.h"

namespace intrawarp::server {

// The jobs of a class on a device, read for a scrape.
struct QueueSample {
  int64_t depth = 0;
  int64_t capacity = 0;
  int64_t started = 0;
  // The time of the started job that has not checked in for the longest time.
  std::chrono::nanoseconds since_checkpoint{0};
};

// The numbers of devices are their places in `devices`.
class JobMetrics {
 public:
  // `devices`: their names.
  JobMetrics(Registry& registry, const std::vector<std::string>& devices);

  // One job of a device's scheduler, whatever became of it.
  void JobDone(const JobRecord& job, int device) const;
  void Set(int device, const std::array<QueueSample, kJobClasses>& queues) const;

 private:
  struct Families;
  // The series of one class of jobs on one device.
  struct Series {
    std::vector<Histogram> queue_seconds;  // in the order of JobOutcome
    Counter busy;
    Counter held;
    Counter late;
    Histogram slack;
    Histogram prediction;
    Gauge depth;
    Gauge capacity;
    Gauge started;
    Gauge since_checkpoint;
  };
  static Series MakeSeries(const Families& families, JobClass job_class, const std::string& device,
                           const std::string& label);

  std::vector<std::array<Series, kJobClasses>> devices_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_JOB_JOB_METRICS_H_
