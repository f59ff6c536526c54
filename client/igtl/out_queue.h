// SPDX-License-Identifier: Apache-2.0
// OutQueue: packed messages on their way to a peer. A newer message of a device takes the place of the one that waits,
// so that a slow peer gets fewer messages and never old ones. Thread-compatible.
#ifndef INTRAWARP_CLIENT_IGTL_OUT_QUEUE_H_
#define INTRAWARP_CLIENT_IGTL_OUT_QUEUE_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <utility>

namespace intrawarp::igtl {

struct OutMessage {
  // Messages with the same key replace each other: type and device.
  std::string key;
  std::shared_ptr<const std::string> bytes;
};

class OutQueue {
 public:
  enum class Put { kAdded, kReplaced, kRefused };

  explicit OutQueue(size_t limit) : limit_(limit) {}

  // kRefused: as many other keys wait as the limit allows.
  Put Push(const OutMessage& message) {
    for (OutMessage& each : messages_) {
      if (each.key != message.key) continue;
      each.bytes = message.bytes;
      return Put::kReplaced;
    }
    if (messages_.size() >= limit_) return Put::kRefused;
    messages_.push_back(message);
    return Put::kAdded;
  }

  bool empty() const { return messages_.empty(); }

  // The oldest place; not empty.
  OutMessage Pop() {
    OutMessage message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }

 private:
  const size_t limit_;
  std::deque<OutMessage> messages_;
};

}  // namespace intrawarp::igtl

#endif  // INTRAWARP_CLIENT_IGTL_OUT_QUEUE_H_
