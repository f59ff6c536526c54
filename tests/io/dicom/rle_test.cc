// SPDX-License-Identifier: Apache-2.0
// RLE frames: what an encoder of this file packs is unpacked, and no header makes the decoder read beyond its bytes.
#include "io/dicom/rle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace intrawarp::io::dicom {
namespace {

constexpr size_t kHeader = 64;

void PutNumber(uint32_t value, size_t i, std::vector<uint8_t>& stream) {
  for (size_t b = 0; b < 4; ++b) stream[4 * i + b] = static_cast<uint8_t>(value >> (8 * b));
}

// Runs and literals as they come, with control bytes that mean nothing between them.
void Pack(const std::vector<uint8_t>& bytes, std::mt19937& random, std::vector<uint8_t>& out) {
  for (size_t at = 0; at < bytes.size();) {
    size_t run = 1;
    while (at + run < bytes.size() && run < 128 && bytes[at + run] == bytes[at]) ++run;
    if (random() % 16 == 0) out.push_back(0x80);
    if (run > 1) {
      out.push_back(static_cast<uint8_t>(257 - run));
      out.push_back(bytes[at]);
      at += run;
      continue;
    }
    const size_t count = std::min<size_t>(bytes.size() - at, 1 + random() % 128);
    out.push_back(static_cast<uint8_t>(count - 1));
    out.insert(out.end(), bytes.begin() + static_cast<ptrdiff_t>(at),
               bytes.begin() + static_cast<ptrdiff_t>(at + count));
    at += count;
  }
}

// The frame of these cells, each of `step` bytes, least significant first.
std::vector<uint8_t> Encode(const std::vector<uint8_t>& cells, size_t step, std::mt19937& random) {
  std::vector<uint8_t> stream(kHeader, 0);
  PutNumber(static_cast<uint32_t>(step), 0, stream);
  for (size_t s = 0; s < step; ++s) {
    PutNumber(static_cast<uint32_t>(stream.size()), 1 + s, stream);
    std::vector<uint8_t> segment;
    for (size_t i = step - 1 - s; i < cells.size(); i += step) segment.push_back(cells[i]);
    Pack(segment, random, stream);
    if (stream.size() % 2 != 0) stream.push_back(0);
  }
  return stream;
}

std::vector<uint8_t> SomeCells(size_t bytes, std::mt19937& random) {
  std::vector<uint8_t> cells(bytes);
  uint8_t value = 0;
  for (uint8_t& byte : cells) byte = value = random() % 3 == 0 ? static_cast<uint8_t>(random()) : value;
  return cells;
}

TEST(RleTest, WhatIsPackedIsUnpacked) {
  std::mt19937 random(std::random_device{}());
  for (const size_t step : {1, 2, 4}) {
    for (const size_t count : {0, 1, 2, 127, 128, 129, 1000}) {
      const std::vector<uint8_t> cells = SomeCells(step * count, random);
      const std::vector<uint8_t> stream = Encode(cells, step, random);
      std::vector<uint8_t> out(cells.size(), 0x55);
      ASSERT_TRUE(DecodeRle(stream, static_cast<int>(step), absl::MakeSpan(out)).ok()) << step << " x " << count;
      EXPECT_EQ(out, cells);
    }
  }
}

TEST(RleTest, OffsetsOutsideOfTheFrameAreDataLoss) {
  std::mt19937 random(std::random_device{}());
  const std::vector<uint8_t> stream = Encode(SomeCells(200, random), 2, random);
  const auto size = static_cast<uint32_t>(stream.size());
  std::vector<uint8_t> out(200);
  for (const size_t segment : {1, 2}) {
    for (const uint32_t offset : {0U, 63U, size + 1, 0x7fffffffU, 0x80000000U, 0xffffffffU}) {
      std::vector<uint8_t> hostile = stream;
      PutNumber(offset, segment, hostile);
      EXPECT_EQ(DecodeRle(hostile, 2, absl::MakeSpan(out)).code(), absl::StatusCode::kDataLoss) << offset;
    }
  }
  // The second segment begins before the first.
  std::vector<uint8_t> descending = stream;
  PutNumber(size, 1, descending);
  EXPECT_EQ(DecodeRle(descending, 2, absl::MakeSpan(out)).code(), absl::StatusCode::kDataLoss);
}

TEST(RleTest, TheSegmentsAreTheBytesOfACell) {
  std::mt19937 random(std::random_device{}());
  std::vector<uint8_t> stream = Encode(SomeCells(200, random), 2, random);
  std::vector<uint8_t> out(200);
  for (const uint32_t count : {0U, 1U, 3U, 16U, 0xffffffffU}) {
    PutNumber(count, 0, stream);
    EXPECT_EQ(DecodeRle(stream, 2, absl::MakeSpan(out)).code(), absl::StatusCode::kDataLoss) << count;
  }
}

TEST(RleTest, EveryCutFrameIsDataLoss) {
  std::mt19937 random(std::random_device{}());
  const std::vector<uint8_t> stream = Encode(SomeCells(301, random), 1, random);
  std::vector<uint8_t> out(301);
  // A byte may have been added for an even length.
  for (size_t size = 0; size + 1 < stream.size(); ++size) {
    const std::vector<uint8_t> cut(stream.begin(), stream.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_EQ(DecodeRle(cut, 1, absl::MakeSpan(out)).code(), absl::StatusCode::kDataLoss) << size;
  }
}

TEST(RleTest, RandomBytesStayInTheirBounds) {
  std::mt19937 random(std::random_device{}());
  for (int run = 0; run < 20000; ++run) {
    std::vector<uint8_t> stream = Encode(SomeCells(64, random), 2, random);
    for (uint32_t k = 0; k <= random() % 4; ++k) stream[random() % stream.size()] = static_cast<uint8_t>(random());
    std::vector<uint8_t> out(64);
    const absl::Status status = DecodeRle(stream, 2, absl::MakeSpan(out));
    EXPECT_TRUE(status.ok() || absl::IsDataLoss(status));
  }
}

}  // namespace
}  // namespace intrawarp::io::dicom
