// SPDX-License-Identifier: Apache-2.0
// A client that does one random thing after the other, and leaves some of them half done.
#ifndef INTRAWARP_TESTS_BENCH_INTERFERENCE_SOAK_CLIENT_H_
#define INTRAWARP_TESTS_BENCH_INTERFERENCE_SOAK_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cpp/client.h"
#include "tests/bench/interference/site.h"

namespace intrawarp::bench {

// Thread-compatible; its choices follow from the seed.
class SoakClient {
 public:
  SoakClient(Site& site, const BreathSequence& images, uint32_t seed)
      : site_(site), images_(images), random_(seed), number_(seed) {}

  // One thing, to its end.
  void Act();

  // Deletes the volumes whose upload may have gone on after the client had given it up. At the end, too.
  void Tidy();

  // How often each thing was done, and how things ended that ended badly, by "thing: ERROR".
  const std::map<std::string, int64_t>& done() const { return done_; }
  const std::map<std::string, int64_t>& errors() const { return errors_; }

 private:
  struct Action {
    const char* name;
    absl::Status (SoakClient::*act)(client::Client& client);
  };
  static const std::vector<Action>& Actions();

  bool Chance(double probability) { return std::uniform_real_distribution<double>(0, 1)(random_) < probability; }
  int Between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  // What cancels a call after a random time of up to 50 ms, or never.
  client::CallOptions Impatience();
  std::string RandomMethod();
  v1::RegisterRequest RandomRegistration();
  std::string Fresh(const std::string& prefix);

  v1::NavigateConfig RandomSession();
  // Frames from `first` on, which the client may break off.
  absl::Status SendFrames(client::NavigateStream& stream, int first, int frames);
  absl::Status Navigate(client::Client& client);
  absl::Status Register(client::Client& client);
  absl::Status Upload(client::Client& client);
  absl::Status Abandon(client::Client& client);
  absl::Status Download(client::Client& client);
  absl::Status Transforms(client::Client& client);
  absl::Status Multiply(client::Client& client);
  absl::Status Look(client::Client& client);
  absl::Status Ask(client::Client& client);
  absl::Status Resume(client::Client& client);
  absl::Status Scrape(client::Client& client);

  Site& site_;
  const BreathSequence& images_;
  std::mt19937 random_;
  int64_t number_;
  std::unique_ptr<client::Client> client_;
  std::shared_ptr<grpc::Channel> channel_;  // for calls that the client has no function for
  std::vector<std::string> given_up_;       // names of volumes
  std::map<std::string, int64_t> done_, errors_;
};

}  // namespace intrawarp::bench

#endif  // INTRAWARP_TESTS_BENCH_INTERFERENCE_SOAK_CLIENT_H_
