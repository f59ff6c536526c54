// SPDX-License-Identifier: Apache-2.0
// The smallest HTTP client: one request, the whole answer; also in parts.
#ifndef INTRAWARP_TESTS_SERVER_HTTP_CLIENT_H_
#define INTRAWARP_TESTS_SERVER_HTTP_CLIENT_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace intrawarp::server {

struct HttpAnswer {
  int status = 0;  // 0: no connection, or no answer
  std::string head;
  std::string body;
};

class HttpConnection {
 public:
  // `address` is IPV4:PORT; `from` another IPv4 address of this machine than the usual one.
  explicit HttpConnection(const std::string& address, const std::string& from = "") {
    const size_t colon = address.rfind(':');
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::atoi(address.c_str() + colon + 1)));
    inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    const timeval limit{60, 0};  // guards against a hang
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    sockaddr_in own{};
    own.sin_family = AF_INET;
    const bool is_bound = !from.empty() && inet_pton(AF_INET, from.c_str(), &own.sin_addr) == 1;
    if (is_bound) (void)bind(fd_, reinterpret_cast<sockaddr*>(&own), sizeof(own));
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }
  HttpConnection(const HttpConnection&) = delete;
  ~HttpConnection() { close(fd_); }

  bool Send(const std::string& text) {
    return connected_ && send(fd_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  // Everything up to the end of the connection.
  HttpAnswer Read() {
    std::string all;
    char buffer[4096];
    for (ssize_t n; (n = recv(fd_, buffer, sizeof(buffer), 0)) > 0;) all.append(buffer, n);
    HttpAnswer answer;
    const size_t end = all.find("\r\n\r\n");
    if (end == std::string::npos) return answer;
    answer.head = all.substr(0, end);
    answer.body = all.substr(end + 4);
    answer.status = std::atoi(all.c_str() + all.find(' '));
    return answer;
  }

 private:
  int fd_ = -1;
  bool connected_ = false;
};

inline HttpAnswer HttpRequest(const std::string& address, const std::string& method, const std::string& path) {
  HttpConnection connection(address);
  if (!connection.Send(method + " " + path + " HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n")) return {};
  return connection.Read();
}

inline HttpAnswer HttpGet(const std::string& address, const std::string& path) {
  return HttpRequest(address, "GET", path);
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_HTTP_CLIENT_H_
