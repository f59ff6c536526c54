// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/transport_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace intrawarp::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// As gRPC 1.51 words them.
TEST(TransportMessageTest, SaysWhatCanBeMended) {
  const std::string failed = "failed to connect to all addresses; last error: ";
  const struct {
    std::string raw, plain;
  } cases[] = {
      {failed + "UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused",
       "cannot connect: connection refused: no server listens there (127.0.0.1:1)"},
      {failed + "UNKNOWN: ipv6:%5B::1%5D:1: Failed to connect to remote host: Connection refused",
       "cannot connect: connection refused: no server listens there ([::1]:1)"},
      {failed + "UNKNOWN: ipv4:127.0.0.1:7: Ssl handshake failed: SSL_ERROR_SSL: error:0A00010B:SSL routines::wrong "
                "version number",
       "cannot connect: the server does not speak TLS, and tls_ca asks for it (127.0.0.1:7)"},
      {failed + "UNKNOWN: ipv4:127.0.0.1:7: Ssl handshake failed: SSL_ERROR_SSL: error:0A000086:SSL "
                "routines::certificate verify failed",
       "cannot connect: the server's certificate does not come from the authorities that tls_ca names (127.0.0.1:7)"},
      {failed + "UNKNOWN: ipv4:127.0.0.1:7: Peer name 127.0.0.1 is not in peer certificate",
       "cannot connect: the server's certificate names another host than the address that was given (127.0.0.1:7)"},
      {failed + "UNAVAILABLE: ipv4:127.0.0.1:7: Socket closed",
       "cannot connect: the server closes the connection at once; it may want TLS (tls_ca) (127.0.0.1:7)"},
      {failed + "INTERNAL: ipv4:127.0.0.1:7: Trying to connect an http1.x server",
       "cannot connect: what listens there is not a gRPC server (the address of --http, perhaps) (127.0.0.1:7)"},
      {failed + "UNKNOWN: unix:/tmp/none: No such file or directory",
       "cannot connect: there is no such socket (/tmp/none)"},
      {"DNS resolution failed for nohost.invalid:5: C-ares status is not ARES_SUCCESS qtype=AAAA name=nohost.invalid "
       "is_balancer=0: Domain name not found",
       "cannot connect: the host's name is not known"},
      {"Received http2 header with status: 404", "cannot connect: what listens there is not a gRPC server"},
      {"Socket closed", "the connection to the server broke"}};
  for (const auto& each : cases) EXPECT_EQ(PlainTransportMessage(each.raw), each.plain);
}

TEST(TransportMessageTest, OtherMessagesStay) {
  for (const char* message : {"the device does not come back", "", "volumes/a: no such volume"}) {
    EXPECT_EQ(PlainTransportMessage(message), message);
  }
  EXPECT_THAT(PlainTransportMessage("failed to connect to all addresses; last error: UNKNOWN: something new"),
              HasSubstr("something new"));
}

}  // namespace
}  // namespace intrawarp::client
