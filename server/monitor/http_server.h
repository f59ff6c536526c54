// SPDX-License-Identifier: Apache-2.0
// HttpServer: the HTTP port: /metrics for Prometheus and /healthz for probes. Anything else is 404, any method but GET
// and HEAD 405. Plain HTTP, for the inner network; each connection serves one request.
//
// One thread polls all connections, so that one that is slow or says nothing costs a descriptor, not a thread, and a
// probe is answered at once, whatever the others do: as a rule its request is there when the connection is accepted,
// and the answer leaves before anybody else's turn. Slow pages are made one at a time on a thread of their own.
//
// Beyond the limit a connection of the network that has most of them gives way (FairPlaces): the oldest one that has
// its answer, else the oldest one that has not asked, else the oldest one.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_MONITOR_HTTP_SERVER_H_
#define INTRAWARP_SERVER_MONITOR_HTTP_SERVER_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace intrawarp::server {

struct HttpPage {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

struct HttpRoute {
  std::string path;
  // A page that takes longer than a few microseconds.
  bool slow = false;
  std::function<HttpPage()> make;
};

struct HttpLimits {
  size_t connections = 256;
  // Slow pages that are made or wait; one more is 503.
  size_t slow_pages = 8;
  size_t header_bytes = 8192;
  // From the connection to the end of the request's header.
  std::chrono::milliseconds header_timeout{1000};
  // From the answer's first byte to its last.
  std::chrono::milliseconds answer_timeout{5000};
};

class HttpServer {
 public:
  // `address` is HOST:PORT, port 0 takes a free one. The errors of TcpListener::Bind.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address, std::vector<HttpRoute> routes,
                                                           const HttpLimits& limits = {});
  // Waits for the page that is being made, and drops the connections.
  ~HttpServer();

  // HOST:PORT with the real port.
  const std::string& address() const;

 private:
  class Loop;
  explicit HttpServer(std::unique_ptr<Loop> loop);

  const std::unique_ptr<Loop> loop_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_MONITOR_HTTP_SERVER_H_
