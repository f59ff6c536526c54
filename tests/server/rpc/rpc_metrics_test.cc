// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/rpc_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace intrawarp::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kMethod[] = "intrawarp.v1.VolumeService/GetVolume";
constexpr char kLabels[] = "grpc_method=\"GetVolume\",grpc_service=\"intrawarp.v1.VolumeService\",grpc_type=\"unary\"";

class RpcMetricsTest : public testing::Test {
 protected:
  Registry registry_;
  const RpcMetrics metrics_{registry_, {{"intrawarp.v1.VolumeService", "GetVolume", "unary"}}};
};

TEST_F(RpcMetricsTest, SeriesExistBeforeAnythingHappens) {
  const std::string text = registry_.Scrape();
  EXPECT_THAT(text,
              HasSubstr(absl::StrCat("grpc_server_handled_total{grpc_code=\"Unauthenticated\",", kLabels, "} 0\n")));
  EXPECT_THAT(text, HasSubstr("intrawarp_callers_refused_total{reason=\"role_missing\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_access_reloads_total{file=\"tokens\",outcome=\"failed\"} 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("tls_certificate")));
}

TEST_F(RpcMetricsTest, CountsRpcsPerMethodAndUnknownOnesTogether) {
  metrics_.Started(kMethod);
  metrics_.Started(kMethod);
  metrics_.Handled(kMethod, 5, std::chrono::milliseconds(20));
  metrics_.MessageReceived(kMethod);
  metrics_.BytesReceived(kMethod, 7);
  metrics_.Sent(kMethod, 9);
  metrics_.Started("somebody/Else");
  metrics_.Handled("somebody/Else", 99, std::chrono::milliseconds(1));
  const std::string text = registry_.Scrape();
  const std::string label = absl::StrCat("{", kLabels, "}");
  EXPECT_THAT(text, HasSubstr("\ngrpc_server_started_total" + label + " 2\n"));
  EXPECT_THAT(text, HasSubstr("\ngrpc_server_in_flight" + label + " 1\n"));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("handled_total{grpc_code=\"NotFound\",", kLabels, "} 1\n")));
  EXPECT_THAT(text, HasSubstr("\ngrpc_server_handling_seconds_sum" + label + " 0.02\n"));
  EXPECT_THAT(text, HasSubstr("\ngrpc_server_msg_received_total" + label + " 1\n"));
  EXPECT_THAT(text, HasSubstr("\ngrpc_server_msg_sent_total" + label + " 1\n"));
  EXPECT_THAT(text, HasSubstr("\ngrpc_server_msg_received_bytes_total" + label + " 7\n"));
  EXPECT_THAT(text, HasSubstr("\ngrpc_server_msg_sent_bytes_total" + label + " 9\n"));
  EXPECT_THAT(text, HasSubstr("\ngrpc_server_started_total{grpc_method=\"other\",grpc_service=\"other\","));
  EXPECT_THAT(text, HasSubstr("handled_total{grpc_code=\"Unknown\",grpc_method=\"other\",grpc_service=\"other\","
                              "grpc_type=\"unary\"} 1\n"));
  EXPECT_EQ(text.find("somebody"), std::string::npos);
}

TEST_F(RpcMetricsTest, CountsCallersFilesAndConnections) {
  metrics_.CountRefusedCaller(v1::NOT_AUTHENTICATED);
  metrics_.CountRefusedCaller(v1::QUEUE_FULL);  // not a refusal of a caller
  metrics_.CountReload(AccessFile::kTls, true);
  metrics_.CountReload(AccessFile::kIdentities, false);
  metrics_.CountClosed(ConnectionEnd::kUnaccounted);
  metrics_.SetCertificateEnd(std::chrono::system_clock::time_point(std::chrono::seconds(5000)));
  const std::string text = registry_.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_callers_refused_total{reason=\"not_authenticated\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_callers_refused_total{reason=\"role_missing\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_access_reloads_total{file=\"tls\",outcome=\"ok\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_access_reloads_total{file=\"identities\",outcome=\"failed\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_connections_closed_total{reason=\"unaccounted\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nintrawarp_tls_certificate_not_after_timestamp_seconds 5000\n"));
}

}  // namespace
}  // namespace intrawarp::server
