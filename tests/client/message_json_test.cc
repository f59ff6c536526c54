// SPDX-License-Identifier: Apache-2.0
#include "client/cli/message_json.h"

#include <gtest/gtest.h>

#include <limits>

#include "google/protobuf/text_format.h"
#include "intrawarp/v1/server.pb.h"
#include "intrawarp/v1/transform.pb.h"
#include "intrawarp/v1/volume.pb.h"

namespace intrawarp::cli {
namespace {

template <typename Message>
Message Parse(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message));
  return message;
}

TEST(MessageJsonTest, EveryKindOfFieldHasItsForm) {
  const Json json = MessageToJson(Parse<v1::Transform>(
      R"pb(name: "transforms/a"
           kind: TRANSFORM_KIND_CONTROL_GRID
           domain { size: 2 size: 3 size: 4 spacing: 0.5 }
           resident_bytes: 5000000000
           create_time { seconds: 1764120600 nanos: 250000000 })pb"));
  EXPECT_EQ(json["name"], "transforms/a");
  EXPECT_EQ(json["kind"], "control_grid");
  EXPECT_EQ(json["domain"]["size"].dump(), "[2,3,4]");
  EXPECT_EQ(json["resident_bytes"], 5000000000);
  EXPECT_EQ(json["create_time"], "2025-11-26T01:30:00.250Z");
  EXPECT_TRUE(json["expire_time"].is_null());
  EXPECT_TRUE(json["report"].is_null());
}

TEST(MessageJsonTest, BytesAreDigitsAndUnknownNumbersNull) {
  v1::Volume volume = Parse<v1::Volume>(R"pb(digest: "\001\377" pixel_type: PIXEL_TYPE_INT16)pb");
  volume.set_minimum(std::numeric_limits<float>::quiet_NaN());
  const Json json = MessageToJson(volume);
  EXPECT_EQ(json["digest"], "01ff");
  EXPECT_EQ(json["pixel_type"], "int16");
  EXPECT_TRUE(json["minimum"].is_null());
  EXPECT_EQ(json["pinned"], false);
  EXPECT_TRUE(json["residency"].is_null()) << "an unspecified value";
}

TEST(MessageJsonTest, DurationsAreSecondsAndListsLists) {
  const Json json = MessageToJson(Parse<v1::ServerInfo>(R"pb(limits { upload_ttl { seconds: 300 nanos: 500000000 } }
                                                             methods: "rigid"
                                                             metrics: METRIC_NGF)pb"));
  EXPECT_EQ(json["limits"]["upload_ttl"], 300.5);
  EXPECT_EQ(json["methods"].dump(), "[\"rigid\"]");
  EXPECT_EQ(json["metrics"].dump(), "[\"ngf\"]");
  EXPECT_EQ(ListToJson(std::vector<v1::Volume>()).dump(), "[]");
}

}  // namespace
}  // namespace intrawarp::cli
