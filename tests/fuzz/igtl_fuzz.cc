// SPDX-License-Identifier: Apache-2.0
// A stream of OpenIGTLink messages: what is read is written and read again as the same. The first byte of an input says
// in pieces of how many bytes the rest comes; checksums are not compared, so that damage reaches the contents.
#include <algorithm>
#include <cmath>

#include "client/igtl/codec/image.h"
#include "client/igtl/codec/message_decoder.h"
#include "client/igtl/codec/points.h"
#include "client/igtl/codec/text.h"
#include "client/igtl/codec/tracking.h"
#include "tests/fuzz/fuzz_input.h"

namespace intrawarp::igtl {
namespace {

using fuzz::Require;
using fuzz::RequireRefusal;

// Every parser gets every content: a message's type is the sender's word.
void ParseAll(absl::string_view content) {
  const auto image = ParseImage(content);
  RequireRefusal(image.status());
  if (image.ok()) {
    Require(PackImageHeader(image->header).size() + image->voxels.size() == content.size(), "an image's bytes");
    const auto geometry = GeometryOfImage(image->header);
    RequireRefusal(geometry.status());
    if (geometry.ok()) Require(ValidateGeometry(*geometry).ok(), "a valid grid");
  }
  RequireRefusal(ParseTransform(content).status());
  const auto position = ParsePosition(content);
  RequireRefusal(position.status());
  if (position.ok()) Require(std::isfinite(Determinant(*position)), "a finite pose");
  const auto tools = ParseTrackingData(content);
  RequireRefusal(tools.status());
  if (tools.ok()) Require(PackTrackingData(*tools).size() == content.size(), "tools again");
  const auto points = ParsePoints(content);
  RequireRefusal(points.status());
  if (points.ok()) Require(PackPoints(*points).size() == content.size(), "points again");
  const auto mesh = ParseMesh(content);
  RequireRefusal(mesh.status());
  if (mesh.ok()) Require(PackMesh(*mesh) == content, "a mesh again");
  RequireRefusal(ParseString(content).status());
  RequireRefusal(ParseCommand(content).status());
  RequireRefusal(ParseStatus(content).status());
}

void Take(const absl::StatusOr<Message>& message) {
  RequireRefusal(message.status());
  if (!message.ok()) return;
  ParseAll(message->content());
  const auto part =
      FindVoxels(message->header, absl::string_view(message->body).substr(0, MessageDecoder::kFirstBytes));
  RequireRefusal(part.status());
  Require(!part.ok() || part->begin + part->bytes == message->content_begin + message->content_bytes,
          "the voxels' end");
  const Envelope envelope = {message->header.version,   message->header.type, message->header.device,
                             message->header.timestamp, message->message_id,  message->metadata};
  MessageDecoder again(DecoderLimits{});
  bool is_there = false;
  const absl::Status status =
      again.Feed(PackMessage(envelope, {message->content()}), [&](const absl::StatusOr<Message>& m) {
        Require(m.ok() && m->content() == message->content() && m->metadata == message->metadata, "the same again");
        is_there = true;
      });
  Require(status.ok() && is_there, "a message again");
}

}  // namespace
}  // namespace intrawarp::igtl

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t piece = 1 + data[0];
  absl::string_view stream(reinterpret_cast<const char*>(data) + 1, size - 1);
  intrawarp::igtl::MessageDecoder decoder({.max_body_bytes = uint64_t{1} << 40, .check_crc = false});
  while (!stream.empty()) {
    const absl::Status status = decoder.Feed(stream.substr(0, piece), intrawarp::igtl::Take);
    intrawarp::fuzz::RequireRefusal(status);
    if (!status.ok()) break;
    stream.remove_prefix(std::min(piece, stream.size()));
  }
  return 0;
}
