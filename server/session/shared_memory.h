// SPDX-License-Identifier: Apache-2.0
// SharedMemory: whether and with whom a server shares memory (--shared_memory): the unix-domain socket where clients
// fetch the descriptors of their segments.
//
// A client on this host proves three things: that its user is one that may (SO_PEERCRED, which the kernel fills in),
// that its stream was let in (the token of the stream's offer, for one fetch), and, by the stream, that it has mapped
// the segment (the nonce, which stands nowhere else). The socket's file is for the server's user alone, unless other
// users are named.
//
// Bounds: 16 connections, each for a second; what comes beyond waits in the listener's backlog. A thread of its own
// serves them, and waits for no client. 64 segments whose stream has ended well linger for fields that are not read
// yet; with more, the oldest goes.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_SESSION_SHARED_MEMORY_H_
#define INTRAWARP_SERVER_SESSION_SHARED_MEMORY_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/fair_places.h"
#include "server/base/seams.h"
#include "server/base/tcp_listener.h"
#include "server/context/server_context.h"
#include "server/session/session_metrics.h"
#include "server/session/shared_segment.h"

namespace intrawarp::server {

struct SharedMemoryOptions {
  // The absolute path of the socket; empty: no memory is shared.
  std::string socket;
  // Users besides the server's own.
  std::vector<uid_t> users;
  // How long a client may take for the fields that it has not read when its stream ends well.
  std::chrono::seconds reading_time{5};
};

// Whether a server could share memory so: the socket's folder may be written to and its path is not too long, the
// system has sealed memory files. FAILED_PRECONDITION names the flag.
absl::Status CheckSharedMemoryOptions(const SharedMemoryOptions& options);

class SharedMemory {
 public:
  // Serves the socket, and declares SessionMetrics in `registry`, which outlives it. A socket that a dead server left
  // is replaced. UNAVAILABLE when it cannot be bound; the errors of CheckSharedMemoryOptions.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Start(const SharedMemoryOptions& options, Registry& registry);
  // Ends the socket and removes its file. Segments stay with their streams, but none may be made any more.
  ~SharedMemory();

  const std::string& socket() const { return options_.socket; }
  const SessionMetrics& metrics() const { return metrics_; }
  // A segment for a session of `owner`. EXCEEDS_CAPACITY, PINNED_MEMORY, SHARED_MEMORY_UNAVAILABLE.
  absl::StatusOr<std::shared_ptr<SharedSegment>> NewSegment(ServerContext& context, const wire::SegmentLayout& layout,
                                                            const std::string& owner);
  // The token by which the segment can be fetched once, for as long as it lives.
  std::string Offer(const Seams& seams, const std::shared_ptr<SharedSegment>& segment);

  using Time = std::chrono::steady_clock::time_point;
  // Keeps the segment of a stream that ends well until the client has let go of its fields, for the reading time at
  // most.
  void KeepWhileRead(std::shared_ptr<SharedSegment> segment, Time now);
  // Lets go of lingering segments whose fields are read, or whose time is over.
  void Expire(Time now);

  // All segments together.
  SharedSegment::Use use() const;

 private:
  struct Connection {
    Fd fd;
    std::string user;
    std::chrono::steady_clock::time_point until;
  };
  // By the order of their coming, which is the order of their ends, too.
  using Connections = std::map<FairPlaces::Id, Connection>;

  SharedMemory(SharedMemoryOptions options, Fd listener, Registry& registry);
  void SetMetrics() const;
  void Loop();
  // All that follow on the thread.
  void Expire(Connections& open, Time now);
  void AcceptSome(Connections& open);
  void Accept(Fd fd, Connections& open);
  void Drop(Connections& open, Connections::iterator it);
  // Answers a client that has asked, or gone; false: it has done neither.
  bool Serve(int connection);
  bool MayFetch(uid_t user) const;
  // Null when there is none of this token. Forgets the token.
  std::shared_ptr<SharedSegment> Take(const std::string& token);
  std::vector<std::shared_ptr<SharedSegment>> Segments() const;

  struct Lingering {
    std::shared_ptr<SharedSegment> segment;
    Time until;
  };

  const SharedMemoryOptions options_;
  const Fd listener_;
  const WakeEvent stop_;
  const SessionMetrics metrics_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<SharedSegment>> offers_;  // by token
  mutable std::list<std::weak_ptr<SharedSegment>> segments_;
  std::vector<Lingering> lingering_;  // in the order of their ends

  // The thread's alone: who has not asked yet, by user.
  FairPlaces places_;
  FairPlaces::Id next_id_ = 1;
  Time accept_after_;
  std::thread thread_;

  const Registry::Hook hook_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SESSION_SHARED_MEMORY_H_
