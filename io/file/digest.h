// SPDX-License-Identifier: Apache-2.0
// SHA-256 of bytes that arrive in pieces.
#ifndef INTRAWARP_IO_FILE_DIGEST_H_
#define INTRAWARP_IO_FILE_DIGEST_H_

#include <cstddef>
#include <memory>
#include <string>

namespace intrawarp::io {

// Thread-compatible. Movable; a moved-from object may only be destroyed or assigned to.
class Sha256 {
 public:
  static constexpr size_t kBytes = 32;

  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Update(const void* data, size_t size);
  // The digest of everything since construction or the last Finish, as kBytes raw bytes; starts afresh.
  std::string Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The digest of one piece of memory, as 32 raw bytes.
std::string Sha256Of(const void* data, size_t size);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_FILE_DIGEST_H_
