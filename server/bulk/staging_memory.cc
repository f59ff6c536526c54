// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/staging_memory.h"

#include <sys/mman.h>

#include "absl/strings/str_cat.h"

namespace intrawarp::server {

absl::StatusOr<StagingMemory> StagingMemory::Reserve(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return absl::ResourceExhaustedError(absl::StrCat("no address space for ", bytes, " bytes"));
  return StagingMemory(static_cast<char*>(data), size);
}

StagingMemory::~StagingMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace intrawarp::server
