// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/counters.h"

#include "absl/strings/str_cat.h"

namespace intrawarp::igtl {
namespace {

constexpr const char* kPlaces[kLostPlaces] = {"checksum", "content",  "frame",         "server",
                                              "field",    "consumer", "consumer_queue"};

std::string Head(const std::string& name, const char* type, const std::string& help) {
  return absl::StrCat("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
}

std::string Single(const std::string& name, const char* type, const std::string& help, int64_t value) {
  return absl::StrCat(Head(name, type, help), name, " ", value, "\n");
}

}  // namespace

void Histogram::Observe(std::chrono::nanoseconds duration) {
  size_t bucket = 0;
  const double seconds = std::chrono::duration<double>(duration).count();
  while (bucket < kBounds.size() && seconds > kBounds[bucket]) ++bucket;
  ++counts_[bucket];
  sum_ns_ += duration.count();
}

std::string Histogram::Text(const std::string& name, const std::string& help) const {
  std::string text = Head(name, "histogram", help);
  int64_t total = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    total += counts_[i];
    const std::string bound = i < kBounds.size() ? absl::StrCat(kBounds[i]) : "+Inf";
    absl::StrAppend(&text, name, "_bucket{le=\"", bound, "\"} ", total, "\n");
  }
  absl::StrAppend(&text, name, "_sum ", 1e-9 * static_cast<double>(sum_ns_), "\n", name, "_count ", total, "\n");
  return text;
}

std::string Counters::Text() const {
  const auto counter = [](const char* name, const char* help, const std::atomic<int64_t>& value) {
    return Single(absl::StrCat("intrawarp_igtl_", name), "counter", help, value);
  };
  std::string text = absl::StrCat(
      counter("messages_in_total", "Messages that came whole.", messages_in),
      counter("messages_out_total", "Messages that a consumer's connection took whole.", messages_out),
      counter("messages_ignored_total", "Messages of a type or device that the bridge has no use for.",
              messages_ignored),
      counter("bytes_in_total", "Bytes that came from peers.", bytes_in),
      counter("bytes_out_total", "Bytes that went to peers.", bytes_out),
      counter("connections_total", "Connections with peers that were made.", connections),
      counter("disconnections_total", "Connections with peers that ended.", disconnections),
      counter("frames_sent_total", "Frames that went to the server.", frames_sent),
      counter("frames_in_place_total", "Frames whose voxels came straight into shared memory.", frames_in_place));
  absl::StrAppend(&text, counter("results_ok_total", "Results with verdict ok.", results_ok),
                  counter("results_review_total", "Results with verdict review.", results_review),
                  counter("sessions_total", "Sessions that were opened on the server.", sessions),
                  counter("sessions_lost_total", "Open sessions that an error ended.", sessions_lost),
                  counter("session_failures_total", "Tries to open a session that failed.", session_failures),
                  Single("intrawarp_igtl_peers", "gauge", "Peers that are connected.", peers));
  const std::string name = "intrawarp_igtl_messages_lost_total";
  absl::StrAppend(&text, Head(name, "counter", "Messages and frames that were lost, by place."));
  for (int i = 0; i < kLostPlaces; ++i)
    absl::StrAppend(&text, name, "{where=\"", kPlaces[i], "\"} ", lost[i].load(), "\n");
  absl::StrAppend(&text,
                  pose_seconds.Text("intrawarp_igtl_pose_seconds",
                                    "From the last byte of a pose to its mapped message in the queues."),
                  frame_seconds.Text("intrawarp_igtl_frame_seconds",
                                     "From the last byte of an image to the end of its sending to the server."));
  return text;
}

}  // namespace intrawarp::igtl
