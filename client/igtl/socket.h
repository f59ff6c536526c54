// SPDX-License-Identifier: Apache-2.0
// TCP sockets that never block, as the loop of the bridge uses them. Plain values and thread-safe functions.
#ifndef INTRAWARP_CLIENT_IGTL_SOCKET_H_
#define INTRAWARP_CLIENT_IGTL_SOCKET_H_

#include <sys/socket.h>

#include <chrono>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/base/host_port.h"

namespace intrawarp::igtl {

// Closes what it holds.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {}
  FileDescriptor(FileDescriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~FileDescriptor();

  int get() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
};

// The first address of the name. INVALID_ARGUMENT for a name that is not found.
absl::StatusOr<SocketAddress> Resolve(const HostPort& address);

// UNAVAILABLE, with the system's reason.
absl::StatusOr<FileDescriptor> ListenOn(const SocketAddress& address);
// A connection that may still be under way: the socket is writable once it is there or has failed.
absl::StatusOr<FileDescriptor> StartConnecting(const SocketAddress& address);
int BoundPort(const FileDescriptor& socket);

// For messages that are worth most when they are new: no delay, little kept unsent, and an end to peers that vanished.
void PrepareStream(const FileDescriptor& socket, std::chrono::milliseconds stall_timeout);

}  // namespace intrawarp::igtl

#endif  // INTRAWARP_CLIENT_IGTL_SOCKET_H_
