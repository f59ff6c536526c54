// SPDX-License-Identifier: Apache-2.0
// HTTP/2 in plain text, frame by frame: for what no gRPC client would send.
#ifndef INTRAWARP_TESTS_SERVER_HTTP2_CLIENT_H_
#define INTRAWARP_TESTS_SERVER_HTTP2_CLIENT_H_

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>

namespace intrawarp::server {

class Http2Connection {
 public:
  static constexpr uint8_t kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kContinuation = 9;
  static constexpr uint8_t kEndHeaders = 4;

  // `address` is IPV4:PORT; `from` another IPv4 address of this machine than the usual one.
  explicit Http2Connection(const std::string& address, const std::string& from = "") {
    const size_t colon = address.rfind(':');
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::atoi(address.c_str() + colon + 1)));
    inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    const timeval limit{60, 0};  // guards against a hang
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    sockaddr_in own{};
    own.sin_family = AF_INET;
    const bool is_bound = !from.empty() && inet_pton(AF_INET, from.c_str(), &own.sin_addr) == 1;
    if (is_bound) (void)bind(fd_, reinterpret_cast<sockaddr*>(&own), sizeof(own));
    if (connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) return;
    Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, ""));
  }
  Http2Connection(const Http2Connection&) = delete;
  ~Http2Connection() { close(fd_); }

  static std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
    const auto size = static_cast<uint32_t>(payload.size());
    const uint8_t head[9] = {uint8_t(size >> 16),   uint8_t(size >> 8),    uint8_t(size),        type,           flags,
                             uint8_t(stream >> 24), uint8_t(stream >> 16), uint8_t(stream >> 8), uint8_t(stream)};
    return std::string(reinterpret_cast<const char*>(head), sizeof(head)) + payload;
  }
  // A header field as HPACK has it, without an index and without Huffman's code; both shorter than 127 bytes, or the
  // value than 127 + 128 * 128.
  static std::string Field(const std::string& name, const std::string& value) {
    return '\x10' + Length(name.size()) + name + Length(value.size()) + value;
  }
  // The header of a call of "/package.Service/Method".
  static std::string CallHeader(const std::string& path) {
    return "\x83\x86" + Field(":path", path) + Field(":authority", "localhost") + Field("te", "trailers") +
           Field("content-type", "application/grpc");
  }

  // False once the server has closed the connection.
  bool Send(const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t count = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) return false;
      sent += static_cast<size_t>(count);
    }
    return true;
  }
  // Waits until the other side's kernel has all that was sent.
  void AwaitArrival() const {
    for (int waiting = 1; ioctl(fd_, SIOCOUTQ, &waiting) == 0 && waiting > 0;) std::this_thread::yield();
  }
  // Waits for so many bytes of the server's. False: the connection has ended.
  bool Receive(size_t bytes) {
    char buffer[4096];
    while (bytes > 0) {
      const ssize_t count = recv(fd_, buffer, bytes < sizeof(buffer) ? bytes : sizeof(buffer), 0);
      if (count <= 0) return false;
      bytes -= static_cast<size_t>(count);
    }
    return true;
  }
  // Waits for the end of the connection, whatever comes before.
  bool AwaitEnd() {
    char buffer[4096];
    for (;;) {
      const ssize_t count = recv(fd_, buffer, sizeof(buffer), 0);
      if (count == 0) return true;
      if (count < 0) return errno == ECONNRESET || errno == EPIPE;
    }
  }
  bool has_ended() const {
    char buffer[4096];
    ssize_t count;
    while ((count = recv(fd_, buffer, sizeof(buffer), MSG_DONTWAIT)) > 0) {
    }
    return count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }
  int port() const {
    sockaddr_in own{};
    socklen_t size = sizeof(own);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&own), &size);
    return ntohs(own.sin_port);
  }

 private:
  static std::string Length(size_t size) {
    if (size < 127) return std::string(1, static_cast<char>(size));
    size -= 127;
    std::string text = "\x7f";
    for (; size >= 128; size /= 128) text += static_cast<char>(size % 128 + 128);
    return text + static_cast<char>(size);
  }

  int fd_ = -1;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_HTTP2_CLIENT_H_
