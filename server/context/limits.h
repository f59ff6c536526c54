// SPDX-License-Identifier: Apache-2.0
// ServerLimits: what a server accepts, all of it and of one owner.
#ifndef INTRAWARP_SERVER_CONTEXT_LIMITS_H_
#define INTRAWARP_SERVER_CONTEXT_LIMITS_H_

#include <chrono>
#include <cstdint>

namespace intrawarp::server {

// The longest time that a client may give an object to live.
inline constexpr std::chrono::hours kMaxTtl{24 * 366};

struct ServerLimits {
  int64_t max_chunk_bytes = int64_t{1} << 20;
  int64_t max_volume_bytes = int64_t{4} << 30;  // as uploaded
  int64_t max_matrix_bytes = int64_t{4} << 30;  // as uploaded
  int64_t resident_capacity_bytes = 0;          // of each device
  int64_t workspace_capacity_bytes = 0;         // of jobs, of each device
  int64_t pinned_capacity_bytes = 0;
  int64_t uploading_capacity_bytes = 0;  // of unfinished uploads
  int64_t max_transforms = 4096;         // beside those of sessions
  int max_sessions = 8;
  int max_operations = 64;  // that have not ended
  int max_uploads = 64;     // unfinished uploads
  int max_streams = 64;     // bulk streams, registrations and products under way, beside those of sessions
  int max_connections = 256;
  int max_calls = 1024;      // of all kinds under way; as many again that only ask (health, server info)
  int max_queued_jobs = 64;  // that wait, of each class
  std::chrono::nanoseconds upload_ttl = std::chrono::minutes(5);
  // The life of a registration's result that asks for none; 0: until it is deleted.
  std::chrono::nanoseconds result_ttl = std::chrono::hours(24);
  // How long an operation that has ended is remembered.
  std::chrono::nanoseconds operation_ttl = std::chrono::hours(24);
  // A stream whose client owes something for longer is ended; 0: never.
  std::chrono::nanoseconds stream_idle_timeout = std::chrono::seconds(30);
  int max_points = 32768;  // of one MapPoints call, so that no message passes a chunk
  int max_pending_frames = 4;
  // Without a budget work ends after it has computed for so long; 0: never.
  std::chrono::nanoseconds max_run_time = std::chrono::minutes(10);
  // The longest time without a frame that a session may ask for.
  std::chrono::nanoseconds max_session_idle = std::chrono::hours(1);
  // For one owner; 0: half of what there is, where callers have identities.
  int64_t owner_resident_bytes = 0;
  int64_t owner_workspace_bytes = 0;
  int64_t owner_pinned_bytes = 0;
  int64_t owner_uploading_bytes = 0;
  int owner_transforms = 0;
  int owner_streams = 0;
  int owner_uploads = 0;
  int owner_sessions = 0;
  int owner_operations = 0;
  int owner_jobs = 0;  // that wait, of each class
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_CONTEXT_LIMITS_H_
