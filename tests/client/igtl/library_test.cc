// SPDX-License-Identifier: Apache-2.0
// The codec against Debian's OpenIGTLink library 1.11 (protocol 2): each reads the bytes of the other.
#include <gtest/gtest.h>
#include <igtlImageMessage.h>
#include <igtlMessageHeader.h>
#include <igtlPointMessage.h>
#include <igtlPolyDataMessage.h>
#include <igtlPositionMessage.h>
#include <igtlStatusMessage.h>
#include <igtlStringMessage.h>
#include <igtlTrackingDataMessage.h>
#include <igtlTransformMessage.h>

#include <cstring>

#include "client/igtl/codec/image.h"
#include "client/igtl/codec/message_decoder.h"
#include "client/igtl/codec/points.h"
#include "client/igtl/codec/text.h"
#include "client/igtl/codec/tracking.h"

namespace intrawarp::igtl {
namespace {

std::string BytesOf(::igtl::MessageBase* message) {
  return std::string(static_cast<const char*>(message->GetPackPointer()), message->GetPackSize());
}

// The library's messages, as our decoder reads them.
Message Read(::igtl::MessageBase* message) {
  message->SetDeviceName("Device");
  message->Pack();
  Message read;
  MessageDecoder decoder(DecoderLimits{});
  const absl::Status status = decoder.Feed(BytesOf(message), [&](absl::StatusOr<Message> m) {
    EXPECT_TRUE(m.ok()) << m.status();
    if (m.ok()) read = *std::move(m);
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(read.header.device, "Device");
  return read;
}

// Our message, read by the library as `T`; the checksum is verified.
template <typename T>
typename T::Pointer Give(const char* type, absl::string_view content) {
  const std::string bytes = PackMessage({.header_version = 1, .type = type, .device = "Ours"}, {content});
  ::igtl::MessageHeader::Pointer header = ::igtl::MessageHeader::New();
  header->InitPack();
  std::memcpy(header->GetPackPointer(), bytes.data(), header->GetPackSize());
  EXPECT_TRUE((header->Unpack() & ::igtl::MessageHeader::UNPACK_HEADER) != 0);
  EXPECT_STREQ(header->GetDeviceType(), type);
  typename T::Pointer message = T::New();
  message->SetMessageHeader(header);
  message->AllocatePack();
  std::memcpy(message->GetPackBodyPointer(), bytes.data() + kHeaderBytes, message->GetPackBodySize());
  EXPECT_TRUE((message->Unpack(1) & ::igtl::MessageHeader::UNPACK_BODY) != 0) << "checksum or content";
  return message;
}

void SetPose(::igtl::Matrix4x4& matrix) {
  ::igtl::IdentityMatrix(matrix);
  matrix[0][0] = 0, matrix[0][1] = -1, matrix[1][0] = 1, matrix[1][1] = 0;
  matrix[0][3] = 1, matrix[1][3] = 2, matrix[2][3] = 3;
}

void ExpectPose(const AffineMap& pose) {
  EXPECT_EQ(pose.m[0][1], -1);
  EXPECT_EQ(pose.m[1][0], 1);
  EXPECT_EQ(pose.m[0][3], 1);
  EXPECT_EQ(pose.m[1][3], 2);
  EXPECT_EQ(pose.m[2][3], 3);
}

TEST(Library, TransformsBothWaysBitForBit) {
  ::igtl::Matrix4x4 matrix;
  SetPose(matrix);
  ::igtl::TransformMessage::Pointer theirs = ::igtl::TransformMessage::New();
  theirs->SetMatrix(matrix);
  const Message message = Read(theirs);
  EXPECT_EQ(message.header.type, "TRANSFORM");
  const auto pose = ParseTransform(message.content());
  ASSERT_TRUE(pose.ok()) << pose.status();
  ExpectPose(*pose);
  const Envelope envelope = {
      .header_version = 1, .type = "TRANSFORM", .device = "Device", .timestamp = message.header.timestamp};
  EXPECT_EQ(PackMessage(envelope, {PackTransform(*pose)}), BytesOf(theirs));

  auto ours = Give<::igtl::TransformMessage>("TRANSFORM", PackTransform(*pose));
  ::igtl::Matrix4x4 again;
  ours->GetMatrix(again);
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 4; ++column) EXPECT_EQ(again[row][column], matrix[row][column]);
  }
}

TEST(Library, ImagesBothWaysBitForBit) {
  ::igtl::ImageMessage::Pointer theirs = ::igtl::ImageMessage::New();
  theirs->SetDimensions(5, 4, 3);
  theirs->SetSpacing(0.5f, 1, 2);
  theirs->SetScalarType(::igtl::ImageMessage::TYPE_INT16);
  theirs->SetCoordinateSystem(::igtl::ImageMessage::COORDINATE_LPS);
  theirs->SetEndian(::igtl::ImageMessage::ENDIAN_LITTLE);
  theirs->SetSubVolume(5, 4, 3, 0, 0, 0);
  theirs->AllocateScalars();
  ::igtl::Matrix4x4 matrix;
  SetPose(matrix);
  theirs->SetMatrix(matrix);
  for (int i = 0; i < theirs->GetSubVolumeImageSize(); ++i) static_cast<char*>(theirs->GetScalarPointer())[i] = char(i);
  const Message message = Read(theirs);
  const auto image = ParseImage(message.content());
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(image->header.size, (Int3{5, 4, 3}));
  EXPECT_EQ(image->header.pixel_type, PixelType::kInt16);
  EXPECT_EQ(image->header.coordinates, Coordinates::kLps);
  EXPECT_TRUE(image->header.is_whole());
  EXPECT_EQ(image->voxels.size(), 120u);
  const auto geometry = GeometryOfImage(image->header);
  ASSERT_TRUE(geometry.ok()) << geometry.status();
  EXPECT_EQ(geometry->spacing, (Vec3d{0.5, 1, 2}));
  EXPECT_EQ(geometry->direction[1][0], 1);
  EXPECT_EQ(geometry->direction[0][1], -1);
  // The library's position is the centre: voxel (2, 1.5, 1).
  EXPECT_EQ(Center(*geometry), (Vec3d{1, 2, 3}));
  EXPECT_EQ(geometry->origin, (Vec3d{1 + 1.5, 2 - 1, 3 - 2}));

  ImageHeader header = HeaderOfGeometry(*geometry, Coordinates::kLps, PixelType::kInt16, 1);
  EXPECT_EQ(PackImageHeader(header), message.content().substr(0, 72));
  const std::string content = PackImageHeader(header) + std::string(image->voxels);
  auto ours = Give<::igtl::ImageMessage>("IMAGE", content);
  float spacing[3];
  ours->GetSpacing(spacing);
  EXPECT_EQ(spacing[0], 0.5f);
  EXPECT_EQ(spacing[2], 2);
  ::igtl::Matrix4x4 again;
  ours->GetMatrix(again);
  EXPECT_EQ(again[1][0], 1);
  EXPECT_EQ(again[0][3], 1);
  EXPECT_EQ(std::memcmp(ours->GetScalarPointer(), image->voxels.data(), 120), 0);
}

TEST(Library, PositionsAndToolsBothWays) {
  ::igtl::PositionMessage::Pointer position = ::igtl::PositionMessage::New();
  position->SetPackType(::igtl::PositionMessage::ALL);
  position->SetPosition(1, 2, 3);
  const float half = 0.70710678f;
  position->SetQuaternion(0, 0, half, half);
  const auto pose = ParsePosition(Read(position).content());
  ASSERT_TRUE(pose.ok()) << pose.status();
  EXPECT_NEAR(pose->m[0][1], -1, 1e-6);
  EXPECT_EQ(pose->m[2][3], 3);
  float x, y, z, w;
  auto ours = Give<::igtl::PositionMessage>("POSITION", PackPosition(*pose));
  ours->GetQuaternion(&x, &y, &z, &w);
  EXPECT_NEAR(z, half, 1e-6);
  EXPECT_NEAR(w, half, 1e-6);

  ::igtl::TrackingDataMessage::Pointer theirs = ::igtl::TrackingDataMessage::New();
  ::igtl::TrackingDataElement::Pointer tool = ::igtl::TrackingDataElement::New();
  ::igtl::Matrix4x4 matrix;
  SetPose(matrix);
  tool->SetName("Stylus");
  tool->SetType(::igtl::TrackingDataElement::TYPE_6D);
  tool->SetMatrix(matrix);
  theirs->AddTrackingDataElement(tool);
  const auto tools = ParseTrackingData(Read(theirs).content());
  ASSERT_TRUE(tools.ok()) << tools.status();
  ASSERT_EQ(tools->size(), 1u);
  EXPECT_EQ((*tools)[0].name, "Stylus");
  ExpectPose((*tools)[0].pose);
  auto again = Give<::igtl::TrackingDataMessage>("TDATA", PackTrackingData(*tools));
  ASSERT_EQ(again->GetNumberOfTrackingDataElements(), 1);
  ::igtl::TrackingDataElement::Pointer first;
  again->GetTrackingDataElement(0, first);
  EXPECT_STREQ(first->GetName(), "Stylus");
}

TEST(Library, PointsAndMeshesBothWays) {
  ::igtl::PointMessage::Pointer theirs = ::igtl::PointMessage::New();
  ::igtl::PointElement::Pointer point = ::igtl::PointElement::New();
  point->SetName("Target");
  point->SetGroupName("Group");
  point->SetPosition(1, 2, 3);
  point->SetRadius(4);
  theirs->AddPointElement(point);
  const auto points = ParsePoints(Read(theirs).content());
  ASSERT_TRUE(points.ok()) << points.status();
  EXPECT_EQ((*points)[0].name, "Target");
  EXPECT_EQ((*points)[0].position, (Vec3d{1, 2, 3}));
  auto ours = Give<::igtl::PointMessage>("POINT", PackPoints(*points));
  ASSERT_EQ(ours->GetNumberOfPointElement(), 1);

  ::igtl::PolyDataMessage::Pointer mesh = ::igtl::PolyDataMessage::New();
  ::igtl::PolyDataPointArray::Pointer corners = ::igtl::PolyDataPointArray::New();
  for (int i = 0; i < 3; ++i) corners->AddPoint(static_cast<float>(i), 5, 6);
  ::igtl::PolyDataCellArray::Pointer cells = ::igtl::PolyDataCellArray::New();
  cells->AddCell(std::list<igtlUint32>{0, 1, 2});
  mesh->SetPoints(corners);
  mesh->SetPolygons(cells);
  const Message message = Read(mesh);
  auto parsed = ParseMesh(message.content());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->points.size(), 3u);
  EXPECT_EQ(parsed->points[2], (Vec3d{2, 5, 6}));
  EXPECT_EQ(PackMesh(*parsed), message.content());
  parsed->points[2] = {7, 8, 9};
  auto again = Give<::igtl::PolyDataMessage>("POLYDATA", PackMesh(*parsed));
  igtlFloat32 corner[3];
  again->GetPoints()->GetPoint(2, corner);
  EXPECT_EQ(corner[0], 7);
}

TEST(Library, TextsBothWays) {
  ::igtl::StringMessage::Pointer string = ::igtl::StringMessage::New();
  string->SetString("words");
  EXPECT_EQ(*ParseString(Read(string).content()), "words");
  EXPECT_STREQ(Give<::igtl::StringMessage>("STRING", PackString("ours"))->GetString(), "ours");

  ::igtl::StatusMessage::Pointer status = ::igtl::StatusMessage::New();
  status->SetCode(::igtl::StatusMessage::STATUS_NOT_READY);
  status->SetSubCode(5);
  status->SetErrorName("NoField");
  status->SetStatusString("no field yet");
  const auto parsed = ParseStatus(Read(status).content());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->code, StatusCode::kNotReady);
  EXPECT_EQ(parsed->error_name, "NoField");
  EXPECT_EQ(parsed->message, "no field yet");
  auto ours = Give<::igtl::StatusMessage>("STATUS", PackStatus({StatusCode::kOk, 0, "", "verdict=ok"}));
  EXPECT_EQ(ours->GetCode(), ::igtl::StatusMessage::STATUS_OK);
  EXPECT_STREQ(ours->GetStatusString(), "verdict=ok");
}

}  // namespace
}  // namespace intrawarp::igtl
