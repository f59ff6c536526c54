// SPDX-License-Identifier: Apache-2.0
#include "server/device/transfer_queue.h"

namespace intrawarp::server {

TransferQueue::Turn TransferQueue::MakeTurn(Pair pair) {
  return Turn(this, [this, pair](void*) { End(pair); });
}

void TransferQueue::Submit(int from, int to, Transfer transfer) {
  const Pair pair{from, to};
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto [queue, idle] = waiting_.try_emplace(pair);
    if (!idle) return queue->second.push_back(std::move(transfer));
  }
  transfer(MakeTurn(pair));
}

void TransferQueue::End(Pair pair) {
  Transfer next;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::deque<Transfer>& queue = waiting_[pair];
    if (queue.empty()) {
      waiting_.erase(pair);
      return;
    }
    next = std::move(queue.front());
    queue.pop_front();
  }
  next(MakeTurn(pair));
}

}  // namespace intrawarp::server
