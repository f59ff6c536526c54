// SPDX-License-Identifier: Apache-2.0
#include "tests/io/dicomweb/http_peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace intrawarp::dicomweb {
namespace {

constexpr int kPollMs = 50;

// False once the other side or the peer has gone.
bool ReadMore(int fd, const std::atomic<bool>& stopping, std::string& buffer) {
  while (!stopping) {
    pollfd waits{.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&waits, 1, kPollMs) <= 0) continue;
    char bytes[65536];
    const ssize_t got = recv(fd, bytes, sizeof(bytes), 0);
    if (got <= 0) return false;
    buffer.append(bytes, static_cast<size_t>(got));
    return true;
  }
  return false;
}

std::optional<PeerRequest> ParseHead(absl::string_view head) {
  PeerRequest request;
  const std::vector<std::string> lines = absl::StrSplit(head, "\r\n");
  const std::vector<std::string> words = absl::StrSplit(lines.front(), ' ');
  if (words.size() != 3) return std::nullopt;
  request.method = words[0];
  request.target = words[1];
  for (size_t i = 1; i < lines.size(); ++i) {
    const size_t colon = lines[i].find(':');
    if (colon == std::string::npos) continue;
    request.headers[absl::AsciiStrToLower(lines[i].substr(0, colon))] =
        std::string(absl::StripAsciiWhitespace(lines[i].substr(colon + 1)));
  }
  return request;
}

}  // namespace

bool HttpPeer::Wire::Send(const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size() && !stopping_) {
    pollfd waits{.fd = fd_, .events = POLLOUT, .revents = 0};
    if (poll(&waits, 1, kPollMs) <= 0) continue;
    const ssize_t put = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0 && errno != EAGAIN) return false;
    if (put > 0) sent += static_cast<size_t>(put);
  }
  return sent == bytes.size();
}

bool HttpPeer::Wire::Reply(int status, const std::string& headers, const std::string& body) {
  return Send(
      absl::StrCat("HTTP/1.1 ", status, " Any\r\nContent-Length: ", body.size(), "\r\n", headers, "\r\n", body));
}

HttpPeer::HttpPeer(AnswerFn answer, bool reads_body) : answer_(std::move(answer)), reads_body_(reads_body) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  (void)bind(listener_, reinterpret_cast<sockaddr*>(&address), size);
  (void)getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  (void)listen(listener_, 16);
  port_ = ntohs(address.sin_port);
  listening_ = std::thread([this] { Listen(); });
}

HttpPeer::~HttpPeer() {
  stopping_ = true;
  listening_.join();
  for (std::thread& thread : serving_) thread.join();
  close(listener_);
}

std::string HttpPeer::url() const { return absl::StrCat("http://127.0.0.1:", port_); }

std::vector<PeerRequest> HttpPeer::requests() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return requests_;
}

void HttpPeer::Listen() {
  while (!stopping_) {
    pollfd waits{.fd = listener_, .events = POLLIN, .revents = 0};
    if (poll(&waits, 1, kPollMs) <= 0) continue;
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) serving_.emplace_back([this, fd] { Serve(fd); });
  }
}

void HttpPeer::Serve(int fd) {
  Wire wire(fd, stopping_);
  std::string buffer;
  while (!stopping_) {
    size_t end = buffer.find("\r\n\r\n");
    if (end == std::string::npos) {
      if (!ReadMore(fd, stopping_, buffer)) break;
      continue;
    }
    std::optional<PeerRequest> request = ParseHead(absl::string_view(buffer).substr(0, end));
    buffer.erase(0, end + 4);
    if (!request) break;
    size_t length = 0;
    (void)absl::SimpleAtoi(request->headers["content-length"], &length);
    if (reads_body_ && request->headers["expect"] == "100-continue") wire.Send("HTTP/1.1 100 Continue\r\n\r\n");
    while (reads_body_ && buffer.size() < length && ReadMore(fd, stopping_, buffer)) {
    }
    request->body = buffer.substr(0, std::min(length, buffer.size()));
    buffer.erase(0, request->body.size());
    {
      std::lock_guard<std::mutex> lock(mutex_);
      requests_.push_back(*request);
    }
    if (!answer_(*request, wire)) break;
  }
  shutdown(fd, SHUT_WR);
  close(fd);
}

}  // namespace intrawarp::dicomweb
