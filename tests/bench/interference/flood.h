// SPDX-License-Identifier: Apache-2.0
// Other clients that work without pause beside the frames: products, uploads, registrations.
#ifndef INTRAWARP_TESTS_BENCH_INTERFERENCE_FLOOD_H_
#define INTRAWARP_TESTS_BENCH_INTERFERENCE_FLOOD_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "tests/bench/interference/site.h"

namespace intrawarp::bench {

// Clients that do one operation after the other until Stop. A client that is refused waits for 10 ms.
class Flood {
 public:
  // One operation of a client; both are counted from 0.
  using Operation = std::function<absl::Status(client::Client& client, int worker, int64_t number)>;

  Flood(Site& site, std::string name, int workers, Operation operation);
  ~Flood();

  const std::string& name() const { return name_; }
  // Waits for the operations under way.
  void Stop();
  // After Stop: operations a second in a span of time; one that reaches over an end of the span counts in part.
  double Rate(double from, double to) const;
  std::map<std::string, int64_t> errors() const { return errors_; }

 private:
  struct Done {
    double begin = 0, end = 0;
  };
  void Loop(client::Client& client, int worker);

  const std::string name_;
  const Operation operation_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::vector<Done> done_;
  std::map<std::string, int64_t> errors_;
  std::vector<std::unique_ptr<client::Client>> clients_;
  std::vector<std::thread> threads_;
};

// Makes what floods need resident, so that their start costs nothing. `names`: one, several with + between, or "all".
absl::Status PrepareFloods(Site& site, const std::string& names);
// Starts them: fem and rmat (4 clients that square a matrix), uploads (2), registrations (4: affine,ffd).
std::vector<std::unique_ptr<Flood>> StartFloods(Site& site, const std::string& names);

}  // namespace intrawarp::bench

#endif  // INTRAWARP_TESTS_BENCH_INTERFERENCE_FLOOD_H_
