// SPDX-License-Identifier: Apache-2.0
// A TCP relay on a port of its own whose connections break: what a peer sees when a cable, a machine or a router
// between goes. A connection breaks when it has carried so many bytes, both ways together, or by Cut; it is closed on
// both sides, or falls silent: then nothing is carried any more and nothing is closed before the relay goes. Everything
// is 127.0.0.1.
//
// Thread-safe.
#ifndef INTRAWARP_TESTS_TCP_RELAY_H_
#define INTRAWARP_TESTS_TCP_RELAY_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace intrawarp {

class TcpRelay {
 public:
  struct Cuts {
    // The first so many connections that carry enough break, later ones are left alone.
    int count = 0;
    // How many bytes the next connection carries before it breaks.
    std::function<int64_t()> bytes;
    bool silent = false;
    // The receive buffer of the relay's sockets towards the client; 0: the kernel's choice.
    int receive_buffer_bytes = 0;
  };

  // `target` is HOST:PORT, of which the port counts.
  explicit TcpRelay(const std::string& target) : TcpRelay(target, Cuts()) {}
  TcpRelay(const std::string& target, Cuts cuts);
  ~TcpRelay();
  TcpRelay(const TcpRelay&) = delete;
  TcpRelay& operator=(const TcpRelay&) = delete;

  std::string address() const;
  // Closes every connection on both sides, and takes no other.
  void Cut();
  // Connections that were broken by what they carried.
  int cuts() const;
  // For a client that has all that it wanted: a break that it did not notice does not count as a wait.
  void EndWait();
  // The times from each break until a later connection had carried a few kilobytes, in the order of the breaks.
  std::vector<std::chrono::milliseconds> waits() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_TCP_RELAY_H_
