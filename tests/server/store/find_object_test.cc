// SPDX-License-Identifier: Apache-2.0
#include "server/store/find_object.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace intrawarp::server {
namespace {

const Identity kAnn{"ann", Role::kFrame}, kBob{"bob", Role::kFrame};

template <typename Stored>
std::shared_ptr<Stored> Make();
template <>
std::shared_ptr<StoredVolume> Make() {
  return std::make_shared<StoredVolume>();
}
template <>
std::shared_ptr<StoredMatrix> Make() {
  return std::make_shared<StoredMatrix>();
}
template <>
std::shared_ptr<StoredTransform> Make() {
  return std::make_shared<StoredTransform>(
      StoredTransform{"", {}, std::nullopt, nullptr, Transform(AffineMap::Identity())});
}

// `find`: of the three functions the one for this kind of object; `others`: names of the other kinds.
template <typename Stored, typename Find>
void ExpectFindsByName(const Find& find, const std::vector<std::string>& others) {
  ResidentStore<Stored> store;
  const std::shared_ptr<Stored> object = Make<Stored>();
  object->id = "x";
  object->owner = "ann";
  ASSERT_TRUE(store.Insert(object).ok());
  const std::string name = Stored::Name("x");
  EXPECT_EQ(*find(store, name, "field", kAnn), object);
  EXPECT_EQ(find(store, name, "field", kBob).status(), NotFound(name)) << "it is another's";
  EXPECT_EQ(find(store, Stored::Name("y"), "field", kAnn).status(), NotFound(Stored::Name("y")));
  std::vector<std::string> wrong = {"", "x", name + "/", name + "/x", Stored::Name(""), Stored::Name("../x")};
  wrong.insert(wrong.end(), others.begin(), others.end());
  for (const std::string& other : wrong) {
    const absl::Status status = find(store, other, "options.mask", kAnn).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << other;
    EXPECT_EQ(FieldOf(status), "options.mask") << other;
  }
}

TEST(FindObject, OfAVolume) { ExpectFindsByName<StoredVolume>(FindVolume, {"transforms/x", "sparseMatrices/x"}); }

TEST(FindObject, OfAMatrix) { ExpectFindsByName<StoredMatrix>(FindMatrix, {"volumes/x", "transforms/x"}); }

TEST(FindObject, OfATransform) { ExpectFindsByName<StoredTransform>(FindTransform, {"volumes/x", "sessions/x"}); }

}  // namespace
}  // namespace intrawarp::server
