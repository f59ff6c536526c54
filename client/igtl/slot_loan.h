// SPDX-License-Identifier: Apache-2.0
// SlotLoan: a slot of memory shared with the server, lent to an image while its bytes come, so that they need not be
// copied there when the last one has come. The session can take the slot back at any time; the bytes then go on in
// memory of the loan's own.
//
// Thread safety: Append is one thread's, TakeBack and bytes another's.
#ifndef INTRAWARP_CLIENT_IGTL_SLOT_LOAN_H_
#define INTRAWARP_CLIENT_IGTL_SLOT_LOAN_H_

#include <mutex>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/igtl/codec/message.h"

namespace intrawarp::igtl {

class SlotLoan final : public BodyPlace {
 public:
  // `slot` has room for all bytes, and stays valid until TakeBack.
  explicit SlotLoan(absl::Span<char> slot) : slot_(slot) {}

  void Append(absl::string_view bytes) override;
  // The slot is not touched any more.
  void TakeBack();
  // The bytes that have come; valid until TakeBack and Append.
  absl::string_view bytes() const;

 private:
  mutable std::mutex mutex_;  // guards what follows
  absl::Span<char> slot_;     // empty: taken back
  size_t filled_ = 0;         // of the slot
  std::string own_;
};

}  // namespace intrawarp::igtl

#endif  // INTRAWARP_CLIENT_IGTL_SLOT_LOAN_H_
