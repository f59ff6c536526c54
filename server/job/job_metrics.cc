// SPDX-License-Identifier: Apache-2.0
#include "server/job/job_metrics.h"

#include <algorithm>

namespace intrawarp::server {
namespace {

constexpr const char* kJobOutcomes[] = {"done", "cancelled", "expired", "refused"};
// Deadline minus end; what is late lies below zero.
constexpr double kSlackBuckets[] = {-10, -1, -0.3, -0.1, -0.03, -0.01, 0, 0.01, 0.03, 0.1, 0.3, 1, 10, 60};
// Actual to predicted time.
constexpr double kRatioBuckets[] = {0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10};

}  // namespace

// The label device is left out for the only device, but for the time that jobs computed and were held.
struct JobMetrics::Families {
  explicit Families(Registry& r)
      : queue(r.Histograms("intrawarp_job_queue_seconds",
                           "From a job's submission to its start, or to its end without one, by outcome.",
                           {"class", "outcome", "device"})),
        busy(r.Counters("intrawarp_job_busy_seconds_total", "Time in which jobs computed.", {"class", "device"})),
        held(r.Counters("intrawarp_job_held_seconds_total", "Time in which started jobs were held.",
                        {"class", "device"})),
        late(r.Counters("intrawarp_jobs_late_total", "Jobs that ended after their deadline.", {"class", "device"})),
        slack(r.Histograms("intrawarp_deadline_slack_seconds",
                           "Deadline minus end of jobs with a deadline; late ones are below zero.",
                           {"class", "device"})),
        prediction(r.Histograms("intrawarp_prediction_error_ratio",
                                "Time that a job computed over the time that was predicted.", {"class", "device"})),
        depth(r.Gauges("intrawarp_queue_depth", "Jobs that wait.", {"class", "device"})),
        capacity(r.Gauges("intrawarp_queue_capacity", "Jobs that may wait.", {"class", "device"})),
        started(r.Gauges("intrawarp_jobs_running",
                         "Jobs that have started: they compute, or are held for a better one.", {"class", "device"})),
        since_checkpoint(r.Gauges("intrawarp_since_checkpoint_seconds",
                                  "Since the last checkpoint of the started job that has gone longest without one.",
                                  {"class", "device"})) {}

  const HistogramFamily queue;
  const CounterFamily busy;
  const CounterFamily held;
  const CounterFamily late;
  const HistogramFamily slack;
  const HistogramFamily prediction;
  const GaugeFamily depth;
  const GaugeFamily capacity;
  const GaugeFamily started;
  const GaugeFamily since_checkpoint;
};

JobMetrics::Series JobMetrics::MakeSeries(const Families& families, JobClass job_class, const std::string& device,
                                          const std::string& label) {
  const std::string name(kJobClassNames[static_cast<size_t>(job_class)]);
  const std::vector<std::string> values = {name, label};
  Series series;
  for (const char* outcome : kJobOutcomes) {
    series.queue_seconds.push_back(job_class == JobClass::kFrame
                                       ? families.queue.With({name, outcome, label}, kShortBuckets)
                                       : families.queue.With({name, outcome, label}, kLongBuckets));
  }
  series.busy = families.busy.With({name, device});
  series.held = families.held.With({name, device});
  series.late = families.late.With(values);
  series.slack = families.slack.With(values, kSlackBuckets);
  series.prediction = families.prediction.With(values, kRatioBuckets);
  series.depth = families.depth.With(values);
  series.capacity = families.capacity.With(values);
  series.started = families.started.With(values);
  series.since_checkpoint = families.since_checkpoint.With(values);
  return series;
}

JobMetrics::JobMetrics(Registry& registry, const std::vector<std::string>& devices) : devices_(devices.size()) {
  const Families families(registry);
  for (size_t i = 0; i < devices.size(); ++i) {
    for (int c = 0; c < kJobClasses; ++c) {
      devices_[i][static_cast<size_t>(c)] =
          MakeSeries(families, static_cast<JobClass>(c), devices[i], DeviceLabel(devices, i));
    }
  }
}

void JobMetrics::JobDone(const JobRecord& job, int device) const {
  const Series& series = devices_[static_cast<size_t>(device)][static_cast<size_t>(job.job_class)];
  series.queue_seconds[static_cast<size_t>(job.outcome)].Observe(Seconds(job.queued));
  series.busy.Add(Seconds(job.busy));
  series.held.Add(Seconds(job.held));
  if (job.slack) {
    series.slack.Observe(Seconds(*job.slack));
    if (*job.slack < SchedulerClock::Duration(0)) series.late.Add();
  }
  const bool was_predicted = job.predicted && *job.predicted > SchedulerClock::Duration(0);
  if (was_predicted && job.outcome == JobOutcome::kDone) {
    series.prediction.Observe(Seconds(job.busy) / Seconds(*job.predicted));
  }
}

void JobMetrics::Set(int device, const std::array<QueueSample, kJobClasses>& queues) const {
  for (size_t c = 0; c < queues.size(); ++c) {
    const Series& series = devices_[static_cast<size_t>(device)][c];
    series.depth.Set(static_cast<double>(queues[c].depth));
    series.capacity.Set(static_cast<double>(queues[c].capacity));
    series.started.Set(static_cast<double>(queues[c].started));
    series.since_checkpoint.Set(Seconds(queues[c].since_checkpoint));
  }
}

}  // namespace intrawarp::server
