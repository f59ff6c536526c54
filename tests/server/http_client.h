// SPDX-License-Identifier: Apache-2.0
// The smallest HTTP client: one request, the whole answer.
#ifndef INTRAWARP_TESTS_SERVER_HTTP_CLIENT_H_
#define INTRAWARP_TESTS_SERVER_HTTP_CLIENT_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace intrawarp::server {

struct HttpAnswer {
  int status = 0;  // 0: no connection
  std::string head;
  std::string body;
};

// `address` is IPV4:PORT.
inline HttpAnswer HttpRequest(const std::string& address, const std::string& method, const std::string& path) {
  HttpAnswer answer;
  const size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::atoi(address.c_str() + colon + 1)));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) {
    const std::string request = method + " " + path + " HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n";
    if (write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
      std::string all;
      char buffer[4096];
      for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) all.append(buffer, n);
      const size_t end = all.find("\r\n\r\n");
      if (end != std::string::npos) {
        answer.head = all.substr(0, end);
        answer.body = all.substr(end + 4);
        answer.status = std::atoi(all.c_str() + all.find(' '));
      }
    }
  }
  close(fd);
  return answer;
}

inline HttpAnswer HttpGet(const std::string& address, const std::string& path) {
  return HttpRequest(address, "GET", path);
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_HTTP_CLIENT_H_
