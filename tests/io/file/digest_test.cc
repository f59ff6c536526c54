// SPDX-License-Identifier: Apache-2.0
#include "io/file/digest.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/escaping.h"

namespace intrawarp::io {
namespace {

std::string Hex(const std::string& digest) { return absl::BytesToHexString(digest); }

// FIPS 180-2, appendix B, and the empty message.
TEST(Sha256Test, KnownAnswers) {
  EXPECT_EQ(Hex(Sha256Of("", 0)), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Hex(Sha256Of("abc", 3)), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 digest;
  const std::string block(1000, 'a');
  for (int i = 0; i < 1000; ++i) digest.Update(block.data(), block.size());
  EXPECT_EQ(Hex(digest.Finish()), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, PiecesDoNotMatterAndFinishStartsAfresh) {
  const std::string text = "The quick brown fox jumps over the lazy dog, twice around the block and once more.";
  const std::string whole = Sha256Of(text.data(), text.size());
  EXPECT_EQ(whole.size(), Sha256::kBytes);
  Sha256 digest;
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    digest.Update(text.data(), cut);
    digest.Update(nullptr, 0);
    digest.Update(text.data() + cut, text.size() - cut);
    EXPECT_EQ(digest.Finish(), whole) << cut;
  }
}

TEST(Sha256Test, MovingKeepsTheState) {
  Sha256 first;
  first.Update("ab", 2);
  Sha256 second = std::move(first);
  second.Update("c", 1);
  EXPECT_EQ(second.Finish(), Sha256Of("abc", 3));
}

}  // namespace
}  // namespace intrawarp::io
