// SPDX-License-Identifier: Apache-2.0
#include "engine/device/exec_context.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace intrawarp {

absl::StatusOr<void*> Arena::AllocateBytes(size_t bytes) {
  const size_t rounded = Rounded(bytes), left = buffer_.bytes() - used_;
  if (bytes > left || rounded > left) {  // the first alone where rounding up wraps around
    return absl::ResourceExhaustedError(
        absl::StrCat("workspace of ", buffer_.bytes(), " bytes is used up: ", used_, " taken, ", bytes, " asked"));
  }
  void* p = buffer_.as<char>() + used_;
  used_ += rounded;
  return p;
}

absl::StatusOr<OwnedContext> OwnedContext::Create(Device& device, size_t workspace_bytes, Partition partition) {
  INTRAWARP_ASSIGN_OR_RETURN(Stream stream, device.CreateStream(partition));
  INTRAWARP_ASSIGN_OR_RETURN(Buffer buffer, device.Allocate(Arena::Rounded(workspace_bytes), stream.view()));
  return OwnedContext(device, std::move(stream), Arena(std::move(buffer)));
}

}  // namespace intrawarp
