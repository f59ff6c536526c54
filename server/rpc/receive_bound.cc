// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/receive_bound.h"

// Not <netinet/tcp.h>, whose tcp_info ends before the byte counts.
#include <linux/filter.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace intrawarp::server {
namespace {

// The offset in the TCP header, on which the filter of a TCP socket works.
constexpr uint32_t kSequenceOffset = 4;
constexpr uint32_t kTakeAll = 0xffffffff;
// Bytes that lie less than this before the bound were received before, or are a probe for a lost acknowledgement.
constexpr uint32_t kPast = uint32_t{1} << 30;

uint32_t BigEndian(const unsigned char* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

// Where the TCP header begins behind an IP header; nullopt behind extension headers.
std::optional<size_t> TcpOffset(const unsigned char* segment, size_t size) {
  constexpr size_t kIpv6Header = 40, kIpv6NextHeader = 6;
  const int version = size == 0 ? 0 : segment[0] >> 4;
  if (version == 4) return size_t{4} * (segment[0] & 15);
  if (version == 6 && size > kIpv6Header && segment[kIpv6NextHeader] == IPPROTO_TCP) return kIpv6Header;
  return std::nullopt;
}

}  // namespace

void KeepFirstSegments(int listener) {
  const int on = 1;
  setsockopt(listener, IPPROTO_TCP, TCP_SAVE_SYN, &on, sizeof(on));
}

std::optional<uint32_t> FirstSequence(int fd) {
  unsigned char segment[512];
  socklen_t size = sizeof(segment);
  if (getsockopt(fd, IPPROTO_TCP, TCP_SAVED_SYN, segment, &size) != 0) return std::nullopt;
  const std::optional<size_t> tcp = TcpOffset(segment, size);
  if (!tcp || *tcp + kSequenceOffset + sizeof(uint32_t) > size) return std::nullopt;
  return BigEndian(segment + *tcp + kSequenceOffset);
}

bool BoundReceived(int fd, uint32_t first_sequence, int64_t bytes) {
  // The first byte follows the client's SYN. Sequence numbers are modulo 2^32.
  const uint32_t bound = first_sequence + 1 + static_cast<uint32_t>(bytes);
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kSequenceOffset),
      BPF_STMT(BPF_ALU | BPF_SUB | BPF_K, bound - kPast),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, kPast, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, kTakeAll),
      BPF_STMT(BPF_RET | BPF_K, 0),
  };
  const sock_fprog filter = {sizeof(program) / sizeof(program[0]), program};
  return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) == 0;
}

void LiftBound(int fd) {
  const int unused = 0;
  setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof(unused));
}

std::optional<Traffic> TrafficOf(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  Traffic traffic;
  traffic.received = static_cast<int64_t>(info.tcpi_bytes_received);
  traffic.sent = static_cast<int64_t>(info.tcpi_bytes_sent - info.tcpi_bytes_retrans);
  traffic.acked = static_cast<int64_t>(info.tcpi_bytes_acked);
  traffic.answers = info.tcpi_data_segs_out;
  return traffic;
}

uint64_t CookieOf(int fd) {
  uint64_t cookie = 0;
  socklen_t size = sizeof(cookie);
  return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

}  // namespace intrawarp::server
