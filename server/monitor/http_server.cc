// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/http_server.h"

#include <civetweb.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace intrawarp::server {
namespace {

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    default:
      return "Service Unavailable";
  }
}

int Handle(mg_connection* connection, void* data) {
  const auto* server = static_cast<const HttpServer*>(data);
  const mg_request_info* request = mg_get_request_info(connection);
  const bool head = std::strcmp(request->request_method, "HEAD") == 0;
  HttpPage page;
  if (!head && std::strcmp(request->request_method, "GET") != 0) {
    page.status = 405;
    page.body = "only GET and HEAD\n";
  } else {
    page = server->handler()(request->local_uri);
  }
  const std::string text =
      absl::StrCat("HTTP/1.1 ", page.status, " ", ReasonPhrase(page.status), "\r\nContent-Type: ", page.content_type,
                   "\r\nContent-Length: ", page.body.size(), "\r\nConnection: close\r\n\r\n", head ? "" : page.body);
  mg_write(connection, text.data(), text.size());
  return page.status;
}

// Its own messages would hold request lines, which are a client's.
int Silence(const mg_connection*, const char*) { return 1; }

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address, Handler handler) {
  static const unsigned library = mg_init_library(MG_FEATURES_DEFAULT);
  (void)library;
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(handler)));
  const char* options[] = {"listening_ports",
                           address.c_str(),
                           "num_threads",
                           "3",
                           "request_timeout_ms",
                           "5000",
                           "enable_keep_alive",
                           "no",
                           nullptr};
  mg_callbacks callbacks{};
  callbacks.log_message = Silence;
  callbacks.log_access = Silence;
  server->context_ = mg_start(&callbacks, nullptr, options);
  if (server->context_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot serve HTTP on ", address));
  }
  mg_server_port port{};
  if (mg_get_server_ports(server->context_, 1, &port) < 1) return absl::InternalError("the HTTP port is unknown");
  server->address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", port.port);
  mg_set_request_handler(server->context_, "/", Handle, server.get());
  return server;
}

// Civetweb looks whether it should stop every two seconds, or when a client connects.
HttpServer::~HttpServer() {
  if (context_ == nullptr) return;
  const size_t colon = address_.rfind(':');
  const std::string host(absl::StripSuffix(absl::StripPrefix(address_.substr(0, colon), "["), "]"));
  const int port = std::atoi(address_.c_str() + colon + 1);
  std::future<void> stopped = std::async(std::launch::async, [this] { mg_stop(context_); });
  do {
    char error[128];
    mg_connection* connection = mg_connect_client(host.c_str(), port, /*use_ssl=*/0, error, sizeof(error));
    if (connection != nullptr) mg_close_connection(connection);
  } while (stopped.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready);
}

}  // namespace intrawarp::server
