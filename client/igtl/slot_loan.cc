// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/slot_loan.h"

#include <cstring>

namespace intrawarp::igtl {

void SlotLoan::Append(absl::string_view bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (bytes.size() > slot_.size() - filled_) {
    own_.append(bytes.data(), bytes.size());
    return;
  }
  std::memcpy(slot_.data() + filled_, bytes.data(), bytes.size());
  filled_ += bytes.size();
}

void SlotLoan::TakeBack() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (slot_.empty()) return;
  own_.reserve(slot_.size());
  own_.assign(slot_.data(), filled_);
  slot_ = {};
  filled_ = 0;
}

absl::string_view SlotLoan::bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return slot_.empty() ? absl::string_view(own_) : absl::string_view(slot_.data(), filled_);
}

}  // namespace intrawarp::igtl
