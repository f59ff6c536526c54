// SPDX-License-Identifier: Apache-2.0
// The protos of this tree against the kept contract, and the comparison itself.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/proto/wire_description.h"

namespace intrawarp {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Field = google::protobuf::FieldDescriptorProto;
using File = google::protobuf::FileDescriptorProto;

TEST(WireCompatibilityTest, TheProtosKeepTheContract) {
  std::ifstream file(INTRAWARP_KEPT_CONTRACT);
  std::vector<std::string> kept;
  for (std::string line; std::getline(file, line);) kept.push_back(line);
  ASSERT_FALSE(kept.empty());
  const ContractDifference difference = Compare(kept, DescribeContract(INTRAWARP_DESCRIPTOR_SET));
  EXPECT_THAT(difference.broken, IsEmpty()) << "these break clients and servers of the kept contract";
  EXPECT_THAT(difference.added, IsEmpty()) << "add these to proto/v1.desc.txt, as proto/README.md says";
}

File Base() {
  File file;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"pb(
        name: "t.proto"
        package: "t"
        syntax: "proto3"
        service {
          name: "S"
          method { name: "Get" input_type: ".t.Request" output_type: ".t.Answer" server_streaming: true }
        }
        enum_type {
          name: "Kind"
          value { name: "KIND_UNSPECIFIED" number: 0 }
          value { name: "KIND_A" number: 1 }
        }
        message_type {
          name: "Request"
          field { name: "name" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
          field { name: "count" number: 2 label: LABEL_OPTIONAL type: TYPE_INT32 oneof_index: 0 proto3_optional: true }
          field { name: "values" number: 3 label: LABEL_REPEATED type: TYPE_DOUBLE }
          field { name: "kind" number: 4 label: LABEL_OPTIONAL type: TYPE_ENUM type_name: ".t.Kind" }
          oneof_decl { name: "_count" }
        }
        message_type {
          name: "Answer"
          field {
            name: "header"
            number: 1
            label: LABEL_OPTIONAL
            type: TYPE_MESSAGE
            type_name: ".t.Request"
            oneof_index: 0
          }
          field { name: "data" number: 2 label: LABEL_OPTIONAL type: TYPE_BYTES oneof_index: 0 }
          field { name: "more" number: 3 label: LABEL_OPTIONAL type: TYPE_BYTES }
          oneof_decl { name: "payload" }
        })pb",
      &file));
  return file;
}

std::vector<std::string> Lines(const File& file) {
  google::protobuf::DescriptorPool pool;
  const google::protobuf::FileDescriptor* descriptor = pool.BuildFile(file);
  EXPECT_NE(descriptor, nullptr) << file.DebugString();
  return descriptor == nullptr ? std::vector<std::string>() : Describe(*descriptor);
}

ContractDifference After(const std::function<void(File&)>& change) {
  File file = Base();
  change(file);
  return Compare(Lines(Base()), Lines(file));
}

Field& RequestField(File& file, int index) { return *file.mutable_message_type(0)->mutable_field(index); }
Field& AnswerField(File& file, int index) { return *file.mutable_message_type(1)->mutable_field(index); }
google::protobuf::MethodDescriptorProto& Get(File& file) { return *file.mutable_service(0)->mutable_method(0); }

TEST(WireCompatibilityTest, EachBreakingChangeIsSeen) {
  const std::vector<std::pair<std::string, std::function<void(File&)>>> changes = {
      {"a field removed", [](File& f) { f.mutable_message_type(0)->mutable_field()->DeleteSubrange(0, 1); }},
      {"a field renumbered", [](File& f) { RequestField(f, 0).set_number(5); }},
      {"a field renamed", [](File& f) { RequestField(f, 0).set_name("title"); }},
      {"a field of another type", [](File& f) { RequestField(f, 0).set_type(Field::TYPE_BYTES); }},
      {"a repeated field of another type", [](File& f) { RequestField(f, 2).set_type(Field::TYPE_FLOAT); }},
      {"a field that is not an enum any more",
       [](File& f) {
         RequestField(f, 3).set_type(Field::TYPE_INT32);
         RequestField(f, 3).clear_type_name();
       }},
      {"a field of another message", [](File& f) { AnswerField(f, 0).set_type_name(".t.Answer"); }},
      {"a field without presence",
       [](File& f) {
         RequestField(f, 1).clear_proto3_optional();
         RequestField(f, 1).clear_oneof_index();
         f.mutable_message_type(0)->clear_oneof_decl();
       }},
      {"a field that is repeated now", [](File& f) { RequestField(f, 0).set_label(Field::LABEL_REPEATED); }},
      {"a field out of its oneof", [](File& f) { AnswerField(f, 1).clear_oneof_index(); }},
      {"a field into a oneof", [](File& f) { AnswerField(f, 2).set_oneof_index(0); }},
      {"a oneof renamed", [](File& f) { f.mutable_message_type(1)->mutable_oneof_decl(0)->set_name("content"); }},
      {"an enum value removed", [](File& f) { f.mutable_enum_type(0)->mutable_value()->RemoveLast(); }},
      {"an enum value renumbered", [](File& f) { f.mutable_enum_type(0)->mutable_value(1)->set_number(2); }},
      {"a method removed", [](File& f) { f.mutable_service(0)->clear_method(); }},
      {"a method whose answer is not a stream any more", [](File& f) { Get(f).set_server_streaming(false); }},
      {"a method whose request is a stream now", [](File& f) { Get(f).set_client_streaming(true); }},
      {"a method of another request", [](File& f) { Get(f).set_input_type(".t.Answer"); }},
      {"a service renamed", [](File& f) { f.mutable_service(0)->set_name("T"); }},
  };
  for (const auto& [what, change] : changes) EXPECT_FALSE(After(change).broken.empty()) << what;
}

TEST(WireCompatibilityTest, AdditionsBreakNothing) {
  const std::vector<std::function<void(File&)>> changes = {
      [](File& f) {
        *f.mutable_message_type(0)->add_field() = RequestField(f, 0);
        RequestField(f, 4).set_number(9);
        RequestField(f, 4).set_name("title");
      },
      [](File& f) {
        *f.mutable_message_type(1)->add_field() = AnswerField(f, 1);
        AnswerField(f, 3).set_number(9);
        AnswerField(f, 3).set_name("text");
        // The fields of a oneof stand together.
        f.mutable_message_type(1)->mutable_field()->SwapElements(2, 3);
      },
      [](File& f) {
        f.mutable_service(0)->add_method()->CopyFrom(Get(f));
        f.mutable_service(0)->mutable_method(1)->set_name("Put");
      },
      [](File& f) { f.add_message_type()->set_name("Empty"); },
  };
  for (const auto& change : changes) {
    EXPECT_THAT(After(change).broken, IsEmpty());
    EXPECT_THAT(After(change).added, SizeIs(1));
  }
  const ContractDifference value = After([](File& f) {
    f.mutable_enum_type(0)->add_value()->set_name("KIND_B");
    f.mutable_enum_type(0)->mutable_value(2)->set_number(2);
  });
  EXPECT_THAT(value.broken, IsEmpty());
  EXPECT_THAT(value.added, ElementsAre("value t.Kind 2 KIND_B"));
}

TEST(WireCompatibilityTest, TheOrderOfFieldsDoesNotMatter) {
  const ContractDifference difference =
      After([](File& f) { f.mutable_message_type(0)->mutable_field()->SwapElements(0, 2); });
  EXPECT_THAT(difference.broken, IsEmpty());
  EXPECT_THAT(difference.added, IsEmpty());
}

}  // namespace
}  // namespace intrawarp
