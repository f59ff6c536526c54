// SPDX-License-Identifier: Apache-2.0
#include "server/object/object_spec.h"

#include <gtest/gtest.h>

#include <string>

#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

ObjectSpec Spec() {
  ObjectSpec spec;
  spec.id = "a";
  spec.owner = "ann";
  spec.total_bytes = 5000;
  spec.content_digest = std::string(32, 'd');
  spec.resident_bytes = 8192;
  spec.workspace_bytes = 1024;
  spec.transforms = 1;
  return spec;
}

TEST(ObjectSpecTest, EachFieldIsChecked) {
  EXPECT_TRUE(CheckObjectSpec(Spec(), 5000, 5000).ok());
  EXPECT_EQ(FieldOf(CheckObjectSpec(Spec(), 5001, 6000)), "total_bytes") << "not what the content makes";
  EXPECT_EQ(FieldOf(CheckObjectSpec(Spec(), 5000, 4999)), "total_bytes") << "more than is accepted";
  ObjectSpec spec = Spec();
  spec.id = "../a";
  EXPECT_EQ(FieldOf(CheckObjectSpec(spec, 5000, 5000)), "id");
  spec.id = "";
  EXPECT_TRUE(CheckObjectSpec(spec, 5000, 5000).ok()) << "the server chooses one";
  spec.content_digest.pop_back();
  EXPECT_EQ(FieldOf(CheckObjectSpec(spec, 5000, 5000)), "sha256");
}

TEST(ObjectSpecTest, AClaimIsForTheObjectItsBytesAndItsJob) {
  Claim claim = ObjectClaim(Spec(), 3);
  EXPECT_EQ(claim.device, 3);
  EXPECT_EQ(claim.owner, "ann");
  EXPECT_EQ(claim.resident_bytes, 8192);
  EXPECT_EQ(claim.workspace_bytes, 1024);
  EXPECT_EQ(claim.uploading_bytes, 8192) << "the larger of the bytes and the object";
  EXPECT_EQ(claim.transforms, 1);
  EXPECT_EQ(claim.uploads, 0);
  EXPECT_TRUE(claim.is_short);
  ObjectSpec spec = Spec();
  spec.total_bytes = 10000;
  EXPECT_EQ(ObjectClaim(spec, 0).uploading_bytes, 10000);
}

TEST(ObjectSpecTest, AnObjectKeepsItsMemoryAndItsPlaceAlone) {
  Ledger ledger(
      {.capacity = {.resident_bytes = 10000, .workspace_bytes = 10000, .uploading_bytes = 10000, .transforms = 2}});
  Grant reservation;
  {
    absl::StatusOr<Grant> grant = ledger.Admit(ObjectClaim(Spec(), 0));
    ASSERT_TRUE(grant.ok()) << grant.status();
    EXPECT_EQ(ledger.in_use(Resource::kUploading), 8192);
    reservation = TakeReservation(*grant, Spec());
  }
  EXPECT_EQ(ledger.in_use(Resource::kResident), 8192);
  EXPECT_EQ(ledger.in_use(Resource::kTransforms), 1);
  EXPECT_EQ(ledger.in_use(Resource::kWorkspace), 0);
  EXPECT_EQ(ledger.in_use(Resource::kUploading), 0);
  EXPECT_EQ(reservation.resident_bytes(), 8192);
}

}  // namespace
}  // namespace intrawarp::server
