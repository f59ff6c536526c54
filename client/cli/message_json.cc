// SPDX-License-Identifier: Apache-2.0
#include "client/cli/message_json.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/timestamp.pb.h>

#include <cmath>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"

namespace intrawarp::cli {
namespace {

using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// "control_grid" of TRANSFORM_KIND_CONTROL_GRID: the first value, ..._UNSPECIFIED, names the prefix.
Json EnumJson(const EnumValueDescriptor& value) {
  const std::string prefix(absl::StripSuffix(value.type()->value(0)->name(), "UNSPECIFIED"));
  const std::string word = absl::AsciiStrToLower(absl::StripPrefix(value.name(), prefix));
  return word == "unspecified" ? Json(nullptr) : Json(word);
}

std::string TimeText(const google::protobuf::Timestamp& time) {
  const absl::Time at = absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
  return absl::FormatTime("%Y-%m-%d%ET%H:%M:%E3SZ", at, absl::UTCTimeZone());
}

double Seconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) + 1e-9 * duration.nanos();
}

Json NestedJson(const Message& message) {
  google::protobuf::Timestamp time;
  google::protobuf::Duration duration;
  if (message.GetDescriptor() == time.GetDescriptor()) {
    time.CopyFrom(message);
    return TimeText(time);
  }
  if (message.GetDescriptor() == duration.GetDescriptor()) {
    duration.CopyFrom(message);
    return Number(Seconds(duration));
  }
  return MessageToJson(message);
}

Json TextJson(const FieldDescriptor& field, const std::string& text) {
  return field.type() == FieldDescriptor::TYPE_BYTES ? absl::BytesToHexString(text) : text;
}

Json SingleJson(const Message& message, const FieldDescriptor& field) {
  const Reflection& r = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return r.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return r.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return r.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return r.GetUInt64(message, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(r.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Number(static_cast<double>(r.GetFloat(message, &field)));
    case FieldDescriptor::CPPTYPE_BOOL:
      return r.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumJson(*r.GetEnum(message, &field));
    case FieldDescriptor::CPPTYPE_STRING:
      return TextJson(field, r.GetString(message, &field));
    default:
      return NestedJson(r.GetMessage(message, &field));
  }
}

Json ElementJson(const Message& message, const FieldDescriptor& field, int i) {
  const Reflection& r = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return r.GetRepeatedInt32(message, &field, i);
    case FieldDescriptor::CPPTYPE_INT64:
      return r.GetRepeatedInt64(message, &field, i);
    case FieldDescriptor::CPPTYPE_UINT32:
      return r.GetRepeatedUInt32(message, &field, i);
    case FieldDescriptor::CPPTYPE_UINT64:
      return r.GetRepeatedUInt64(message, &field, i);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(r.GetRepeatedDouble(message, &field, i));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Number(static_cast<double>(r.GetRepeatedFloat(message, &field, i)));
    case FieldDescriptor::CPPTYPE_BOOL:
      return r.GetRepeatedBool(message, &field, i);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumJson(*r.GetRepeatedEnum(message, &field, i));
    case FieldDescriptor::CPPTYPE_STRING:
      return TextJson(field, r.GetRepeatedString(message, &field, i));
    default:
      return NestedJson(r.GetRepeatedMessage(message, &field, i));
  }
}

Json FieldJson(const Message& message, const FieldDescriptor& field) {
  const Reflection& r = *message.GetReflection();
  if (field.is_repeated()) {
    Json list = Json::array();
    for (int i = 0; i < r.FieldSize(message, &field); ++i) list.push_back(ElementJson(message, field, i));
    return list;
  }
  if (field.has_presence() && !r.HasField(message, &field)) return nullptr;
  return SingleJson(message, field);
}

}  // namespace

Json MessageToJson(const Message& message) {
  Json json = Json::object();
  const google::protobuf::Descriptor& descriptor = *message.GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    json[descriptor.field(i)->name()] = FieldJson(message, *descriptor.field(i));
  }
  return json;
}

Json TimeToJson(bool is_set, const Message& timestamp) { return is_set ? NestedJson(timestamp) : Json(nullptr); }

}  // namespace intrawarp::cli
