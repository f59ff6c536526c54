// SPDX-License-Identifier: Apache-2.0
#include "server/page/page_connections.h"

#include <sys/socket.h>

#include <utility>
#include <vector>

namespace intrawarp::server {

PageConnections::Id PageConnections::Enter(int fd, std::string network, Time now) {
  if (places_.size() >= connections_limit_) {
    if (const std::optional<Id> id = places_.GivesWayFor(network)) Shut(at(*id));
    // Its place is free, though it is not closed yet.
    for (auto& [id, connection] : connections_) {
      if (connection.holds_place && connection.fd < 0) LeavePlace(id, connection);
    }
  }
  const Id id = next_++;
  places_.Enter(network, id);
  Connection connection;
  connection.fd = fd;
  connection.network = std::move(network);
  connection.awaited_since = now;
  connections_.emplace(id, std::move(connection));
  return id;
}

void PageConnections::Leave(Id id) {
  const auto it = connections_.find(id);
  if (it == connections_.end()) return;
  LeavePlace(id, it->second);
  connections_.erase(it);
}

void PageConnections::LeavePlace(Id id, Connection& connection) {
  if (std::exchange(connection.holds_place, false)) places_.Leave(connection.network, id, connection.rank);
}

void PageConnections::Shut(Connection& connection) {
  if (connection.fd >= 0) shutdown(connection.fd, SHUT_RDWR);
  connection.fd = -1;
  if (connection.stream != nullptr) connection.stream->End();
}

void PageConnections::RequestEnded(Id id, Time now) {
  Connection& connection = at(id);
  connection.stream = nullptr;
  connection.awaited_since = now;
}

void PageConnections::CallerKnown(Id id) {
  Connection& connection = at(id);
  if (connection.rank == 1 || !connection.holds_place) return;
  places_.Leave(connection.network, id, connection.rank);
  connection.rank = 1;
  places_.Enter(connection.network, id, connection.rank);
}

void PageConnections::BeginStream(Id id, std::string streams_of, std::shared_ptr<PageStream> stream) {
  std::vector<Connection*> others;
  for (auto& [other, connection] : connections_) {
    if (connection.stream != nullptr && connection.fd >= 0 && connection.streams_of == streams_of) {
      others.push_back(&connection);
    }
  }
  if (others.size() >= streams_limit_) Shut(*others.front());
  Connection& connection = at(id);
  connection.streams_of = std::move(streams_of);
  connection.stream = std::move(stream);
}

void PageConnections::ShutSilent(Time now, std::chrono::nanoseconds patience) {
  for (auto& [id, connection] : connections_) {
    if (connection.awaited_since && now - *connection.awaited_since > patience) Shut(connection);
  }
}

size_t PageConnections::streams() const {
  size_t count = 0;
  for (const auto& [id, connection] : connections_) count += connection.stream != nullptr;
  return count;
}

}  // namespace intrawarp::server
