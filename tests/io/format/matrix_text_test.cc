// SPDX-License-Identifier: Apache-2.0
#include "io/format/matrix_text.h"

#include "tests/io/io_test.h"

namespace intrawarp::io {
namespace {

using MatrixTextTest = FileTest;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST_F(MatrixTextTest, WrittenMatrixReadsBackExactly) {
  AffineMap map;
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 4; ++c) map.m[r][c] = (r == c) + 0.1 * r - c / 7.0;
  ASSERT_THAT(WriteMatrix(Path("m.txt"), map), Succeeds());
  const auto read = ReadMatrix(Path("m.txt"));
  ASSERT_THAT(read, Succeeds());
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 4; ++c) EXPECT_EQ(read->m[r][c], map.m[r][c]);
}

TEST_F(MatrixTextTest, SeparatorsAndComments) {
  const auto map = ParseMatrix("# fixed to moving\r\n\r\n1 0\t0, 5\r\n0,-1,0,6\n  0 0 1 7\n0 0 0 1\n\n");
  ASSERT_THAT(map, Succeeds());
  EXPECT_EQ((*map)({1, 2, 3}), (Vec3d{6, 4, 10}));
}

TEST_F(MatrixTextTest, Refuses) {
  EXPECT_THAT(ParseMatrix(""), Fails(kInvalid, "matrix: has 0 rows"));
  EXPECT_THAT(ParseMatrix("1 0 0 0\n0 1 0 0\n0 0 1 0\n"), Fails(kInvalid, "matrix: has 3 rows"));
  EXPECT_THAT(ParseMatrix("1 0 0\n"), Fails(kInvalid, "line 1: has 3 numbers"));
  EXPECT_THAT(ParseMatrix("1 0 0 0 0\n"), Fails(kInvalid, "line 1: has 5 numbers"));
  EXPECT_THAT(ParseMatrix("1 0 0 0\n0 1 zero 0\n"), Fails(kInvalid, "line 2: number 3 is not a number"));
  EXPECT_THAT(ParseMatrix("1 0 0 inf\n"), Fails(kInvalid, "line 1: number 4 is not finite"));
  EXPECT_THAT(ParseMatrix("1 0 0 0\n0 1 0 0\n0 0 1 0\n0 0 1 1\n"), Fails(kInvalid, "the last row"));
  EXPECT_THAT(ParseMatrix("1 0 0 0\n0 1 0 0\n0 0 1 0\n0 0 0 1\n0 0 0 1\n"), Fails(kInvalid, "line 5: more than 4"));
  EXPECT_THAT(ParseMatrix("1 2 0 0\n2 4 0 0\n0 0 1 0\n0 0 0 1\n"), Fails(kInvalid, "singular"));
  EXPECT_THAT(ReadMatrix(Path("none.txt")), Fails(absl::StatusCode::kNotFound, "file: "));
  EXPECT_THAT(ReadMatrix(Put("long.txt", std::string(100000, ' '))),
              Fails(absl::StatusCode::kResourceExhausted, "file: "));
}

}  // namespace
}  // namespace intrawarp::io
