// SPDX-License-Identifier: Apache-2.0
// PageConnections: which connections the page's port has, and who gives way beyond the limits: a connection of the
// network with most of them, one whose caller is not known first; of a caller's streams the oldest.
//
// A connection gives way by a shutdown of its socket, upon which whoever serves it closes it.
//
// Thread safety: thread-compatible.
#ifndef INTRAWARP_SERVER_PAGE_PAGE_CONNECTIONS_H_
#define INTRAWARP_SERVER_PAGE_PAGE_CONNECTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "server/base/fair_places.h"
#include "server/page/page_stream.h"

namespace intrawarp::server {

class PageConnections {
 public:
  using Id = FairPlaces::Id;
  using Time = std::chrono::steady_clock::time_point;
  struct Connection {
    int fd = -1;
    std::string network;
    int rank = 0;  // 1: its caller is known
    bool holds_place = true;
    // Since when a request's header has been awaited; nullopt: it is there.
    std::optional<Time> awaited_since;
    std::string streams_of;
    std::shared_ptr<PageStream> stream;  // null: none
    // The stream's connection is not served until somebody resumes it.
    bool is_suspended = false;
  };

  PageConnections(size_t connections, size_t streams) : connections_limit_(connections), streams_limit_(streams) {}

  Id Enter(int fd, std::string network, Time now);
  void Leave(Id id);
  Connection& at(Id id) { return connections_.at(id); }
  std::map<Id, Connection>& all() { return connections_; }
  const std::map<Id, Connection>& all() const { return connections_; }

  void RequestCame(Id id) { at(id).awaited_since.reset(); }
  void RequestEnded(Id id, Time now);
  void CallerKnown(Id id);
  // Beyond the limit the oldest stream of the caller or network ends.
  void BeginStream(Id id, std::string streams_of, std::shared_ptr<PageStream> stream);
  // Ends connections that have not asked for anything for so long.
  void ShutSilent(Time now, std::chrono::nanoseconds patience);
  size_t streams() const;

 private:
  void Shut(Connection& connection);
  void LeavePlace(Id id, Connection& connection);

  const size_t connections_limit_;
  const size_t streams_limit_;
  Id next_ = 0;
  std::map<Id, Connection> connections_;
  FairPlaces places_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PAGE_PAGE_CONNECTIONS_H_
