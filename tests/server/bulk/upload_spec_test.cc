// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/upload_spec.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>

#include "server/context/limits.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

v1::UploadHeader Header() {
  v1::UploadHeader header;
  header.set_id("ct-1");
  header.set_upload_id("an upload");
  header.set_total_bytes(100);
  header.set_sha256(std::string(32, 'd'));
  return header;
}

// The field that is refused in a header with this change; empty: none.
std::string Refused(const std::function<void(v1::UploadHeader&)>& change) {
  v1::UploadHeader header = Header();
  change(header);
  const absl::Status status = ParseUploadSpec(header, 100, 100).status();
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  return FieldOf(status);
}

TEST(ParseUploadSpec, TakesWhatTheHeaderAnnounces) {
  v1::UploadHeader header = Header();
  header.mutable_ttl()->set_seconds(60);
  header.mutable_ttl()->set_nanos(5);
  const auto spec = ParseUploadSpec(header, 100, 100);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->id, "ct-1");
  EXPECT_EQ(spec->upload_id, "an upload");
  EXPECT_EQ(spec->total_bytes, 100);
  EXPECT_EQ(spec->content_digest, std::string(32, 'd'));
  EXPECT_EQ(spec->ttl, std::chrono::seconds(60) + std::chrono::nanoseconds(5));
  // The rest is the kind's.
  EXPECT_EQ(spec->identity_digest, "");
  EXPECT_EQ(spec->owner, "");
  EXPECT_EQ(spec->resident_bytes, 0);
  EXPECT_FALSE(ParseUploadSpec(Header(), 100, 100)->ttl);
}

TEST(ParseUploadSpec, AnErrorNamesTheField) {
  EXPECT_EQ(Refused([](v1::UploadHeader&) {}), "");
  EXPECT_EQ(Refused([](v1::UploadHeader& header) { header.clear_id(); }), "") << "the server chooses one";
  EXPECT_EQ(Refused([](v1::UploadHeader& header) { header.set_id("../ct"); }), "id");
  EXPECT_EQ(Refused([](v1::UploadHeader& header) { header.set_id(std::string(64, 'a')); }), "id");
  EXPECT_EQ(Refused([](v1::UploadHeader& header) { header.clear_upload_id(); }), "upload_id");
  EXPECT_EQ(Refused([](v1::UploadHeader& header) { header.set_total_bytes(99); }), "total_bytes");
  EXPECT_EQ(Refused([](v1::UploadHeader& header) { header.set_total_bytes(-100); }), "total_bytes");
  EXPECT_EQ(Refused([](v1::UploadHeader& header) { header.set_sha256(std::string(31, 'd')); }), "sha256");
  EXPECT_EQ(Refused([](v1::UploadHeader& header) { header.clear_sha256(); }), "sha256");
  EXPECT_EQ(FieldOf(ParseUploadSpec(Header(), 100, 99).status()), "total_bytes");
}

TEST(ParseUploadSpec, ALifeIsAboveNothingAndAsLongAsTheServerAllows) {
  const auto refused = [](int64_t seconds, int nanos) {
    return Refused([=](v1::UploadHeader& header) {
      header.mutable_ttl()->set_seconds(seconds);
      header.mutable_ttl()->set_nanos(nanos);
    });
  };
  const int64_t longest = std::chrono::seconds(kMaxTtl).count();
  EXPECT_EQ(refused(longest, 0), "");
  EXPECT_EQ(refused(0, 1), "");
  EXPECT_EQ(refused(longest, 1), "ttl");
  EXPECT_EQ(refused(0, 0), "ttl");
  EXPECT_EQ(refused(-1, 0), "ttl");
}

TEST(ValidateUploadId, CountsCharactersAndNotBytes) {
  const auto refused = [](const std::string& id) { return FieldOf(ValidateUploadId(id, "upload_id")); };
  EXPECT_EQ(refused(""), "upload_id");
  EXPECT_EQ(refused("a"), "");
  EXPECT_EQ(refused(std::string(64, 'a')), "");
  EXPECT_EQ(refused(std::string(65, 'a')), "upload_id");
  // Characters of two, three and four bytes.
  for (const char* const character : {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
    std::string id;
    for (int i = 0; i < 64; ++i) id += character;
    EXPECT_EQ(refused(id), "") << character;
    EXPECT_EQ(refused(id + character), "upload_id") << character;
  }
  EXPECT_EQ(FieldOf(ValidateUploadId("", "another.field")), "another.field");
}

}  // namespace
}  // namespace intrawarp::server
