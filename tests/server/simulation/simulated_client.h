// SPDX-License-Identifier: Apache-2.0
// SimulatedClient: a navigation client with a temper that its dice decide: steady, hasty, flooding, slow to read,
// careless with its frames, likely to vanish and to come back, or silent.
//
// Thread safety: as VirtualTime.
#ifndef INTRAWARP_TESTS_SERVER_SIMULATION_SIMULATED_CLIENT_H_
#define INTRAWARP_TESTS_SERVER_SIMULATION_SIMULATED_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "intrawarp/v1/registration.pb.h"
#include "tests/server/simulation/simulated_stream.h"
#include "tests/server/simulation/world.h"

namespace intrawarp::server {

class SimulatedClient {
 public:
  // `world` must outlive the client, and the client the world's last event.
  SimulatedClient(World& world, int index);

  void Begin();
  // Its streams break for good.
  void Vanish();
  // The client does nothing more.
  bool is_done() const { return actions_left_ == 0; }
  // What its sessions' statistics say is what their streams saw.
  void CheckSessions() const;

 private:
  v1::NavigateConfig RandomConfig();
  template <typename Stage>
  void SetShort(Stage& stage);
  void Connect(bool resume);
  void Act();
  void SendFrame();
  void SendChunks(int64_t number, int side);
  void SpoilHeader(v1::FrameHeader& header, ClientMessage& message);
  void Flood();
  void Close();
  void Later();

  World& world_;
  const std::string id_;
  const bool is_named_;
  const bool is_careless_;
  const bool is_hasty_;
  const VirtualTime::Duration period_;
  int64_t actions_left_;
  v1::NavigateConfig config_;
  int64_t number_ = 0;
  std::shared_ptr<SessionSeen> seen_;
  std::vector<std::shared_ptr<SessionSeen>> sessions_;
  std::shared_ptr<SimulatedStream> stream_;
  std::vector<std::shared_ptr<SimulatedStream>> streams_;  // that may still live
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_SIMULATION_SIMULATED_CLIENT_H_
