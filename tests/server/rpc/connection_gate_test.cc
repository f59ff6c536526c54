// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/connection_gate.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/job/admission_metrics.h"
#include "server/rpc/rpc_metrics.h"
#include "tests/server/http2_client.h"

namespace intrawarp::server {
namespace {

using std::chrono::milliseconds;

// A gRPC server behind a gate that nobody but the test tells of calls.
class ConnectionGateTest : public testing::Test {
 protected:
  // `keeps_numbers`: whether the kernel keeps sequence numbers, as it does unless a flood of SYNs makes it send
  // cookies.
  void Start(const GateLimits& limits, bool keeps_numbers = true) {
    gate_ = std::make_unique<ConnectionGate>(limits, metrics_, admission_);
    absl::StatusOr<TcpListener> listener = TcpListener::Bind("127.0.0.1:0");
    ASSERT_TRUE(listener.ok()) << listener.status();
    if (keeps_numbers) ConnectionGate::Prepare(*listener);
    address_ = listener->address();
    grpc::ServerBuilder builder;
    using Connections = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    ConnectionGate::Acceptor acceptor =
        builder.experimental().AddExternalConnectionAcceptor(Connections::FROM_FD, grpc::InsecureServerCredentials());
    builder.RegisterCallbackGenericService(&nobody_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    gate_->Start(*std::move(listener), std::move(acceptor));
  }
  ~ConnectionGateTest() override {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }

  // Waits until the gate has accepted it.
  std::unique_ptr<Http2Connection> Connect(const std::string& from = "127.0.0.1") {
    auto connection = std::make_unique<Http2Connection>(address_, from);
    while (Of(*connection, from) == nullptr && !connection->has_ended()) std::this_thread::yield();
    return connection;
  }
  ConnectionGate::ConnectionPtr Of(const Http2Connection& connection, const std::string& from = "127.0.0.1") const {
    return gate_->Find(absl::StrCat("ipv4:", from, ":", connection.port()));
  }
  std::vector<std::unique_ptr<Http2Connection>> Connect(int count, const std::string& from) {
    std::vector<std::unique_ptr<Http2Connection>> connections;
    for (int i = 0; i < count; ++i) connections.push_back(Connect(from));
    return connections;
  }
  ConnectionGate::Call Begin(const Http2Connection& connection) {
    std::optional<ConnectionGate::Call> call = gate_->BeginKnown(Of(connection), ConnectionGate::Brings::kOneMessage);
    EXPECT_TRUE(call.has_value());
    return call ? *std::move(call) : ConnectionGate::Call();
  }
  bool Closed(const char* reason) const {
    const std::string name = absl::StrCat("\nintrawarp_connections_closed_total{reason=\"", reason, "\"} ");
    const std::string text = registry_.Scrape();
    EXPECT_NE(text.find(name), std::string::npos) << text;
    return text.find(name + "0\n") == std::string::npos;
  }

  Registry registry_;
  const RpcMetrics metrics_{registry_, {}};
  const AdmissionMetrics admission_{registry_, {"cpu"}};
  std::unique_ptr<ConnectionGate> gate_;
  grpc::CallbackGenericService nobody_;  // answers UNIMPLEMENTED
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

TEST_F(ConnectionGateTest, AFloodClosesItsOwnConnections) {
  Start({.known = 4, .strangers = 4});
  const auto other = Connect("127.0.0.3");
  const auto flood = Connect(40, "127.0.0.2");
  EXPECT_FALSE(other->has_ended());
  EXPECT_TRUE(flood.front()->AwaitEnd());
  EXPECT_FALSE(flood.back()->has_ended());
  EXPECT_EQ(gate_->strangers(), 4);
  EXPECT_TRUE(Closed("gave_way"));
  // It has a place also when its calls begin late.
  ConnectionGate::Call call = *gate_->BeginKnown(Of(*other, "127.0.0.3"), ConnectionGate::Brings::kStream);
  EXPECT_EQ(gate_->connections() - gate_->strangers(), 1);
}

TEST_F(ConnectionGateTest, WhoAskedForHealthGivesWayAfterWhoSaysNothing) {
  Start({.known = 4, .strangers = 3});
  const auto asks = Connect();
  { const ConnectionGate::Call health = gate_->BeginOpen(Of(*asks)); }
  const auto silent = Connect(10, "127.0.0.1");
  EXPECT_FALSE(asks->has_ended());
}

TEST_F(ConnectionGateTest, KnownConnectionsDoNotGiveWayToStrangers) {
  Start({.known = 2, .strangers = 2});
  const auto known = Connect();
  { const ConnectionGate::Call call = Begin(*known); }
  const auto flood = Connect(20, "127.0.0.1");
  EXPECT_FALSE(known->has_ended());
}

TEST_F(ConnectionGateTest, AnIdleKnownConnectionGivesWayAndABusyOneDoesNot) {
  Start({.known = 2, .strangers = 8});
  const auto connections = Connect(4, "127.0.0.1");
  ConnectionGate::Call first = Begin(*connections[0]);
  const ConnectionGate::Call second = Begin(*connections[1]);
  EXPECT_FALSE(gate_->BeginKnown(Of(*connections[2]), ConnectionGate::Brings::kStream).has_value());
  EXPECT_TRUE(connections[2]->AwaitEnd());
  first = ConnectionGate::Call();
  const ConnectionGate::Call fourth = Begin(*connections[3]);
  EXPECT_TRUE(connections[0]->AwaitEnd());
  EXPECT_FALSE(connections[1]->has_ended());
  EXPECT_FALSE(connections[3]->has_ended());
}

TEST_F(ConnectionGateTest, OneNetworkDoesNotKeepAnotherOut) {
  Start({.known = 4, .strangers = 8});
  const auto many = Connect(4, "127.0.0.2");
  std::vector<ConnectionGate::Call> calls;
  for (const auto& each : many) {
    calls.push_back(*gate_->BeginKnown(Of(*each, "127.0.0.2"), ConnectionGate::Brings::kStream));
  }
  const auto other = Connect();
  const ConnectionGate::Call call = Begin(*other);
  EXPECT_FALSE(other->has_ended());
  EXPECT_TRUE(many.back()->AwaitEnd());
  EXPECT_FALSE(many.front()->has_ended());
}

TEST_F(ConnectionGateTest, AStrangerWithoutACallGoes) {
  Start({.first_call = milliseconds(50)});
  // This thread may stand still for longer than that between a connection and its call.
  std::unique_ptr<Http2Connection> watches, known;
  ConnectionGate::Call health, call;
  while (watches == nullptr || Of(*watches) == nullptr) {
    watches = Connect();
    health = gate_->BeginOpen(Of(*watches));
  }
  while (known == nullptr || Of(*known) == nullptr) {
    known = Connect();
    call = gate_->BeginKnown(Of(*known), ConnectionGate::Brings::kOneMessage).value_or(ConnectionGate::Call());
  }
  const auto silent = Connect();
  EXPECT_TRUE(silent->AwaitEnd());
  EXPECT_FALSE(watches->has_ended());
  EXPECT_FALSE(known->has_ended());
  EXPECT_TRUE(Closed("not_identified"));
}

TEST_F(ConnectionGateTest, ManyRefusedCallsEndTheConnection) {
  Start({.refused_calls_a_second = 3});
  const auto stranger = Connect(), known = Connect();
  const ConnectionGate::Call call = Begin(*known);
  // Found before, as calls under way have.
  const ConnectionGate::ConnectionPtr at_stranger = Of(*stranger), at_known = Of(*known);
  for (int i = 0; i < 30; ++i) gate_->CountRefused(at_stranger);
  for (int i = 0; i < 30; ++i) gate_->CountRefused(at_known);
  EXPECT_TRUE(stranger->AwaitEnd());
  EXPECT_FALSE(known->has_ended());
  EXPECT_TRUE(Closed("refused_calls"));
}

// Sends 40 MB of a header that never ends; false once the server has closed the connection.
bool SendEndlessHeader(Http2Connection& connection) {
  if (!connection.Send(Http2Connection::Frame(Http2Connection::kHeaders, 0, 1, "\x83\x86"))) return false;
  const std::string more =
      Http2Connection::Frame(Http2Connection::kContinuation, 0, 1, Http2Connection::Field("a", std::string(4000, 'b')));
  int frames = 0;
  while (frames < 10000 && connection.Send(more)) ++frames;
  return frames == 10000;
}

TEST_F(ConnectionGateTest, BytesThatBelongToNoCallEndTheConnection) {
  Start({.held = milliseconds(50)});
  const auto stranger = Connect();
  EXPECT_FALSE(SendEndlessHeader(*stranger));
  EXPECT_TRUE(Closed("unaccounted"));
}

// Nothing holds the connection, so that nothing is waited for but the next look of a thread that may stand still on a
// busy machine while all 40 MB come.
TEST_F(ConnectionGateTest, BytesThatNothingHoldsEndTheConnectionAtOnce) {
  Start({.held = std::chrono::hours(1)}, /*keeps_numbers=*/false);
  const auto stranger = Connect();
  SendEndlessHeader(*stranger);
  EXPECT_TRUE(stranger->AwaitEnd());
  EXPECT_TRUE(Closed("unaccounted"));
}

// Bytes that come again and again, and are accounted for, are never held.
TEST_F(ConnectionGateTest, BytesOfCallsDoNotEndTheConnection) {
  Start({.held = milliseconds(50)});
  const auto connection = Connect();
  const ConnectionGate::ConnectionPtr at = Of(*connection);
  // Whole headers, of calls that nobody serves. They are accounted for once they have come, as calls are.
  const std::string header =
      Http2Connection::CallHeader("/none/None") + Http2Connection::Field("a", std::string(1000, 'b'));
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(connection->Send(Http2Connection::Frame(Http2Connection::kHeaders, 5, 2 * i + 1, header))) << i;
    if (i % 16 != 15) continue;
    connection->AwaitArrival();
    ConnectionGate::Account(at, 16 * (static_cast<int64_t>(header.size()) + 512));
  }
  EXPECT_FALSE(Closed("unaccounted"));
}

}  // namespace
}  // namespace intrawarp::server
