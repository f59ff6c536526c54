// SPDX-License-Identifier: Apache-2.0
// HttpServer: the HTTP port: /metrics for Prometheus and /healthz for probes. Anything else is 404, any method but GET
// and HEAD 405. Plain HTTP, for the inner network.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_MONITOR_HTTP_SERVER_H_
#define INTRAWARP_SERVER_MONITOR_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

struct mg_context;

namespace intrawarp::server {

struct HttpPage {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

class HttpServer {
 public:
  // Makes the page for a path; called on several threads at once. 404 for a path that it does not know.
  using Handler = std::function<HttpPage(const std::string& path)>;

  // `address` is HOST:PORT, port 0 takes a free one. UNAVAILABLE when it cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address, Handler handler);
  // Waits for the requests under way.
  ~HttpServer();

  // HOST:PORT with the real port.
  const std::string& address() const { return address_; }
  const Handler& handler() const { return handler_; }

 private:
  explicit HttpServer(Handler handler) : handler_(std::move(handler)) {}

  const Handler handler_;
  mg_context* context_ = nullptr;
  std::string address_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_MONITOR_HTTP_SERVER_H_
