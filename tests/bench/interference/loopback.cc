// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/interference/loopback.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/status_macros.h"
#include "io/file/crc32c.h"
#include "tests/bench/interference/statistics.h"

namespace intrawarp::bench {
namespace {

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

constexpr int kRepetitions = 15;
constexpr size_t kPiece = size_t{1} << 20;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

struct Connection {
  Descriptor from, to;
};

absl::StatusOr<Connection> Connect() {
  const Descriptor listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  Descriptor from(socket(AF_INET, SOCK_STREAM, 0));
  if (bind(listener.get(), name, length) != 0 || listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), name, &length) != 0 || connect(from.get(), name, length) != 0) {
    return absl::UnavailableError("no loopback connection");
  }
  return Connection{std::move(from), Descriptor(accept(listener.get(), nullptr, nullptr))};
}

bool SendAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), std::min(kPiece, bytes.size()), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(sent);
  }
  return true;
}

// The time of the last byte.
double ReceiveAll(int fd, std::vector<char>& into) {
  for (size_t at = 0; at < into.size();) {
    const ssize_t got = recv(fd, into.data() + at, std::min(kPiece, into.size() - at), 0);
    if (got <= 0) break;
    at += got;
  }
  return Now();
}

absl::StatusOr<double> TimeTcp(const Connection& connection, absl::string_view bytes, std::vector<char>& into) {
  double end = 0;
  std::thread receiver([&] { end = ReceiveAll(connection.to.get(), into); });
  const double begin = Now();
  const bool sent = SendAll(connection.from.get(), bytes);
  if (!sent) shutdown(connection.from.get(), SHUT_RDWR);
  receiver.join();
  if (!sent) return absl::UnavailableError("the loopback connection broke");
  return 1e3 * (end - begin);
}

}  // namespace

absl::StatusOr<MovingFloors> MeasureFloors(absl::string_view bytes) {
  INTRAWARP_ASSIGN_OR_RETURN(const Connection connection, Connect());
  std::vector<char> into(bytes.size());
  std::vector<double> tcp, crc32c, copy;
  volatile uint32_t sum = 0;
  for (int i = 0; i < kRepetitions; ++i) {
    INTRAWARP_ASSIGN_OR_RETURN(const double ms, TimeTcp(connection, bytes, into));
    tcp.push_back(ms);
    double begin = Now();
    sum = io::Crc32c(bytes.data(), bytes.size(), sum);
    crc32c.push_back(1e3 * (Now() - begin));
    begin = Now();
    std::memcpy(into.data(), bytes.data(), bytes.size());
    copy.push_back(1e3 * (Now() - begin));
  }
  return MovingFloors{Median(tcp), Median(crc32c), Median(copy)};
}

}  // namespace intrawarp::bench
