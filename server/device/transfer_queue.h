// SPDX-License-Identifier: Apache-2.0
// TransferQueue: lets one transfer at a time go from one device to another, so that calls that want the same object
// there make one copy of it, and a device that does not come back delays only the transfers from it and to it.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_DEVICE_TRANSFER_QUEUE_H_
#define INTRAWARP_SERVER_DEVICE_TRANSFER_QUEUE_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace intrawarp::server {

class TransferQueue {
 public:
  // Held by the transfer whose turn it is. The last copy to go begins the next transfer.
  using Turn = std::shared_ptr<void>;

  // Calls `transfer` when its turn has come: at once, or on the thread that ends the transfer before it.
  void Submit(int from, int to, std::function<void(Turn turn)> transfer);

 private:
  using Pair = std::pair<int, int>;
  using Transfer = std::function<void(Turn)>;

  Turn MakeTurn(Pair pair);
  void End(Pair pair);

  std::mutex mutex_;
  std::map<Pair, std::deque<Transfer>> waiting_;  // of the pairs with a transfer under way
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_DEVICE_TRANSFER_QUEUE_H_
