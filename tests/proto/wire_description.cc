// SPDX-License-Identifier: Apache-2.0
#include "tests/proto/wire_description.h"

#include <google/protobuf/descriptor.pb.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

namespace intrawarp {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

using Lines = std::vector<std::string>;

std::string TypeOf(const FieldDescriptor& field) {
  if (field.message_type() != nullptr) return field.message_type()->full_name();
  if (field.enum_type() != nullptr) return field.enum_type()->full_name();
  return field.type_name();
}

std::string CardinalityOf(const FieldDescriptor& field) {
  if (field.is_repeated()) return "repeated ";
  if (field.real_containing_oneof() != nullptr) return "oneof " + field.real_containing_oneof()->name() + " ";
  return field.has_optional_keyword() ? "optional " : "";
}

void Add(const EnumDescriptor& type, Lines& to) {
  to.push_back("enum " + type.full_name());
  for (int i = 0; i < type.value_count(); ++i) {
    to.push_back("value " + type.full_name() + " " + std::to_string(type.value(i)->number()) + " " +
                 type.value(i)->name());
  }
}

void Add(const Descriptor& message, Lines& to) {
  to.push_back("message " + message.full_name());
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    to.push_back("field " + message.full_name() + " " + std::to_string(field.number()) + " " + CardinalityOf(field) +
                 TypeOf(field) + " " + field.name());
  }
  for (int i = 0; i < message.enum_type_count(); ++i) Add(*message.enum_type(i), to);
  for (int i = 0; i < message.nested_type_count(); ++i) Add(*message.nested_type(i), to);
}

void Add(const ServiceDescriptor& service, Lines& to) {
  to.push_back("service " + service.full_name());
  for (int i = 0; i < service.method_count(); ++i) {
    const MethodDescriptor& method = *service.method(i);
    to.push_back("rpc " + method.full_name() + " " + (method.client_streaming() ? "stream " : "") +
                 method.input_type()->full_name() + " -> " + (method.server_streaming() ? "stream " : "") +
                 method.output_type()->full_name());
  }
}

}  // namespace

Lines Describe(const FileDescriptor& file) {
  Lines lines;
  for (int i = 0; i < file.service_count(); ++i) Add(*file.service(i), lines);
  for (int i = 0; i < file.enum_type_count(); ++i) Add(*file.enum_type(i), lines);
  for (int i = 0; i < file.message_type_count(); ++i) Add(*file.message_type(i), lines);
  return lines;
}

Lines DescribeContract(const std::string& descriptor_set_path) {
  google::protobuf::FileDescriptorSet set;
  std::ifstream stream(descriptor_set_path, std::ios::binary);
  if (!set.ParseFromIstream(&stream)) {
    std::fprintf(stderr, "%s: is no FileDescriptorSet\n", descriptor_set_path.c_str());
    std::exit(EXIT_FAILURE);
  }
  google::protobuf::DescriptorPool pool;
  std::map<std::string, const FileDescriptor*> files;
  for (const google::protobuf::FileDescriptorProto& file : set.file()) {
    const FileDescriptor* built = pool.BuildFile(file);
    if (file.package() == "intrawarp.v1") files[file.name()] = built;
  }
  Lines lines;
  for (const auto& [name, file] : files) {
    const Lines more = Describe(*file);
    lines.insert(lines.end(), more.begin(), more.end());
  }
  return lines;
}

ContractDifference Compare(const Lines& kept, const Lines& current) {
  const std::set<std::string> before(kept.begin(), kept.end()), now(current.begin(), current.end());
  ContractDifference difference;
  std::set_difference(before.begin(), before.end(), now.begin(), now.end(), std::back_inserter(difference.broken));
  std::set_difference(now.begin(), now.end(), before.begin(), before.end(), std::back_inserter(difference.added));
  return difference;
}

}  // namespace intrawarp
